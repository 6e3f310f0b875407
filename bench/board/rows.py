"""Records to rankings: which seeds make a row, which rows compare, and their ranks.

ranking.py says what a ranking and a row are.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import mean
from typing import Any

from bench.board.ranking import Group, Part, Parts, Ranking, Reference, Row, Scores
from bench.board.settings import comparable_settings, is_preset_default, preset_values, task_settings
from bench.board.tuning import worths
from bench.config import RunConfig, law
from bench.presets import PRESETS
from bench.presets import TASKS as CORE_TASKS
from bench.records import Parts as Tree
from bench.records import RunRecord
from bench.run.references import effective_memory
from bench.stats import holm, interval, paired_p, shared_ranks


def make_rankings(records: Sequence[RunRecord], reported: Sequence[RunRecord] = ()) -> list[Ranking]:
    """All rankings; self-reported records have rows of their own."""
    theirs = frozenset(record.id for record in reported)
    groups: dict[Group, list[RunRecord]] = defaultdict(list)
    for record in (*records, *reported):
        groups[group_of(record.config)].append(record)
    return [_make_ranking(group, groups[group], theirs) for group in sorted(groups, key=_place)]


def group_of(config: RunConfig) -> Group:
    given, usual = task_settings(config)
    unusual = ((name, str(value)) for name, value in sorted(given.items()) if usual.get(name) != value)
    return Group(config.task, config.task_source, tuple(unusual), config.preset, config.supervision, config.device)


def _place(group: Group) -> tuple[Any, ...]:
    """Sort key: the presets' own tasks first, each from the smallest preset on; then the rest, by name."""
    task, presets = group.task, list(PRESETS)
    size = presets.index(group.preset) if group.preset in presets else len(presets)
    return CORE_TASKS.index(task) if task in CORE_TASKS else len(CORE_TASKS), task, size, group


def _make_ranking(group: Group, members: list[RunRecord], theirs: frozenset[str]) -> Ranking:
    good = [record for record in members if record.ok]
    failed = tuple(record for record in members if not record.ok)
    trained = members[0].config.horizon
    if not good:
        return Ranking(group, trained, (), (), (), failed)
    longer = tuple(sorted({int(k) for r in good for k, known in r.references.items() if known and int(k) > trained}))
    rows = [_make_row(seeds, good, longer, seeds[0].id in theirs) for seeds in group_seeds(good, theirs)]
    rows.sort(key=lambda row: (row.scores.error, row.name))
    own = [record for record in good if record.id not in theirs] or good
    names = own[0].references[str(trained)] or {}
    by_kl = own[0].has_certain_answers
    references = [
        Reference(name, _scores([_scored(r, name) for r in own], trained, longer, by_kl))
        for name in names
        if not (by_kl and name == "best constant")  # it is fitted to the MAE, which any point mass has at 0
    ]
    rows = _rank(rows)
    parts = _other_parts(trained, rows, references)
    return Ranking(group, trained, longer, tuple(rows), tuple(references), failed, parts, tuple(worths(rows)))


def _make_row(seeds: list[RunRecord], members: list[RunRecord], longer: tuple[int, ...], sent: bool) -> Row:
    first = seeds[0]
    trained = first.config.horizon
    scores = _scores([record.metrics for record in seeds], trained, longer, first.has_certain_answers)
    return Row(
        arch=first.config.label,
        settings=_settings(first, members),
        has_recipe_seeds=first.config.is_recipe_work,
        records=tuple(seeds),
        scores=scores,
        interval=interval([record.error_bits for record in seeds]),
        memory=effective_memory(scores.kl, reference_means(seeds, trained, "kl")),
        is_preset_default=is_preset_default(first.config),
        is_self_reported=sent,
        is_informed=scores.kl < mean_metric(seeds, trained, "kl", "uniform"),
    )


def _scored(record: RunRecord, reference: str) -> dict[str, Tree | None]:
    return {k: known[reference] if known else None for k, known in record.references.items()}


def _scores(trees: Sequence[dict[str, Tree | None]], trained: int, longer: Sequence[int], by_kl: bool) -> Scores:
    """Means over seeds, from the metrics of each."""

    def average(k: int, part: str, metric: str) -> float:
        return mean(tree[str(k)][part][metric] for tree in trees)  # type: ignore[index]

    error = "kl" if by_kl else "entropy_mae"
    at = {
        k: (average(k, "all", error), average(k, "post", error)) if all(tree.get(str(k)) for tree in trees) else None
        for k in longer
    }
    mae, kl, curve = (average(trained, "all", metric) for metric in ("entropy_mae", "kl", "entropy_curve_mae"))
    return Scores(mae, kl, curve, at, by_kl)


def _rank(rows: list[Row]) -> list[Row]:
    """Rows from the best on, with ranks.

    A row whose KL is not below the uniform predictor's knows nothing, whatever its entropies. Where every row has a
    single seed, nothing is ranked. A model that was trained elsewhere compares with nothing.
    """
    if any(row.is_elsewhere for row in rows):
        return rows  # then all rows are: unknown supervision has a table of its own
    able = {id(row) for row in _comparable(rows)}
    flags = [id(row) in able for row in rows]
    rows = [replace(row, compares=flag and row.is_preset_default) for row, flag in zip(rows, flags, strict=True)]
    counted = [row for row, flag in zip(rows, flags, strict=True) if flag and row.is_informed]
    if all(len(row.records) == 1 for row in counted):
        return rows
    ranks = shared_ranks([list(row.errors.values()) for row in counted])
    by_kl = shared_ranks([[record.at()["all"]["kl"] for record in row.records] for row in counted])
    tests = [paired_p(above.errors, row.errors) for above, row in pairwise(counted)]
    ranked = {
        id(row): replace(row, rank=rank, kl_rank=other if _is_disputed(row, counted) else None, p=p)
        for row, rank, other, p in zip(counted, ranks, by_kl, [None, *holm(tests)][: len(counted)], strict=True)
    }
    return [ranked.get(id(row), row) for row in rows]


