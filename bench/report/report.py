"""One run's own report: a folder with report.md, every figure as PNG and SVG, every table as CSV, all as report.json.

The record and its weights are read strictly or not at all; then each question of `bench.report.diagnostics`
that applies is asked in turn. A section that breaks is shown as failed, the others go on, and the exit code says so.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import matplotlib
import numpy as np
from tabulate import tabulate

from bench import SAMPLES, reports
from bench.records import REPORT, BadRecord, prepare_folder, read, weights_file, write_whole
from bench.registry import BadInput
from bench.report.diagnostics import QUESTIONS
from bench.report.diagnostics.base import (
    NOTHING_PUBLISHED,
    Literature,
    NotAvailable,
    Question,
    Run,
    Section,
    Table,
    load_model,
)
from bench.run.snapshots import find as find_snapshots
from bench.text import plain

COST = "What this report cost"
SHOWN = 40  # rows of a table that stand in the page; its CSV has all


def find(name: str, runs: Path) -> Path:
    """The record of a run: its path, a folder with nothing but it, or its id below a folder of records."""
    if Path(name).is_file():
        return Path(name)
    found = sorted(Path(name).glob("*.json")) if Path(name).is_dir() else sorted(runs.rglob(f"{Path(name).name}.json"))
    if len(found) != 1:
        which = f" {len(found)} records fit: {', '.join(path.stem for path in found)}" if found else " No record fits"
        raise BadInput(f"'{name}' does not name one run.{which}. Give a record's path, or its id below --runs {runs}")
    return found[0]


def find_all(name: str, runs: Path) -> list[Path]:
    """Every record of a folder that holds some, or the one record that is named."""
    return sorted(Path(name).glob("*.json")) or [find(name, runs)]


def load(
    path: Path,
    samples: int = SAMPLES,
    progress: Callable[[str, int, int], None] = lambda *_: None,
    literature: Literature = NOTHING_PUBLISHED,
) -> Run:
    """A record with the weights that it names, or a refusal."""
    try:
        record = read(path)
    except BadRecord as error:
        raise BadInput(f"{path} is not a record: {error}") from error
    if not record.ok:
        raise BadInput(f"{path} is a failed run ({record.error}): there is nothing to report on")
    if record.config.elsewhere:
        raise BadInput(f"{path} was trained elsewhere: a report looks inside a model of this suite")
    file = weights_file(path)
    if not file.exists():
        raise BadInput(f"no weights at {file}: a report needs the model itself: train it again with bench run")
    weights = file.read_bytes()
    if f"sha256:{hashlib.sha256(weights).hexdigest()}" != record.weights:
        raise BadInput(f"{file} is not what {path} was measured on: its sha256 differs from the record's")
    model = load_model(record.config, weights)
    task, snapshots = record.config.make_task(), find_snapshots(path)
    return Run(record, record.config, task, model, samples, progress, snapshots, literature)


def write(run: Run, out: Path, questions: Sequence[Question] = QUESTIONS) -> list[str]:
    """Ask every question that applies; returns the titles of those that failed."""
    prepare_folder(out)
    c = run.config
    title = f"{c.task}, {c.arch}, seed {c.seed}"
    page = [f"# {plain(title)}", f"Run `{run.record.id}`, preset {plain(c.preset)}."]
    asked = [q for q in questions if q.applies(run)]
    answers: dict[Question, tuple[reports.Section, list[str]]] = {}
    cost: list[list[Any]] = []
    for question in sorted(asked, key=lambda q: q.repeats):
        before = time.process_time()
        answers[question] = _answer(question, run, out)
        cost.append([question.title, time.process_time() - before])
    for question in asked:
        page += [f"## {question.title}", *answers[question][1]]
    cost.append(["all", sum(seconds for _, seconds in cost)])
    text = "CPU time of each section, in the order in which they were asked. What several share counts for the first."
    section = Section(text, [Table("cost", ["section", "seconds"], cost)])
    page += [f"## {COST}", *show(section, out)]
    sections = [*(answers[question][0] for question in asked), _as_data(COST, "ok", section)]
    content = asdict(reports.Report(run.record.id, title, sections, run.samples))
    write_whole(out / REPORT, (json.dumps(content, indent=1, allow_nan=False) + "\n").encode())
    write_whole(out / "report.md", ("\n\n".join(page) + "\n").encode())
    return [answer.title for answer in sections if answer.status == "failed"]


def _answer(question: Question, run: Run, out: Path) -> tuple[reports.Section, list[str]]:
    """A section as data and as paragraphs of the page."""
    section = Section("")
    status: Literal["ok", "n/a", "failed"] = "ok"
    try:
        section = question.answer(run)
        shown = show(section, out)
    except NotAvailable as reason:
        section, status = Section(str(reason)), "n/a"
        shown = [f"n/a: {plain(reason)}"]
    except Exception as error:
        traceback.print_exc()
        section, status = Section(f"{type(error).__name__}: {error}"), "failed"
        shown = [f"**failed**: {plain(section.text)}"]
    return _as_data(question.title, status, section), shown


def _as_data(title: str, status: Literal["ok", "n/a", "failed"], section: Section) -> reports.Section:
    """For programs: numbers as they are, null where nothing was measured; figures by the name of their files."""
    tables = [
        reports.Table(t.name, t.header, [[_value(cell) for cell in row] for row in t.rows]) for t in section.tables
    ]
    figures = [reports.Figure(p.name, p.caption) for p in section.pictures]
    return reports.Section(title, status, section.text, tables, figures)


def _value(cell: Any) -> Any:
    value = cell.item() if isinstance(cell, np.generic) else cell
    return None if isinstance(value, float) and not math.isfinite(value) else value


def show(section: Section, out: Path) -> list[str]:
    """A section in Markdown; its tables and pictures become files on the way."""
    parts = [section.text] if section.text else []
    for table in section.tables:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([table.header, *table.rows])
        write_whole(out / f"{table.name}.csv", text.getvalue().encode())
        rows = [[cell(value) for value in row] for row in table.rows[-SHOWN:]]
        align = ["right" if _numeric(column) else "left" for column in zip(*table.rows, strict=True)]
        parts.append(tabulate(rows, headers=table.header, tablefmt="pipe", colalign=align, disable_numparse=True))
        if len(table.rows) > SHOWN:
            file = f"{table.name}.csv"
            parts.append(f"The last {SHOWN} of {len(table.rows):,} rows; all of them are in [{file}]({file}).")
    for name, figure, caption in section.pictures:
        with matplotlib.rc_context({"svg.hashsalt": name}):  # the same figure, the same bytes
            for kind, metadata in (("png", {}), ("svg", {"Date": None})):
                image = io.BytesIO()
                figure.savefig(image, format=kind, dpi=130, metadata=metadata)
                write_whole(out / f"{name}.{kind}", image.getvalue())
        parts.append(f"![{caption}]({name}.png)")
    return parts


def cell(value: Any) -> str:
    """Four digits of a number; text as text; nothing where nothing was measured."""
    if value is None:
        return ""
    if isinstance(value, float):
        if value and not 1e-4 <= abs(value) < 1e6 and math.isfinite(value):
            return f"{value:.2e}"
        return f"{value:.4g}" if abs(value) < 1 else f"{value:,.4f}".rstrip("0").rstrip(".")
    return plain(value) if isinstance(value, str) else str(value)


def _numeric(column: Sequence[Any]) -> bool:
    return all(value is None or isinstance(value, int | float) for value in column)
