"""RunRecord: the result of one run. One JSON file, written whole or not at all, read strictly or not at all.

`<out>/<task>/<arch>/<id>.json`, with the weights beside it as `<id>.safetensors`. A value that was not measured is
null, never 0. The dataclasses below are the schema: pydantic checks a file against them, field by field.
"""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic_core import from_json

from bench.config import UNKNOWN, RunConfig, explain
from bench.registry import BadInput

Schema = Literal[1]
SCHEMA: Schema = 1
CERTAIN = 1e-9  # bits: an entropy below is none
REPORT = "report.json"  # of a run, in a folder of its own beside the record
SELF_REPORTED = "self-reported"  # folder of records that others have sent
SOURCES = (".arch.py", ".arch.txt", ".task.py", ".task.txt")  # of external code, beside the record; .txt: of a package
WEIGHTS = "weights"  # folder of the published weights, beside that of the published records
TRIALS = "tuning"  # folder of the runs of a learning-rate search, which are no rows
STRICT = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

Metrics = dict[str, float]  # metric -> bits
Parts = dict[str, Metrics]  # all positions, and post: those beyond the training horizon
Cost = Annotated[float, Field(ge=0)]
Bytes = Annotated[int, Field(ge=0)]


class BadRecord(ValueError):
    """A file that is not a complete and valid record; the message says why, in one line."""

    def __init__(self, reason: str) -> None:
        super().__init__("".join(sign if sign.isprintable() else "?" for sign in reason[:300]))


class CannotWrite(BadInput, OSError):
    """A file that could not be written: the disk is full, read-only, or the folder is gone."""


@dataclass(frozen=True)
class Seconds:
    """Wall-clock time by phase. Drawing data is part of training."""

    __pydantic_config__: ClassVar = STRICT
    setup: Cost | None = None
    compile: Cost | None = None
    data: Cost | None = None
    train: Cost | None = None
    eval: Cost | None = None

    @property
    def total(self) -> float | None:
        """None where training has no time of its own."""
        if self.train is None:
            return None
        return sum(phase or 0.0 for phase in (self.setup, self.compile, self.train, self.eval))


@dataclass(frozen=True)
class Memory:
    """Peak memory in bytes: of the process, and on a GPU by torch's allocator and by the driver."""

    __pydantic_config__: ClassVar = STRICT
    resident: Bytes | None = None
    allocated: Bytes | None = None
    reserved: Bytes | None = None
    nvml_process: Bytes | None = None


@dataclass(frozen=True)
class Look:
    """One evaluation during training, and the training loss of every step since the last one."""

    __pydantic_config__: ClassVar = STRICT
    step: int
    seconds: Cost | None  # None beside other runs in one process
    loss: float
    entropy_mae: float
    eval_loss: float | None = None  # older records have none
    losses: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class RunRecord:
    __pydantic_config__: ClassVar = STRICT
    schema: Schema
    id: str
    status: Literal["ok", "failed"]
    error: str | None
    config: RunConfig
    budget: int | None  # null for a model that was trained elsewhere
    parameters: int | None
    state_bytes: int | None
    train_flops: float | None
    metrics: dict[str, Parts | None]  # by horizon; null where the task or the model does not reach
    references: dict[str, dict[str, Parts] | None]  # by horizon and reference predictor, on the same sequences
    by_position: dict[str, dict[str, list[float]] | None]  # by horizon and curve
    loss_curve: list[Look]
    seconds: Seconds
    tokens_per_second: float | None
    memory_bytes: Memory
    energy_joules: Cost | None
    platform: dict[str, Any]
    commit: str | None
    dirty: bool | None
    weights: str | None
    notes: list[str] = field(default_factory=list)  # what a reader should know; older records have none

    @property
    def path(self) -> Path:
        return Path(self.config.task) / self.config.arch / f"{self.id}.json"

    @property
    def ok(self) -> bool:
        return self.status == "ok"

    def at(self, horizon: int | None = None) -> Parts:
        """The metrics at a horizon, the training horizon unless another is named."""
        parts = self.metrics[str(horizon or self.config.horizon)]
        assert parts is not None
        return parts

    @property
    def has_certain_answers(self) -> bool:
        """The exact answer is always a point mass, so a constant that is sure of anything has no entropy error."""
        curves = self.by_position[str(self.config.horizon)] or {}
        return bool(curves) and max(curves["h_bayes"]) < CERTAIN

    @property
    def error_bits(self) -> float:
        """The number that ranks, over all positions at the training horizon: MAE, or KL where answers are certain."""
        return self.at()["all"][self.ranking_metric]

    @property
    def ranking_metric(self) -> str:
        return "kl" if self.has_certain_answers else "entropy_mae"

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "config": self.config.to_json()}


