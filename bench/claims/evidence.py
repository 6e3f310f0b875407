"""What our records and reports say of a published claim: the rows that speak to it, the largest first, and in words."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import sqrt
from pathlib import Path
from statistics import mean, median
from typing import Any

from bench import SAMPLES
from bench.config import USUAL
from bench.presets import NEWER_BLOCK
from bench.records import REPORT, RunRecord
from bench.rows import mean_of, preset_values, references_of, same_settings, task_settings, untouched
from bench.stats import interval

SIZES = ("paper", "small", "quick")


@dataclass(frozen=True)
class Evidence:
    records: Sequence[RunRecord]
    reports: Mapping[str, dict[str, Any]]

    def rows(self, task: str, arch: str, supervision: str = "posterior") -> list[list[RunRecord]]:
        """Seeds of one setting, the largest setting first."""

        def speaks(record: RunRecord) -> bool:
            c = record.config
            ours = (c["task"], c["arch"], c["supervision"]) == (task, arch, supervision) and c["preset"] in SIZES
            return ours and record.status == "ok" and _usual_task(c)

        def place(row: list[RunRecord]) -> tuple[int, int, bool, int]:
            c = row[0].config
            return SIZES.index(c["preset"]), -c["steps"] * c["batch"], not untouched(c), -len(row)

        return sorted(same_settings([record for record in self.records if speaks(record)]), key=place)

    def row(self, task: str, arch: str, supervision: str, horizon: int, **settings: Any) -> list[RunRecord]:
        """The largest, of those that were scored at this horizon and have these settings."""
        rows = self.rows(task, arch, supervision)
        asked = (row for row in rows if settings.items() <= {**USUAL, **row[0].config}.items())
        return next((row for row in asked if all(r.metrics.get(str(horizon)) for r in row)), [])

    def lines(
        self, task: str, arch: str, table: str, start: tuple[str, ...], preset: str | None = None
    ) -> Iterator[tuple[RunRecord, dict[str, Any]]]:
        """A row of a report's table, by its first cells, from every run that has it, the largest first."""
        if preset is None:
            runs = [record for row in self.rows(task, arch) for record in row]
        else:
            wanted = (task, arch, preset)
            asked = [r for r in self.records if tuple(r.config[k] for k in ("task", "arch", "preset")) == wanted]
            runs = [r for r in asked if r.status == "ok" and untouched(r.config) and _usual_task(r.config)]
            runs.sort(key=lambda r: r.config["seed"])
        for run in runs:
            for section in self.reports.get(run.id, {}).get("sections", ()):
                for found in section["tables"]:
                    for cells in found["rows"]:
                        if found["name"] == table and tuple(cells[: len(start)]) == start:
                            yield run, dict(zip(found["header"], cells, strict=True))


def _usual_task(config: dict[str, Any]) -> bool:
    """The task as its preset has it, in all parameters."""
    own, usual = task_settings(config)
    return all(usual.get(name) == value for name, value in own.items())


def floors(row: list[RunRecord], horizon: int) -> dict[str, str]:
    """What predictors that read nothing score on the row's own sequences: by MAE, and the best of them by the curve.

    And what unbiased errors as large as the row's leave by chance where they are averaged first.
    """
    known = references_of(row, str(horizon))
    entropies = [mean(at_k) for at_k in zip(*(r.by_position[str(horizon)]["h_bayes"] for r in row), strict=True)]
    curve = mean(abs(h - median(entropies)) for h in entropies)
    found = {"uniform": known["uniform"], "constant": known["best constant"], "curve": curve}
    found["chance"] = mean_of(row, str(horizon), "entropy_mae") / sqrt(row[0].config["sequences"])
    return {name: number(value) for name, value in found.items()}


def scene(run: RunRecord) -> str:
    """The preset, draws if it was trained on them, and blocks that are not plain, or not the preset's."""
    names = [name for name in NEWER_BLOCK if name != "positions" or "transformer" in run.config["arch"]]
    newer = [run.config[name] for name in names if run.config.get(name) == NEWER_BLOCK[name]]
    usual = [preset_values(run.config).get(name) == NEWER_BLOCK[name] for name in names]
    block = newer or (["the plain block"] if any(usual) else [])
    return ", ".join(
        [f"preset {run.config['preset']}", *["sampled"] * (run.config["supervision"] == "sampled"), *block]
    )


def seeds(row: Sequence[object]) -> str:
    return f"{len(row)} seed{'s' * (len(row) > 1)}"


def given(run: RunRecord) -> str:
    return f"{run.config['steps']:,} steps of {run.config['batch']}"


def error_of(run: RunRecord) -> float:
    error: float = run.metrics[str(run.config["horizon"])]["all"]["entropy_mae"]
    return error


def number(value: float) -> str:
    return f"{value:.2g}" if abs(value) < 0.001 else f"{value:.4g}"


def spread(values: Sequence[float]) -> str:
    return number(mean(values)) + ends(interval(values))


def ends(bounds: tuple[float, float] | None) -> str:
    return f" [{number(bounds[0])}, {number(bounds[1])}]" if bounds else ""


def read_reports(folders: Sequence[Path], records: Sequence[RunRecord]) -> dict[str, dict[str, Any]]:
    """The reports that lie beside records, by run, from the first folder that has one that can be read."""
    found: dict[str, dict[str, Any]] = {}
    for folder, record in product(folders, records):
        path = folder / record.config["task"] / record.config["arch"] / record.id / REPORT
        try:
            report = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        # of fewer rollouts than usual posterior samples look better than they are
        if isinstance(report, dict) and report.get("run") == record.id and report.get("samples", SAMPLES) == SAMPLES:
            found.setdefault(record.id, report)
    return found
