"""Write docs/recipe.md from recipe.md.in and the data beside this file.

    python docs/recipe/render.py            write the page
    python docs/recipe/render.py --check    exit with 1 if the page is not what the data say

The template is filled by `str.format`, so a sentence names the row and the column of each number it quotes:
`{changes[GELU for squared ReLU][MAE K=20]:.4f}`. Five kinds of value are known there:

<task>[settings]    a row at equal time: .exact, .draws, and at positions 21 to 50 .exact_new, .draws_new
runs[id]            a single longer run: .mae, .new, .kl, .curve, .steps, .parameters, .hours
<csv>[row][column]  a trial without a record; the first column names the row (in starts.csv: the first three)
factor[name]        a ratio of two of those, from FACTORS below
bill                what the trend of bijection on draws says of the steps to the published error: .least and .most
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections import defaultdict
from dataclasses import dataclass
from math import exp, log
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

from bench.stats import interval

HERE = Path(__file__).resolve().parent
PAGE, TEMPLATE = HERE.parent / "recipe.md", HERE / "recipe.md.in"
LATER = {"decay": "linear", "activation": "relu2"}  # settings that older records leave out
UNNAMED = {"seed", "supervision", "steps", "sequences", "heads", "ffn"}  # have columns, or follow from the width
STUDY_BASE = {"hmm": "3a91764fd4b3", "bijection": "201f98ad30dc"}  # the recipe of `quick`: "nothing" differs
LONG_BASE = {"hmm": "53c284414cbc", "bijection": "cb37c8a4d831"}
PRESETS = {"81b64f9c5735", "92632174c4cd"}  # long runs with every setting of `small`
BATCH_STUDY = {"optimizer": "muon", "lr": 0.02, "weight_decay": 0.0, "positions": "alibi", "decay": "linear"}
ON_DRAWS = ("93d6b11391af", "5e9c5a480d0f", "3e66f19bbbe6")  # bijection at `small`, batches of 64, the shortest first
GOAL = 0.00078  # bits on draws that the authors published
SEEDS = [0, 1, 2]  # every row of the study has these

FACTORS = {  # name: (task, settings, column, other settings, other column)
    "shift": ("hmm", "positions=alibi-shift", "exact", "nothing", "exact"),
    "swiglu after shift": ("hmm", "positions=alibi-shift activation=swiglu", "exact", "positions=alibi-shift", "exact"),
    "swiglu": ("hmm", "activation=swiglu", "exact", "nothing", "exact"),
    "adamw": ("hmm", "optimizer=adamw lr=0.01 weight_decay=0.01", "exact", "nothing", "exact"),
    "adamw on draws": ("hmm", "optimizer=adamw lr=0.01 weight_decay=0.01", "draws", "lr=0.01", "draws"),
    "no decay": ("hmm", "decay=none", "exact", "nothing", "exact"),
    "no decay on draws": ("hmm", "decay=none", "draws", "nothing", "draws"),
    "draws": ("hmm", "nothing", "draws", "nothing", "exact"),
    "no positions beyond": ("hmm", "positions=none", "exact_new", "nothing", "exact_new"),
    "sinusoidal beyond": ("hmm", "positions=sinusoidal", "exact_new", "nothing", "exact_new"),
    "bijection batch": ("bijection", "batch=32", "exact", "nothing", "exact"),
    "bijection adamw": ("bijection", "optimizer=adamw lr=0.01 weight_decay=0.01", "exact", "nothing", "exact"),
    "bijection weight decay": ("bijection", "weight_decay=0.3", "exact", "nothing", "exact"),
}


@dataclass(frozen=True)
class Errors:
    """The errors of a row over seeds, in bits."""

    values: list[float | None]

    @property
    def mean(self) -> float:
        return mean(self.values)

    def __format__(self, spec: str) -> str:
        return format(self.mean, spec or ".4f")

    def cell(self) -> str:
        if None in self.values:
            return "n/a"
        low, high = interval(self.values)
        return f"{self.mean:.4f} [{low:.4f}, {high:.4f}]"


@dataclass(frozen=True)
class StudyRow:
    steps: str
    parameters: int
    exact: Errors
    exact_new: Errors | None
    draws: Errors | None = None
    draws_new: Errors | None = None


@dataclass(frozen=True)
class LongRun:
    settings: str
    steps: str
    mae: float
    new: float | None
    kl: float
    curve: float
    parameters: int
    hours: float
    id: str


def read_json(folder: Path) -> dict[str, dict[str, Any]]:
    records = (json.loads(path.read_text()) for path in sorted(folder.glob("*/*/*.json")))
    return {record["id"]: record for record in records}


def differences(record: dict[str, Any], base: dict[str, Any]) -> str:
    """The settings in which a run differs from its base, as `name=value`."""
    mine, usual = {**LATER, **record["config"]}, {**LATER, **base["config"]}
    names = [name for name in mine if name not in UNNAMED and mine[name] != usual[name]]
    order = ["batch", "optimizer", "positions", "activation", "lr", "weight_decay", "decay"]
    names.sort(key=lambda name: order.index(name) if name in order else len(order))
    return " ".join(f"{name}={mine[name]}" for name in names) or "nothing"


def size(record: dict[str, Any]) -> str:
    return f"{record['config']['steps']:,} x {record['config']['batch']}"


def error(record: dict[str, Any], horizon: str, part: str, metric: str = "entropy_mae") -> float | None:
    """None where the task or the model does not reach that far."""
    return (record["metrics"][horizon] or {}).get(part, {}).get(metric)


def study(records: dict[str, dict[str, Any]], task: str) -> dict[str, StudyRow]:
    """Rows of the study at equal time by what differs, the best on exact targets first."""
    groups: dict[str, dict[str, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for record in records.values():
        config = record["config"]
        is_ours = config["arch"] == "transformer" and not config.get("tuning")
        if is_ours and config["task"] == task and config["preset"] == "quick":
            groups[differences(record, records[STUDY_BASE[task]])][config["supervision"]].append(record)
    rows = {name: study_row(tracks) for name, tracks in groups.items()}
    return dict(sorted(rows.items(), key=lambda row: row[1].exact.mean))


def study_row(tracks: dict[str, list[dict[str, Any]]]) -> StudyRow:
    columns: dict[str, Errors] = {}
    for track, name in (("posterior", "exact"), ("sampled", "draws")):
        seeds = sorted(tracks.get(track, []), key=lambda record: record["config"]["seed"])
        if not seeds:
            continue
        if [record["config"]["seed"] for record in seeds] != SEEDS or len({size(record) for record in seeds}) > 1:
            raise ValueError(f"not three seeds of one setting: {[record['id'] for record in seeds]}")
        columns[name] = Errors([error(record, "20", "all") for record in seeds])
        columns[f"{name}_new"] = Errors([error(record, "50", "post") for record in seeds])
    first = tracks["posterior"][0]
    return StudyRow(size(first), first["parameters"], **columns)


def batch_table(records: dict[str, dict[str, Any]]) -> str:
    """bijection at equal data in batches of 64 and of 32, for every architecture that was tried."""
    errors: dict[tuple[str, int], list[float]] = defaultdict(list)
    for record in records.values():
        config = record["config"]
        base = {"task": "bijection", "preset": "quick", "supervision": "posterior", **BATCH_STUDY}
        if base.items() <= {**LATER, **config}.items():
            errors[config["arch"], config["batch"]].append(error(record, "20", "all"))
    lines = []
    for arch in sorted({arch for arch, _ in errors}):
        old, new = Errors(errors[arch, 64]), Errors(errors[arch, 32])
        lines.append([f"`{arch}`", old.cell(), new.cell(), f"{new.mean / old.mean:.2f}"])
    return table(["architecture", "600 x 64", "1,080 x 32", "ratio"], lines)


def long_runs(records: dict[str, dict[str, Any]], task: str) -> dict[str, LongRun]:
    """Single runs at `small`, the best first."""
    found = []
    for record in records.values():
        config = record["config"]
        if config["task"] == task and config["preset"] == "small":
            settings = differences(record, records[LONG_BASE[task]]).replace(f"batch={config['batch']}", "").strip()
            draws = ["on draws"] if config["supervision"] == "sampled" else []
            parts = [part for part in (settings, *draws) if part != "nothing"]
            name = ", ".join(part for part in parts if part) or "nothing"
            mark = ": the preset" if record["id"] in PRESETS else ""
            kl, curve = (error(record, "20", "all", metric) for metric in ("kl", "entropy_curve_mae"))
            new, hours = error(record, "50", "post"), record["seconds"]["train"] / 3600
            mae = error(record, "20", "all")
            row = (name + mark, size(record), mae, new, kl, curve, record["parameters"], hours, record["id"])
            found.append(LongRun(*row))
    return {run.id: run for run in sorted(found, key=lambda run: run.mae)}


@dataclass(frozen=True)
class Bill:
    """A power law of the error in the steps, and what it says of the steps to GOAL."""

    exponent: float
    steps: float
    hours: float


def bills(runs: list[tuple[int, float, float]]) -> dict[str, Bill]:
    """From runs as (steps, error, hours), the shortest first: a law through all, and one through the last two alone.

    The law through the longer runs falls faster, if either does: `least` and `most` steps are a range, not a bound.
    """
    found = []
    for part in (runs, runs[-2:]):
        exponent, constant = np.polyfit([log(steps) for steps, *_ in part], [log(mae) for _, mae, _ in part], 1)
        steps = exp((log(GOAL) - constant) / exponent)
        found.append(Bill(float(exponent), steps, runs[-1][2] * steps / runs[-1][0]))
    least, most = sorted(found, key=lambda bill: bill.steps)
    return {"least": least, "most": most}


def read_csv(name: str, keys: int = 1) -> dict[str, dict[str, Any]]:
    """Rows of a CSV file by their first columns; what looks like a number is one."""
    with (HERE / name).open(newline="") as file:
        lines = list(csv.DictReader(file))
    rows = {
        ", ".join(list(line.values())[:keys]): {key: number(value) for key, value in line.items()} for line in lines
    }
    if len(rows) < len(lines):
        raise ValueError(f"{name} has two rows of one name")
    return rows


def number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def study_table(rows: dict[str, StudyRow], columns: dict[str, str]) -> str:
    lines = []
    for name, row in rows.items():
        cells = [getattr(row, column) for column in columns]
        lines.append([name, row.steps, *(cell.cell() if cell else "not run" for cell in cells)])
    return table(["what differs", "steps x batch", *columns.values()], lines)


def long_table(runs: dict[str, LongRun]) -> str:
    lines = []
    for run in runs.values():
        new = "n/a" if run.new is None else f"{run.new:.4f}"
        lines.append([run.settings, run.steps, f"{run.mae:.4f}", new, f"{run.kl:.4f}", f"`{run.id}`"])
    return table(["what differs", "steps x batch", "MAE, K = 20", "new at K = 50", "KL", "record"], lines)


def curve_table(rows: dict[str, dict[str, Any]]) -> str:
    lines = [
        [row["run"], f"{row['sequences']:,.0f}", f"{row['MAE']:.4f}", f"{row['curve']:.1e}", f"{chance(row):.1e}"]
        for row in rows.values()
    ]
    return table(["run", "sequences", "MAE", "curve", "left by chance, at least"], lines)


def chance(row: dict[str, Any]) -> float:
    """What is left of an unbiased model's normal errors in the mean over that many sequences."""
    return row["MAE"] / row["sequences"] ** 0.5


