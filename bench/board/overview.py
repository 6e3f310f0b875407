"""All tasks at once: each architecture's error on each task, and the primitives of inference that it holds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from statistics import mean
from typing import NamedTuple

from bench.board.groups import Tracking, make_trackings
from bench.board.ladder import Ladder, make_ladders
from bench.board.pools import Curves, make_curves
from bench.board.ranking import Ranking, Row, Track
from bench.board.rows import make_rankings
from bench.board.shares import HELD, LONGER, PARTLY, SEEDS, seeds_agree, settled, share_of_baseline, word
from bench.presets import SIZES
from bench.records import RunRecord
from tasks.base import TASKS

PRIMITIVES = {  # with their meanings
    "accumulation": "evidence adds up",
    "transport": "a belief moves with a hidden state",
    "binding": "a stored value is found by its key",
}
WORDS = (
    f"Held: the error is below {HELD:.0%} of the best constant's, and the KL below {HELD:.0%} of the uniform "
    f"predictor's, on every task of the primitive that the track has. Partly: below {PARTLY:.0%}. A task is settled if "
    f"MAE and KL, at least {SEEDS} seeds, and a run of {LONGER} times the steps agree. One settled no decides; the "
    'other words need every task settled. Otherwise the table says "open" and shows the shares. "No" is a statement '
    "about this size and this recipe, not about the architecture."
)
BASELINES = {"best constant": "the best constant", "uniform": "the uniform predictor"}
FLOORS = ("best constant", "uniform")  # the predictors that read nothing


@dataclass(frozen=True)
class Cell:
    """One architecture on one task."""

    row: Row
    share: float  # error over the best constant's, or KL over the uniform predictor's where answers are certain
    settled: str | None  # the word on which all evidence agrees

    @property
    def shares(self) -> tuple[float, ...]:
        """By seed."""
        return tuple(share_of_baseline([record]) for record in self.row.records)

    @property
    def share_of_baseline(self) -> float:
        return share_of_baseline(self.row.records)

    @property
    def seeds_agree(self) -> bool:
        return seeds_agree(self.row)


@dataclass(frozen=True)
class Verdict:
    """Whether an architecture holds a primitive: its weakest task decides."""

    word: str  # held, partly, no, open, not measured
    leaning: str  # what the mean share alone would say
    shares: dict[str, float] = field(default_factory=dict)  # by task


class Standing(NamedTuple):
    """Architectures with the same word, and the row among them that is nearest to the limit."""

    word: str  # held, partly or no: what their mean shares say
    archs: tuple[str, ...]
    task: str  # of that row: its architecture's weakest
    share: float
    row: Row


class Comparison(NamedTuple):
    """The architectures that were compared on the same tasks of a primitive: on all that the track has."""

    tasks: tuple[str, ...]
    standings: tuple[Standing, ...]  # held first
    left_out: int  # architectures that were compared on some of these tasks only


class Winners(NamedTuple):
    """The architectures that have rank 1 on most tasks, with these tasks and one row of each."""

    tasks: dict[str, tuple[str, ...]]  # by architecture
    rows: dict[str, Row]  # by architecture, on the first of its tasks


@dataclass(frozen=True)
class Overview:
    """One preset, supervision and device: architectures by tasks."""

    track: Track
    tasks: tuple[str, ...]
    archs: tuple[str, ...]  # those with most tasks first, then by their mean share of the best constant's error
    cells: dict[tuple[str, str], Cell]  # by architecture and task
    floors: dict[str, dict[str, float | None]]  # by task: error of the predictors that read nothing
    baselines: dict[str, str]  # by task: whose error shares are of
    verdicts: dict[str, dict[str, Verdict]]  # by architecture and primitive

    def measured(self, primitive: str) -> list[str]:
        """The primitive's tasks that have a row with the preset's settings."""
        compared = {task for (_, task), cell in self.cells.items() if cell.row.compares}
        return [task for task in primitive_tasks(primitive) if task in compared]

    def comparison(self, primitive: str) -> Comparison | None:
        """Over the same tasks for all: an architecture that was run on fewer would only look better."""
        tasks = self.measured(primitive)
        verdicts = {arch: verdicts[primitive] for arch, verdicts in self.verdicts.items()}
        compared = {arch: verdict for arch, verdict in verdicts.items() if verdict.shares}
        complete = {arch: verdict for arch, verdict in compared.items() if len(verdict.shares) == len(tasks)}
        standings = []
        for said in ("held", "partly", "no"):
            here = {arch: verdict.shares for arch, verdict in complete.items() if verdict.leaning == said}
            if here:
                nearest = min if said == "no" else max
                share, arch, task = nearest(max((s, arch, task) for task, s in of.items()) for arch, of in here.items())
                standings.append(Standing(said, tuple(here), task, share, self.cells[arch, task].row))
        return Comparison(tuple(tasks), tuple(standings), len(compared) - len(complete)) if standings else None

    def winners(self) -> Winners | None:
        """None where nobody has rank 1 on two tasks. A single seed wins nothing: it has no interval."""
        wins: dict[str, list[str]] = defaultdict(list)
        for arch, task in product(self.archs, self.tasks):
            cell = self.cells.get((arch, task))
            if cell and cell.row.rank == 1 and len(cell.row.records) > 1:
                wins[arch].append(task)
        most = max(map(len, wins.values()), default=0)
        if most < 2:
            return None
        tasks = {arch: tuple(of) for arch, of in wins.items() if len(of) == most}
        return Winners(tasks, {arch: self.cells[arch, of[0]].row for arch, of in tasks.items()})

    def best(self, task: str) -> Row | None:
        """The row with the least error among those that compare, and know something."""
        rows = [c.row for (_, at), c in self.cells.items() if at == task and c.row.compares and c.row.is_informed]
        return min(rows, key=lambda row: row.scores.error, default=None)


@dataclass(frozen=True)
class Board:
    """Everything that the renderers need, computed once."""

    records: tuple[RunRecord, ...]
    reported: tuple[RunRecord, ...]
    rankings: tuple[Ranking, ...]
    overviews: tuple[Overview, ...]  # the headline track first
    trackings: tuple[Tracking, ...]
    ladders: tuple[Ladder, ...]
    pools: tuple[Curves, ...]

    @property
    def headline(self) -> Overview | None:
        return self.overviews[0] if self.overviews else None


def make_board(records: Sequence[RunRecord], reported: Sequence[RunRecord] = ()) -> Board:
    rankings = tuple(make_rankings(records, reported))
    return Board(
        records=tuple(records),
        reported=tuple(reported),
        rankings=rankings,
        overviews=tuple(make_overviews(rankings)),
        trackings=tuple(make_trackings(rankings)),
        ladders=tuple(make_ladders(rankings)),
        pools=tuple(make_curves(rankings)),
    )


def make_overviews(rankings: Sequence[Ranking]) -> list[Overview]:
    """One overview for each track, the one with most cells first."""
    tracks: dict[Track, list[Ranking]] = defaultdict(list)
    for ranking in rankings:
        if ranking.rows and ranking.group.is_preset_task:
            tracks[ranking.group.track].append(ranking)

    def place(overview: Overview) -> tuple[int, int, Track]:
        preset = overview.track.preset
        return -len(overview.cells), SIZES.index(preset) if preset in SIZES else len(SIZES), overview.track

    return sorted((_make_overview(track, members) for track, members in tracks.items()), key=place)


def _make_overview(track: Track, rankings: list[Ranking]) -> Overview:
    cells: dict[tuple[str, str], Cell] = {}
    for ranking in rankings:
        for arch, row in ranking.one_row_each().items():
            others = [other for other in ranking.rows if other.arch == arch and not other.is_self_reported]
            evidence = [record for other in others for record in other.records]
            share = row.scores.error / ranking.baseline
            cells[arch, ranking.task] = Cell(row, share, settled(row.records, evidence))
    by_arch: dict[str, dict[str, Cell]] = defaultdict(dict)
    for (arch, task), cell in cells.items():
        by_arch[arch][task] = cell
    archs = sorted(by_arch, key=lambda a: (-len(by_arch[a]), mean(cell.share for cell in by_arch[a].values()), a))
    tasks = tuple(ranking.task for ranking in rankings)
    measured = {p: [task for task in primitive_tasks(p) if task in tasks] for p in PRIMITIVES}
    return Overview(
        track=track,
        tasks=tasks,
        archs=tuple(archs),
        cells=cells,
        floors={ranking.task: {name: _floor(ranking, name) for name in FLOORS} for ranking in rankings},
        baselines={ranking.task: BASELINES[ranking.baseline_name] for ranking in rankings},
        verdicts={arch: {p: judge(measured[p], by_arch[arch]) for p in PRIMITIVES} for arch in archs},
    )


def _floor(ranking: Ranking, name: str) -> float | None:
    """None for the best constant where answers are certain: that ranking has no such reference."""
    return None if name not in (reference.name for reference in ranking.references) else ranking.reference(name).error


def primitive_tasks(primitive: str) -> list[str]:
    ours = [task for task in TASKS.names() if not TASKS.digest(task)]
    return [task for task in ours if TASKS.facts(task).get("primitive") == primitive]


def judge(tasks: Sequence[str], by_task: Mapping[str, Cell]) -> Verdict:
    """The verdict over these tasks, from rows with the preset's settings. With a task missing it is no or open."""
    cells = {task: by_task[task] for task in tasks if task in by_task and by_task[task].row.compares}
    shares = {task: cell.share_of_baseline for task, cell in cells.items()}
    leaning = word(max(shares.values(), default=0.0))
    words = [cell.settled for cell in cells.values()]
    if "no" in words:
        return Verdict("no", leaning, shares)
    if not cells:
        return Verdict("not measured", leaning, shares)
    if None in words or len(cells) < len(tasks):
        return Verdict("open", leaning, shares)
    return Verdict("partly" if "partly" in words else "held", leaning, shares)
