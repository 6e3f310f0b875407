"""The figures of the leaderboard, as SVG, for a light and a dark page.

In: the board, which has every number. The heat map has architectures by tasks; the colour is the error as a share of
its baseline's, on a log scale. The ladder (ladder.py) and the pools (pools.py) belong to a task's page.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, LogNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from bench.board.ladder import Ladder
from bench.board.overview import Board, Overview
from bench.board.palette import HIGH, HUES, INKS, LOW, RAMP, SHAPES, order_archs
from bench.board.pools import PLACES, Curves
from models.base import ARCHS

MOST_ARCHS = 4  # of pools, as many as fit beside each other
LEAST_BITS = 1e-5  # smaller errors of a ladder are drawn here: a log scale has no zero
SMALL_STATE = 256  # bytes: below, the axis is linear, so that a model without state has a place
CELL = 0.6  # inches: a page of 830 pixels shows the letters of a narrow figure larger
STYLE: Any = {"svg.hashsalt": "tunnel-bench", "font.size": 10.5, "axes.titlelocation": "left", "axes.titlesize": 11.5,
              "axes.titleweight": "bold", "axes.spines.top": False, "axes.spines.right": False}  # fmt: skip


def draw(board: Board) -> dict[str, str]:
    """The SVG of each figure by file name: of the headline track, the longest ladder, and each task's fullest pools."""
    drawings: dict[str, Callable[[str], Figure]] = {}
    if board.headline is not None:
        drawings["heatmap"] = partial(_heatmap, board.headline)
    if board.ladders:
        drawings["ladder"] = partial(_ladder, board.ladders[0])
    for curves in board.pools:
        drawings.setdefault(f"pool-{curves.task}", partial(_pools, curves))
    found = {}
    for name, figure in drawings.items():
        for theme, suffix in (("light", ""), ("dark", "-dark")):
            with matplotlib.rc_context({**STYLE, **inks(theme)}):
                found[f"{name}{suffix}.svg"] = svg(figure(theme))
    return found


def inks(theme: str) -> Any:
    ink = INKS[theme]
    muted = dict.fromkeys(("axes.labelcolor", "xtick.labelcolor", "ytick.labelcolor"), ink["muted"])
    lines = dict.fromkeys(("axes.edgecolor", "xtick.color", "ytick.color", "grid.color"), ink["line"])
    return {**muted, **lines, "text.color": ink["text"], "figure.facecolor": ink["back"], "axes.facecolor": ink["back"]}


def svg(figure: Figure) -> str:
    image = io.StringIO()
    figure.savefig(image, format="svg", metadata={"Date": None, "Creator": None})
    return "\n".join(line.rstrip() for line in image.getvalue().splitlines()) + "\n"


def _heatmap(overview: Overview, theme: str) -> Figure:
    """One cell for each architecture and task, outlined where seeds disagree or where there is only one."""
    ink = INKS[theme]
    ramp, scale = LinearSegmentedColormap.from_list("share", RAMP[theme]), LogNorm(LOW, HIGH, clip=True)
    rows, columns = len(overview.archs), len(overview.tasks)
    figure = Figure(figsize=(2.1 + CELL * columns, 1.9 + 0.27 * rows), layout="constrained")
    axis = figure.subplots()
    for (arch, task), cell in overview.cells.items():
        x, y = overview.tasks.index(task), overview.archs.index(arch)
        colour = ramp(scale(cell.share))
        axis.add_patch(Rectangle((x + 0.02, y + 0.04), 0.96, 0.92, facecolor=colour, lw=0))
        luminance = float(np.dot(colour[:3], (0.299, 0.587, 0.114)))
        contrast = "#111111" if luminance > 0.5 else "#ffffff"
        if not cell.seeds_agree:
            axis.add_patch(Rectangle((x + 0.05, y + 0.1), 0.9, 0.8, fill=False, ec=contrast, lw=1, ls=(0, (3, 2))))
        dagger = "" if cell.row.compares else "†"
        text = short(cell.row.scores.error) + dagger
        axis.text(x + 0.5, y + 0.5, text, ha="center", va="center", fontsize=9.5, color=contrast)
    axis.set(xlim=(0, columns), ylim=(rows, 0))
    axis.set_yticks(np.arange(rows) + 0.5, overview.archs, color=ink["text"])
    tilted: Any = {"rotation": 35, "ha": "left", "rotation_mode": "anchor"}
    axis.set_xticks(np.arange(columns) + 0.5, overview.tasks, color=ink["text"], **tilted)
    axis.xaxis.tick_top()
    axis.tick_params(length=0)
    for spine in axis.spines.values():
        spine.set_visible(False)
    bar = figure.colorbar(
        ScalarMappable(scale, ramp), ax=axis, orientation="horizontal", aspect=50, pad=0.02, fraction=0.03
    )
    bar.set_ticks([0.001, 0.01, 0.1, 1.0], labels=["≤ 0.1 %", "1 %", "10 %", "≥ 100 %"])
    bar.ax.minorticks_off()
    bar.outline.set_visible(False)
    note = "dashed: seeds disagree, or one seed" + ("; †: not ranked" if _has_other_settings(overview) else "")
    baselines = " or ".join(dict.fromkeys(f"{name}'s" for name in overview.baselines.values()))
    bar.set_label(f"error as a share of {baselines}; the number is the error in bits\n{note}", fontsize=9)
    return figure


