"""Run a list of configs: one after the other here, several at a time in processes of their own, or on Ray.

Every run writes its own record as soon as it ends, so nothing that was finished is lost with what was not. A record
that is there already is not run again; one that failed is; one that was interrupted goes on from its checkpoint. A run
that another process is at is left until last, and then waited for. One that is to start over is forgotten when its turn
comes, not before.
"""

from __future__ import annotations

import multiprocessing
import shutil
import signal
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.console import Console

from bench import snapshots, stop
from bench.checkpoint import PACE, Keeper, Pace
from bench.config import RunConfig
from bench.device import cores, describe
from bench.lock import lock
from bench.log import Log, events_path, read_events
from bench.progress import View
from bench.records import SCHEMA, BadRecord, CannotWrite, RunRecord, read, write
from bench.registry import BadInput
from bench.run import run_one
from bench.snapshots import Album
from bench.train import Progress

# What every run needs, imported once, before the threads that forking forbids; torch's optimizers import the second.
PRELOAD = ["bench.engine", "torch._dynamo"]
POLL_SECONDS = 0.2


@dataclass(frozen=True)
class Plan:
    """How a list of runs is done; nothing here changes a result, but for threads, which change the order of sums."""

    out: Path
    jobs: int = 1
    fresh: bool = False
    verbose: bool = False
    tensorboard: bool = False
    engine: str = "local"
    address: str | None = None
    gpus: float = 0.0  # of one run, on Ray
    memory: int = 0  # bytes of one run, on Ray
    pace: Pace = PACE
    snapshots: int = 0  # of the weights of each run, kept beside its record
    command: str = field(default_factory=lambda: uuid.uuid4().hex)  # a name of its own: see started_over


class Outcome(NamedTuple):
    record: RunRecord | None  # None: another process is at it
    where: str


def run_all(configs: list[RunConfig], plan: Plan, console: Console) -> list[RunRecord]:
    """All records, in the order of the configs."""
    finished: dict[str, RunRecord] = {}
    with View(len(configs), console, plan.verbose) as view:
        waiting = []
        for config in configs:
            if not plan.fresh and (record := existing(config, plan.out, view)):
                finished[config.id()] = record
                Keeper(config, (plan.out / record.path).parent).remove()  # if a kill came between record and removal
                view.finished(config, record, f"already in {plan.out / record.path}")
                if code := config.newer_code(plan.out / record.path):
                    view.say(f"  {code} has changed since: to train it with that, start it over with --fresh")
                if plan.snapshots and Album(plan.out / record.path, config.steps, plan.snapshots).missing():
                    view.say("  it was finished without these snapshots: to have them, start it over with --fresh")
            else:
                waiting.append(config)
        if plan.engine == "ray" and waiting:
            from bench.engine_ray import run_on_ray  # an extra: imported only where it is asked for

            finished |= run_on_ray(waiting, plan, view)
        elif len(waiting) < 2 or (plan.jobs == 1 and waiting[0].device == "cpu"):
            finished |= _run_here(waiting, plan, view)
        elif waiting:  # on a GPU one at a time too: its memory and its errors outlast a run, but not a process
            finished |= _run_beside(waiting, plan, view)
    return [finished[config.id()] for config in configs]


def perform(
    config: RunConfig, plan: Plan, report: Callable[[Progress], None], say: Callable[[str], None], patient: bool
) -> Outcome:
    """One run from its lock to its record, the same for every engine; a patient one waits for the lock."""
    folder = plan.out / config.task / config.arch
    while True:
        with lock(folder, config.id()) as owner:
            if owner is None:
                return _perform_locked(config, plan, folder, report, say)
        if plan.fresh:
            say(f"  {config.id()} is not started over: {owner} is at it")
            plan = replace(plan, fresh=False)
        if not patient:
            return Outcome(None, owner)
        time.sleep(POLL_SECONDS)
        stop.check()


def _perform_locked(
    config: RunConfig, plan: Plan, folder: Path, report: Callable[[Progress], None], say: Callable[[str], None]
) -> Outcome:
    keeper = Keeper(config, folder, say, plan.pace, plan.snapshots)
    path = folder / f"{config.id()}.json"
    if plan.fresh and not started_over(events_path(config, plan.out), plan):
        start_over(config, path)
    try:
        record = read(path)
        if record.status == "ok":  # by a process that was faster
            keeper.remove()
            return Outcome(record, f"already in {path}")
    except BadRecord:
        pass  # not there, or to be replaced
    log = Log(config, plan.out, plan.tensorboard)

    def tell(line: str) -> None:
        log.add("continued" if "continuing" in line else "warning", text=line.strip())
        say(line)

    def stepped(progress: Progress) -> None:
        log.step(progress)
        report(progress)

    keeper.say = tell
    log.add("started", config=config.to_json(), command=plan.command)
    try:
        record, weights = run_one(config, stepped, keeper)
    except stop.Stopped:
        log.add("stopped", step=keeper.at.step)
        raise
    write(plan.out, record, weights)
    log.record(record)
    if record.status == "ok":
        keeper.remove()
    return Outcome(record, f"wrote {path}")


def started_over(events: Path, plan: Plan) -> bool:
    """Whether this very command did it: then Ray has moved the run from a machine that was lost, and it goes on."""
    first = next(read_events(events), None)
    return first is not None and first[0].get("command") == plan.command


def start_over(config: RunConfig, record: Path) -> None:
    """Forget a run whose lock is ours: its record, its weights, its checkpoints and snapshots, and its report."""
    report = record.with_suffix("")
    try:
        Keeper(config, record.parent).remove()
        for suffix in (".json", ".safetensors", ".events.jsonl"):
            record.with_suffix(suffix).unlink(missing_ok=True)
        snapshots.remove(record)
        if report.exists():
            shutil.rmtree(report)
    except OSError as error:
        raise CannotWrite(f"cannot remove {error.filename}: {error.strerror or error}") from error


