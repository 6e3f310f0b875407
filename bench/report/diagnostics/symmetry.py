"""Is a head treated like a tail? With a = b the exact P(1 | x) + P(1 | not x) is 1: by how much is the model's not?"""

from __future__ import annotations

import numpy as np

from bench.diagnostics.base import EXACT, MODEL, NotAvailable, Picture, Run, Section, Table, canvas, section
from bench.diagnostics.predictive import coins, p_one
from tasks.bernoulli import draw_bits

SEQUENCES, LENGTHS = 500, (1, 4, 16, 32)


@section("Are the two bits treated alike?", tasks=("bernoulli",))
def flips(run: Run) -> Section:
    task = coins(run)
    if task.a != task.b:
        raise NotAvailable(f"the prior Beta({task.a:g}, {task.b:g}) itself is not symmetric")
    run.require_length(max(LENGTHS) + task.bos)
    rng = run.rng("symmetry")
    bits = draw_bits(task.draw_p(SEQUENCES, rng), max(LENGTHS), rng)
    excess = (p_one(run.model, task, bits) + p_one(run.model, task, 1 - bits) - 1).numpy()
    share = bits.cumsum(1).numpy() / np.arange(1, bits.shape[1] + 1)

    figure, axes = canvas(11, 3.4, 1, len(LENGTHS), sharey=True)
    rows = []
    for axis, n in zip(axes, LENGTHS, strict=True):
        e = excess[:, n - 1]
        rows.append([n, float(e.mean()), float(np.abs(e).mean()), float(np.abs(e).max())])
        axis.scatter(share[:, n - 1], e, s=6, color=MODEL, alpha=0.5)
        axis.axhline(0, color=EXACT, linewidth=1)
        axis.set(xlabel="share of ones, H/N", title=f"{n} bit{'s' * (n > 1)}")
    axes[0].set_ylabel("P(1 | x) + P(1 | not x) - 1")
    header = ["bits", "mean", "mean absolute", "largest"]
    text = f"P(1 | x) + P(1 | not x) - 1 on {SEQUENCES} sequences; 0 is exact symmetry (the red line)."
    return Section(text, [Table("symmetry", header, rows)], [Picture("symmetry", figure, "Each mark is a context.")])
