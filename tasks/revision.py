"""Belief revision: candidates are introduced, then evidence about one of them arrives piece by piece.

law      the referent z is uniform over N candidates; a piece of evidence names candidate e with probability E(e | z)
tokens   INTRO c_1 then `filler` fillers, ... INTRO c_N and fillers, PRONOUN, `gap` fillers,
         then EVIDENCE e_1 ... EVIDENCE e_K   (names 0..M-1, INTRO M, FILLER M+1, PRONOUN M+2, EVIDENCE M+3)
scored   at every e_k: the name of the referent
exact    P(z | e_1 ... e_k) ~ product of E(e_j | z) over j <= k

revision      N = 16, five pieces. Row z of E is (Dirichlet(0.3, ..., 0.3) + 2 at z) / 3, drawn once and the same in all
              sequences, so a model has to learn E; candidate i has name i. The introductions carry no information
revision-cue  N = 2 of M = 100 names, drawn anew for every sequence, and one piece that names the referent itself

With `opaque` the names are drawn anew, and E speaks of the order of introduction: E(j | i) is the probability that
evidence names the j-th candidate when the i-th is meant. Then a name must first be found among the introductions.

Source: src/data/belief_revision_hard.py and belief_revision.py of github.com/vishalmisra/bayesian-wind-tunnel, commit
670c6d6, from which E is taken, number by number. There only the last piece is followed by a question.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch import Tensor

from tasks.base import LARGEST, TASKS, Batch, Shape, one_hot, permutations, require, shuffle

LAW_SEED, BOOST = 42, 2.0  # as released
INTRO, FILLER, PRONOUN, EVIDENCE, MARKS = 0, 1, 2, 3, 4  # behind the names


@TASKS.add("revision", version=1)
@dataclass(frozen=True)
class Revision:
    candidates: int = 16
    names: int = 16
    alpha: float = 0.3
    filler: int = 4
    gap: int = 0
    opaque: bool = False
    hard: bool = False  # evidence names the referent itself
    horizon: int = 5

    def __post_init__(self) -> None:
        require(self.candidates >= 2, f"candidates must be at least 2, not {self.candidates}")
        require(
            self.candidates <= self.names <= LARGEST,
            f"names must be {self.candidates}, the number of candidates, to {LARGEST}, not {self.names}",
        )
        require(0.05 <= self.alpha <= 1000, f"alpha must be 0.05 to 1000, not {self.alpha}")
        require(0 <= self.filler <= LARGEST, f"filler must be 0 to {LARGEST}, not {self.filler}")
        require(0 <= self.gap <= LARGEST, f"gap must be 0 to {LARGEST}, not {self.gap}")
        require(self.horizon >= 1, f"horizon must be at least 1, not {self.horizon}")

    @property
    def shape(self) -> Shape:
        # all that stands before the first piece: introductions, PRONOUN, the gap and the first EVIDENCE
        lead = self.candidates * (2 + self.filler) + 1 + self.gap + 1
        return Shape(
            vocab=self.names + MARKS, features=0, classes=self.names, header=0, stride=2, horizon=self.horizon,
            lead=lead,
        )  # fmt: skip

    def max_horizon(self) -> int | None:
        return None

    def law(self, device: torch.device) -> Tensor:
        """E, [referent, evidence], float64."""
        return _law(self.candidates, self.alpha, self.hard, device)

    def sample(self, n: int, horizon: int, rng: torch.Generator) -> Batch:
        require(horizon >= 1, f"horizon must be at least 1, not {horizon}")
        device, N = rng.device, self.candidates
        referent_B = torch.randint(N, (n,), generator=rng, device=device)
        # the last column is left out, so that rounding in a cumulative sum can never point behind the last candidate
        ladder_BN = self.law(device).cumsum(1)[referent_B, :-1]
        u_BK = torch.rand(n, horizon, generator=rng, device=device, dtype=torch.float64)
        evidence_BK = (u_BK[..., None] > ladder_BN[:, None]).sum(-1)
        if self.opaque:
            names_BN = permutations(n, self.names, rng)[:, :N]
        else:
            names_BN = torch.arange(N, device=device).expand(n, N)
        tokens_BT = self._write(names_BN, names_BN.gather(1, evidence_BK))
        features = torch.empty(*tokens_BT.shape, 0, dtype=torch.float64, device=device)
        targets_BK = names_BN.gather(1, referent_B[:, None]).repeat(1, horizon)
        return Batch(
            tokens_BT, features, targets_BK, torch.arange(self.shape.lead, tokens_BT.shape[1], 2, device=device)
        )

    def _write(self, names_BN: Tensor, evidence_BK: Tensor) -> Tensor:
        def mark(token: int, *size: int) -> Tensor:
            return torch.full((len(names_BN), *size), self.names + token, device=names_BN.device)

        N, K = names_BN.shape[1], evidence_BK.shape[1]
        intros_BNX = torch.cat([mark(INTRO, N, 1), names_BN[..., None], mark(FILLER, N, self.filler)], dim=2)
        pieces_BK2 = torch.stack([mark(EVIDENCE, K), evidence_BK], dim=2)
        parts = [intros_BNX.flatten(1), mark(PRONOUN, 1), mark(FILLER, self.gap), pieces_BK2.flatten(1)]
        return torch.cat(parts, dim=1)

    def reorder(self, batch: Batch, rng: torch.Generator) -> Batch | None:
        """The pieces of evidence."""
        if batch.targets.shape[1] == 1:
            return None
        tokens_BT = batch.tokens.clone()
        tokens_BT[:, self.shape.lead :: 2] = shuffle(batch.tokens[:, self.shape.lead :: 2], rng)
        return batch._replace(tokens=tokens_BT)

    def posterior(self, batch: Batch) -> Tensor:
        N, lead = self.candidates, self.shape.lead
        names_BN = batch.tokens[:, 1 : N * (2 + self.filler) : 2 + self.filler]
        evidence_BK = (batch.tokens[:, lead::2, None] == names_BN[:, None]).long().argmax(-1)  # back to candidates
        log_law = self.law(batch.tokens.device).log()
        log_joint_BKN = log_law.t()[evidence_BK].cumsum(1)  # the prior is uniform
        belief_BKN = log_joint_BKN.softmax(-1)
        return (belief_BKN[..., None] * one_hot(names_BN, self.names)[:, None]).sum(2)


@TASKS.add("revision-cue", version=1, note="The same with two candidates of a hundred names and one certain cue.")
@dataclass(frozen=True)
class RevisionCue(Revision):
    candidates: int = 2
    names: int = 100
    filler: int = 8
    gap: int = 8
    opaque: bool = True
    hard: bool = True
    horizon: int = 1


@cache
def _law(candidates: int, alpha: float, hard: bool, device: torch.device) -> Tensor:
    """Kept for each device: a copy from the host would have it wait at every batch."""
    if hard:
        return torch.eye(candidates, dtype=torch.float64, device=device)
    rows = np.random.default_rng(LAW_SEED).dirichlet(np.ones(candidates) * alpha, size=candidates)
    boosted = rows + BOOST * np.eye(candidates)
    return torch.from_numpy(boosted / boosted.sum(1, keepdims=True)).to(device)
