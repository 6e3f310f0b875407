"""What prior does the model behave like?

The Beta(a, b) whose predictive (H + a) / (N + a + b) lies nearest to the model's answers: the minimiser of the mean
KL(model || Beta predictive) over contexts, found by scipy.optimize.minimize in (ln a, ln b). Short contexts show the
prior most clearly: all 2^N of them for N up to 6, each length weighing the same. With BOS the answer to no data at all,
a / (a + b), is asked directly. An exact predictor returns its own a and b.
"""

from __future__ import annotations

from itertools import product

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

from bench.report.diagnostics.base import EXACT, MODEL, Picture, Run, Section, Table, canvas, section
from bench.report.diagnostics.predictive import coins, p_one
from bench.text import plural
from tasks.bernoulli import BOS, draw_bits

SHORT = 6
LONGER = (16, 64)
SEQUENCES = 500


def fit_beta(p: np.ndarray, ones: np.ndarray, seen: np.ndarray, weight: np.ndarray) -> tuple[float, float]:
    def cross_entropy(log_ab: np.ndarray) -> float:
        a, b = np.exp(log_ab)
        q = (ones + a) / (seen + a + b)
        return float(-(weight * (p * np.log(q) + (1 - p) * np.log1p(-q))).sum())

    best = minimize(
        cross_entropy, np.zeros(2), method="Nelder-Mead", options={"xatol": 1e-6, "fatol": 1e-12, "maxiter": 2000}
    )
    a, b = np.exp(best.x)
    return float(a), float(b)


@section("What prior does it behave like?", tasks=("bernoulli",))
def recovery(run: Run) -> Section:
    task = coins(run)
    run.require_length(SHORT + task.bos)
    p, ones, seen, weight = [], [], [], []
    for n in range(1, SHORT + 1):
        bits = torch.tensor(list(product((0, 1), repeat=n)))
        p.append(p_one(run.model, task, bits)[:, -1].numpy())
        ones.append(bits.sum(1).numpy())
        seen.append(np.full(len(bits), n))
        weight.append(np.full(len(bits), 1 / len(bits)))
    nothing = None
    if task.bos:
        with torch.no_grad():
            nothing = run.model(torch.full((1, 1), BOS), torch.empty(1, 1, 0)).double().softmax(-1)[0, -1, 1].item()
        p, ones, seen, weight = (
            [*p, np.array([nothing])],
            [*ones, np.zeros(1)],
            [*seen, np.zeros(1)],
            [*weight, np.ones(1)],
        )
    a, b = fit_beta(*(np.concatenate(parts) for parts in (p, ones, seen, weight)))
    rows: list[list[object]] = [
        [f"contexts of {0 if task.bos else 1}..{SHORT} bits", a, b, a / (a + b), a + b],
        ["the task's own", task.a, task.b, task.a / (task.a + task.b), task.a + task.b],
    ]
    rng = run.rng("prior")
    for n in LONGER:
        reach = getattr(run.model, "max_length", None)
        if reach is None or n + task.bos <= reach:
            bits = draw_bits(task.draw_p(SEQUENCES, rng), n, rng)
            fitted = fit_beta(p_one(run.model, task, bits)[:, -1].numpy(), *_counts(bits))
            rows.insert(-1, [f"contexts of {n} bits", *fitted, fitted[0] / sum(fitted), sum(fitted)])

    figure, axis = canvas(7, 4.2)
    for n in (1, 2, 4, SHORT):
        i, share = n - 1, np.arange(n + 1) / n
        means = [p[i][ones[i] == h].mean() for h in range(n + 1)]
        axis.plot(share, (np.arange(n + 1) + task.a) / (n + task.a + task.b), color=EXACT, linewidth=1,
                  label="Bayes" if n == 1 else None)  # fmt: skip
        axis.plot(
            share,
            means,
            "o--",
            color=MODEL,
            alpha=0.3 + 0.7 * n / SHORT,
            markersize=4,
            label=f"model, {plural(n, 'bit')}",
        )
    axis.set(
        xlabel="share of ones, H/N",
        ylabel="P(next = 1), mean over orders",
        title=f"Behaves like Beta({a:.2f}, {b:.2f})",
    )
    axis.legend()
    said = (
        "There is no BOS, so no question can be asked without data."
        if nothing is None
        else f"With no data it says P(1) = {nothing:.4f}."
    )
    header = ["fitted on", "a", "b", "mean a / (a + b)", "strength a + b"]
    return Section(said, [Table("prior", header, rows)], [Picture("prior", figure, "Short contexts.")])


def _counts(bits: Tensor) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    n = bits.shape[1]
    return bits.sum(1).numpy(), np.full(len(bits), n), np.full(len(bits), 1 / len(bits))
