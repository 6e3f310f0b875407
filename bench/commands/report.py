"""`bench report`: write the report of a run, or of several."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rich.console import Console

from bench import SAMPLES, external, records, reports
from bench.claims import published
from bench.commands.pages import read_records
from bench.device import threads
from bench.engine.progress import Bar
from bench.registry import BadInput
from bench.report import report, seeds
from bench.report.diagnostics.base import Literature


def command(options: argparse.Namespace, console: Console) -> int:
    if options.samples < 2:
        raise BadInput(f"--samples must be at least 2, not {options.samples}")
    external.load_words(options.arch, options.task)
    paths = [path for name in options.run for path in report.find_all(name, options.runs)]
    if len(paths) == 1 and not options.compare:
        return write_report(paths[0], options.out, console, options.samples)
    return write_reports(paths, options, console)


def write_reports(paths: list[Path], options: argparse.Namespace, console: Console) -> int:
    """A report beside each record, and one of all of them; 1 if a section failed."""
    found = [report.load(path).record for path in paths]
    seeds.group(found, options.compare)  # refuses before any work
    failed = max([write_report(path, None, console, options.samples) for path in paths])
    written = {r.id: reports.read(p.with_suffix("") / records.REPORT, r.id) for p, r in zip(paths, found, strict=True)}
    near = paths[0].parent
    known = [*read_records([options.runs]).records, *found]
    out = options.out or (near.parent / "compare" if options.compare else near / "seeds")
    seeds.write(found, written, out, options.compare, known)
    console.print(f"wrote {out / 'report.md'}", highlight=False, soft_wrap=True)
    return failed


def write_report(path: Path, out: Path | None, console: Console, samples: int = SAMPLES) -> int:
    """One run's page, by default in a folder beside its record; 1 if a section failed."""
    literature = Literature(published.NUMBERS, published.LPE_SETTINGS, published.STATEMENTS)
    out = out or path.with_suffix("")
    with threads(1), Bar(console) as bar:  # rollouts are small steps: more threads would mostly wait for each other
        failed = report.write(report.load(path, samples, bar, literature), out)
    for title in failed:
        print(f"bench: section failed: {title}", file=sys.stderr)
    console.print(f"wrote {out / 'report.md'}", highlight=False, soft_wrap=True)
    return 1 if failed else 0
