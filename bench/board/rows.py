"""Rows: which records are ranked together, which are seeds of one row, and what a row is called.

Task, preset, supervision and device are never mixed in one ranking. Records that differ in nothing but the seed are one
row; one whose every setting is its preset's is `untouched`, and others are named by what they changed.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Sequence, Set
from math import isinf
from statistics import mean
from typing import Any, NamedTuple

from bench.config import USUAL, task_parameters
from bench.presets import PRESETS
from bench.presets import TASKS as CORE_TASKS
from bench.records import RunRecord
from bench.stats import shared_ranks


class Group(NamedTuple):
    task: str
    preset: str
    supervision: str
    device: str

    @property
    def track(self) -> str:
        return f"preset {self.preset}, {self.supervision} supervision, {self.device}"

    def __str__(self) -> str:
        return f"{self.task}: {self.track}"


def group(records: list[RunRecord]) -> dict[Group, list[RunRecord]]:
    """What may be ranked together, by name."""
    groups: dict[Group, list[RunRecord]] = defaultdict(list)
    for record in records:
        c = record.config
        given, usual = task_settings(c)
        unusual = (f"{name}={value}" for name, value in sorted(given.items()) if usual.get(name) != value)
        task = " ".join([c["task"], *unusual])
        groups[Group(printable(task), c["preset"], c["supervision"], c["device"])].append(record)
    return dict(sorted(groups.items(), key=_place))


def task_settings(config: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """All of a task's parameters, as this run had them and as its preset has them."""
    own = {**task_parameters(config["task"]), "horizon": config["horizon"]}
    return {**own, **config["task_params"]}, {**own, **preset_values(config)}


def _place(item: tuple[Group, list[RunRecord]]) -> tuple[Any, ...]:
    """The presets' own tasks first, each from the smallest preset on; then the rest, by name."""
    name, presets = item[0], [*PRESETS]
    tasks = {task: place for place, task in enumerate(CORE_TASKS)}
    size = presets.index(name.preset) if name.preset in presets else len(presets)
    return tasks.get(name.task.split()[0], len(tasks)), name.task.split()[0], size, name


def is_the_presets(name: Group) -> bool:
    """A task with other parameters than its preset's is another task, and says so in its name."""
    return name.preset in PRESETS and " " not in name.task


def preset_values(config: dict[str, Any]) -> dict[str, Any]:
    """What its preset says of this task; nothing for a preset that we do not have."""
    preset = PRESETS.get(config["preset"])
    return {**USUAL, **preset.values_for(config["task"])} if preset else {}


def untouched(config: dict[str, Any]) -> bool:
    """Every setting is its preset's; supervision and horizons have tables or columns of their own."""
    usual = preset_values(config)
    told = {k: v for k, v in {**USUAL, **config}.items() if k in usual and k not in ("supervision", "horizons")}
    return bool(usual) and all(usual[k] == v for k, v in told.items())


def same_settings(records: Sequence[RunRecord], marked: Set[str] = frozenset()) -> list[list[RunRecord]]:
    """Seeds of one row; what is self-reported never enters the mean of what is not.

    Of a search for the learning rate what it chose counts, not the errors that it saw: those differ between machines,
    and a seed that was searched for on two of them is no second seed: it has a row of its own.
    """
    rows: dict[tuple[bool, str, int], list[RunRecord]] = defaultdict(list)
    times: Counter[tuple[bool, str, int]] = Counter()
    for record in sorted(records, key=lambda r: r.config["seed"]):
        config = {**record.config, "tuning": bool(record.config.get("tuning"))}
        settings = json.dumps({k: v for k, v in config.items() if k != "seed"}, sort_keys=True)
        mine = record.id in marked
        rows[mine, settings, times[mine, settings, config["seed"]]].append(record)
        times[mine, settings, config["seed"]] += 1
    return list(rows.values())


def row_name(record: RunRecord, records: list[RunRecord]) -> str:
    """The architecture, and every setting that is not its preset's, or sets it apart from its like in other ways."""
    rivals = [{**USUAL, **r.config} for r in records if r.config["arch"] == record.config["arch"]]
    usual = preset_values(record.config)
    elsewhere = ("seed", "tuning", "supervision", "horizon")  # in columns of their own, or in the table's title
    told = {k: v for k, v in {**USUAL, **record.config}.items() if k not in elsewhere}
    apart = [
        f"{k}={v}"
        for k, v in told.items()
        if (usual[k] != v if k in usual and k != "horizons" else any(c[k] != v for c in rivals))
    ]
    if "tuning" in record.config and not all(c["tuning"] for c in rivals):
        apart.append("tuned")
    return printable(" ".join([record.config["arch"], *apart]))


