"""How well do rollouts estimate a probability far too small to be met by chance?

The event is one fixed string of m bits, k of them ones, alternating. After a context of n bits with s ones

    P = B(s + a + k, n - s + b + m - k) / B(s + a, n - s + b)          B(s + 26, 76 - s) / B(s + 1, 51 - s) here

rollout estimator   mean over samples of p_j^k (1 - p_j)^(m - k), p_j the share of ones in rollout j
relative error      |estimate - P| / P
naive Monte Carlo   R = M L / m rollouts of length m, as many tokens as M rollouts of length L: hits / R, whose expected
                    relative standard error is sqrt((1 - P) / (R P)) and whose chance of no hit at all is (1 - P)^R
"""

from __future__ import annotations

import numpy as np
from scipy.special import betaln

from bench.report.diagnostics.base import EXACT, GREY, MODEL, OTHER, Picture, Run, Section, Table, canvas, section
from bench.report.diagnostics.posterior import BITS, CONTEXTS, LENGTH, posteriors, rollouts
from bench.report.diagnostics.predictive import coins

TARGET, ONES = 50, 25
PERCENTILES = (50, 90, 95)


def log_probability(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Of the target after a context whose posterior is Beta(a, b), in nats."""
    return np.asarray(betaln(a + ONES, b + TARGET - ONES) - betaln(a, b))


def relative_error(p_CM: np.ndarray, log_P: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore"):  # a rollout of one kind of bit alone gives log 0, and a true 0
        log_each = ONES * np.log(p_CM) + (TARGET - ONES) * np.log1p(-p_CM)
    return np.asarray(np.abs(np.exp(log_each - log_P[:, None]).mean(1) - 1.0))


@section("Low-probability estimation", tasks=("bernoulli",))
def estimation(run: Run) -> Section:
    made = rollouts(run)
    a, b = np.array(posteriors(coins(run), made.contexts)).T
    log_P = log_probability(a, b)
    P = np.exp(log_P)
    tries = run.samples * LENGTH // TARGET
    ours, bayes = relative_error(made.model, log_P), relative_error(made.exact, log_P)
    naive = np.sqrt((1 - P) / (tries * P))
    no_hit = np.exp(tries * np.log1p(-P))

    rows = []
    for q in PERCENTILES:
        mine = [float(np.percentile(x, q)) for x in (ours, bayes, naive, no_hit)]
        rows.append([f"p{q}", "this run", *mine])
        if published := run.published("lowprob", f"p{q}"):
            rows.append([f"p{q}", "LPE report", published[0], None, published[1], 1.0])
    header = ["statistic", "source", "rollout estimator, relative error", "exact predictor's rollouts",
              "naive Monte Carlo, expected relative SE", "naive P(no hit)"]  # fmt: skip
    columns = zip(P, ours, bayes, naive, no_hit, strict=True)
    each = [
        [i, int(bits.sum()), *map(float, row)]
        for i, (bits, row) in enumerate(zip(made.contexts, columns, strict=True), 1)
    ]
    per_context = Table("lowprob_contexts", ["context", "ones", "P", *header[2:]], each)

    bars, axis = canvas(7, 4.2)
    place = np.arange(len(PERCENTILES))
    kinds = (
        ("rollout estimator", ours, MODEL, "o"),
        ("exact predictor's rollouts", bayes, OTHER, "^"),
        ("naive Monte Carlo (expected SE)", naive, GREY, "x"),
    )
    for i, (name, values, colour, _) in enumerate(kinds):
        drawn = axis.bar(place + 0.27 * (i - 1), np.percentile(values, PERCENTILES), 0.25, color=colour, label=name)
        axis.bar_label(drawn, fmt="{:.2g}", fontsize=8)
    axis.set(yscale="log", xticks=place, xticklabels=[f"p{q}" for q in PERCENTILES], ylabel="relative error")
    axis.set_title(f"Over {CONTEXTS} contexts, {run.samples * LENGTH:,} tokens each")
    axis.margins(y=0.15)
    axis.legend(loc="upper left")

    scatter, axis = canvas(7, 4.2)
    for name, values, colour, mark in kinds:
        axis.scatter(P, values, s=18, color=colour, marker=mark, label=name)
    axis.axhline(1.0, color=EXACT, linewidth=1, linestyle="--", label="as large as the probability itself")
    axis.set(xscale="log", yscale="log", xlabel="true probability of the target", ylabel="relative error",
             title="Error by probability")  # fmt: skip
    axis.legend(loc="center")
    text = (
        f"The probability that one given string of {TARGET} bits, {ONES} of them ones, follows a context of {BITS} "
        f"bits; {run.samples} rollouts of {LENGTH:,} tokens, against naive Monte Carlo with the {tries:,} rollouts of "
        f"{TARGET} tokens that cost as much. The numbers of naive Monte Carlo follow from the contexts drawn alone."
    )
    pictures = [Picture("lowprob_percentiles", bars, "Percentiles over contexts."),
                Picture("lowprob_by_probability", scatter, "One mark a context and method.")]  # fmt: skip
    return Section(text, [Table("lowprob", header, rows), per_context], pictures)