FIELDS = TypeAdapter(RunRecord)


def write(out: Path, record: RunRecord, weights: bytes | None) -> Path:
    """Weights and external code first, record last: a record that exists is complete."""
    path = out / record.path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CannotWrite(f"cannot write {path}: {error.strerror or error}") from error
    if weights is not None:
        write_whole(path.with_suffix(".safetensors"), weights)
    for kind, code in record.config.external_code().items():
        write_whole(path.with_suffix(f".{kind}.{'py' if code.is_file else 'txt'}"), code.text.encode())
    text = json.dumps(record.to_json(), indent=1, allow_nan=False)
    write_whole(path, _fold(text).encode() + b"\n")
    return path


def weights_file(record: Path) -> Path:
    """Where the weights of a record are: beside it, or, for some published ones, in leaderboard/weights."""
    beside = record.with_suffix(".safetensors")
    folders = record.resolve().parents  # arch, task, runs, leaderboard
    published = folders[3] / WEIGHTS / beside.name if len(folders) > 3 else beside
    return published if published.exists() and not beside.exists() else beside


def read(path: Path) -> RunRecord:
    try:
        text = path.read_bytes()
    except OSError as error:
        raise BadRecord(f"not readable ({error.strerror})") from error
    return parse(text)


def parse(text: bytes | str) -> RunRecord:
    """A record from JSON, or the reason why it is none."""
    try:
        record = FIELDS.validate_json(_fill_unknown(text))
    except ValidationError as error:
        raise BadRecord(explain(error)) from error
    try:
        record.config.require_own_names()
        expected = record.config.id()
    except BadInput as error:
        raise BadRecord(f"config is not valid ({error})") from error
    if expected != record.id:
        raise BadRecord(f"id {record.id!r} does not belong to its config (that would be {expected})")
    _check_finite("platform", record.platform)
    _check_finite("config.task_params", record.config.task_params)
    _check_finite("config.tuning", record.config.tuning)
    if record.ok:
        _check_metrics(record)
    return record


def _fill_unknown(text: bytes | str) -> bytes | str:
    """A model that was trained elsewhere has no settings of training; in memory every config has all its fields."""
    if '"elsewhere"' not in text if isinstance(text, str) else b'"elsewhere"' not in text:
        return text  # a record of ours leaves that field out, and need not be parsed twice
    try:
        tree = from_json(text)
    except ValueError:
        return text  # the caller says what is wrong with it
    config = tree.get("config") if isinstance(tree, dict) else None
    if not isinstance(config, dict) or not config.get("elsewhere"):
        return text
    if claimed := sorted(UNKNOWN.keys() & config.keys()):
        raise BadRecord(f"config.{claimed[0]} is unknown of a model that was trained elsewhere")
    return json.dumps({**tree, "config": {**config, **UNKNOWN}})


def _check_finite(name: str, tree: dict[str, Any]) -> None:
    """JSON has no NaN, but Python reads and writes it; pydantic checks only fields that are typed as numbers."""
    try:
        json.dumps(tree, allow_nan=False)
    except ValueError as error:
        raise BadRecord(f"{name} has a number that is not finite") from error


def _check_metrics(record: RunRecord) -> None:
    if set(record.metrics) != {str(k) for k in record.config.horizons}:
        asked = list(record.config.horizons)
        raise BadRecord(f"metrics are at horizons {sorted(record.metrics)}, the config's are {asked}")
    for k, parts in record.metrics.items():
        for part, metrics in (parts or {}).items():
            for name, value in metrics.items():
                if value < -1e-9 and name != "nll_gap":  # on a few draws a model can be luckier than Bayes
                    raise BadRecord(f"metrics.{k}.{part}.{name} is negative")


def record_files(folder: Path) -> list[Path]:
    """Every file below a folder that should be a record, without the runs of a learning-rate search."""
    found = (path for path in folder.rglob("*.json") if path.name != REPORT)
    return sorted(path for path in found if path.relative_to(folder).parts[0] != TRIALS)


def read_all(folder: Path) -> tuple[list[RunRecord], list[tuple[Path, str]]]:
    """Every record below a folder, and every file that should be one but is not, with the reason.

    Self-reported records are left to bench.board.submissions, which checks more.
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


def prepare_file(path: Path, option: str) -> None:
    if path.is_dir():
        raise BadInput(f"{option} takes a file, and {path} is a folder")
    prepare_folder(path.parent, option)


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
