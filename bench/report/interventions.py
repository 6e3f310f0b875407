"""Interventions: change what passes a model's taps and see what becomes of its answers.

Edits       swap     put a donor's activation, or only its part in a subspace, into chosen positions
            ablate   replace the part in a subspace by its mean, in the coordinates of a layer norm
            rotate   turn the part in a subspace; its length stays
            without  let heads write nothing; `swap` at a mixer's tap patches all that it writes, `patch` one head
Answers     the predictions of one model for one set of sequences, intact and edited: one forward a condition, which
            starts at the edited layer. What comes before it is remembered
States      the memory of one layer exchanged in the middle of a sequence, for models that can read step by step

Edits are for taps that carry [B, T, D]; `without` and `patch` are for [B, T, H, d].
Shape suffixes: B sequences, T positions, Q queries, C classes, D width, R rank, N vectors, H heads, d head width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from bench.run.score import CHUNK
from models.taps import edit, record, tap_names
from tasks.base import Batch

Edit = Callable[[Tensor], Tensor]
Edits = Mapping[str, Edit]
EMBEDDING = "embed.out"  # the first place of every model that has models.base.Embed


def places(model: nn.Module) -> list[str]:
    """Where the residual stream can be edited: the embedding, then after each layer."""
    taps = tap_names(model)
    return [name for name in taps if name == EMBEDDING] + [name for name in taps if name.endswith(".resid")]


def describe_place(model: nn.Module, place: str) -> str:
    if place == EMBEDDING:
        return "embedding"
    return f"after layer {[name for name in places(model) if name != EMBEDDING].index(place)}"


# Edits


def _require_orthonormal(basis_DR: Tensor) -> None:
    gram_RR = basis_DR.T @ basis_DR
    if not torch.allclose(gram_RR, torch.eye(len(gram_RR), dtype=gram_RR.dtype), atol=1e-4):
        raise ValueError("the columns of a subspace must be orthonormal")


def swap(donor_BTD: Tensor, positions: Sequence[int] | Tensor, basis_DR: Tensor | None = None) -> Edit:
    """The donor's vectors at these positions; with a basis, only their part in its subspace."""
    if basis_DR is not None:
        _require_orthonormal(basis_DR)

    def change(x_BTD: Tensor) -> Tensor:
        difference = donor_BTD[:, positions] - x_BTD[:, positions]
        if basis_DR is not None:
            difference = difference @ basis_DR @ basis_DR.T
        changed = x_BTD.clone()
        changed[:, positions] += difference
        return changed

    return change


def normalise(x_BTD: Tensor) -> Tensor:
    """Each vector with mean 0 and variance 1, as a layer norm hands it on: positions differ much in length."""
    return (x_BTD - x_BTD.mean(-1, keepdim=True)) / _deviation(x_BTD) if x_BTD.shape[-1] > 2 else x_BTD


def _deviation(x_BTD: Tensor) -> Tensor:
    variance = x_BTD.var(-1, correction=0, keepdim=True)
    return (variance + 1e-5).sqrt() if x_BTD.shape[-1] > 2 else torch.ones_like(variance)


def ablate(basis_DR: Tensor, mean_D: Tensor, positions: Sequence[int] | slice = slice(None)) -> Edit:
    """At these positions the normalised vector's part in the subspace becomes that of the (normalised) mean."""
    _require_orthonormal(basis_DR)

    def change(x_BTD: Tensor) -> Tensor:
        part = x_BTD[:, positions]
        changed = x_BTD.clone()
        changed[:, positions] = part - _deviation(part) * ((normalise(part) - mean_D) @ basis_DR @ basis_DR.T)
        return changed

    return change


def rotate(basis_DR: Tensor, turn_RR: Tensor) -> Edit:
    """At every position, the part in the subspace is turned; lengths stay."""
    _require_orthonormal(basis_DR)
    _require_orthonormal(turn_RR)
    return lambda x_BTD: x_BTD + x_BTD @ basis_DR @ (turn_RR - torch.eye(len(turn_RR))) @ basis_DR.T


def without(*heads: int) -> Edit:
    """These heads write nothing."""

    def change(z_BTHd: Tensor) -> Tensor:
        keep_H = torch.ones(z_BTHd.shape[2])
        keep_H[list(heads)] = 0
        return z_BTHd * keep_H[:, None]

    return change


def patch(donor_BTHd: Tensor, head: int, positions: Sequence[int] | Tensor) -> Edit:
    """One head gathers what it gathered in the donor."""

    def change(z_BTHd: Tensor) -> Tensor:
        changed = z_BTHd.clone()
        changed[:, positions, head] = donor_BTHd[:, positions, head]
        return changed

    return change


# Answers


