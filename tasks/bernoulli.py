"""Coin flips: read the tosses of a coin whose bias is hidden, predict the next one.

law      p ~ Beta(a, b), then bits independent with P(1) = p; fresh for every sequence
tokens   without BOS   x_1 x_2 ... x_K       (bits 0 and 1)
         with BOS      BOS x_1 ... x_{K-1}   (BOS is token 2)
scored   at every position: the next bit. So a horizon of K is K predictions from K tokens; the last bit drawn is asked
         for and never shown, and only with BOS is there a prediction that rests on no data at all
exact    P(1) = (ones + a) / (n + a + b), n bits seen of which `ones` were 1
pool=M   p is one of M biases p_m, and P(1) = sum_m w_m p_m with w_m ~ p_m^ones (1 - p_m)^(n - ones); see tasks/pool.py

Sources: the Bernoulli Transformer LPE Report (a = b = 1, no BOS) and the Study of Beta-Bernoulli Transformers (either).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar

import torch
from torch import Tensor

from tasks.base import TASKS, Batch, Probe, Shape, Variant, require, shuffle
from tasks.pool import choose, laws, pool_variants, require_pool, require_prior, shift_variants

BOS = 2


@TASKS.add("bernoulli", version=1, primitive="accumulation")
@dataclass(frozen=True)
class Bernoulli:
    a: float = 1.0
    b: float = 1.0
    bos: bool = False
    horizon: int = 64
    pool: int | None = None  # training biases; None: every sequence has a fresh one
    eval_prior: float | None = None  # score under Beta(c, c) too
    opening: ClassVar[int] = 8
    answer_token: ClassVar[int] = 0

    def __post_init__(self) -> None:
        require_prior("a", self.a)
        require_prior("b", self.b)
        require(self.horizon >= 1, f"horizon must be at least 1, not {self.horizon}")
        require_pool(self.pool)
        require_prior("eval_prior", self.eval_prior)

    @property
    def shape(self) -> Shape:
        return Shape(vocab=2 + self.bos, features=0, classes=2, header=0, stride=1, horizon=self.horizon)

    def max_horizon(self) -> int | None:
        return None

    def sample(self, n: int, horizon: int, rng: torch.Generator) -> Batch:
        require(horizon >= 1, f"horizon must be at least 1, not {horizon}")
        p_B = self.draw_p(n, rng)
        bits_BN = draw_bits(p_B, horizon + (not self.bos), rng)
        tokens_BT = self.write(bits_BN[:, :-1])
        features = torch.empty(n, horizon, 0, dtype=torch.float64, device=rng.device)
        return Batch(tokens_BT, features, bits_BN[:, -horizon:], torch.arange(horizon, device=rng.device))

    def draw_p(self, n: int, rng: torch.Generator) -> Tensor:
        """n biases, from the pool if there is one."""
        return choose(self.pooled(rng.device), n, rng) if self.pool else self.draw_laws(n, rng)

    def draw_laws(self, n: int, rng: torch.Generator) -> Tensor:
        """n biases from Beta(a, b): the share of one gamma variable in the sum of two."""
        # filled on the device, since a copy from the host would have it wait; torch.distributions takes no generator
        ab_B2 = torch.stack([torch.full((n,), x, dtype=torch.float64, device=rng.device) for x in (self.a, self.b)], 1)
        gamma_B2 = torch._standard_gamma(ab_B2, generator=rng)
        return gamma_B2[:, 0] / gamma_B2.sum(1)

    def write(self, bits_BN: Tensor) -> Tensor:
        """Bits as the tokens that a model reads."""
        return torch.cat([bits_BN.new_full((len(bits_BN), 1), BOS), bits_BN], dim=1) if self.bos else bits_BN

    def posterior(self, batch: Batch) -> Tensor:
        ones_BT, seen_BT = (batch.tokens == 1).cumsum(1), (batch.tokens != BOS).cumsum(1)
        if self.pool:
            p_BT = _answers(self, batch.tokens.shape[1], batch.tokens.device)[seen_BT, ones_BT]
        else:
            p_BT = self.predict(ones_BT, seen_BT)
        return torch.stack([1.0 - p_BT, p_BT], dim=2)

    def predict(self, ones: Tensor, seen: Tensor) -> Tensor:
        """P(next bit = 1) after `seen` bits of which `ones` were 1."""
        if not self.pool:
            return (ones.double() + self.a) / (seen.double() + self.a + self.b)
        p_M = self.pooled(ones.device)
        log_weight = ones[..., None] * p_M.log() + (seen - ones)[..., None] * (-p_M).log1p()
        return (log_weight.softmax(-1) * p_M).sum(-1)

    def start(self, n: int) -> list[Tensor]:
        """Ones and bits seen."""
        return [torch.zeros(n, dtype=torch.int64), torch.zeros(n, dtype=torch.int64)]

    def step(self, tokens_B: Tensor, state: list[Tensor]) -> Tensor:
        state[0] += tokens_B == 1
        state[1] += tokens_B != BOS
        p_B = self.predict(*state)
        return torch.stack([1.0 - p_B, p_B], dim=-1)

    def probe(self, tokens_BT: Tensor) -> Probe:
        """P(next bit = 1): tosses are exchangeable, so every toss to come has the probability of the next one."""
        return Probe(tokens_BT.new_empty(len(tokens_BT), 1, 0), tokens_BT.new_ones(len(tokens_BT), 1))

    def reorder(self, batch: Batch, rng: torch.Generator) -> Batch:
        """All bits but the first token, which is BOS, or a bit that no answer is about."""
        tokens_BT = torch.cat([batch.tokens[:, :1], shuffle(batch.tokens[:, 1:], rng)], dim=1)
        return batch._replace(tokens=tokens_BT, targets=torch.cat([tokens_BT[:, 1:], batch.targets[:, -1:]], dim=1))

    def pooled(self, device: torch.device) -> Tensor:
        """The pool's biases [M]; none is so near 0 or 1 that its logarithm is infinite."""
        assert self.pool is not None
        return laws(self._full(), self.pool, device).clamp(1e-12, 1 - 1e-12)

    def _full(self) -> Bernoulli:
        return replace(self, pool=None, eval_prior=None)

    def _shifted(self) -> Bernoulli:
        assert self.eval_prior is not None
        return replace(self._full(), a=self.eval_prior, b=self.eval_prior)

    def variants(self) -> dict[str, Variant]:
        pool = pool_variants(self, self._full()) if self.pool else {}
        return pool | (shift_variants(self, self._shifted()) if self.eval_prior else {})

    def references(self, batch: Batch) -> dict[str, Tensor]:
        named = {"pool prior": self, "full prior": self._full()} if self.pool else {}
        if self.eval_prior:
            named |= {"own prior": self, "shifted prior": self._shifted()}
        return {name: task.posterior(batch) for name, task in named.items()}


@lru_cache(maxsize=8)
def _answers(task: Bernoulli, most: int, device: torch.device) -> Tensor:
    """P(1) of a pool after `seen` bits and `ones`, [seen, ones]: few counts are possible, so each is answered once."""
    count = torch.arange(most + 1, device=device)
    return torch.stack([task.predict(count, seen) for seen in count])


def draw_bits(p_B: Tensor, length: int, rng: torch.Generator) -> Tensor:
    u_BN = torch.rand(len(p_B), length, generator=rng, device=rng.device, dtype=torch.float64)
    return (u_BN < p_B[:, None]).long()
