"""What a task is: it draws batches and knows their exact posterior.

A sequence is a header (positions that only inform) followed by one step per observation. `Shape` is all that a model
may know of a task; `Batch` is all that the oracle may know of a sequence, so `posterior` never sees a latent variable.

A task may also have

variants()                further named evaluations, stored beside `all` and `post`: other sequences, another answer
references(batch)         predictions of its own reference rows, by name, [B, Q, classes]
loss_weights(batch, rng)  how much each answer counts in training, [B, Q]; without it all count alike
reorder(batch, rng)       the same evidence in another order, where that does not change the exact answer to the last
                          question, else None; of a task with rollouts the targets follow the new order
opening, answer_token,    what a rollout needs: see HasRollouts
probe(tokens)
start(n),                 the exact predictor one token at a time: n empty states, then the answers [n, classes] after
step(tokens, state)       each token
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

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


class Law(Protocol):
    """Sequences, and the exact answer to them."""

    def sample(self, n: int, horizon: int, rng: torch.Generator) -> Batch:
        """Draw n sequences on the generator's device."""
        ...

    def posterior(self, batch: Batch) -> Tensor:
        """The exact answer at every query, [B, Q, classes] float64, from tokens and features alone."""
        ...


class Task(Law, Protocol):
    """A frozen dataclass; its fields are its parameters."""

    @property
    def shape(self) -> Shape: ...

    @property
    def horizon(self) -> int: ...

    def max_horizon(self) -> int | None:
        """The longest horizon that exists, or None where there is no limit."""
        ...


class Variant(NamedTuple):
    """A further evaluation: sequences from `sample`, scored against `posterior`."""

    sample: Callable[[int, int, torch.Generator], Batch]
    posterior: Callable[[Batch], Tensor]
    start: int = 0  # the first step that counts


def variants(task: Task) -> dict[str, Variant]:
    """The further evaluations of a task, by the name of their part."""
    found: dict[str, Variant] = task.variants() if hasattr(task, "variants") else {}
    return found


def references(task: Task, batch: Batch) -> dict[str, Tensor]:
    """The task's own reference predictions, by name."""
    found: dict[str, Tensor] = task.references(batch) if hasattr(task, "references") else {}
    return found


@runtime_checkable
class HasHypotheses(Protocol):
    """A task whose tokens stand for hypotheses about the answer; reports look at how a model represents them."""

    @property
    def lookup_tokens(self) -> int:
        """How many tokens, from the first on, are looked up by the questions; 0 where none is."""
        ...

    def hypotheses(self, tokens_BT: Tensor) -> Tensor:
        """The class that each position stands for, or -1, [B, T]."""
        ...


class Probe(NamedTuple):
    """Questions about fixed unknowns, J of them for each history."""

    suffix: Tensor  # [B, J, S] int64: the tokens that lead from the history to the question, then -1
    classes: Tensor  # [B, J] int64: the class whose probability is asked for


@runtime_checkable
class HasRollouts(Protocol):
    """A task whose answers are the tokens that come next, so that a predictor can go on by itself."""

    @property
    def opening(self) -> int:
        """Steps of a sequence that a predictor reads before it goes on by itself."""
        ...

    @property
    def answer_token(self) -> int:
        """The token of class 0; those of the other classes follow it."""
        ...

    def probe(self, tokens_BT: Tensor) -> Probe | None:
        """Questions that can be asked after every history and whose exact answers are martingales; None: no such."""
        ...


def reorder(task: Task, batch: Batch, rng: torch.Generator) -> Batch | None:
    """The same evidence in another order; None where the exact answer depends on the order."""
    found: Batch | None = task.reorder(batch, rng) if hasattr(task, "reorder") else None
    return found


@runtime_checkable
class CanRename(Protocol):
    """A task whose hypotheses can be renamed in a sequence: reports swap one sequence's evidence for the other's."""

    def rename(self, batch: Batch, order_BC: Tensor) -> Batch:
        """The same sequences with class c called order[c]. Only positions that stand for hypotheses change."""
        ...


LARGEST = 4096  # of what a task has: far beyond any sensible run. More is a slip, and would exhaust the memory


def require(condition: bool, message: str) -> None:
    """Refuse an impossible parameter at the boundary."""
    if not condition:
        raise BadInput(message)


def one_hot(x: Tensor, classes: int) -> Tensor:
    """[..., classes] in float64; torch's own looks at the numbers first, and so may keep the host waiting."""
    return (x[..., None] == torch.arange(classes, device=x.device)).to(torch.float64)


def rename_tokens(batch: Batch, order_BC: Tensor, classes_BT: Tensor, first: int) -> Batch:
    """Rename where a token `first + c` stands for class c, and in the targets; classes are -1 elsewhere."""
    renamed_BT = first + order_BC.gather(1, classes_BT.clamp(min=0))
    tokens_BT = torch.where(classes_BT >= 0, renamed_BT, batch.tokens)
    return batch._replace(tokens=tokens_BT, targets=order_BC.gather(1, batch.targets))


def permutations(n: int, size: int, rng: torch.Generator) -> Tensor:
    """n random orders of `size` items, [n, size]."""
    # float64: ties of float32 uniforms would bias the order, once in a few thousand draws
    return torch.rand(n, size, generator=rng, device=rng.device, dtype=torch.float64).argsort(1)


def shuffle(x: Tensor, rng: torch.Generator) -> Tensor:
    """The items of each row in a random order of its own, [B, N, ...]."""
    order_BN = permutations(x.shape[0], x.shape[1], rng)
    return x.gather(1, order_BN.view(*x.shape[:2], *[1] * (x.dim() - 2)).expand_as(x))
