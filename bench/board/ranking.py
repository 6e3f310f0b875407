"""What a table shows: rankings of rows, with every number that a renderer prints.

A ranking holds the rows of one task, preset, supervision and device. A row holds the seeds of one architecture with one
set of settings. rows.py makes these objects from records. Markdown, terminal, site, CSV and figures format them and
compute nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, mean
from typing import NamedTuple

from bench.board.glossary import GUESSING, RECIPE_SEEDS, UNRANKED
from bench.config import UNKNOWN, RunConfig, mark_external
from bench.presets import PRESETS
from bench.records import RunRecord
from bench.run.references import EffectiveMemory
from bench.stats import two_groups
from bench.text import number, printable

GOALS = (0.1, 0.03, 0.01, 0.003)  # bits: the errors whose first step is reported
LONG, CLEARLY = 16, 0.95  # observations, and the share of that window's KL that shows a longer memory


class Track(NamedTuple):
    """What all rankings of one overview share."""

    preset: str
    supervision: str
    device: str

    def __str__(self) -> str:
        known = f"{self.supervision} supervision" if self.supervision != UNKNOWN["supervision"] else "trained elsewhere"
        return f"preset {self.preset}, {known}, {self.device}"


class Group(NamedTuple):
    """What may be ranked together."""

    task: str
    source: str  # the hash of its code if it is external
    unusual: tuple[tuple[str, str], ...]  # names and values of the task's parameters that are not its preset's
    preset: str
    supervision: str
    device: str

    @property
    def track(self) -> Track:
        return Track(self.preset, self.supervision, self.device)

    @property
    def is_preset_task(self) -> bool:
        """Trained here, on a task with its preset's parameters. With others it is another task, named so."""
        ours = not self.source and self.supervision != UNKNOWN["supervision"]
        return ours and self.preset in PRESETS and not self.unusual

    @property
    def label(self) -> str:
        """The task with every unusual parameter, "hmm states=3", and marked if it is external."""
        unusual = (f"{name}={value}" for name, value in self.unusual)
        return printable(" ".join([mark_external(self.task, self.source), *unusual]))

    def __str__(self) -> str:
        return f"{self.label}: {self.track}"


class Scores(NamedTuple):
    """Errors of a row or of a reference predictor in bits, means over seeds."""

    mae: float
    kl: float
    curve: float
    longer: dict[int, tuple[float, float] | None]  # by horizon: error on all positions and on the new ones; None: n/a
    by_kl: bool = False  # the task's answers are certain, so that the KL is the error

    @property
    def error(self) -> float:
        """The number that ranks."""
        return self.kl if self.by_kl else self.mae

    @property
    def other(self) -> float:
        """The number beside it."""
        return self.mae if self.by_kl else self.kl

    @property
    def new(self) -> float | None:
        """The error on the new positions of the longest horizon; None where it was not scored."""
        last = self.longer[max(self.longer)] if self.longer else None
        return last[1] if last else None


