"""The same small search for everyone: a grid of learning rates, on a seed of its own, at a fraction of the steps.

Every architecture on every task gets the preset's rates times each factor of GRID, both of Muon's and of AdamW's. The
rate with the least entropy MAE at the training horizon is used for all seeds of the row. What was tried, and what it
gave, becomes part of the config, so a tuned run has another id than an untuned one and its record holds the budget.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rich.console import Console

from bench import engine
from bench.config import RunConfig
from bench.records import TRIALS, RunRecord, prepare_folder

GRID = (0.5, 1.0, 2.0)
FRACTION = 4  # a trial has a quarter of the steps
SEED = 1_000_000  # no row of a table uses it


def tune(configs: list[RunConfig], plan: engine.Plan, console: Console) -> list[RunConfig]:
    """The configs with the rates that did best; trials are kept among the results, in a folder of their own."""
    folder = plan.out / TRIALS
    prepare_folder(folder)
    rows = {_row(config): config for config in configs}
    asked = {row: trials(config) for row, config in rows.items()}
    found = engine.run_all(
        [trial for grid in asked.values() for trial in grid], replace(plan, out=folder, snapshots=0), console
    )
    by_id = {record.id: record for record in found}
    chosen = {row: choose(rows[row], [by_id[trial.id()] for trial in grid]) for row, grid in asked.items()}
    return [replace(config, **chosen[_row(config)]) for config in configs]


def trials(config: RunConfig) -> list[RunConfig]:
    steps = max(1, config.steps // FRACTION)
    return [
        replace(
            config, seed=SEED, steps=steps, warmup=min(config.warmup, steps // 4), horizons=(config.horizon,),
            lr=config.lr * factor, adam_lr=config.adam_lr * factor,
        )
        for factor in GRID
    ]  # fmt: skip


def choose(config: RunConfig, records: list[RunRecord]) -> dict[str, Any]:
    """The best trial's rates and the whole search; a trial that failed has no error to compare, and stays in sight."""
    errors: dict[str, float | None] = {}
    for record in records:
        good = record.status == "ok"
        error = record.metrics[str(config.horizon)]["all"]["entropy_mae"] if good else None
        errors[f"{record.config['lr']:g}"] = None if error is None else float(f"{error:.4g}")
    finished = [record for record in records if record.status == "ok"]
    best = min(finished, key=lambda r: r.metrics[str(config.horizon)]["all"]["entropy_mae"], default=None)
    rates = {} if best is None else {"lr": best.config["lr"], "adam_lr": best.config["adam_lr"]}
    return {**rates, "tuning": {"seed": SEED, "steps": records[0].config["steps"], "errors": errors}}


def _row(config: RunConfig) -> str:
    return replace(config, seed=SEED).id()
