"""compare.py COMMIT: every cell of the tables that COMMIT published, against results.csv of its records as of today.

It takes leaderboard/README.md and leaderboard/runs of that commit, renders the CSV from these records with the code at
hand, and prints how many cells are equal, how many differ, and how many have no counterpart. The exit code is 1 if a
cell differs in a column that is not named with --changed.
"""

from __future__ import annotations

import argparse
import csv
import io
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean

from bench.board import results
from bench.board.overview import Board, make_board
from bench.board.ranking import Ranking, Row
from bench.records import read_all
from bench.text import number

ROOT = Path(__file__).resolve().parent.parent
TITLE = re.compile(r"(.+): preset (\S+), (\S+) supervision, (\S+)")
REPEATED = ("At a glance", "Primitives", "What holds")  # sections that repeat numbers of the tables
PHASES = ("setup", "compile", "train", "eval")
SHOWN = 40  # differences

Seeds = Sequence[dict[str, str]]  # the CSV's rows of one row of a table


@dataclass
class Comparison:
    equal: Counter[str] = field(default_factory=Counter)  # by column
    missing: Counter[str] = field(default_factory=Counter)  # without a counterpart in the CSV
    different: list[tuple[str, str, str, str]] = field(default_factory=list)  # row, column, old, new

    def check(self, row: str, column: str, old: str, new: str | None) -> None:
        if new is None:
            self.missing[column] += 1
        elif old == new:
            self.equal[column] += 1
        else:
            self.different.append((row, column, old, new))


def compare(page: str, board: Board) -> Comparison:
    """The tables of a page against the CSV of a board."""
    by_id = {row["id"]: row for row in csv.DictReader(io.StringIO(results.render(board)))}
    rankings = {(each.group.label, *each.group.track): each for each in board.rankings}
    found = Comparison()
    for part in page.split("\n## ")[1:]:
        title = _plain(part.splitlines()[0])
        hit = TITLE.fullmatch(title)
        ranking = rankings.get(hit.groups()) if hit else None  # type: ignore[arg-type]
        for header, *lines in _tables(part):
            for cells in lines if hit else ():
                if title.startswith(REPEATED):
                    found.missing["repeated"] += sum(map(bool, cells[1:]))
                elif ranking is None:
                    found.different.append((title, "table", title, "no table"))
                else:
                    _compare_line(found, title, dict(zip(header, cells, strict=True)), ranking, by_id)
    return found


def _compare_line(found: Comparison, title: str, cells: dict[str, str], ranking: Ranking, by_id: dict) -> None:
    name = cells.pop("architecture")
    where = f"{title}, {name}"
    if name.startswith("*"):
        every = [by_id[record.id] for record in ranking.records]
        _compare_reference(found, where, name.strip("*"), cells, every)
        return
    row = _find(_plain(name), ranking)
    if row is None:
        found.different.append((where, "row", name, "no row"))
        return
    seeds = [by_id[record.id] for record in row.records]
    for column, old in cells.items():
        kind, new, old = _cell(column, _plain(old), seeds)
        found.check(where, kind, old, new)


def _compare_reference(found: Comparison, where: str, name: str, cells: dict[str, str], seeds: Seeds) -> None:
    error = next(column for column in cells if column.startswith("MAE"))
    prefix = name.replace(" ", "_")
    for column, old in cells.items():
        if name in ("best constant", "uniform") and column == error:
            found.check(where, "reference MAE", old, _mean(seeds, f"{prefix}_entropy_mae"))
        elif name == "uniform" and column == "KL":
            found.check(where, "reference KL", old, _mean(seeds, "uniform_kl"))
        elif old:
            found.missing["reference"] += 1


def _find(name: str, ranking: Ranking) -> Row | None:
    """The row whose settings are those of the name; of several the one with fewest others, then with most seeds."""
    arch, *words = name.replace(" (self-reported)", "").split()
    asked = dict(word.split("=", 1) for word in words if "=" in word)

    def fits(row: Row) -> bool:
        if "tuned" in words and not row.config.tuning:
            return False
        return row.arch == arch and all(str(getattr(row.config, key, value)) == value for key, value in asked.items())

    def others(row: Row) -> tuple[int, int]:
        own = {setting.split("=")[0] for setting in row.settings}
        return len(own - set(asked) - set(words)), -len(row.records)

    return min(filter(fits, ranking.rows), key=others, default=None)


