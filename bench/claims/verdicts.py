"""How a published claim is weighed: what our records say of it, and a verdict. bench/ledger.py has the claims.

A claim names the row of a table that speaks to it: task, architecture, horizon, metric, and what the published model
was trained on, the exact posterior or one draw from it. It is held against the largest preset at which that row was run
(paper, small, quick; most sequences read, then the preset's own settings, then most seeds), by its mean over seeds.
Where the published model learned from draws and none of ours did, ours cannot show a success; a failure it can refute.
Claims that one architecture is ahead of another take the largest setting at which both were run, seed by seed; what an
error cost is held against the row of ours that ends there for the fewest FLOPs. Claims about how a model works, and
those of the Bernoulli report, are read from the runs' reports: of the largest run that has one, the lowest seed first.

exceeded         a success was claimed and ours is better by more than the slack
reproduced       ours is within the slack of what was claimed
not reproduced   ours falls short of a claimed success, or is better than a claimed failure
undecided        one end of our interval would reproduce it, and the other would not; or a success is missed by a run
                 that is far shorter than the published one
not tested here  no record or no report can speak to it
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import inf
from statistics import mean
from typing import ClassVar, NamedTuple

from bench.evidence import Evidence, ends, error_of, floors, given, number, scene, seeds, spread
from bench.glance import HELD, PARTLY, share_of_nothing
from bench.presets import NEWER_BLOCK
from bench.records import RunRecord
from bench.rows import plain, preset_values, setting
from bench.stats import SLACK, interval, mean_interval

UNDECIDED, UNTESTED = "undecided", "not tested here"
BETTER_TARGETS = "The published model learned from draws, ours from the exact posterior: a success on it proves less"


class Claim(NamedTuple):
    claim: str
    source: str
    published: str
    measured: str
    verdict: str
    why: str
    kind: str = "error"  # or failure, or mechanism: what was claimed


@dataclass(frozen=True)
class Row:
    """A published number with the row and the column of ours that speak to it."""

    claim: str
    source: str
    published: float
    task: str
    arch: str
    metric: str = "entropy_mae"
    horizon: int = 20
    part: str = "all"
    first: int | None = None  # of the positions, where not all of them were counted
    failure: bool = False  # claimed as a failure: being better does not reproduce it
    whole: bool = False  # claimed without any error: it can be reproduced, not exceeded
    over: str | None = None  # a reference predictor, whose number ours is divided by
    supervision: str = "posterior"  # of the published model
    words: str = ""  # what was published, where it is not the number that ours is held against
    why: str = ""  # may name {uniform}, {constant}, {curve}: what predictors that read nothing score; and {chance}
    shorter: str = ""  # said where ours has fewer steps than these, and so cannot refute a success; may name {ours}
    steps: int = 100_000  # of the published training
    contrast: Contrast | None = None

    def judge(self, evidence: Evidence) -> Claim:
        tracks = (self.supervision, "posterior")
        rows = {s: row for s in tracks if (row := evidence.row(self.task, self.arch, s, self.horizon))}
        if not rows:
            return Claim(self.claim, self.source, self.words or number(self.published), UNTESTED, UNTESTED, "")
        row = next(iter(rows.values()))
        verdict, why = UNTESTED, BETTER_TARGETS
        if self.supervision in rows or self.failure:
            values = [self.value(r) for r in row]
            verdict = weigh(mean(values), self.published, self.failure, interval(values))
            why = self.why.format(**floors(row, self.horizon))
            fewer = row[0].config["steps"] < self.steps
            if self.shorter and fewer and verdict in ("not reproduced", UNDECIDED):
                verdict = UNDECIDED
                why += self.shorter.format(ours=f"{row[0].parameters:,} parameters and {given(row[0])}")
            if self.contrast:
                why += self.contrast.told(self, evidence)
        if self.whole and verdict == "exceeded":
            verdict = "reproduced"
        measured = "; ".join(map(self.told, rows.values()))
        kind = "failure" if self.failure else "error"
        return Claim(self.claim, self.source, self.words or number(self.published), measured, verdict, why, kind)

    def told(self, row: Sequence[RunRecord]) -> str:
        better = row[0].config["supervision"] != self.supervision
        exact = "on the exact posterior " * better
        return f"{exact}{self.spread(row)} ({scene(row[0])}, {seeds(row)}, {given(row[0])})"

    def spread(self, row: Sequence[RunRecord]) -> str:
        return spread([self.value(r) for r in row])

    def value(self, record: RunRecord) -> float:
        k = str(self.horizon)
        if self.first is not None:
            return mean(record.by_position[k][self.metric][: self.first])
        ours: float = record.metrics[k][self.part][self.metric]
        return ours / record.references[k][self.over][self.part][self.metric] if self.over else ours


@dataclass(frozen=True)
class Contrast:
    """Rows of the same architecture with another setting, if there are any: does that make the difference?"""

    setting: str
    value: str
    text: str  # names {other}, {usual} and {where}

    def told(self, claim: Row, evidence: Evidence) -> str:
        other = evidence.row(claim.task, claim.arch, "posterior", claim.horizon, **{self.setting: self.value})
        if not other:
            return ""
        asked_for = ("task", "arch", "supervision", "horizon", "seed", self.setting)
        same = {k: v for k, v in other[0].config.items() if k not in asked_for}
        usual = preset_values(other[0].config)[self.setting]
        row = evidence.row(claim.task, claim.arch, "posterior", claim.horizon, **same, **{self.setting: usual})
        if not row:
            return ""
        where = f"{scene(other[0])}, {seeds(other)}"
        return self.text.format(other=claim.spread(other), usual=claim.spread(row), where=where)


@dataclass(frozen=True)
class Order:
    """A published order of two architectures, held against their errors at the same settings, seed by seed."""

    claim: str
    source: str
    published: str
    task: str
    arch: str  # the one that is ahead
    behind: str
    why: str = ""

    def judge(self, evidence: Evidence) -> Claim:
        for row, other in product(evidence.rows(self.task, self.arch), evidence.rows(self.task, self.behind)):
            of, to = ({r.config["seed"]: error_of(r) for r in rows} for rows in (row, other))
            common = sorted(of.keys() & to.keys())
            ahead, behind = [of[seed] for seed in common], [to[seed] for seed in common]
            ratios = [b / a for a, b in zip(ahead, behind, strict=True)]
            if not ratios or setting(row[0].config) != setting(other[0].config):
                continue
            low, high = interval(ratios) or (ratios[0] / SLACK, ratios[0] * SLACK)
            verdict = "reproduced" if low > 1 else "not reproduced" if high < 1 else UNDECIDED
            told = f"{self.arch} {spread(ahead)}, {self.behind} {spread(behind)}"
            both = max(scene(row[0]), scene(other[0]), key=len)  # attention's positions are told of a transformer alone
            where = f"{both}, {seeds(ratios)}, {given(row[0])}"
            why = ". ".join(filter(None, (self.why, self.without_shift(other[0], evidence))))
            return Claim(self.claim, self.source, self.published, f"{told} ({where})", verdict, why, "order")
        return Claim(self.claim, self.source, self.published, UNTESTED, UNTESTED, "")

    def without_shift(self, run: RunRecord, evidence: Evidence) -> str:
        """What a transformer as published, with the plain block, has in as many steps, where that was run."""
        c = run.config
        if c["positions"] != NEWER_BLOCK["positions"] or "transformer" not in c["arch"]:
            return ""
        same = {name: c[name] for name in ("preset", "steps", "batch")}
        row = evidence.row(self.task, self.behind, "posterior", c["horizon"], positions="alibi", **same)
        told = f": without, ours has {spread([error_of(r) for r in row])} ({seeds(row)})" if row else ""
        return f"Our {self.behind} has a shift, which the published one has not{told}"


@dataclass(frozen=True)
class Cost:
    """What a published error took, held against the row of ours that ends within the slack of it for fewest FLOPs."""

    claim: str
    source: str
    published: str
    steps: int
    error: float
    task: str
    arch: str
    supervision: str = "posterior"  # of the published model

    def judge(self, evidence: Evidence) -> Claim:
        steps, measured = self.told(evidence.rows(self.task, self.arch, self.supervision))
        if self.supervision != "posterior":
            measured += f"; on the exact posterior {self.told(evidence.rows(self.task, self.arch))[1]}"
        verdict = UNTESTED if steps is None else weigh(steps, self.steps, False)
        why = "Seconds are of one core of a CPU that other work shared; no GPU was at hand"
        return Claim(self.claim, self.source, self.published, measured, verdict, why if " s (" in measured else "")

    def told(self, rows: Sequence[list[RunRecord]]) -> tuple[int | None, str]:
        """Its steps, and in words."""
        there = [row for row in rows if all(error_of(record) <= SLACK * self.error for record in row)]
        if not there:
            most = max((row[0] for row in rows), key=lambda r: r.config["steps"] * r.config["batch"], default=None)
            return None, f"not reached in {given(most)} ({scene(most)})" if most else UNTESTED
        row = min(there, key=lambda row: row[0].train_flops or inf)
        cost = f"{given(row[0])}, {row[0].train_flops or inf:.2g} FLOPs, {mean(r.seconds['train'] for r in row):.0f} s"
        error = spread([error_of(record) for record in row])
        return row[0].config["steps"], f"{error} after {cost} ({scene(row[0])}, {seeds(row)})"


@dataclass(frozen=True)
class Primitives:
    """Which primitives of inference an architecture is said to have, held against its largest row on a task of each."""

    claim: str
    source: str
    published: str
    arch: str
    has: frozenset[str]
    TASKS: ClassVar = {"accumulation": "bijection", "transport": "hmm", "binding": "recall"}  # as published

    def judge(self, evidence: Evidence) -> Claim:
        words, told = {}, []
        for primitive, task in self.TASKS.items():
            row = next(iter(evidence.rows(task, self.arch)), None)
            if row is None:
                return Claim(self.claim, self.source, self.published, UNTESTED, UNTESTED, "")
            share = share_of_nothing(row, str(row[0].config["horizon"]))
            words[primitive] = "held" if share < HELD else "partly" if share < PARTLY else "no"
            told.append(f"{primitive} {words[primitive]} ({task} {share:.1%}, {scene(row[0])})")
        ours = {primitive for primitive, word in words.items() if word != "no"}
        verdict = "reproduced" if ours == self.has else "not reproduced"
        why = "An error as a share of that of a predictor that reads nothing; partly there counts (rule 12)"
        return Claim(self.claim, self.source, self.published, ", ".join(told), verdict, why, "primitives")


@dataclass(frozen=True)
class Told:
    """A published number with the cell of a run's report that speaks to it."""

    claim: str
    source: str
    published: float
    task: str
    arch: str
    preset: str
    table: str
    row: tuple[str, ...]  # the first cells of the row
    column: str
    more: bool = False  # more is better
    each: str = ""  # the table that has this number, under the name of the row, for every context: it has a spread
    floor: str = ""  # the column of the exact predictor's own number: who is not above it shows noise, not skill

    def judge(self, evidence: Evidence) -> Claim:
        found = next(evidence.lines(self.task, self.arch, self.table, self.row, self.preset), None)
        value = found[1].get(self.column) if found else None
        if found is None or not isinstance(value, int | float):
            return Claim(self.claim, self.source, number(self.published), UNTESTED, UNTESTED, "")
        run, line = found
        contexts = evidence.lines(self.task, self.arch, self.each, (), self.preset)
        values = [cells[self.row[0]] for of, cells in contexts if of is run]
        bounds = mean_interval(values) if values else None
        # of correlations and the like, near one, what is missing is the error
        ours, published = (1 - value, 1 - self.published) if self.more else (value, self.published)
        verdict, why = weigh(ours, published, False, bounds), ""
        if self.floor and value <= line[self.floor]:
            verdict, why = UNTESTED, f"The exact predictor's own rollouts score {number(line[self.floor])} here: noise"
        measured = f"{number(value)}{ends(bounds)} (run {run.id}, {scene(run)})"
        return Claim(self.claim, self.source, number(self.published), measured, verdict, why)


