"""Memorise or infer: how far a model is from each of two exact answers, as its pool of training laws grows.

A run with `pool=M` saw M laws in training. Bayes with the pool as prior is the answer of a predictor that memorised
them, Bayes with the full prior of one that infers. The curves have, for each architecture, the KL to both: on laws of
the pool, and on laws from outside it. Where the two cross, the model turns from one to the other.

In: rankings. Out: curves for each task and track.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean
from typing import NamedTuple

from bench.board.ranking import Ranking, Row, Track
from bench.records import RunRecord

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
    def archs(self) -> set[str]:
        return {arch for arch, _ in self.points}


def make_curves(rankings: Sequence[Ranking]) -> list[Curves]:
    """One for each task and track, in which only `pool` is not the preset's."""
    found: dict[tuple[str, Track], dict[int, Ranking]] = defaultdict(dict)
    for ranking in rankings:
        group = ranking.group
        if not ranking.rows or group.source or {name for name, _ in group.unusual} - {"pool"}:
            continue
        if pool := getattr(ranking.rows[0].config.make_task(), "pool", None):
            found[group.task, group.track][pool] = ranking
    curves = []
    for (task, track), by_pool in found.items():
        points: dict[tuple[str, str], list[Point]] = defaultdict(list)
        for pool, ranking in sorted(by_pool.items()):
            for row in _one_row_each(ranking):
                for place, parts in PLACES.items():
                    points[row.arch, place].append(_point(pool, row.records, *parts))
        long = {key: tuple(each) for key, each in points.items() if len(each) >= LEAST_POOLS}
        if long:
            curves.append(Curves(task, track, long))
    return sorted(curves, key=lambda each: (each.task, -len(each.points), each.track))


def _one_row_each(ranking: Ranking) -> list[Row]:
    """Each architecture's row with the preset's settings if there is one, then fresh seeds, then the most seeds."""
    parts = set(PLACES["laws from outside"])
    ours = [row for row in ranking.rows if not row.is_self_reported]
    scored = [row for row in ours if all(parts <= record.at().keys() for record in row.records)]
    found: dict[str, Row] = {}
    for row in sorted(scored, key=lambda r: (not r.is_preset_default, r.config.is_recipe_work, -len(r.records))):
        found.setdefault(row.arch, row)
    return list(found.values())


def _point(pool: int, seeds: Sequence[RunRecord], against_pool: str, against_full: str) -> Point:
    def references(name: str, part: str) -> float:
        return mean((r.references[str(r.config.horizon)] or {})[name][part]["kl"] for r in seeds)

    to_pool, to_full = (mean(r.at()[part]["kl"] for r in seeds) for part in (against_pool, against_full))
    return Point(pool, to_pool, to_full, references("pool prior", against_full))
