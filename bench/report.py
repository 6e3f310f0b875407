"""One run's own report: a folder with report.md, every figure as PNG and SVG, every table as CSV.

The record and its weights are read strictly or not at all; then each question of `bench.diagnostics` that applies is
asked in turn. A section that breaks is shown as failed, the others go on, and the exit code says so.
"""

from __future__ import annotations

import csv
import hashlib
import io
import math
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import safetensors.torch
from tabulate import tabulate

from bench.board import plain
from bench.diagnostics import QUESTIONS
from bench.diagnostics.base import NotAvailable, Question, Run, Section
from bench.records import BadRecord, parse_config, prepare_folder, read, write_whole
from bench.registry import BadInput

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


def load(path: Path, samples: int = 200, progress: Callable[[str, int, int], None] = lambda *_: None) -> Run:
    """A record with the weights that it names, or a refusal."""
    try:
        record = read(path)
    except BadRecord as error:
        raise BadInput(f"{path} is not a record: {error}") from error
    if record.status != "ok":
        raise BadInput(f"{path} is a failed run ({record.error}): there is nothing to report on")
    file = path.with_suffix(".safetensors")
    if not file.exists():
        raise BadInput(f"no weights at {file}: a report needs the model itself")
    weights = file.read_bytes()
    if f"sha256:{hashlib.sha256(weights).hexdigest()}" != record.weights:
        raise BadInput(f"{file} is not what {path} was measured on: its sha256 differs from the record's")
    config = parse_config(record.config)
    model = config.make_model()
    model.load_state_dict(safetensors.torch.load(weights))  # strict: every name, nothing else
    return Run(record, config, config.make_task(), model.eval(), samples, progress)


def write(run: Run, out: Path, questions: Sequence[Question] = QUESTIONS) -> list[str]:
    """Ask every question that applies; returns the titles of those that failed."""
    prepare_folder(out)
    c = run.config
    page = [f"# {c.task}, {plain(c.arch)}, seed {c.seed}", f"Run `{run.record.id}`, preset {plain(c.preset)}."]
    failed = []
    for question in (q for q in questions if q.applies(run)):
        page.append(f"## {question.title}")
        try:
            page += _show(question.ask(run), out)
        except NotAvailable as reason:
            page.append(f"n/a: {plain(reason)}")
        except Exception as error:
            traceback.print_exc()
            failed.append(question.title)
            page.append(f"**failed**: {plain(f'{type(error).__name__}: {error}')}")
    write_whole(out / "report.md", ("\n\n".join(page) + "\n").encode())
    return failed


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
