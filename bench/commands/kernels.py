"""`bench kernels`: check the attention kernels on this machine, then time them."""

from __future__ import annotations

import argparse

from rich.console import Console

from bench.check import kernels
from bench.registry import BadInput


def command(options: argparse.Namespace, console: Console) -> int:
    if options.static:
        return kernels.report_static(options.out, console)
    if options.out is not None:
        raise BadInput("--out goes with --static")
    return kernels.report(console)
