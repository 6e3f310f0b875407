"""What several commands share: reading records, and the pages of a results folder with the published claims."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console

from bench import records, reports
from bench.board.files import Found, compose_pages, merge_records
from bench.board.overview import Board, make_board
from bench.claims import markdown as claims_markdown
from bench.claims import published
from bench.claims.verdicts import Verdict, judge

BOARD, CLAIMS = "leaderboard.md", "CLAIMS.md"


def read_records(folders: list[Path]) -> Found:
    found = merge_records(folders)
    for path, reason in found.problems:
        print(f"bench: skipped {path}: {reason}", file=sys.stderr)
    return found


def write_board(out: Path, console: Console) -> None:
    """The pages of a results folder after its runs."""
    found = read_records([out])
    board = make_board(found.records, found.reported)
    verdicts = judge_claims(board, reports.find([out], board.records))
    for path, text in pages(out / BOARD, board, verdicts).items():
        records.write_whole(path, text.encode())
    console.print(
        f"wrote {out / BOARD}, from all {len(found.records)} records in {out}", highlight=False, soft_wrap=True
    )


def pages(target: Path, board: Board, verdicts: list[Verdict], figures_too: bool = False) -> dict[Path, str]:
    """All pages by their paths, with the published claims."""
    found = compose_pages(board, target.name, figures_too) | {CLAIMS: claims_markdown.render(verdicts)}
    return {target.parent / name: text for name, text in found.items()}


def judge_claims(board: Board, found: Mapping[str, reports.Found]) -> list[Verdict]:
    readable = {run: each.report for run, each in found.items() if each.report}
    return judge(published.CLAIMS, board.records, readable)
