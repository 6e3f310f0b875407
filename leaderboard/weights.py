"""weights.py RESULTS: publish the weights of the best seed of each tuned row on bijection, hmm and recall.

They come from the results folder that the records were published from, and go to leaderboard/weights. A file of an
earlier best seed is removed; one that the results folder no longer has stays.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from bench.board.overview import Board, make_board
from bench.records import WEIGHTS, RunRecord, read_all

HERE = Path(__file__).resolve().parent
PRESET = "quick"
TASKS = ("bijection", "hmm", "recall")
MOST_BYTES = 40 * 10**6  # of the whole folder, which is part of the repository


def best_seeds(board: Board) -> list[RunRecord]:
    rows = [
        row
        for ranking in board.rankings
        if ranking.group.is_preset_task and ranking.task in TASKS and ranking.group.preset == PRESET
        for row in ranking.rows
        if row.is_preset_default and row.config.tuning and not row.is_self_reported
    ]
    return [min(row.records, key=lambda record: record.error_bits) for row in rows]


def publish(results: Path, board: Board, folder: Path) -> None:
    """Copy what is wanted and at hand, delete what is no longer wanted."""
    wanted = {f"{record.id}.safetensors": results / record.path for record in best_seeds(board)}
    folder.mkdir(exist_ok=True)
    for name, path in wanted.items():
        if path.with_suffix(".safetensors").exists():
            shutil.copy(path.with_suffix(".safetensors"), folder / name)
    for path in folder.glob("*.safetensors"):
        if path.name not in wanted:
            path.unlink()
    size = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    if size > MOST_BYTES:
        sys.exit(f"{folder} holds {size / 1e6:.0f} MB of weights, more than {MOST_BYTES / 1e6:.0f}")
    print(f"{folder}: {len(list(folder.glob('*.safetensors')))} files, {size / 1e6:.1f} MB")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python leaderboard/weights.py RESULTS")
    published, _ = read_all(HERE / "runs")
    publish(Path(sys.argv[1]), make_board(published), HERE / WEIGHTS)
