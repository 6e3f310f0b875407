"""Runs on this machine, several at a time, each in a process of its own, or with some that differ in their seed only.

A run that another command has locked is retried last; its worker then waits for the lock. If a worker dies, each of its
runs without a last message gets a failed record and the other workers continue.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections import deque
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from multiprocessing.connection import wait as wait_for_any
from multiprocessing.process import BaseProcess

from bench import stop
from bench.config import RunConfig
from bench.device import cores, gpus, own_stream, synchronize, threads, use_gpu
from bench.engine.messages import Finished, Interrupted, LastMessage, Locked, Outcome, Refused
from bench.engine.perform import finish_lost, perform_in_turns
from bench.engine.plan import POLL_SECONDS, Plan
from bench.engine.progress import View
from bench.records import RunRecord
from bench.registry import BadInput
from bench.run.keeper import Notice
from bench.run.source import loaded_source
from bench.run.train import Progress
from bench.run.turns import Turns

# Imported once by the process that workers are forked from, before it has threads; torch's optimizers need the second.
PRELOAD = ["bench.engine.workers", "torch._dynamo"]


@dataclass(frozen=True)
class Job:
    """What a worker is asked to do."""

    configs: list[RunConfig]
    plan: Plan
    wait: bool  # for a lock
    threads: int
    gpu: int | None  # its number; None: no GPU, or whichever is the first


@dataclass(frozen=True)
class Worker:
    runs: dict[str, RunConfig]  # by id, those that have sent no last message yet
    process: BaseProcess
    gpu: int | None


class Workers:
    """At most plan.jobs processes at a time; call run() once."""

    def __init__(self, configs: list[RunConfig], plan: Plan, view: View) -> None:
        self.plan = replace(plan, source=loaded_source())
        self.view = view
        self.jobs = min(plan.jobs, len(configs))
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(PRELOAD)
        self.waiting = deque(configs)
        self.locked: deque[RunConfig] = deque()
        self.running: dict[Connection, Worker] = {}
        self.finished: dict[str, RunRecord] = {}
        self.refused: BadInput | None = None
        self.terminated = False

    def run(self) -> dict[str, RunRecord]:
        """Records by run id."""
        try:
            while self.running or (not self.ending() and (self.waiting or self.locked)):
                if self.ending():
                    self.terminate()
                else:
                    self.fill()
                for connection in wait_for_any(list(self.running), POLL_SECONDS):
                    assert isinstance(connection, Connection)
                    self.receive(connection)
        finally:
            for worker in self.running.values():
                worker.process.kill()
        if self.refused is not None:
            raise self.refused
        stop.check()
        return self.finished

    def ending(self) -> bool:
        return stop.requested() is not None or self.refused is not None

    def terminate(self) -> None:
        """Ask every worker to save its step and exit, once."""
        if not self.terminated:
            self.terminated = True
            for worker in self.running.values():
                worker.process.terminate()

    def fill(self) -> None:
        """Start workers while there are runs and free places."""
        while len(self.running) < self.jobs and (self.waiting or self.locked):
            if self.waiting:
                self.start(self.next_group(), self.plan, wait=False)
            else:  # the process that had the lock has started the run over, so this one does not
                self.start([self.locked.popleft()], replace(self.plan, fresh=False), wait=True)

    def next_group(self) -> list[RunConfig]:
        """The next run, and those that share its process."""
        first = self.waiting[0]
        alike = [config for config in self.waiting if replace(config, seed=first.seed) == first]
        group = alike[: self.plan.per_gpu]
        for config in group:
            self.waiting.remove(config)
        return group

    def start(self, configs: list[RunConfig], plan: Plan, wait: bool) -> None:
        ours, theirs = self.context.Pipe(duplex=False)
        gpu = self.free_gpu() if configs[0].device == "cuda" else None
        job = Job(configs, plan, wait, max(1, cores() // self.jobs), gpu)
        process = self.context.Process(target=work, args=(job, theirs), daemon=True)
        process.start()
        theirs.close()
        self.running[ours] = Worker({config.id(): config for config in configs}, process, gpu)
        for config in configs:
            self.view.started(config)

    def free_gpu(self) -> int | None:
        """The GPU with the fewest workers."""
        busy = [worker.gpu for worker in self.running.values()]
        return min(range(gpus()), key=busy.count, default=None)

    def receive(self, connection: Connection) -> None:
        """Handle one message. A closed connection means that the process is gone."""
        worker = self.running[connection]
        message: Progress | Notice | LastMessage
        try:
            run, message = connection.recv()
        except (EOFError, ConnectionError):
            self.lose(connection)
            return
        if isinstance(message, Progress | Notice):
            self.view.show(worker.runs[run], message)
            return
        config = worker.runs.pop(run)
        if not worker.runs:
            worker.process.join()
            del self.running[connection]
        self.end(config, message)

    def lose(self, connection: Connection) -> None:
        worker = self.running.pop(connection)
        worker.process.join()
        if stop.requested() is None:
            reason = f"the process died (exit code {worker.process.exitcode})"
            for config in worker.runs.values():
                self.end(config, finish_lost(config, self.plan, reason))

    def end(self, config: RunConfig, message: LastMessage) -> None:
        match message:
            case Finished():
                self.finished[config.id()] = message.record
                self.view.finished(config, message)
            case Locked():
                self.locked.append(config)
                self.view.locked(config, message.owner)
            case Refused():
                self.refused = BadInput(message.reason)
            case Interrupted() if not self.ending():
                stop.request(message.signal)  # only this worker was stopped, but without it the command cannot finish


def work(job: Job, connection: Connection) -> None:
    """The worker process: performs its runs by turns and sends messages, the last of each a LastMessage."""

    def speak_for(run: str) -> Callable[[Progress | Notice | LastMessage], None]:
        def send(message: Progress | Notice | LastMessage) -> None:
            try:
                connection.send((run, message))
            except OSError:
                stop.request(signal.SIGTERM)  # the parent process is gone: save the step and exit

        return send

    if job.gpu is not None:
        use_gpu(job.gpu)
    together = len(job.configs) > 1
    device = job.configs[0].device
    with threads(job.threads), stop.catch_signals(announce=False), suppress(KeyboardInterrupt):
        runs = []
        for config in job.configs:
            send = speak_for(config.id())
            run = perform_in_turns(config, job.plan, send, job.wait, neighbours=len(job.configs) - 1)
            runs.append((run, own_stream(device) if together else nullcontext(), send))
        is_first = True
        while runs:
            for each in list(runs):
                run, stream, send = each
                with stream:
                    last = _turn(run)
                if last is not None:
                    send(last)
                    runs.remove(each)
                if together and is_first:
                    synchronize(device)  # what it has cached is there for all
            is_first = False


def _turn(run: Turns[Outcome]) -> LastMessage | None:
    """Its last message, if this was its last turn."""
    try:
        next(run)
    except StopIteration as end:
        outcome: Outcome = end.value
        return outcome
    except stop.Stopped as end:
        return Interrupted(end.number)
    except BadInput as error:  # CannotWrite is one
        return Refused(str(error))
    return None