def existing(config: RunConfig, out: Path, view: View) -> RunRecord | None:
    path = out / config.task / config.arch / f"{config.id()}.json"
    if not path.exists():
        return None
    try:
        record = read(path)
    except BadRecord as problem:
        view.say(f"  {path} is damaged ({problem}): running it again")
        return None
    if record.status != "ok":
        view.say(f"  {path} has failed before ({record.error}): running it again")
        return None
    return record


def _run_here(configs: list[RunConfig], plan: Plan, view: View) -> dict[str, RunRecord]:
    finished: dict[str, RunRecord] = {}
    for patient in (False, True):
        if patient:
            plan = replace(plan, fresh=False)  # what another process was at is not started over
        for config in configs:
            if config.id() in finished:
                continue
            stop.check()
            torch.set_num_threads(cores())
            view.started(config)

            def report(progress: Progress, config: RunConfig = config) -> None:
                view.stepped(config, progress)

            record, where = perform(config, plan, report, view.say, patient)
            if record is None:
                view.aside(config, where)
            else:
                view.finished(config, record, where)
                finished[config.id()] = record
    return finished


@dataclass
class _Worker:
    config: RunConfig
    process: BaseProcess


def _run_beside(configs: list[RunConfig], plan: Plan, view: View) -> dict[str, RunRecord]:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    jobs = min(plan.jobs, len(configs))
    threads = max(1, cores() // jobs)
    waiting = [(config, False) for config in reversed(configs)]
    aside: list[tuple[RunConfig, bool]] = []
    workers: dict[Connection, _Worker] = {}
    finished: dict[str, RunRecord] = {}
    refused: BadInput | None = None
    told = False
    try:
        while waiting or aside or workers:
            ending = stop.asked() is not None or refused is not None
            if ending and not told:
                told = True
                for worker in workers.values():
                    worker.process.terminate()  # SIGTERM: each finishes its step and keeps it
            if ending and not workers:
                break
            while (waiting or aside) and len(workers) < jobs and not ending:
                config, patient = (waiting or aside).pop()
                ours, theirs = context.Pipe(duplex=False)
                own = replace(plan, fresh=plan.fresh and not patient)  # what another was at is not started over
                process = context.Process(
                    target=_work, args=(config, own, patient, threads, theirs), daemon=True
                )  # fmt: skip
                process.start()
                theirs.close()
                workers[ours] = _Worker(config, process)
                view.started(config)
            for channel in wait(list(workers), POLL_SECONDS):
                assert isinstance(channel, Connection)
                worker = workers[channel]
                try:
                    kind, content = channel.recv()
                except (EOFError, ConnectionError):  # the process is gone, without a last word
                    worker.process.join()
                    del workers[channel]
                    if stop.asked() is None:
                        why = f"the process died (exit code {worker.process.exitcode})"
                        record, where = last_word(worker.config, plan.out, why)
                        view.finished(worker.config, record, where)
                        finished[worker.config.id()] = record
                    continue
                if kind == "step":
                    view.stepped(worker.config, content)
                    continue
                if kind == "say":
                    view.say(content)
                    continue
                worker.process.join()
                del workers[channel]
                if kind == "refused":
                    refused = BadInput(content)
                elif kind == "stopped" and not ending:
                    stop.ask(content)  # somebody stopped this worker alone: the command cannot finish, so it stops too
                elif kind == "outcome" and content.record is None:
                    view.aside(worker.config, content.where)
                    aside.insert(0, (worker.config, True))
                elif kind == "outcome":
                    finished[worker.config.id()] = content.record
                    view.finished(worker.config, content.record, content.where)
    finally:
        for worker in workers.values():
            worker.process.kill()
    if refused is not None:
        raise refused
    stop.check()
    return finished


def _work(config: RunConfig, plan: Plan, patient: bool, threads: int, channel: Connection) -> None:
    """In a process of its own. Its last word is an outcome, `stopped` or `refused`."""

    def send(kind: str, content: object) -> None:
        try:
            channel.send((kind, content))
        except OSError:
            stop.ask(signal.SIGTERM)  # nobody listens any more: keep the step and leave

    torch.set_num_threads(threads)
    with stop.watched(aloud=False):
        try:
            outcome = perform(config, plan, lambda p: send("step", p), lambda line: send("say", line), patient)
            send("outcome", outcome)
        except stop.Stopped as end:
            send("stopped", end.number)
        except BadInput as error:  # CannotWrite among them
            send("refused", str(error))
        except KeyboardInterrupt:
            pass


def last_word(config: RunConfig, out: Path, why: str) -> tuple[RunRecord, str]:
    """Of a run whose process died: the record that it had finished by then, or one that says why there is none."""
    record = lost(config, why)
    path = out / record.path
    try:
        written = read(path)
        if written.status == "ok":
            return written, f"already in {path}"
    except BadRecord:
        pass  # not there, or to be replaced
    return record, f"wrote {write(out, record, None)}"


def lost(config: RunConfig, why: str) -> RunRecord:
    """The record of a run whose process died under it, for instance for want of memory."""
    nothing: dict[str, Any] = {}
    return RunRecord(
        schema=SCHEMA, id=config.id(), status="failed", error=why,
        config=config.to_json(), budget=config.budget(), parameters=None, state_bytes=None, train_flops=None,
        metrics=nothing, references=nothing, by_position=nothing, loss_curve=[], seconds=nothing,
        tokens_per_second=None, memory_bytes=nothing, energy_joules=None,
        platform=describe(config).to_json(), commit=None, dirty=None, weights=None,
    )  # fmt: skip
