"""Coin flips: read the tosses of a coin whose bias is hidden, predict the next one.

law      p ~ Beta(a, b), then bits independent with P(1) = p; fresh for every sequence
tokens   without BOS   x_1 x_2 ... x_K       (bits 0 and 1)
         with BOS      BOS x_1 ... x_{K-1}   (BOS is token 2)
scored   at every position: the next bit. So a horizon of K is K predictions from K tokens; the last bit drawn is asked
         for and never shown, and only with BOS is there a prediction that rests on no data at all
exact    P(1) = (ones + a) / (n + a + b), n bits seen of which `ones` were 1

Sources: the Bernoulli Transformer LPE Report (a = b = 1, no BOS) and the Study of Beta-Bernoulli Transformers (either).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from tasks.base import TASKS, Batch, Shape, require

BOS = 2


@TASKS.add("bernoulli", version=1, primitive="accumulation")
@dataclass(frozen=True)
class Bernoulli:
    a: float = 1.0
    b: float = 1.0
    bos: bool = False
    horizon: int = 64

    def __post_init__(self) -> None:
        for name, value in (("a", self.a), ("b", self.b)):
            require(0.05 <= value < math.inf, f"{name} must be a number from 0.05 up, not {value}")  # gamma underflows
        require(self.horizon >= 1, f"horizon must be at least 1, not {self.horizon}")

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
        """n biases from Beta(a, b): the share of one gamma variable in the sum of two."""
        # filled on the device, since a copy from the host would have it wait; torch.distributions takes no generator
        ab_B2 = torch.stack([torch.full((n,), x, dtype=torch.float64, device=rng.device) for x in (self.a, self.b)], 1)
        gamma_B2 = torch._standard_gamma(ab_B2, generator=rng)
        return gamma_B2[:, 0] / gamma_B2.sum(1)

    def write(self, bits_BN: Tensor) -> Tensor:
        """Bits as the tokens that a model reads."""
        return torch.cat([bits_BN.new_full((len(bits_BN), 1), BOS), bits_BN], dim=1) if self.bos else bits_BN

    def posterior(self, batch: Batch) -> Tensor:
        p_BT = self.predict((batch.tokens == 1).cumsum(1), (batch.tokens != BOS).cumsum(1))
        return torch.stack([1.0 - p_BT, p_BT], dim=2)

    def predict(self, ones: Tensor, seen: Tensor) -> Tensor:
        """P(next bit = 1) after `seen` bits of which `ones` were 1."""
        return (ones.double() + self.a) / (seen.double() + self.a + self.b)


def draw_bits(p_B: Tensor, length: int, rng: torch.Generator) -> Tensor:
    u_BN = torch.rand(len(p_B), length, generator=rng, device=rng.device, dtype=torch.float64)
    return (u_BN < p_B[:, None]).long()
