"""The suite from Python, in three calls: `from bench import library`.

draw    sequences of a task, with their exact posterior
score   any callable that maps tokens and features to probabilities, against that posterior
train   an architecture of the suite, trained and scored as `bench run` does it

All three name tasks and architectures as the command line does, `"./my_model.py"` and `"hf:llama"` too. Parameters are
those of a preset, and keywords replace them: `draw("hmm", 4, states=3)` is `--task hmm --set states=3`. A mistake
raises `bench.registry.BadInput`, a training that failed RuntimeError.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import safetensors.torch
from pydantic import ValidationError
from torch import Tensor, nn

from bench import external
from bench.config import FIELDS, RunConfig, compose, draft, explain, task_parameters
from bench.device import pick_device
from bench.records import Parts, RunRecord, prepare_folder, write
from bench.registry import BadInput, Registry, unknown
from bench.run.contract import Unlawful, require_lawful, require_lawful_code, require_lawful_task
from bench.run.outside import LogProbabilities, Predictor, Probabilities
from bench.run.run import average, curves, examine, make_model, run_one, summaries
from bench.run.score import intervals
from bench.seeds import PUBLISHED_FROM, generator
from models.base import ARCHS
from tasks.base import TASKS, Batch, Task


class Drawn(NamedTuple):
    task: Task  # its `shape` has the sizes that a model needs: vocab, features, classes
    batch: Batch  # tokens [B, T], features [B, T, F], targets [B, Q], queries [Q]
    posterior: Tensor  # [B, Q, classes] float64


def draw(
    task: str,
    sequences: int,
    *,
    horizon: int | None = None,
    preset: str = "quick",
    seed: int = 0,
    device: str = "cpu",
    **parameters: Any,
) -> Drawn:
    """Sequences of a task with their exact posterior, at its training horizon or another.

    The same seed gives the same sequences. No seed gives those that `score` uses.

    >>> task, batch, posterior = draw("bijection", 2)
    >>> batch.tokens.shape, posterior.shape
    (torch.Size([2, 39]), torch.Size([2, 20, 20]))
    >>> posterior[0, 0].max() == 1 / 20  # nothing is known before the first value was shown
    tensor(True)
    >>> round(posterior[0, -1].max().item(), 6)  # at the last key one value is left
    1.0
    """
    asked = None if horizon is None else [horizon]
    config = describe_task(task, preset, seed, device, asked, {**parameters, "sequences": sequences})
    made = config.make_task()
    steps = config.horizon if horizon is None else horizon
    batch = made.sample(sequences, steps, generator(config.device, seed, "library", steps))
    return Drawn(made, batch, made.posterior(batch))


class Estimate(NamedTuple):
    """A mean over sequences in bits, with its 95 % interval: Student's t over sequences. None where there is none."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Scored:
    """A model at one horizon. Parts: `all` positions, and `post`, those beyond the training horizon."""

    horizon: int
    metrics: dict[str, dict[str, Estimate]]  # by part and metric; empty where the model does not reach
    references: dict[str, Parts]  # by reference predictor, part and metric, on the same sequences
    by_position: dict[str, list[float]]  # h_bayes, h_model, entropy_mae, kl


def score(
    model: Predictor,
    task: str,
    *,
    horizons: Sequence[int] | None = None,
    preset: str = "quick",
    seed: int = PUBLISHED_FROM,
    device: str = "cpu",
    **parameters: Any,
) -> dict[int, Scored]:
    """The error of a model in bits against the exact posterior, by horizon, with intervals and reference predictors.

    The model is called with tokens [B, T] and features [B, T, F] (torch tensors, features in float64) and returns
    probabilities [B, T, classes] as a torch tensor or a numpy array, a distribution at every position. It may not look
    ahead. If it has an attribute `max_length`, longer sequences are left out. The training horizon is always scored.

    The sequences are those of the published rows with this seed and preset, so errors can be compared. Intervals are
    over sequences: they say how well the error of this one model is known, nothing about another training of it.

    >>> import numpy as np
    >>> uniform = lambda tokens, features: np.full((*tokens.shape, 5), 0.2)
    >>> found = score(uniform, "hmm", horizons=[20, 50], sequences=64)
    >>> sorted(found)
    [20, 50]
    >>> kl = found[50].metrics["post"]["kl"]  # positions 21 to 50
    >>> kl.low < kl.value < kl.high
    True
    >>> round(kl.value - found[50].references["uniform"]["post"]["kl"], 9)
    0.0
    """
    config = replace(describe_task(task, preset, seed, device, horizons, parameters), arch="model")
    return score_config(model, config)