def _cell(column: str, old: str, seeds: Seeds) -> tuple[str, str | None, str]:
    """The kind of a cell, what the CSV says, and the old text as far as the CSV can say it."""
    first = seeds[0]
    at = {first[f"K_{i}"]: i for i in range(1, 7) if first.get(f"K_{i}")}
    if column.startswith("MAE K="):
        interval = ""
        if first["interval_low"]:
            interval = f" [{number(float(first['interval_low']))}, {number(float(first['interval_high']))}]"
        i = at[column.removeprefix("MAE K=")]
        return "errors", _mean(seeds, f"entropy_mae_{i}") + (interval if i == 1 else ""), old
    if hit := re.fullmatch(r"K=(\d+) new", column):
        return "errors", _mean(seeds, f"entropy_mae_{at[hit[1]]}_new"), old
    if column.endswith(" bits"):
        return _steps(f"steps_to_{column.removesuffix(' bits')}", old, seeds)
    if column in ("KL", "curve"):
        return "errors", _mean(seeds, {"KL": "kl_1", "curve": "entropy_curve_mae_1"}[column]), old
    return column, CELLS[column](seeds) if column in CELLS else None, old


def _steps(name: str, old: str, seeds: Seeds) -> tuple[str, str | None, str]:
    reached = [float(seed[name]) for seed in seeds if seed[name]]
    if len(reached) < len(seeds):
        return "steps to", f"{len(reached)} of {len(seeds)} seeds" if reached else "not reached", old
    steps = re.search(r"([\d,]+) steps", old)  # beside seconds
    return "steps to", f"{mean(reached):,.0f}", steps[1] if steps else old


def _mean(seeds: Seeds, name: str) -> str:
    values = [seed[name] for seed in seeds]
    return number(mean(map(float, values))) if all(values) else "n/a"


def _memory(seeds: Seeds) -> str:
    observations, bound = seeds[0]["memory_observations"], seeds[0]["memory_bound"]
    if not observations:
        return ""
    return f"{bound} {float(observations):g}" if bound else f"{float(observations):.1f}"


def _commits(seeds: Seeds) -> str:
    return " ".join(sorted({(s["commit"] or "unknown")[:7] + ("+" if s["dirty"] == "True" else "") for s in seeds}))


CELLS: dict[str, Callable[[Seeds], str]] = {
    "#": lambda seeds: seeds[0]["rank"],
    "memory": _memory,
    "seeds": lambda seeds: str(len(seeds)),
    "parameters": lambda seeds: f"{int(seeds[0]['parameters']):,}",
    "of budget": lambda seeds: f"{int(seeds[0]['parameters']) / int(seeds[0]['budget']):.1%}",
    "steps": lambda seeds: f"{int(seeds[0]['steps']):,}",
    "seconds": lambda seeds: f"{mean(sum(float(s[f'seconds_{p}'] or 0) for p in PHASES) for s in seeds):.0f}",
    "peak memory": lambda seeds: f"{max(int(s['bytes_resident']) for s in seeds) / 2**20:,.0f} MiB",
    "device": lambda seeds: seeds[0]["device"],
    "commit": _commits,
    "p": lambda seeds: f"{float(seeds[0]['p']):.2g}" if seeds[0]["p"] else "",
    "state": lambda seeds: f"{int(seeds[0]['state_bytes']):,}" if seeds[0]["state_bytes"] else "not measured",
    "FLOPs": lambda seeds: f"{float(seeds[0]['train_flops']):.2e}" if seeds[0]["train_flops"] else "not measured",
    "learning rate": lambda seeds: f"{float(seeds[0]['lr']):g}",
}


def _plain(text: str) -> str:
    """Without the backslashes of Markdown."""
    return re.sub(r"\\(.)", r"\1", text)


def _tables(part: str) -> list[list[list[str]]]:
    """Each table's header and lines, as cells."""
    found = re.findall(r"((?:^\|.*\|\n)+)", part + "\n", re.MULTILINE)
    split = [[[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in t.splitlines()] for t in found]
    return [[header, *lines] for header, _, *lines in split]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit", help="whose tables and records are compared")
    parser.add_argument("--changed", nargs="*", default=[], metavar="COLUMN", help="columns that may differ")
    options = parser.parse_args()
    page = subprocess.run(
        ["git", "show", f"{options.commit}:leaderboard/README.md"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    with tempfile.TemporaryDirectory() as folder:
        archive = subprocess.run(
            ["git", "archive", options.commit, "leaderboard/runs"], cwd=ROOT, capture_output=True, check=True
        )
        subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
        records, problems = read_all(Path(folder) / "leaderboard/runs")
    assert not problems, problems
    found = compare(page, make_board(records))
    print(f"{len(records)} records of {options.commit}")
    print(f"equal: {found.equal.total():,}", dict(found.equal))
    print(f"different: {len(found.different):,}", dict(Counter(column for _, column, _, _ in found.different)))
    print(f"no counterpart: {found.missing.total():,}", dict(found.missing))
    unexpected = [each for each in found.different if each[1] not in options.changed]
    for row, column, old, new in unexpected[:SHOWN]:
        print(f"{row}, {column}: {old!r} became {new!r}")
    return 1 if unexpected else 0


if __name__ == "__main__":
    sys.exit(main())
