"""`bench gpu`: what a machine with a GPU can tell us, in one command and one archive.

facts     driver, GPUs, compiler, versions, commit
kernels   `bench kernels`: every attention kernel checked, then timed
smoke     every architecture, a few steps on hmm
timing    some steps of every headline row, from which the hours of the last stage follow
speed     as many steps of one row: 1, 2, 4 and 8 seeds on one GPU, and each precision
runs      the headline rows at the preset `paper`, all rows of one seed before the next seed

Everything is written to one folder. Finished runs are skipped, so the same command goes on after an interruption. A
stage that fails is reported, and the archive is packed whatever happens: what failed is what we need to see.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from bench import VERSION
from bench.config import RunConfig, compose
from bench.device import machine_facts
from bench.engine import dispatch
from bench.engine.events import events_path, read_events
from bench.engine.perform import read_finished
from bench.engine.plan import Plan
from bench.records import RunRecord, write_whole
from bench.run.source import loaded_source
from bench.seeds import PUBLISHED_FROM
from models.base import ARCHS

ROWS = tuple((task, arch) for task in ("bijection", "hmm") for arch in ("transformer", "mamba2", "lstm", "mlp"))
SPEED_ROW = ROWS[0]
SHARED_SEEDS = (1, 2, 4, 8)  # that share a process
PRECISIONS = ("fp32", "tf32", "bf16")
RUNS = "runs"
PACKED = ("facts.json", "kernels.txt", "log.txt", "smoke.json", "timing.json")
PACKED_RUNS = ("*.json", "*.safetensors", "*.events.jsonl")


@dataclass(frozen=True)
class Size:
    """What tells a campaign on a GPU from a rehearsal."""

    name: str
    preset: str
    timing_steps: int
    checks_kernels: bool


GPU = Size("tunnel-bench-gpu", "paper", timing_steps=200, checks_kernels=True)
REHEARSAL = Size("tunnel-bench-rehearsal", "smoke", timing_steps=4, checks_kernels=False)


class Campaign:
    def __init__(self, out: Path, size: Size, plan: Plan, device: str, console: Console) -> None:
        self.out, self.size, self.plan, self.device, self.console = out, size, plan, device, console
        self.archive = out / f"{size.name}.tar"
        self.problems: list[str] = []

    def run(self, seeds: int, hours: float | None) -> int:
        """All stages; the exit code. An interruption leaves an archive too."""
        try:
            self.write_facts()
            if self.size.checks_kernels:
                self.check_kernels()
            self.train("smoke", [self.config("smoke", "hmm", arch) for arch in self.archs()])
            timing = [self.config(self.size.preset, *row, steps=self.size.timing_steps) for row in ROWS]
            timed = [record for record in self.train("timing", timing) if record.ok]
            self.write("timing", {"runs": [r.to_json() for r in timed], "speed": self.measure_speed()})
            self.train_rows(seeds, hours, {(r.config.task, r.config.arch): seconds_per_step(r) for r in timed})
        finally:
            members = self.pack()
            self.say(f"wrote {self.archive}: {members} files")
        for problem in self.problems:
            print(f"bench: {problem}", file=sys.stderr)
        return 1 if self.problems else 0

    def archs(self) -> list[str]:
        """Everything that is part of this suite and runs on the device."""
        ours = [name for name in ARCHS.names() if not ARCHS.digest(name)]
        return [name for name in ours if self.device == "cuda" or not ARCHS.facts(name).get("cuda")]

    def config(self, preset: str, task: str, arch: str, seed: int = PUBLISHED_FROM, **settings: Any) -> RunConfig:
        return compose(preset, arch, task, seed, self.device, settings)

    def say(self, text: str) -> None:
        self.console.print(text, highlight=False, soft_wrap=True, markup=False)
        with (self.out / "log.txt").open("a") as log:
            log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")

    def fail(self, problem: str) -> None:
        self.problems.append(problem)
        self.say(f"problem: {problem}")

    def write_facts(self) -> None:
        commit, dirty = loaded_source()
        facts = {"bench": VERSION, "commit": commit, "dirty": dirty, **machine_facts()}
        write_whole(self.out / "facts.json", (json.dumps(facts, indent=1) + "\n").encode())
        self.say("facts: " + ", ".join(f"{name} {value}" for name, value in facts.items()))
        if commit is None:
            self.say(
                "warning: the commit is unknown. Use a git checkout, or build the image with COMMIT (docs/running.md)"
            )
        if dirty:
            self.say("warning: the code has changes that its commit does not have: its records will be refused")

    def check_kernels(self) -> None:
        """In a process of its own: an error on a GPU ends the process that meets it."""
        self.say("kernels: checked, then timed")
        command = [sys.executable, "-m", "bench", "kernels"]
        text = ""
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
            assert process.stdout is not None
            for line in process.stdout:
                text += line
                self.console.print(line, end="", highlight=False, soft_wrap=True, markup=False)
        write_whole(self.out / "kernels.txt", text.encode())
        if process.returncode:
            self.fail(f"bench kernels ended with exit code {process.returncode}: see {self.out / 'kernels.txt'}")

    def train(self, stage: str, configs: list[RunConfig]) -> list[RunRecord]:
        """Runs of a stage in a folder of their own, and all their records in one file that no table takes for a row."""
        self.say(f"{stage}: {len(configs)} runs, {self.plan.jobs} at a time")
        found = dispatch.run_all(configs, replace(self.plan, out=self.out / stage), self.console)
        if stage == "smoke":
            self.write(stage, [record.to_json() for record in found])
        for record in found:
            if not record.ok:
                self.fail(f"{stage}: {record.config.arch} on {record.config.task} failed: {record.error}")
        return found

    def write(self, stage: str, content: Any) -> None:
        write_whole(self.out / f"{stage}.json", (json.dumps(content) + "\n").encode())

    def measure_speed(self) -> list[dict[str, Any]]:
        """Steps a second on one GPU, of all its runs together, and the ratio to a single run in fp32."""
        if self.device != "cuda":
            self.say("speed: skipped, because a CPU trains in fp32, one run in a process")
            return []
        rates: dict[tuple[int, str], float] = {}
        for shared in SHARED_SEEDS:
            rates |= self.steps_per_second(shared, PRECISIONS if shared == 1 else PRECISIONS[:1])
        one = rates.get((1, PRECISIONS[0]))
        found = []
        for (shared, precision), rate in rates.items():
            ratio = rate / one if one else None
            compared = "" if ratio is None else f", {ratio:.2f} times one run in {PRECISIONS[0]}"
            self.say(f"speed: {shared} in a process, {precision}: {rate:.1f} steps a second{compared}")
            found.append({"per_gpu": shared, "precision": precision, "steps_per_second": rate, "ratio": ratio})
        return found

    def steps_per_second(self, shared: int, precisions: tuple[str, ...]) -> dict[tuple[int, str], float]:
        """Of so many seeds in a process, for each precision; a precision whose runs fail is left out."""
        settings: dict[str, Any] = {"steps": self.size.timing_steps, "sequences": 256}
        seeds = range(PUBLISHED_FROM, PUBLISHED_FROM + shared)
        configs = [
            self.config(self.size.preset, *SPEED_ROW, seed=seed, **settings, precision=precision)
            for precision in precisions
            for seed in seeds
        ]
        plan = replace(self.plan, out=self.out / f"speed-{shared}", jobs=1, per_gpu=shared)
        rates: dict[tuple[int, str], float] = {}
        for record in dispatch.run_all(configs, plan, self.console):
            name = (shared, record.config.precision)
            if record.ok:
                rates[name] = rates.get(name, 0.0) + pace(events_path(record.config, plan.out))
            else:
                self.fail(f"speed: {shared} in a process, {name[1]}: {record.error}")
        return rates

    def train_rows(self, seeds: int, hours: float | None, seconds: dict[tuple[str, str], float]) -> None:
        """The headline rows whose timing succeeded, as many runs as the hours allow."""
        numbers = range(PUBLISHED_FROM, PUBLISHED_FROM + seeds)
        wanted = [self.config(self.size.preset, *row, seed=seed) for seed in numbers for row in seconds]
        for config in wanted[: len(seconds)]:
            each = seconds[config.task, config.arch]
            whole = each * config.steps / 3600
            self.say(f"{config.arch} on {config.task}: {1e3 * each:.1f} ms a step, {whole:.2f} hours a run")

        def cost(config: RunConfig) -> float:
            done = read_finished(replace(self.plan, out=self.out / RUNS).record_path(config))
            return 0.0 if done else seconds[config.task, config.arch] * config.steps / 3600 / self.plan.jobs

        chosen = fit_into(wanted, cost, hours)
        expected = sum(map(cost, chosen))
        self.say(f"expected: {expected:.2f} hours for {len(chosen)} of {len(wanted)} runs, {self.plan.jobs} at a time")
        if chosen:
            self.train(RUNS, chosen)

    def pack(self) -> int:
        """Everything but checkpoints; written under another name first, so that an archive is complete."""
        files = [self.out / name for name in PACKED]
        files += sorted(path for pattern in PACKED_RUNS for path in (self.out / RUNS).rglob(pattern))
        found = [path for path in files if path.is_file() and ".checkpoint-" not in path.name]
        unfinished = self.archive.with_suffix(".unfinished")
        with tarfile.open(unfinished, "w") as archive:
            for path in found:
                archive.add(path, Path(self.size.name) / path.relative_to(self.out), recursive=False)
        unfinished.replace(self.archive)
        return len(found)


def pace(events: Path) -> float:
    """Steps a second of a run, by its event log: a record of runs that share a process has no seconds."""
    looks = [event for event, _ in read_events(events) if event["event"] == "step"]
    return float((looks[-1]["step"] - looks[0]["step"]) / (looks[-1]["seconds"] - looks[0]["seconds"]))


def seconds_per_step(record: RunRecord) -> float:
    """Without the start: between the first evaluation and the last."""
    first, last = record.loss_curve[0], record.loss_curve[-1]
    assert first.seconds is not None  # it ran alone
    assert last.seconds is not None
    return (last.seconds - first.seconds) / (last.step - first.step)


def fit_into(configs: list[RunConfig], cost: Callable[[RunConfig], float], hours: float | None) -> list[RunConfig]:
    """The first of them that are expected to fit; all if there is no limit."""
    chosen: list[RunConfig] = []
    left = float("inf") if hours is None else hours
    for config in configs:
        if cost(config) <= left:
            chosen.append(config)
            left -= cost(config)
    return chosen