def tuned_table(rows: dict[str, dict[str, Any]]) -> str:
    lines = [
        [f"`{arch}`", f"{row['MAE untuned']:.4f}", f"{row['MAE tuned']:.4f}", f"{ratio - 1:+.0%}".replace("%", " %")]
        for arch, row in rows.items()
        for ratio in [row["MAE tuned"] / row["MAE untuned"]]
    ]
    return table(["architecture", "preset's rate", "twice that rate, as tuned", "change"], lines)


def render() -> str:
    records = read_json(HERE)
    studies = {task: study(records, task) for task in STUDY_BASE}
    longer = {task: long_runs(records, task) for task in LONG_BASE}
    shown = sum(len(group) for group in longer.values())
    if shown != sum(record["config"]["preset"] != "quick" for record in records.values()):
        raise ValueError("a longer run has no row")
    factor = {
        name: getattr(studies[task][a], column).mean / getattr(studies[task][b], other).mean
        for name, (task, a, column, b, other) in FACTORS.items()
    }
    draws = [(records[id]["config"]["steps"], longer["bijection"][id]) for id in ON_DRAWS]
    curve, starts = read_csv("curve.csv", keys=2), read_csv("starts.csv", keys=3)
    changes, tuned, times = read_csv("changes.csv"), read_csv("tuned.csv"), read_csv("times.csv")
    exact = {"exact": "exact targets, K = 20"}
    both = {**exact, "exact_new": "new at K = 50", "draws": "draws, K = 20", "draws_new": "new at K = 50"}
    return TEMPLATE.read_text().format(
        **studies,
        runs={**longer["hmm"], **longer["bijection"]},
        factor=factor,
        changes=changes,
        starts=starts,
        tuned=tuned,
        times=times,
        trials={"changes": len(changes), "starts": len(starts)},
        bill=bills([(steps, run.mae, run.hours) for steps, run in draws]),
        hmm_table=study_table(studies["hmm"], both),
        bijection_table=study_table(studies["bijection"], exact),
        hmm_long=long_table(longer["hmm"]),
        bijection_long=long_table(longer["bijection"]),
        batch_table=batch_table(records),
        curve_table=curve_table(curve),
        tuned_table=tuned_table(tuned),
    )


def main() -> int:
    parser = argparse.ArgumentParser(description="Write docs/recipe.md from the data beside this script.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the page differs")
    page = render()
    if not parser.parse_args().check:
        PAGE.write_text(page)
        print(f"wrote {PAGE}")
        return 0
    if PAGE.read_text() != page:
        print(f"{PAGE} is not what its data say: run python docs/recipe/render.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