def _comparable(rows: Sequence[Row]) -> list[Row]:
    """Rows that may be ranked together: with fresh seeds, and one for each architecture.

    They have the preset's settings: the tuned ones if two are, else the untuned ones. Where no row has the preset's
    settings, those with the settings that most rows share compare.
    """
    fresh = [row for row in rows if not row.config.is_recipe_work]
    if any(row.is_preset_default for row in rows):
        usual = _one_each(row for row in fresh if row.is_preset_default)
        tuned = _one_each(row for row in fresh if row.is_preset_default and row.config.tuning)
        untuned = _one_each(row for row in fresh if row.is_preset_default and not row.config.tuning)
        return tuned if len(tuned) > 1 else untuned or usual
    settings = [comparable_settings(row.config) for row in fresh]
    counts = Counter(settings).most_common(2)
    if not counts or (len(counts) > 1 and counts[0][1] == counts[1][1]):
        return []
    return _one_each(row for row, each in zip(fresh, settings, strict=True) if each == counts[0][0])


def _one_each(rows: Iterable[Row]) -> list[Row]:
    """Each architecture's row with most seeds; ours and one that others sent are two."""
    found: dict[tuple[str, bool], Row] = {}
    for row in sorted(rows, key=lambda row: -len(row.records)):
        found.setdefault((row.arch, row.is_self_reported), row)
    return list(found.values())


def _is_disputed(row: Row, rows: Sequence[Row]) -> bool:
    """Whether the mean KL orders it and another row otherwise than the error that ranks."""
    mine = row.scores
    return any((mine.error - other.scores.error) * (mine.kl - other.scores.kl) < 0 for other in rows)


def _settings(record: RunRecord, members: Sequence[RunRecord]) -> tuple[str, ...]:
    """Every setting that is not the preset's, or that distinguishes the row from its architecture's other rows."""
    if record.config.elsewhere:
        return (f"file={record.config.elsewhere.get('sha256', '')[:7]}",)
    mine = vars(record.config)
    rivals = [vars(r.config) for r in members if r.config.arch == record.config.arch]
    usual = preset_values(record.config)
    # shown in other columns or in the title; a search scales both rates alike
    elsewhere = {"arch", "arch_source", "task_source", "seed", "tuning", "supervision", "horizon"}
    elsewhere |= {"adam_lr"} if record.config.tuning else set()
    apart = [
        f"{k}={v}"
        for k, v in mine.items()
        if k not in elsewhere
        and (usual[k] != v if k in usual and k != "horizons" else any(rival[k] != v for rival in rivals))
    ]
    return (*apart, *(["tuned"] if mine["tuning"] else []))


def _other_parts(trained: int, rows: Sequence[Row], references: Sequence[Reference]) -> Parts | None:
    """The parts that a task's settings add, and the KL of each row and of each exact answer on them."""
    records = [record for row in rows for record in row.records]
    common = set.intersection(*(set(record.at()) for record in records)) - {"all", "post"}
    if not common:
        return None
    names = ("all", *sorted(common))

    def kls(of: Sequence[RunRecord], reference: str | None = None) -> list[float]:
        return [mean_metric(of, trained, "kl", reference, part) for part in names]

    exact = [line.name for line in references if line.name.endswith(" prior") or line.name == "uniform"]
    lines = [Part(row.name, False, kls(row.records)) for row in rows]
    return Parts(names, (*lines, *(Part(name, True, kls(records, name)) for name in exact)))


def group_seeds(records: Sequence[RunRecord], theirs: frozenset[str] = frozenset()) -> list[list[RunRecord]]:
    """Seeds of one row. A self-reported record never enters the mean of our own.

    A learning-rate search counts by the rate that it chose, since the errors that it saw differ between machines. A
    seed that was run after two searches has a second row: it is not a second seed. Seeds of recipe work have rows of
    their own.
    """
    rows: dict[tuple[bool, bool, str, int], list[RunRecord]] = defaultdict(list)
    times: Counter[tuple[bool, str, int]] = Counter()
    for record in sorted(records, key=lambda r: r.config.seed):
        config = {**record.config.to_json(), "tuning": bool(record.config.tuning)}
        config["task_params"] = law(record.config)  # naming a default makes no other experiment
        seed = config.pop("seed")
        settings = json.dumps(config, sort_keys=True)
        sent = record.id in theirs
        rows[sent, record.config.is_recipe_work, settings, times[sent, settings, seed]].append(record)
        times[sent, settings, seed] += 1
    return list(rows.values())


def mean_metric(
    records: Sequence[RunRecord], horizon: int, metric: str, reference: str | None = None, part: str = "all"
) -> float:
    """A metric's mean over seeds, of the models or of a reference predictor on their sequences."""
    if reference is None:
        return mean(record.at(horizon)[part][metric] for record in records)
    return mean(record.references[str(horizon)][reference][part][metric] for record in records)  # type: ignore[index]


def reference_means(records: Sequence[RunRecord], horizon: int, metric: str = "entropy_mae") -> dict[str, float]:
    """Each reference predictor's mean error over the sequences of a row's seeds."""
    known = records[0].references[str(horizon)] or {}
    return {name: mean_metric(records, horizon, metric, name) for name in known}
