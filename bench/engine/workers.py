"""Runs on this machine, several at a time, each in a process of its own, or with some that differ in their seed only.

A run that another command has locked is retried last; its worker then waits for the lock. If a worker dies, each of its
runs without a last message gets a failed record and the other workers continue.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections import deque
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from multiprocessing.connection import wait as wait_for_any
from multiprocessing.process import BaseProcess

import torch

from bench import stop
from bench.config import RunConfig
from bench.device import cores, gpus, own_stream, synchronize, threads, use_gpu
from bench.engine.messages import Finished, Interrupted, LastMessage, Locked, Refused
from bench.engine.perform import finish_lost, perform_in_turns
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

    configs: list[RunConfig]
    plan: Plan
    wait: bool  # for a lock
    threads: int
    gpu: int | None  # its number; None: no GPU, or whichever is the first


@dataclass(frozen=True)
class Worker:
    runs: dict[str, RunConfig]  # by id, those that have sent no last message yet
    plan: Plan
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
        free = self.jobs - len(self.running)  # all of which are to have work
        group = alike[: min(self.plan.per_gpu, -(-len(alike) // free))]
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
        self.running[ours] = Worker({config.id(): config for config in configs}, plan, process, gpu)
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
        except (EOFError, OSError):  # a process that dies while it sends leaves a part of a message
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
        if not self.ending():
            reason = f"the process died (exit code {worker.process.exitcode})"
            for config in worker.runs.values():
                self.end(config, finish_lost(config, worker.plan, reason))

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


class Turn:
    """One of the runs of a worker: its steps, its stream, and the number of threads that it was continued with."""

    def __init__(self, config: RunConfig, job: Job, connection: Connection) -> None:
        self.id, self.connection = config.id(), connection
        shares = len(job.configs) > 1
        self.steps = perform_in_turns(config, job.plan, self.send, job.wait, shares)
        self.stream = own_stream(config.device) if shares else nullcontext()
        self.threads = job.threads

    def send(self, message: Progress | Notice | LastMessage) -> None:
        try:
            self.connection.send((self.id, message))
        except OSError:
            stop.request(signal.SIGTERM)  # the parent process is gone: save the step and exit

    def take(self) -> bool:
        """One step; False if it was the last one."""
        torch.set_num_threads(self.threads)
        try:
            with self.stream:
                next(self.steps)
            self.threads = torch.get_num_threads()
            return True
        except StopIteration as end:
            self.send(end.value)
        except stop.Stopped as end:
            self.send(Interrupted(end.number))
        except BadInput as error:  # CannotWrite is one
            self.send(Refused(str(error)))
        return False


def work(job: Job, connection: Connection) -> None:
    """The worker process: its runs take turns and send messages, the last of each a LastMessage."""
    if job.gpu is not None:
        use_gpu(job.gpu)
    with threads(job.threads), stop.catch_signals(announce=False), suppress(KeyboardInterrupt):
        going = []
        for run in [Turn(config, job, connection) for config in job.configs]:
            if run.take():
                going.append(run)
            synchronize(job.configs[0].device)  # what it has cached is there for all
        while going:
            going = [run for run in going if run.take()]
