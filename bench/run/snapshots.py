"""Snapshots: the weights at a few steps of training, early and late, for a report on how they developed.

<id>.snapshots/<step>.safetensors beside the record; the last one holds the final weights. Snapshots change nothing in
a run: not its id, not its record, not a bit of its result.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import safetensors.torch
from torch import nn

from bench.records import CannotWrite, write_whole


def pack(model: nn.Module) -> bytes:
    return safetensors.torch.save({name: t.contiguous().cpu() for name, t in model.state_dict().items()})


def find(record: Path) -> tuple[tuple[int, Path], ...]:
    """The snapshots of a run, each with its step, in order."""
    files = _folder(record).glob("*.safetensors")
    return tuple(sorted((int(path.stem), path) for path in files if path.stem.isdigit()))


def remove(record: Path) -> None:
    shutil.rmtree(_folder(record), ignore_errors=True)


class Snapshots:
    """Writes at most `count` snapshots of a run, from its first step to its last.

    Half of them are evenly spaced in log step, because most changes happen early. Half are evenly spaced in step:
    otherwise the last two would be so far apart that everything that settles late would seem to settle at once.
    """

    def __init__(self, record: Path, steps: int, count: int) -> None:
        self.record = record
        count = min(count, steps)
        late = max(1, count // 2)
        early = np.geomspace(1, steps, count - late, endpoint=False)
        even = np.linspace(steps, 0, late, endpoint=False)
        self.steps = sorted({round(step) for step in (*early, *even) if step >= 1})

    def missing(self, last: int | None = None) -> list[int]:
        """Steps up to `last` (None: all) whose snapshot should exist and does not."""
        existing = {step for step, _ in find(self.record)}
        return [step for step in self.steps if step not in existing and (last is None or step <= last)]

    def stepped(self, step: int, model: nn.Module) -> None:
        """Call after every step: writes a snapshot if this step has one."""
        if step not in self.steps:
            return
        folder = _folder(self.record)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CannotWrite(f"cannot write {folder}: {error.strerror or error}") from error
        write_whole(folder / f"{step}.safetensors", pack(model))


def _folder(record: Path) -> Path:
    return record.with_suffix(".snapshots")