def score_config(model: Predictor, config: RunConfig) -> dict[int, Scored]:
    """The same for a config; a torch module is scored in evaluation mode, and left in the mode that it had."""
    training = isinstance(model, nn.Module) and model.training
    try:
        return _score(model, config)
    finally:
        if isinstance(model, nn.Module):
            model.train(training)


def _score(model: Predictor, config: RunConfig) -> dict[int, Scored]:
    task = config.make_task()
    classes = task.shape.classes
    if not callable(model):
        raise BadInput(f"the model is a {type(model).__name__}, which cannot be called with tokens and features")
    reader = LogProbabilities(model, classes)
    if reader.max_length is not None and reader.max_length < task.shape.length(config.horizon):
        needed = task.shape.length(config.horizon)
        raise BadInput(f"the model reads {reader.max_length} positions, the training horizon has {needed}")
    try:
        if config.task_source:
            require_lawful_task(task, config)
        require_lawful(Probabilities(model, classes), task, config)
    except Unlawful as error:
        raise BadInput(str(error)) from error
    found: dict[int, Scored] = {}
    for horizon, parts, columns, references in examine(reader, task, config):
        at = found.setdefault(horizon, Scored(horizon, {}, {name: {} for name in references}, {}))
        for name, result in references.items():
            at.references[name].update(summaries(result, parts))
        if columns is not None:
            result = average(columns)
            at.by_position.update(at.by_position or curves(result))
            for part, start in parts.items():
                bounds = intervals(columns, start)
                values = result.summary(start)
                at.metrics[part] = {name: Estimate(value, *bounds.get(name, ())) for name, value in values.items()}
    return found


class Trained(NamedTuple):
    record: RunRecord  # as `bench run` writes it
    model: nn.Module  # from tokens and features to logits [B, T, classes]


def train(
    arch: str,
    task: str,
    *,
    preset: str = "quick",
    seed: int = PUBLISHED_FROM,
    device: str = "auto",
    out: Path | None = None,
    **settings: Any,
) -> Trained:
    """Train and score one config as `bench run` does, with the same record; with `out` it is written there.

    >>> record, model = train("mlp-pointwise", "hmm", preset="smoke", device="cpu", steps=5)
    >>> sorted(record.metrics, key=int)
    ['20', '30', '50']
    >>> found = score(lambda tokens, features: model(tokens, features).softmax(-1), "hmm", preset="smoke")
    >>> bool(abs(found[20].metrics["all"]["entropy_mae"].value - record.error_bits) < 1e-6)
    True
    """
    arch, task = external.find(ARCHS, arch), external.find(TASKS, task)
    if out is not None:
        for registry, name in ((ARCHS, arch), (TASKS, task)):
            _require_a_file(registry, name)
        prepare_folder(out)
    config = compose(preset, arch, task, seed, pick_device(device)[0], settings)
    if config.arch_source or config.task_source:
        require_lawful_code(config)
    record, weights = run_one(config)
    if weights is None:
        raise RuntimeError(f"{arch} on {task} failed: {record.error}")
    if out is not None:
        write(out, record, weights)
    model = make_model(config)
    model.load_state_dict(safetensors.torch.load(weights))
    return Trained(record, model.eval())


def _require_a_file(registry: Registry, name: str) -> None:
    if registry.registered_here(name):
        raise BadInput(
            f"{registry.kind} '{name}' was registered by this program, so a record could not say what its code was: "
            f"put it into a file, and name the file instead, as in './my_{registry.kind}.py'"
        )


def describe_task(
    task: str,
    preset: str,
    seed: int,
    device: str,
    horizons: Sequence[int] | None,
    parameters: Mapping[str, Any],
) -> RunConfig:
    """A config whose task, horizons and sequences count; the rest is the preset's, and is not used."""
    task = external.find(TASKS, task)
    allowed = {*task_parameters(task), "horizon", "sequences"}
    for name in parameters:
        if name not in allowed:
            raise unknown(f"parameter of {task}", name, allowed)
    if horizons is not None and not (isinstance(horizons, Sequence) and all(isinstance(k, int) for k in horizons)):
        raise BadInput(f"horizons must be a list of whole numbers, not {horizons!r}")
    device, _ = pick_device(device)
    config = draft(preset, "transformer", task, seed, device, parameters)
    limit = config.make_task().max_horizon()
    reached = [k for k in horizons or config.horizons if limit is None or k <= limit]
    if horizons and len(reached) < len(horizons):
        raise BadInput(f"{task} has no horizon {max(horizons)}: its longest is {limit}")
    config = replace(config, horizons=tuple(sorted({*reached, config.horizon})))
    try:
        FIELDS.validate_python(config)
    except ValidationError as error:
        raise BadInput(explain(error)) from error
    return config
