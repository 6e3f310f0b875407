"""The board's files: records merged from several folders, the pages to write, and what may be overwritten."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from bench import records
from bench.board import markdown, results, submissions
from bench.board.overview import Board
from bench.registry import BadInput
from bench.seeds import PUBLISHED_FROM

CSV = "results.csv"
OLDER = "recipe-seeds.txt"  # beside a folder of published records: the ids of those with seeds of recipe work


class Found(NamedTuple):
    """All records of some folders, each file read once."""

    records: list[records.RunRecord]
    reported: list[records.RunRecord]  # sent in by others
    problems: list[tuple[Path, str]]  # files that were skipped, with the reason


def merge_records(folders: Sequence[Path]) -> Found:
    """Read all folders. A run counts once: the first folder wins, and our own record wins over one sent by others."""
    found: dict[str, records.RunRecord] = {}
    problems = []
    for folder in folders:
        ours, broken = records.read_all(folder)
        require_fresh_seeds(folder, ours)
        found = {record.id: record for record in ours} | found
        problems += broken
    reported: dict[str, records.RunRecord] = {}
    for folder in folders:
        theirs, broken = submissions.read_submissions(folder, found.keys())
        reported = {record.id: record for record in theirs} | reported
        problems += broken
    return Found(list(found.values()), list(reported.values()), problems)


def require_fresh_seeds(folder: Path, found: Sequence[records.RunRecord]) -> None:
    """A folder beside a list of its older records takes no other with a seed that was free for choosing recipes."""
    path = folder.resolve().parent / OLDER
    if not path.exists():
        return
    older = set(path.read_text().split())
    refused = [record for record in found if record.config.is_recipe_work and record.id not in older]
    if refused:
        what = f"{len(refused)} of the records in {folder} have seeds below {PUBLISHED_FROM} and are not in {OLDER}"
        raise BadInput(f"{what}; the first is {folder / refused[0].path}")


def compose_pages(board: Board, name: str, with_figures: bool = False) -> dict[str, str]:
    """The text of each file by its name: the leaderboard, a page for each task, and CSV and figures if asked for."""
    images: dict[str, str] = {}
    if with_figures:
        from bench.board import figures  # matplotlib takes a third of a second

        images = figures.draw(board)
    found = markdown.pages(board, name, with_figures, images) | images
    return found | {CSV: results.render(board)} if with_figures else found


def require_ours(path: Path) -> None:
    """Refuse to overwrite a page that bench board has not written."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return
    except OSError as error:
        raise BadInput(f"cannot write {path}: {error.strerror}. Name another place with --out") from error
    if text and markdown.GENERATED not in text:
        raise BadInput(f"{path} is not a page of bench board: name another place with --out")


def check(wanted: Mapping[Path, str], console: Console) -> list[Path]:
    """The generated pages that are out of date; each difference is shown."""
    return [path for path, text in wanted.items() if _differs(path, text, console)]


def _differs(path: Path, text: str, console: Console) -> bool:
    written = path.read_text() if path.exists() else ""
    for line in difflib.unified_diff(written.splitlines(), text.splitlines(), str(path), "the records", lineterm=""):
        print(line)
    if written != text:
        print(f"bench: {path} does not match the records", file=sys.stderr)
    else:
        console.print(f"{path} matches the records", highlight=False, soft_wrap=True)
    return written != text
