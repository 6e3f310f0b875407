"""What an architecture must do to be scored: answer in the right shape, and see neither the future nor its neighbours.

Looked at on two sequences, before training and on the trained weights: a branch that starts at zero hides what it does.
External code is checked before anything is written, with weights that are moved away from zero, and so is its task.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from bench.config import RunConfig
from bench.registry import BadInput, describe_error
from bench.seeds import derive, generator
from tasks.base import Batch, Task

TOLERANCE = 1e-4  # of the largest logit: sums are ordered otherwise in a batch of another size


NOISE = 0.05  # added to every weight of an external model that is checked


class Unlawful(RuntimeError):
    """The architecture's own fault, described in one line."""


def require_lawful(model: nn.Module, task: Task, config: RunConfig) -> None:
    batch = task.sample(2, config.horizon, generator(config.device, config.seed, "laws"))
    tokens_BT, features_BTF = batch.tokens, batch.features
    length = tokens_BT.shape[1]
    cut = length // 2

    def exchanged(x: Tensor) -> Tensor:
        """Each with the other's second half."""
        return torch.cat([x[:, :cut], x.flip(0)[:, cut:]], dim=1)

    model.eval()
    with torch.no_grad():
        logits = model(tokens_BT, features_BTF)
        expected = [2, length, task.shape.classes]
        if not isinstance(logits, Tensor) or list(logits.shape) != expected:
            found = list(logits.shape) if isinstance(logits, Tensor) else f"a {type(logits).__name__}"
            raise Unlawful(f"{config.arch} returns {found}, where [sequences, positions, classes] are {expected}")
        later, alone = model(exchanged(tokens_BT), exchanged(features_BTF)), model(tokens_BT[:1], features_BTF[:1])
    model.train()
    bound = TOLERANCE * (1.0 + logits.abs().max())
    if ((later - logits)[:, :cut].abs() > bound).any():
        raise Unlawful(f"{config.arch} sees the future: what follows position {cut} changes its answers before")
    if ((alone - logits[:1]).abs() > bound).any():
        raise Unlawful(f"{config.arch} mixes sequences: the others of a batch change its answers")


def require_lawful_code(config: RunConfig) -> None:
    """Refuse external code that a run would fail on, in one line."""
    try:
        task = config.make_task()
        if config.task_source:
            require_lawful_task(task, config)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive(config.seed, "initialisation"))
            model = config.make_model().to(config.device)
            require_lawful(model, task, config)
            with torch.no_grad():
                for weight in model.parameters():
                    weight.add_(NOISE * torch.randn(weight.shape).to(weight))
            require_lawful(model, task, config)
    except (BadInput, Unlawful) as error:
        raise BadInput(str(error)) from error
    except Exception as error:
        raise BadInput(f"{config.arch} on {config.task} cannot be run: {describe_error(error)}") from error


def require_lawful_task(task: Task, config: RunConfig) -> None:
    """Batches of the shapes that the task promises, and posteriors that are distributions over what was drawn."""
    shape, n = task.shape, 4
    batch, again = (task.sample(n, config.horizon, generator(config.device, config.seed, "laws")) for _ in range(2))
    posterior = task.posterior(batch)
    length, count = shape.length(config.horizon), len(batch.queries)
    blind = Batch(*batch)._replace(targets=torch.zeros_like(batch.targets))
    laws = {
        f"tokens must be int64 [{n}, {length}]": _is(batch.tokens, torch.int64, n, length),
        f"tokens must be 0 to {shape.vocab - 1}": _within(batch.tokens, shape.vocab),
        f"features must have shape [{n}, {length}, {shape.features}]": _is(
            batch.features, batch.features.dtype, n, length, shape.features
        ),
        f"queries must be positions below {length}": _within(batch.queries, length),
        f"targets must be int64 [{n}, {count}]": _is(batch.targets, torch.int64, n, count),
        f"targets must be 0 to {shape.classes - 1}": _within(batch.targets, shape.classes),
        "the same generator must draw the same batch": all(map(torch.equal, batch, again)),
        f"the posterior must be float64 [{n}, {count}, {shape.classes}]": _is(
            posterior, torch.float64, n, count, shape.classes
        ),
        "the posterior must not use the targets": torch.equal(task.posterior(blind), posterior),
    }
    for law, holds in laws.items():
        if not holds:
            raise Unlawful(f"task {config.task}: {law}")
    if (posterior < 0).any() or ((posterior.sum(-1) - 1).abs() > 1e-9).any():
        raise Unlawful(f"task {config.task}: the posterior must be probabilities that sum to one")
    if (posterior.gather(-1, batch.targets[..., None]) <= 0).any():
        raise Unlawful(f"task {config.task}: a target was drawn that the posterior calls impossible")


def _is(x: Tensor, dtype: torch.dtype, *shape: int) -> bool:
    return x.dtype == dtype and tuple(x.shape) == shape


def _within(x: Tensor, limit: int) -> bool:
    return bool(((x >= 0) & (x < limit)).all())
