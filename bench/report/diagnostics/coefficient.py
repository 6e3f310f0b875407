"""Is what attention writes linear in the share of ones?

z of a head is its mix of values. Where a head is one number wide, as in the bottlenecked model, z is plotted as it is;
wider ones are shown along their first principal component. The fit is scipy.stats.linregress of z on H/N, over all
contexts and separately by the bit just read, which chooses the query.
"""

from __future__ import annotations

import numpy as np
import torch
from scipy.stats import linregress

from bench.report.diagnostics.base import EXACT, MODEL, OTHER, Picture, Run, Section, Table, canvas, section
from bench.report.diagnostics.predictive import coins, p_one
from models.taps import record
from tasks.bernoulli import draw_bits

SEQUENCES, BITS = 600, 64


def first_component(z_Bd: np.ndarray) -> np.ndarray:
    """z itself if it is one number, else its projection on the direction of largest variance."""
    if z_Bd.shape[1] == 1:
        return z_Bd[:, 0]
    centred = z_Bd - z_Bd.mean(0)
    return np.asarray(centred @ np.linalg.svd(centred, full_matrices=False)[2][0])


@section("Is attention linear in the share of ones?", tasks=("bernoulli",), taps="*attn.z")
def linearity(run: Run) -> Section:
    task = coins(run)
    length = min(BITS, (getattr(run.model, "max_length", None) or BITS + task.bos) - task.bos)
    rng = run.rng("coefficient")
    bits = draw_bits(task.draw_p(SEQUENCES, rng), length, rng)
    with record(run.model, "*attn.z") as seen:
        parts = [
            (p_one(run.model, task, part), {k: v[:, -1].double() for k, v in seen.items()})[1]
            for part in bits.split(256)
        ]
    ratio, last = bits.double().mean(1).numpy(), bits[:, -1].numpy().astype(bool)
    heads = [
        (name.removesuffix(".z"), h, first_component(torch.cat([part[name] for part in parts])[:, h].numpy()))
        for name, z in parts[0].items()
        for h in range(z.shape[1])
    ]
    figure, axes = canvas(
        3.6 * min(3, len(heads)) + 1, 3.2 * -(-len(heads) // 3), -(-len(heads) // 3), min(3, len(heads)), squeeze=False
    )
    rows = []
    for axis, (name, head, z) in zip(axes.flat[: len(heads)], heads, strict=True):
        fit = linregress(ratio, z)
        split = [linregress(ratio[chosen], z[chosen]).rvalue ** 2 for chosen in (~last, last)]
        rows.append([name, head, fit.slope, fit.intercept, fit.rvalue**2, *split])
        for chosen, colour, bit in ((~last, MODEL, 0), (last, OTHER, 1)):
            axis.scatter(ratio[chosen], z[chosen], s=5, color=colour, alpha=0.6, label=f"last bit {bit}")
        axis.plot([0, 1], [fit.intercept, fit.intercept + fit.slope], color=EXACT, linewidth=1, label="linear fit")
        axis.set(xlabel="share of ones, H/N", ylabel="z", title=f"{name}, head {head}: R² = {fit.rvalue**2:.3f}")
        axis.title.set_fontsize(9)
    for axis in axes.flat[len(heads) :]:
        axis.set_axis_off()
    axes.flat[0].legend(fontsize=8)
    header = ["attention", "head", "slope", "intercept", "R²", "R², last bit 0", "R², last bit 1"]
    width = next(iter(parts[0].values())).shape[-1]
    shown = "z itself" if width == 1 else "the first principal component of z"
    text = f"{SEQUENCES} contexts of {length} bits; {shown} at the last position."
    return Section(
        text, [Table("coefficient", header, rows)], [Picture("coefficient", figure, "Attention output against H/N.")]
    )
