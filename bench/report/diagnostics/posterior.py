"""Are the model's rollouts samples of the posterior?

After a context of n bits with s ones the exact posterior of the coin is F = Beta(s + a, n - s + b). By de Finetti's
theorem the share of ones in a long rollout of an exact predictor is a draw from it. For each context, M such shares
p_1..p_M with empirical distribution F_M are compared with F:

W1              integral over p of |F_M - F|
KS              max |F_M - F| over the grid of p: at most PIT-KS, which looks at the samples themselves
CvM-int         integral over p of (F_M - F)^2
PIT-KS          Kolmogorov-Smirnov statistic of u_i = F(p_i) against uniform      scipy.stats.ks_1samp
PIT-CvM         Cramer-von Mises statistic of the u_i                             scipy.stats.cramervonmises
quantile RMSE   of the 5, 25, 50, 75, 95 % sample quantiles against F's
coverage MAE    mean |share of samples in F's central interval - nominal|, at 50, 80, 90, 95 %

Integrals are sums over a grid of p. Two rows say what these numbers mean: `perfect match`, the expected value for M
samples drawn from F itself, and `exact predictor`, an exact predictor's rollouts of the same length through this code.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure
from scipy.stats import beta, cramervonmises, ks_1samp, uniform

from bench.report.diagnostics.base import (
    EXACT,
    GREY,
    MODEL,
    NotAvailable,
    Picture,
    Run,
    Section,
    Table,
    canvas,
    section,
)
from bench.report.diagnostics.predictive import coins
from bench.report.rollout import Exact, refusal, rollout
from tasks.bernoulli import Bernoulli, draw_bits

CONTEXTS, BITS, LENGTH = 30, 50, 1000
REPEATS = 40  # of the perfect match, for each context
GRID = np.linspace(0.0, 1.0, 2001)
METRICS = ("W1", "KS", "CvM-int", "PIT-KS", "PIT-CvM", "quantile RMSE", "coverage MAE")
STATISTICS = ("mean", "median", "p90", "p95", "max")


class Rollouts(NamedTuple):
    contexts: np.ndarray  # [C, n] bits
    model: np.ndarray  # [C, M] share of ones in each of the model's rollouts
    exact: np.ndarray  # [C, M] the same of the exact predictor


@lru_cache(maxsize=1)
def rollouts(run: Run) -> Rollouts:
    """Made once, used by this question and by the next."""
    task = coins(run)
    if reason := refusal(run.model, BITS + task.bos + LENGTH - 1):
        raise NotAvailable(reason)
    rng = run.rng("posterior contexts")
    bits_CN = draw_bits(task.draw_p(CONTEXTS, rng), BITS, rng)
    written = [
        rollout(model, task.write(bits_CN), run.samples, LENGTH, run.rng("rollouts"), report=report)
        for model, report in (
            (run.model, lambda done, total: run.progress("rollouts", done, total)),
            (Exact(task), lambda _done, _total: None),
        )
    ]
    return Rollouts(bits_CN.numpy(), *(tokens.double().mean(2).numpy() for tokens in written))


def posteriors(task: Bernoulli, contexts: np.ndarray) -> list[tuple[float, float]]:
    """The exact Beta of each context."""
    n = contexts.shape[1]
    return [(s + task.a, n - s + task.b) for s in contexts.sum(1).tolist()]


def compare(samples: np.ndarray, a: float, b: float) -> dict[str, float]:
    """All metrics of one context."""
    law = beta(a, b)
    error = np.searchsorted(np.sort(samples), GRID, side="right") / len(samples) - law.cdf(GRID)
    u = law.cdf(samples)
    levels = np.array([0.05, 0.25, 0.50, 0.75, 0.95])
    quantiles = np.quantile(samples, levels) - law.ppf(levels)
    nominal = np.array([0.50, 0.80, 0.90, 0.95])
    covered = (np.abs(u[:, None] - 0.5) <= nominal / 2).mean(0)
    values = (
        np.trapezoid(np.abs(error), GRID),
        np.abs(error).max(),
        np.trapezoid(error**2, GRID),
        ks_1samp(u, uniform.cdf, method="asymp").statistic,
        cramervonmises(u, "uniform").statistic,
        np.sqrt((quantiles**2).mean()),
        np.abs(covered - nominal).mean(),
    )
    return {name: float(value) for name, value in zip(METRICS, values, strict=True)}


def perfect_match(laws: list[tuple[float, float]], samples: int, repeats: int, seed: int) -> dict[str, float]:
    """The expected metrics of samples that do come from the posterior."""
    rng = np.random.default_rng(seed)
    drawn = [compare(rng.beta(a, b, samples), a, b) for a, b in laws for _ in range(repeats)]
    return {name: float(np.mean([d[name] for d in drawn])) for name in METRICS}


def summarise(values: list[float]) -> list[float]:
    return [float(f) for f in (np.mean(values), *np.percentile(values, [50, 90, 95]), np.max(values))]


@section("Posterior samples", tasks=("bernoulli",))
def quality(run: Run) -> Section:
    task, made = coins(run), rollouts(run)
    laws = posteriors(task, made.contexts)
    ours = [compare(p, *law) for p, law in zip(made.model, laws, strict=True)]
    bayes = [compare(p, *law) for p, law in zip(made.exact, laws, strict=True)]
    perfect = perfect_match(laws, run.samples, REPEATS, run.rng("perfect match").initial_seed())

    rows: list[list[object]] = []
    for name in METRICS:
        mean_bayes = float(np.mean([m[name] for m in bayes]))
        rows.append([name, "this run", *summarise([m[name] for m in ours]), mean_bayes, perfect[name]])
        if published := run.published("posterior_metrics", name):
            rows.append([name, "LPE report", *published[:5], None, published[5]])
    each = [
        [i + 1, int(bits.sum()), a, b, float(p.mean()), a / (a + b), *m.values()]
        for i, (bits, (a, b), p, m) in enumerate(zip(made.contexts, laws, made.model, ours, strict=True))
    ]
    tables = [
        Table("posterior_metrics", ["metric", "source", *STATISTICS, "exact predictor", "perfect match"], rows),
        Table("posterior_contexts", ["context", "ones", "a", "b", "model mean", "exact mean", *METRICS], each),
    ]
    text = (
        f"{CONTEXTS} contexts of {BITS} bits, {run.samples} rollouts of {LENGTH:,} tokens each; a rollout's share of "
        "ones is one sample of the coin. `exact predictor`: the mean for rollouts of the exact predictive through the "
        f"same code; `perfect match`: the expected mean for {run.samples} samples drawn from the posterior itself."
    )
    pictures = [
        Picture("posterior_panels", _panels(made.model, laws), "Rollout shares (bars) and exact posterior (line)."),
        Picture("posterior_boxes", _boxes(ours, perfect), "One value a context; dashes mark the perfect match."),
    ]
    return Section(text, tables, pictures)


def _panels(samples: np.ndarray, laws: list[tuple[float, float]]) -> Figure:
    figure, axes = canvas(13, 10, 5, 6)
    for i, (axis, p, (a, b)) in enumerate(zip(axes.flat, samples, laws, strict=True)):
        law = beta(a, b)
        low, high = min(p.min(), law.ppf(0.001)), max(p.max(), law.ppf(0.999))
        grid = np.linspace(low, high, 200)
        axis.hist(p, bins=20, range=(low, high), density=True, color=MODEL, alpha=0.6)
        axis.plot(grid, law.pdf(grid), color=EXACT, linewidth=1.5)
        axis.set_title(f"context {i + 1}: Beta({a:g}, {b:g})", fontsize=8)
        axis.set_yticks([])
        axis.tick_params(labelsize=7)
        axis.locator_params(axis="x", nbins=4)
    handles = [
        axes.flat[0].patches[0],
        axes.flat[0].lines[0],
    ]
    figure.legend(handles, ["model rollouts", "exact posterior"], loc="outside upper right", ncols=2)
    figure.supxlabel("p, the coin's probability of 1")
    figure.supylabel("density")
    return figure


def _boxes(ours: list[dict[str, float]], perfect: dict[str, float]) -> Figure:
    figure, axis = canvas(9, 4.5)
    values = [[m[name] for m in ours] for name in METRICS]
    axis.boxplot(values, tick_labels=METRICS, medianprops={"color": MODEL}, flierprops={"markersize": 3})
    for i, name in enumerate(METRICS, start=1):
        axis.hlines(perfect[name], i - 0.35, i + 0.35, color=EXACT, linestyle="--", linewidth=1.2,
                    label="perfect match, expected mean" if i == 1 else None)  # fmt: skip
    axis.set(yscale="log", ylabel="metric (log scale)", title="Posterior similarity over contexts")
    axis.grid(axis="y", color=GREY, alpha=0.25)
    axis.legend()
    return figure
