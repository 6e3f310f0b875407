"""Records that others send: checked more strictly, shown as self-reported.

They lie in `<runs>/self-reported/<task>/<arch>/<id>.json` and are marked in every table until somebody has evaluated
their weights again; then the file moves up to its place among the records. A record that our own code could not have
written is refused, with the reason, and the others go on.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from math import isclose
from pathlib import Path
from statistics import mean
from typing import Any

from bench.config import RunConfig, check
from bench.presets import PRESETS
from bench.records import SELF_REPORTED, BadRecord, RunRecord, parse, record_files, write
from bench.registry import BadInput, unknown
from bench.run.keeper import SHARED
from bench.run.references import reference_names
from bench.run.score import CURVES
from bench.seeds import PUBLISHED_FROM, generator
from models.base import ARCHS
from tasks.base import variants

MAX_BYTES = 1 << 24  # ours take some 25 kB, and 9 bytes a step
MAX_TEXT = 300
MAX_DEPTH = 6
MAX_PARAMETER = 4096  # of a task's parameters and horizon: checking a record draws one sequence
NEEDED = {"entropy_mae", "entropy_curve_mae", "kl"}  # what tables show; a record may be older than the other metrics

Problems = list[tuple[Path, str]]


def add(paths: Collection[Path], runs: Path, known: Collection[str]) -> tuple[dict[Path, RunRecord], Problems]:
    """Accept good records. Returns the files written with their records, and the files refused with the reason."""
    added: dict[Path, RunRecord] = {}
    refused: Problems = []
    for path in paths:
        try:
            record = read_checked(path)
            if record.id in {*known, *(other.id for other in added.values())}:
                raise BadRecord("the same run as a record that is here")
            added[write(runs / SELF_REPORTED, record, None)] = record
        except BadRecord as error:
            refused.append((path, str(error)))
    return added, refused


def read_submissions(runs: Path, known: Collection[str]) -> tuple[list[RunRecord], Problems]:
    """Records that were sent, checked again: a pull request may have put them there without `bench board --add`."""
    records: dict[str, RunRecord] = {}
    problems: Problems = []
    for path in record_files(runs / SELF_REPORTED):
        try:
            record = read_checked(path)
            if record.id in known:
                raise BadRecord("the same run as one of the records")
            if path != runs / SELF_REPORTED / record.path:
                raise BadRecord(f"it belongs in {SELF_REPORTED}/{record.path}")
            records[record.id] = record
        except BadRecord as error:
            problems.append((path, str(error)))
    return list(records.values()), problems


def read_checked(path: Path) -> RunRecord:
    try:
        if not path.is_file() or path.is_symlink():
            raise BadRecord("not a file")
        if path.stat().st_size > MAX_BYTES:
            raise BadRecord(f"{path.stat().st_size:,} bytes, more than {MAX_BYTES:,}")
        text = path.read_bytes()
    except OSError as error:
        raise BadRecord(f"not readable ({error.strerror})") from error
    return check_text(text)


def check_text(text: bytes) -> RunRecord:
    record = parse(text)
    _check_values(json.loads(text, object_pairs_hook=_once), "record", 0)
    check_submission(record)
    return record


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """JSON allows a key twice, and readers differ in which one they believe."""
    tree = dict(pairs)
    if len(tree) < len(pairs):
        raise BadRecord("a key occurs twice")
    return tree


def check_submission(record: RunRecord) -> None:
    """Check everything that our own code guarantees about a record and that a table relies on."""
    _require(record.ok, "a failed run: there is nothing to verify")
    _require(not record.config.elsewhere, "trained elsewhere: nobody could train it again")
    _require(re.fullmatch(r"sha256:[0-9a-f]{64}", record.weights or ""), "weights has no SHA-256 to verify them by")
    is_known = record.commit is not None  # an image that was built without COMMIT does not know it
    _require(not is_known or re.fullmatch(r"[0-9a-f]{7,40}", record.commit or ""), "commit is not a commit's hash")
    _require(not record.dirty, "dirty: the code had changes that its commit does not have")
    config = record.config
    is_external = config.arch_source or config.task_source
    _require(not is_external, "made with external code: a pull request must add its file to models/ or tasks/ first")
    _require(not config.is_recipe_work, f"seed {config.seed}: seeds below {PUBLISHED_FROM} are for work on recipes")
    _check_costs(record)
    _check_config(config)
    _check_scores(record, config)
    _check_curves(record, config)
    budget, count = config.budget(), record.parameters or 0
    _require(record.budget == budget, f"budget {record.budget}, its config's is {budget}")
    _require(abs(count - budget) <= 0.01 * budget, f"{count:,} parameters, budget {budget:,}")


def _check_values(tree: Any, name: str, depth: int) -> None:
    """Short text, shallow trees; numbers are finite by the time they are read."""
    _require(depth <= MAX_DEPTH, f"{name} is nested too deeply")
    if isinstance(tree, str):
        _require(len(tree) <= MAX_TEXT, f"{name} has {len(tree):,} characters, more than {MAX_TEXT}")
    elif isinstance(tree, dict):
        for key, value in tree.items():
            _require(re.fullmatch(r"[\w .-]{1,60}", key), f"{name} has a strange key {key[:60]!r}")
            _check_values(value, f"{name}.{key}", depth + 1)
    elif isinstance(tree, list):
        for value in tree:
            _check_values(value, name, depth + 1)


def _check_config(config: RunConfig) -> None:
    """What `bench run` would have accepted."""
    _require(len(config.horizons) <= 16, f"config has {len(config.horizons)} horizons, more than 16")
    _require(max(config.horizons) <= MAX_PARAMETER, f"config's horizons reach beyond {MAX_PARAMETER:,}")
    search = config.tuning
    _require(not search or search.keys() == {"seeds", "steps", "errors"}, "config's tuning is not a search of ours")
    _require(not search or isinstance(search["seeds"], list), "config's tuning.seeds is not a list")
    _require(not search or type(search["steps"]) is int, "config's tuning.steps is not a whole number")
    lists = search and isinstance(search["errors"], dict) and list(search["errors"].values())
    _require(not search or lists, "config's tuning.errors is not a table")
    numbers = all(isinstance(e, list) and e and all(isinstance(x, float | None) for x in e) for e in lists or ())
    _require(numbers, "config's tuning.errors are not lists of numbers")
    tuned_on = search["seeds"] if search else []
    only_tuning = all(type(seed) is int and seed < PUBLISHED_FROM for seed in tuned_on)
    _require(only_tuning, f"its search used seeds that are not below {PUBLISHED_FROM}")
    for name, value in config.task_params.items():
        _require(isinstance(value, bool | int | float | str | None), f"config's {name} is not a plain value")
        _require(not isinstance(value, int) or value <= MAX_PARAMETER, f"config's {name} is too large")
    _require(config.device in ("cpu", "cuda"), f"config's device is {config.device!r}")
    try:
        ARCHS.facts(config.arch)
        if config.preset not in PRESETS:
            raise unknown("preset", config.preset, PRESETS)
        check(config)
    except (BadInput, TypeError, ValueError) as error:
        raise BadRecord(f"config is not valid ({error})") from error
    least = PRESETS[config.preset].values_for(config.task)["sequences"]
    _require(config.sequences >= least, f"scored on {config.sequences:,} sequences, its preset on {least:,}")


def _check_costs(record: RunRecord) -> None:
    alone = SHARED not in record.notes
    measured = all(getattr(record.seconds, phase) is not None for phase in ("setup", "train", "eval"))
    _require(measured == alone, f"seconds of setup, train or eval are {'missing' if alone else 'shared with others'}")
    for name, is_unknown in (("train_flops", True), ("tokens_per_second", not alone)):
        value = getattr(record, name)
        _require((value or 0) > 0 or (is_unknown and value is None), f"{name} is not a positive number")
    for key in ("name", "torch"):
        _require(isinstance(record.platform.get(key), str), f"platform.{key} is not text")
    _require(type(record.platform.get("threads")) is int, "platform.threads is not a whole number")
    gpu = record.platform.get("gpu") or {}
    _require(isinstance(gpu, dict), "platform.gpu is not a table")
    share = gpu.get("flops_utilisation")
    is_share = share is None or (type(share) in (int, float) and 0 <= share <= 1)
    _require(is_share, "platform.gpu.flops_utilisation is not a share")


def _check_scores(record: RunRecord, config: RunConfig) -> None:
    """Numbers at every horizon, by the names that the tables use, for the run and for each reference."""
    _require(config.horizon in config.horizons, "config's horizons leave out the training horizon")
    keys = {str(k) for k in config.horizons}
    for name in ("metrics", "references", "by_position"):
        tree = getattr(record, name)
        _require(set(tree) == keys, f"{name} are not at the config's horizons")
        _require(tree[str(config.horizon)], f"{name} has nothing at the training horizon")
    task = config.make_task()
    names = reference_names(config.task, task)
    starts = {part: variant.start for part, variant in variants(task).items()}
    for k in keys:
        parts = {"all", *(part for part, start in starts.items() if start < int(k))}
        parts |= {"post"} if int(k) > config.horizon else set()
        known = record.references[k] or {}
        _require(not known or set(known) == set(names), f"references at {k} are not {', '.join(sorted(names))}")
        rows = {f"references.{name}": row for name, row in known.items()}
        if scores := record.metrics[k]:
            rows["metrics"] = scores
        for name, row in rows.items():
            _require(set(row) == parts, f"{name} at {k} has not the parts {sorted(parts)}")
            for part in row.values():
                _require(set(part) >= NEEDED, f"{name} at {k} lacks {', '.join(sorted(NEEDED - set(part)))}")


def _check_curves(record: RunRecord, config: RunConfig) -> None:
    """A number for every scored position, with the same mean as the metrics."""
    task = config.make_task()
    for k, curves in ((k, curves) for k, curves in record.by_position.items() if curves):
        _require(int(k) <= (task.max_horizon() or int(k)), f"by_position at {k}: the task ends before")
        length = len(task.sample(1, int(k), generator("cpu", 0, "length")).queries)
        complete = all(len(curves.get(name, ())) == length for name in CURVES)
        _require(complete, f"by_position at {k} has not {length} numbers in each of {', '.join(CURVES)}")
        _require(record.metrics[k], f"by_position at {k}, and no metrics")
        for part, metrics in (record.metrics[k] or {}).items():
            if part not in ("all", "post"):
                continue  # other sequences, of which no curve is kept
            start = 0 if part == "all" else config.horizon
            for name in ("entropy_mae", "kl"):
                claimed, found = metrics[name], mean(curves[name][start:])
                same = isclose(claimed, found, rel_tol=1e-6, abs_tol=1e-9)
                _require(same, f"metrics at {k}: {name} of {part} is {claimed:g}, by position {found:g}")


def _require(condition: object, reason: str) -> None:
    if not condition:
        raise BadRecord(reason)
