"""Training laws from a fixed pool, and evaluation under another prior: what the tasks that have them share.

With `pool=M` a sequence's law is one of M, drawn once and for all from the task's prior; the pool does not depend on a
run's seed. Two answers are exact: Bayes with the pool as prior, which has memorised it, and Bayes with the full prior,
which knows nothing of it. Parts of a record beside `all` (in the pool, against the pool's Bayes):

inside-full     in the pool, against Bayes with the full prior
outside-full    fresh laws from the full prior, against Bayes with the full prior
outside-pool    the same sequences, against Bayes with the pool as prior

With `eval_prior=c`, the concentration of a symmetric Beta or Dirichlet, there are `shifted`, laws of that prior against
its own Bayes, and `shifted-own`, the same sequences against Bayes with the prior of training.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from tasks.base import Batch, Law, Variant, require

SEED = 2512_22471
CHUNK = {"cpu": 2**18, "cuda": 2**26}  # numbers in one piece of a sum over the pool: a core's cache, or a few launches
BLOCK = 256  # laws drawn at once
LARGEST = 2**16
MOST_PRIOR = 1_000_000  # above, sums of counts lose digits


def require_pool(pool: int | None) -> None:
    require(pool is None or 1 <= pool <= LARGEST, f"pool must be 1 to {LARGEST:,} laws, not {pool}")


def require_prior(name: str, value: float | None) -> None:
    # below 0.05 gamma variables underflow
    good = value is None or 0.05 <= value <= MOST_PRIOR
    require(good, f"{name} must be a number from 0.05 to {MOST_PRIOR:,}, not {value}")


@lru_cache(maxsize=16)
def laws(task: Any, size: int, device: torch.device) -> Tensor:
    """The pool of a task: the first `size` laws of a stream of its own; a larger pool has the smaller inside."""
    rng = torch.Generator().manual_seed(SEED)
    # always whole blocks: torch draws fewer numbers in another way
    blocks = [task.draw_laws(BLOCK, rng) for _ in range(-(-size // BLOCK))]
    return torch.cat(blocks)[:size].to(device)


def choose(pool: Tensor, n: int, rng: torch.Generator) -> Tensor:
    """n laws from the pool, with replacement."""
    return pool[torch.randint(len(pool), (n,), generator=rng, device=rng.device)]


def pool_variants(task: Law, full: Law) -> dict[str, Variant]:
    return {
        "inside-full": Variant(task.sample, full.posterior),
        "outside-full": Variant(full.sample, full.posterior),
        "outside-pool": Variant(full.sample, task.posterior),
    }


def shift_variants(task: Law, shifted: Law) -> dict[str, Variant]:
    return {
        "shifted": Variant(shifted.sample, shifted.posterior),
        "shifted-own": Variant(shifted.sample, task.posterior),
    }


def pieces(batch: Batch, numbers: int, chunk: int | None = None) -> list[Batch]:
    """The batch in pieces, for a computation that takes so many numbers a sequence."""
    rows = max(1, (chunk or CHUNK[batch.tokens.device.type]) // numbers)
    cut = zip(batch.tokens.split(rows), batch.features.split(rows), batch.targets.split(rows), strict=True)
    return [Batch(*part, batch.queries) for part in cut]
