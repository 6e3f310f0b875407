"""run_one: the whole story of a run, from a config to its record. run_in_turns: the same, a step at a time."""

from __future__ import annotations

import hashlib
import math
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from typing import Any, Literal, NamedTuple

import torch
from torch import nn

from bench.config import RunConfig
from bench.device import describe, settle_arithmetic, threads
from bench.records import SCHEMA, CannotWrite, Look, Memory, Parts, RunRecord, Seconds
from bench.run.contract import Unlawful, require_lawful
from bench.run.keeper import SHARED, Keeper
from bench.run.meter import Meter, count_flops
from bench.run.references import reference_scores
from bench.run.score import CHUNK, CURVES, Exam, Score, average, by_sequence, make_exam, predict
from bench.run.snapshots import pack
from bench.run.source import Source, loaded_source
from bench.run.train import Diverged, Progress, draw, fit, loss_nats
from bench.run.turns import Turns, finish
from bench.seeds import derive
from models.base import ARCHS, count_parameters
from models.hf import from_library
from models.kernels.check import Case, Recurrence, require_right, require_right_recurrence, warm_up
from models.linear import Mixer
from models.transformer import Attention
from tasks.base import Task, Variant, variants


def run_one(
    config: RunConfig,
    report: Callable[[Progress], None] = lambda _: None,
    keeper: Keeper | None = None,
    source: Source | None = None,
) -> tuple[RunRecord, bytes | None]:
    """Train and score; a run that fails is a record too, with its error. Returns the record and the weights."""
    return finish(run_in_turns(config, report, keeper, source))


def run_in_turns(
    config: RunConfig,
    report: Callable[[Progress], None] = lambda _: None,
    keeper: Keeper | None = None,
    source: Source | None = None,
) -> Turns[tuple[RunRecord, bytes | None]]:
    """The same, a step at a time.

    A process started by another that has loaded the same code is given its source.
    """
    with threads():  # a checkpoint brings the number of threads it was written with
        return (yield from _run(config, report, keeper, source))


def _run(
    config: RunConfig,
    report: Callable[[Progress], None],
    keeper: Keeper | None,
    source: Source | None,
) -> Turns[tuple[RunRecord, bytes | None]]:
    commit, dirty = source or loaded_source()
    settle_arithmetic(config.device)
    meter = Meter(config.device)
    keeper = keeper or Keeper(config)
    measured: dict[str, Any] = {
        "parameters": None, "state_bytes": None, "train_flops": None, "metrics": {}, "references": {},
        "by_position": {}, "loss_curve": [], "tokens_per_second": None, "weights": None,
    }  # fmt: skip
    status: Literal["ok", "failed"] = "ok"
    error, weights = None, None
    try:
        with meter.phase("setup"):
            task = config.make_task()
            model = make_model(config)
            length = task.shape.length(config.horizon)
            measured["parameters"] = count_parameters(model)
            measured["state_bytes"] = state_bytes(model, length)
            measured["train_flops"] = train_flops(config)
        if config.attention == "triton" and any(isinstance(module, Attention) for module in model.modules()):
            with meter.phase("compile"):
                check_kernels(model, task, config)
        if config.device == "cuda" and any(isinstance(module, Mixer) for module in model.modules()):
            with meter.phase("compile"):
                check_recurrences(model, config)
        meter.restart_peaks()  # a check in float64 may need more than the run
        with meter.phase("setup"):
            require_lawful(model, task, config)
        with meter.phase("train"):
            looks, data_seconds = yield from fit(model, task, config, report, keeper)
            measured["loss_curve"] = [Look(**look) for look in looks]
        meter.add("train", keeper.seconds_before)
        meter.seconds["data"] = data_seconds
        measured["tokens_per_second"] = config.steps * config.batch * length / (meter.seconds["train"] or 1.0)
        with meter.phase("eval"):
            require_lawful(model, task, config)
            measured |= evaluate(model, task, config)
        weights = pack(model)
        measured["weights"] = f"sha256:{hashlib.sha256(weights).hexdigest()}"
    except (CannotWrite, BrokenPipeError):
        raise  # not the run's failure: it goes on from its checkpoint where it can write, or tell, again
    except (Diverged, Unlawful) as cause:
        status, error = "failed", str(cause)
    except Exception as cause:
        status, error = "failed", f"{type(cause).__name__}: {cause}"
        traceback.print_exc()
    energy = None if keeper.seconds_before else meter.energy_joules()  # of the earlier part nobody kept count
    seconds = Seconds(**{name: None if s is None else round(s, 3) for name, s in meter.seconds.items()})
    memory, is_shared = Memory(**meter.memory()), SHARED in keeper.at.notes
    counted = measured["train_flops"] if status == "ok" and not is_shared else None
    platform = {**describe(config).to_json(), "gpu": meter.gpu_facts(counted, config.precision)}
    if is_shared:
        seconds, memory, energy, measured["tokens_per_second"] = Seconds(), Memory(), None, None
        measured["loss_curve"] = [replace(look, seconds=None) for look in measured["loss_curve"]]
    record = RunRecord(
        schema=SCHEMA, id=config.id(), status=status, error=error, config=config, budget=config.budget(),
        seconds=seconds, memory_bytes=memory, energy_joules=energy, platform=platform, commit=commit, dirty=dirty,
        notes=keeper.at.notes, **measured,
    )  # fmt: skip
    return record, weights


