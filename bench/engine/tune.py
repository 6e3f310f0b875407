"""The same search of block and learning rate for every architecture on every task.

A trial is a run with all steps of the row, on a seed that no published row has. Two blocks are offered, the preset's
and the other one: plain (squared ReLU) or newer (SwiGLU, and a shift for every mixer that has no convolution). Both
are tried at the preset's rate on the first tuning seed. For the better block, the rates a factor of two above and below
follow, and more while the best is at an edge, five at the most. The two best trials are repeated on the second tuning
seed, and the least geometric mean of the two errors wins. Muon's rate and AdamW's are scaled together. The search and
its errors become part of the config: a tuned run has another id than an untuned one, and its record shows what was
tried.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf, log
from statistics import mean
from typing import Any, NamedTuple

from rich.console import Console

from bench.config import RunConfig
from bench.engine import dispatch
from bench.engine.plan import Plan
from bench.records import TRIALS, RunRecord, prepare_folder
from bench.seeds import TUNING_SEEDS
from models.base import ARCHS

FACTOR = 2.0  # between two rates
MOST_RATES = 5
FINALISTS = 2


class Trial(NamedTuple):
    exponent: int = 0  # of FACTOR, for both rates
    other_block: bool = False  # than the preset's


Errors = dict[Trial, list[float | None]]  # an error for each tuning seed; None where it failed


def tune(configs: list[RunConfig], plan: Plan, console: Console) -> list[RunConfig]:
    """The configs with the best block and rates; the trials are kept in a folder of their own among the results."""
    folder = plan.out / TRIALS
    prepare_folder(folder)
    rows = {_row(config): config for config in configs}
    errors: dict[str, Errors] = {row: {} for row in rows}

    def run(wanted: dict[str, list[Trial]], seed: int) -> None:
        asked = [(row, trial) for row, trials in wanted.items() for trial in trials]
        configs = [apply(rows[row], trial, seed) for row, trial in asked]
        records = dispatch.run_all(configs, replace(plan, out=folder, snapshots=0), console)
        for (row, trial), record in zip(asked, records, strict=True):
            errors[row].setdefault(trial, []).append(_error(record))

    first, second = TUNING_SEEDS
    wanted = {row: first_trials(config) for row, config in rows.items()}
    while wanted:
        run(wanted, first)
        wanted = {row: more for row, found in errors.items() if (more := next_trials(found))}
    run({row: finalists(found) for row, found in errors.items()}, second)
    chosen = {row: choose(rows[row], found) for row, found in errors.items()}
    return [replace(config, **chosen[_row(config)]) for config in configs]


def first_trials(config: RunConfig) -> list[Trial]:
    """Both blocks, unless the architecture's name fixes its block."""
    fixed = ARCHS.facts(config.arch).get("fixed_block", False)
    return [Trial()] if fixed else [Trial(), Trial(other_block=True)]


def next_trials(errors: Errors) -> list[Trial]:
    """The rates beside the preset's for the better block, then the rate beyond the edge while the best is there."""
    best = min((trial for trial in errors if trial.exponent == 0), key=lambda trial: _mean(errors[trial]))
    rates = {trial.exponent: errors[trial] for trial in errors if trial.other_block == best.other_block}
    if len(rates) == 1:
        return [best._replace(exponent=-1), best._replace(exponent=1)]
    at = min(rates, key=lambda exponent: (_mean(rates[exponent]), abs(exponent)))
    edge = {min(rates): min(rates) - 1, max(rates): max(rates) + 1}
    return [best._replace(exponent=edge[at])] if at in edge and len(rates) < MOST_RATES else []


def finalists(errors: Errors) -> list[Trial]:
    """The best trials on the first seed; a tie goes to the preset's."""
    return sorted(errors, key=lambda trial: (_mean(errors[trial][:1]), abs(trial.exponent), trial.other_block))[
        :FINALISTS
    ]


def choose(config: RunConfig, errors: Errors) -> dict[str, Any]:
    """The winner's settings and the whole search."""
    both = [trial for trial in errors if len(errors[trial]) == len(TUNING_SEEDS)]
    winner = min(both, key=lambda trial: (_mean(errors[trial]), abs(trial.exponent), trial.other_block))
    found = {
        name_of(config, trial): [None if e is None else float(f"{e:.4g}") for e in errors[trial]]
        for trial in sorted(errors, key=lambda trial: (trial.other_block, trial.exponent))
    }
    search = {"seeds": list(TUNING_SEEDS), "steps": config.steps, "errors": found}
    return {**settings_of(config, winner), "tuning": search}


def settings_of(config: RunConfig, trial: Trial) -> dict[str, Any]:
    factor = FACTOR**trial.exponent
    rates = {"lr": config.lr * factor, "adam_lr": config.adam_lr * factor}
    return {**rates, **(other_block(config) if trial.other_block else {})}


def other_block(config: RunConfig) -> dict[str, str]:
    """The block that is not the preset's. Only ALiBi comes with a shift; otherwise only the activation changes."""
    if config.activation == "swiglu":
        return {"positions": config.positions.removesuffix("-shift"), "activation": "relu2"}
    shifted = "alibi-shift" if config.positions == "alibi" else config.positions
    return {"positions": shifted, "activation": "swiglu"}


def apply(config: RunConfig, trial: Trial, seed: int) -> RunConfig:
    return replace(config, seed=seed, horizons=(config.horizon,), **settings_of(config, trial))


def name_of(config: RunConfig, trial: Trial) -> str:
    """How the record names a trial: the rate, then the block if it is not the preset's."""
    settings = settings_of(config, trial)
    return " ".join([f"{settings.pop('lr'):g}", *(f"{k}={v}" for k, v in settings.items() if k != "adam_lr")])


def _error(record: RunRecord) -> float | None:
    return record.error_bits if record.ok else None


def _mean(errors: Sequence[float | None]) -> float:
    """The mean logarithm, because seeds differ by factors."""
    return mean(inf if error is None else log(max(error, 1e-12)) for error in errors)


def _row(config: RunConfig) -> str:
    """The key that all seeds of a row share."""
    return replace(config, seed=TUNING_SEEDS[0]).id()