@dataclass(frozen=True)
class Stated:
    """A published statement in words, with the column of a report's table that speaks to it, and when it holds."""

    claim: str
    source: str
    published: str
    task: str
    arch: str
    preset: str
    table: str
    column: str
    least: float = -inf
    most: float = inf

    def judge(self, evidence: Evidence) -> Claim:
        found = list(evidence.lines(self.task, self.arch, self.table, (), self.preset))
        if not found:
            return Claim(self.claim, self.source, self.published, UNTESTED, UNTESTED, "")
        run = found[0][0]
        values = sorted(cells[self.column] for of, cells in found if of is run)
        verdict = "reproduced" if self.least <= values[0] and values[-1] <= self.most else "not reproduced"
        bound = f"at least {self.least:g}" if self.least > -inf else f"at most {self.most:g}"
        told = " to ".join(dict.fromkeys(map(number, (values[0], values[-1]))))
        measured = f"{self.column} {told} (run {run.id}, {scene(run)})"
        why = f"It holds if that is {bound} in every row of the report's table"
        return Claim(self.claim, self.source, self.published, measured, verdict, why, "mechanism")


@dataclass(frozen=True)
class Mechanism:
    """A published statement about how a model works; the run's own report has weighed it, by a rule that it states."""

    source: str
    published: str
    task: str
    arch: str
    claim: str  # as the report's table of claims has it
    why: str = ""

    def judge(self, evidence: Evidence) -> Claim:
        found = list(evidence.lines(self.task, self.arch, "claims", (self.claim,)))
        name = f"{self.claim} ({self.arch} on {self.task})"
        if not found:
            return Claim(name, self.source, self.published, UNTESTED, UNTESTED, "")
        told = {"holds": "reproduced", "does not hold": "not reproduced"}
        run, line = next((f for f in found if f[1]["verdict"] in told), found[0])  # the first that could test it
        verdict = told.get(str(line["verdict"]), UNTESTED)
        measured = f"{plain(line['measured here'])} (run {run.id}, {scene(run)})"
        tested = [other for other, cells in found if cells["verdict"] in told and cells["verdict"] != line["verdict"]]
        if tested and verdict != UNTESTED:
            measured += f"; another verdict in {', '.join(f'run {other.id} ({scene(other)})' for other in tested)}"
        why = f"It holds if {plain(line['holds if'])}{self.why}"
        return Claim(name, self.source, self.published, measured, verdict, why, "mechanism")


def weigh(ours: float, published: float, failure: bool, bounds: tuple[float, float] | None = None) -> str:
    """Of a mean, and of the ends of its interval where it has one: the weaker success, or undecided."""

    def said(value: float) -> str:
        if published / SLACK <= value <= published * SLACK:
            return "reproduced"
        if failure:
            return "reproduced" if value > published else "not reproduced"
        return "exceeded" if value < published else "not reproduced"

    verdicts = {said(value) for value in (ours, *(bounds or ()))}
    if len(verdicts) == 1:
        return verdicts.pop()
    return UNDECIDED if "not reproduced" in verdicts else "reproduced"
