"""Every number as CSV: one row a record, columns documented in docs/reading.md.

Horizons differ between tasks, so columns count them: 1 is the training horizon, 2 and 3 are the others in ascending
order. Runs that were scored at more horizons get more columns.
"""

from __future__ import annotations

import csv
import io
from dataclasses import asdict
from typing import Any

from bench.board.columns import CSV
from bench.board.overview import FLOORS, Board
from bench.board.ranking import GOALS, Ranking, Row, first_step
from bench.config import UNKNOWN
from bench.records import Memory, RunRecord, Seconds
from bench.run.score import METRICS

HORIZONS = 3  # a preset's
COSTS = ("parameters", "budget", "state_bytes", "train_flops", "tokens_per_second", "energy_joules")
SETTINGS = ("horizon", "steps", "batch", "optimizer", "lr", "adam_lr", "weight_decay", "warmup", "clip", "layers",
            "heads", "width", "ffn", "positions", "activation", "decay", "precision",
            "value_lr", "attention", "sequences")  # fmt: skip


def render(board: Board) -> str:
    rows = [
        _values(ranking, row, record) for ranking in board.rankings for row in ranking.rows for record in row.records
    ]
    rows += [_identity(ranking, record) for ranking in board.rankings for record in ranking.failed]
    text = io.StringIO()
    most = max((len(ranking.horizons) for ranking in board.rankings), default=0)
    writer = csv.DictWriter(text, columns(max(HORIZONS, most)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def columns(count: int = HORIZONS) -> list[str]:
    names = ["id", "task", "arch", "preset", "supervision", "device", "seed", "status", "error"]
    names += ["self_reported", *CSV, "tuned", *SETTINGS]
    for i in range(1, count + 1):
        names += [f"K_{i}", *(f"{metric}_{i}" for metric in METRICS)]
        names += [f"{metric}_{i}_new" for metric in METRICS] if i > 1 else []
    names += [f"{floor.replace(' ', '_')}_{metric}" for floor in FLOORS for metric in ("entropy_mae", "kl")]
    names += [
        *COSTS,
        *(f"seconds_{name}" for name in asdict(Seconds())),
        *(f"bytes_{name}" for name in asdict(Memory())),
    ]
    names += [f"steps_to_{goal:g}" for goal in GOALS]
    return [*names, "machine", "torch", "commit", "dirty", "weights"]


def _identity(ranking: Ranking, record: RunRecord) -> dict[str, Any]:
    c = record.config
    return {
        "id": record.id,
        "task": ranking.group.label,
        "arch": c.label,
        **{name: getattr(c, name) for name in ("preset", "supervision", "device", "seed", *SETTINGS)},
        **{name: None for name in SETTINGS if c.elsewhere and name in UNKNOWN},
        "status": record.status,
        "error": record.error,
        "tuned": None if c.elsewhere else bool(c.tuning),
        "commit": record.commit,
        "dirty": record.dirty,
        "machine": record.platform.get("name"),
        "torch": record.platform.get("torch"),
    }


def _values(ranking: Ranking, row: Row, record: RunRecord) -> dict[str, Any]:
    values = _identity(ranking, record) | {
        "self_reported": row.is_self_reported,
        **{name: value(row) for name, value in CSV.items()},
        "weights": record.weights,
        **{name: getattr(record, name) for name in COSTS},
        **{f"seconds_{name}": value for name, value in asdict(record.seconds).items()},
        **{f"bytes_{name}": value for name, value in asdict(record.memory_bytes).items()},
    }
    for i, k in enumerate(ranking.horizons, start=1):
        values[f"K_{i}"] = k
        for part, suffix in (("all", ""), ("post", "_new")):
            metrics = (record.metrics.get(str(k)) or {}).get(part, {})
            values |= {f"{m}_{i}{suffix}": metrics[m] for m in METRICS if m in metrics}
    references = record.references[str(ranking.trained)] or {}
    for floor in FLOORS:
        for metric in ("entropy_mae", "kl"):
            values[f"{floor.replace(' ', '_')}_{metric}"] = references[floor]["all"][metric]
    for goal in GOALS:
        values[f"steps_to_{goal:g}"] = first_step(record, goal)
    return values
