"""The two figures of the README, drawn from the records, as SVG.

overview   the error of every architecture on every task, as a share of that of who reads nothing
entropy    H_model against H_Bayes by position, with the training horizon marked

Both show one track, that in which most tasks and architectures were run; of equal ones the larger preset. An
architecture stands there with the preset's own settings where it has such a row; the page, which can be asked for more,
shows its best.
"""

from __future__ import annotations

import io
from collections import Counter
from typing import Any

import matplotlib
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from bench.glance import HELD, share_of_nothing
from bench.page import palette
from bench.records import RunRecord
from bench.rows import Group, group, longest, one_row_each
from bench.stats import interval

HUES = ("#0072b2", "#d55e00", "#008a64", "#aa4499", "#a97400", "#3a93c4")  # as on the page
SHAPES = ("o", "s", "^", "D", "v")
TEXT, MUTED, LINE, BAYES = "#16191d", "#5a6470", "#e1e5ea", "#c9d1da"
SIZES = ("paper", "small", "quick", "smoke")
STYLE: Any = {
    "svg.hashsalt": "tunnel-bench", "font.size": 10.5, "axes.edgecolor": LINE, "axes.labelcolor": MUTED,
    "axes.spines.top": False, "axes.spines.right": False, "xtick.color": LINE, "ytick.color": LINE, "text.color": TEXT,
    "xtick.labelcolor": MUTED, "ytick.labelcolor": MUTED, "axes.titlelocation": "left", "axes.titlesize": 11.5,
    "axes.titleweight": "bold", "axes.grid": True, "grid.color": LINE, "grid.linewidth": 0.8, "axes.axisbelow": True,
}  # fmt: skip

Rankings = dict[Group, list[RunRecord]]


def draw(records: list[RunRecord]) -> dict[str, str]:
    """The SVG of each figure by name; none where there is no finished run."""
    good = [record for record in records if record.status == "ok"]
    if not good:
        return {}
    rankings = group(good)
    rows = Counter(name[1:] for name, members in rankings.items() for _ in {r.config["arch"] for r in members})
    track = min(rows, key=lambda t: (-rows[t], SIZES.index(t[0]) if t[0] in SIZES else len(SIZES), t))
    shown = {name: members for name, members in rankings.items() if name[1:] == track}
    with matplotlib.rc_context(STYLE):
        signs = {arch: (HUES[i % len(HUES)], SHAPES[i % len(SHAPES)]) for i, arch in enumerate(palette(good))}
        return {"overview": _svg(_overview(shown, signs)), "entropy": _svg(_entropy(shown, signs))}


def _svg(figure: Figure) -> str:
    image = io.StringIO()
    figure.savefig(image, format="svg", metadata={"Date": None, "Creator": None}, facecolor="white")
    return "\n".join(line.rstrip() for line in image.getvalue().splitlines()) + "\n"


def _overview(shown: Rankings, signs: dict[str, Any]) -> Figure:
    figure = Figure(figsize=(8.4, 1.5 + 1.25 * len(shown)), layout="constrained")
    axis = figure.subplots()
    archs = [arch for arch in signs if any(r.config["arch"] == arch for members in shown.values() for r in members)]
    for y, members in enumerate(shown.values()):
        trained = str(members[0].config["horizon"])
        axis.axhspan(y - 0.4, y + 0.4, color="#f5f5f4", lw=0, zorder=0)
        for arch, (_, same) in one_row_each(members).items():
            hue, shape = signs[arch]
            lane = y + 0.7 * ((archs.index(arch) + 0.5) / len(archs) - 0.5)
            if bounds := interval([share_of_nothing([record], trained) for record in same]):
                axis.plot(bounds, [lane, lane], color=hue, lw=2)
            axis.plot(share_of_nothing(same, trained), lane, shape, color=hue, ms=6, mew=0)
    for at, text in ((HELD, "held"), (1.0, "no better than a constant")):
        axis.axvline(at, color=MUTED, lw=1, ls=(0, (4, 3)))
        axis.annotate(text, (at, 1), (0, 3), textcoords="offset points", color=MUTED, ha="center",
                      fontsize=9.5, xycoords=("data", "axes fraction"))  # fmt: skip
    label = "MAE over the best constant's, or KL over the uniform predictor's, whichever is larger"
    axis.set(xscale="log", xlabel=label, ylim=(len(shown) - 0.5, -0.5))
    axis.xaxis.set_major_formatter(lambda share, _: f"{100 * share:g} %")
    axis.yaxis.grid(False)
    axis.set_yticks(range(len(shown)), [name.task for name in shown], color=TEXT)
    axis.tick_params(axis="y", length=0)
    _legend(figure, {arch: signs[arch] for arch in archs})
    return figure


def _entropy(shown: Rankings, signs: dict[str, Any]) -> Figure:
    """Two tasks at the most, those that go furthest beyond their training first; one architecture for each hue."""

    def reach(members: list[RunRecord]) -> float:
        return max(int(longest([record])) for record in members) / members[0].config["horizon"]

    usual = ("bijection-revisit", "hmm")
    run = {record.config["arch"] for members in shown.values() for record in members}
    told_apart = {signs[arch][0]: arch for arch in reversed(signs) if arch in run}.values()
    shown = {name: [r for r in members if r.config["arch"] in told_apart] for name, members in shown.items()}
    chosen = sorted(
        ((name, some) for name, some in shown.items() if some),
        key=lambda item: (item[0].task not in usual, -reach(item[1]), item[0]),
    )[:2]
    figure = Figure(figsize=(8.4, 3.6), layout="constrained")
    used = {}
    for axis, (name, members) in zip(figure.subplots(1, len(chosen), squeeze=False)[0], chosen, strict=True):
        trained = members[0].config["horizon"]
        rows = {arch: same[0] for arch, (_, same) in one_row_each(members).items()}
        for record in rows.values():  # who reads less was scored on other sequences, with a Bayes of their own
            bayes = record.by_position[longest([record])]["h_bayes"]
            axis.plot(range(1, len(bayes) + 1), bayes, color=BAYES, lw=6, solid_capstyle="round", zorder=1)
        for arch, record in rows.items():
            curve = record.by_position[longest([record])]["h_model"]
            axis.plot(range(1, len(curve) + 1), curve, color=signs[arch][0], lw=1.6, zorder=2)
            used[arch] = signs[arch]
        last = max(int(longest([record])) for record in rows.values())
        if last > trained:
            axis.axvspan(trained + 0.5, last, color=TEXT, alpha=0.05, lw=0)
            axis.annotate("beyond training", (trained + 0.5, 1), (2, 3), xycoords=("data", "axes fraction"),
                          textcoords="offset points", color=MUTED, fontsize=9.5)  # fmt: skip
        axis.set(xlabel="position k", ylabel="entropy, bits", xlim=(1, last))
        axis.set_title(name.task, pad=18)
        axis.xaxis.grid(False)
    _legend(figure, {arch: (*sign[:1], None) for arch, sign in signs.items() if arch in used}, bayes=True)
    return figure


def _legend(figure: Figure, signs: dict[str, Any], bayes: bool = False) -> None:
    handles = [Line2D([], [], color=BAYES, lw=6, label="Bayes")] if bayes else []
    for arch, (hue, shape) in signs.items():
        line = {"lw": 1.6} if shape is None else {"lw": 0, "marker": shape, "ms": 7, "mew": 0}
        handles.append(Line2D([], [], color=hue, label=arch, **line))
    figure.legend(handles=handles, loc="outside lower center", ncols=4 if len(handles) > 6 else 3, frameon=False,
                  labelcolor=TEXT, fontsize=9.5)  # fmt: skip
