"""What a person sees while runs are under way: bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from bench.config import RunConfig
from bench.records import RunRecord
from bench.train import Progress as Step

QUIET_SECONDS = 20.0  # between two plain lines about the same run


def title(config: RunConfig) -> str:
    return f"{config.task} {config.arch} seed {config.seed}"


class Bar:
    """How far one long piece of work has come: callable with what it is, how much is done and how much there is."""

    def __init__(self, console: Console) -> None:
        self.console, self.spoke = console, time.monotonic()
        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
        )
        self.bars = Progress(*columns, console=console) if console.is_terminal else None
        self.tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Self:
        if self.bars is not None:
            self.bars.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self.bars is not None:
            self.bars.stop()

    def __call__(self, what: str, done: int, total: int) -> None:
        if self.bars is not None:
            if what not in self.tasks:
                self.tasks[what] = self.bars.add_task(what, total=total)
            self.bars.update(self.tasks[what], completed=done)
        elif time.monotonic() - self.spoke > QUIET_SECONDS:
            self.spoke = time.monotonic()
            self.console.print(f"  {what}: {done:,} of {total:,}", markup=False, highlight=False)


class View:
    """One bar for each run under way and one for all of them."""

    def __init__(self, total: int, console: Console, verbose: bool = False) -> None:
        self.console, self.total, self.done = console, total, 0
        self.quiet_seconds = 0.0 if verbose else QUIET_SECONDS
        self.bars: Progress | None = None
        self.tasks: dict[str, TaskID] = {}
        self.spoke: dict[str, float] = {}
        if console.is_terminal:
            self.bars = Progress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=24),
                MofNCompleteColumn(),
                TextColumn("{task.fields[facts]}"),
                TimeRemainingColumn(),
                console=console,
            )
            self.all = self.bars.add_task("[bold]all runs", total=total, facts="")

    def __enter__(self) -> Self:
        if self.bars is not None:
            self.bars.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self.bars is not None:
            self.bars.stop()

    def started(self, config: RunConfig) -> None:
        self.spoke[config.id()] = time.monotonic()
        if self.bars is not None and config.id() not in self.tasks:  # a run may start again on another machine
            self.tasks[config.id()] = self.bars.add_task(title(config), total=config.steps, facts="")

    def stepped(self, config: RunConfig, step: Step) -> None:
        if config.id() not in self.spoke:  # begun by another command
            self.started(config)
        facts = f"loss {step.loss_bits:.4f}  error {step.entropy_mae:.4f} bits  {step.step / step.seconds:.0f} steps/s"
        if self.bars is not None:
            self.bars.update(self.tasks[config.id()], completed=step.step, facts=facts)
        if (self.bars is None or not self.quiet_seconds) and (
            time.monotonic() - self.spoke[config.id()] >= self.quiet_seconds
        ):
            self.spoke[config.id()] = time.monotonic()
            left = step.seconds / step.step * (step.steps - step.step)
            self.say(f"  {title(config)}: step {step.step}/{step.steps}  {facts}  {left:.0f} s left")

    def aside(self, config: RunConfig, owner: str) -> None:
        if self.bars is not None:
            self.bars.remove_task(self.tasks.pop(config.id()))
        self.say(f"  {title(config)}: {owner} is at it, so it is left until last")

    def finished(self, config: RunConfig, record: RunRecord, where: str) -> None:
        self.done += 1
        if self.bars is not None:
            if config.id() in self.tasks:
                self.bars.remove_task(self.tasks.pop(config.id()))
            self.bars.update(self.all, completed=self.done)
        if record.status == "ok":
            first = record.metrics[str(config.horizon)]
            error = f"{first['all']['entropy_mae']:.4f} bits at K = {config.horizon}"
            self.say(f"[{self.done}/{self.total}] {title(config)}: {error}, {where}")
        else:
            self.say(f"[{self.done}/{self.total}] {title(config)}: FAILED ({record.error}), {where}")

    def say(self, line: str) -> None:
        self.console.print(line, markup=False, highlight=False, soft_wrap=True)
