"""The report of a run as JSON: `bench report` writes it beside the record, the site and the claims read it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal, NamedTuple

from pydantic import ConfigDict, TypeAdapter, ValidationError

from bench import SAMPLES
from bench.config import explain
from bench.records import REPORT, RunRecord

BAYES = "bayes"  # the table of the tests that the site's summary shows
STRICT = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)
Cell = str | bool | int | float | None


class BadReport(ValueError):
    """A file that is not a complete report; the message says why, in one line."""


@dataclass(frozen=True)
class Table:
    __pydantic_config__: ClassVar = STRICT
    name: str
    header: list[str]
    rows: list[list[Cell]]


@dataclass(frozen=True)
class Figure:
    """An SVG and a PNG of this name lie beside the report."""

    __pydantic_config__: ClassVar = STRICT
    name: str
    caption: str


@dataclass(frozen=True)
class Section:
    __pydantic_config__: ClassVar = STRICT
    title: str
    status: Literal["ok", "n/a", "failed"]
    text: str
    tables: list[Table]
    figures: list[Figure]


class Finding(NamedTuple):
    """One test of whether a model is Bayesian; None where it was not asked, or where chance plays no part."""

    test: str
    value: float | None
    null: float | None  # the exact predictor's, a mean over repeats
    spread: float | None  # their standard deviation
    z: float | None


@dataclass(frozen=True)
class Report:
    __pydantic_config__: ClassVar = STRICT
    run: str
    title: str
    sections: list[Section]
    samples: int = SAMPLES  # rollouts of each context

    def lines(self, table: str) -> Iterator[dict[str, Cell]]:
        """The rows of a table by column name."""
        for section in self.sections:
            for found in section.tables:
                if found.name == table:
                    yield from (dict(zip(found.header, row, strict=True)) for row in found.rows)

    def bayes(self) -> list[Finding]:
        """The tests of whether the model is Bayesian; none in a report from before there were any."""
        columns = ("this run", "exact predictor", "its spread", "z")
        return [
            Finding(str(line.get("test")), *(_number(line.get(column)) for column in columns))
            for line in self.lines(BAYES)
        ]


def _number(cell: Cell) -> float | None:
    return float(cell) if isinstance(cell, int | float) and not isinstance(cell, bool) else None


FIELDS = TypeAdapter(Report)


def read(path: Path, run: str) -> Report:
    """The report of this run, whole and as agreed, or the reason why it is not."""
    try:
        report = FIELDS.validate_json(path.read_bytes())
    except OSError as error:
        raise BadReport(f"not readable ({error.strerror})") from error
    except ValidationError as error:
        raise BadReport(explain(error)) from error
    if report.run != run:
        raise BadReport(f"it is of run {report.run!r}")
    for section in report.sections:
        if bad := [f.name for f in section.figures if not re.fullmatch(r"[\w-]+", f.name)]:
            raise BadReport(f"{bad[0]!r} is not a figure's name")
        for table in section.tables:
            if any(len(row) != len(table.header) for row in table.rows):
                raise BadReport(f"table {table.name!r} has rows that do not fit its header")
    return report


@dataclass(frozen=True)
class Found:
    """A report, or why it cannot be read, and the folder that has its figures."""

    folder: Path
    report: Report | None
    problem: str = ""


def find(folders: Sequence[Path], records: Sequence[RunRecord]) -> dict[str, Found]:
    """The reports beside these records, by run; of several folders the first that has a readable one."""
    found: dict[str, Found] = {}
    for record in records:
        for root in folders:
            folder = root / record.path.with_suffix("")
            if not (folder / REPORT).is_file() or (record.id in found and found[record.id].report):
                continue
            try:
                found[record.id] = Found(folder, read(folder / REPORT, record.id))
            except BadReport as error:
                found.setdefault(record.id, Found(folder, None, f"{folder / REPORT} is not a report ({error})"))
    return found
