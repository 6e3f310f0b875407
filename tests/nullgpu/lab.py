"""Run the real command line on the null GPU, and read what it left: records, and a trace of every process."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
CUDA = ROOT / ".cuda"
CODE = ("bench", "models", "tasks")
WARM_UP = 3  # steps before the capture: bench.run.train.CapturedStep's


@dataclass
class Trace:
    """What one process did; the format is described in runtime.cpp."""

    violations: list[str] = field(default_factory=list)
    captures: dict[int, list[str]] = field(default_factory=dict)  # the kernels of each graph
    replays: list[int] = field(default_factory=list)  # which graph, in order
    held: list[int] = field(default_factory=list)  # bytes held at each replay
    streams: dict[int, set[str]] = field(default_factory=dict)  # where each graph was captured and replayed
    syncs: dict[int, list[str]] = field(default_factory=dict)  # by the number of replays before them
    peak: int = 0  # bytes
    run_peak: int = 0  # bytes, since the first time that memory was given back: after the kernels were checked
    gpus: set[int] = field(default_factory=set)  # where memory was taken

    @classmethod
    def read(cls, path: Path) -> Trace:
        trace, freed = cls(), False
        for line in path.read_text().splitlines():
            kind, _, rest = line.partition(" ")
            match kind:
                case "violation":
                    trace.violations.append(rest)
                case "sync":
                    trace.syncs.setdefault(len(trace.replays), []).append(rest)
                case "malloc" | "free":
                    held = int(rest.split()[1])
                    trace.peak = max(trace.peak, held)
                    if kind == "free" and not freed:
                        trace.run_peak, freed = 0, True
                    trace.run_peak = max(trace.run_peak, held)
                    trace.gpus |= {int(number) for number in rest.split()[2:]}
                case "capture":
                    number, _, stream, file = rest.split(maxsplit=3)
                    trace.streams[int(number)] = {stream}
                    trace.captures[int(number)] = [
                        node.split("|", 2)[2] for node in Path(file).read_text().splitlines()
                    ]
                case "replay":
                    number, held, _, stream = rest.split()
                    trace.streams.setdefault(int(number), set()).add(stream)
                    trace.replays.append(int(number))
                    trace.held.append(int(held))
        return trace

    @property
    def step(self) -> list[str]:
        """The kernels of the captured training step: the graph that was replayed last."""
        return self.captures[self.replays[-1]]


@dataclass
class Result:
    code: int
    out: str
    errors: str
    records: list[dict[str, Any]]  # in the order in which they were written
    traces: list[Trace]  # of processes that trained, in the order in which they started

    @property
    def violations(self) -> list[str]:
        return [text for trace in self.traces for text in trace.violations]


def environment(log: Path, **more: str) -> dict[str, str]:
    keep = {name: value for name, value in os.environ.items() if not name.startswith(("CUDA_", "NULLGPU_"))}
    return {
        **keep, "PYTHONPATH": str(CUDA / "site"), "LD_LIBRARY_PATH": str(CUDA / "lib"), "OMP_NUM_THREADS": "1",
        "TRITON_LIBCUDA_PATH": str(CUDA / "lib"), "NULLGPU_LOG": str(log), "COLUMNS": "200",
        **more,
    }  # fmt: skip


def bench(
    folder: Path,
    *arguments: str,
    code: Path = ROOT,
    meanwhile: Callable[[subprocess.Popen[str]], None] | None = None,
    **settings: str,
) -> Result:
    """`python -m bench ARGUMENTS` in a folder, with these settings of the null GPU."""
    log = folder / f"log-{time.monotonic_ns()}"
    log.mkdir(parents=True)
    process = subprocess.Popen(
        [sys.executable, "-m", "bench", *arguments], cwd=code, env=environment(log, **settings), text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    try:
        if meanwhile is not None:
            meanwhile(process)
        out, errors = process.communicate(timeout=600)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    traces = sorted(log.glob("*.trace"), key=lambda path: first_seen(log, path))
    trained = [trace for trace in map(Trace.read, traces) if trace.peak or trace.violations]
    return Result(process.returncode, out, errors, read_records(folder), trained)


def first_seen(log: Path, trace: Path) -> int:
    """When a process captured its first graph; runs are captured in the order in which they are recorded."""
    graphs = [path.stat().st_mtime_ns for path in log.glob(f"{trace.stem}.*.graph")]
    return min(graphs, default=trace.stat().st_mtime_ns)


def read_records(folder: Path) -> list[dict[str, Any]]:
    """With the bytes that tensors took at each watch point, from the event log."""
    files = [path for path in folder.rglob("*.json") if path.stem.isalnum()]
    return [read_record(path) for path in sorted(files, key=lambda path: path.stat().st_mtime_ns)]


def read_record(path: Path) -> dict[str, Any]:
    log = path.with_suffix(".events.jsonl")
    events = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    allocated = [event["allocated_bytes"] for event in events if "allocated_bytes" in event]
    return {**json.loads(path.read_text()), "allocated": allocated}


def run(folder: Path, *arguments: str, **settings: Any) -> Result:
    """`bench run` on the null GPU, which --device auto finds; its records are in the folder."""
    return bench(folder, "run", "--out", str(folder / "out"), *arguments, **settings)


def with_mistake(folder: Path, file: str, right: str, wrong: str) -> Path:
    """A copy of the code with a mistake in it; returns where it is."""
    for part in CODE:
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
    source = (folder / file).read_text()
    assert source.count(right) == 1, f"{file} says {right!r} {source.count(right)} times"
    (folder / file).write_text(source.replace(right, wrong))
    return folder


def problems(record: dict[str, Any], trace: Trace) -> list[str]:
    """Everything that is wrong with a run on the GPU, in words; no problem, no line."""
    found = [f"violation: {text}" for text in trace.violations]
    if record["status"] != "ok":
        return [*found, f"failed: {record['error']}"]
    steps = record["config"]["steps"]
    if len(trace.replays) != steps - WARM_UP:
        found.append(f"{len(trace.replays)} replays for {steps} steps")
    if not trace.replays:
        return found
    found += [f"atomics in the step: {kernel[:90]}" for kernel in trace.step if "atomic" in kernel.lower()]
    watched = {look["step"] for look in record["loss_curve"]}
    for replays, syncs in trace.syncs.items():
        step = WARM_UP + replays
        if WARM_UP < step < steps and step not in watched:
            found.append(f"the host waits after step {step}: {', '.join(sorted(set(syncs)))}")
    late = trace.held[len(trace.held) // 3 :]  # once is a cache that a watch point or a block of data has filled
    if sum(after > before for before, after in pairwise(late)) > 2:
        found.append(f"a leak: {late[0]:,} bytes held at first, {late[-1]:,} at last")
    watched_bytes = record["allocated"][len(record["allocated"]) // 3 :]
    if len(watched_bytes) > 2 and all(after > before for before, after in pairwise(watched_bytes)):
        found.append(f"a leak: tensors of {watched_bytes[0]:,} bytes at first, {watched_bytes[-1]:,} at last")
    checked = record["seconds"]["compile"] is not None  # then what the checks took was given back, and does not count
    taken, recorded = trace.run_peak if checked else trace.peak, record["memory_bytes"]["reserved"]
    if recorded != taken:
        found.append(f"{recorded:,} bytes recorded as reserved, {taken:,} taken")
    return found
