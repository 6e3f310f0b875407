"""Rankings on a terminal: tables with a sparkline of the error by position, and entropies drawn with characters.

A sparkline has a bar for each stretch of positions, up to the training horizon and, after a `|`, beyond it. The height
is the logarithm of the error, from a thousandth of a bit or less to one bit or more. A picture shows H_Bayes as dots,
H_model as rings, and both as full circles where they meet. Neither is drawn if the terminal lacks the characters.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from rich.columns import Columns
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bench.board.columns import columns
from bench.board.glossary import RECIPE_SEEDS, UNRANKED
from bench.board.ranking import Ranking, Row, longest
from bench.records import RunRecord
from bench.text import printable

BARS = "▁▂▃▄▅▆▇█"
FLOOR, CEILING = 1e-3, 1.0  # bits
STRETCHES = 8  # bars up to the training horizon, and as many beyond it
WIDTH, HEIGHT = 40, 7  # of a picture
KEY = "○ H_model  · H_Bayes  ● both"
PICTURES = 4  # at most: the best row of each ranking
PLAIN = 120  # columns if the output is no terminal


def show(rankings: Sequence[Ranking], console: Console, pictures: bool = False) -> None:
    """The most important columns, and at the end a picture of the best row of each ranking."""
    if not console.is_terminal:
        console = Console(file=console.file, width=PLAIN)
    drawn = "utf" in console.encoding.lower()
    for ranking in rankings:
        console.print(Text(f"\n{ranking.group}", style="bold"), soft_wrap=True)
        if ranking.rows:
            console.print(ranking_table(ranking, drawn))
        for record in ranking.failed:
            failure = f"FAILED: {record.config.label}, seed {record.config.seed}: {record.error}"
            console.print(Text(printable(failure), style="red"), soft_wrap=True)
    leaders = [ranking.rows[0].records[0] for ranking in rankings if ranking.rows]
    if pictures and drawn and leaders:
        console.print()
        console.print(Columns([picture(record) for record in leaders[:PICTURES]], padding=(1, 4)))


def ranking_table(ranking: Ranking, drawn: bool = True) -> Table:
    """One ranking, with the references between its rows, faint."""
    shown = columns(ranking, "terminal")
    made = Table(box=None, header_style="bold", pad_edge=False)
    for column in shown:
        made.add_column(column.title, justify="left" if column.is_left else "right", no_wrap=not column.is_left)
    if drawn:
        made.add_column("error by position", no_wrap=True)
    for line in ranking.lines:
        texts = [Text(column.cell(line) if drawn else _encodable(column.cell(line))) for column in shown]
        if isinstance(line, Row) and drawn:
            texts.append(Text(sparkline(line), style="cyan"))
        made.add_row(*texts, style=None if isinstance(line, Row) else "dim")
    return made


def _encodable(text: str) -> str:
    """Without the marks that a plain terminal cannot show."""
    return text.replace(UNRANKED, "").replace(RECIPE_SEEDS, "")


def sparkline(row: Row) -> str:
    errors = np.array(row.error_curve)
    trained = row.config.horizon
    parts = [errors[:trained], errors[trained:]]
    return "|".join("".join(map(_bar, np.array_split(part, min(STRETCHES, len(part))))) for part in parts if len(part))


def _bar(errors: np.ndarray) -> str:
    error = min(max(float(errors.mean()), FLOOR), CEILING)
    share = math.log(error / FLOOR) / math.log(CEILING / FLOOR)
    return BARS[min(int(share * len(BARS)), len(BARS) - 1)]


def picture(record: RunRecord) -> Text:
    """H_model against H_Bayes by position, a few lines high."""
    curves = record.by_position[str(longest([record]))] or {}
    bayes, model = np.array(curves["h_bayes"]), np.array(curves["h_model"])
    trained = record.config.horizon
    columns = np.linspace(0, len(bayes) - 1, min(WIDTH, len(bayes))).round().astype(int)
    low, high = min(bayes.min(), model.min()), max(bayes.max(), model.max())
    step = (high - low) / (HEIGHT - 1) or 1.0
    lines = [[" "] * len(columns) for _ in range(HEIGHT)]
    edge = int(np.searchsorted(columns, trained))
    for line in lines:
        if edge < len(columns):
            line[edge] = "┊"
    for x, i in enumerate(columns):
        exact, ours = (HEIGHT - 1 - round(float((curve[i] - low) / step)) for curve in (bayes, model))
        lines[exact][x] = "·"
        lines[ours][x] = "●" if ours == exact else "○"
    text = Text()
    text.append(printable(f"{record.config.label} on {record.config.task_label}"), style="bold")
    text.append(f"\n{KEY}\n", style="dim")
    for y, line in enumerate(lines):
        label = f"{high:.2f}" if y == 0 else f"{low:.2f}" if y == HEIGHT - 1 else ""
        text.append(f"{label:>5} ", style="dim")
        text.append("".join(line) + "\n")
    edges = "training horizon" if record.config.elsewhere else "trained to"
    beyond = f"{edges} {trained}, " if len(bayes) > trained else ""
    text.append(f"{'':>5} k = 1 to {len(bayes)}, {beyond}bits", style="dim")
    return text
