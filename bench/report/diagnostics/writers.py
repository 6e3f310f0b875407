"""Who writes the frame?

A part is a head, or a branch where there are fewer than four heads. What it writes is what its branch loses with it
(root mean square length over positions), and the part of that in the frame of hypotheses. Its cost is the rise of the
entropy error without it. If those who write the frame carry the answer, the two rank alike: Spearman's rho over the
parts, with a bootstrap interval over the parts and a permutation p-value. The same for the whole write, as the control.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import rankdata

from bench.report.diagnostics import ablation
from bench.report.diagnostics.base import (
    GREY,
    NotAvailable,
    Picture,
    Run,
    Section,
    Table,
    canvas,
    section,
)
from bench.run.score import Score

LEAST, DRAWS = 4, 2000


class Part(NamedTuple):
    name: str
    in_frame: float
    size: float
    cost: float  # bits of entropy error
    factor: float


class Correlation(NamedTuple):
    rho: float
    low: float  # 95 % interval
    high: float
    p: float


class Writers(NamedTuple):
    parts: list[Part]
    are_heads: bool  # or branches
    frame: Correlation
    whole: Correlation
    concentration: float  # the largest cost over the next
    half: int  # parts that cost more than half of the largest


def spearman(x: np.ndarray, y: np.ndarray) -> float:
    a, b = rankdata(x), rankdata(y)
    return float(np.corrcoef(a, b)[0, 1]) if np.ptp(a) > 0 and np.ptp(b) > 0 else 0.0


def correlate(x: np.ndarray, y: np.ndarray, rng: np.random.Generator) -> Correlation:
    rho = spearman(x, y)
    draws = [rng.integers(len(x), size=len(x)) for _ in range(DRAWS)]
    low, high = np.quantile([spearman(x[d], y[d]) for d in draws], [0.025, 0.975])
    shuffled = [spearman(x, rng.permutation(y)) for _ in range(DRAWS)]
    p = (1 + sum(abs(r) >= abs(rho) - 1e-12 for r in shuffled)) / (1 + DRAWS)
    return Correlation(rho, float(low), float(high), float(p))


@lru_cache(maxsize=1)
def measure(run: Run) -> Writers:
    found = ablation.measure(run)
    scores: dict[tuple[int, int | str], Score] = {(layer, head): of for (layer, head), of in found.heads.items()}
    if not (are_heads := len(scores) >= LEAST):
        layers = found.layers.items()
        scores = {(i, name): of for i, branches in layers for name, of in branches.items() if name != "whole"}
    parts = []
    intact = found.intact.entropy_mae[: found.trained].mean().item()
    for (layer, which), of in scores.items():
        write = found.writes.get((layer, which))
        if write is None or write.in_frame is None:
            continue
        name = f"layer {layer}, {'head ' if isinstance(which, int) else ''}{which}"
        cost = of.entropy_mae[: found.trained].mean().item() - intact
        parts.append(Part(name, write.in_frame, write.size, cost, found.factor(of)))
    if not parts:
        raise NotAvailable("the frame lies in the embedding, and the residual stream is another space")
    if len(parts) < LEAST:
        raise NotAvailable(f"a rank correlation takes at least {LEAST} parts, and there are {len(parts)}")
    rng = np.random.default_rng(0)
    in_frame, size, costs = (np.array([getattr(part, of) for part in parts]) for of in ("in_frame", "size", "cost"))
    second, top = np.sort(costs)[-2:].tolist()
    frame, whole = correlate(in_frame, costs, rng), correlate(size, costs, rng)
    return Writers(parts, are_heads, frame, whole, top / max(second, ablation.LEAST), int((costs > top / 2).sum()))


@section("Who writes the frame?", taps="*resid")
def writers(run: Run) -> Section:
    found = measure(run)
    ordered = sorted(found.parts, key=lambda part: -part.cost)
    rows = [[*part] for part in ordered]
    rank = [[name, *correlation] for name, correlation in (("in the frame", found.frame), ("whole", found.whole))]
    figure, axis = canvas(5.2, 3.8)
    draw(axis, found)
    text = (
        f"{len(rows)} parts. The size of a part's write into the frame against what its removal costs: Spearman "
        f"{found.frame.rho:.2f} ({found.frame.low:.2f} to {found.frame.high:.2f}); of its whole write "
        f"{found.whole.rho:.2f} ({found.whole.low:.2f} to {found.whole.high:.2f}). The largest cost is "
        f"{found.concentration:.3g} times the next, and {found.half} parts cost more than half of it."
    )
    tables = [
        Table("writers", ["part", "write in the frame", "whole write", "cost (bits)", "factor"], rows),
        Table(
            "writers_heads",
            ["parts", "number", "largest over next", "above half"],
            [["heads" if found.are_heads else "branches", len(rows), found.concentration, found.half]],
        ),
        Table("writers_rank", ["write", "Spearman with cost", "low", "high", "p"], rank),
    ]
    return Section(text, tables, [Picture("writers", figure, "What each part writes into the frame, and its cost.")])


def draw(axis: Any, found: Writers) -> None:
    layers = [int(part.name.split(",")[0].removeprefix("layer ")) for part in found.parts]
    costs = [max(part.cost, 1e-5) for part in found.parts]
    marks = axis.scatter([part.in_frame for part in found.parts], costs, c=layers, cmap="viridis", s=26, zorder=3)
    axis.set(yscale="log", xlabel="write into the frame (length)", ylabel="cost of its removal (bits)")
    axis.set_title(f"rho {found.frame.rho:.2f} ({found.frame.low:.2f} to {found.frame.high:.2f})", fontsize=10)
    axis.grid(color=GREY, alpha=0.2)
    axis.figure.colorbar(marks, ax=axis, label="layer", ticks=sorted(set(layers)))
