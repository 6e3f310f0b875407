"""`bench perf`: measure the speed of this machine, as ratios."""

from __future__ import annotations

import argparse
import json

from rich.console import Console

from bench import records
from bench.check import perf


def command(options: argparse.Namespace, console: Console) -> int:
    if options.json is not None:
        records.prepare_file(options.json, "--json")
    with console.status("measuring") as status:
        found = perf.measure(lambda what: status.update(f"measuring: {what}"))
    console.print(perf.report(found))
    if options.json is not None:
        records.write_whole(options.json, (json.dumps(found, indent=1) + "\n").encode())
    return 0
