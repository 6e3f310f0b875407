"""Markov chains of order k whose law is hidden: predict the next symbol by counting what followed this context.

law      each of the A^k contexts has a row of probabilities of its own, Dirichlet(c, ..., c), fresh for every sequence;
         the first k symbols are uniform, every later one is drawn from the row of the k symbols before it
tokens   x_1 x_2 ... x_K        (symbols 0..A-1)
scored   at every position: the next symbol; the last one drawn is asked for and never shown
exact    P(y) = (times y followed this context + c) / (visits of this context + A c); uniform before k symbols are seen

    order 1, c = 1     x     0    1    1    0    1
                       P(1)  1/2  1/2  2/3  2/3  1/2     the last: after a 1 came one 1 and one 0

References `order j`, j < k: the exact answer of someone who takes the chain for one of order j.
sticky=s: in every row the symbol that would repeat the last one has concentration c + s instead of c.
pool=M and eval_prior: see tasks/pool.py.

Source: the order-k study in github.com/vinayakpathak/icr (A = 2, c = 1).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from tasks.base import TASKS, Batch, Probe, Shape, Variant, one_hot, require
from tasks.pool import MOST_PRIOR, choose, laws, pieces, pool_variants, require_pool, require_prior, shift_variants

MOST_CONTEXTS = 1024
PROBED = 4  # contexts that a report asks about, at most
SWAPS = 16


@TASKS.add("markov", version=1, primitive="accumulation")
@dataclass(frozen=True)
class Markov:
    order: int = 2
    alphabet: int = 2
    prior: float = 1.0
    horizon: int = 64
    sticky: float = 0.0  # more for the symbol that was last
    pool: int | None = None  # training chains; None: every sequence has a fresh one
    eval_prior: float | None = None  # score under Dirichlet(c, ..., c) too
    answer_token: ClassVar[int] = 0

    def __post_init__(self) -> None:
        require(1 <= self.order <= 8, f"order must be 1 to 8, not {self.order}")
        require(self.alphabet >= 2, f"alphabet must be at least 2, not {self.alphabet}")
        require(
            self.contexts <= MOST_CONTEXTS,
            f"order {self.order} on {self.alphabet} symbols has {self.contexts:,} contexts, "
            f"more than {MOST_CONTEXTS:,}",
        )
        require(self.horizon >= 1, f"horizon must be at least 1, not {self.horizon}")
        require_prior("prior", self.prior)
        require(0 <= self.sticky <= MOST_PRIOR, f"sticky must be a number from 0 to {MOST_PRIOR:,}, not {self.sticky}")
        require_pool(self.pool)
        require_prior("eval_prior", self.eval_prior)

    @property
    def contexts(self) -> int:
        return int(self.alphabet**self.order)

    @property
    def shape(self) -> Shape:
        A = self.alphabet
        return Shape(vocab=A, features=0, classes=A, header=0, stride=1, horizon=self.horizon)

    def max_horizon(self) -> int | None:
        return None

    def pseudo_counts(self, order: int, device: torch.device | str = "cpu") -> Tensor:
        """The prior of each context's row, [A^order, A]: Dirichlet concentrations."""
        A = self.alphabet
        pseudo_CA = torch.full((A**order, A), self.prior, dtype=torch.float64, device=device)
        if order > 0:
            code_C = torch.arange(A**order, device=device)
            pseudo_CA[code_C, code_C % A] += self.sticky
        return pseudo_CA

    def draw_laws(self, n: int, rng: torch.Generator) -> Tensor:
        """n chains, [n, contexts, A]: a row for each context, first the one whose symbols are all 0."""
        shape_nCA = self.pseudo_counts(self.order, rng.device).expand(n, -1, -1).contiguous()
        gamma = torch._standard_gamma(shape_nCA, generator=rng)  # torch.distributions takes no generator
        return gamma / gamma.sum(-1, keepdim=True)

    def sample(self, n: int, horizon: int, rng: torch.Generator) -> Batch:
        require(horizon >= 1, f"horizon must be at least 1, not {horizon}")
        rows_BCA = choose(self.pooled(rng.device), n, rng) if self.pool else self.draw_laws(n, rng)
        symbols_BN = self.walk(rows_BCA, horizon + 1, rng)
        features = torch.empty(n, horizon, 0, dtype=torch.float64, device=rng.device)
        queries = torch.arange(horizon, device=rng.device)
        return Batch(symbols_BN[:, :-1].contiguous(), features, symbols_BN[:, 1:].contiguous(), queries)

    def walk(self, rows_BCA: Tensor, length: int, rng: torch.Generator) -> Tensor:
        """Symbols of each chain, [B, length]."""
        n, A = len(rows_BCA), self.alphabet
        u_NB1 = torch.rand(length, n, 1, generator=rng, device=rng.device, dtype=torch.float64)
        # the last column is left out, so that rounding in a cumulative sum can never point behind the last symbol
        ladder_XA = rows_BCA.cumsum(-1).flatten(0, 1)[:, :-1].contiguous()
        base_B = torch.arange(n, device=rng.device) * self.contexts
        symbols = [(u_BN1 * A).long().squeeze(-1) for u_BN1 in u_NB1[: self.order]]  # u < 1
        context_B = torch.zeros_like(base_B)
        for symbol_B in symbols:
            context_B = (context_B * A + symbol_B) % self.contexts
        for t in range(self.order, length):
            symbol_B = (u_NB1[t] > ladder_XA.index_select(0, base_B + context_B)).sum(1)
            context_B = (context_B * A + symbol_B) % self.contexts
            symbols.append(symbol_B)
        return torch.stack(symbols, dim=1)

    def posterior(self, batch: Batch) -> Tensor:
        return self._pool_posterior(batch) if self.pool else self._order_posterior(batch, self.order)

    def _order_posterior(self, batch: Batch, order: int) -> Tensor:
        """The exact answer if the chain's order were this one."""
        A = self.alphabet
        complete_T = complete(batch.tokens, order)
        key_BT = torch.where(complete_T, contexts(batch.tokens, order, A), A**order)  # the incomplete by themselves
        counts_BTA = counts_before(key_BT, following(batch.tokens), A)
        if order == 0:  # its first symbol follows nothing and yet tells of its law; of a longer order it is uniform
            counts_BTA = counts_BTA + one_hot(batch.tokens[:, :1], A)
        pseudo_CA = pad(self.pseudo_counts(order, batch.tokens.device), (0, 0, 0, 1), value=1.0)  # the incomplete
        known_BTA = counts_BTA + pseudo_CA[key_BT]
        return torch.where(complete_T[:, None], known_BTA / known_BTA.sum(-1, keepdim=True), 1.0 / A)

    def _pool_posterior(self, batch: Batch) -> Tensor:
        rows_MCA = self.pooled(batch.tokens.device)
        rows_CAM = rows_MCA.permute(1, 2, 0).contiguous()
        logs_CAM, numbers = rows_CAM.log(), batch.tokens.shape[1] * len(rows_MCA)
        parts = [self._mix(part.tokens, rows_CAM, logs_CAM) for part in pieces(batch, numbers)]
        return torch.where(complete(batch.tokens, self.order)[:, None], torch.cat(parts), 1.0 / self.alphabet)

    def _mix(self, tokens_BT: Tensor, rows_CAM: Tensor, logs_CAM: Tensor) -> Tensor:
        """The chains' rows, each weighed by how well it has foretold this sequence."""
        context_BT = contexts(tokens_BT, self.order, self.alphabet)
        fit_BTM = logs_CAM[context_BT, following(tokens_BT)]
        fit_BTM[:, : self.order - 1] = 0.0  # nothing was foretold there
        fit_BTM = pad(fit_BTM, (0, 0, 1, 0))[:, :-1].cumsum(1)  # the symbol asked for does not count
        weight_BTM = fit_BTM.softmax(-1)
        known = [(rows_CAM[:, a][context_BT] * weight_BTM).sum(-1) for a in range(self.alphabet)]
        return torch.stack(known, dim=-1)

    @property
    def opening(self) -> int:
        return max(8, 2 * self.order)

    def start(self, n: int) -> list[Tensor]:
        """Counts of what followed each context, the present context, and the number of symbols seen."""
        counts_BCA = torch.zeros(n, self.contexts, self.alphabet, dtype=torch.float64)
        return [counts_BCA, torch.zeros(n, dtype=torch.int64), torch.zeros((), dtype=torch.int64)]

    def step(self, tokens_B: Tensor, state: list[Tensor]) -> Tensor:
        assert not self.pool, "a pool's exact predictor needs more than counts"
        counts_BCA, context_B, seen = state
        rows = torch.arange(len(tokens_B))
        if seen >= self.order:
            counts_BCA[rows, context_B, tokens_B.long()] += 1
        seen += 1
        context_B.copy_((context_B * self.alphabet + tokens_B.long()) % self.contexts)
        known_BA = counts_BCA[rows, context_B] + self.pseudo_counts(self.order)[context_B]
        if seen < self.order:
            known_BA = torch.ones_like(known_BA)
        return known_BA / known_BA.sum(-1, keepdim=True)

    def probe(self, tokens_BT: Tensor) -> Probe | None:
        """The probability of a symbol after some contexts, each reached from the history by the shortest way.

        That way never leaves the context asked about, and rows are independent. So the exact answer is the mean of one
        entry of the law, given the history. A pool's rows are not independent.
        """
        if self.pool:
            return None
        J, k, A = min(self.contexts, PROBED), self.order, self.alphabet
        code_J = torch.linspace(0, self.contexts - 1, J).round().long()
        symbols_Jk = torch.stack([code_J // A ** (k - 1 - i) % A for i in range(k)], dim=1)
        suffix_BJk = symbols_Jk.expand(len(tokens_BT), J, k).clone()
        for shared in range(1, k + 1):  # as many of the last symbols as possible begin the context
            fits_BJ = (tokens_BT[:, None, -shared:] == symbols_Jk[:, :shared]).all(-1)
            shorter_Jk = pad(symbols_Jk[:, shared:], (0, shared), value=-1)
            suffix_BJk = torch.where(fits_BJ[..., None], shorter_Jk, suffix_BJk)
        return Probe(suffix_BJk, (torch.arange(J) % A).expand(len(tokens_BT), J))

    def reorder(self, batch: Batch, rng: torch.Generator) -> Batch:
        """Exchange what lies between the first and the second and between the second and the third of three visits of a
        context. That leaves the number of times that each symbol followed each context as it is."""
        tokens_BT, T = batch.tokens, batch.tokens.shape[1]
        place_T = torch.arange(T)
        if T < 3:
            return batch
        for _ in range(SWAPS):
            code_BT = contexts(tokens_BT, self.order, self.alphabet)
            chosen_B1 = torch.randint(T, (len(tokens_BT), 1), generator=rng)
            visits_BT = (code_BT == code_BT.gather(1, chosen_B1)) & complete(tokens_BT, self.order)
            chance_BT = torch.rand(tokens_BT.shape, generator=rng, dtype=torch.float64).masked_fill(~visits_BT, 2.0)
            i_B1, j_B1, l_B1 = chance_BT.topk(3, dim=1, largest=False).indices.sort(1).values.split(1, 1)
            inside_BT = (place_T > i_B1) & (place_T <= l_B1) & (visits_BT.sum(1, keepdim=True) >= 3)
            later_BT = place_T - i_B1 <= l_B1 - j_B1  # the second piece comes first
            source_BT = torch.where(later_BT, place_T + j_B1 - i_B1, place_T - (l_B1 - j_B1))
            tokens_BT = tokens_BT.gather(1, torch.where(inside_BT, source_BT, place_T))
        return batch._replace(tokens=tokens_BT, targets=torch.cat([tokens_BT[:, 1:], batch.targets[:, -1:]], dim=1))

    def pooled(self, device: torch.device) -> Tensor:
        """The pool's chains [M, contexts, A]; no probability is so small that its logarithm is infinite."""
        assert self.pool is not None
        rows = laws(self._full(), self.pool, device).clamp(min=1e-12)
        return rows / rows.sum(-1, keepdim=True)

    def _full(self) -> Markov:
        return replace(self, pool=None, eval_prior=None)

    def _shifted(self) -> Markov:
        assert self.eval_prior is not None
        return replace(self._full(), prior=self.eval_prior)

    def variants(self) -> dict[str, Variant]:
        pool = pool_variants(self, self._full()) if self.pool else {}
        return pool | (shift_variants(self, self._shifted()) if self.eval_prior else {})

    def references(self, batch: Batch) -> dict[str, Tensor]:
        lower = {f"order {j}": self._order_posterior(batch, j) for j in range(self.order)}
        named = {"pool prior": self, "full prior": self._full()} if self.pool else {}
        if self.eval_prior:
            named |= {"own prior": self, "shifted prior": self._shifted()}
        return lower | {name: task.posterior(batch) for name, task in named.items()}


def contexts(tokens_BT: Tensor, order: int, alphabet: int) -> Tensor:
    """The last `order` symbols at each position as one number, [B, T]; missing ones count as 0."""
    code_BT = torch.zeros_like(tokens_BT)
    for back in range(order - 1, -1, -1):
        shifted = pad(tokens_BT, (back, 0))[:, : tokens_BT.shape[1]]
        code_BT = code_BT * alphabet + shifted
    return code_BT


def complete(tokens_BT: Tensor, order: int) -> Tensor:
    """Whether a position has seen a whole context, [T]."""
    return torch.arange(tokens_BT.shape[1], device=tokens_BT.device) >= order - 1


def following(tokens_BT: Tensor) -> Tensor:
    """The symbol after each position; a 0 after the last, which no answer counts."""
    return pad(tokens_BT[:, 1:], (0, 1))


def counts_before(key_BN: Tensor, symbol_BN: Tensor, alphabet: int) -> Tensor:
    """How often each symbol came with this key at earlier positions, [B, N, A] float64.

    Sorted by key, positions of one key stand side by side and in order: one cumulative sum counts them all.
    """
    order_BN = key_BN.argsort(dim=1, stable=True)
    sorted_BN = key_BN.gather(1, order_BN)
    each_BNA = one_hot(symbol_BN.gather(1, order_BN), alphabet)
    before_BNA = each_BNA.cumsum(1) - each_BNA
    index_N = torch.arange(key_BN.shape[1], device=key_BN.device)
    new_BN = pad(sorted_BN[:, 1:] != sorted_BN[:, :-1], (1, 0), value=True)
    first_BN1 = (index_N * new_BN).cummax(1).values[..., None]
    within_BNA = before_BNA - before_BNA.gather(1, first_BN1.expand_as(before_BNA))
    return torch.empty_like(within_BNA).scatter_(1, order_BN[..., None].expand_as(within_BNA), within_BNA)
