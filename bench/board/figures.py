"""The heat map of the leaderboard, as SVG, for a light and a dark page.

Architectures by tasks; the colour is the error as a share of its baseline's, on a log scale.
"""

from __future__ import annotations

import io
import re
from typing import Any

import matplotlib
import numpy as np
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, LogNorm
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from bench.board.overview import Board, Overview
from bench.board.palette import HIGH, INKS, LOW, RAMP

CELL = 0.6  # inches: a page of 830 pixels shows the letters of a narrow figure larger
STYLE: Any = {"svg.hashsalt": "tunnel-bench", "font.size": 10.5, "axes.titlelocation": "left", "axes.titlesize": 11.5,
              "axes.titleweight": "bold", "axes.spines.top": False, "axes.spines.right": False}  # fmt: skip


def draw(board: Board) -> dict[str, str]:
    """The SVG of each figure by file name; empty if no run has finished."""
    overview = board.headline
    if overview is None:
        return {}
    found = {}
    for theme, suffix in (("light", ""), ("dark", "-dark")):
        with matplotlib.rc_context({**STYLE, **inks(theme)}):
            found[f"heatmap{suffix}.svg"] = svg(_heatmap(overview, theme))
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
