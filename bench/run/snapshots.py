"""Snapshots: the weights at a few steps of training, early and late ones, for a report on how they came about.

<id>.snapshots/<step>.safetensors beside the record, the last of them the finished weights themselves. Keeping them
changes nothing in a run: not its id, not its record, not a bit of its result.
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
    """Those of a run, by step."""
    files = _folder(record).glob("*.safetensors")
    return tuple(sorted((int(path.stem), path) for path in files if path.stem.isdigit()))


def remove(record: Path) -> None:
    shutil.rmtree(_folder(record), ignore_errors=True)


class Album:
    """Keeps the snapshots of a run: at most `count`, from its first step to its last.

    Half of them are evenly spaced in log step, where most changes; half in step, or else the last two would lie so far
    apart that whatever settles late would seem to settle at once.
    """

    def __init__(self, record: Path, steps: int, count: int) -> None:
        self.record = record
        late = max(1, count // 2)
        early = np.geomspace(1, steps, count - late, endpoint=False)
        even = np.linspace(steps, 0, late, endpoint=False)
        self.steps = sorted({round(step) for step in (*early, *even) if step >= 1})

    def missing(self, before: int | None = None) -> list[int]:
        """Steps that should be there, up to and with one of them, and are not."""
        there = {step for step, _ in find(self.record)}
        return [step for step in self.steps if step not in there and (before is None or step <= before)]

    def stepped(self, step: int, model: nn.Module) -> None:
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
