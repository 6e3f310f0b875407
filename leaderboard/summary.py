"""summary.py: write the results that README shows, from the published records. With --check, only compare.

One table of the headline track, and a sentence for each task: its best row, the rows that are level with it, where the
transformer stands, and who is no better than a predictor that reads nothing. Every number is that of a row, with its
interval and its seeds.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tabulate import tabulate

from bench.board.overview import Board, make_board
from bench.board.ranking import Ranking, Row
from bench.records import read_all, write_whole
from bench.text import number, plural

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
BEGIN, END = "<!-- results:begin -->", "<!-- results:end -->"
MOST = 4  # names in a list, unless they are of the families
ARCHS = ("transformer", "gated-deltanet", "mamba2", "lstm", "gru", "mlp")  # the families; the leaderboard has all
NOTE = (
    "Error in bits (KL where the exact answer is certain, else entropy MAE), mean over seeds. Lower is better. †: not "
    "ranked, because its settings differ, or because it has recipe seeds (0 to 2, which were also used to choose the "
    "recipe)."
)


def render(board: Board) -> str:
    headline = board.headline
    assert headline is not None
    rankings = [ranking for ranking in board.rankings if ranking.group.is_preset_task]
    rankings = [ranking for ranking in rankings if ranking.group.track == headline.track]
    parts = [f"Headline track: {headline.track}.", _table(rankings), NOTE]
    parts.append("\n".join(f"- {_sentence(ranking)}" for ranking in rankings))
    return "\n\n".join(parts)


def _table(rankings: list[Ranking]) -> str:
    rows = [[f"`{arch}`", *(_cell(ranking.one_row_each().get(arch)) for ranking in rankings)] for arch in ARCHS]
    floor = ["*reads nothing*", *(number(ranking.baseline) for ranking in rankings)]
    header = ["architecture", *(f"`{ranking.task}`" for ranking in rankings)]
    return tabulate([*rows, floor], header, tablefmt="github", disable_numparse=True)


def _cell(row: Row | None) -> str:
    if row is None:
        return ""
    return number(row.scores.error) + ("" if row.compares else "†")


def _sentence(ranking: Ranking) -> str:
    """Of the rows that compare; those that are no better than guessing have no rank."""
    compared = [row for row in ranking.rows if row.compares]
    rows = [row for row in compared if row.rank]
    if not rows:
        return f"`{ranking.task}`: no row is ranked yet."
    best, *others = rows
    standing = f"has the least error of {len(compared)} ranked rows" if len(compared) > 1 else "is the only ranked row"
    said = [f"`{ranking.task}`: {_evidence(best)} {standing}"]
    level = [row.arch for row in others if row.rank == 1]
    said += [f"level with it: {_few(level)}"] if level else []
    said += [f"{_evidence(row)} has rank {row.rank}" for row in others if row.arch == "transformer" and row.rank != 1]
    better = [row.arch for row in others if row.kl_rank == 1]
    said += [f"rank 1 by KL: {_few(better)}"] if better else []
    failed = [row.arch for row in compared if row.scores.error >= ranking.baseline]
    said += [f"no better than reading nothing ({number(ranking.baseline)}): {_few(failed)}"] if failed else []
    return "; ".join(said) + "."


def _few(archs: list[str]) -> str:
    """All by name if they are few, else the families, then how many others."""
    named = [f"`{arch}`" for arch in archs if arch in ARCHS or len(archs) <= MOST]
    rest = len(archs) - len(named)
    return ", ".join([*named, *([plural(rest, "other row")] if rest else [])])


def _evidence(row: Row) -> str:
    seeds = plural(len(row.records), "recipe seed" if row.config.is_recipe_work else "seed")
    tuned = ", tuned" if row.config.tuning else ""
    return f"`{row.arch}` ({number(row.scores.error)}{row.spread}, {seeds}{tuned})"


def main() -> int:
    text = README.read_text()
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    records, _ = read_all(ROOT / "leaderboard/runs")
    wanted = f"{before}{BEGIN}\n{render(make_board(records))}\n{END}{after}"
    if sys.argv[1:] == ["--check"]:
        return 0 if wanted == text else 1
    write_whole(README, wanted.encode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
