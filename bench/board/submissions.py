"""Records that others send: read with suspicion, shown as self-reported.

They lie in `<runs>/self-reported/<task>/<arch>/<id>.json` and are marked in every table until somebody has evaluated
their weights again; then the file moves up to its place among the records. A record that is not what our own code
could have written is refused, by name and with the reason, and the others go on.
"""

from __future__ import annotations

import re
from dataclasses import asdict
from math import isclose
from pathlib import Path
from statistics import mean
from typing import Any

from bench.config import RunConfig, check
from bench.floors import reference_names
from bench.presets import PRESETS
from bench.records import SELF_REPORTED, BadRecord, RunRecord, parse_config, read, read_all, record_files, write
from bench.registry import BadInput, unknown
from bench.score import METRICS
from bench.seeds import generator
from models.base import ARCHS

MAX_BYTES = 1 << 24  # ours take some 25 kB, and 9 bytes a step
MAX_TEXT = 300
MAX_DEPTH = 6
MOST = {"layers": 256, "heads": 256, "width": 16_384, "ffn": 65_536, "horizon": 4096, "sequences": 10**7}
PHASES = ("setup", "compile", "train", "eval")
CURVES = ("h_bayes", "h_model", "entropy_mae", "kl")
LOOKS = ("step", "seconds", "entropy_mae")
MEMORIES = ("resident", "allocated", "reserved", "nvml_process")


def add(paths: list[Path], runs: Path) -> tuple[list[Path], list[tuple[Path, str]]]:
    """Take in what is good: the files written, and the files refused with the reason."""
    known = {record.id: "one of the records" for record in read_all(runs)[0]}
    known |= {record.id: "one that was sent before" for record in read_submissions(runs)[0]}
    added: list[Path] = []
    refused: list[tuple[Path, str]] = []
    for path in paths:
        try:
            record = read_checked(path)
            if record.id in known:
                raise BadRecord(f"the same run as {known[record.id]}")
            known[record.id] = str(path)
            added.append(write(runs / SELF_REPORTED, record, None))
        except BadRecord as error:
            refused.append((path, str(error)))
    return added, refused


def read_submissions(runs: Path) -> tuple[list[RunRecord], list[tuple[Path, str]]]:
    """What was sent in, checked again: a pull request may have put it there without `bench board --add`."""
    ours = {record.id for record in read_all(runs)[0]}
    records: dict[str, RunRecord] = {}
    problems: list[tuple[Path, str]] = []
    for path in record_files(runs / SELF_REPORTED):
        try:
            record = read_checked(path)
            if record.id in ours:
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
    except OSError as error:
        raise BadRecord(f"not readable ({error.strerror})") from error
    record = read(path)
    check_submission(record)
    return record


def check_submission(record: RunRecord) -> None:
    """Everything that our own code promises about a record, and that a table leans on."""
    _require(record.status == "ok", "a failed run: there is nothing to verify")
    _check_values(asdict(record), "record", 0)
    _require(re.fullmatch(r"sha256:[0-9a-f]{64}", record.weights or ""), "weights has no SHA-256 to verify them by")
    _require(re.fullmatch(r"[0-9a-f]{7,40}", record.commit or ""), "commit is not a commit's hash")
    _require(not record.dirty, "dirty: the code had changes that its commit does not have")
    for name in ("train_flops", "tokens_per_second"):
        _require((getattr(record, name) or 0) > 0, f"{name} is not a positive number")
    _require((record.energy_joules or 0) >= 0, "energy_joules is negative")
    config = parse_config(record.config)
    _check_costs(record)
    _check_scores(record, config)
    _check_config(config)
    _check_curves(record, config)
    _require(record.budget == config.budget(), f"budget {record.budget}, its config's is {config.budget()}")
    count = record.parameters or 0
    _require(abs(count - record.budget) <= 0.01 * record.budget, f"{count:,} parameters, budget {record.budget:,}")


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
    """What `bench run` would have accepted. Sizes first: to check the rest, the model is laid out."""
    for name, most in MOST.items():
        _require(getattr(config, name) <= most, f"config's {name} is {getattr(config, name)}, more than {most}")
    _require(len(config.horizons) <= 16, f"config has {len(config.horizons)} horizons, more than 16")
    _require(max(config.horizons, default=0) <= MOST["horizon"], f"config's horizons exceed {MOST['horizon']}")
    search = config.tuning
    _require(not search or set(search) == {"seed", "steps", "errors"}, "config's tuning is not a search of ours")
    _require(not search or type(search["steps"]) is int, "config's tuning.steps is not a whole number")
    _require(not search or isinstance(search["errors"], dict), "config's tuning.errors is not a table")
    for name, value in config.task_params.items():
        _require(isinstance(value, bool | int | float | str | None), f"config's {name} is not a plain value")
        _require(not isinstance(value, int) or value <= MOST["horizon"], f"config's {name} is too large")
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
    for name, tree, wanted in (("seconds", record.seconds, PHASES), ("memory_bytes", record.memory_bytes, MEMORIES)):
        _require(set(wanted) <= set(tree), f"{name} is missing {', '.join(sorted(set(wanted) - set(tree)))}")
        for key, value in tree.items():
            _require(value is None or (_is_number(value) and value >= 0), f"{name}.{key} is not a number or null")
    for key in ("name", "torch"):
        _require(isinstance(record.platform.get(key), str), f"platform.{key} is not text")
    _require(type(record.platform.get("threads")) is int, "platform.threads is not a whole number")
    gpu = record.platform.get("gpu") or {}
    _require(isinstance(gpu, dict), "platform.gpu is not a table")
    share = gpu.get("flops_utilisation")
    _require(share is None or (_is_number(share) and 0 <= share <= 1), "platform.gpu.flops_utilisation is no share")


