"""Keeper: writes a run's checkpoints and continues an interrupted run from the newest one.

Two files take turns, so while one is being written the other is complete:

<id>.checkpoint-a.safetensors, <id>.checkpoint-b.safetensors

A continued run ends with exactly the bits of an uninterrupted one, on the same machine and with the same number of
threads. The checkpoint stores that number, and it is used again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from bench import stop
from bench.config import RunConfig
from bench.device import cores
from bench.records import write_whole
from bench.run.checkpoint import BadCheckpoint, Position, check_fit, pack, parse, platform_name, put
from bench.run.snapshots import Snapshots


@dataclass(frozen=True)
class Notice:
    """What a person should know about a run while it is running."""

    event: Literal["continued", "warning"]
    text: str


@dataclass(frozen=True)
class Pace:
    """How often a checkpoint is written: after `steps` or `seconds`, whichever comes first."""

    steps: int = 500
    seconds: float = 60.0
    spare: float = 100.0  # but never sooner than this many times the duration of the last write: about 1 % of the time


PACE = Pace()
# a note that stays with the run when it is continued alone
SHARED = "shared its process with other seeds, so has no time and no memory of its own"


@dataclass(frozen=True)
class _Checkpoint:
    path: Path
    state: dict[str, Any]
    tensors: dict[str, Tensor]


class Keeper:
    """Keeps a run's checkpoints and snapshots in a folder; without a folder it keeps nothing."""

    def __init__(
        self,
        config: RunConfig,
        folder: Path | None = None,
        notify: Callable[[Notice], None] = lambda _: None,
        pace: Pace | None = None,
        keep: int = 0,
        shares: bool = False,
    ) -> None:
        self.config, self.notify, self.pace, self.shares = config, notify, pace or PACE, shares
        self.snapshots: Snapshots | None = None
        self.files: list[Path] = []  # the next checkpoint is written to the first of them
        if folder is not None:
            self.files = [folder / f"{config.id()}.checkpoint-{turn}.safetensors" for turn in "ab"]
            if keep:
                self.snapshots = Snapshots(folder / f"{config.id()}.json", config.steps, keep)
        self.at = Position()
        self.seconds_before = 0.0  # of training, before this process continued it
        self.saved_step, self.saved_time, self.cost = 0, time.monotonic(), 0.0

    def restore(self, model: nn.Module, optimizers: list[Optimizer]) -> Position:
        """Continue from the newest intact checkpoint, or start at step 0 if there is none."""
        found = [c for path in self.files if (c := self._load(path, model, optimizers)) is not None]
        if found:
            newest = max(found, key=lambda c: int(c.state["step"]))
            self.files.sort(key=lambda path: path == newest.path)  # the next write goes to the other file
            self.at = put(newest.state, newest.tensors, model, optimizers)
            torch.set_num_threads(min(newest.state["threads"], cores()))
            self._note_changes(newest)
        if self.shares and SHARED not in self.at.notes:
            self.at.notes.append(SHARED)
        self.seconds_before = self.at.seconds
        self.saved_step, self.saved_time = self.at.step, time.monotonic()
        return self.at

    def _load(self, path: Path, model: nn.Module, optimizers: list[Optimizer]) -> _Checkpoint | None:
        if not path.exists():
            return None
        try:
            state, tensors = parse(path.read_bytes())
            check_fit(state, tensors, self.config, model, optimizers)
        except (BadCheckpoint, OSError) as problem:
            self.notify(Notice("warning", f"{path} is damaged and not used: {problem}"))
            return None
        return _Checkpoint(path, state, tensors)

    def _note_changes(self, used: _Checkpoint) -> None:
        """Record what differs from the process that wrote the checkpoint, since it may change the result."""
        step, before, now = self.at.step, used.state["threads"], torch.get_num_threads()
        if used.state["platform"] != platform_name(self.config):
            self.at.notes.append(f"continued at step {step} on a different platform")
        if now != before:
            self.at.notes.append(f"continued at step {step} with {now} threads instead of {before}")
        if code := self.config.newer_code(used.path):
            self.at.notes.append(f"continued at step {step} after a change to {code}")
            self.notify(Notice("warning", f"{code} has changed since this run started; --fresh would start it over"))
        text = f"continuing {self.config.id()} at step {step} of {self.config.steps}, from {used.path}"
        self.notify(Notice("continued", text))
        if self.snapshots is not None and (missing := self.snapshots.missing(step)):
            steps = ", ".join(map(str, missing))
            self.notify(Notice("warning", f"no snapshots were kept at steps {steps}; --fresh would keep them"))

    def stepped(
        self, model: nn.Module, optimizers: list[Optimizer], complete: Callable[[], None] = lambda: None
    ) -> None:
        """Call after every step: saves it if a checkpoint is due; if a stop was requested, saves it and raises.

        `complete` brings the position up to date first, where doing so at every step would cost time.
        """
        if self.snapshots is not None:
            self.snapshots.stepped(self.at.step, model)
        waited = time.monotonic() - self.saved_time
        due = self.at.step - self.saved_step >= self.pace.steps or waited >= self.pace.seconds
        last = self.at.step == self.config.steps
        if stop.requested() is not None or (due and waited >= self.pace.spare * self.cost and not last):
            complete()
            self.save(model, optimizers)
        stop.check()

    def save(self, model: nn.Module, optimizers: list[Optimizer]) -> None:
        start = time.monotonic()
        if self.files and all(t.isfinite().all() for t in model.state_dict().values() if t.is_floating_point()):
            write_whole(self.files[0], pack(self.at, self.config, model, optimizers))
            self.files.reverse()
        self.saved_step, self.saved_time = self.at.step, time.monotonic()
        self.cost = self.saved_time - start

    def remove(self) -> None:
        for path in self.files:
            path.unlink(missing_ok=True)
