"""RunRecord: what a run leaves behind. One JSON file, written whole or not at all, read strictly or not at all.

`<out>/<task>/<arch>/<id>.json`, the weights beside it as `<id>.safetensors`. What was not measured is null, never 0.
"""

from __future__ import annotations

import json
import math
import os
import re
import tempfile
import types
import typing
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from bench.config import USUAL, RunConfig
from bench.registry import NAME, BadInput

SCHEMA = 1
REPORT = "report.json"  # of a run, in a folder of its own beside the record
SELF_REPORTED = "self-reported"  # a folder of its own among the records
TRIALS = "tuning"  # another, of runs that are no rows


class BadRecord(ValueError):
    """A file that is not a whole and true record; the message says why, in one line, whatever the file says."""

    def __init__(self, reason: str) -> None:
        super().__init__("".join(sign if sign.isprintable() else "?" for sign in reason[:300]))


class CannotWrite(BadInput, OSError):
    """A file that could not be written: the disk is full, read-only, or the folder is gone."""


@dataclass(frozen=True)
class RunRecord:
    schema: int
    id: str
    status: str  # ok or failed
    error: str | None
    config: dict[str, Any]
    budget: int
    parameters: int | None
    state_bytes: int | None
    train_flops: float | None
    metrics: dict[str, Any]  # horizon -> all, post -> metric -> bits; null where a horizon cannot be read
    references: dict[str, Any]  # horizon -> predictor -> all, post -> metric -> bits, on the same sequences
    by_position: dict[str, Any]
    loss_curve: list[Any]
    seconds: dict[str, Any]
    tokens_per_second: float | None
    memory_bytes: dict[str, Any]
    energy_joules: float | None
    platform: dict[str, Any]
    commit: str | None
    dirty: bool | None
    weights: str | None
    notes: list[Any] = field(default_factory=list)  # what a reader of the numbers should know; older records have none

    @property
    def path(self) -> Path:
        return Path(self.config["task"]) / self.config["arch"] / f"{self.id}.json"


def write(out: Path, record: RunRecord, weights: bytes | None) -> Path:
    """Weights first, record last: a record that exists is complete."""
    path = out / record.path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CannotWrite(f"cannot write {path}: {error.strerror or error}") from error
    if weights is not None:
        write_whole(path.with_suffix(".safetensors"), weights)
    text = json.dumps(asdict(record), indent=1, allow_nan=False)
    write_whole(path, _fold(text).encode() + b"\n")
    return path


def read(path: Path) -> RunRecord:
    try:
        text = path.read_text(encoding="utf-8")
        data = json.loads(text, parse_constant=_refuse, parse_float=_finite, parse_int=_whole, object_pairs_hook=_once)
    except (OSError, ValueError, RecursionError) as error:
        raise BadRecord(f"not readable as JSON ({error})") from error
    return parse(data)


def parse(data: Any) -> RunRecord:
    """A record from plain JSON, or the reason why it is none."""
    if not isinstance(data, dict):
        raise BadRecord("not a JSON object")
    if data.get("schema") != SCHEMA:
        raise BadRecord(f"schema {data.get('schema')!r}, expected {SCHEMA}")
    expected = {f.name for f in fields(RunRecord)}
    if missing := sorted(expected - data.keys() - {"notes"}):
        raise BadRecord(f"missing {', '.join(missing)}")
    if extra := sorted(data.keys() - expected):
        raise BadRecord(f"unknown {', '.join(extra)}")
    for name, kind in typing.get_type_hints(RunRecord).items():
        if name in data and not _is_a(data[name], kind):
            raise BadRecord(f"{name} has the wrong type ({type(data[name]).__name__})")
    if data["status"] not in ("ok", "failed"):
        raise BadRecord(f"status {data['status']!r}, expected ok or failed")
    config = parse_config(data["config"])
    if config.id() != data["id"]:
        raise BadRecord(f"id {data['id']!r} does not belong to its config (that would be {config.id()})")
    if data["status"] == "ok":
        _check_metrics(data, config)
    return RunRecord(**data)