def short(value: float) -> str:
    """Two digits, so that cells are narrow and their letters large."""
    if value >= 0.001:
        return f"{value:.2g}"
    return re.sub(r"\.0(?=e)|(?<=e-)0", "", f"{value:.1e}") if value >= 1e-9 else "0"


def _has_other_settings(overview: Overview) -> bool:
    return any(not cell.row.compares for cell in overview.cells.values())


def _ladder(ladder: Ladder, theme: str) -> Figure:
    """Error against pairs, and against state."""
    ink, archs = INKS[theme], order_archs(ladder.archs)
    figure = Figure(figsize=(8.4, 4.0), layout="constrained")
    by_pairs, by_state = figure.subplots(1, 2, sharey=True)
    for arch in archs:
        rungs = ladder.of(arch)
        _line(by_pairs, [(r.pairs, r.kl_bits) for r in rungs], arch, theme)
        _line(by_state, [(r.state_bytes, r.kl_bits) for r in rungs if r.state_bytes is not None], arch, theme)
    for axis in (by_pairs, by_state):
        axis.axhline(ladder.uniform_bits, color=ink["bayes"], lw=2, zorder=1)
        axis.set_yscale("log")
        axis.grid(True, lw=0.8)
        axis.set_axisbelow(True)
    pairs = sorted({rung.pairs for rung in ladder.rungs})
    by_pairs.set_xscale("log", base=2)
    by_pairs.set_xticks(pairs, [str(n) for n in pairs])
    by_pairs.minorticks_off()
    by_pairs.set(xlabel="pairs stored", ylabel="KL, bits")
    by_pairs.set_title("error against pairs")
    by_state.set_xscale("symlog", linthresh=SMALL_STATE)
    by_state.set_xlim(left=-SMALL_STATE / 4)  # room for the mark at 0
    by_state.set(xlabel="state, bytes")
    by_state.set_title("against state; a line joins the rungs")
    handles = [Line2D([], [], color=ink["bayes"], lw=2, label="uniform")]
    handles += [Line2D([], [], label=arch, **_sign(arch, theme)) for arch in archs]
    figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False, fontsize=9.5)
    return figure


def _line(axis: Axes, points: list[tuple[int, float]], arch: str, theme: str) -> None:
    if points:
        xs, errors = zip(*points, strict=True)
        axis.plot(xs, [max(error, LEAST_BITS) for error in errors], zorder=2, **_sign(arch, theme))


def _sign(arch: str, theme: str) -> dict[str, Any]:
    """An architecture's hue and shape, the same whatever else is drawn."""
    place, hues = order_archs({*ARCHS.names(), arch}).index(arch), HUES[theme]
    shape = tuple(SHAPES)[place % len(SHAPES)]
    return {"color": hues[place % len(hues)], "marker": shape, "ms": 5, "lw": 1.6}


def _pools(curves: Curves, theme: str) -> Figure:
    """A column for each architecture, a row for each place; the grey line is the KL between the two exact answers."""
    archs = order_archs(curves.archs)[:MOST_ARCHS]
    ink, (memorised, inferred) = INKS[theme], HUES[theme][:2]
    figure = Figure(figsize=(2.6 + 2.4 * (len(archs) - 1), 4.8), layout="constrained")
    axes = figure.subplots(len(PLACES), len(archs), sharex=True, sharey="row", squeeze=False)
    for row, place in zip(axes, PLACES, strict=True):
        row[0].set_ylabel(f"{place}\nKL, bits")
        for axis, arch in zip(row, archs, strict=True):
            points = curves.points.get((arch, place), ())
            pools = [point.pool for point in points]
            axis.plot(pools, [p.between for p in points], color=ink["bayes"], lw=5, zorder=1)
            axis.plot(pools, [p.to_pool for p in points], color=memorised, marker="o", ms=4, lw=1.6)
            axis.plot(pools, [p.to_full for p in points], color=inferred, marker="s", ms=4, lw=1.6)
            axis.set_xscale("log", base=2)
            axis.set_yscale("log")
            axis.grid(True, lw=0.8)
            axis.set_axisbelow(True)
    for axis, arch in zip(axes[0], archs, strict=True):
        axis.set_title(arch)
    for axis in axes[-1]:
        axis.set_xlabel("laws in the pool, M")
    handles = [
        Line2D([], [], color=memorised, marker="o", ms=4, label="to Bayes with the pool as prior"),
        Line2D([], [], color=inferred, marker="s", ms=4, label="to Bayes with the full prior"),
        Line2D([], [], color=ink["bayes"], lw=5, label="between the two"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False, fontsize=9.5)
    return figure
