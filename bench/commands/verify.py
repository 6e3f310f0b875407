"""`bench verify`: evaluate the weights of runs again, or train them again, and compare every number."""

from __future__ import annotations

import argparse

from rich.console import Console

from bench import external
from bench.check import verify
from bench.registry import BadInput

SHOWN = 20  # differences of one record


def command(options: argparse.Namespace, console: Console) -> int:
    """0 if records hold and the others have no weights; 1 if a number differs or no record could be checked."""
    external.load_words(options.arch, options.task)
    paths = verify.find(options.paths)
    if options.sample is not None:
        if options.sample < 1:
            raise BadInput(f"--sample must be at least 1, not {options.sample}")
        paths = verify.sample(paths, options.sample)
    counts = {True: 0, False: 0, None: 0}
    without_weights = 0
    for path in paths:
        verdict = verify.verify(path, options.rerun)
        counts[verdict.holds] += 1
        without_weights += verdict.lacks_weights
        word = {True: "holds", False: "DOES NOT HOLD", None: "not verified"}[verdict.holds]
        print(f"{path}: {word} ({verdict.how})")
        for line in verdict.differences[:SHOWN]:
            print(f"  {line}")
        if len(verdict.differences) > SHOWN:
            print(f"  and {len(verdict.differences) - SHOWN} more")
    print(f"{counts[True]} hold, {counts[False]} do not, {counts[None]} not verified; times and memory are not checked")
    return 0 if counts[True] and counts[True] + without_weights == len(paths) else 1
