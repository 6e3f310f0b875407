"""The records and reports that speak to a published claim, the largest runs first."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from math import sqrt
from statistics import mean, median
from types import MappingProxyType

from bench import SAMPLES
from bench.board.pools import Curves, make_curves
from bench.board.rows import group_seeds, make_rankings, mean_metric, reference_means
from bench.board.settings import is_preset_default, preset_values, task_settings
from bench.config import SEARCHED, RunConfig
from bench.presets import NEWER_BLOCK, SIZES
from bench.records import RunRecord
from bench.reports import Cell, Report
from bench.statements import SEEDS, Answered, Holds, question
from bench.stats import interval, two_groups
from bench.text import plural, significant

LENGTH = ("steps", "batch", "warmup", "weight_decay")  # what a run of another length needs to be changed
WIDE = 10.0  # a factor between the ends of an interval: it says less than the seeds themselves
# presets that can speak to a claim: the one with the source's own setting, then the largest first
ADMITTED = ("markov-report", *(size for size in SIZES if size != "smoke"))


@dataclass(frozen=True)
class Evidence:
    records: Sequence[RunRecord]
    reports: Mapping[str, Report]  # by run

    def rows(
        self,
        task: str,
        arch: str,
        supervision: str = "posterior",
        params: Mapping[str, object] = MappingProxyType({}),
        free: Collection[str] = (),
    ) -> list[list[RunRecord]]:
        """The seeds of each setting: rows with enough fresh seeds, then larger presets, then more training sequences.

        The task has its preset's parameters, but for those that are asked for. Of the run's settings, those of LENGTH,
        the block, what was searched, and those that are `free` may be others than the preset's.
        """

        def speaks(record: RunRecord) -> bool:
            return has_parameters(record.config, params) and other_settings(record.config) <= {*free}

        admitted = self._admitted.get((task, arch, supervision), [])

        def place(row: list[RunRecord]) -> tuple[bool, int, int, bool, bool, int]:
            c = row[0].config
            few = c.is_recipe_work or len(row) < SEEDS
            default = is_preset_default(c)
            return few, ADMITTED.index(c.preset), -c.steps * c.batch, not default, c.is_recipe_work, -len(row)

        return sorted(group_seeds([record for record in admitted if speaks(record)]), key=place)

    def curves(self, task: str) -> list[Curves]:
        """How far models of this task are from the two exact answers, by the size of their pool."""
        return make_curves(make_rankings([record for record in self.records if record.config.task == task]))

    def row(
        self,
        task: str,
        arch: str,
        supervision: str,
        horizon: int | None,
        metric: str = "entropy_mae",
        settings: Mapping[str, object] | None = None,
        params: Mapping[str, object] = MappingProxyType({}),
        part: str = "all",
    ) -> list[RunRecord]:
        """The largest row that has this metric at this horizon (None: where it was trained) and these settings.

        Empty if there is none.
        """
        for row in self.rows(task, arch, supervision, params, free=(settings or {}).keys()):
            fits = (settings or {}).items() <= asdict(row[0].config).items()
            k = str(horizon or row[0].config.horizon)
            if fits and all(metric in (record.metrics.get(k) or {}).get(part, {}) for record in row):
                return row
        return []

    def seeded(
        self, task: str, arch: str, holds: Holds, params: Mapping[str, object] = MappingProxyType({})
    ) -> list[Answered]:
        """The runs with a report that can answer: of the largest row with enough of them, else of that with most."""
        rows = [
            [Answered(run, self.reports[run.id]) for run in row if run.id in self.reports]
            for row in self.rows(task, arch, params=params)
        ]
        found = [[run for run in row if holds(run.report) is not None] for row in rows]
        enough = next((row for row in found if len(row) >= SEEDS), None)
        return enough or max(found, key=len, default=[])

    def best(self, config: RunConfig) -> float:
        """The least error that is known for the task, parameters, horizon and supervision of this run."""
        return min(record.error_bits for record in self._by_question[_key(config)])

    @cached_property
    def _by_question(self) -> dict[str, list[RunRecord]]:
        """One pass over the records, for all claims."""
        found: dict[str, list[RunRecord]] = defaultdict(list)
        for record in self.records:
            if record.ok:
                found[_key(record.config)].append(record)
        return found

    @cached_property
    def _admitted(self) -> dict[tuple[str, str, str], list[RunRecord]]:
        """Records that can speak to a claim, by task, architecture and supervision."""
        found: dict[tuple[str, str, str], list[RunRecord]] = defaultdict(list)
        for record in self.records:
            c = record.config
            if record.ok and c.preset in ADMITTED:
                found[c.task, c.arch, c.supervision].append(record)
        return found

    def lines(
        self, task: str, arch: str, table: str, preset: str, params: Mapping[str, object] = MappingProxyType({})
    ) -> Iterator[tuple[RunRecord, dict[str, Cell]]]:
        """Every row of a report's table, from each run of this preset that has one."""
        runs = [
            r
            for r in self.records
            if (r.config.task, r.config.arch, r.config.preset) == (task, arch, preset)
            and r.ok
            and is_preset_default(r.config)
            and not r.config.tuning
            and r.config.supervision == preset_values(r.config).get("supervision", r.config.supervision)
            and has_parameters(r.config, params)
        ]
        for run in sorted(runs, key=lambda r: r.config.seed):
            report = self.reports.get(run.id)
            # with fewer rollouts, posterior samples would look better than they are
            if report and report.samples == SAMPLES:
                yield from ((run, line) for line in report.lines(table))


