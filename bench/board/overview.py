"""All tasks at once: each architecture's error on each task, and the primitives of inference that it holds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from statistics import mean
from typing import NamedTuple

from bench.board.ranking import Ranking, Row, Track
from bench.board.rows import comparable_settings, make_rankings, mean_metric
from bench.presets import SIZES
from bench.records import CERTAIN, RunRecord
from tasks.base import TASKS

# A primitive is held on a task if the error is below this share of the best constant's and the KL below this share of
# the uniform predictor's. Below the second share it is partly held.
HELD, PARTLY = 0.05, 0.5
PRIMITIVES = {  # with their meanings
    "accumulation": "evidence adds up",
    "transport": "a belief moves with a hidden state",
    "binding": "a stored value is found by its key",
}
SEEDS, LONGER = 5, 5  # a word needs so many seeds, and a run with so many times the steps, that all agree
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
    shares: tuple[float, ...]  # by seed: that, or KL over the uniform predictor's, whichever is larger
    words: frozenset[str] = frozenset()  # what MAE and KL of each seed would say, and those of a run with more steps
    has_long_run: bool = False

    @property
    def share_of_baseline(self) -> float:
        return share_of_baseline(self.row.records)

    @property
    def seeds_agree(self) -> bool:
        """All seeds give the same word, and do not fall apart; a single seed cannot show that."""
        return len(self.shares) > 1 and word(min(self.shares)) == word(max(self.shares)) and self.row.groups is None

    @property
    def settled(self) -> str | None:
        """The word on which enough seeds, MAE and KL, and a run with more steps agree; else None."""
        enough = len(self.shares) >= SEEDS and self.has_long_run
        return next(iter(self.words)) if enough and len(self.words) == 1 else None


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
        for word in ("held", "partly", "no"):
            here = {arch: verdict.shares for arch, verdict in complete.items() if verdict.leaning == word}
            if here:
                nearest = min if word == "no" else max
                share, arch, task = nearest(max((s, arch, task) for task, s in of.items()) for arch, of in here.items())
                standings.append(Standing(word, tuple(here), task, share, self.cells[arch, task].row))
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

    @property
    def headline(self) -> Overview | None:
        return self.overviews[0] if self.overviews else None


def make_board(records: Sequence[RunRecord], reported: Sequence[RunRecord] = ()) -> Board:
    rankings = tuple(make_rankings(records, reported))
    return Board(tuple(records), tuple(reported), rankings, tuple(make_overviews(rankings)))


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
            shares = tuple(share_of_baseline([record]) for record in row.records)
            others = [other for other in ranking.rows if other.arch == arch and not other.is_self_reported]
            more = with_more_steps(row.records, [record for other in others for record in other.records])
            words = frozenset(word(share) for record in (*row.records, *more) for share in baseline_shares([record]))
            cells[arch, ranking.task] = Cell(row, row.scores.error / ranking.baseline, shares, words, bool(more))
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


def with_more_steps(row: Sequence[RunRecord], records: Sequence[RunRecord]) -> list[RunRecord]:
    """Those of an architecture's records that had at least five times the steps of a row, and else its settings."""
    first = row[0].config
    return [
        record
        for record in records
        if record.config.steps >= LONGER * first.steps
        and comparable_settings(replace(record.config, steps=first.steps)) == comparable_settings(first)
    ]


def _floor(ranking: Ranking, name: str) -> float | None:
    """None for the best constant where answers are certain: that ranking has no such reference."""
    return None if name not in (reference.name for reference in ranking.references) else ranking.reference(name).error


def primitive_tasks(primitive: str) -> list[str]:
    ours = [task for task in TASKS.names() if not TASKS.digest(task)]
    return [task for task in ours if TASKS.facts(task).get("primitive") == primitive]


def share_of_baseline(records: Sequence[RunRecord]) -> float:
    """Error as a share of the baseline's, by the more severe of the two metrics."""
    return max(baseline_shares(records))


def baseline_shares(records: Sequence[RunRecord]) -> tuple[float, ...]:
    """KL over the uniform predictor's; also MAE over the best constant's, unless answers are certain."""
    trained = records[0].config.horizon
    kl = mean_metric(records, trained, "kl") / mean_metric(records, trained, "kl", "uniform")
    constant = mean_metric(records, trained, "entropy_mae", "best constant")
    if constant < CERTAIN:  # it knows the entropy: answers are certain, or every sequence has the same law
        return (kl,)
    mae = mean_metric(records, trained, "entropy_mae") / constant
    return kl, mae


def word(share: float) -> str:
    return "held" if share < HELD else "partly" if share < PARTLY else "no"


def judge(tasks: Sequence[str], by_task: Mapping[str, Cell]) -> Verdict:
    """The verdict over these tasks, from rows with the preset's settings. With a task missing it is no or open."""
    cells = {task: by_task[task] for task in tasks if task in by_task and by_task[task].row.compares}
    shares = {task: cell.share_of_baseline for task, cell in cells.items()}
    leaning = word(max(shares.values(), default=0.0))
    settled = [cell.settled for cell in cells.values()]
    if "no" in settled:
        return Verdict("no", leaning, shares)
    if not cells:
        return Verdict("not measured", leaning, shares)
    if None in settled or len(cells) < len(tasks):
        return Verdict("open", leaning, shares)
    return Verdict("partly" if "partly" in settled else "held", leaning, shares)