def parse_config(data: dict[str, Any]) -> RunConfig:
    hints = typing.get_type_hints(RunConfig)
    if missing := sorted(hints.keys() - data.keys() - USUAL.keys()):
        raise BadRecord(f"config is missing {', '.join(missing)}")
    if extra := sorted(data.keys() - hints.keys()):
        raise BadRecord(f"config has unknown {', '.join(extra)}")
    for name, kind in hints.items():
        if name in data and not _is_a(data[name], list[int] if name == "horizons" else kind):
            raise BadRecord(f"config's {name} has the wrong type ({type(data[name]).__name__})")
    if not all(_is_a(k, int) for k in data["horizons"]):
        raise BadRecord("config's horizons are not whole numbers")
    for name in ("arch", "task"):
        if not re.fullmatch(NAME, data[name]):
            raise BadRecord(f"config's {name} {data[name][:60]!r} is not a name")
    try:
        config = RunConfig(**{**data, "horizons": tuple(data["horizons"])})
        config.id()
    except (BadInput, TypeError, KeyError) as error:
        raise BadRecord(f"config is not valid ({error})") from error
    return config


def record_files(folder: Path) -> list[Path]:
    """Every file below a folder that should be a record; the trials of a search are none."""
    found = (path for path in folder.rglob("*.json") if path.name != REPORT)
    return sorted(path for path in found if path.relative_to(folder).parts[0] != TRIALS)


def read_all(folder: Path) -> tuple[list[RunRecord], list[tuple[Path, str]]]:
    """Every record below a folder, and every file that should be one but is not, with the reason.

    Except what others report of themselves: bench.submissions reads that, with more suspicion.
    """
    records: dict[str, tuple[Path, RunRecord]] = {}
    problems: list[tuple[Path, str]] = []
    for path in record_files(folder):
        if path.relative_to(folder).parts[0] == SELF_REPORTED:
            continue
        try:
            record = read(path)
            if record.id in records:
                raise BadRecord(f"the same run as {records[record.id][0]}")
            records[record.id] = (path, record)
        except BadRecord as error:
            problems.append((path, str(error)))
    return [record for _, record in records.values()], problems


def prepare_folder(out: Path, option: str = "--out") -> None:
    """Find out now, not after an hour of training, that results can be written."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out):
            pass
    except OSError as error:
        raise BadInput(
            f"cannot write to {out}: {error.strerror or error}. Choose another folder with {option}"
        ) from error


def write_whole(path: Path, content: bytes) -> None:
    """Under its final name there is either nothing, the old file, or all of the new one."""
    temporary: str | None = None
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
        temporary = None
    except OSError as error:
        raise CannotWrite(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)


def _fold(text: str) -> str:
    """Put lists of numbers on one line: a curve is one thing to a reader."""
    lines: list[str] = []
    depth = 0
    for line in text.split("\n"):
        opened = line.endswith("[")
        if depth and not opened:
            lines[-1] += line.strip() + ("" if line.strip().startswith("]") or not line.endswith(",") else " ")
        else:
            lines.append(line)
        depth += opened - line.strip().startswith("]")
    return "\n".join(lines)


def _refuse(name: str) -> Any:
    raise ValueError(f"{name[:20]} is not a number")


def _finite(text: str) -> float:
    return float(text) if math.isfinite(float(text)) else _refuse(text)


def _whole(text: str) -> int:
    return int(text) if len(text) < 20 else _refuse(text)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """JSON lets a key stand twice, and readers differ in which one they believe."""
    tree = dict(pairs)
    if len(tree) < len(pairs):
        raise ValueError("a key stands twice")
    return tree


def _is_a(value: Any, kind: Any) -> bool:
    if isinstance(kind, types.UnionType):
        return any(_is_a(value, option) for option in typing.get_args(kind))
    kind = typing.get_origin(kind) or kind
    if kind is Any:
        return True
    if isinstance(value, bool):
        return kind is bool
    if kind is float:
        return isinstance(value, int | float)
    return isinstance(value, kind)


def _check_metrics(data: dict[str, Any], config: RunConfig) -> None:
    if set(data["metrics"]) != {str(k) for k in config.horizons}:
        raise BadRecord(f"metrics are at horizons {sorted(data['metrics'])}, the config's are {list(config.horizons)}")
    for name, number in _numbers(data["metrics"], "metrics"):
        if not isinstance(number, int | float) or isinstance(number, bool) or not math.isfinite(number):
            raise BadRecord(f"{name} is not a number")
        if number < -1e-9 and not name.endswith("nll_gap"):
            raise BadRecord(f"{name} is negative")


def _numbers(tree: Any, name: str) -> Iterator[tuple[str, Any]]:
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from _numbers(value, f"{name}.{key}")
    elif tree is not None:
        yield name, tree
