"""run_all: carry out a list of configs, in this process, in worker processes or on Ray.

Every run writes its record as soon as it ends, so an interruption loses no finished run. A run that has a record is not
run again, unless it failed. An interrupted run continues from its checkpoint. A run that another process has locked is
retried last, and then waited for. With --fresh, what a run left behind is deleted when its turn comes, not before.
"""

from __future__ import annotations

from rich.console import Console

from bench.config import RunConfig
from bench.engine.local import run_here
from bench.engine.messages import Finished
from bench.engine.plan import Plan
from bench.engine.progress import View
from bench.engine.workers import Workers
from bench.records import BadRecord, RunRecord, read
from bench.run.keeper import Keeper
from bench.run.snapshots import Snapshots


def run_all(configs: list[RunConfig], plan: Plan, console: Console) -> list[RunRecord]:
    """All records, in the order of the configs."""
    finished: dict[str, RunRecord] = {}
    with View(len(configs), console, plan.verbose) as view:
        waiting = []
        for config in configs:
            record = None if plan.fresh else find_finished(config, plan, view)
            if record is None:
                waiting.append(config)
            else:
                finished[config.id()] = record
        if waiting:
            finished |= run_waiting(waiting, plan, view)
    return [finished[config.id()] for config in configs]


def run_waiting(configs: list[RunConfig], plan: Plan, view: View) -> dict[str, RunRecord]:
    if plan.engine == "ray":
        from bench.engine.cluster import run_on_ray  # needs an optional package

        return run_on_ray(configs, plan, view)
    if len(configs) == 1 or (plan.jobs == 1 and configs[0].device == "cpu"):
        return run_here(configs, plan, view)
    # on a GPU a process each, even with one at a time: a run's memory and its errors end with its process
    return Workers(configs, plan, view).run()


def find_finished(config: RunConfig, plan: Plan, view: View) -> RunRecord | None:
    """The record of a run that needs no more work. The view prints a note about it."""
    path = plan.record_path(config)
    if not path.exists():
        return None
    try:
        record = read(path)
    except BadRecord as problem:
        view.note(f"{path} is damaged ({problem}): running it again")
        return None
    if record.status != "ok":
        view.note(f"{path} failed before ({record.error}): running it again")
        return None
    Keeper(config, path.parent).remove()  # left over if a process was killed right after it wrote the record
    view.finished(config, Finished(record, path, new=False))
    if code := config.newer_code(path):
        view.note(f"{code} has changed since; use --fresh to train again with the new code")
    if plan.snapshots and Snapshots(path, config.steps, plan.snapshots).missing():
        view.note("this run has no such snapshots; use --fresh to train again and keep them")
    return record
