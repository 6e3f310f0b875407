"""Hidden Markov state tracking as the authors' code has it: the chain's law spelled out in tokens.

law      rows of T and E are Dirichlet(1, ..., 1), floored at 0.05, normalised, then rounded to hundredths, at least 5.
         If a row then sums to less than 100, its smallest entries get one hundredth each, smallest first. If to more,
         its entries above 5 lose one hundredth in turn, largest first. Ties go from left to right
tokens   [TRANS] T_11 ... T_SS [EMIT] E_11 ... E_SV [SEP], then [OBS] o_1 [OBS] o_2 ... [OBS] o_K
         (0.05 to 1.00 are tokens 0..95; [TRANS] 96, [EMIT] 97, [SEP] 98, [OBS] 99; symbols 100..100+V-1)
scored   at every symbol: the hidden state now
exact    alpha_1(s) ~ E(o_1 | s): the first state is uniform and no transition precedes o_1. Then as in `hmm`. T and E
         are those of the tokens, so what a model reads is the chain's own law and not a rounded copy

Source: src/data/hmm.py of github.com/vishalmisra/bayesian-wind-tunnel, commit 670c6d6. Its training script
draws a fixed set of 10,000 sequences of K = 15; here every batch is fresh.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from tasks.base import TASKS, Batch, Shape, require
from tasks.hmm import HMM

FLOOR = 5  # hundredths
TRANS, EMIT, SEP, OBS, SYMBOLS = 96, 97, 98, 99, 100


@TASKS.add("hmm-tokens", version=1, windows=(1, 2, 3, 4, 6, 8, 10))
@dataclass(frozen=True)
class HMMTokens(HMM):
    horizon: int = 15
    moves_first: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, value in (("states", self.states), ("symbols", self.symbols)):
            require(
                value <= 100 // FLOOR, f"{name} must be at most {100 // FLOOR}, since none is rarer than 0.05: {value}"
            )

    @property
    def shape(self) -> Shape:
        # a probability's place says which one it is, so this is a lead and no header; the first [OBS] belongs to it
        lead = 4 + self.states * (self.states + self.symbols)
        return Shape(
            vocab=SYMBOLS + self.symbols, features=0, classes=self.states, header=0, stride=2, horizon=self.horizon,
            lead=lead,
        )  # fmt: skip

    def _draw_law(self, n: int, rng: torch.Generator, prior: float) -> tuple[Tensor, Tensor]:
        transition_BSS, emission_BSV = super()._draw_law(n, rng, prior)
        return round_rows(transition_BSS), round_rows(emission_BSV)

    def _compose(self, transition_BSS: Tensor, emission_BSV: Tensor, symbols_BK: Tensor, states_BK: Tensor) -> Batch:
        n, device = len(symbols_BK), symbols_BK.device

        def mark(token: int) -> Tensor:
            return torch.full((n, 1), token, device=device)

        def write(rows: Tensor) -> Tensor:
            return (rows * 100).round().long().flatten(1) - FLOOR

        steps_BK2 = torch.stack([torch.full_like(symbols_BK, OBS), SYMBOLS + symbols_BK], dim=2)
        parts = [mark(TRANS), write(transition_BSS), mark(EMIT), write(emission_BSV), mark(SEP), steps_BK2.flatten(1)]
        tokens_BT = torch.cat(parts, dim=1)
        features = torch.empty(*tokens_BT.shape, 0, dtype=torch.float64, device=device)
        queries = torch.arange(self.shape.lead, tokens_BT.shape[1], 2, device=device)
        return Batch(tokens_BT, features, states_BK, queries)

    def _read_law(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        S, V = self.states, self.symbols
        middle = 1 + S * S
        transition_BSS = (batch.tokens[:, 1:middle] + FLOOR).double().unflatten(1, (S, S)) / 100
        emission_BSV = (batch.tokens[:, middle + 1 : middle + 1 + S * V] + FLOOR).double().unflatten(1, (S, V)) / 100
        return transition_BSS, emission_BSV, batch.tokens[:, self.shape.lead :: 2] - SYMBOLS

    def hypotheses(self, tokens_BT: Tensor) -> Tensor:
        """The probabilities in row s of T and row s of E stand for state s."""
        S, V = self.states, self.symbols
        states = torch.arange(S, device=tokens_BT.device)
        mark = states.new_full((1,), -1)
        lead = torch.cat([mark, states.repeat_interleave(S), mark, states.repeat_interleave(V)])
        return torch.nn.functional.pad(lead, (0, tokens_BT.shape[1] - len(lead)), value=-1).expand_as(tokens_BT)


def round_rows(rows: Tensor) -> Tensor:
    """Rows floored at 0.05, normalised and rounded to hundredths that add up to one, as the authors do it."""
    C = rows.shape[-1]
    floored = rows.clamp(min=FLOOR / 100)
    cents = ((floored / floored.sum(-1, keepdim=True)) * 100).round().long().clamp(min=FLOOR)
    missing = 100 - cents.sum(-1, keepdim=True)
    smallest_first = cents.argsort(dim=-1, stable=True).argsort(-1)  # ranks
    largest_first = (-cents).argsort(dim=-1, stable=True)
    cents = cents + (smallest_first < missing).long()  # rounding loses less than half a hundredth an entry: one round
    # In rounds of one hundredth from each that can spare it. An entry gains less than `gain` by floor and rounding.
    gain = max(0.5, FLOOR - FLOOR / (1 + (C - 1) * FLOOR / 100))
    surplus = (-missing).clamp(min=0)
    ordered = cents.gather(-1, largest_first)
    for _ in range(int(C * gain)):
        can_spare = ordered > FLOOR
        taken = can_spare & (can_spare.cumsum(-1) <= surplus)
        ordered = ordered - taken.long()
        surplus = surplus - taken.sum(-1, keepdim=True)
    cents = torch.empty_like(cents).scatter_(-1, largest_first, ordered)
    return cents.double() / 100
