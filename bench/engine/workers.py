"""Runs on this machine, several at a time, each in a process of its own.

A run that another command has locked is retried last; its worker then waits for the lock. If a worker dies without a
last message, its run gets a failed record and the others continue.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections import deque
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from multiprocessing.connection import wait as wait_for_any
from multiprocessing.process import BaseProcess

from bench import stop
from bench.config import RunConfig
from bench.device import cores, gpus, threads, use_gpu
from bench.engine.messages import Finished, Interrupted, LastMessage, Locked, Refused
from bench.engine.perform import finish_lost, perform
from bench.engine.plan import POLL_SECONDS, Plan
from bench.engine.progress import View
from bench.records import RunRecord
from bench.registry import BadInput
from bench.run.keeper import Notice
from bench.run.source import loaded_source
from bench.run.train import Progress

# Imported once by the process that workers are forked from, before it has threads; torch's optimizers need the second.
PRELOAD = ["bench.engine.workers", "torch._dynamo"]


@dataclass(frozen=True)
class Job:
    """What a worker is asked to do."""

    config: RunConfig
    plan: Plan
    wait: bool  # for a lock
    threads: int
    gpu: int | None  # its number; None: no GPU, or whichever is the first


@dataclass(frozen=True)
class Worker:
    config: RunConfig
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
                self.start(self.waiting.popleft(), self.plan, wait=False)
            else:  # the process that had the lock has started the run over, so this one does not
                self.start(self.locked.popleft(), replace(self.plan, fresh=False), wait=True)

    def start(self, config: RunConfig, plan: Plan, wait: bool) -> None:
        ours, theirs = self.context.Pipe(duplex=False)
        gpu = self.free_gpu() if config.device == "cuda" else None
        job = Job(config, plan, wait, max(1, cores() // self.jobs), gpu)
        process = self.context.Process(target=work, args=(job, theirs), daemon=True)
        process.start()
        theirs.close()
        self.running[ours] = Worker(config, process, gpu)
        self.view.started(config)

    def free_gpu(self) -> int | None:
        """The GPU with the fewest workers."""
        busy = [worker.gpu for worker in self.running.values()]
        return min(range(gpus()), key=busy.count, default=None)

    def receive(self, connection: Connection) -> None:
        """Handle one message. A closed connection means that the process is gone."""
        worker = self.running[connection]
        try:
            message: Progress | Notice | LastMessage | None = connection.recv()
        except (EOFError, ConnectionError):
            message = None
        if isinstance(message, Progress | Notice):
            self.view.show(worker.config, message)
            return
        worker.process.join()
        del self.running[connection]
        if message is not None:
            self.end(worker.config, message)
        elif stop.requested() is None:
            reason = f"the process died (exit code {worker.process.exitcode})"
            self.end(worker.config, finish_lost(worker.config, self.plan, reason))

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
    """The worker process: performs one run and sends messages, the last of them a LastMessage."""

    def send(message: Progress | Notice | LastMessage) -> None:
        try:
            connection.send(message)
        except OSError:
            stop.request(signal.SIGTERM)  # the parent process is gone: save the step and exit

    if job.gpu is not None:
        use_gpu(job.gpu)
    with threads(job.threads), stop.catch_signals(announce=False):
        try:
            send(perform(job.config, job.plan, send, job.wait))
        except stop.Stopped as end:
            send(Interrupted(end.number))
        except BadInput as error:  # CannotWrite is one
            send(Refused(str(error)))
        except KeyboardInterrupt:
            pass
