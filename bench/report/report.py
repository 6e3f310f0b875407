"""One run's own report: a folder with report.md, every figure as PNG and SVG, every table as CSV, all as report.json.

The record and its weights are read strictly or not at all; then each question of `bench.diagnostics` that applies is
asked in turn. A section that breaks is shown as failed, the others go on, and the exit code says so.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from tabulate import tabulate

from bench import SAMPLES
from bench.diagnostics import QUESTIONS
from bench.diagnostics.base import NotAvailable, Question, Run, Section, load_model
from bench.records import REPORT, BadRecord, parse_config, prepare_folder, read, write_whole
from bench.registry import BadInput
from bench.rows import plain
from bench.snapshots import find as find_snapshots

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


def load(path: Path, samples: int = SAMPLES, progress: Callable[[str, int, int], None] = lambda *_: None) -> Run:
    """A record with the weights that it names, or a refusal."""
    try:
        record = read(path)
    except BadRecord as error:
        raise BadInput(f"{path} is not a record: {error}") from error
    if record.status != "ok":
        raise BadInput(f"{path} is a failed run ({record.error}): there is nothing to report on")
    file = path.with_suffix(".safetensors")
    if not file.exists():
        raise BadInput(f"no weights at {file}: a report needs the model itself: train it again with bench run")
    weights = file.read_bytes()
    if f"sha256:{hashlib.sha256(weights).hexdigest()}" != record.weights:
        raise BadInput(f"{file} is not what {path} was measured on: its sha256 differs from the record's")
    config = parse_config(record.config)
    model = load_model(config, weights)
    return Run(record, config, config.make_task(), model, samples, progress, find_snapshots(path))


def write(run: Run, out: Path, questions: Sequence[Question] = QUESTIONS) -> list[str]:
    """Ask every question that applies; returns the titles of those that failed."""
    prepare_folder(out)
    c = run.config
    title = f"{c.task}, {c.arch}, seed {c.seed}"
    page = [f"# {plain(title)}", f"Run `{run.record.id}`, preset {plain(c.preset)}."]
    answers: list[dict[str, Any]] = []
    for question in (q for q in questions if q.applies(run)):
        page.append(f"## {question.title}")
        section, status = Section(""), "ok"
        try:
            section = question.ask(run)
            page += _show(section, out)
        except NotAvailable as reason:
            section, status = Section(str(reason)), "n/a"
            page.append(f"n/a: {plain(reason)}")
        except Exception as error:
            traceback.print_exc()
            section, status = Section(f"{type(error).__name__}: {error}"), "failed"
            page.append(f"**failed**: {plain(section.text)}")
        answers.append({"title": question.title, "status": status, **_as_json(section)})
    content = {"run": run.record.id, "title": title, "samples": run.samples, "sections": answers}
    write_whole(out / REPORT, (json.dumps(content, indent=1, allow_nan=False) + "\n").encode())
    write_whole(out / "report.md", ("\n\n".join(page) + "\n").encode())
    return [answer["title"] for answer in answers if answer["status"] == "failed"]


def _as_json(section: Section) -> dict[str, Any]:
    """For programs: numbers as they are, null where nothing was measured; figures by the name of their files."""
    return {
        "text": section.text,
        "tables": [
            {"name": t.name, "header": t.header, "rows": [[_value(cell) for cell in row] for row in t.rows]}
            for t in section.tables
        ],
        "figures": [{"name": p.name, "caption": p.caption} for p in section.pictures],
    }


def _value(cell: Any) -> Any:
    value = cell.item() if isinstance(cell, np.generic) else cell
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _show(section: Section, out: Path) -> list[str]:
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
