"""Bijection elimination: read the key-value pairs of a hidden permutation of V items.

tokens   k1 v1 k2 v2 ... kK   (keys 0..V-1, values V..2V-1)
scored   at every key: the value of the key just read
exact    bijection           keys without replacement: uniform over the V-k+1 values not yet shown
         bijection-revisit   keys with replacement: a point mass for a key already seen, else as above

Source: Aggarwal, Dalal and Misra, The Bayesian Geometry of Transformer Attention (arXiv:2512.22471), equations 4 and 5.
The revisit form is ours: without replacement V caps the horizon, so nothing longer than V steps could be asked.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tasks.base import LARGEST, TASKS, Batch, Shape, one_hot, permutations, rename_tokens, require, shuffle


@TASKS.add("bijection", version=1, primitive="accumulation")
@dataclass(frozen=True)
class Bijection:
    size: int = 20
    horizon: int = 20

    def __post_init__(self) -> None:
        require(2 <= self.size <= LARGEST, f"size must be 2 to {LARGEST}, not {self.size}")
        require(self.horizon >= 1, f"horizon must be at least 1, not {self.horizon}")
        self._require_reachable(self.horizon)

    @property
    def shape(self) -> Shape:
        return Shape(vocab=2 * self.size, features=0, classes=self.size, header=0, stride=2, horizon=self.horizon)

    def max_horizon(self) -> int | None:
        return self.size

    def _require_reachable(self, horizon: int) -> None:
        limit = self.max_horizon()
        require(
            limit is None or horizon <= limit,
            f"bijection of {self.size} items has at most {limit} steps, not {horizon}: "
            "keys are not repeated (bijection-revisit has no limit)",
        )

    def _draw_keys(self, n: int, horizon: int, rng: torch.Generator) -> Tensor:
        return permutations(n, self.size, rng)[:, :horizon]

    def sample(self, n: int, horizon: int, rng: torch.Generator) -> Batch:
        self._require_reachable(horizon)
        keys_BK = self._draw_keys(n, horizon, rng)
        values_BK = permutations(n, self.size, rng).gather(1, keys_BK)
        pairs_BK2 = torch.stack([keys_BK, values_BK + self.size], dim=2)
        tokens_BT = pairs_BK2.flatten(1)[:, :-1]  # nothing follows the last key
        features = torch.empty(n, tokens_BT.shape[1], 0, dtype=torch.float64, device=rng.device)
        queries = torch.arange(0, tokens_BT.shape[1], 2, device=rng.device)
        return Batch(tokens_BT, features, values_BK, queries)

    @property
    def lookup_tokens(self) -> int:
        return self.size

    def hypotheses(self, tokens_BT: Tensor) -> Tensor:
        """A value token stands for that value."""
        return torch.where(tokens_BT >= self.size, tokens_BT - self.size, -1)

    def reorder(self, batch: Batch, rng: torch.Generator) -> Batch:
        """All pairs; the last key is asked about."""
        pairs_BK2 = shuffle(batch.tokens[:, :-1].unflatten(1, (-1, 2)), rng)
        return batch._replace(tokens=torch.cat([pairs_BK2.flatten(1), batch.tokens[:, -1:]], dim=1))

    def rename(self, batch: Batch, order_BC: Tensor) -> Batch:
        return rename_tokens(batch, order_BC, self.hypotheses(batch.tokens), self.size)

    def posterior(self, batch: Batch) -> Tensor:
        free_BKV = 1.0 - _shown_before(batch.tokens, self.size)
        return free_BKV / free_BKV.sum(-1, keepdim=True)


@TASKS.add(
    "bijection-revisit",
    version=1,
    primitive="binding",
    note="The same with keys that may return: recall the value of one seen before, else eliminate.",
)
@dataclass(frozen=True)
class BijectionRevisit(Bijection):
    def max_horizon(self) -> int | None:
        return None

    def _draw_keys(self, n: int, horizon: int, rng: torch.Generator) -> Tensor:
        return torch.randint(self.size, (n, horizon), generator=rng, device=rng.device)

    def posterior(self, batch: Batch) -> Tensor:
        keys_BK = batch.tokens[:, 0::2]
        shown_BKV = _shown_before(batch.tokens, self.size)
        values_BKV = _values(batch.tokens, self.size)
        again_BKK = (keys_BK[:, :, None] == keys_BK[:, None, :]).to(torch.float64).tril(-1)
        known_BKV = (again_BKK @ values_BKV).clamp(max=1.0)  # every earlier visit showed the same value
        visited_BK1 = again_BKK.any(-1, keepdim=True)
        free_BKV = 1.0 - shown_BKV
        free_BKV = free_BKV / free_BKV.sum(-1, keepdim=True).clamp(min=1.0)  # none free: every key was visited
        return torch.where(visited_BK1, known_BKV, free_BKV)


def _values(tokens_BT: Tensor, size: int) -> Tensor:
    """One-hot of the value that follows each key, [B, K, V]; zero after the last key, where none is shown."""
    values = one_hot(tokens_BT[:, 1::2] - size, size)
    return torch.nn.functional.pad(values, (0, 0, 0, 1))


def _shown_before(tokens_BT: Tensor, size: int) -> Tensor:
    """1 where a value was shown before the k-th key, else 0, [B, K, V]."""
    values = _values(tokens_BT, size)
    return (values.cumsum(1) - values).clamp(max=1.0)
