"""What a person sees during runs: progress bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

from bench.config import RunConfig
from bench.engine.messages import Finished
from bench.run.keeper import Notice
from bench.run.train import Progress

QUIET_SECONDS = 20.0  # between two plain lines about the same run


def title(config: RunConfig) -> str:
    return f"{config.task} {config.arch} seed {config.seed}"


class Bar:
    """Progress of one long piece of work: call it with the current part, how much is done and how much there is."""

    def __init__(self, console: Console) -> None:
        self.console, self.last_line = console, time.monotonic()
        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
        )
        self.bars = Bars(*columns, console=console) if console.is_terminal else None
        self.tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Self:
        if self.bars is not None:
            self.bars.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self.bars is not None:
            self.bars.stop()

    def __call__(self, part: str, done: int, total: int) -> None:
        if self.bars is not None:
            if part not in self.tasks:
                self.tasks[part] = self.bars.add_task(part, total=total)
            self.bars.update(self.tasks[part], completed=done)
        elif time.monotonic() - self.last_line > QUIET_SECONDS:
            self.last_line = time.monotonic()
            self.console.print(f"  {part}: {done:,} of {total:,}", markup=False, highlight=False)


class View:
    """One bar for each active run and one for all runs."""

    def __init__(self, total: int, console: Console, verbose: bool = False) -> None:
        self.console, self.total, self.done = console, total, 0
        self.verbose = verbose
        self.bars: Bars | None = None
        self.tasks: dict[str, TaskID] = {}  # by run id
        self.last_line: dict[str, float] = {}  # by run id: when a line about it was printed
        if console.is_terminal:
            self.bars = Bars(
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
        self.last_line[config.id()] = time.monotonic()
        if self.bars is not None and config.id() not in self.tasks:  # a run may start again on another machine
            self.tasks[config.id()] = self.bars.add_task(title(config), total=config.steps, facts="")

    def show(self, config: RunConfig, message: Progress | Notice) -> None:
        if isinstance(message, Notice):
            self.note(message.text)
        else:
            self.stepped(config, message)

    def stepped(self, config: RunConfig, progress: Progress) -> None:
        if config.id() not in self.last_line:  # another command has started it
            self.started(config)
        speed = progress.step / progress.seconds
        facts = f"loss {progress.loss_bits:.4f}  error {progress.entropy_mae:.4f} bits  {speed:.0f} steps/s"
        if self.bars is not None:
            self.bars.update(self.tasks[config.id()], completed=progress.step, facts=facts)
        if self.verbose or (self.bars is None and self._quiet_for(config) >= QUIET_SECONDS):
            self.last_line[config.id()] = time.monotonic()
            left = (progress.steps - progress.step) / speed
            self.note(f"{title(config)}: step {progress.step}/{progress.steps}  {facts}  {left:.0f} s left")

    def _quiet_for(self, config: RunConfig) -> float:
        return time.monotonic() - self.last_line[config.id()]

    def locked(self, config: RunConfig, owner: str) -> None:
        if self.bars is not None:
            self.bars.remove_task(self.tasks.pop(config.id()))
        self.note(f"{title(config)}: locked by {owner}; retrying last")

    def finished(self, config: RunConfig, outcome: Finished) -> None:
        self.done += 1
        if self.bars is not None:
            if config.id() in self.tasks:
                self.bars.remove_task(self.tasks.pop(config.id()))
            self.bars.update(self.all, completed=self.done)
        record = outcome.record
        if record.status == "ok":
            result = f"{record.error_bits:.4f} bits at K = {config.horizon}"
        else:
            result = f"FAILED ({record.error})"
        place = f"wrote {outcome.path}" if outcome.new else f"already in {outcome.path}"
        self.print(f"[{self.done}/{self.total}] {title(config)}: {result}, {place}")

    def note(self, text: str) -> None:
        """A line about the run above or below it, indented."""
        self.print(f"  {text}")

    def print(self, line: str) -> None:
        self.console.print(line, markup=False, highlight=False, soft_wrap=True)
