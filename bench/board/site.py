"""The board as a site: one folder that opens from a file, without a network and without anything to build.

    index.html       the heat map of the headline track; rankings, curves, cost, primitives and claims
    runs/<id>.html   one run: curves, costs, config, platform, report, and the commands that make it again
    assets/          style, scripts, and the plotting library

The charts are drawn by Vega-Lite, whose two files are its package's own, unchanged, with their licence. Everything that
a record says is data: JSON in an inert element with every `<` escaped, which the scripts put into the page as text. A
figure of a report is shown as an image, which cannot run anything.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from bench import VERSION, reports
from bench.board.columns import columns
from bench.board.glossary import GLOSSARY, GUESSING, RECIPE_SEEDS, UNRANKED, explain
from bench.board.overview import PRIMITIVES, WORDS, Board, Overview, Verdict
from bench.board.palette import HIGH, HUES, INKS, LOW, RAMP, SHAPES, order_archs
from bench.board.ranking import Group, Ranking, Reference, Row, Scores
from bench.board.reproduce import commands
from bench.board.rows import group_of
from bench.records import SELF_REPORTED, RunRecord, prepare_folder, write_whole
from bench.registry import BadInput
from bench.run.score import METRICS
from bench.text import printable

ASSETS = ("page.css", "charts.js", "index.js", "run.js", "vega.min.js", "vega-lite.min.js", "LICENSE-vega.txt")
MARK = "tunnel-bench-page"  # every page of ours has it: a folder without it belongs to somebody else
POINTS = 256  # of a curve at most
CURVE_DIGITS = 4  # more than a screen can show


def write(
    out: Path,
    runs: Sequence[Path],
    board: Board,
    claims: Sequence[Mapping[str, Any]] = (),
    found: Mapping[str, reports.Found] | None = None,
) -> None:
    """Write the site. `runs` are the folders that the records were read from; `found` are the reports beside them."""
    prepare(out)
    found = found or {}
    everyone = [*board.records, *board.reported]
    shared = {
        "archs": order_archs(record.config.label for record in everyone),
        "hues": HUES,
        "shapes": list(SHAPES.values()),
        "ramp": RAMP,
        "ends": [LOW, HIGH],
    }
    sent = {record.id for record in board.reported}
    pages = {}
    for record in everyone:
        places = [folder / (SELF_REPORTED if record.id in sent else "") / record.path for folder in runs]
        place = next((place for place in places if place.exists()), places[0])
        title = f"{record.config.label} on {record.config.task_label}, seed {record.config.seed}"
        mark = "trained elsewhere" if record.config.elsewhere else "self-reported" if record.id in sent else ""
        data = {**shared, "mark": mark, **run_data(record, place, found.get(record.id))}
        pages[f"{record.id}.html"] = _fill("run.js", "..", title, data)
    text = _fill("index.js", ".", "tunnel-bench leaderboard", {**shared, **site_data(board, claims, found)})
    for folder in (out, out / "runs", out / "assets"):
        prepare_folder(folder, "--html")
    for name in ASSETS:
        write_whole(out / "assets" / name, (_colours() if name == "page.css" else b"") + _asset(name))
    for name, page in pages.items():
        write_whole(out / "runs" / name, page.encode())
    write_whole(out / "index.html", text.encode())
    for old in (out / "runs").glob("*.html"):
        if old.name not in pages:
            old.unlink()


def prepare(out: Path) -> None:
    """Refuse a folder that cannot be written, or that holds anything but a site of ours."""
    index = out / "index.html"
    ours = index.is_file() and MARK in index.read_text(encoding="utf-8", errors="replace")
    if out.is_dir() and any(out.iterdir()) and not ours:
        raise BadInput(f"{out} holds other files: name an empty folder, or one that --html has made")
    prepare_folder(out, "--html")


def _colours() -> bytes:
    """The inks as variables of the style sheet, by the name that it uses."""
    names = {"back": "card", "page": "back"}
    light, dark = (
        " ".join(f"--{names.get(name, name)}: {ink};" for name, ink in INKS[theme].items())
        for theme in ("light", "dark")
    )
    return f":root {{ {light} }}\n@media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}\n".encode()


def _asset(name: str) -> bytes:
    return (files("bench.board") / "assets" / name).read_bytes()


def _fill(script: str, root: str, title: str, data: dict[str, Any]) -> str:
    """A page around its data. An escaped `<` cannot close the element that holds it."""
    inert = json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    template = Template(_asset("page.html").decode())
    return template.substitute(title=escape(title), root=root, script=script, mark=MARK, data=inert)


def site_data(
    board: Board, claims: Sequence[Mapping[str, Any]], found: Mapping[str, reports.Found] | None = None
) -> dict[str, Any]:
    """The data of index.html, rounded to what can be seen."""
    return {
        "version": VERSION,
        "counts": {
            "run": len(board.records) + len(board.reported),
            "architecture": len({record.config.label for record in (*board.records, *board.reported)}),
            "task": len({ranking.task for ranking in board.rankings}),
        },
        "overviews": [_overview(overview) for overview in board.overviews],
        "groups": [_ranking(ranking) for ranking in board.rankings],
        "primitives": {
            "names": list(PRIMITIVES),
            "legend": WORDS,
            "tracks": [
                {
                    **overview.track._asdict(),
                    "rows": [
                        [arch, *(_verdict(overview.verdicts[arch][primitive]) for primitive in PRIMITIVES)]
                        for arch in overview.archs
                    ],
                }
                for overview in board.overviews
            ],
        },
        "bayes": _bayes(board, found or {}),
        "claims": list(claims),
        "marks": {"heat": explain(UNRANKED), "ranking": explain(UNRANKED, RECIPE_SEEDS, GUESSING)},
        "legend": list(GLOSSARY.items()),
    }


def _bayes(board: Board, found: Mapping[str, reports.Found]) -> list[dict[str, Any]]:
    """One row for each run whose report has these tests: by test, its number, the null, its spread, and z."""
    rows: list[dict[str, Any]] = []
    sent = {record.id for record in board.reported}
    for record in (*board.records, *board.reported):
        report = found[record.id].report if record.id in found else None
        tests = {finding.test: _round(finding[1:]) for finding in report.bayes()} if report else {}
        if tests:
            group = _group(group_of(record.config))
            who = {"arch": record.config.arch, "seed": record.config.seed, "id": record.id, "self": record.id in sent}
            rows.append({**group, **who, "tests": tests})
    archs = order_archs(row["arch"] for row in rows)
    return sorted(rows, key=lambda row: (row["task"], row["preset"], archs.index(row["arch"]), row["seed"]))


def _overview(overview: Overview) -> dict[str, Any]:
    """The heat map: cells as [architecture, task, error, share, seeds agree, compares, number of seeds]."""
    return {
        **overview.track._asdict(),
        "tasks": overview.tasks,
        "archs": overview.archs,
        "baselines": overview.baselines,
        "cells": [
            [
                arch,
                task,
                *_round([cell.row.scores.error, cell.share]),
                cell.seeds_agree,
                cell.row.compares,
                len(cell.row.records),
            ]
            for (arch, task), cell in overview.cells.items()
        ],
        "floors": [
            [name, *(_round(overview.floors[task][name]) for task in overview.tasks)]
            for name in next(iter(overview.floors.values()), {})
        ],
    }


def _group(group: Group) -> dict[str, str]:
    return {"task": group.label, **group.track._asdict()}


def _verdict(verdict: Verdict) -> list[Any]:
    return [verdict.word, _round(verdict.shares)]


def _ranking(ranking: Ranking) -> dict[str, Any]:
    """One ranking with its curves."""
    reach = max((row.reach for row in ranking.rows), default=ranking.trained)
    stride = math.ceil(reach / POINTS)
    exams: dict[str, list[float]] = {}  # H_Bayes of the sequences that a row was scored on
    rows = []
    shown, first = columns(ranking, "site"), ranking.one_row_each(with_reported=True)
    for row in ranking.rows:
        exam = f"{row.reach} {sorted(row.errors)}"
        if exam not in exams:
            exams[exam] = _thinned(row.curve("h_bayes"), stride)
        rows.append(
            {
                "cells": [column.text(row) for column in shown],
                "keys": [_round(column.value(row)) if column.value else None for column in shown],
                "name": row.name,
                "arch": row.arch,
                "mark": row.provenance,
                "own": row.compares,
                "shown": first[row.arch] is row,
                "runs": [[record.config.seed, record.id] for record in row.records],
                **_scores(row.scores),
                "interval": _round(row.interval),
                **_costs(row),
                "exam": exam,
                "h": _thinned(row.curve("h_model"), stride),
                "e": _thinned(row.error_curve, stride),
            }
        )
    return {
        **_group(ranking.group),
        "trained": ranking.trained,
        "longer": ranking.longer,
        "columns": [[column.key, column.title, column.is_left] for column in shown],
        "machine": " and ".join(sorted({printable(record.platform["name"]) for record in ranking.records})),
        "refs": [_reference(reference) for reference in ranking.references],
        "k": list(range(1, reach + 1, stride)),
        "exams": exams,
        "rows": rows,
        "failed": [
            {"id": r.id, "arch": r.config.label, "seed": r.config.seed, "error": printable(r.error)}
            for r in ranking.failed
        ],
    }


def _thinned(curve: list[float], stride: int) -> list[float]:
    """Every n-th position."""
    rounded: list[float] = _round(curve[::stride], CURVE_DIGITS)
    return rounded


def _scores(scores: Scores) -> dict[str, Any]:
    longer = {k: _round(list(pair)) if pair else [None, None] for k, pair in scores.longer.items()}
    names = ("error", "other", "mae", "kl", "curve")
    return {**{name: _round(getattr(scores, name)) for name in names}, "at": longer}


def _reference(reference: Reference) -> dict[str, Any]:
    return {"name": reference.name, **_scores(reference.scores), "other": _round(reference.other)}


def _costs(row: Row) -> dict[str, Any]:
    """Null where it was not measured."""
    first = row.records[0]
    return {
        "seconds": _round(row.seconds),
        "flops": _round(first.train_flops),
        "bytes": row.peak_bytes,
        "joules": _round(row.joules),
        "parameters": first.parameters,
        "state": first.state_bytes,
        "steps": None if row.is_elsewhere else row.config.steps,
    }


def _round(value: Any, digits: int = 7) -> Any:
    """Round every number to so many digits; infinity becomes null, because no axis can show it."""
    if isinstance(value, float):
        return float(f"{value:.{digits}g}") if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _round(item, digits) for key, item in value.items()}
    return [_round(item, digits) for item in value] if isinstance(value, list | tuple) else value


def run_data(record: RunRecord, place: Path, report: reports.Found | None = None) -> dict[str, Any]:
    """The data of a run's page; `place` is where its record lies."""
    kept = ("id", "status", "platform", "notes", "parameters", "budget", "commit", "dirty", "weights", "state_bytes")
    return {
        **{name: getattr(record, name) for name in kept},
        **{name: _round(getattr(record, name)) for name in ("train_flops", "energy_joules", "tokens_per_second")},
        "config": record.config.to_json(),
        "label": record.config.label,
        "task": record.config.task_label,
        "supervision": record.config.supervision,
        "seconds": vars(record.seconds),
        "memory_bytes": vars(record.memory_bytes),
        "ranking": group_of(record.config).label,
        "error": printable(record.error) if record.error else None,
        "total": _round(record.seconds.total) if record.ok and not record.config.elsewhere else None,
        "metrics": METRICS,
        "scores": _run_scores(record) if record.ok else [],
        "curves": {k: _thin(curves) for k, curves in record.by_position.items() if curves},
        "training": [_round([look.step, look.seconds, look.entropy_mae]) for look in record.loss_curve],
        "commands": commands(record, place),
        "report": _report(report),
    }


