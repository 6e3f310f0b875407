"""The Bernoulli report's programme for chains of hidden law: loss, posterior samples, low probabilities.

A chain of order k on bits has a vector of 2^k transition probabilities, one P(1) for each context. After a prefix their
exact posteriors are Beta(ones + c, zeros + c), independent, with the counts of that context in the prefix. A rollout of
an exact predictor visits its contexts again and again; the share of ones after a context is a draw from its posterior,
up to the noise of finitely many visits. A context that a rollout never visits counts as 1/2, as in the source.

posterior samples   the metrics of bench.report.diagnostics.posterior, for each context and over all of them, and
                    `mean MAE`: |mean of the samples - mean of the posterior|, the source's number
low probability     of one fixed string of 100 bits, 50 of them ones, after a prefix:
                    rollout estimator   mean over rollouts of the string's probability under the rollout's vector
                    teacher forcing     the product of the model's own predictions along the string
                    exact               a ratio of Beta functions for each context
Each has its floor beside it: the same number for rollouts of the exact predictor through the same code.

Source: github.com/vinayakpathak/icr, lpe/markov_k_transformer.py (rollouts of 100 * 2^k bits, 200 for each prefix).
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple, cast

import numpy as np
import torch
from matplotlib.figure import Figure
from scipy.special import betaln
from torch import Tensor

from bench.report.diagnostics.base import (
    EXACT,
    MODEL,
    OTHER,
    NotAvailable,
    Picture,
    Run,
    Section,
    Table,
    canvas,
    section,
)
from bench.report.diagnostics.posterior import METRICS, STATISTICS, compare, perfect_match, summarise
from bench.report.rollout import Exact, refusal, rollout
from tasks.base import Batch
from tasks.markov import Markov, contexts

SEQUENCES, PREFIXES, REPEATS = 256, 8, 20
TARGET, ONES = 100, 50
MOST_TOKENS = 20_000_000  # of rollouts; more would take hours
PERCENTILES = (50, 90, 95)


class Rollouts(NamedTuple):
    prefixes: Tensor  # [P, n] bits
    ones: np.ndarray  # [P, C] posterior parameters: Beta(ones, zeros)
    zeros: np.ndarray
    model: np.ndarray  # [P, M, C] share of ones after each context in each of the model's rollouts
    exact: np.ndarray  # [P, M, C] the same of the exact predictor


def chain(run: Run) -> Markov:
    task = cast(Markov, run.task)
    if task.alphabet != 2:
        raise NotAvailable(f"it is asked of chains on two symbols, and this one has {task.alphabet}")
    if task.pool:
        raise NotAvailable("the posterior of a pool is no Beta distribution")
    return task


def tally(task: Markov, bits_BN: Tensor, start: int = 0) -> tuple[Tensor, Tensor]:
    """Ones and visits of each context among the bits from `start` on, [B, C] each."""
    k = task.order
    context_BT = contexts(bits_BN, k, 2)[:, max(k, start) - 1 : -1]
    bits_BT = bits_BN[:, max(k, start) :].double()
    zero_BC = torch.zeros(len(bits_BN), task.contexts, dtype=torch.float64)
    visits_BC = zero_BC.scatter_add(1, context_BT, torch.ones_like(bits_BT))
    return zero_BC.scatter_add(1, context_BT, bits_BT), visits_BC


@lru_cache(maxsize=1)
def rollouts(run: Run) -> Rollouts:
    """Made once, used by two questions."""
    task = chain(run)
    n, length = max(2 * task.order, 16), 100 * task.contexts
    if reason := refusal(run.model, n + max(length, TARGET)):
        raise NotAvailable(reason)
    if (tokens := PREFIXES * run.samples * length) > MOST_TOKENS:
        raise NotAvailable(f"it takes {tokens:,} tokens, more than {MOST_TOKENS:,}: ask for fewer with --samples")
    rng = run.rng("chain prefixes")
    bits_PN = task.walk(task.draw_laws(PREFIXES, rng), n, rng)
    ones_PC, visits_PC = tally(task, bits_PN)
    shares = []
    for model, report in (
        (run.model, lambda done, total: run.progress("rollouts", done, total)),
        (Exact(task), lambda _done, _total: None),
    ):
        written_PML = rollout(model, bits_PN, run.samples, length, run.rng("chain rollouts"), report=report)
        whole = torch.cat([bits_PN[:, None].expand(-1, run.samples, -1), written_PML.long()], dim=2)
        ones, visits = tally(task, whole.flatten(0, 1), start=n)
        shares.append(torch.where(visits > 0, ones / visits.clamp(min=1), 0.5).unflatten(0, whole.shape[:2]).numpy())
    zeros_C, ones_C = task.pseudo_counts(task.order).unbind(1)
    a_PC, b_PC = ones_PC + ones_C, visits_PC - ones_PC + zeros_C
    return Rollouts(bits_PN, a_PC.numpy(), b_PC.numpy(), *shares)


@section("Final loss against the Bayes predictive, for chains", tasks=("markov",))
@torch.no_grad()
def loss(run: Run) -> Section:
    task = chain(run)
    batch = task.sample(SEQUENCES, run.config.horizon, run.rng("chain loss"))
    run.require_length(batch.tokens.shape[1])
    parts = zip(batch.tokens.split(64), batch.features.split(64), strict=True)
    log_q = torch.cat([run.model(tokens, features) for tokens, features in parts]).double().log_softmax(-1)
    p, draws = task.posterior(batch), batch.targets[..., None]
    rows = []
    for name, prediction in (("this run", log_q), *((f"order {j}", q.log()) for j, q in _lower(task, batch))):
        nll, bayes = (-x.gather(-1, draws).mean().item() for x in (prediction, p.log()))
        expected = (p * (p.log() - prediction)).sum(-1).mean().item() / -(p * p.log()).sum(-1).mean().item()
        rows.append([name, nll, bayes, 100 * (nll - bayes) / bayes, 100 * expected])
    text = (
        f"{SEQUENCES} sequences of {run.config.horizon:,} bits. The gap on draws is the source's number; the expected "
        "gap, the same in expectation over the next bit, has less noise. `order j`: exact for a chain of a lower order."
    )
    header = ["predictor", "NLL (nats)", "Bayes NLL (nats)", "gap on draws (%)", "expected gap (%)"]
    return Section(text, [Table("chain_loss", header, rows)])


def _lower(task: Markov, batch: Batch) -> list[tuple[int, Tensor]]:
    found = task.references(batch)
    return [(j, found[f"order {j}"]) for j in range(task.order)]


@section("Posterior samples of the transition vector", tasks=("markov",))
def quality(run: Run) -> Section:
    task, made = chain(run), rollouts(run)
    names = ("mean MAE", *METRICS)
    ours, bayes = ([_compare(made, samples, c) for c in range(task.contexts)] for samples in (made.model, made.exact))
    laws = [(float(a), float(b)) for a, b in zip(made.ones.flat, made.zeros.flat, strict=True)]
    perfect = perfect_match(laws, run.samples, REPEATS, run.rng("chain match").initial_seed())
    rows: list[list[object]] = []
    for name in names:
        every, floor = ([m[name] for of_context in found for m in of_context] for found in (ours, bayes))
        rows.append([name, *summarise(every), float(np.mean(floor)), perfect.get(name)])
    each: list[list[object]] = []
    for c in range(task.contexts):
        means = [float(np.mean([m[name] for m in found[c]])) for found in (ours, bayes) for name in names]
        each.append([format(c, f"0{task.order}b"), *means])
    header = ["context", *(f"{name}, {who}" for who in ("this run", "exact predictor") for name in names)]
    tables = [
        Table("chain_posterior", ["metric", *STATISTICS, "exact predictor", "perfect match"], rows),
        Table("chain_posterior_contexts", header, each),
    ]
    text = (
        f"{PREFIXES} prefixes of {made.prefixes.shape[1]} bits, {run.samples} rollouts of {100 * task.contexts:,} bits "
        f"each; the shares of ones after each of the {task.contexts} contexts are one sample of the transition vector. "
        "`exact predictor`: the mean for rollouts of the exact predictive; `perfect match`: for samples drawn from the "
        "posterior itself."
    )
    return Section(text, tables, [Picture("chain_posterior_means", _scatter(made), "One mark a prefix and context.")])


def _compare(made: Rollouts, samples_PMC: np.ndarray, context: int) -> list[dict[str, float]]:
    """All metrics of one context, for each prefix."""
    found = []
    for samples, a, b in zip(samples_PMC[..., context], made.ones[:, context], made.zeros[:, context], strict=True):
        found.append({"mean MAE": float(abs(samples.mean() - a / (a + b))), **compare(samples, a, b)})
    return found


def _scatter(made: Rollouts) -> Figure:
    figure, axis = canvas(5.2, 5)
    exact = made.ones / (made.ones + made.zeros)
    axis.scatter(exact.ravel(), made.exact.mean(1).ravel(), s=14, color=OTHER, label="exact predictor's rollouts")
    axis.scatter(exact.ravel(), made.model.mean(1).ravel(), s=14, color=MODEL, label="model's rollouts")
    axis.plot([0, 1], [0, 1], color=EXACT, linewidth=1, label="equal")
    axis.set(xlabel="exact posterior mean of P(1)", ylabel="mean over rollouts", aspect="equal")
    axis.legend()
    return figure


@section("Low-probability estimation, for chains", tasks=("markov",))
@torch.no_grad()
def estimation(run: Run) -> Section:
    task, made = chain(run), rollouts(run)
    target_L = (torch.randperm(TARGET, generator=torch.Generator().manual_seed(0)) < ONES).long()
    whole_PT = torch.cat([made.prefixes, target_L.expand(PREFIXES, -1)], dim=1)
    n = made.prefixes.shape[1]
    ones_PC, visits_PC = (x.numpy() for x in tally(task, whole_PT, start=n))
    zeros_PC = visits_PC - ones_PC
    log_P = (betaln(made.ones + ones_PC, made.zeros + zeros_PC) - betaln(made.ones, made.zeros)).sum(1)

    def relative_error(shares_PMC: np.ndarray) -> np.ndarray:
        with np.errstate(divide="ignore", invalid="ignore"):
            hit = np.where(ones_PC[:, None] > 0, ones_PC[:, None] * np.log(shares_PMC), 0.0)
            miss = np.where(zeros_PC[:, None] > 0, zeros_PC[:, None] * np.log1p(-shares_PMC), 0.0)
        return np.asarray(np.abs(np.exp((hit + miss).sum(2) - log_P[:, None]).mean(1) - 1.0))

    logits = run.model(whole_PT[:, :-1], torch.empty(PREFIXES, whole_PT.shape[1] - 1, 0))[:, n - 1 :]
    log_forced = (
        logits.double().log_softmax(-1).gather(-1, target_L.expand(PREFIXES, -1)[..., None]).sum((1, 2)).numpy()
    )
    tries = run.samples * 100 * task.contexts // TARGET
    columns = {
        "rollout estimator": relative_error(made.model),
        "exact predictor's rollouts": relative_error(made.exact),
        "teacher forcing": np.abs(np.exp(log_forced - log_P) - 1.0),
        "naive Monte Carlo, expected relative SE": np.sqrt((1 - np.exp(log_P)) / (tries * np.exp(log_P))),
    }
    rows = [[f"p{q}", *(float(np.percentile(x, q)) for x in columns.values())] for q in PERCENTILES]
    digits = (log_P / np.log(10), log_forced / np.log(10))
    each = [[i + 1, *(float(x[i]) for x in (*digits, *columns.values()))] for i in range(PREFIXES)]
    text = (
        f"The probability that one given string of {TARGET} bits, {ONES} of them ones, follows a prefix; relative "
        "errors. Teacher forcing multiplies the model's own predictions along the string: where it is near and the "
        "estimator is not, the rollouts leave what the model knows."
    )
    tables = [
        Table("chain_lowprob", ["statistic", *columns], rows),
        Table("chain_lowprob_prefixes", ["prefix", "log10 P", "log10 P, teacher forcing", *columns], each),
    ]
    return Section(text, tables)
