"""What a task is: it draws batches and knows their exact posterior.

A sequence is a header (positions that only inform) followed by one step per observation. `Shape` is all that a model
may know of a task; `Batch` is all that the oracle may know of a sequence, so `posterior` never sees a latent variable.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from bench.registry import BadInput, Registry

TASKS = Registry("task")


@dataclass(frozen=True)
class Shape:
    vocab: int  # tokens are 0..vocab-1
    features: int  # real numbers carried by a position; 0 for token-only tasks
    classes: int  # outcomes of a prediction
    header: int  # positions before the first step
    stride: int  # positions per step
    horizon: int  # the training horizon, in steps
    lead: int = 0  # positions between header and first step whose order matters, such as pairs to be remembered

    def length(self, horizon: int) -> int:
        """Positions of a sequence whose last step is scored at its first position."""
        return self.header + self.lead + self.stride * (horizon - 1) + 1


class Batch(NamedTuple):
    tokens: Tensor  # [B, T] int64: what stands at each position
    features: Tensor  # [B, T, F] float64: real-valued content of a position; F may be 0
    targets: Tensor  # [B, Q] int64: one honest draw at each query
    queries: Tensor  # [Q] int64: the positions that are scored


class Task(Protocol):
    """A frozen dataclass; its fields are its parameters."""

    @property
    def shape(self) -> Shape: ...

    @property
    def horizon(self) -> int: ...

    def sample(self, n: int, horizon: int, rng: torch.Generator) -> Batch:
        """Draw n sequences on the generator's device."""
        ...

    def posterior(self, batch: Batch) -> Tensor:
        """The exact answer at every query, [B, Q, classes] float64, from tokens and features alone."""
        ...

    def max_horizon(self) -> int | None:
        """The longest horizon that exists, or None where there is no limit."""
        ...


def require(condition: bool, message: str) -> None:
    """Refuse an impossible parameter at the boundary."""
    if not condition:
        raise BadInput(message)


def one_hot(x: Tensor, classes: int) -> Tensor:
    """[..., classes] in float64; torch's own looks at the numbers first, and so may keep the host waiting."""
    return (x[..., None] == torch.arange(classes, device=x.device)).to(torch.float64)
