"""`bench run`: train and score architectures on tasks, then print and write their tables."""

from __future__ import annotations

import argparse
import sys

from rich.console import Console

from bench import records, stop
from bench.board import terminal
from bench.board.files import require_ours
from bench.board.rows import make_rankings
from bench.commands.pages import BOARD, CLAIMS, write_board
from bench.device import cores, gpus, require_compiler
from bench.engine import dispatch
from bench.engine.grid import make_configs
from bench.engine.options import ELSEWHERE, make_plan, where
from bench.engine.tune import MOST_RATES, tune
from bench.registry import BadInput
from bench.text import plural
from models.base import ARCHS, count_built
from tasks.base import TASKS


def command(options: argparse.Namespace, console: Console) -> int:
    device, why = where(options)
    chosen = options.preset == "auto"
    if chosen:
        options.preset = "paper" if device == "cuda" else "quick"
    configs = make_configs(options, device, try_code=why != ELSEWHERE)
    compiled = [c for c in configs if c.attention == "triton" or ARCHS.facts(c.arch).get("triton")]
    if options.engine != "ray" and device == "cuda" and compiled:
        require_compiler()
    jobs = options.jobs or (1_000 if options.engine == "ray" else cores() if device == "cpu" else max(1, gpus()))
    plan = make_plan(options, device, jobs)
    records.prepare_folder(options.out)
    for name in (BOARD, CLAIMS):
        require_ours(options.out / name)
    if chosen:
        hint = " in use (docker: --gpus all)" if why.endswith("no CUDA device") else ""
        reason = why.removeprefix("auto: ") + hint if options.device == "auto" else f"the device is {device}"
        console.print(f"preset {options.preset}, because {reason}", highlight=False, soft_wrap=True)
    first = configs[0]
    places = (
        "as many as fit" if options.engine == "ray" and not options.jobs else min(jobs * options.per_gpu, len(configs))
    )
    console.print(
        f"{plural(len(configs), 'run')}, preset {first.preset}, on {device} in {first.precision} ({why}), "
        f"{places} at a time",
        highlight=False,
        soft_wrap=True,
    )
    if len(configs) == 1:
        parameters = count_built(first.make_model)
        version = TASKS.facts(first.task)["version"]
        console.print(
            f"{first.task} v{version}, {first.label}, {parameters:,} parameters (budget {first.budget():,}), "
            f"{first.steps:,} steps, {first.supervision} supervision",
            highlight=False,
        )
    with stop.catch_signals():
        if options.tune:
            console.print(
                f"tuning first: two blocks and 3 to {MOST_RATES} learning rates a row, on seeds of their own",
                highlight=False,
            )
            configs = tune(configs, plan, console)
        done = dispatch.run_all(configs, plan, console)
    terminal.show(make_rankings(done), console, pictures=True)
    print(
        "\nErrors in bits against the exact posterior. Rows without a rank are references; -: no better than guessing; "
        "†: other settings than the rest."
    )
    good = [record for record in done if record.ok]
    failed = len(good) < len(done)
    if options.report:
        for record in good:
            try:
                from bench.commands.report import write_report

                failed |= write_report(options.out / record.path, None, console) > 0
            except BadInput as error:  # of an earlier run whose weights are gone: the others have theirs
                print(f"bench: no report: {error}", file=sys.stderr)
                failed = True
    write_board(options.out, console)  # after the reports: the claims are read from them
    return 1 if failed else 0
