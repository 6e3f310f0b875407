"""The same runs on a Ray cluster: one task a run, all of them writing to one folder that every machine sees.

A task is placed by what it needs (threads, a fraction of a GPU, memory). When its machine is lost Ray starts it again
elsewhere, and there it goes on from the run's checkpoint. What a person sees is read from the runs' own event logs, so
the view needs no channel of its own and survives any machine but the one it is on.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
from pathlib import Path
from typing import Any

import torch

from bench import stop
from bench.config import RunConfig
from bench.engine import POLL_SECONDS, Outcome, Plan, last_word, perform, started_over
from bench.log import events_path, read_events
from bench.progress import View
from bench.records import RunRecord
from bench.registry import BadInput
from bench.train import Progress

RETRIES = 5  # machines that one run may lose
THREADS = 1  # of one run


def run_on_ray(configs: list[RunConfig], plan: Plan, view: View) -> dict[str, RunRecord]:
    ray = connect(plan)
    needs: dict[str, Any] = {"num_cpus": THREADS, "num_gpus": plan.gpus, "max_retries": RETRIES}
    if plan.memory:
        needs["memory"] = plan.memory
    check_room(ray, needs)
    task = ray.remote(**needs)(_task)
    waiting = list(reversed(configs))
    running: dict[Any, RunConfig] = {}
    seen: dict[str, int] = {}
    finished: dict[str, RunRecord] = {}
    told = False
    try:
        while (waiting and stop.asked() is None) or running:
            while waiting and len(running) < plan.jobs and stop.asked() is None:
                config = waiting.pop()
                seen.setdefault(config.id(), 0 if plan.fresh else _size(events_path(config, plan.out)))
                running[task.remote(config, plan)] = config
            if stop.asked() is not None and not told:
                told = True
                for reference in running:  # as Ctrl-C there: finish the step, keep it. Once: a second leaves at once
                    ray.cancel(reference, force=False)
            done, _ = ray.wait(list(running), timeout=POLL_SECONDS)
            for config in running.values():
                seen[config.id()] = _show(config, plan, view, seen[config.id()])
            for reference in done:
                config = running.pop(reference)
                try:
                    record, where = ray.get(reference)
                except ray.exceptions.TaskCancelledError:
                    continue
                except ray.exceptions.RayError as error:
                    if stop.asked() is not None:
                        continue
                    cause = getattr(error, "cause", None)
                    if isinstance(cause, BadInput):
                        raise cause from None
                    record, where = last_word(config, plan.out, str(error).strip().splitlines()[-1])
                if record is None and stop.asked() is None:
                    waiting.append(config)  # its machine was told to stop: elsewhere, then
                elif record is not None:
                    finished[config.id()] = record
                    view.finished(config, record, where)
    finally:
        for reference in running:
            ray.cancel(reference, force=True)
        ray.shutdown()
    stop.check()
    return finished


def connect(plan: Plan) -> Any:
    try:
        import ray
    except ImportError as error:
        raise BadInput("--engine ray needs the extra: pip install 'tunnel-bench[ray]'") from error
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent anywhere
    host, _, port = (plan.address or "").rpartition(":")
    if port.isdigit() and "//" not in host:  # Ray itself would try for minutes
        try:
            socket.create_connection((host, int(port)), timeout=10).close()
        except (OSError, OverflowError) as error:
            raise BadInput(f"no Ray cluster at {plan.address}: {error}") from error
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        ray.init(address=plan.address, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, ValueError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[0]
        raise BadInput(f"no Ray cluster at {plan.address or 'this machine'}: {reason}") from error
    for number, handler in handlers.items():
        signal.signal(number, handler)  # Ray has put one of its own in its place, which ends the process
    return ray


def check_room(ray: Any, needs: dict[str, Any]) -> None:
    """A task that fits nowhere would wait for ever: say so now."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    asked = {"CPU": needs["num_cpus"], "GPU": needs["num_gpus"], "memory": needs.get("memory", 0)}
    if not any(all(node.get(name, 0) >= amount for name, amount in asked.items()) for node in nodes):
        largest = {name: max((node.get(name, 0) for node in nodes), default=0) for name in asked}
        ray.shutdown()
        raise BadInput(f"no machine of the cluster has room for a run: it takes {asked}, the largest have {largest}")


def _task(config: RunConfig, plan: Plan) -> Outcome:
    """On some machine of the cluster."""
    torch.set_num_threads(THREADS)
    with stop.watched(aloud=False):
        try:
            return perform(config, plan, _nobody, _nobody, patient=True)
        except stop.Stopped:
            return Outcome(None, "stopped")


def _nobody(_: object) -> None:
    """Listens to nothing: the event log has it."""


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _show(config: RunConfig, plan: Plan, view: View, place: int) -> int:
    """Tell the view what the run's log has to say since the last look."""
    path = events_path(config, plan.out)
    if plan.fresh and place == 0 and not started_over(path, plan):
        return 0  # the log of the run that is to be forgotten
    for event, following in read_events(path, place):
        place = following
        if event.get("event") == "started":
            view.started(config)
        elif event.get("event") in ("continued", "warning"):
            view.say(f"  {event.get('text')}")
        elif event.get("event") == "step":
            numbers = [event.get(name) for name in ("step", "steps", "loss", "eval_loss", "entropy_mae", "seconds")]
            if all(isinstance(number, int | float) for number in numbers):
                view.stepped(config, Progress(*numbers))  # type: ignore[arg-type]
    return place
