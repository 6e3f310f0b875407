"""Memorise or infer: how far a model is from each of two exact answers, as its pool of training laws grows.

A run with `pool=M` saw M laws in training. Bayes with the pool as prior is the answer of a predictor that memorised
them, Bayes with the full prior of one that infers. The figure has, for each architecture, the KL to both: on laws of
the pool, and on laws from outside it. Where the two lines cross, the model turns from one to the other. The grey line
is the KL between the two answers: a model that sits below it is close to one of them.

In: typed records. Out: `pool-<task>.svg` and `pool-<task>-dark.svg`, for a light and a dark page.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean
from typing import NamedTuple

import matplotlib
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from bench.board.figures import STYLE, inks, svg
from bench.board.palette import HUES, INKS, order_archs
from bench.board.ranking import Track
from bench.board.rows import group_of, group_seeds
from bench.board.settings import is_preset_default
from bench.records import RunRecord

MOST_ARCHS = 4  # as many as fit beside each other
LEAST_POOLS = 3  # fewer make no curve
# where the laws are from: the part scored against Bayes with the pool as prior, and against Bayes with the full prior
PLACES = {"laws of the pool": ("all", "inside-full"), "laws from outside": ("outside-pool", "outside-full")}


class Point(NamedTuple):
    """Means over seeds, KL in bits."""

    pool: int
    to_pool: float
    to_full: float
    between: float  # the two exact answers


@dataclass(frozen=True)
class Curves:
    task: str
    track: Track
    points: dict[tuple[str, str], tuple[Point, ...]]  # by architecture and place, from small pools to large

    @property
    def archs(self) -> list[str]:
        return order_archs({arch for arch, _ in self.points})[:MOST_ARCHS]


def make_curves(records: Sequence[RunRecord]) -> list[Curves]:
    """One for each task and track, in which only `pool` is not the preset's."""
    found: dict[tuple[str, Track], dict[tuple[str, int], list[RunRecord]]] = defaultdict(lambda: defaultdict(list))
    for record in records:
        if not record.ok or record.config.task_source or set(PLACES["laws from outside"]) - set(record.at()):
            continue
        group = group_of(record.config)
        pool = getattr(record.config.make_task(), "pool", None)
        if pool and {name for name, _ in group.unusual} <= {"pool"}:
            found[group.task, group.track][record.config.label, pool].append(record)
    curves = []
    for (task, track), runs in found.items():
        rows = {at: seeds for at, members in sorted(runs.items()) if (seeds := one_row(members))}
        points = {
            (arch, place): tuple(_point(pool, seeds, *parts) for (name, pool), seeds in rows.items() if name == arch)
            for arch, _ in rows
            for place, parts in PLACES.items()
        }
        points = {key: each for key, each in points.items() if len(each) >= LEAST_POOLS}
        if points:
            curves.append(Curves(task, track, points))
    return sorted(curves, key=lambda each: (each.task, -len(each.points), each.track))


def one_row(members: list[RunRecord]) -> list[RunRecord]:
    """The seeds of one row: with the preset's settings if there is one, then fresh seeds, then the most seeds."""

    def place(row: list[RunRecord]) -> tuple[bool, bool, int]:
        return is_preset_default(row[0].config), not row[0].config.is_recipe_work, len(row)

    return max(group_seeds(members), key=place, default=[])


def _point(pool: int, seeds: list[RunRecord], against_pool: str, against_full: str) -> Point:
    def references(name: str, part: str) -> float:
        return mean((r.references[str(r.config.horizon)] or {})[name][part]["kl"] for r in seeds)

    to_pool, to_full = (mean(r.at()[part]["kl"] for r in seeds) for part in (against_pool, against_full))
    return Point(pool, to_pool, to_full, references("pool prior", against_full))


def draw(records: Sequence[RunRecord]) -> dict[str, str]:
    """The SVG of each theme by file name, for the fullest track of each task."""
    shown: dict[str, Curves] = {}
    for curves in make_curves(records):
        shown.setdefault(curves.task, curves)
    found = {}
    for task, curves in shown.items():
        for theme, suffix in (("light", ""), ("dark", "-dark")):
            with matplotlib.rc_context({**STYLE, **inks(theme)}):
                found[f"pool-{task}{suffix}.svg"] = svg(_figure(curves, theme))
    return found


def _figure(curves: Curves, theme: str) -> Figure:
    ink, (memorised, inferred) = INKS[theme], HUES[theme][:2]
    figure = Figure(figsize=(2.6 + 2.4 * (len(curves.archs) - 1), 4.8), layout="constrained")
    axes = figure.subplots(len(PLACES), len(curves.archs), sharex=True, sharey="row", squeeze=False)
    for row, place in zip(axes, PLACES, strict=True):
        row[0].set_ylabel(f"{place}\nKL, bits")
        for axis, arch in zip(row, curves.archs, strict=True):
            points = curves.points.get((arch, place), ())
            pools = [point.pool for point in points]
            axis.plot(pools, [p.between for p in points], color=ink["bayes"], lw=5, zorder=1)
            axis.plot(pools, [p.to_pool for p in points], color=memorised, marker="o", ms=4, lw=1.6)
            axis.plot(pools, [p.to_full for p in points], color=inferred, marker="s", ms=4, lw=1.6)
            axis.set_xscale("log", base=2)
            axis.set_yscale("log")
            axis.grid(True, lw=0.8)
            axis.set_axisbelow(True)
    for axis, arch in zip(axes[0], curves.archs, strict=True):
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