def _check_scores(record: RunRecord, config: RunConfig) -> None:
    """Numbers at every horizon, by the names that the tables use, for the run and for each reference."""
    _require(config.horizon in config.horizons, "config's horizons leave out the training horizon")
    keys = {str(k) for k in config.horizons}
    trained = str(config.horizon)
    names = set(reference_names(config.task))
    for name in ("metrics", "references", "by_position"):
        tree = getattr(record, name)
        _require(set(tree) == keys, f"{name} are not at the config's horizons")
        _require(tree[trained], f"{name} has nothing at the training horizon")
        _require(all(isinstance(at_k, dict | None) for at_k in tree.values()), f"{name} at a horizon is not a table")
    for k in keys:
        parts = {"all", "post"} if int(k) > config.horizon else {"all"}
        rows = {"metrics": record.metrics[k]} if record.metrics[k] else {}
        known = record.references[k]
        _require(not known or set(known) == names, f"references at {k} are not {', '.join(sorted(names))}")
        rows |= {f"references.{name}": row for name, row in (known or {}).items()}
        for name, row in rows.items():
            _require(isinstance(row, dict) and set(row) == parts, f"{name} at {k} has not the parts {sorted(parts)}")
            for part in row.values():
                complete = isinstance(part, dict) and set(METRICS) <= set(part)
                _require(complete and all(_is_number(part[m]) for m in METRICS), f"{name} at {k} has not every metric")
    for curve in (column for at_k in record.by_position.values() if at_k for column in at_k.values()):
        numbers = isinstance(curve, list) and len(curve) <= MOST["horizon"] and all(map(_is_number, curve))
        _require(numbers, "by_position has a curve that is not a list of numbers")


def _check_curves(record: RunRecord, config: RunConfig) -> None:
    """What is drawn: a number for every scored position, and looks at the training with their time."""
    task = config.make_task()
    for k, at_k in ((k, at_k) for k, at_k in record.by_position.items() if at_k):
        _require(int(k) <= (task.max_horizon() or int(k)), f"by_position at {k}: the task ends before")
        length = len(task.sample(1, int(k), generator("cpu", 0, "length")).queries)
        complete = all(len(at_k.get(name, ())) == length for name in CURVES)
        _require(complete, f"by_position at {k} has not {length} numbers in each of {', '.join(CURVES)}")
        _require(record.metrics[k], f"by_position at {k}, and no metrics")
        for part, start in (("all", 0), ("post", config.horizon)):
            for name in ("entropy_mae", "kl") if part in record.metrics[k] else ():
                told, curve = record.metrics[k][part][name], mean(at_k[name][start:])
                same = isclose(told, curve, rel_tol=1e-6, abs_tol=1e-9)
                _require(same, f"metrics at {k}: {name} of {part} is {told:g}, by position {curve:g}")
    for look in record.loss_curve:
        complete = isinstance(look, dict) and all(_is_number(look.get(name)) for name in LOOKS)
        _require(complete, f"loss_curve has a look without {', '.join(LOOKS)}")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _require(condition: object, reason: str) -> None:
    if not condition:
        raise BadRecord(reason)