def _run_scores(record: RunRecord) -> list[list[Any]]:
    """[horizon, part, predictor, metrics...] for the run and, below it, the references on the same sequences."""
    found = []
    for k, parts in record.metrics.items():
        for part, metrics in (parts or {}).items():
            known = {name: of_part[part] for name, of_part in (record.references[k] or {}).items()}
            for name, values in ((None, metrics), *known.items()):
                found.append([int(k), part, name, *(_round(values.get(metric)) for metric in METRICS)])
    return found


def _thin(curves: dict[str, list[float]]) -> dict[str, Any]:
    length = len(curves["h_model"])
    stride = math.ceil(length / POINTS)
    short = {"b": "h_bayes", "h": "h_model", "e": "entropy_mae"}
    thinned = {key: _round(curves[name][::stride], CURVE_DIGITS) for key, name in short.items()}
    return {"k": list(range(1, length + 1, stride)), **thinned}


def _report(found: reports.Found | None) -> dict[str, Any] | None:
    """The run's report with its figures, or the reason why it is not shown."""
    if found is None:
        return None
    try:
        sections = [_section(section, found.folder) for section in found.report.sections] if found.report else []
        return {"sections": sections} | ({"problem": printable(found.problem)} if found.problem else {})
    except OSError as error:
        return {"problem": printable(f"a figure of the report is missing ({error})"), "sections": []}


def _section(section: reports.Section, folder: Path) -> dict[str, Any]:
    return {
        "title": section.title,
        "status": section.status,
        "text": section.text,
        "tables": [{"name": t.name, "header": t.header, "rows": _round(t.rows, 5)} for t in section.tables],
        "figures": [{"caption": f.caption, "source": _image(folder, f.name)} for f in section.figures],
    }


def _image(folder: Path, name: str) -> str:
    image = (folder / f"{name}.svg").read_bytes()
    return f"data:image/svg+xml;base64,{base64.b64encode(image).decode()}"
