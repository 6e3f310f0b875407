"""Runs on a Ray cluster: one Ray task per run, all writing to one folder that every machine sees.

Ray places a task by what it needs (threads, a fraction of a GPU, memory). If its machine is lost, Ray starts it again
elsewhere, and there the run continues from its checkpoint. Progress is read from the runs' event logs, so it needs no
connection to the machines.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
from collections import deque
from typing import Any

from bench import stop
from bench.config import RunConfig
from bench.device import threads
from bench.engine.events import events_path, read_events
from bench.engine.messages import Finished, Interrupted, Outcome
from bench.engine.perform import finish_lost, perform, started_over
from bench.engine.plan import POLL_SECONDS, Plan
from bench.engine.progress import View
from bench.records import RunRecord
from bench.registry import BadInput
from bench.run.keeper import Notice
from bench.run.train import Progress

RETRIES = 5  # how many machines a run may lose
THREADS = 1  # per run


def run_on_ray(configs: list[RunConfig], plan: Plan, view: View) -> dict[str, RunRecord]:
    """Records by run id."""
    ray = connect(plan.address)
    try:
        return RayRuns(ray, configs, plan, view).run()
    finally:
        ray.shutdown()


class RayRuns:
    """At most plan.jobs tasks at a time; call run() once."""

    def __init__(self, ray: Any, configs: list[RunConfig], plan: Plan, view: View) -> None:
        self.ray, self.plan, self.view = ray, plan, view
        needs: dict[str, Any] = {"num_cpus": THREADS, "num_gpus": plan.gpus}
        if plan.memory:
            needs["memory"] = plan.memory
        check_room(ray.nodes(), needs)
        self.task = ray.remote(max_retries=RETRIES, **needs)(perform_task)
        self.waiting = deque(configs)
        self.running: dict[Any, RunConfig] = {}  # by Ray's reference to the task
        self.log_read: dict[str, int] = {}  # by run id: bytes of its event log that were shown
        self.finished: dict[str, RunRecord] = {}
        self.cancelled = False

    def run(self) -> dict[str, RunRecord]:
        try:
            while self.running or (self.waiting and stop.requested() is None):
                if stop.requested() is None:
                    self.submit()
                else:
                    self.cancel()
                done, _ = self.ray.wait(list(self.running), timeout=POLL_SECONDS)
                for config in self.running.values():
                    self.show_events(config)
                for reference in done:
                    self.collect(reference)
        finally:
            for reference in self.running:
                self.ray.cancel(reference, force=True)
        stop.check()
        return self.finished

    def submit(self) -> None:
        """Hand tasks to Ray while there are runs and free places."""
        while self.waiting and len(self.running) < self.plan.jobs:
            config = self.waiting.popleft()
            path = events_path(config, self.plan.out)
            earlier = path.stat().st_size if path.exists() and not self.plan.fresh else 0
            self.log_read.setdefault(config.id(), earlier)
            self.running[self.task.remote(config, self.plan)] = config

    def cancel(self) -> None:
        """As Ctrl-C in every task: it saves its step. Only once: a second Ctrl-C would not save."""
        if not self.cancelled:
            self.cancelled = True
            for reference in self.running:
                self.ray.cancel(reference, force=False)

    def collect(self, reference: Any) -> None:
        """Take the outcome of a task that has ended, however it ended."""
        config = self.running.pop(reference)
        try:
            outcome: Finished | Interrupted = self.ray.get(reference)
        except self.ray.exceptions.RayError as error:
            if stop.requested() is not None:
                return
            cause = getattr(error, "cause", None)
            if isinstance(cause, BadInput):
                raise cause from None
            outcome = finish_lost(config, self.plan, str(error).strip().splitlines()[-1])
        if isinstance(outcome, Finished):
            self.finished[config.id()] = outcome.record
            self.view.finished(config, outcome)
        elif stop.requested() is None:  # only the machine of this run was stopped: continue on another
            self.waiting.appendleft(config)

    def show_events(self, config: RunConfig) -> None:
        """Show what the run has logged since the last call."""
        start = self.log_read[config.id()]
        if self.plan.fresh and start == 0 and not started_over(config, self.plan):
            return  # the log is still that of the run to be deleted
        for event, end in read_events(events_path(config, self.plan.out), start):
            self.log_read[config.id()] = end
            if event.get("event") == "started":
                self.view.started(config)
            elif (message := parse_event(event)) is not None:
                self.view.show(config, message)


def parse_event(event: dict[str, Any]) -> Progress | Notice | None:
    """The message that an event of the log was written for; None if there is none."""
    kind = event.get("event")
    if kind in ("continued", "warning"):
        return Notice(kind, str(event.get("text")))
    numbers = [event.get(name) for name in ("step", "steps", "loss", "eval_loss", "entropy_mae", "seconds")]
    if kind == "step" and all(isinstance(number, int | float) for number in numbers):
        return Progress(*numbers)  # type: ignore[arg-type]
    return None


def perform_task(config: RunConfig, plan: Plan) -> Outcome | Interrupted:
    """The Ray task, on some machine of the cluster. Nobody listens: the event log has every message."""
    with threads(THREADS), stop.catch_signals(announce=False):
        try:
            return perform(config, plan, lambda _: None, wait=True)
        except stop.Stopped as end:
            return Interrupted(end.number)


def connect(address: str | None) -> Any:
    """The ray module, connected to the cluster."""
    try:
        import ray
    except ImportError as error:
        raise BadInput("--engine ray needs the extra: pip install 'tunnel-bench[ray]'") from error
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # send no statistics
    host, _, port = (address or "").rpartition(":")
    if port.isdigit() and "//" not in host:  # ask first: Ray itself would try for minutes
        try:
            socket.create_connection((host, int(port)), timeout=10).close()
        except (OSError, OverflowError) as error:
            raise BadInput(f"no Ray cluster at {address}: {error}") from error
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, ValueError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[0]
        raise BadInput(f"no Ray cluster at {address or 'this machine'}: {reason}") from error
    for number, handler in handlers.items():
        signal.signal(number, handler)  # Ray has installed its own, which exits
    return ray


def check_room(nodes: list[dict[str, Any]], needs: dict[str, Any]) -> None:
    """A task that fits on no machine would wait for ever: refuse it now."""
    machines = [node["Resources"] for node in nodes if node["Alive"]]
    wanted = {"CPU": needs["num_cpus"], "GPU": needs["num_gpus"], "memory": needs.get("memory", 0)}
    if not any(all(machine.get(name, 0) >= amount for name, amount in wanted.items()) for machine in machines):
        largest = {name: max((machine.get(name, 0) for machine in machines), default=0) for name in wanted}
        raise BadInput(f"no machine of the cluster has room for a run: it needs {wanted}, the largest have {largest}")
