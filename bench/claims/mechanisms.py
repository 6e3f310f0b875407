"""Claims about how a model works are judged from the reports of several seeds, by the rules of bench.statements.

The row is the largest with at least three seeds whose reports can answer, else the one with most of them. It decides if
its seeds agree and their errors are at most twice the least that is known for the task; otherwise it is undecided.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from statistics import mean
from typing import ClassVar

from bench.claims.evidence import Evidence, ends, seeds, setting, spread
from bench.claims.verdicts import REFUTED, REPRODUCED, UNDECIDED, Verdict, to_float
from bench.reports import Report
from bench.statements import SEEDS, STATEMENTS, Answered, Holds, Number, judge
from bench.stats import mean_interval
from bench.text import significant

FIRST = 2  # numbers that a cell shows; its note has the others
WORDS = {"holds": REPRODUCED, "does not hold": REFUTED, "undecided": UNDECIDED}


def decide(claimed: Verdict, evidence: Evidence, holds: Holds, runs: Sequence[Answered], why: str) -> Verdict:
    """The verdict of these runs, with where they are from; what was measured is the caller's to say."""
    word, reason = judge(holds, runs, evidence.best(runs[0].record.config))
    ids = ", ".join(run.record.id for run in runs)
    where = f"{setting(runs[0].record)}, {seeds(runs)} (run{'s' * (len(runs) > 1)} {ids})"
    return claimed._replace(where=where, why=f"{why}. {reason[0].upper()}{reason[1:]}", verdict=WORDS[word])


@dataclass(frozen=True)
class SeedStatement:
    """A published statement that bench.statements has a rule for."""

    id: str
    statement: str  # its id there
    claim: str
    source: str
    published: str
    task: str
    arch: str
    params: Mapping[str, object] = field(default_factory=dict)  # of the task, where they are not the preset's
    why: str = ""

    def judge(self, evidence: Evidence) -> Verdict:
        claimed = Verdict(self.id, self.claim, self.source, self.published, "mechanism")
        rule, holds, shown = STATEMENTS[self.statement]
        runs = evidence.seeded(self.task, self.arch, holds, self.params)
        runs = runs or evidence.seeded(self.task, self.arch, self._measured, self.params)
        if not runs:
            return claimed
        numbers = [f"{of.name} {told}" for of in shown if (told := tell(of, runs))]
        also = f"Also: {'; '.join(numbers[FIRST:])}. " if numbers[FIRST:] else ""
        decided = decide(claimed, evidence, holds, runs, f"{also}It holds if {rule}{self.why}")
        return decided._replace(ours="; ".join(numbers[:FIRST]))

    def _measured(self, report: Report) -> bool | None:
        """Whether the report has every number, though they decide nothing."""
        return all(of.read(report) is not None for of in STATEMENTS[self.statement].shown) or None


def tell(of: Number, runs: Sequence[Answered]) -> str:
    """Its mean, with the interval over seeds where there are several; empty where no report has it."""
    values = [value for run in runs if (value := of.read(run.report)) is not None]
    if not values or of.by_factors:
        return spread(values) if values else ""
    return significant(mean(values)) + ends(mean_interval(values) if len(values) > 1 else None)


@dataclass(frozen=True)
class Mechanism:
    """A published statement that each run's own report has tested, by a rule that it states."""

    id: str
    statement: str  # its id in the reports' table of claims
    claim: str
    source: str
    published: str
    task: str
    arch: str
    why: str = ""
    ANSWERS: ClassVar = {"holds": True, "does not hold": False}

    def judge(self, evidence: Evidence) -> Verdict:
        claimed = Verdict(self.id, self.claim, self.source, self.published, "mechanism")
        runs = evidence.seeded(self.task, self.arch, self._holds)
        if runs:
            told = [(run.record.config.seed, self._line(run.report)) for run in runs]
            by_seed = "; ".join(f"seed {seed}: {line['measured here']}" for seed, line in told)
            why = f"It holds if {told[0][1]['holds if']}{self.why}"
            if len(told) == 1:
                ours = str(told[0][1]["measured here"])
            else:
                ours = f"holds in {sum(self._holds(run.report) is True for run in runs)} of {len(told)} seeds"
                why = f"{by_seed}. {why}"
            if len({line["holds if"] for _, line in told}) > 1:
                why = "Its reports were written by different rules: write them again"
                return claimed._replace(ours=ours, why=why, verdict=UNDECIDED)
            return decide(claimed, evidence, self._holds, runs, why)._replace(ours=ours)
        asked = evidence.seeded(self.task, self.arch, lambda report: bool(self._line(report)) or None)
        if not asked:
            return claimed
        return claimed._replace(  # why it cannot be tested
            ours=str(self._line(asked[0].report)["measured here"]),
            where=f"run {asked[0].record.id}, {setting(asked[0].record)}",
        )

    def _line(self, report: Report) -> dict[str, object]:
        return next(({**line} for line in report.lines("claims") if line.get("id") == self.statement), {})

    def _holds(self, report: Report) -> bool | None:
        return self.ANSWERS.get(str(self._line(report).get("verdict")))


@dataclass(frozen=True)
class ReportStatement:
    """A published statement in words, with the column of a report's table that speaks to it, and when it holds."""

    id: str
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
    row: Mapping[str, str] = field(default_factory=dict)  # columns that name the rows that count, if not all do

    def judge(self, evidence: Evidence) -> Verdict:
        claimed = Verdict(self.id, self.claim, self.source, self.published, "mechanism")
        by_run: dict[str, list[float]] = defaultdict(list)
        runs = {}
        lines = evidence.lines(self.task, self.arch, self.table, self.preset)
        for run, cells in ((run, cells) for run, cells in lines if self.row.items() <= cells.items()):
            by_run[run.id].append(to_float(cells[self.column]))
            runs[run.id] = run
        if not runs:
            return claimed
        values = sorted(value for found in by_run.values() for value in found)
        held = {self.least <= min(found) and max(found) <= self.most for found in by_run.values()}
        first, few = next(iter(runs.values())), len(runs) < SEEDS
        verdict = UNDECIDED if few or len(held) > 1 else REPRODUCED if True in held else REFUTED
        bound = f"at least {self.least:g}" if self.least > -inf else f"at most {self.most:g}"
        return claimed._replace(
            ours=f"{self.column} {' to '.join(dict.fromkeys(map(significant, (values[0], values[-1]))))}",
            where=f"{setting(first)}, {seeds(list(runs))} (run{'s' * (len(runs) > 1)} {', '.join(runs)})",
            why=f"It holds if that is {bound} in every row of the report's table"
            + (f". Undecided: a verdict takes {SEEDS} seeds" if few else ""),
            verdict=verdict,
        )
