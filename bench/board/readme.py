"""The results that README shows: one table of the headline track, and a sentence for each task.

In: the board. Out: Markdown, and the page with it between two marks. A sentence names the task's best ranked row, with
its interval and its seeds, and the rows that are level with it.
"""

from __future__ import annotations

from collections.abc import Sequence

from tabulate import tabulate

from bench.board.glossary import UNRANKED, explain
from bench.board.overview import Board
from bench.board.ranking import Ranking, Row
from bench.text import number, plural

BEGIN, END = "<!-- results:begin -->", "<!-- results:end -->"
MOST = 3  # names in a list; more are counted
ARCHS = ("transformer", "gated-deltanet", "mamba2", "lstm", "gru", "mlp")  # the families; the leaderboard has all
NOTE = (
    "Error in bits (KL where the exact answer is certain, else entropy MAE), mean over seeds. Lower is better. "
    f"{explain(UNRANKED)}"
)


def insert(page: str, board: Board) -> str:
    """The page, with the board's results between the marks."""
    before, after = page.split(BEGIN)[0], page.split(END)[1]
    return f"{before}{BEGIN}\n{render(board)}\n{END}{after}"


def render(board: Board) -> str:
    headline = board.headline
    assert headline is not None
    rankings = [ranking for ranking in board.rankings if ranking.group.is_preset_task]
    rankings = [ranking for ranking in rankings if ranking.group.track == headline.track]
    sentences = "\n".join(f"- {sentence(ranking)}" for ranking in rankings)
    return "\n\n".join([f"Headline track: {headline.track}.", _table(rankings), NOTE, sentences])


def _table(rankings: Sequence[Ranking]) -> str:
    rows = [[f"`{arch}`", *(_cell(ranking.one_row_each().get(arch)) for ranking in rankings)] for arch in ARCHS]
    floor = ["*reads nothing*", *(number(ranking.baseline) for ranking in rankings)]
    header = ["architecture", *(f"`{ranking.task}`" for ranking in rankings)]
    return tabulate([*rows, floor], header, tablefmt="github", disable_numparse=True)


def _cell(row: Row | None) -> str:
    if row is None:
        return ""
    return number(row.scores.error) + ("" if row.compares else UNRANKED)


def sentence(ranking: Ranking) -> str:
    rows = [row for row in ranking.rows if row.rank]
    if not rows:
        return f"`{ranking.task}`: no row is ranked yet."
    best, *others = rows
    standing = f"has the least error of {len(rows)} ranked rows" if others else "is the only ranked row"
    parts = [f"`{ranking.task}`: {_evidence(best)} {standing}"]
    level = [row.arch for row in others if row.rank == 1]
    parts += [f"level with it: {_few(level)}"] if level else []
    ahead = [row for row in others if row.kl_rank and row.scores.kl < best.scores.kl]
    parts += [f"less KL than it: {_few([row.arch for row in ahead])}"] if ahead else []
    return "; ".join(parts) + "."


def _few(archs: Sequence[str]) -> str:
    """All by name if they are few, else the first and how many others."""
    if len(archs) <= MOST:
        return ", ".join(f"`{arch}`" for arch in archs)
    return ", ".join([*(f"`{arch}`" for arch in archs[: MOST - 1]), plural(len(archs) - MOST + 1, "other row")])


def _evidence(row: Row) -> str:
    tuned = ", tuned" if row.config.tuning else ""
    return f"`{row.arch}` ({number(row.scores.error)}{row.spread}, {plural(len(row.records), 'seed')}{tuned})"
