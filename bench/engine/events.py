"""The event log of a run, one JSON object per line: `<id>.events.jsonl` beside the record.

Every event has a `time` (seconds since 1970) and an `event`: started, continued, step (with step, loss, lr,
entropy_mae), warning, finished or failed, stopped. Lines are only ever appended, so interruptions stay visible.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from bench.config import RunConfig
from bench.device import allocated_memory
from bench.records import CannotWrite, RunRecord
from bench.registry import BadInput
from bench.run.keeper import Notice
from bench.run.train import Progress, schedule


def events_path(config: RunConfig, out: Path) -> Path:
    return out / config.task / config.arch / f"{config.id()}.events.jsonl"


class Log:
    """Writes a run's events, and its scalars for TensorBoard if asked to."""

    def __init__(self, config: RunConfig, out: Path, tensorboard: bool = False) -> None:
        self.config = config
        self.path = events_path(config, out)
        folder = out / "tensorboard" / config.task / config.arch / config.id()
        self.tensorboard = tensorboard_writer()(str(folder)) if tensorboard else None

    def add(self, event: str, **facts: Any) -> None:
        line = json.dumps({"time": round(time.time(), 3), "event": event, **facts}).encode() + b"\n"
        try:
            with self.path.open("a+b") as file:
                if _ends_within_line(file):
                    line = b"\n" + line
                file.write(line)  # a single write, so that lines of two processes never mix
        except OSError as error:
            raise CannotWrite(f"cannot write {self.path}: {error.strerror or error}") from error

    def notice(self, notice: Notice) -> None:
        self.add(notice.event, text=notice.text)

    def step(self, progress: Progress) -> None:
        scalars = {
            "loss": progress.loss_bits,
            "eval_loss": progress.eval_bits,
            "entropy_mae": progress.entropy_mae,
            "lr": self.config.lr * schedule(progress.step - 1, self.config),
        }
        memory = allocated_memory(self.config.device)
        self.add(
            "step", step=progress.step, steps=progress.steps, seconds=round(progress.seconds, 3), **scalars, **memory
        )
        if self.tensorboard is not None:
            for name, value in scalars.items():
                self.tensorboard.add_scalar(name, value, progress.step)

    def record(self, record: RunRecord) -> None:
        for note in record.notes:
            self.add("warning", text=note)
        if record.status == "ok":
            self.add("finished", metrics=record.metrics)
        else:
            self.add("failed", error=record.error)
        if self.tensorboard is not None:
            for horizon, parts in record.metrics.items():
                for name, value in (parts or {}).get("all", {}).items():
                    self.tensorboard.add_scalar(f"{name} at {horizon}", value, self.config.steps)
            self.tensorboard.close()


def tensorboard_writer() -> Any:
    """The class that writes for TensorBoard, which is an optional package."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise BadInput("--tensorboard needs the extra: pip install 'tunnel-bench[tensorboard]'") from error
    return SummaryWriter


def read_events(path: Path, start: int = 0) -> Iterator[tuple[dict[str, Any], int]]:
    """Events from byte `start` on, each with the byte where the next one starts. Skips an unfinished last line."""
    try:
        with path.open("rb") as file:
            file.seek(start)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                start += len(line)
                try:
                    event = json.loads(line)
                except ValueError:
                    continue  # cut off when its process was killed
                if isinstance(event, dict):
                    yield event, start
    except FileNotFoundError:
        return


def _ends_within_line(file: BinaryIO) -> bool:
    """Whether a process was killed while it wrote the last line."""
    if file.tell() == 0:  # opened for appending, so this is the size of the file
        return False
    file.seek(-1, 2)
    return file.read(1) != b"\n"
