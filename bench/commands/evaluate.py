"""`bench evaluate`: score a model that was trained elsewhere."""

from __future__ import annotations

import argparse

from rich.console import Console

from bench import elsewhere, external, records
from bench.board import terminal
from bench.board.rows import make_rankings
from bench.config import parse_settings
from bench.library import Estimate
from bench.registry import BadInput
from bench.text import number
from tasks.base import TASKS


def command(options: argparse.Namespace, console: Console) -> int:
    task = external.find(TASKS, options.task)  # first: an external task has settings of its own
    settings = parse_settings(options.settings)
    loaded = elsewhere.load(options.model)
    is_new = not options.out.exists()
    records.prepare_folder(options.out)  # first: scoring takes minutes
    try:
        record, scored = elsewhere.evaluate(loaded, task, options.preset, options.device, options.horizons, settings)
    except BadInput:
        if is_new:
            options.out.rmdir()
        raise
    terminal.show(make_rankings([record]), console, pictures=True)
    print(f"\n95 % intervals over {record.config.sequences:,} sequences, in bits:")
    for k, at in scored.items():
        for part, metrics in at.metrics.items():
            cells = (f"{name} {number(e.value)} {_bounds(e)}" for name, e in metrics.items())
            print(f"K={k} {part}: {', '.join(cell.rstrip() for cell in cells)}")
    print("Trained elsewhere: the row is shown and never ranked.")
    path = records.write(options.out, record, None)
    console.print(f"wrote {path}", highlight=False, soft_wrap=True)
    return 0


def _bounds(estimate: Estimate) -> str:
    return "" if estimate.low is None or estimate.high is None else f"[{number(estimate.low)}, {number(estimate.high)}]"
