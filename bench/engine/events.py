"""What happened in a run, one JSON object a line: `<id>.events.jsonl` beside the record.

Every event has a `time` (seconds since 1970) and an `event`: started, continued, step (with step, loss, lr,
entropy_mae), warning, finished or failed, stopped. Lines are only ever added, so a run that was interrupted shows it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.config import RunConfig
from bench.records import CannotWrite, RunRecord
from bench.registry import BadInput
from bench.train import Progress, schedule


def events_path(config: RunConfig, out: Path) -> Path:
    return out / config.task / config.arch / f"{config.id()}.events.jsonl"


class Log:
    def __init__(self, config: RunConfig, out: Path, tensorboard: bool = False) -> None:
        self.config = config
        self.path = events_path(config, out)
        folder = out / "tensorboard" / config.task / config.arch / config.id()
        self.board = board_writer()(str(folder)) if tensorboard else None

    def add(self, event: str, **facts: Any) -> None:
        line = json.dumps({"time": round(time.time(), 3), "event": event, **facts})
        try:
            with self.path.open("a+b") as file:  # one write a line: two lines never mix
                torn = file.tell() and (file.seek(-1, 2), file.read(1))[1] != b"\n"  # by a process that was killed
                file.write(b"\n" * bool(torn) + line.encode() + b"\n")
        except OSError as error:
            raise CannotWrite(f"cannot write {self.path}: {error.strerror or error}") from error

    def step(self, progress: Progress) -> None:
        scalars = {
            "loss": progress.loss_bits,
            "eval_loss": progress.eval_bits,
            "entropy_mae": progress.entropy_mae,
            "lr": self.config.lr * schedule(progress.step - 1, self.config),
        }
        self.add("step", step=progress.step, steps=progress.steps, seconds=round(progress.seconds, 3), **scalars)
        if self.board is not None:
            for name, value in scalars.items():
                self.board.add_scalar(name, value, progress.step)

    def record(self, record: RunRecord) -> None:
        for note in record.notes:
            self.add("warning", text=note)
        if record.status == "ok":
            self.add("finished", metrics=record.metrics)
        else:
            self.add("failed", error=record.error)
        if self.board is not None:
            for horizon, parts in record.metrics.items():
                for name, value in (parts or {}).get("all", {}).items():
                    self.board.add_scalar(f"{name} at {horizon}", value, self.config.steps)
            self.board.close()


def board_writer() -> Any:
    """TensorBoard's; an extra, so that nobody installs it who does not ask for it."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise BadInput("--tensorboard needs the extra: pip install 'tunnel-bench[tensorboard]'") from error
    return SummaryWriter


def read_events(path: Path, start: int = 0) -> Iterator[tuple[dict[str, Any], int]]:
    """Events from a place in the file on, each with the place where the next begins; an unfinished line waits."""
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
                    continue  # torn by a process that was killed
                if isinstance(event, dict):
                    yield event, start
    except FileNotFoundError:
        return
