"""Records on a terminal: tables with a sparkline of the error by position, and entropies drawn with characters.

A sparkline has a bar for each stretch of positions, up to the training horizon and, after a `|`, beyond it; its height
is the logarithm of the error, from a thousandth of a bit or less to one bit or more. A picture shows H_Bayes as dots,
H_model as rings, and both as full circles where they meet. Neither is drawn where the characters cannot be shown.
"""

from __future__ import annotations

import math
from collections.abc import Set

import numpy as np
from rich.columns import Columns
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bench.board import failures, table
from bench.records import RunRecord
from bench.rows import group, longest, printable, ranked

BARS = "▁▂▃▄▅▆▇█"
FLOOR, CEILING = 1e-3, 1.0  # bits
STRETCHES = 8  # bars up to the training horizon, and as many beyond it
WIDTH, HEIGHT = 40, 7  # of a picture
KEY = "○ H_model  · H_Bayes  ● both"
PICTURES = 4  # at the most: the best row of each ranking
PLAIN = 120  # columns where there is no terminal to ask


def show(records: list[RunRecord], console: Console, marked: Set[str] = frozenset(), pictures: bool = False) -> None:
    """The columns that answer the question, and at the end what the best row of each ranking looks like."""
    if not console.is_terminal:
        console = Console(file=console.file, width=PLAIN)
    drawn = "utf" in console.encoding.lower()
    leaders = []
    for name, members in group(records).items():
        good = [record for record in members if record.status == "ok"]
        console.print(Text(f"\n{name}", style="bold"), soft_wrap=True)
        if good:
            leaders.append(ranked(good, str(good[0].config["horizon"]), marked)[0][1][0])
            console.print(ranking(good, marked, drawn))
        for failure in failures(members):
            console.print(Text(f"FAILED: {unescaped(failure)}", style="red"), soft_wrap=True)
    if pictures and drawn and leaders:
        console.print()
        console.print(Columns([picture(record) for record in leaders[:PICTURES]], padding=(1, 4)))


def ranking(good: list[RunRecord], marked: Set[str] = frozenset(), drawn: bool = True) -> Table:
    """One ranking; the references stand in it as in the Markdown, faint."""
    header, rows = table(good, marked)
    last = [column for column in header if column.endswith("new")][-1:]
    wanted = ["#", "architecture", header[2], "KL", *last, "memory", "seconds"]
    keep = [header.index(column) for column in wanted if column in header]
    made = Table(box=None, header_style="bold", pad_edge=False)
    for i in keep:
        made.add_column(header[i], justify="left" if header[i] == "architecture" else "right", no_wrap=i != 1)
    if drawn:
        made.add_column("error by position", no_wrap=True)
    runs = iter(ranked(good, str(good[0].config["horizon"]), marked))  # in the order of the rows that have a rank
    for row in rows:
        cells = [Text(unescaped(row[i])) for i in keep]
        same = next(runs)[1] if row[0] else None
        line = [Text(sparkline(same), style="cyan")] if drawn and same else []
        made.add_row(*cells, *line, style=None if same else "dim")
    return made


def unescaped(cell: str) -> str:
    """Without the marks of Markdown."""
    return cell.replace("*", "").replace("\\", "")


def sparkline(same: list[RunRecord]) -> str:
    k = longest(same)
    errors = np.mean([record.by_position[k]["entropy_mae"] for record in same], axis=0)
    trained = same[0].config["horizon"]
    parts = [errors[:trained], errors[trained:]]
    return "|".join("".join(map(_bar, np.array_split(part, min(STRETCHES, len(part))))) for part in parts if len(part))


def _bar(errors: np.ndarray) -> str:
    error = min(max(float(errors.mean()), FLOOR), CEILING)
    share = math.log(error / FLOOR) / math.log(CEILING / FLOOR)
    return BARS[min(int(share * len(BARS)), len(BARS) - 1)]


def picture(record: RunRecord) -> Text:
    """H_model against H_Bayes by position, a few lines high."""
    k = longest([record])
    bayes, model = (np.array(record.by_position[k][name]) for name in ("h_bayes", "h_model"))
    trained = record.config["horizon"]
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
    text.append(printable(f"{record.config['arch']} on {record.config['task']}"), style="bold")
    text.append(f"\n{KEY}\n", style="dim")
    for y, line in enumerate(lines):
        label = f"{high:.2f}" if y == 0 else f"{low:.2f}" if y == HEIGHT - 1 else ""
        text.append(f"{label:>5} ", style="dim")
        text.append("".join(line) + "\n")
    beyond = f"trained to {trained}, " if len(bayes) > trained else ""
    text.append(f"{'':>5} k = 1 to {len(bayes)}, {beyond}bits", style="dim")
    return text
