"""`bench gpu`: check a GPU, train the headline rows on it, and pack the results."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

from bench import campaign, records, stop
from bench.device import cores, gpu_problem, gpus, pick_device, require_compiler
from bench.engine.plan import Plan
from bench.registry import BadInput


def command(options: argparse.Namespace, console: Console) -> int:
    size = campaign.REHEARSAL if options.rehearse else campaign.GPU
    if options.seeds < 1:
        raise BadInput(f"--seeds must be at least 1, not {options.seeds}")
    if options.hours is not None and not options.hours >= 0:
        raise BadInput(f"--hours must be at least 0, not {options.hours:g}")
    device = "cpu"
    if not options.rehearse:
        if problem := gpu_problem():
            raise BadInput(f"{problem}. Try the command on the CPU with --rehearse")
        device, why = pick_device("auto")
        if device != "cuda":
            raise BadInput(f"{why.removeprefix('auto: ')}. Try the command on the CPU with --rehearse")
        require_compiler()
    out = options.out or Path(size.name)
    records.prepare_folder(out)
    plan = Plan(out=out, jobs=cores() if device == "cpu" else gpus())
    with stop.catch_signals():
        return campaign.Campaign(out, size, plan, device, console).run(options.seeds, options.hours)
