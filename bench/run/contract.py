"""What an architecture must do to be scored: answer in the right shape, and see neither the future nor its neighbours.

It is checked before training and on the trained weights, because a branch that starts at zero hides what it does. One
sequence is cut at many positions, and what follows each cut is exchanged for another sequence's: what stands before
must keep its answers. One cut would not do, as a model may mix positions within blocks that end at it.
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
FIRST_CUTS = 32
TOKENS = 8192  # in one forward pass
NOISE = 0.05  # added to every weight of an external model that is checked


class Unlawful(RuntimeError):
    """The architecture's own fault, described in one line."""


def require_lawful(model: nn.Module, task: Task, config: RunConfig) -> None:
    batch = task.sample(2, config.horizon, generator(config.device, config.seed, "laws"))
    tokens_BT, features_BTF = batch.tokens, batch.features
    model.eval()
    with torch.no_grad():
        logits = require_shape(model, batch, task.shape.classes, config.arch)
        if not logits.isfinite().all():
            raise Unlawful(f"{config.arch} returns numbers that are not finite")
        bound = TOLERANCE * (1.0 + logits.abs().max())

        def differs(found: Tensor, expected: Tensor) -> bool:
            return not ((found - expected).abs() <= bound).all()  # so that NaN differs, too

        if differs(model(tokens_BT, features_BTF), logits):
            raise Unlawful(f"{config.arch} answers the same question differently when it is asked again")
        if differs(model(tokens_BT[:1], features_BTF[:1]), logits[:1]):
            raise Unlawful(f"{config.arch} mixes sequences: the others of a batch change its answers")
        length = tokens_BT.shape[1]
        for cuts in torch.tensor(choose_cuts(length)).split(max(1, TOKENS // length)):
            later = model(*(exchange(x, cuts) for x in (tokens_BT, features_BTF)))
            for cut, logits_TC in zip(cuts.tolist(), later, strict=True):
                if differs(logits_TC[:cut], logits[0, :cut]):
                    raise Unlawful(
                        f"{config.arch} sees the future: what follows position {cut} changes its answers before"
                    )
    model.train()


def require_shape(model: nn.Module, batch: Batch, classes: int, arch: str) -> Tensor:
    logits = model(batch.tokens, batch.features)
    expected = [*batch.tokens.shape, classes]
    if not isinstance(logits, Tensor) or list(logits.shape) != expected:
        found = list(logits.shape) if isinstance(logits, Tensor) else f"a {type(logits).__name__}"
        raise Unlawful(f"{arch} returns {found}, where [sequences, positions, classes] are {expected}")
    return logits


def choose_cuts(length: int) -> list[int]:
    """All of a short sequence. Of a long one the first, where every small block is cut, and neighbours further on."""
    if length <= 2 * FIRST_CUTS:
        return list(range(1, length))
    step = max(1, (length - FIRST_CUTS) // (FIRST_CUTS // 2))
    later = {cut + i for cut in range(FIRST_CUTS, length - 2, step) for i in (0, 1)}
    return [*range(1, FIRST_CUTS), *sorted(later)]


def exchange(x_2T: Tensor, cuts: Tensor) -> Tensor:
    """The first sequence up to each cut, and from there on the second: one row a cut."""
    after_NT = torch.arange(x_2T.shape[1])[None] >= cuts[:, None]
    after_NT = after_NT.to(x_2T.device).view(*after_NT.shape, *[1] * (x_2T.ndim - 2))
    return torch.where(after_NT, x_2T[1], x_2T[0])


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
            require_lengths(model, task, config)
            with torch.no_grad():
                for weight in model.parameters():
                    weight.add_(NOISE * torch.randn(weight.shape).to(weight))
            require_lawful(model, task, config)
    except (BadInput, Unlawful) as error:
        raise BadInput(str(error)) from error
    except Exception as error:
        raise BadInput(f"{config.arch} on {config.task} cannot be run: {describe_error(error)}") from error


@torch.no_grad()
def require_lengths(model: nn.Module, task: Task, config: RunConfig) -> None:
    """It can read every length at which it will be scored; `max_length` says where it ends."""
    limit, last = getattr(model, "max_length", None), task.max_horizon()
    for horizon in config.horizons:
        if (limit is not None and task.shape.length(horizon) > limit) or (last is not None and horizon > last):
            continue
        batch = task.sample(2, horizon, generator(config.device, config.seed, "laws"))
        try:
            require_shape(model, batch, task.shape.classes, config.arch)
        except Exception as error:
            reason = str(error) if isinstance(error, Unlawful) else describe_error(error)
            known = f"{config.arch} cannot read {batch.tokens.shape[1]} positions, which horizon {horizon} has"
            raise Unlawful(f"{known}, and has no max_length that says so: {reason}") from error


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
