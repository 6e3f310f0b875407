"""What happens beyond the length that was trained on?

From the record: the error at each prediction of the longest evaluation, whose first K are as long as in training. The
jump is the error at K + 1 over that at K: a model that has learned a rule for every position shows none, one that has
learned a table of positions does. The means of the last and of the next `WINDOW` predictions say it with less noise.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from bench.report.diagnostics.base import (
    EXACT,
    GREY,
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

WINDOW = 5


class Reach(NamedTuple):
    trained: int
    longest: int
    error: np.ndarray  # entropy error by prediction, bits
    kl: np.ndarray
    h_model: np.ndarray
    h_bayes: np.ndarray

    @property
    def jump(self) -> float:
        return float(self.error[self.trained] / self.error[self.trained - 1])


def measure(run: Run) -> Reach:
    trained = run.config.horizon
    reached = [int(k) for k, columns in run.record.by_position.items() if columns is not None]
    if max(reached) <= trained:
        limit = run.task.max_horizon()
        why = f"the task ends at K = {limit}" if limit == trained else "the run was not evaluated beyond its training"
        if getattr(run.model, "max_length", None) is not None:
            why = "the model cannot read sequences longer than those of its training"
        raise NotAvailable(why)
    columns = run.record.by_position[str(max(reached))] or {}
    error, kl, model, bayes = (np.array(columns[name]) for name in ("entropy_mae", "kl", "h_model", "h_bayes"))
    return Reach(trained, max(reached), error, kl, model, bayes)


@section("Does it go on beyond the length it was trained on?")
def beyond(run: Run) -> Section:
    r = measure(run)
    K, x = r.trained, np.arange(1, r.longest + 1)
    figure, (left, right) = canvas(11, 3.6, 1, 2)
    left.plot(x[:K], r.error[:K], color=MODEL, label="trained length")
    left.plot(x[K - 1 :], r.error[K - 1 :], color=OTHER, label="beyond it")
    left.scatter([K, K + 1], r.error[[K - 1, K]], color=[MODEL, OTHER], s=22, zorder=3)
    left.set(xlabel="prediction", ylabel="|H model - H Bayes| (bits)", ylim=(0, None))
    left.set_title(f"Entropy error: K + 1 over K is {r.jump:.2f}")
    right.plot(x, r.h_bayes, color=EXACT, label="exact posterior")
    right.plot(x, r.h_model, color=MODEL, linestyle="--", label="model")
    right.set(xlabel="prediction", ylabel="mean entropy (bits)", title="Mean entropy")
    for axis in (left, right):
        axis.axvline(K + 0.5, color=GREY, linestyle=":", linewidth=1)
        axis.legend(fontsize=8)
    rows = []
    for name, of in (("entropy MAE (bits)", r.error), ("KL (bits)", r.kl)):
        before, after = of[max(0, K - WINDOW) : K].mean(), of[K : K + WINDOW].mean()
        rows.append(
            [name, of[K - 1], of[K], of[K] / of[K - 1], before, after, after / before, of[-1], of[-1] / of[K - 1]]
        )
    header = ["error", f"at {K}", f"at {K + 1}", "jump", f"last {WINDOW}", f"next {WINDOW}", "ratio"]
    header += [f"at {r.longest}", f"at {r.longest} over {K}"]
    text = (
        f"Errors at single predictions, mean over {run.config.sequences:,} sequences; training ended at K = {K}. "
        "A jump of 1 is none."
    )
    return Section(text, [Table("length", header, rows)], [Picture("length", figure, "Error and entropy by position.")])
