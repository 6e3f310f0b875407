"""Associative recall: store key-value pairs, wait, then look keys up in any order.

tokens   k1 v1 ... kP vP, then `gap` fillers, then queries q_1 ... q_K   (keys 0..N-1, values N..N+V-1, filler N+V)
scored   at every query: the value of the key asked for
exact    a point mass for a key that was stored, else uniform over the values

Stored keys are distinct; queries fall on all N keys alike, with replacement; every key's value is uniform and
independent, and a query is never answered, so the only evidence about a key is its pair. With random access the gap
costs nothing; a state that is overwritten or decays pays for it.

Source: multi-query associative recall (Arora et al. 2023, arXiv:2312.04927), with keys that were never stored added, so
that knowing what one does not know is part of the task.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tasks.base import TASKS, Batch, Shape, one_hot, require


@TASKS.add("recall", version=1, primitive="binding")
@dataclass(frozen=True)
class Recall:
    keys: int = 20
    values: int = 20
    pairs: int = 10
    gap: int = 10
    horizon: int = 20

    def __post_init__(self) -> None:
        require(self.values >= 2, f"values must be at least 2, not {self.values}")
        require(1 <= self.pairs <= self.keys, f"pairs must be 1 to {self.keys}, the number of keys, not {self.pairs}")
        require(self.gap >= 0, f"gap must not be negative, not {self.gap}")
        require(self.horizon >= 1, f"horizon must be at least 1, not {self.horizon}")

    @property
    def shape(self) -> Shape:
        return Shape(
            vocab=self.keys + self.values + 1, features=0, classes=self.values, header=0, stride=1,
            horizon=self.horizon, lead=2 * self.pairs + self.gap,
        )  # fmt: skip

    def max_horizon(self) -> int | None:
        return None

    def sample(self, n: int, horizon: int, rng: torch.Generator) -> Batch:
        require(horizon >= 1, f"horizon must be at least 1, not {horizon}")
        device = rng.device
        order_BN = torch.rand(n, self.keys, generator=rng, device=device, dtype=torch.float64).argsort(1)
        stored_BP = order_BN[:, : self.pairs]
        table_BN = torch.randint(self.values, (n, self.keys), generator=rng, device=device)
        queries_BK = torch.randint(self.keys, (n, horizon), generator=rng, device=device)
        pairs_BP2 = torch.stack([stored_BP, self.keys + table_BN.gather(1, stored_BP)], dim=2)
        filler_BG = torch.full((n, self.gap), self.keys + self.values, device=device)
        tokens_BT = torch.cat([pairs_BP2.flatten(1), filler_BG, queries_BK], dim=1)
        features = torch.empty(n, tokens_BT.shape[1], 0, dtype=torch.float64, device=device)
        positions = torch.arange(self.shape.lead, tokens_BT.shape[1], device=device)
        return Batch(tokens_BT, features, table_BN.gather(1, queries_BK), positions)

    def posterior(self, batch: Batch) -> Tensor:
        stored_BP = batch.tokens[:, 0 : 2 * self.pairs : 2]
        values_BP = batch.tokens[:, 1 : 2 * self.pairs : 2] - self.keys
        queries_BK = batch.tokens[:, self.shape.lead :]
        match_BKP = (queries_BK[:, :, None] == stored_BP[:, None, :]).to(torch.float64)
        known_BKV = match_BKP @ one_hot(values_BP, self.values)
        return torch.where(match_BKP.any(-1, keepdim=True), known_BKV, 1.0 / self.values)