def make_model(config: RunConfig) -> nn.Module:
    """Initialised on the CPU from its own stream: the same start on every device."""
    settle_arithmetic(config.device)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(config.seed, "initialisation"))
        return config.make_model().to(config.device)


def check_kernels(model: nn.Module, task: Task, config: RunConfig) -> None:
    """Check, and so compile, the kernel for each shape that this run will use: no run trains on a wrong kernel."""
    served = {
        (module.head_width, module.heads, module.slopes is not None)
        for module in model.modules()
        if isinstance(module, Attention)
    }
    dtypes = ("float32", "bfloat16") if config.precision == "bf16" else ("float32",)  # it is scored in float32
    for dtype, length, (width, heads, sloped) in product(dtypes, config.lengths(), sorted(served)):
        header = min(length, task.shape.header)
        require_right(Case(length, width, dtype, header=header, sloped=sloped, heads=heads), config.device)


def check_recurrences(model: nn.Module, config: RunConfig) -> None:
    """The same for fla's kernels, and at the batch sizes of training and scoring, so that neither compiles anything."""
    served = {
        (module.recurrence, module.heads, module.keys, module.values)
        for module in model.modules()
        if isinstance(module, Mixer)
    }
    for length, (name, heads, keys, values) in product(config.lengths(), sorted(served)):
        require_right_recurrence(Recurrence(name, length, heads, keys, values), config.device)
    length = config.make_task().shape.length(config.horizon)
    for batch, sizes in product({config.batch, min(CHUNK[config.device], config.sequences)}, sorted(served)):
        name, heads, keys, values = sizes
        warm_up(Recurrence(name, length, heads, keys, values, batch), config.device)


def state_bytes(model: nn.Module, length: int) -> int | None:
    """What the model carries from one position to the next; None for an architecture that does not say."""
    tell: Callable[[int], int] | None = getattr(model, "state_bytes", None)
    return tell(length) if tell is not None else None


def train_flops(config: RunConfig) -> float | None:
    """Of all steps; None for an architecture that runs on CUDA only, because operations are counted on the CPU."""
    return None if ARCHS.facts(config.arch).get("cuda") else float(config.steps * step_flops(config))


def step_flops(config: RunConfig) -> int:
    """Forward and backward of one batch; the optimizer is not counted, as is the custom.

    One sequence is counted on the CPU, whatever the run's device, with attention written out: torch's FLOP counter
    ignores fused kernels.
    """
    attention = "math" if from_library(config.arch) else config.attention  # a library reads it when built
    twin = replace(config, device="cpu", batch=1, steps=1, attention=attention)
    batch, answer = next(draw(twin.make_task(), twin))
    model = make_model(twin)
    for module in model.modules():
        if isinstance(module, Attention):
            module.backend = "math"
    with count_flops() as counted:
        loss_nats(model, batch, answer).backward()
    return int(counted["flops"]) * config.batch


class Examined(NamedTuple):
    """One exam: the model's errors by sequence, and those of the reference predictors."""

    horizon: int
    parts: dict[str, int]  # the first step that counts, by the name of the part
    model: Score | None  # [N, Q]; None where the model does not reach
    references: dict[str, Score]  # [Q]


def examine(model: nn.Module, task: Task, config: RunConfig) -> Iterator[Examined]:
    """Every horizon that the task has, whole and beyond training, each followed by the task's variants."""
    model.eval()
    limit, reach = task.max_horizon(), getattr(model, "max_length", None)
    for horizon in config.horizons:
        if limit is not None and horizon > limit:
            continue
        reached = reach is None or task.shape.length(horizon) <= reach
        parts = {"all": 0} | ({"post": config.horizon} if horizon > config.horizon else {})
        laws: list[tuple[Task | Variant, dict[str, int]]] = [(task, parts)]
        laws += [(each, {part: each.start}) for part, each in variants(task).items() if each.start < horizon]
        for law, starts in laws:
            exam = make_exam(law, horizon, config.sequences, config.seed, config.device)
            known = reference_scores(config.task, task, exam)
            yield Examined(horizon, starts, _score_finite(model, exam, horizon) if reached else None, known)


def evaluate(model: nn.Module, task: Task, config: RunConfig) -> dict[str, Any]:
    """What a record keeps of it; null where task or model does not reach."""
    metrics: dict[str, Any] = dict.fromkeys(map(str, config.horizons))
    references, by_position = metrics.copy(), metrics.copy()
    for horizon, parts, columns, known in examine(model, task, config):
        key = str(horizon)
        references[key] = references[key] or {name: {} for name in known}
        for name, result in known.items():
            references[key][name] |= summaries(result, parts)
        if columns is not None:
            result = average(columns)
            metrics[key] = (metrics[key] or {}) | summaries(result, parts)
            by_position[key] = by_position[key] or curves(result)
    return {"metrics": metrics, "references": references, "by_position": by_position}


def summaries(result: Score, parts: dict[str, int]) -> Parts:
    return {part: result.summary(start) for part, start in parts.items()}


def curves(result: Score) -> dict[str, list[float]]:
    return {name: getattr(result, name).tolist() for name in CURVES}


def _score_finite(model: nn.Module, exam: Exam, horizon: int) -> Score:
    columns = by_sequence(exam, predict(model, exam.batch))
    if not math.isfinite(columns.kl.sum().item()):
        raise Diverged(f"its predictions are not finite at K = {horizon}")
    return columns
