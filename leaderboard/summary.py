"""summary.py: write the results that README shows, from the published records. With --check, only compare."""

from __future__ import annotations

import sys
from pathlib import Path

from bench.board import readme
from bench.board.overview import make_board
from bench.records import read_all, write_whole

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"


def main() -> int:
    text = README.read_text()
    wanted = readme.insert(text, make_board(read_all(ROOT / "leaderboard/runs")[0]))
    if sys.argv[1:] == ["--check"]:
        return 0 if wanted == text else 1
    write_whole(README, wanted.encode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
