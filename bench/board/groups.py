"""State tracking: the error of every architecture on every group, at the training length and beyond it.

A run of the task `group` has one group, so each group has a ranking of its own. This puts them side by side: one row an
architecture, one column a group. Runs with another setting of the task than `group` stay out.

In: rankings. Out: for each track a grid of errors in bits (KL, as the products are certain).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean
from typing import NamedTuple

from bench.board.ranking import Ranking, Row, Track
from bench.board.shares import seeds_agree
from tasks.group import GROUPS

TASK = "group"


class Cell(NamedTuple):
    """KL in bits, means over seeds."""

    trained: float
    longer: tuple[float | None, ...]  # at the new positions of each longer horizon; None: the model does not reach
    seeds_agree: bool
    compares: bool  # the preset's settings, so that rows may be compared

    @property
    def furthest(self) -> float:
        """At the longest horizon that the model reaches."""
        return next(bits for bits in (*reversed(self.longer), self.trained) if bits is not None)


@dataclass(frozen=True)
class Tracking:
    track: Track
    horizons: tuple[int, ...]  # of training first
    groups: tuple[str, ...]
    # architectures and their runs with other steps: most groups first, then by the error at the longest horizon
    archs: tuple[str, ...]
    cells: dict[tuple[str, str], Cell]  # by architecture and group
    uniform: dict[str, float]  # by group


def make_trackings(rankings: Sequence[Ranking]) -> list[Tracking]:
    """One for each track and training horizon, that with most cells first."""
    found: dict[tuple[Track, tuple[int, ...]], dict[str, Ranking]] = defaultdict(dict)
    for ranking in rankings:
        unusual = {name for name, _ in ranking.group.unusual}
        if ranking.task == TASK and ranking.rows and unusual <= {"group"}:
            group = ranking.rows[0].config.make_task().group  # type: ignore[attr-defined]
            found[ranking.group.track, (ranking.trained, *ranking.longer)][group] = ranking
    made = [_make_tracking(*key, members) for key, members in found.items()]
    return sorted(made, key=lambda tracking: (-len(tracking.cells), tracking.track, tracking.horizons))


def _make_tracking(track: Track, horizons: tuple[int, ...], members: dict[str, Ranking]) -> Tracking:
    groups = tuple(group for group in GROUPS if group in members)
    cells: dict[tuple[str, str], Cell] = {}
    for group in groups:
        usual = members[group].one_row_each()
        longer = [row for row in members[group].rows if row is not usual[row.arch] and _is_longer(row)]
        named = {**usual, **{row.name: row for row in longer}}
        cells |= {(name, group): _make_cell(row, horizons) for name, row in named.items()}

    def place(arch: str) -> tuple[int, float, str]:
        furthest = [cell.furthest for (name, _), cell in cells.items() if name == arch]
        return -len(furthest), mean(furthest), arch

    archs = tuple(sorted({arch for arch, _ in cells}, key=place))
    uniform = {group: members[group].reference("uniform").kl for group in groups}
    return Tracking(track, horizons, groups, archs, cells, uniform)


def _is_longer(row: Row) -> bool:
    """It differs from the preset in its steps alone: what an architecture learns, and a short run may miss."""
    return len(row.settings) == 1 and row.settings[0].startswith("steps=")


def _make_cell(row: Row, horizons: tuple[int, ...]) -> Cell:
    at = row.scores.longer
    longer = tuple(both[1] if (both := at[k]) else None for k in horizons[1:])
    return Cell(row.scores.kl, longer, seeds_agree(row), row.compares)
