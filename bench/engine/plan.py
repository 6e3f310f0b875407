"""Plan: how a list of runs is carried out. Nothing here changes a result."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from pathlib import Path

from bench.config import RunConfig
from bench.registry import Code
from bench.run.keeper import PACE, Pace
from bench.run.source import Source

POLL_SECONDS = 0.2  # between two looks at what other processes do


@dataclass(frozen=True)
class Plan:
    out: Path
    jobs: int = 1  # runs at a time, each in a process
    per_gpu: int = 1  # seeds of one setting that share a process, and so a GPU
    fresh: bool = False  # start over instead of using what earlier commands left
    verbose: bool = False
    tensorboard: bool = False
    engine: str = "local"
    address: str | None = None  # of the Ray cluster
    gpus: float = 0.0  # per run, on Ray
    memory: int = 0  # bytes per run, on Ray
    pace: Pace = PACE
    snapshots: int = 0  # of the weights, per run
    code: tuple[Code, ...] = ()  # external code that the runs need (bench.external)
    source: Source | None = None  # of the code that the runs use; None: the process of the run asks
    command: str = field(default_factory=lambda: uuid.uuid4().hex)  # identifies this command in the event logs

    def record_path(self, config: RunConfig) -> Path:
        return self.out / config.task / config.arch / f"{config.id()}.json"
