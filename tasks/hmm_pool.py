"""Hidden Markov chains without a header: M chains are known, which of them a sequence comes from is hidden.

law      M chains drawn once and for all, rows of T and E from Dirichlet(1, ..., 1); a sequence's chain is one of them,
         all alike. A transition comes before o_1, from a uniform state, as in hmm
tokens   o_1 ... o_K        (symbols 0..V-1)
scored   at every observation: the hidden state now, by the chain's own names for its states
exact    a filter over chain and state together,
             alpha_t(m, s) ~ E_m(o_t | s) sum_s' T_m(s | s') alpha_{t-1}(m, s'),    alpha_0 uniform,
         summed over m
outside  fresh chains from the full prior. Relabelling the states leaves that prior unchanged, so Bayes with the full
         prior is uniform whatever is observed: nothing can be inferred, and a belief is a false memory

The pool does not depend on a run's seed; parts and references: see tasks/pool.py.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tasks.base import TASKS, Batch, Shape, Variant, require
from tasks.hmm import HMM, dirichlet_rows, walk
from tasks.pool import laws, pieces, pool_variants, require_pool

BELIEFS = 2**24  # numbers in one belief over chains and states


@TASKS.add(
    "hmm-pool",
    version=1,
    note="The same without a header: find out which of the known chains it is, and where that chain is now.",
)
@dataclass(frozen=True)
class HMMPool:
    states: int = 5
    symbols: int = 5
    pool: int = 8
    horizon: int = 20

    def __post_init__(self) -> None:
        HMM(self.states, self.symbols, self.horizon)  # refuses what it would refuse
        require_pool(self.pool)

    @property
    def shape(self) -> Shape:
        return Shape(self.symbols, features=0, classes=self.states, header=0, stride=1, horizon=self.horizon)

    def max_horizon(self) -> int | None:
        return None

    def chains(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """The pool: transitions [M, S, S] and emissions [M, S, V]."""
        rows_MSX = laws(self, self.pool, device)
        transition_MSS, emission_MSV = rows_MSX.split([self.states, self.symbols], dim=-1)
        return transition_MSS.contiguous(), emission_MSV.contiguous()

    def draw_laws(self, n: int, rng: torch.Generator) -> Tensor:
        """n chains, [n, S, S + V]: to the left their transitions, to the right their emissions."""
        S, V = self.states, self.symbols
        return torch.cat([dirichlet_rows((n, S, S), rng), dirichlet_rows((n, S, V), rng)], dim=-1)

    def sample(self, n: int, horizon: int, rng: torch.Generator) -> Batch:
        transition_MSS, emission_MSV = self.chains(rng.device)
        chain_B = torch.randint(self.pool, (n,), generator=rng, device=rng.device)
        return self._write(transition_MSS[chain_B], emission_MSV[chain_B], horizon, rng)

    def _write(self, transition_BSS: Tensor, emission_BSV: Tensor, horizon: int, rng: torch.Generator) -> Batch:
        require(horizon >= 1, f"horizon must be at least 1, not {horizon}")
        symbols_BK, states_BK = walk(transition_BSS, emission_BSV, horizon, rng)
        features = torch.empty(*symbols_BK.shape, 0, dtype=torch.float64, device=rng.device)
        return Batch(symbols_BK, features, states_BK, torch.arange(horizon, device=rng.device))

    def posterior(self, batch: Batch) -> Tensor:
        return torch.cat([self._filter(part) for part in pieces(batch, self.pool * self.states, BELIEFS)])

    def _filter(self, batch: Batch) -> Tensor:
        transition_MSS, emission_MSV = self.chains(batch.tokens.device)
        likelihood_MVS = emission_MSV.transpose(1, 2).contiguous()
        n, S = len(batch.tokens), self.states
        belief_MBS = transition_MSS.new_full((self.pool, n, S), 1.0 / (self.pool * S))
        beliefs = []
        for symbol_B in batch.tokens.unbind(1):
            joint_MBS = torch.bmm(belief_MBS, transition_MSS) * likelihood_MVS.index_select(1, symbol_B)
            state_BS = joint_MBS.sum(0)
            total_B1 = state_BS.sum(1, keepdim=True)
            belief_MBS = joint_MBS / total_B1
            beliefs.append(state_BS / total_B1)
        return torch.stack(beliefs, dim=1)

    def variants(self) -> dict[str, Variant]:
        return pool_variants(self, FullPrior(self))

    def references(self, batch: Batch) -> dict[str, Tensor]:
        return {"pool prior": self.posterior(batch), "full prior": FullPrior(self).posterior(batch)}


@dataclass(frozen=True)
class FullPrior:
    """The same task with a fresh chain for every sequence."""

    task: HMMPool

    def sample(self, n: int, horizon: int, rng: torch.Generator) -> Batch:
        S, V = self.task.states, self.task.symbols
        return self.task._write(dirichlet_rows((n, S, S), rng), dirichlet_rows((n, S, V), rng), horizon, rng)

    def posterior(self, batch: Batch) -> Tensor:
        S = self.task.states
        return torch.full((*batch.tokens.shape, S), 1.0 / S, dtype=torch.float64, device=batch.tokens.device)
