"""The ladder of recall-64: the error against the number of stored pairs, and against the bytes of state.

A rung is one architecture at one number of pairs, its seeds averaged. The error is the KL: the exact answer is a point
mass, so the KL is the log loss of the right value, and a confident wrong answer does not hide. State bytes are those
that a record holds: what the model carries from one position to the next at the end of a training sequence.

In: typed records. Out: `ladder.svg` and `ladder-dark.svg`, for a light and a dark page.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from bench.board.figures import STYLE, inks, svg
from bench.board.palette import HUES, INKS, order_archs
from bench.board.ranking import Ranking, Track
from bench.board.rows import make_rankings
from bench.records import RunRecord
from models.base import ARCHS

TASK = "recall-64"
SHAPES = ("o", "s", "^", "D", "v")
LEAST_BITS = 1e-5  # smaller errors are drawn here: a log scale has no zero
SMALL_STATE = 256  # bytes: below, the axis is linear, so that a model without state has a place


class Rung(NamedTuple):
    arch: str
    pairs: int
    kl_bits: float
    state_bytes: int | None  # None for an architecture that does not say


@dataclass(frozen=True)
class Ladder:
    track: Track
    rungs: tuple[Rung, ...]  # by architecture, then from few pairs to many
    uniform_bits: float  # the KL of the uniform predictor

    @property
    def archs(self) -> list[str]:
        return order_archs({rung.arch for rung in self.rungs})

    def of(self, arch: str) -> list[Rung]:
        return [rung for rung in self.rungs if rung.arch == arch]


def make_ladders(records: Sequence[RunRecord]) -> list[Ladder]:
    """One ladder for each track, the longest first. Only `pairs` may differ from the preset's task."""
    tracks: dict[Track, list[Ranking]] = defaultdict(list)
    for ranking in make_rankings([record for record in records if record.ok and record.config.task == TASK]):
        if {name for name, _ in ranking.group.unusual} <= {"pairs"}:
            tracks[ranking.group.track].append(ranking)
    return sorted((_make_ladder(*item) for item in tracks.items()), key=lambda x: (-len(x.rungs), x.track))


def _make_ladder(track: Track, rankings: list[Ranking]) -> Ladder:
    rungs = [
        Rung(arch, row.config.make_task().pairs, row.scores.kl, row.records[0].state_bytes)  # type: ignore[attr-defined]
        for ranking in rankings
        for arch, row in ranking.one_row_each().items()
    ]
    return Ladder(track, tuple(sorted(rungs, key=lambda r: r[:2])), rankings[0].reference("uniform").kl)


def draw(records: Sequence[RunRecord]) -> dict[str, str]:
    """The SVG of each theme by file name; empty if no run has finished."""
    ladders = make_ladders(records)
    if not ladders:
        return {}
    found = {}
    for theme, suffix in (("light", ""), ("dark", "-dark")):
        with matplotlib.rc_context({**STYLE, **inks(theme)}):
            found[f"ladder{suffix}.svg"] = svg(_figure(ladders[0], theme))
    return found


def _figure(ladder: Ladder, theme: str) -> Figure:
    ink = INKS[theme]
    figure = Figure(figsize=(8.4, 4.0), layout="constrained")
    by_pairs, by_state = figure.subplots(1, 2, sharey=True)
    for arch in ladder.archs:
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
    handles += [Line2D([], [], label=arch, **_sign(arch, theme)) for arch in ladder.archs]
    figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False, fontsize=9.5)
    return figure


def _line(axis: Axes, points: list[tuple[int, float]], arch: str, theme: str) -> None:
    if points:
        xs, errors = zip(*points, strict=True)
        axis.plot(xs, [max(error, LEAST_BITS) for error in errors], zorder=2, **_sign(arch, theme))


def _sign(arch: str, theme: str) -> dict[str, Any]:
    """An architecture's hue and shape, the same whatever else is drawn."""
    place, hues = order_archs({*ARCHS.names(), arch}).index(arch), HUES[theme]
    shape = SHAPES[place // len(hues) % len(SHAPES)]
    return {"color": hues[place % len(hues)], "marker": shape, "ms": 5, "lw": 1.6}