@dataclass(frozen=True)
class Row:
    """One architecture with one set of settings; its seeds are its records."""

    arch: str
    settings: tuple[str, ...]  # those that are not the preset's, as key=value
    records: tuple[RunRecord, ...]
    scores: Scores
    interval: tuple[float, float] | None  # of the error that ranks, over seeds; None for a single seed
    memory: EffectiveMemory | None  # where the task has window references
    is_preset_default: bool  # every setting is the preset's, or was chosen by the search
    is_self_reported: bool
    is_informed: bool  # its KL is below the uniform predictor's
    has_recipe_seeds: bool = False  # seeds that were also used to choose the recipe
    compares: bool = False  # it has the preset's settings and fresh seeds, and is tuned if two such rows are
    rank: int | None = None
    kl_rank: int | None = None  # by the KL, where its mean orders this row and another one differently
    p: float | None = None  # against the ranked row above, corrected for all tests of the table

    @property
    def name(self) -> str:
        return printable(" ".join([self.arch + self.sign, *self.settings]))

    @property
    def sign(self) -> str:
        return RECIPE_SEEDS if self.has_recipe_seeds else ""

    @property
    def other(self) -> float:
        return self.scores.other

    @property
    def provenance(self) -> str:
        """Who trained it, if not we."""
        return "trained elsewhere" if self.is_elsewhere else "self-reported" if self.is_self_reported else ""

    @property
    def mark(self) -> str:
        """What follows its name."""
        return f" ({self.provenance})" if self.provenance else ""

    @property
    def place(self) -> str:
        """The rank, or a mark if it has none."""
        if self.rank and self.kl_rank:
            return f"{self.rank} (KL {self.kl_rank})"
        return str(self.rank) if self.rank else UNRANKED if self.is_informed else GUESSING

    @property
    def errors(self) -> dict[int, float]:
        return {record.config.seed: record.error_bits for record in self.records}

    @property
    def groups(self) -> tuple[int, float] | None:
        """How many seeds are on the better side and their mean error, if the seeds fall apart; else None."""
        return two_groups(list(self.errors.values()))

    @property
    def spread(self) -> str:
        """What follows its error: the interval over seeds, or how many did well where they fall apart."""
        if self.groups:
            count, error = self.groups
            return f" ({count} of {len(self.records)} seeds: {number(error)})"
        return f" [{number(self.interval[0])}, {number(self.interval[1])}]" if self.interval else ""

    @property
    def config(self) -> RunConfig:
        return self.records[0].config

    @property
    def is_elsewhere(self) -> bool:
        """Trained elsewhere: its settings are unknown, so it is never ranked."""
        return bool(self.config.elsewhere)

    @property
    def peak_bytes(self) -> int | None:
        kind = "allocated" if self.config.device == "cuda" else "resident"
        known = [getattr(record.memory_bytes, kind) for record in self.records]
        return max((peak for peak in known if peak is not None), default=None)

    @property
    def seconds(self) -> float | None:
        """None for a model that was trained elsewhere, or beside others in one process."""
        return mean_of_all(None if self.is_elsewhere else record.seconds.total for record in self.records)

    @property
    def joules(self) -> float | None:
        """None unless every seed measured it: a mean over some would be a selection."""
        return mean_of_all(record.energy_joules for record in self.records)

    @property
    def reach(self) -> int:
        """The longest horizon that all seeds could read."""
        return longest(self.records)

    def curve(self, name: str) -> list[float]:
        """A curve by position up to that horizon, its mean over seeds."""
        curves = [(record.by_position[str(self.reach)] or {})[name] for record in self.records]
        return [fmean(at_k) for at_k in zip(*curves, strict=True)]

    @property
    def error_curve(self) -> list[float]:
        """The error that ranks, by position."""
        return self.curve("kl" if self.scores.by_kl else "entropy_mae")


class Part(NamedTuple):
    """A row or a reference predictor on each part of an evaluation."""

    name: str
    is_reference: bool
    kls: list[float]  # bits, at the training horizon


class Parts(NamedTuple):
    names: tuple[str, ...]
    lines: tuple[Part, ...]


@dataclass(frozen=True)
class Worth:
    """What the search of block and learning rate was worth for a tuned row (tuning.py)."""

    arch: str
    before: float  # the preset's setting
    after: float  # the chosen setting, on the same seeds
    seeds: int  # fresh ones that both have; 0: the first tuning seed
    bounds: tuple[float, float] | None  # of their ratio, over fresh seeds
    chosen: str
    is_edge: bool  # no rate beyond the chosen one was tried
    place_before: int = 0  # among the rows of the table
    place_after: int = 0

    @property
    def ratio(self) -> float:
        return self.after / self.before

    @property
    def places(self) -> str:
        return f"{self.place_before} → {self.place_after}"


class Reference(NamedTuple):
    """A predictor that was not trained."""

    name: str
    scores: Scores

    @property
    def other(self) -> float | None:
        """None for the best constant, which is fitted to the MAE and to nothing else."""
        return None if self.name == "best constant" else self.scores.other


Line = Row | Reference


