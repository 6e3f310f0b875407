"""Subspaces of a stream: matrices [D, R] with orthonormal columns.

Of tokens (`span`), of layer-0 keys, of a probe, of what varies with a quantity, of the readout's Jacobian, of principal
components, and random ones as the null.

Shape suffixes: B sequences, T positions, Q queries, C classes, D width, R rank, N vectors, H heads, d head width.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from models.taps import record
from models.transformer import Attention
from tasks.base import Batch

RANK = 1e-3  # of the largest singular value: what is smaller is no direction
RIDGE = 1e-3  # of a probe, relative to the mean variance of what it reads


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
    return span(covariance(x_ND, y_NC)).float()


def covariance(x_ND: Tensor, y_NC: Tensor) -> Tensor:
    """[C, D], not divided by N."""
    x_ND, y_NC = x_ND.double(), y_NC.double()
    return (y_NC - y_NC.mean(0)).T @ (x_ND - x_ND.mean(0))


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