class Answers:
    """Log probabilities at every query, [B, Q, C] float64, of the intact model and under edits."""

    @torch.no_grad()
    def __init__(self, model: nn.Module, batch: Batch, *also: str) -> None:
        self.model, self.queries = model, batch.queries
        size = CHUNK["cpu"]
        self.inputs = list(zip(batch.tokens.split(size), batch.features.split(size), strict=True))
        self.stream = [name for name in places(model) if name != EMBEDDING]
        self.blocks = [model.get_submodule(name.removesuffix(".resid")) for name in self.stream]
        calls: list[int] = []
        handles = [block.register_forward_hook(lambda *_: calls.append(1)) for block in self.blocks]
        self.seen: list[dict[str, Tensor]] = []  # one a chunk
        logits = []
        wanted = dict.fromkeys([*places(model), *also])
        try:
            for tokens, features in self.inputs:
                with record(model, *wanted) as seen:
                    logits.append(model(tokens, features)[:, self.queries])
                self.seen.append(seen)
        finally:
            for handle in handles:
                handle.remove()
        self.repeats = len(calls) != len(self.blocks) * len(self.inputs)  # a block that is applied again
        self.intact = torch.cat(logits).double().log_softmax(-1)

    def at(self, tap: str) -> Tensor:
        return torch.cat([seen[tap] for seen in self.seen])

    @torch.no_grad()
    def edited(self, edits: Edits, *also: str) -> Tensor:
        """With these edits; an edit at a tap is a function of all sequences that pass it. Taps `also` are kept."""
        logits, kept = [], []
        with edit(self.model, edits):
            for (tokens, features), seen in zip(self.inputs, self.seen, strict=True):
                with self._resumed(edits, seen), record(self.model, *also) as now:
                    logits.append(self.model(tokens, features)[:, self.queries])
                kept.append(now)
        self.kept = kept
        return torch.cat(logits).double().log_softmax(-1)

    def with_donor(self, place: str, make: Callable[[Tensor], Edit], donor: Answers) -> Tensor:
        """An edit made from what passed the same place in the donor, chunk by chunk."""
        parts = iter([make(seen[place]) for seen in donor.seen])
        return self.edited({place: lambda x: next(parts)(x)})

    @contextmanager
    def _resumed(self, edits: Edits, seen: Mapping[str, Tensor]) -> Iterator[None]:
        """Layers before the first edited one are skipped: the last of them returns what it returned before."""
        first = self._first_edited(edits)
        if self.repeats or first is None:
            yield
            return
        block_index, from_its_end = first
        skipped: dict[int, Callable[..., Tensor]] = {i: (lambda x, *_: x) for i in range(block_index)}
        if from_its_end:
            tap = self.model.get_submodule(self.stream[block_index])
            remembered = seen[self.stream[block_index]]
            skipped[block_index] = lambda *_: tap(remembered)  # through the tap, which has the edit
        elif block_index:
            before = seen[self.stream[block_index - 1]]
            skipped[block_index - 1] = lambda *_: before
        for i, forward in skipped.items():
            self.blocks[i].forward = forward
        try:
            yield
        finally:
            for i in skipped:
                del self.blocks[i].forward

    def _first_edited(self, edits: Edits) -> tuple[int, bool] | None:
        """The first layer with an edit, and whether only its end has one; None if nothing can be skipped."""
        found = []
        for name in edits:
            own = [i for i, end in enumerate(self.stream) if name.startswith(end.removesuffix("resid"))]
            if not own:
                return None
            found.append((own[0], name == self.stream[own[0]]))
        return min(found, default=None)


# States


def memories(model: Any) -> dict[str, list[int] | None]:
    """What swap_state can swap, by name: the memory of no layer, of each, and of all. Empty without a step function."""
    if not hasattr(model, "step"):
        return {}
    state = model.start(1, 1)
    each = {f"layer {i}": [i] for i in range(len(getattr(state, "memory", state)))}
    return {"none": [], **each, "all layers": None}


@torch.no_grad()
def swap_state(
    model: Any,
    recipient: Batch,
    donor: Batch,
    at: int,
    layers: Sequence[int] | None = None,
    donor_at: int | None = None,
) -> Tensor:
    """Read both up to position `at`, give the recipient the donor's memory of these layers (None: all), read on.

    The donor is read up to `donor_at`, if that is another position. Returns log probabilities at position `at`,
    [B, C] float64.
    """
    states = []
    for batch, end in ((recipient, at), (donor, at if donor_at is None else donor_at)):
        state = model.start(len(batch.tokens), batch.tokens.shape[1])
        for t in range(end):
            model.step(batch.tokens[:, t], batch.features[:, t], state)
        states.append(state)
    mine, theirs = (getattr(state, "memory", state) for state in states)
    for layer in range(len(mine)) if layers is None else layers:
        mine[layer] = theirs[layer]
    logits: Tensor = model.step(recipient.tokens[:, at], recipient.features[:, at], states[0])
    return logits.double().log_softmax(-1)