@dataclass(frozen=True)
class Ranking:
    group: Group
    trained: int  # the training horizon
    longer: tuple[int, ...]  # the horizons beyond it at which any row was scored
    rows: tuple[Row, ...]  # best first
    references: tuple[Reference, ...]  # without the best constant where answers are certain
    failed: tuple[RunRecord, ...]
    parts: Parts | None = None  # where the task's settings add evaluations
    worths: tuple[Worth, ...] = ()  # what tuning was worth for each tuned row

    @property
    def task(self) -> str:
        """The task's own name, without parameters."""
        return self.group.task

    @property
    def by_kl(self) -> bool:
        """Whether the KL ranks, because answers are certain."""
        return any(row.scores.by_kl for row in self.rows)

    @property
    def baseline_name(self) -> str:
        """The best predictor that reads nothing."""
        return "uniform" if self.by_kl else "best constant"

    @property
    def baseline(self) -> float:
        return self.reference(self.baseline_name).error

    @property
    def lines(self) -> list[Line]:
        """Rows and references, the least error first; on a tie the reference comes first."""
        return sorted((*self.references, *self.rows), key=lambda line: line.scores.error)

    @property
    def compared(self) -> list[Line]:
        """The same without the rows that do not compare; all lines if no row does."""
        found = [line for line in self.lines if isinstance(line, Reference) or line.compares]
        return found if any(isinstance(line, Row) for line in found) else self.lines

    @property
    def records(self) -> list[RunRecord]:
        """The records of all rows."""
        return [record for row in self.rows for record in row.records]

    @property
    def horizons(self) -> list[int]:
        """The training horizon first, then every other one at which a row was scored."""
        scored = {int(k) for record in self.records for k, known in record.references.items() if known}
        return [self.trained, *sorted(scored - {self.trained})]

    @property
    def long_memories(self) -> list[Row] | None:
        """Rows that clearly beat the longest window; None where the task has no such window."""
        window = f"window {LONG}"
        if window not in (reference.name for reference in self.references):
            return None
        return [row for row in self.rows if row.scores.kl < CLEARLY * self.reference(window).kl]

    @property
    def joules(self) -> float | None:
        return mean_of_all(record.energy_joules for record in self.records)

    @property
    def utilisation(self) -> float | None:
        """Share of a GPU's peak arithmetic that training reached."""
        return mean_of_all((record.platform.get("gpu") or {}).get("flops_utilisation") for record in self.records)

    @property
    def why_unranked(self) -> str:
        """Why no row has a rank yet; empty if one has, or if settings are the reason."""
        if not self.rows or any(row.rank for row in self.rows) or self.rows[0].is_elsewhere:
            return ""
        if all(row.config.is_recipe_work for row in self.rows):
            return "Not ranked yet: every row has recipe seeds (below 10), which were also used to choose the recipe."
        if any(row.compares for row in self.rows):
            return "Not ranked yet: every row that compares has a single seed."
        return ""

    @property
    def has_seeds(self) -> bool:
        return any(len(row.records) > 1 for row in self.rows)

    def reference(self, name: str) -> Scores:
        return next(reference.scores for reference in self.references if reference.name == name)

    def one_row_each(self, with_reported: bool = False) -> dict[str, Row]:
        """Each architecture's row that compares with the others', or its best with the preset's settings, or its best.

        A self-reported row counts only if asked for, and then only where there is no other.
        """
        rows = [row for row in self.rows if with_reported or not row.is_self_reported]
        found: dict[str, Row] = {}
        for row in sorted(rows, key=lambda r: (r.is_self_reported, not r.compares, not r.is_preset_default)):
            found.setdefault(row.arch, row)
        return found


def longest(records: Sequence[RunRecord]) -> int:
    """The longest horizon that all of these could read."""
    return max(set.intersection(*({int(k) for k, curves in r.by_position.items() if curves} for r in records)))


def first_step(record: RunRecord, bits: float) -> int | None:
    """The first evaluation during training with this MAE or less; None if there is none."""
    return next((look.step for look in record.loss_curve if look.entropy_mae <= bits), None)


def mean_of_all(values: Iterable[float | None]) -> float | None:
    """The mean; None if one value is missing, or if there are no values."""
    found = list(values)
    known = [value for value in found if value is not None]
    return mean(known) if known and len(known) == len(found) else None
