"""Runs in this process, one after the other."""

from __future__ import annotations

from dataclasses import replace

from bench import stop
from bench.config import RunConfig
from bench.device import cores, threads
from bench.engine.messages import Finished, Outcome
from bench.engine.perform import perform
from bench.engine.plan import Plan
from bench.engine.progress import View
from bench.records import RunRecord
from bench.run.keeper import Notice
from bench.run.train import Progress


def run_here(configs: list[RunConfig], plan: Plan, view: View) -> dict[str, RunRecord]:
    """Records by run id. Runs locked by another process are retried last, and then waited for."""
    finished: dict[str, RunRecord] = {}
    locked: list[RunConfig] = []
    for config in configs:
        outcome = _run(config, plan, view, wait=False)
        if isinstance(outcome, Finished):
            finished[config.id()] = outcome.record
            view.finished(config, outcome)
        else:
            locked.append(config)
            view.locked(config, outcome.owner)
    for config in locked:
        outcome = _run(config, replace(plan, fresh=False), view, wait=True)  # the other process has started it over
        assert isinstance(outcome, Finished)
        finished[config.id()] = outcome.record
        view.finished(config, outcome)
    return finished


def _run(config: RunConfig, plan: Plan, view: View, wait: bool) -> Outcome:
    def listen(message: Progress | Notice) -> None:
        view.show(config, message)

    stop.check()
    view.started(config)
    with threads(cores()):
        return perform(config, plan, listen, wait)