def ranked(
    records: list[RunRecord], trained: str, marked: Set[str] = frozenset()
) -> list[tuple[dict[int, float], list[RunRecord]]]:
    """Rows from the best on: the error of each seed, and the records."""
    rows = [
        ({r.config["seed"]: r.metrics[trained]["all"]["entropy_mae"] for r in same}, same)
        for same in same_settings(records, marked)
    ]
    return sorted(rows, key=lambda row: mean(row[0].values()))


def ranks(runs: list[tuple[dict[int, float], list[RunRecord]]], trained: str) -> list[str]:
    """Of rows from the best on: a number; † for what does not compare with the rest; - for what has learned nothing.

    Rows with the preset's own settings compare, and where there are none, those of the settings that most rows share.
    One whose KL is not below the uniform predictor's knows no more than that, whatever its entropies.
    """
    own = [untouched(same[0].config) for _, same in runs]
    given = [setting(same[0].config) for _, same in runs]
    first, *rest = Counter(given).most_common(2) or [("", 0)]
    shared_by_most = None if rest and rest[0][1] == first[1] else first[0]
    compares = own if any(own) else [each == shared_by_most for each in given]
    informed = [mean_of(same, trained, "kl") < mean_of(same, trained, "kl", "uniform") for _, same in runs]
    counted = [a and b for a, b in zip(compares, informed, strict=True)]
    shared = iter(shared_ranks([[*errors.values()] for (errors, _), ok in zip(runs, counted, strict=True) if ok]))
    return [str(next(shared)) if ok else "-" if not known else "†" for ok, known in zip(counted, informed, strict=True)]


def setting(config: dict[str, Any]) -> str:
    """All that two architectures must share to be compared; a rate that was searched for may differ."""
    shared = {**USUAL, **config, "tuning": bool(config.get("tuning"))}
    ignored = ("arch", "seed", *(("lr", "adam_lr") if shared["tuning"] else ()))
    return json.dumps({k: v for k, v in shared.items() if k not in ignored}, sort_keys=True)


def mean_of(records: list[RunRecord], k: str, metric: str, reference: str | None = None) -> float:
    """Over seeds: of the models, or of a reference predictor on their sequences."""
    trees = [r.references[k][reference] if reference else r.metrics[k] for r in records]
    return mean(tree["all"][metric] for tree in trees)


def references_of(records: list[RunRecord], k: str, metric: str = "entropy_mae") -> dict[str, float]:
    """The error of each reference predictor on the sequences of a row, its mean over seeds."""
    return {name: mean_of(records, k, metric, name) for name in records[0].references[k]}


def one_row_each(records: list[RunRecord]) -> dict[str, tuple[dict[int, float], list[RunRecord]]]:
    """An architecture's row with the preset's own settings, and where there is none, its best."""
    rows = ranked(records, str(records[0].config["horizon"]))
    found: dict[str, tuple[dict[int, float], list[RunRecord]]] = {}
    for errors, same in sorted(rows, key=lambda row: not untouched(row[1][0].config)):
        found.setdefault(same[0].config["arch"], (errors, same))
    return found


def longest(records: list[RunRecord]) -> str:
    """The longest horizon that all of these could read."""
    common = set.intersection(*({k for k, curves in r.by_position.items() if curves} for r in records))
    return max(common, key=int)


def beyond(records: list[RunRecord]) -> list[str]:
    """The horizons longer than the trained one at which any of these was scored."""
    trained = records[0].config["horizon"]
    return sorted({k for r in records for k in r.references if r.references[k] and int(k) > trained}, key=int)


def number(value: float) -> str:
    """Four decimals, or two digits of what is smaller; a billionth of a bit is the rounding of float64."""
    if isinf(value):
        return "∞"
    if abs(value) < 1e-9:
        return "0"
    return f"{value:.4f}" if abs(value) >= 0.001 else f"{value:.1e}"


def printable(text: object) -> str:
    """Text from a record on one line, without invisible signs."""
    return "".join(sign for sign in " ".join(str(text).split())[:200] if sign.isprintable())


def plain(text: object) -> str:
    """The same for Markdown: it can neither break a table nor carry markup or a link."""
    safe = printable(text)
    for mark in "\\`*_{}[]<>#|!~&@":
        safe = safe.replace(mark, "\\" + mark)
    return safe.replace("://", "\\://").replace("www.", "www\\.")
