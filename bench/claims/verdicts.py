"""How each kind of published claim is judged against our records and reports; published.py has the claims.

An error is compared with a row of at least three fresh seeds if there is one, else with the row of the largest preset
(paper, small, quick), by its mean over seeds. A single seed has the slack, a factor of 1.5 either way, for an interval.
Where the published model learned from draws and none of ours did, ours can show neither a success nor refute a failure:
exact targets are easier. A claimed failure is judged on the authors' own task. An order of two architectures takes the
first setting at which both were run, seed by seed. What an error cost is compared with the row of ours that reaches it
for the fewest FLOPs. How a model works is read from reports, see mechanisms.py.

reproduced       ours, with its whole interval, is within the slack of what was claimed, on both sides
exceeded         a success was claimed and ours, with its whole interval, is better by more than the slack
not reproduced   ours, with its whole interval, falls short of a claimed success, or is better than a claimed failure
                 by more than the slack
undecided        an end of the slack is inside our interval; or a run that has seen fewer sequences than the published
                 one misses a success, or shows a failure
not tested here  no record or no report can speak to it
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import product
from math import inf
from statistics import mean
from typing import ClassVar, NamedTuple, Protocol

from bench.board.settings import comparable_settings, preset_values
from bench.board.shares import LONGER, SEEDS, settled, share_of_baseline, word
from bench.claims.evidence import Evidence, ends, floors, seeds, setting, spread, steps
from bench.presets import NEWER_BLOCK
from bench.records import RunRecord
from bench.reports import Cell, Report
from bench.statements import NEAR
from bench.statements import SEEDS as FEW
from bench.stats import SLACK, bounds, mean_interval, median_interval
from bench.text import significant

EXCEEDED, REPRODUCED, REFUTED = "exceeded", "reproduced", "not reproduced"
UNDECIDED, UNTESTED = "undecided", "not tested here"
VERDICTS = (EXCEEDED, REPRODUCED, REFUTED, UNDECIDED, UNTESTED)
EASIER = "The published model learned from draws, ours from the exact posterior, which is easier"
SHARED_CPU = "Seconds are of one core of a CPU that other work shared"


class Verdict(NamedTuple):
    """A claim with its verdict: what was measured, on which runs, and what explains a difference."""

    id: str
    claim: str
    source: str  # a key of SOURCES
    published: str
    kind: str  # error, failure, order, primitives or mechanism
    ours: str = ""
    where: str = ""
    why: str = ""
    verdict: str = UNTESTED


class Claim(Protocol):
    @property
    def id(self) -> str: ...

    def judge(self, evidence: Evidence) -> Verdict: ...


def judge(
    claims: Sequence[Claim], records: Sequence[RunRecord], reports: Mapping[str, Report] | None = None
) -> list[Verdict]:
    evidence = Evidence(records, reports or {})
    return [claim.judge(evidence) for claim in claims]


@dataclass(frozen=True)
class Error:
    """A published error, with the row and the column of ours that speak to it."""

    id: str
    claim: str
    source: str
    published: float
    task: str
    arch: str
    metric: str = "entropy_mae"
    horizon: int | None = 20  # None: the training horizon
    part: str = "all"
    params: Mapping[str, object] = field(default_factory=dict)  # of the task, where they are not the preset's
    relative: bool = False  # in per cent of the entropy of Bayes
    first: int | None = None  # positions that were counted, where not all of them were
    failure: bool = False  # claimed as a failure: a better result does not reproduce it
    perfect: bool = False  # claimed without any error: it can be reproduced, not exceeded
    preset: str = ""  # the only one that has the published setting; empty if any can speak
    over: str | None = None  # a reference predictor whose number ours is divided by
    supervision: str = "posterior"  # of the published model
    words: str = ""  # what was published, where it is not the number that ours is compared with
    why: str = ""  # may name {uniform}, {constant}, {curve} and {chance} (evidence.floors)
    shorter: str = ""  # said where ours has seen fewer sequences, and so cannot show a failure; may name {ours}
    sequences: int = 100_000 * 64  # that the published model was trained on; at 64 a step where that is not said
    contrast: Contrast | None = None

    def judge(self, evidence: Evidence) -> Verdict:
        kind = "failure" if self.failure else "error"
        claimed = Verdict(self.id, self.claim, self.source, self.words or significant(self.published), kind)
        tracks = (self.supervision, "posterior")
        settings = {"preset": self.preset} if self.preset else None
        asked = partial(
            evidence.row,
            horizon=self.horizon,
            metric=self.metric,
            params=self.params,
            part=self.part,
            settings=settings,
        )
        rows = {track: row for track in tracks if (row := asked(self.task, self.arch, track))}
        if not rows:
            return claimed
        row = next(iter(rows.values()))
        verdict, why = UNTESTED, EASIER
        if self.failure:
            verdict, why = UNDECIDED, ". ".join(filter(None, (EASIER, self._explain(row))))
        if self.supervision in rows:
            verdict, why = self._compare(row, evidence)
        where = "; ".join(map(self._where, rows.values()))
        ours = "; ".join(self._prefix(row) + self.spread(row) for row in rows.values())
        return claimed._replace(ours=ours, where=where, why=why, verdict=verdict)

    def _compare(self, row: Sequence[RunRecord], evidence: Evidence) -> tuple[str, str]:
        values = [self._value(record) for record in row]
        verdict = compare(mean(values), self.published, self.failure, bounds(values), self.perfect)
        why = self._explain(row)
        # a short run that misses a success, or shows a failure, may only be short; one that beats a failure refutes it
        is_shorter = row[0].config.steps * row[0].config.batch < self.sequences
        if self.shorter and is_shorter and verdict == (REPRODUCED if self.failure else REFUTED):
            verdict = UNDECIDED
            why += self.shorter.format(ours=f"{row[0].parameters:,} parameters and {steps(row[0])}")
        if self.contrast:
            why += self.contrast.describe(self, evidence)
        return verdict, why

    def _explain(self, row: Sequence[RunRecord]) -> str:
        return self.why.format(**floors(row, self.horizon or row[0].config.horizon))

    def _prefix(self, row: Sequence[RunRecord]) -> str:
        return "on the exact posterior " if row[0].config.supervision != self.supervision else ""

    def _where(self, row: Sequence[RunRecord]) -> str:
        return f"{self._prefix(row)}{setting(row[0])}, {seeds(row)}, {steps(row[0])}"

    def spread(self, row: Sequence[RunRecord]) -> str:
        return spread([self._value(record) for record in row])

    def _value(self, record: RunRecord) -> float:
        k = str(self.horizon or record.config.horizon)
        if self.first is not None:
            return mean((record.by_position[k] or {})[self.metric][: self.first])
        ours = record.at(int(k))[self.part][self.metric]
        if self.relative:
            return 100 * ours / mean((record.by_position[k] or {})["h_bayes"])
        return ours / (record.references[k] or {})[self.over][self.part][self.metric] if self.over else ours


@dataclass(frozen=True)
class Unmeasured:
    """What was published and nothing here measures, so that the list of claims is whole."""

    id: str
    claim: str
    source: str
    published: str
    why: str = ""

    def judge(self, evidence: Evidence) -> Verdict:
        return Verdict(self.id, self.claim, self.source, self.published, "mechanism", why=self.why)


@dataclass(frozen=True)
class Contrast:
    """The same architecture with another setting, where that was run: does the setting make the difference?"""

    setting: str
    value: str
    text: str  # names {other}, {usual} and {where}

    def describe(self, claim: Error, evidence: Evidence) -> str:
        asked = (claim.task, claim.arch, "posterior", claim.horizon, claim.metric)
        other = evidence.row(*asked, {self.setting: self.value})
        if not other:
            return ""
        asked_for = ("task", "arch", "supervision", "horizon", "seed", self.setting)
        same = {name: value for name, value in asdict(other[0].config).items() if name not in asked_for}
        usual = preset_values(other[0].config)[self.setting]
        row = evidence.row(*asked, same | {self.setting: usual})
        if not row:
            return ""
        where = f"{setting(other[0])}, {seeds(other)}"
        return self.text.format(other=claim.spread(other), usual=claim.spread(row), where=where)


@dataclass(frozen=True)
class Order:
    """A published order of two architectures, against the ratio of our errors at the same settings, seed by seed.

    Where it is evidence for how the first one works, it takes as much as other statements of that: several seeds, and
    errors near the best known.
    """

    id: str
    claim: str
    source: str
    published: str
    task: str
    ahead: str
    behind: str
    why: str = ""
    horizon: int | None = None  # None: where it was trained
    part: str = "all"
    of_mechanism: bool = False  # how the one that is ahead works

    def judge(self, evidence: Evidence) -> Verdict:
        kind = "mechanism" if self.of_mechanism else "order"
        claimed = Verdict(self.id, self.claim, self.source, self.published, kind)
        for row, other in product(evidence.rows(self.task, self.ahead), evidence.rows(self.task, self.behind)):
            if comparable_settings(row[0].config) != comparable_settings(other[0].config):
                continue
            of, to = (self._errors(records) for records in (row, other))
            common = sorted(of.keys() & to.keys())
            if not common:
                continue
            ratios = [to[seed] / of[seed] for seed in common]
            low, high = bounds(ratios)
            verdict = REPRODUCED if low > 1 else REFUTED if high < 1 else UNDECIDED
            far = self._is_far([record for record in row if record.config.seed in common], evidence)
            ours = f"{self.ahead} {spread([of[s] for s in common])}, {self.behind} {spread([to[s] for s in common])}"
            both = max(setting(row[0]), setting(other[0]), key=len)  # only a transformer's names its positions
            return claimed._replace(
                ours=ours,
                where=f"{both}, {seeds(ratios)}, {steps(row[0])}",
                why=". ".join(filter(None, (self.why, self._without_shift(other[0], evidence), far))),
                verdict=UNDECIDED if far else verdict,
            )
        return claimed

    def _is_far(self, row: Sequence[RunRecord], evidence: Evidence) -> str:
        """Why a row says nothing about a mechanism; empty if it does, or if it is not asked."""
        if not self.of_mechanism:
            return ""
        worst, best = max(record.error_bits for record in row), evidence.best(row[0].config)
        if len(row) < FEW:
            return f"It takes at least {FEW} seeds"
        if worst > NEAR * best:
            return f"An error of {worst:.2g} bits is more than {NEAR:g} times the best, {best:.2g}"
        return ""

    def _errors(self, records: Sequence[RunRecord]) -> dict[int, float]:
        """By seed; without those that were not scored there."""
        found = {}
        for record in records:
            parts = record.metrics.get(str(self.horizon or record.config.horizon)) or {}
            if self.part in parts:
                found[record.config.seed] = parts[self.part][record.ranking_metric]
        return found

    def _without_shift(self, run: RunRecord, evidence: Evidence) -> str:
        """What a transformer with the plain block, as published, has after as many steps, where that was run."""
        c = run.config
        if c.positions != NEWER_BLOCK["positions"] or "transformer" not in c.arch:
            return ""
        plain = {"positions": "alibi", "preset": c.preset, "steps": c.steps, "batch": c.batch}
        row = evidence.row(self.task, self.behind, "posterior", c.horizon, settings=plain)
        found = f": without, ours has {spread([r.error_bits for r in row])} ({seeds(row)})" if row else ""
        return f"Our {self.behind} has a shift, which the published one has not{found}"


@dataclass(frozen=True)
class Cost:
    """The sequences that a published error took, against the row of ours that reaches it for the fewest FLOPs."""

    id: str
    claim: str
    source: str
    published: str
    sequences: int
    error: float
    task: str
    arch: str
    supervision: str = "posterior"  # of the published model

    def judge(self, evidence: Evidence) -> Verdict:
        claimed = Verdict(self.id, self.claim, self.source, self.published, "error")
        tracks = {self.supervision: ""}
        tracks.setdefault("posterior", "on the exact posterior ")
        found = {track: self._cheapest(evidence.rows(self.task, self.arch, track)) for track in tracks}
        described = {
            track: self._describe(row, evidence.rows(self.task, self.arch, track)) for track, row in found.items()
        }
        row = found[self.supervision]
        return claimed._replace(
            ours="; ".join(tracks[track] + ours for track, (ours, _) in described.items()),
            where="; ".join(tracks[track] + where for track, (_, where) in described.items() if where),
            why=SHARED_CPU if any(row and row[0].config.device == "cpu" for row in found.values()) else "",
            verdict=self._compare(row) if row else UNTESTED,
        )

    def _compare(self, row: Sequence[RunRecord]) -> str:
        ours = row[0].config.steps * row[0].config.batch
        return compare(ours, self.sequences, bounds=None if len(row) > 1 else bounds([ours]))

    def _cheapest(self, rows: Sequence[list[RunRecord]]) -> list[RunRecord] | None:
        reached = [row for row in rows if all(record.error_bits <= SLACK * self.error for record in row)]
        return min(reached, key=lambda row: row[0].train_flops or inf, default=None)

    def _describe(self, row: list[RunRecord] | None, rows: Sequence[list[RunRecord]]) -> tuple[str, str]:
        if row:
            error = spread([record.error_bits for record in row])
            timed = [record.seconds.train for record in row if record.seconds.train is not None]
            time = f"{mean(timed):.0f} s" if timed else "not timed"
            where = f"{setting(row[0])}, {seeds(row)}, {row[0].train_flops or inf:.2g} FLOPs, {time}"
            return f"{error} after {steps(row[0])}", where
        most = max((row[0] for row in rows), key=lambda r: r.config.steps * r.config.batch, default=None)
        return (f"not reached in {steps(most)}", setting(most)) if most else (UNTESTED, "")


@dataclass(frozen=True)
class Primitives:
    """Which primitives of inference an architecture is said to have, against a row on a task of each:
    the largest with enough seeds, if there is one.

    As on the leaderboard, a row decides only with enough seeds and a run with more steps, if MAE and KL of all of them
    give one word. Partly held counts as having it.
    """

    id: str
    claim: str
    source: str
    published: str
    arch: str
    has: frozenset[str]
    TASKS: ClassVar = {"accumulation": "bijection", "transport": "hmm-tokens", "binding": "recall-64"}  # as published

    def judge(self, evidence: Evidence) -> Verdict:
        claimed = Verdict(self.id, self.claim, self.source, self.published, "primitives")
        found = {primitive: evidence.rows(task, self.arch) for primitive, task in self.TASKS.items()}
        if not all(found.values()):
            return claimed
        rows = {p: next((row for row in rows if len(row) >= SEEDS), rows[0]) for p, rows in found.items()}
        shares = {primitive: share_of_baseline(row) for primitive, row in rows.items()}
        ours = {primitive for primitive, share in shares.items() if word(share) != "no"}
        records = {primitive: [record for row in found[primitive] for record in row] for primitive in rows}
        decided = all(settled(row, records[primitive]) for primitive, row in rows.items())
        return claimed._replace(
            ours=", ".join(f"{primitive} {word(share)}" for primitive, share in shares.items()),
            where=", ".join(f"{self.TASKS[p]} {shares[p]:.1%} ({setting(row[0])})" for p, row in rows.items()),
            why="Per cent: the mean error as a share of a predictor's that reads nothing; partly held counts"
            + ("" if decided else f". Undecided: a verdict takes {SEEDS} seeds and a run of {LONGER} times the steps"),
            verdict=UNDECIDED if not decided else REPRODUCED if ours == self.has else REFUTED,
        )


@dataclass(frozen=True)
class ReportNumber:
    """A published number, with the cell of a run's report that speaks to it: one run, so it has the slack of a seed."""

    id: str
    claim: str
    source: str
    published: float
    task: str
    arch: str
    preset: str
    table: str
    row: Mapping[str, str]  # columns that name the row
    column: str
    more: bool = False  # more is better
    params: Mapping[str, object] = field(default_factory=dict)  # of the task, where they are not the preset's
    each: str = ""  # the table that has this number for every context, under the metric's or the column's name
    median: bool = False  # it is the median over those contexts, not their mean
    floor: str = ""  # the column of the exact predictor's own number: a model at or below it shows noise, not skill

    def judge(self, evidence: Evidence) -> Verdict:
        claimed = Verdict(self.id, self.claim, self.source, significant(self.published), "error")
        lines = evidence.lines(self.task, self.arch, self.table, self.preset, self.params)
        found = next(((run, line) for run, line in lines if self.row.items() <= line.items()), None)
        value = found[1].get(self.column) if found else None
        if found is None or not isinstance(value, int | float):
            return claimed
        run, line = found
        asked = (self.task, self.arch, self.each, self.preset, self.params)
        contexts = evidence.lines(*asked) if self.each else ()
        column = self.row.get("metric", self.column)
        values = [to_float(cells[column]) for of, cells in contexts if of is run]
        spread = (median_interval(values) if self.median else mean_interval(values)) if values else None
        # near one, as a correlation is, what is missing is the error
        ours, published = (1 - value, 1 - self.published) if self.more else (value, self.published)
        found_bounds = bounds([ours])  # of one run, whose contexts may be further apart
        if spread:
            found_bounds = min(spread[0], found_bounds[0]), max(spread[1], found_bounds[1])
        verdict, why = compare(ours, published, bounds=found_bounds), ""
        if self.floor and value <= (floor := to_float(line[self.floor])):
            verdict, why = UNTESTED, f"The exact predictor's own rollouts score {significant(floor)} here: noise"
        measured = significant(value) + ends(spread)
        return claimed._replace(ours=measured, where=f"run {run.id}, {setting(run)}", why=why, verdict=verdict)


def to_float(cell: Cell) -> float:
    assert isinstance(cell, int | float)
    return float(cell)


def compare(
    ours: float,
    published: float,
    failure: bool = False,
    bounds: tuple[float, float] | None = None,
    perfect: bool = False,
) -> str:
    """A two-sided test of equivalence, of the interval where there is one: an end outside of the slack decides nothing.

    More than a published failure is a failure, too; nothing is better than what was claimed without any error.
    """
    values = (ours, *(bounds or ()))
    low, high = min(values), max(values)
    least = -inf if perfect else published / SLACK
    most = inf if failure else published * SLACK
    if least <= low and high <= most:
        return REPRODUCED
    if high < least:
        return REFUTED if failure else EXCEEDED
    return REFUTED if low > most else UNDECIDED
