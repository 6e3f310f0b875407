"""Program or noise: is this sequence a linear recurrence modulo a prime, and if so, what comes next?

law      with probability 1/2 a program, x_{t+1} = a x_t + b mod p with x_1, a, b uniform; else every x_t is uniform
tokens   x_1 x_2 ... x_K          (numbers 0..p-1)
opaque   s(0) ... s(p-1), then p + s(x_1) ... p + s(x_K): s is a permutation of the symbols, fresh for every sequence;
         answers are symbols too
scored   at every position: the next symbol
exact    with c pairs (a, b) that agree with the n numbers seen, program : noise = c p^(n-3); the answer mixes the
         programs' next number with the uniform. c = p^2 for n = 1, p for n = 2; afterwards 1 or 0 if x_1 != x_2, and p
         or 0 if x_1 = x_2, where every program that agrees stays at x_1

    p = 5, a = 2, b = 1     x              1     3     2     0      1
                            P(2 x + 1)     0.2   0.2   0.6   0.867  0.969

loss_horizon=n   only the first n positions are trained on; those after it are, by the part `beyond`, scored
loss_density=d   a share d of the positions beyond it is trained on all the same
holdout=h        a share h of the triples (x_1, x_2, x_3) with x_1 != x_2 is held out: nothing is trained on from the
                 third position of such a sequence on. The part `heldout` scores those positions of such sequences

Reference `even odds`: finds the program, but gives it probability 1/2 however long it has held.

Source: the construction-boundary experiments in github.com/vishalmisra/bayesian-wind-tunnel (p = 17, 16 numbers). There
held-out sequences are never drawn, which leaves their third number out of the training data; here it is kept. There a
mark precedes the permutation (ORD) and one follows it (SEP); here there is none, as the tokens are disjoint.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import torch
from torch import Tensor

from tasks.base import TASKS, Batch, Probe, Shape, Variant, one_hot, require

LARGEST = 101


@TASKS.add("recurrence", version=1)
@dataclass(frozen=True)
class Recurrence:
    modulus: int = 17
    opaque: bool = False
    loss_horizon: int | None = None
    loss_density: float = 0.0
    holdout: float = 0.0
    horizon: int = 15
    opening: ClassVar[int] = 3  # numbers that leave one program

    def __post_init__(self) -> None:
        p = self.modulus
        prime = 3 <= p <= LARGEST and all(p % d for d in range(2, p))
        require(prime, f"modulus must be a prime from 3 to {LARGEST}, not {p}")
        require(self.horizon >= 1, f"horizon must be at least 1, not {self.horizon}")
        last = self.horizon - 1
        require(self.loss_horizon is None or last >= 1, "a loss_horizon needs a horizon of at least 2")
        require(
            self.loss_horizon is None or 1 <= self.loss_horizon <= last,
            f"loss_horizon must be 1 to {last}, before the horizon, not {self.loss_horizon}",
        )
        require(0 <= self.loss_density <= 1, f"loss_density must be 0 to 1, not {self.loss_density}")
        require(not self.loss_density or self.loss_horizon is not None, "loss_density needs a loss_horizon")
        require(0 <= self.holdout <= 0.9, f"holdout must be 0 to 0.9, not {self.holdout}")
        require(not self.holdout or self.holdout * p**2 * (p - 1) >= 1, f"holdout {self.holdout} holds nothing out")

    @property
    def shape(self) -> Shape:
        p = self.modulus
        return Shape(
            vocab=2 * p if self.opaque else p, features=0, classes=p, header=0, stride=1,
            horizon=self.horizon, lead=p if self.opaque else 0,
        )  # fmt: skip

    def max_horizon(self) -> int | None:
        return None

    def sample(self, n: int, horizon: int, rng: torch.Generator) -> Batch:
        require(horizon >= 1, f"horizon must be at least 1, not {horizon}")
        first_B, a_B, b_B = torch.randint(self.modulus, (3, n), generator=rng, device=rng.device)
        return self._write(self._run(first_B, a_B, b_B, horizon, rng), rng)

    def _sample_heldout(self, n: int, horizon: int, rng: torch.Generator) -> Batch:
        """The law, given a held-out triple: these are as likely by program as by noise."""
        p = self.modulus
        held_H = held_out(p, self.holdout, rng.device)[0]
        code_B = held_H[torch.randint(len(held_H), (n,), generator=rng, device=rng.device)]
        triple_B3 = torch.stack([code_B // p**2, code_B // p % p, code_B % p], dim=1)
        a_B, b_B = self._solve(triple_B3)
        x_BN = self._run(triple_B3[:, 0], a_B, b_B, horizon, rng)
        x_BN[:, :3] = triple_B3[:, : horizon + 1]
        return self._write(x_BN, rng)

    def _run(self, first_B: Tensor, a_B: Tensor, b_B: Tensor, horizon: int, rng: torch.Generator) -> Tensor:
        """horizon + 1 numbers of each sequence, half of them by their program and half by chance."""
        n, p = len(first_B), self.modulus
        path = [first_B]
        for _ in range(horizon):
            path.append((a_B * path[-1] + b_B) % p)
        noise_BN = torch.randint(p, (n, horizon + 1), generator=rng, device=rng.device)
        program_B1 = torch.rand(n, 1, generator=rng, device=rng.device) < 0.5
        return torch.where(program_B1, torch.stack(path, dim=1), noise_BN)

    def _write(self, x_BN: Tensor, rng: torch.Generator) -> Batch:
        n, p, horizon = len(x_BN), self.modulus, x_BN.shape[1] - 1
        tokens_BT, targets_BK = x_BN[:, :-1].contiguous(), x_BN[:, 1:].contiguous()
        if self.opaque:
            symbol_BP = torch.rand(n, p, generator=rng, device=rng.device, dtype=torch.float64).argsort(1)
            tokens_BT = torch.cat([symbol_BP, p + symbol_BP.gather(1, tokens_BT)], dim=1)
            targets_BK = symbol_BP.gather(1, targets_BK)
        features = torch.empty(*tokens_BT.shape, 0, dtype=torch.float64, device=rng.device)
        queries = torch.arange(horizon, device=rng.device) + self.shape.lead
        return Batch(tokens_BT, features, targets_BK, queries)

    def _read(self, tokens_BT: Tensor) -> Tensor:
        """The numbers x_1 ... x_K, whatever their symbols are."""
        if not self.opaque:
            return tokens_BT
        number_BP = tokens_BT[:, : self.modulus].argsort(1)
        return number_BP.gather(1, tokens_BT[:, self.modulus :] - self.modulus)

    def _solve(self, x_BK: Tensor) -> tuple[Tensor, Tensor]:
        """The a and b of the first three numbers; without a meaning if there are fewer or the first two are equal."""
        p, last = self.modulus, x_BK.shape[1] - 1
        x1, x2, x3 = x_BK[:, 0], x_BK[:, min(1, last)], x_BK[:, min(2, last)]
        a_B = (x3 - x2) * inverses(p, x_BK.device)[(x2 - x1) % p] % p
        return a_B, (x2 - a_B * x1) % p

    def _follow(self, x_BK: Tensor) -> tuple[Tensor, Tensor]:
        """Whether the program stays at its first number [B, 1], and what it has follow each number."""
        a_B1, b_B1 = (part[:, None] for part in self._solve(x_BK))
        fixed_B1 = x_BK[:, :1] == x_BK[:, 1:2] if x_BK.shape[1] > 1 else torch.zeros_like(a_B1, dtype=torch.bool)
        return fixed_B1, torch.where(fixed_B1, x_BK[:, :1], (a_B1 * x_BK + b_B1) % self.modulus)

    @property
    def answer_token(self) -> int:
        return self.modulus if self.opaque else 0

    def probe(self, tokens_BT: Tensor) -> Probe:
        """The probability of what the only program left would have follow: P(program) + P(noise) / p."""
        next_B1 = self._follow(self._read(tokens_BT))[1][:, -1:]
        symbol_B1 = tokens_BT[:, : self.modulus].gather(1, next_B1) if self.opaque else next_B1
        return Probe(tokens_BT.new_empty(len(tokens_BT), 1, 0), symbol_B1)

    def posterior(self, batch: Batch) -> Tensor:
        return self._answer(batch, weigh=True)

    def references(self, batch: Batch) -> dict[str, Tensor]:
        return {"even odds": self._answer(batch, weigh=False)}

    def _answer(self, batch: Batch, weigh: bool) -> Tensor:
        p, x_BK = self.modulus, self._read(batch.tokens)
        n_K = torch.arange(1, x_BK.shape[1] + 1, device=x_BK.device)
        fixed_B1, next_BK = self._follow(x_BK)
        kept_BK = torch.ones_like(x_BK, dtype=torch.bool)
        kept_BK[:, 1:] = (next_BK[:, :-1] == x_BK[:, 1:]).cummin(1).values
        agrees_BK = kept_BK & (n_K > 2) | (fixed_B1 & (n_K == 2))  # a single next number is left
        count_BK = torch.where(fixed_B1, float(p), 1.0).double().expand_as(x_BK)
        # c : p^(3-n), the other way round, so that a long sequence cannot overflow
        noise_K = torch.pow(float(p), 3.0 - n_K.double())
        odds_BK = count_BK / (count_BK + noise_K) if weigh else torch.full_like(count_BK, 0.5)
        sure_BK1 = torch.where(agrees_BK, odds_BK, 0.0)[..., None]
        answer_BKP = sure_BK1 * one_hot(next_BK, p) + (1 - sure_BK1) / p
        if self.opaque:
            number_BP = batch.tokens[:, :p].argsort(1)
            answer_BKP = answer_BKP.gather(2, number_BP[:, None].expand_as(answer_BKP))
        return answer_BKP

    def loss_weights(self, batch: Batch, rng: torch.Generator) -> Tensor:
        """1 where an answer is trained on, else 0."""
        x_BK, p = self._read(batch.tokens), self.modulus
        n_K = torch.arange(1, x_BK.shape[1] + 1, device=x_BK.device)
        trained_BK = torch.ones_like(x_BK, dtype=torch.bool)
        if self.loss_horizon is not None:
            chance_BK = torch.rand(x_BK.shape, generator=rng, device=rng.device, dtype=torch.float64)
            trained_BK = (n_K <= self.loss_horizon) | (chance_BK < self.loss_density)
        if self.holdout and x_BK.shape[1] > 2:
            held_B1 = held_out(p, self.holdout, x_BK.device)[1][(x_BK[:, :1] * p + x_BK[:, 1:2]) * p + x_BK[:, 2:3]]
            trained_BK = trained_BK & ~(held_B1 & (n_K > 2))
        return trained_BK.double()

    def variants(self) -> dict[str, Variant]:
        parts = {}
        if self.loss_horizon is not None:
            parts["beyond"] = Variant(self.sample, self.posterior, start=self.loss_horizon)
        if self.holdout:
            parts["heldout"] = Variant(self._sample_heldout, self.posterior, start=2)
        return parts


@lru_cache(maxsize=8)
def inverses(p: int, device: torch.device) -> Tensor:
    """1/x mod p for every x, [p]; 0 for 0."""
    x = torch.arange(p, device=device)
    return (x[:, None] * x % p == 1).long().argmax(1)


@lru_cache(maxsize=8)
def held_out(p: int, share: float, device: torch.device) -> tuple[Tensor, Tensor]:
    """The triples that are held out, as numbers (x_1 p + x_2) p + x_3, and whether each of all p^3 is one."""
    code = torch.arange(p**3, device=device)
    degenerate = code // p**2 == code // p % p
    order = torch.where(degenerate, 2**40, _scatter(code)).argsort(stable=True)
    held = order[: round(share * p**2 * (p - 1))]
    return held, torch.zeros(p**3, dtype=torch.bool, device=device).index_fill(0, held, True)


def _scatter(code: Tensor) -> Tensor:
    """A fixed order without a pattern: an integer hash of 32 bits."""
    for _ in range(2):
        code = ((code ^ (code >> 16)) * 0x45D9F3B) & 0xFFFFFFFF
    return code ^ (code >> 16)
