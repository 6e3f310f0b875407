"""Hidden Markov state tracking: given the chain's own law, follow the belief over its hidden state.

header   S rows of T and S rows of E, one a position, as features (p, log p); fresh for every sequence
tokens   o_1 ... o_K after the header (symbols 0..V-1; header positions have tokens V, V+1, ... so a row knows its name)
scored   at every observation: the hidden state now
exact    alpha_t(s) ~ E(o_t | s) sum_s' T(s | s') alpha_{t-1}(s'), alpha_0 uniform: a transition precedes o_1

hmm         rows of T and E are Dirichlet(1, ..., 1). Source: Aggarwal, Dalal and Misra (arXiv:2512.22471), equations
            6 and 7. Such chains forget within about eight steps.
hmm-sticky  T = r I + (1 - r) 1 pi^T with pi ~ Dirichlet(1, ..., 1): stay, or jump to a state that does not depend on
            the present one. Every eigenvalue but the first is r, so r = exp(-1 / relaxation) sets the relaxation time
            exactly, and with it how far back a filter must remember.
hmm-tokens  in tasks/hmm_tokens.py: the task of the authors' released code. There, rows are floored at 0.05, rounded to
            hundredths, each probability is a token, [OBS] stands before every symbol, and no transition precedes o_1.
            Numbers from that code compare with that task, not with this one: the uniform predictor has 0.51 bits of
            error here and 0.41 there.

eval_prior=c scores chains of Dirichlet(c, ..., c) too, as the part `shifted`. The header says which chain it is, so the
exact answer does not depend on the prior, and there is only one.

A task without the header, where T and E are to be inferred as well, is left out; hmm-pool has M known chains instead.
Relabelling the states leaves its law unchanged, so the exact state posterior is uniform whatever is observed; and the
predictive of the next symbol, which is not, sums over S^K hidden paths, each with an integral over T and E of its own.
A particle approximation would have an error of the size of the errors that are to be measured.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from tasks.base import LARGEST, TASKS, Batch, Shape, Variant, require
from tasks.pool import require_prior

LOG_FLOOR = -10.0  # log p enters a network: e^-10 is as good as impossible, and a finite number


@TASKS.add("hmm", version=1, primitive="transport", windows=(1, 2, 3, 4, 6, 8, 10))
@dataclass(frozen=True)
class HMM:
    states: int = 5
    symbols: int = 5
    horizon: int = 20
    eval_prior: float | None = field(default=None, kw_only=True)  # score chains of this concentration too
    moves_first: ClassVar[bool] = True  # a transition precedes the first observation

    def __post_init__(self) -> None:
        require(2 <= self.states <= LARGEST, f"states must be 2 to {LARGEST}, not {self.states}")
        require(2 <= self.symbols <= LARGEST, f"symbols must be 2 to {LARGEST}, not {self.symbols}")
        require(self.horizon >= 1, f"horizon must be at least 1, not {self.horizon}")
        require_prior("eval_prior", self.eval_prior)

    @property
    def shape(self) -> Shape:
        header = 2 * self.states
        row = max(self.states, self.symbols)
        return Shape(
            vocab=self.symbols + header, features=2 * row, classes=self.states, header=header, stride=1,
            horizon=self.horizon,
        )  # fmt: skip

    def max_horizon(self) -> int | None:
        return None

    def _draw_law(self, n: int, rng: torch.Generator, prior: float) -> tuple[Tensor, Tensor]:
        """Transition [B, S, S] and emission [B, S, V] matrices."""
        S, V = self.states, self.symbols
        return dirichlet_rows((n, S, S), rng, prior), dirichlet_rows((n, S, V), rng, prior)

    def sample(self, n: int, horizon: int, rng: torch.Generator) -> Batch:
        return self._sample(n, horizon, rng, prior=1.0)

    def _sample(self, n: int, horizon: int, rng: torch.Generator, prior: float) -> Batch:
        require(horizon >= 1, f"horizon must be at least 1, not {horizon}")
        transition_BSS, emission_BSV = self._draw_law(n, rng, prior)
        symbols_BK, states_BK = walk(transition_BSS, emission_BSV, horizon, rng, self.moves_first)
        return self._compose(transition_BSS, emission_BSV, symbols_BK, states_BK)

    def variants(self) -> dict[str, Variant]:
        if self.eval_prior is None:
            return {}
        return {"shifted": Variant(partial(self._sample, prior=self.eval_prior), self.posterior)}

    def _compose(self, transition_BSS: Tensor, emission_BSV: Tensor, symbols_BK: Tensor, states_BK: Tensor) -> Batch:
        n, horizon = symbols_BK.shape
        shape, device = self.shape, symbols_BK.device
        row = shape.features // 2
        names = torch.arange(self.symbols, shape.vocab, device=device).expand(n, -1)
        features = torch.zeros(n, shape.length(horizon), shape.features, dtype=torch.float64, device=device)
        for start, rows in ((0, transition_BSS), (self.states, emission_BSV)):
            stop, width = start + self.states, rows.shape[-1]
            features[:, start:stop, :width] = rows
            features[:, start:stop, row : row + width] = rows.log().clamp(min=LOG_FLOOR)
        queries = torch.arange(shape.header, shape.length(horizon), device=device)
        return Batch(torch.cat([names, symbols_BK], dim=1), features, states_BK, queries)

    def _read_law(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Transition [B, S, S], emission [B, S, V] and the symbols [B, K], read from what is visible."""
        S = self.states
        return batch.features[:, :S, :S], batch.features[:, S : 2 * S, : self.symbols], batch.tokens[:, 2 * S :]

    def _read(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Transition [B, S, S] and the likelihood of each observation [B, K, S]."""
        transition_BSS, emission_BSV, symbols_BK = self._read_law(batch)
        likelihood_BSK = emission_BSV.gather(2, symbols_BK[:, None, :].expand(-1, self.states, -1))
        return transition_BSS, likelihood_BSK.transpose(1, 2)

    def rename(self, batch: Batch, order_BC: Tensor) -> Batch:
        transition_BSS, emission_BSV, symbols_BK = self._read_law(batch)
        back_BS1 = order_BC.argsort(1)[:, :, None]  # the old name of each state
        emission_BSV = emission_BSV.gather(1, back_BS1.expand_as(emission_BSV))
        transition_BSS = transition_BSS.gather(1, back_BS1.expand_as(transition_BSS))
        transition_BSS = transition_BSS.gather(2, back_BS1.transpose(1, 2).expand_as(transition_BSS))
        return self._compose(transition_BSS, emission_BSV, symbols_BK, order_BC.gather(1, batch.targets))

    def _prior(self, transition_BSS: Tensor) -> Tensor:
        """Of the state at the first observation, [B, S]."""
        uniform_BS = torch.full_like(transition_BSS[:, 0], 1.0 / self.states)
        return _predict(uniform_BS, transition_BSS) if self.moves_first else uniform_BS

    @property
    def lookup_tokens(self) -> int:
        return 0

    def hypotheses(self, tokens_BT: Tensor) -> Tensor:
        """Row s of T and row s of E in the header stand for state s."""
        row = tokens_BT - self.symbols
        return torch.where(row >= 0, row % self.states, -1)

    def posterior(self, batch: Batch) -> Tensor:
        transition_BSS, likelihood_BKS = self._read(batch)
        prior_BS = self._prior(transition_BSS)
        beliefs = []
        for k in range(likelihood_BKS.shape[1]):
            belief_BS = _observe(prior_BS, likelihood_BKS[:, k])
            beliefs.append(belief_BS)
            prior_BS = _predict(belief_BS, transition_BSS)
        return torch.stack(beliefs, dim=1)

    def window_posterior(self, batch: Batch, window: int) -> Tensor:
        """The exact filter of someone who knows the chain and the time, but saw only the last `window` observations."""
        transition_BSS, likelihood_BKS = self._read(batch)
        K = likelihood_BKS.shape[1]
        priors = [self._prior(transition_BSS)]
        for _ in range(max(K - window, 0)):
            priors.append(_predict(priors[-1], transition_BSS))
        # start with the prior of the state at the first observation that position k remembers
        start = torch.stack(priors, dim=1)
        first = (torch.arange(K, device=start.device) - window + 1).clamp(min=0)
        belief_BKS = start[:, first]
        for age in range(window - 1, -1, -1):
            now = torch.arange(K, device=start.device) - age
            updated = _observe(belief_BKS, likelihood_BKS[:, now.clamp(min=0)])
            if age > 0:
                updated = _predict(updated, transition_BSS[:, None])
            belief_BKS = torch.where((now >= 0)[:, None], updated, belief_BKS)
        return belief_BKS


@TASKS.add(
    "hmm-sticky",
    version=1,
    primitive="transport",
    windows=(1, 2, 4, 8, 16, 32),
    note="The same for a chain that relaxes in a set time: how far back a belief must remember.",
)
@dataclass(frozen=True)
class StickyHMM(HMM):
    relaxation: float = 32.0  # in steps

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.relaxation > 0, f"relaxation must be positive, not {self.relaxation}")

    def _draw_law(self, n: int, rng: torch.Generator, prior: float) -> tuple[Tensor, Tensor]:
        S, stay = self.states, math.exp(-1.0 / self.relaxation)
        jump_B1S = dirichlet_rows((n, 1, S), rng, prior)
        identity = torch.eye(S, dtype=torch.float64, device=rng.device)
        return stay * identity + (1 - stay) * jump_B1S, dirichlet_rows((n, S, self.symbols), rng, prior)


def walk(
    transition_BSS: Tensor, emission_BSV: Tensor, horizon: int, rng: torch.Generator, moves_first: bool = True
) -> tuple[Tensor, Tensor]:
    """What each chain shows and where it is, [B, K] each."""
    n, states = transition_BSS.shape[:2]
    u_KB = torch.rand(horizon, n, generator=rng, device=rng.device, dtype=torch.float64)
    v_BK = torch.rand(n, horizon, generator=rng, device=rng.device, dtype=torch.float64)
    state_B = torch.randint(states, (n,), generator=rng, device=rng.device)
    # One flat index per step: row b*S + s of the stacked cumulative rows. The last column is left out, so that
    # rounding in a cumulative sum can never point behind the last state.
    base_B = torch.arange(n, device=rng.device) * states
    ladder_XS = transition_BSS.cumsum(-1).flatten(0, 1)[:, :-1].contiguous()
    path = []
    for k in range(horizon):
        if k > 0 or moves_first:
            row_BS = ladder_XS.index_select(0, base_B + state_B)
            state_B = (u_KB[k, :, None] > row_BS).sum(1)
        path.append(state_B)
    states_BK = torch.stack(path, dim=1)
    rungs_BKV = emission_BSV.cumsum(-1).flatten(0, 1)[:, :-1][base_B[:, None] + states_BK]
    return (v_BK[..., None] > rungs_BKV).sum(-1), states_BK


def dirichlet_rows(size: tuple[int, ...], rng: torch.Generator, prior: float = 1.0) -> Tensor:
    """Rows from Dirichlet(prior, ..., prior): gamma variables, normalised; exponentials for a prior of 1."""
    if prior != 1.0:
        shape = torch.full(size, prior, dtype=torch.float64, device=rng.device)
        gamma = torch._standard_gamma(shape, generator=rng)
        return gamma / gamma.sum(-1, keepdim=True)
    # 1 - u lies in (0, 1]: log never sees a zero
    draws = -torch.log1p(-torch.rand(size, generator=rng, device=rng.device, dtype=torch.float64))
    return draws / draws.sum(-1, keepdim=True)


def _predict(belief: Tensor, transition: Tensor) -> Tensor:
    # a sum of products: at S = 5 the batched matmul's overhead is several times its arithmetic
    return (belief[..., :, None] * transition).sum(-2)


def _observe(prior: Tensor, likelihood: Tensor) -> Tensor:
    joint = prior * likelihood
    return joint / joint.sum(-1, keepdim=True)
