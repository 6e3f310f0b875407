"""Associative recall: store key-value pairs, wait, then look keys up in any order.

tokens   k1 v1 ... kP vP, then `gap` fillers, then queries q_1 ... q_K   (keys 0..N-1, values N..N+V-1, filler N+V)
scored   at every query: the value of the key asked for
exact    a point mass for a key that was stored, else uniform over the values

recall     queries fall on all N keys alike, with replacement; values are uniform and independent. So some keys that are
           asked for were never stored, and knowing what one does not know is part of the task.
recall-64  64 of 256 keys, values distinct, 32 fillers, then 3 distinct queries, all of them stored. `pairs` is a
           ladder, 4 to 64: each further pair is more to remember, and nothing else changes.

Stored keys are distinct and a query is never answered, so the only evidence about a key is its pair. With random access
the gap costs nothing; a state that is overwritten or decays pays for it.

Sources: multi-query associative recall (Arora et al. 2023, arXiv:2312.04927). The setting of recall-64 is that of
src/data/associative_recall.py in github.com/vishalmisra/bayesian-wind-tunnel, without its marks around keys and values
and without its fillers between queries.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tasks.base import LARGEST, TASKS, Batch, Shape, one_hot, permutations, rename_tokens, require, shuffle


@TASKS.add("recall", version=1, primitive="binding")
@dataclass(frozen=True)
class Recall:
    keys: int = 20
    values: int = 20
    pairs: int = 10
    gap: int = 10
    horizon: int = 20

    def __post_init__(self) -> None:
        require(1 <= self.keys <= LARGEST, f"keys must be 1 to {LARGEST}, not {self.keys}")
        require(2 <= self.values <= LARGEST, f"values must be 2 to {LARGEST}, not {self.values}")
        require(1 <= self.pairs <= self.keys, f"pairs must be 1 to {self.keys}, the number of keys, not {self.pairs}")
        require(0 <= self.gap <= LARGEST, f"gap must be 0 to {LARGEST}, not {self.gap}")
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
        stored_BP, values_BP, asked_BK, answers_BK = self._draw(n, horizon, rng)
        pairs_BP2 = torch.stack([stored_BP, self.keys + values_BP], dim=2)
        filler_BG = torch.full((n, self.gap), self.keys + self.values, device=device)
        tokens_BT = torch.cat([pairs_BP2.flatten(1), filler_BG, asked_BK], dim=1)
        features = torch.empty(n, tokens_BT.shape[1], 0, dtype=torch.float64, device=device)
        positions = torch.arange(self.shape.lead, tokens_BT.shape[1], device=device)
        return Batch(tokens_BT, features, answers_BK, positions)

    def _draw(self, n: int, horizon: int, rng: torch.Generator) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Stored keys and their values, then keys asked for and their values."""
        stored_BP = permutations(n, self.keys, rng)[:, : self.pairs]
        table_BN = torch.randint(self.values, (n, self.keys), generator=rng, device=rng.device)
        asked_BK = torch.randint(self.keys, (n, horizon), generator=rng, device=rng.device)
        return stored_BP, table_BN.gather(1, stored_BP), asked_BK, table_BN.gather(1, asked_BK)

    @property
    def lookup_tokens(self) -> int:
        return self.keys

    def hypotheses(self, tokens_BT: Tensor) -> Tensor:
        """A value token stands for that value."""
        value = tokens_BT - self.keys
        return torch.where((value >= 0) & (value < self.values), value, -1)

    def reorder(self, batch: Batch, rng: torch.Generator) -> Batch:
        """The stored pairs."""
        pairs_BP2 = shuffle(batch.tokens[:, : 2 * self.pairs].unflatten(1, (-1, 2)), rng)
        return batch._replace(tokens=torch.cat([pairs_BP2.flatten(1), batch.tokens[:, 2 * self.pairs :]], dim=1))

    def rename(self, batch: Batch, order_BC: Tensor) -> Batch:
        return rename_tokens(batch, order_BC, self.hypotheses(batch.tokens), self.keys)

    def posterior(self, batch: Batch) -> Tensor:
        stored_BP = batch.tokens[:, 0 : 2 * self.pairs : 2]
        values_BP = batch.tokens[:, 1 : 2 * self.pairs : 2] - self.keys
        queries_BK = batch.tokens[:, self.shape.lead :]
        match_BKP = queries_BK[:, :, None] == stored_BP[:, None, :]
        value_BK = values_BP.gather(1, match_BKP.long().argmax(-1))  # of the pair that matches; any where none does
        return torch.where(match_BKP.any(-1, keepdim=True), one_hot(value_BK, self.values), 1.0 / self.values)


@TASKS.add(
    "recall-64",
    version=1,
    note="The same with 64 pairs of 256 keys, three stored ones asked for; pairs 4 to 64 are a ladder of memory.",
)
@dataclass(frozen=True)
class Recall64(Recall):
    keys: int = 256
    values: int = 256
    pairs: int = 64
    gap: int = 32
    horizon: int = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self.pairs <= self.values, f"pairs must be at most {self.values}, the number of values, not {self.pairs}"
        )
        self._require_stored(self.horizon)

    def max_horizon(self) -> int | None:
        return self.pairs

    def _require_stored(self, horizon: int) -> None:
        require(horizon <= self.pairs, f"recall-64 asks for stored keys once each: at most {self.pairs}, not {horizon}")

    def _draw(self, n: int, horizon: int, rng: torch.Generator) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        self._require_stored(horizon)
        stored_BP = permutations(n, self.keys, rng)[:, : self.pairs]
        values_BP = permutations(n, self.values, rng)[:, : self.pairs]
        asked_BK = permutations(n, self.pairs, rng)[:, :horizon]
        return stored_BP, values_BP, stored_BP.gather(1, asked_BK), values_BP.gather(1, asked_BK)
