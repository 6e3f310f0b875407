"""Words in a group: read generators one at a time, say which element their product is.

law      generators x_1, x_2, ... independent and uniform over the group's generators; g_t = g_{t-1} x_t, g_0 = identity
tokens   y_1 ... y_K, one generator a position. y_t = x_t with probability 1 - noise, else another generator, uniform
scored   at every position: g_t
exact    noise 0: a point mass on the product. Otherwise a forward pass over the group:
         b_t(g) = sum_x P(x | y_t) b_{t-1}(g x^-1), with P(x | y) = 1 - noise where x = y, else noise / (generators - 1)

group    elements   generators
s3       6          swap (0 1), cycle (0 1 2)                not abelian, solvable
z60      60         +12, +15, +20                            abelian: only counts matter
a5       60         cycles (0 1 2) and (0 1 2 3 4)           not solvable
s5       120        swap (0 1), cycle (0 1 2 3 4)            not solvable

Permutations are numbered in lexicographic order of (p(0), p(1), ...), so the identity is 0; p q means q first, then p.
Example, s3: tokens 0 and 1 are the swap (1, 0, 2) and the cycle (1, 2, 0), so `0 1 0` has the products (1, 0, 2),
(0, 2, 1) and (2, 0, 1): elements 2, 1 and 4.

Source: the word problem as a test of state tracking (Merrill, Petty and Sabharwal 2024, arXiv:2404.08819); generators
in place of arbitrary elements and the noisy channel are ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import permutations

import torch
from torch import Tensor

from tasks.base import TASKS, Batch, Shape, one_hot, require, shuffle

CYCLIC = {"z60": (60, (12, 15, 20))}  # order, generators
PERMUTATIONS = {  # points, whether only even ones count, generators
    "s3": (3, False, ((1, 0, 2), (1, 2, 0))),
    "a5": (5, True, ((1, 2, 0, 3, 4), (1, 2, 3, 4, 0))),
    "s5": (5, False, ((1, 0, 2, 3, 4), (1, 2, 3, 4, 0))),
}
GROUPS = ("s3", "z60", "a5", "s5")


@TASKS.add("group", version=1)
@dataclass(frozen=True)
class Group:
    group: str = "s5"
    noise: float = 0.0
    horizon: int = 20

    def __post_init__(self) -> None:
        require(self.group in GROUPS, f"group must be one of {', '.join(GROUPS)}, not '{self.group}'")
        require(0.0 <= self.noise < 1.0, f"noise must be at least 0 and below 1, not {self.noise}")
        require(self.horizon >= 1, f"horizon must be at least 1, not {self.horizon}")

    @property
    def shape(self) -> Shape:
        elements, generators = right_products(self.group).shape
        return Shape(vocab=generators, features=0, classes=elements, header=0, stride=1, horizon=self.horizon)

    def max_horizon(self) -> int | None:
        return None

    def sample(self, n: int, horizon: int, rng: torch.Generator) -> Batch:
        require(horizon >= 1, f"horizon must be at least 1, not {horizon}")
        device = rng.device
        products_GX = _on(device, self.group)
        X = products_GX.shape[1]
        word_BK = torch.randint(X, (n, horizon), generator=rng, device=device)
        u_BK = torch.rand(n, horizon, generator=rng, device=device, dtype=torch.float64)
        other_BK = torch.randint(1, X, (n, horizon), generator=rng, device=device)
        shown_BK = torch.where(u_BK < self.noise, (word_BK + other_BK) % X, word_BK)
        features = torch.empty(n, horizon, 0, dtype=torch.float64, device=device)
        return Batch(shown_BK, features, _multiply(products_GX, word_BK), torch.arange(horizon, device=device))

    def reorder(self, batch: Batch, rng: torch.Generator) -> Batch | None:
        """The whole word, if the group is abelian."""
        return batch._replace(tokens=shuffle(batch.tokens, rng)) if self.group in CYCLIC else None

    def posterior(self, batch: Batch) -> Tensor:
        products_GX = _on(batch.tokens.device, self.group)
        G, X = products_GX.shape
        if self.noise == 0:
            return one_hot(_multiply(products_GX, batch.tokens), G)
        sources_XG = products_GX.argsort(0).t()  # g x^-1: every column of products is a permutation
        match_BKX = one_hot(batch.tokens, X)
        weight_BKX = match_BKX * (1.0 - self.noise) + (1.0 - match_BKX) * (self.noise / (X - 1))
        weight_KXB = weight_BKX.permute(1, 2, 0).contiguous()
        belief_GB = weight_BKX.new_zeros(G, len(batch.tokens))  # elements first: a source is then one row to copy
        belief_GB[0] = 1.0
        beliefs = []
        for k in range(batch.tokens.shape[1]):
            parts = (belief_GB.index_select(0, sources_XG[x]) * weight_KXB[k, x] for x in range(X))
            belief_GB = torch.stack(list(parts)).sum(0)
            beliefs.append(belief_GB)
        return torch.stack(beliefs).permute(2, 0, 1).contiguous()


def _multiply(products_GX: Tensor, word_BK: Tensor) -> Tensor:
    """The running product of each word, [B, K]."""
    flat, X = products_GX.flatten(), products_GX.shape[1]
    element_B = torch.zeros_like(word_BK[:, 0])
    path = []
    for generator_B in word_BK.unbind(1):
        element_B = flat.index_select(0, element_B * X + generator_B)
        path.append(element_B)
    return torch.stack(path, dim=1)


@cache
def elements_of(group: str) -> tuple[tuple[int, ...], ...]:
    """The elements of a permutation group in lexicographic order."""
    points, even_only, _ = PERMUTATIONS[group]
    return tuple(p for p in permutations(range(points)) if not even_only or _is_even(p))


@cache
def right_products(group: str) -> Tensor:
    """The number of g x for every element g and generator x, [elements, generators]."""
    if group in CYCLIC:
        order, steps = CYCLIC[group]
        return torch.tensor([[(g + step) % order for step in steps] for g in range(order)])
    elements, generators = elements_of(group), PERMUTATIONS[group][2]
    number = {p: i for i, p in enumerate(elements)}
    return torch.tensor([[number[tuple(p[i] for i in x)] for x in generators] for p in elements])


@cache
def _on(device: torch.device, group: str) -> Tensor:
    """The same on a device, copied once: a copy from the host would have it wait at every batch."""
    return right_products(group).to(device)


def _is_even(p: tuple[int, ...]) -> bool:
    inversions = sum(p[i] > p[j] for j in range(len(p)) for i in range(j))
    return inversions % 2 == 0
