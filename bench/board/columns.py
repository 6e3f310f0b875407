"""The columns of a ranking, listed once: Markdown, terminal, site and CSV take theirs from here.

A new column is one more entry. It names the tables that show it, its text, what the site sorts by, and its numbers in
results.csv (with their lines in docs/reading.md).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from bench.board.glossary import NOT_REACHED
from bench.board.ranking import Line, Ranking, Reference, Row
from bench.board.tuning import search_runs
from bench.text import number

TABLES = ("ranking", "cost", "memory", "terminal", "site")
NOT_MEASURED, UNKNOWN = "not measured", "unknown"


@dataclass(frozen=True)
class Column:
    key: str
    title: str
    tables: Collection[str]  # of TABLES
    text: Callable[[Row], str]
    reference: Callable[[Reference], str] = lambda line: ""
    value: Callable[[Row], float | str | None] | None = None  # what the site sorts by
    csv: Mapping[str, Callable[[Row], Any]] = field(default_factory=dict)
    is_left: bool = False
    is_foreign: bool = False  # its text may come from a record, and may be hostile

    def cell(self, line: Line) -> str:
        return self.text(line) if isinstance(line, Row) else self.reference(line)


def columns(ranking: Ranking, table: str | None = None) -> list[Column]:
    """Those of one table of a ranking; without a table, all."""
    assert table is None or table in TABLES
    return [column for column in _all(ranking) if table is None or table in column.tables]


def _all(ranking: Ranking | None) -> list[Column]:
    """All columns; without a ranking, those that every ranking has."""
    error, other = ("KL", "MAE") if ranking and ranking.by_kl else ("MAE", "KL")
    trained, longer = (ranking.trained, ranking.longer) if ranking else (0, ())
    rows = ranking.rows if ranking else ()
    return [
        Column(
            "rank", "#", ("ranking", "terminal", "site"),
            lambda row: row.place,
            value=lambda row: row.scores.error,
            csv={"rank": lambda row: row.rank or row.place, "kl_rank": lambda row: row.kl_rank},
        ),
        Column(
            "arch", "architecture", ("ranking",),
            lambda row: row.arch + row.mark,
            lambda line: line.name,
            is_left=True, is_foreign=True,
        ),
        Column(
            "name", "architecture", ("cost", "memory", "terminal", "site"),
            lambda row: row.name + row.mark,
            lambda line: line.name,
            value=lambda row: row.name,
            is_left=True, is_foreign=True,
        ),
        Column(
            "error", f"{error} K={trained}", ("ranking", "terminal", "site"),
            lambda row: number(row.scores.error) + row.spread,
            lambda line: number(line.scores.error),
            value=lambda row: row.scores.error,
            csv={
                "interval_low": lambda row: row.interval and row.interval[0],
                "interval_high": lambda row: row.interval and row.interval[1],
            },
        ),
        Column(
            "other", other, ("ranking", "terminal", "site"),
            lambda row: number(row.other),
            lambda line: "" if line.other is None else number(line.other),
            value=lambda row: row.other,
        ),
        *([Column(
            "new", f"new to K={longer[-1]}", ("ranking", "terminal"),
            lambda row: optional(row.scores.new),
            lambda line: optional(line.scores.new),
        )] if longer else []),
        *(_new(k) for k in longer),
        *([Column(
            "memory", "memory", ("memory", "terminal", "site"),
            lambda row: str(row.memory or ""),
            value=lambda row: row.memory and row.memory.observations,
            csv={
                "memory_observations": lambda row: row.memory and row.memory.observations,
                "memory_bound": lambda row: row.memory and row.memory.bound,
            },
            is_foreign=True,
        )] if ranking is None or any(row.memory for row in rows) else []),
        Column(
            "parameters", "parameters", ("cost", "site"),
            lambda row: measured(row.records[0].parameters, ","),
            value=lambda row: row.records[0].parameters,
        ),
        Column("state", "state", ("cost",), lambda row: measured(row.records[0].state_bytes, ",")),
        Column(
            "steps", "steps x batch", ("cost",),
            lambda row: UNKNOWN if row.is_elsewhere else f"{row.config.steps:,} x {row.config.batch}",
        ),
        Column("flops", "FLOPs", ("cost",), lambda row: measured(row.records[0].train_flops, ".2e")),
        Column(
            "seconds", "seconds", ("cost", "terminal", "site"),
            lambda row: measured(row.seconds, ".0f"),
            value=lambda row: row.seconds,
        ),
        Column(
            "bytes", "peak MiB", ("cost", "site"),
            lambda row: NOT_MEASURED if row.peak_bytes is None else f"{row.peak_bytes / 2**20:,.0f}",
            value=lambda row: row.peak_bytes,
        ),
        *([Column(
            "joules", "energy, J", ("site",),
            lambda row: measured(row.joules, ",.0f"),
            value=lambda row: row.joules,
        )] if any(row.joules is not None for row in rows) else []),
        Column("lr", "lr", ("cost",), lambda row: UNKNOWN if row.is_elsewhere else f"{row.config.lr:g}", is_left=True),
        *([Column("search", "search: runs, FLOPs", ("cost",), _search)] if any(r.config.tuning for r in rows) else []),
        Column(
            "seeds", "seeds", ("ranking", "site"),
            lambda row: f"{len(row.records)}{row.sign}",
            value=lambda row: len(row.records),
        ),
        *([Column(
            "p", "p", ("ranking", "site"),
            lambda row: "" if row.p is None else f"{row.p:.2g}",
            value=lambda row: row.p,
            csv={"p": lambda row: row.p},
        )] if ranking is None or ranking.has_seeds else []),
        *([Column(
            "settings", "settings", ("ranking",),
            lambda row: " ".join(row.settings),
            csv={"is_preset_default": lambda row: row.is_preset_default},
            is_left=True, is_foreign=True,
        )] if ranking is None or any(row.settings for row in rows) else []),
    ]  # fmt: skip


def _new(k: int) -> Column:
    def error(line: Line) -> float | None:
        both = line.scores.longer[k]
        return both[1] if both else None

    return Column(f"new{k}", f"K={k} new", ("site",), lambda row: optional(error(row)), value=error)


def _search(row: Row) -> str:
    runs, flops = search_runs(row), row.records[0].train_flops
    return f"{runs}, {measured(flops and runs * flops, '.2e')}" if runs else ""


def measured(value: float | None, style: str) -> str:
    return NOT_MEASURED if value is None else format(value, style)


def optional(value: float | None) -> str:
    return NOT_REACHED if value is None else number(value)


CSV: Mapping[str, Callable[[Row], Any]] = {name: value for column in _all(None) for name, value in column.csv.items()}
