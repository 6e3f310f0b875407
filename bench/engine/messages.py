"""What a run tells the process that started it. Every message can be sent to another process.

While it runs: Progress (bench.run.train) and Notice (bench.run.keeper). At its end one of the messages below.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench.records import RunRecord
from bench.run.keeper import Notice
from bench.run.train import Progress


@dataclass(frozen=True)
class Finished:
    """There is a record, successful or not."""

    record: RunRecord
    path: Path
    new: bool  # written now; else it existed already


@dataclass(frozen=True)
class Locked:
    """Another process is working on the same run."""

    owner: str


@dataclass(frozen=True)
class Interrupted:
    """The process of the run received a signal and saved its last step."""

    signal: int


@dataclass(frozen=True)
class Refused:
    """The run cannot be carried out, for a reason that the user can remove."""

    reason: str


Outcome = Finished | Locked
LastMessage = Finished | Locked | Interrupted | Refused
Listener = Callable[[Progress | Notice], None]
