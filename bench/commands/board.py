"""`bench board`: show records, and write their pages, CSV and site."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rich.console import Console

from bench import records, reports
from bench.board import archives, files, results, submissions, terminal
from bench.board.files import require_ours
from bench.board.overview import Board, make_board
from bench.claims import published
from bench.commands.pages import BOARD, CLAIMS, judge_claims, pages, read_records
from bench.registry import BadInput


def command(options: argparse.Namespace, console: Console) -> int:
    target = options.out or options.runs[0] / BOARD
    check_options(options, target)
    found = read_records(options.runs)
    known = {record.id for record in (*found.records, *found.reported)}
    tars = [path for path in options.add if path.suffix == ".tar"]
    added, refused = submissions.add([path for path in options.add if path not in tars], options.runs[0], known)
    for tar in tars:
        more, bad = archives.add(tar, options.runs[0], known | {record.id for record in added.values()})
        added, refused = added | more, refused + bad
    for path in added:
        console.print(f"added {path}: self-reported until verified", highlight=False, soft_wrap=True)
    for path, reason in refused:
        print(f"bench: refused {path}: {reason}", file=sys.stderr)
    everything = [*found.records, *found.reported, *added.values()]
    if not (everything or found.problems or refused):
        raise BadInput(f"no records in {', '.join(map(str, options.runs))}")
    board = make_board(found.records, [*found.reported, *added.values()])
    written = find_reports(options.runs, board)
    verdicts = judge_claims(board, written)
    wanted = pages(target, board, verdicts, options.figures)
    for path in wanted:
        if path.suffix not in (".csv", ".svg"):  # they have no mark, and need none
            require_ours(path)
    if options.check:
        return 1 if files.check(wanted, console) or found.problems else 0
    terminal.show(board.rankings, console)
    print()
    records.prepare_folder(target.parent)
    if options.csv:
        wanted[options.csv] = results.render(board)
    for path, text in wanted.items():
        records.write_whole(path, text.encode())
    console.print(f"wrote {target} and the pages beside it: {len(everything)} records", highlight=False, soft_wrap=True)
    if options.csv:
        console.print(f"wrote {options.csv}", highlight=False, soft_wrap=True)
    if options.html:
        from bench.board import site

        claims = [{**verdict._asdict(), "source": published.SOURCES[verdict.source].name} for verdict in verdicts]
        site.write(options.html, options.runs, board, claims, written)
        console.print(f"wrote {options.html / 'index.html'}: open it", highlight=False, soft_wrap=True)
    return 1 if found.problems or refused else 0


def find_reports(runs: list[Path], board: Board) -> dict[str, reports.Found]:
    sent = [folder / records.SELF_REPORTED for folder in runs]
    return reports.find(sent, board.reported) | reports.find(runs, board.records)


def check_options(options: argparse.Namespace, target: Path) -> None:
    """Refuse what cannot be done before anything is written."""
    for folder in options.runs:
        if not folder.is_dir():
            raise BadInput(f"no folder {folder}: `bench run` makes one, or name another with --runs")
    for name, asked in (("--add", options.add), ("--html", options.html), ("--csv", options.csv)):
        if asked and options.check:
            raise BadInput(f"--check writes nothing, {name} does: use one of them")
    if options.add and len(options.runs) > 1:
        raise BadInput(f"--add takes one folder of records, not {len(options.runs)}: name one with --runs")
    for path in (target, target.parent / CLAIMS):
        require_ours(path)
        if options.check and not path.exists():
            raise BadInput(f"no {path} to check: name the leaderboard with --out")
    if options.html:
        from bench.board import site

        site.prepare(options.html)
    if options.csv:
        records.prepare_file(options.csv, "--csv")
    for path in options.add:
        if not path.is_file():
            raise BadInput(f"--add {path}: no such file")
