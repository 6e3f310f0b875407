"""perform: one run from its lock to its record, the same for every engine."""

from __future__ import annotations

import shutil
import time
from dataclasses import replace
from pathlib import Path

from bench import external, stop
from bench.config import RunConfig
from bench.device import describe
from bench.engine.events import Log, events_path, read_events
from bench.engine.lock import lock
from bench.engine.messages import Finished, Listener, Locked, Outcome
from bench.engine.plan import POLL_SECONDS, Plan
from bench.records import SCHEMA, SOURCES, BadRecord, CannotWrite, Memory, RunRecord, Seconds, read, write
from bench.run import snapshots
from bench.run.keeper import Keeper, Notice
from bench.run.run import run_in_turns
from bench.run.train import Progress
from bench.run.turns import Turns, finish


def perform(config: RunConfig, plan: Plan, listen: Listener, wait: bool) -> Outcome:
    """Train and score, unless that is done. If another process has the run's lock, wait for it or return."""
    return finish(perform_in_turns(config, plan, listen, wait))


def perform_in_turns(
    config: RunConfig, plan: Plan, listen: Listener, wait: bool, shares: bool = False
) -> Turns[Outcome]:
    """The same, a training step at a time; `shares`: its process has other runs."""
    for code in plan.code:
        external.load(code)  # in a new process it is not loaded yet
    while True:
        with lock(plan.record_path(config).parent, config.id()) as owner:
            if owner is None:
                return (yield from _perform_locked(config, plan, listen, shares))
        if plan.fresh:
            listen(Notice("warning", f"{config.id()} is not started over: locked by {owner}"))
            plan = replace(plan, fresh=False)
        if not wait:
            return Locked(owner)
        time.sleep(POLL_SECONDS)
        stop.check()


def _perform_locked(config: RunConfig, plan: Plan, listen: Listener, shares: bool) -> Turns[Finished]:
    path = plan.record_path(config)
    if plan.fresh and not started_over(config, plan):
        start_over(config, path)
    keeper = Keeper(config, path.parent, pace=plan.pace, keep=plan.snapshots, shares=shares)
    if (record := read_finished(path)) is not None:  # another process was faster
        keeper.remove()
        return Finished(record, path, new=False)
    log = Log(config, plan.out, plan.tensorboard)

    def notify(notice: Notice) -> None:
        log.notice(notice)
        listen(notice)

    def report(progress: Progress) -> None:
        log.step(progress)
        listen(progress)

    keeper.notify = notify
    log.add("started", config=config.to_json(), command=plan.command)
    try:
        record, weights = yield from run_in_turns(config, report, keeper, plan.source)
    except stop.Stopped:
        log.add("stopped", step=keeper.at.step)
        raise
    write(plan.out, record, weights)
    log.record(record)
    if record.ok:
        keeper.remove()
    return Finished(record, path, new=True)


def read_finished(path: Path) -> RunRecord | None:
    """The record of a run that succeeded; None if there is no record, or if it is to be replaced."""
    try:
        record = read(path)
    except BadRecord:
        return None
    return record if record.ok else None


def started_over(config: RunConfig, plan: Plan) -> bool:
    """Whether this command has started the run over already: Ray then continues it after the loss of a machine."""
    first = next(read_events(events_path(config, plan.out)), None)
    return first is not None and first[0].get("command") == plan.command


def start_over(config: RunConfig, record: Path) -> None:
    """Delete everything that a run has left: record, weights, code, events, checkpoints, snapshots, report.

    The caller holds its lock.
    """
    report = record.with_suffix("")
    try:
        Keeper(config, record.parent).remove()
        for suffix in (".json", ".safetensors", ".events.jsonl", *SOURCES):
            record.with_suffix(suffix).unlink(missing_ok=True)
        snapshots.remove(record)
        if report.exists():
            shutil.rmtree(report)
    except OSError as error:
        raise CannotWrite(f"cannot remove {error.filename}: {error.strerror or error}") from error


def finish_lost(config: RunConfig, plan: Plan, reason: str) -> Finished:
    """The outcome of a run whose process died: its record if it was written in time, else a failed one.

    An older record of a finished run stays.
    """
    path = plan.record_path(config)
    finished, is_old = read_finished(path), plan.fresh and not started_over(config, plan)
    if finished is not None and not is_old:
        return Finished(finished, path, new=False)
    record = _failed_record(config, reason)
    if finished is None:
        write(plan.out, record, None)
    return Finished(record, path, new=True)


def _failed_record(config: RunConfig, error: str) -> RunRecord:
    return RunRecord(
        schema=SCHEMA, id=config.id(), status="failed", error=error, config=config, budget=config.budget(),
        parameters=None, state_bytes=None, train_flops=None, metrics={}, references={}, by_position={}, loss_curve=[],
        seconds=Seconds(), tokens_per_second=None, memory_bytes=Memory(), energy_joules=None,
        platform=describe(config).to_json(), commit=None, dirty=None, weights=None,
    )  # fmt: skip