def _key(config: RunConfig) -> str:
    return json.dumps(question(config), sort_keys=True)


def other_settings(config: RunConfig) -> set[str]:
    """Those that are not the preset's, apart from how long it trained, its block and what was searched."""
    usual = preset_values(config)
    ignored = {*LENGTH, *NEWER_BLOCK, "supervision", "horizons", "arch_source", "task_source", "tuning"}
    ignored |= set(SEARCHED) if config.tuning else set()
    return {name for name, value in vars(config).items() if name in usual.keys() - ignored and usual[name] != value}


def has_parameters(config: RunConfig, params: Mapping[str, object] = MappingProxyType({})) -> bool:
    """Every parameter of the task is its preset's, or the one asked for."""
    own, usual = task_settings(config)
    wanted = {**usual, **params}
    if params:  # the horizon may follow from them
        wanted["horizon"] = preset_values(replace(config, task_params=dict(params)))["horizon"]
    return all(wanted.get(name) == value for name, value in own.items())


def floors(row: Sequence[RunRecord], horizon: int) -> dict[str, str]:
    """What predictors that read nothing score on the row's sequences.

    uniform, constant  their entropy MAE
    curve              the best constant's, where entropies are averaged over sequences first
    chance             what unbiased errors as large as the row's leave after that averaging
    """
    known = reference_means(row, horizon)
    curves = [record.by_position[str(horizon)] or {} for record in row]
    entropies = [mean(at_k) for at_k in zip(*(c["h_bayes"] for c in curves), strict=True)]
    found = {
        "uniform": known["uniform"],
        "constant": known["best constant"],
        "curve": mean(abs(h - median(entropies)) for h in entropies),
        "chance": mean_metric(row, horizon, "entropy_mae") / sqrt(row[0].config.sequences),
    }
    return {name: significant(value) for name, value in found.items()}


def setting(run: RunRecord) -> str:
    """The preset; sampled targets; blocks that are not plain, or not the preset's; tuning; seeds of recipe work."""
    c = run.config
    names = [name for name in NEWER_BLOCK if name != "positions" or "transformer" in c.arch]
    newer = [getattr(c, name) for name in names if getattr(c, name) == NEWER_BLOCK[name]]
    usual = [preset_values(c).get(name) == NEWER_BLOCK[name] for name in names]
    block = newer or (["the plain block"] if any(usual) else [])
    target = ["sampled"] if c.supervision == "sampled" else []
    tuned = ["tuned"] if c.tuning else []
    recipe = ["recipe seeds"] if c.is_recipe_work else []
    return ", ".join([f"preset {c.preset}", *target, *block, *tuned, *recipe])


def seeds(row: Sequence[object]) -> str:
    return plural(len(row), "seed")


def steps(run: RunRecord) -> str:
    return f"{run.config.steps:,} steps of {run.config.batch}"


def spread(values: Sequence[float]) -> str:
    """The mean, with its interval; where seeds fall apart, how many did well; where it is wide, their range."""
    found = significant(mean(values))
    if groups := two_groups(values):
        count, better = groups
        return f"{found} ({count} of {len(values)}: {significant(better)})"
    limits = interval(values)
    if limits and limits[1] > WIDE * limits[0]:
        return f"{found} ({significant(min(values))} to {significant(max(values))})"
    return found + ends(limits)


def ends(bounds: tuple[float, float] | None) -> str:
    return f" [{significant(bounds[0])}, {significant(bounds[1])}]" if bounds else ""
