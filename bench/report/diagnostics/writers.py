"""Who writes the frame?

A part is a head, or a branch where there are fewer than four heads. What it writes is what its branch loses with it
(its length over that of the stream, root mean square over positions), and the part of that in the frame of hypotheses.
Its cost is the rise of the entropy error without it, before the loss horizon. If those who write the frame carry the
answer, the two rank alike: Spearman's rho over the parts, with a bootstrap interval over the parts and a permutation
p-value. A part that writes much writes much of the frame, too. The control is the same for the whole write, and the
partial correlation: of frame and cost once the ranks of the whole write are taken out of both.
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
from bench.report.diagnostics.frame import trained
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
    partial: Correlation  # of the frame, given the whole write
    concentration: float  # the largest cost over the next
    half: int  # parts that cost more than half of the largest


def spearman(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Along the last axis; 0 where one of them does not vary."""
    a, b = (ranks - ranks.mean(-1, keepdims=True) for ranks in (rankdata(x, axis=-1), rankdata(y, axis=-1)))
    norms = np.sqrt((a * a).sum(-1) * (b * b).sum(-1))
    return (a * b).sum(-1) / np.where(norms > 0, norms, np.inf)


def partial(x: np.ndarray, y: np.ndarray, given: np.ndarray) -> np.ndarray:
    """Spearman of x and y without what both share with a third; 0 where nothing else is left."""
    xy, xz, yz = spearman(x, y), spearman(x, given), spearman(y, given)
    rest = (1 - xz**2) * (1 - yz**2)
    return (xy - xz * yz) / np.sqrt(np.where(rest > 1e-9, rest, np.inf))


def correlate(x: np.ndarray, y: np.ndarray, rng: np.random.Generator, given: np.ndarray | None = None) -> Correlation:
    """Of x and y; with a third, their partial correlation given that."""
    measure, columns = (spearman, (x, y)) if given is None else (partial, (x, y, given))
    rho = float(measure(*columns))
    drawn = rng.integers(len(x), size=(DRAWS, len(x)))
    low, high = np.quantile(measure(*(column[drawn] for column in columns)), [0.025, 0.975])
    shuffled = rng.permuted(np.tile(y, (DRAWS, 1)), axis=1)
    null = measure(*(shuffled if column is y else np.tile(column, (DRAWS, 1)) for column in columns))
    p = (1 + int((abs(null) >= abs(rho) - 1e-12).sum())) / (1 + DRAWS)
    return Correlation(rho, float(low), float(high), p)


@lru_cache(maxsize=1)
def measure(run: Run) -> Writers:
    found = ablation.measure(run)
    scores: dict[tuple[int, int | str], Score] = {(layer, head): of for (layer, head), of in found.heads.items()}
    if not (are_heads := len(scores) >= LEAST):
        layers = found.layers.items()
        scores = {(i, name): of for i, branches in layers for name, of in branches.items() if name != "whole"}
    parts = []
    reads = slice(trained(run).stop or found.trained)
    intact = found.intact.entropy_mae[reads].mean().item()
    for (layer, which), of in scores.items():
        write = found.writes.get((layer, which))
        if write is None or write.in_frame is None:
            continue
        name = f"layer {layer}, {'head ' if isinstance(which, int) else ''}{which}"
        cost = of.entropy_mae[reads].mean().item() - intact
        parts.append(Part(name, write.in_frame, write.size, cost, found.factor(of)))
    if not parts:
        raise NotAvailable("the frame lies in the embedding, and the residual stream is another space")
    if len(parts) < LEAST:
        raise NotAvailable(f"a rank correlation takes at least {LEAST} parts, and there are {len(parts)}")
    rng = np.random.default_rng(0)
    in_frame, size, costs = (np.array([getattr(part, of) for part in parts]) for of in ("in_frame", "size", "cost"))
    second, top = np.sort(costs)[-2:].tolist()
    frame, whole = correlate(in_frame, costs, rng), correlate(size, costs, rng)
    given = correlate(in_frame, costs, rng, size)
    return Writers(
        parts, are_heads, frame, whole, given, top / max(second, ablation.LEAST), int((costs > top / 2).sum())
    )


@section("Who writes the frame?", taps="*resid")
def writers(run: Run) -> Section:
    found = measure(run)
    ordered = sorted(found.parts, key=lambda part: -part.cost)
    rows = [[*part] for part in ordered]
    kinds = (("in the frame", found.frame), ("whole", found.whole), ("in the frame, given the whole", found.partial))
    rank = [[name, *correlation] for name, correlation in kinds]
    figure, axis = canvas(5.2, 3.8)
    draw(axis, found)
    text = (
        f"{len(rows)} parts. The size of a part's write into the frame against what its removal costs: Spearman "
        f"{found.frame.rho:.2f} ({found.frame.low:.2f} to {found.frame.high:.2f}); of its whole write "
        f"{found.whole.rho:.2f} ({found.whole.low:.2f} to {found.whole.high:.2f}); of the frame given the whole write "
        f"{found.partial.rho:.2f} ({found.partial.low:.2f} to {found.partial.high:.2f}). The largest cost is "
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
    axis.set(yscale="log", xlabel="write into the frame, over the stream's length")
    axis.set_ylabel("cost of its removal (bits; at least 1e-5)")
    given = found.partial
    axis.set_title(f"rho {found.frame.rho:.2f}; given the whole write {given.rho:.2f} ({given.low:.2f} to "
                   f"{given.high:.2f})", fontsize=10)  # fmt: skip
    axis.grid(color=GREY, alpha=0.2)
    axis.figure.colorbar(marks, ax=axis, label="layer", ticks=sorted(set(layers)))
