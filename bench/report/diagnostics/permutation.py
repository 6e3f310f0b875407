"""Does the order of the bits matter? The exact answer depends on how many ones there were, not on when.

For every number of ones H among N bits, many orderings are drawn. Reported: the standard deviation and the range of
the predictions over orderings, and the cosine similarity of the last residual vectors of two orderings: among those
that end in the same bit, between those that do not, and between contexts that differ in H.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from bench.report.diagnostics.base import EXACT, MODEL, OTHER, Picture, Run, Section, Table, canvas, section
from bench.report.diagnostics.predictive import coins, p_one
from models.taps import record

BITS, ORDERINGS = 32, 64
ONES = (4, 8, 12, 16, 20, 24, 28)


def shuffle(ones: int, rng: torch.Generator) -> Tensor:
    """Orderings of the same bits, [ORDERINGS, BITS], sorted by their last bit."""
    order = torch.rand(ORDERINGS, BITS, generator=rng, dtype=torch.float64).argsort(1)
    bits = (order < ones).long()
    return bits[bits[:, -1].argsort(stable=True)]


def cosines(x_XD: Tensor, y_YD: Tensor) -> Tensor:
    unit = torch.nn.functional.normalize
    return unit(x_XD, dim=1) @ unit(y_YD, dim=1).T


@section("Does the order of the bits matter?", tasks=("bernoulli",), taps="*resid")
def invariance(run: Run) -> Section:
    task = coins(run)
    run.require_length(BITS + task.bos)
    rng = run.rng("permutation")
    rows, residuals, predictions, endings = [], {}, {}, {}
    for ones in ONES:
        bits = shuffle(ones, rng)
        with record(run.model, "*resid") as seen:
            p = p_one(run.model, task, bits)[:, -1].numpy()
        last = list(seen.values())[-1][:, -1].double()
        ended = bits[:, -1].bool()
        parts = (last[ended], last[~ended])
        alike = torch.cat([cosines(part, part)[~torch.eye(len(part), dtype=torch.bool)] for part in parts])
        exact = float(task.predict(torch.tensor(ones), torch.tensor(BITS)))
        by_last = [float(p[chosen.numpy()].mean()) for chosen in (ended, ~ended)]
        spread = [float(p.std()), float(np.ptp(p))]
        rows.append(
            [ones, exact, float(p.mean()), *spread, *by_last, alike.mean().item(), cosines(*parts).mean().item()]
        )
        residuals[ones], predictions[ones], endings[ones] = last, p, bits[:, -1].numpy()
    far = cosines(residuals[ONES[0]], residuals[ONES[-1]]).mean().item()

    figure, (left, right) = canvas(10.5, 4.4, 1, 2)
    left.axhline(0, color=EXACT, linewidth=1, label="Bayes")
    for bit, colour, shift in ((0, MODEL, -0.4), (1, OTHER, 0.4)):
        for ones, row in zip(ONES, rows, strict=True):
            error = predictions[ones][endings[ones] == bit] - row[1]
            left.vlines(ones + shift, error.min(), error.max(), color=colour, linewidth=1)
            left.plot(ones + shift, error.mean(), "o", color=colour, markersize=4,
                      label=f"last bit {bit}: mean and range" if ones == ONES[0] else None)  # fmt: skip
    left.set(xlabel=f"ones among {BITS} bits", ylabel="model - Bayes, P(next = 1)", title="Predictions over orderings")
    left.legend()
    middle = ONES[len(ONES) // 2]
    image = right.imshow(cosines(residuals[middle], residuals[middle]).numpy(), cmap="viridis", vmin=-1, vmax=1)
    right.set(xlabel="ordering, sorted by its last bit", ylabel="ordering, sorted by its last bit",
              title=f"Residual cosine similarity, {middle} ones of {BITS}")  # fmt: skip
    figure.colorbar(image, ax=right, label="cosine similarity")
    header = ["ones", "Bayes", "model mean", "standard deviation", "range", "mean, last bit 1", "mean, last bit 0",
              "cosine, same last bit", "cosine, other last bit"]  # fmt: skip
    text = (
        f"{ORDERINGS} orderings of {BITS} bits for each number of ones. Their predictions spread by "
        f"{np.mean([row[3] for row in rows]):.2g} on average (standard deviation). Residuals with {ONES[0]} and with "
        f"{ONES[-1]} ones have a mean cosine of {far:.3f}."
    )
    return Section(
        text, [Table("permutation", header, rows)], [Picture("permutation", figure, "Equal counts, many orders.")]
    )
