"""Interventions: change what passes a model's taps and see what becomes of its answers.

Edits       swap     put a donor's activation, or only its part in a subspace, into chosen positions
            ablate   replace the part in a subspace by its mean
            rotate   turn the part in a subspace; its length stays
            without  let heads write nothing; `swap` at a mixer's tap patches all that it writes, `patch` one head
Subspaces   matrices [D, R] with orthonormal columns: of tokens (`span`), of layer-0 keys, of a probe, of the readout's
            Jacobian, of principal components, and random ones as the null
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
from models.transformer import Attention
from tasks.base import Batch

Edit = Callable[[Tensor], Tensor]
Edits = Mapping[str, Edit]
EMBEDDING = "embed.out"  # the first place of every model that has models.base.Embed
RANK = 1e-3  # of the largest singular value: what is smaller is no direction
RIDGE = 1e-3  # of a probe, relative to the mean variance of what it reads


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


def ablate(basis_DR: Tensor, mean_D: Tensor) -> Edit:
    """At every position, the part in the subspace becomes that of the mean."""
    _require_orthonormal(basis_DR)
    return lambda x_BTD: x_BTD - (x_BTD - mean_D) @ basis_DR @ basis_DR.T


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


# Subspaces


def span(vectors_ND: Tensor, rank: int | None = None) -> Tensor:
    """The directions of these vectors, the strongest first; those that hardly occur are left out."""
    _, strength, directions_ND = torch.linalg.svd(vectors_ND.double(), full_matrices=False)
    count = int((strength > RANK * strength.max().clamp(min=1e-30)).sum())
    return directions_ND[: min(count, rank or count)].T.to(vectors_ND.dtype)


def centred_span(vectors_ND: Tensor, rank: int | None = None) -> Tensor:
    """The directions in which these vectors differ from each other; with a rank, the principal components."""
    return span(vectors_ND - vectors_ND.mean(0), rank)


def random_subspace(width: int, rank: int, rng: torch.Generator) -> Tensor:
    return torch.linalg.qr(torch.randn(width, rank, generator=rng))[0]


def key_subspace(attention: Attention, inputs_ND: Tensor, rank: int) -> Tensor:
    """What the keys of a layer read from these inputs: each key pulled back through its own projection."""
    H, d = attention.heads, attention.head_width
    weight_HdD = attention.project.weight.detach().view(3, H, d, -1)[1]
    keys_NHd = torch.einsum("nD,hdD->nhd", inputs_ND - inputs_ND.mean(0), weight_HdD)
    return span(torch.einsum("nhd,hdD->nhD", keys_NHd, weight_HdD).flatten(0, 1), rank)


class Probe:
    """A linear map, fitted with a small ridge."""

    def __init__(self, x_ND: Tensor, y_NC: Tensor) -> None:
        x_ND, y_NC = x_ND.double(), y_NC.double()
        self.x_mean, self.y_mean = x_ND.mean(0), y_NC.mean(0)
        centred = x_ND - self.x_mean
        gram_DD = centred.T @ centred
        rounding = 1e-6 * x_ND.square().sum(0).mean()  # a difference in the seventh digit is not read
        ridge = RIDGE * gram_DD.diagonal().mean() + rounding.clamp(min=1e-12)
        gram_DD.diagonal().add_(ridge)
        self.weight_DC = torch.linalg.solve(gram_DD, centred.T @ (y_NC - self.y_mean))

    def read(self, x_ND: Tensor) -> Tensor:
        return (x_ND.double() - self.x_mean) @ self.weight_DC + self.y_mean

    def subspace(self) -> Tensor:
        """The directions that it reads."""
        return span(self.weight_DC.T).float()


def covarying_subspace(x_ND: Tensor, y_NC: Tensor) -> Tensor:
    """The directions along which x varies with y: without them no linear probe reads y, since nothing covaries."""
    x_ND, y_NC = x_ND.double(), y_NC.double()
    return span((y_NC - y_NC.mean(0)).T @ (x_ND - x_ND.mean(0))).float()


def readout_subspaces(
    model: nn.Module, batch: Batch, where: Sequence[str], rank: int, rng: torch.Generator, draws: int = 6
) -> dict[str, Tensor]:
    """At each place, the directions to which later answers are most sensitive.

    The leading right singular vectors of the Jacobian of later logits, all sequences and earlier positions together.
    A draw takes one query and a random direction of its logits, so one backward pass serves all places. A place that
    later answers do not depend on, such as the end of the last layer, has no entry.
    """
    with torch.enable_grad(), record(model, *where) as seen:
        logits = model(batch.tokens, batch.features)[:, batch.queries]
        gram = {place: torch.zeros(seen[place].shape[-1], seen[place].shape[-1]) for place in where}
        some = torch.linspace(0, len(batch.queries) - 1, draws + 1).round().long()[1:]  # the first has no past
        for query in some.tolist():
            towards = torch.randn(logits[:, query].shape, generator=rng)
            towards -= towards.mean(-1, keepdim=True)  # a shift of all logits is no change of the answer
            gradients = torch.autograd.grad(
                logits[:, query], [seen[place] for place in where], towards, retain_graph=True, allow_unused=True
            )
            for place, gradient in zip(where, gradients, strict=True):
                if gradient is not None:
                    g_ND = gradient[:, : int(batch.queries[query])].flatten(0, 1)
                    gram[place] += g_ND.T @ g_ND
    felt = {place: g for place, g in gram.items() if g.any()}
    return {place: torch.linalg.eigh(g.double())[1].flip(1)[:, :rank].float() for place, g in felt.items()}


def overlap(a_DR: Tensor, b_DS: Tensor) -> float:
    """The share of the smaller subspace that lies in the other: 1 if it is contained, rank / width at random."""
    return ((a_DR.T @ b_DS).square().sum() / min(a_DR.shape[1], b_DS.shape[1])).item()


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
