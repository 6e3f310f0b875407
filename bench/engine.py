"""Run a list of configs: one after the other here, or several at a time in processes of their own.

Every run writes its own record as soon as it ends, so nothing that was finished is lost with what was not. A record
that is there already is not run again; one that failed is.
"""

from __future__ import annotations

import multiprocessing
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from bench.config import RunConfig
from bench.device import cores, describe
from bench.progress import View
from bench.records import SCHEMA, BadRecord, RunRecord, read, write
from bench.run import run_one


def run_all(configs: list[RunConfig], out: Path, jobs: int, console: Console) -> list[RunRecord]:
    """All records, in the order of the configs."""
    finished: dict[str, RunRecord] = {}
    with View(len(configs), console) as view:
        waiting = []
        for config in configs:
            if record := existing(config, out, view):
                finished[config.id()] = record
                view.finished(config, record, f"already in {out / record.path}")
            else:
                waiting.append(config)
        if jobs == 1 or len(waiting) == 1:
            finished |= _run_here(waiting, out, view)
        elif waiting:
            finished |= _run_beside(waiting, out, min(jobs, len(waiting)), view)
    return [finished[config.id()] for config in configs]


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


def _run_here(configs: list[RunConfig], out: Path, view: View) -> dict[str, RunRecord]:
    finished = {}
    torch.set_num_threads(cores())
    for config in configs:
        view.started(config)
        record, weights = run_one(config, lambda step, config=config: view.stepped(config, step))  # type: ignore[misc]
        path = write(out, record, weights)
        view.finished(config, record, f"wrote {path}")
        finished[config.id()] = record
    return finished


@dataclass
class _Worker:
    config: RunConfig
    process: BaseProcess


def _run_beside(configs: list[RunConfig], out: Path, jobs: int, view: View) -> dict[str, RunRecord]:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["bench.run"])  # torch is imported once, before the threads that forking forbids
    threads = max(1, cores() // jobs)
    waiting = list(reversed(configs))
    workers: dict[Connection, _Worker] = {}
    finished: dict[str, RunRecord] = {}
    try:
        while waiting or workers:
            while waiting and len(workers) < jobs:
                config = waiting.pop()
                ours, theirs = context.Pipe(duplex=False)
                process = context.Process(target=_work, args=(config, out, threads, theirs), daemon=True)
                process.start()
                theirs.close()
                workers[ours] = _Worker(config, process)
                view.started(config)
            for channel in wait(list(workers)):
                assert isinstance(channel, Connection)
                worker = workers[channel]
                try:
                    kind, content = channel.recv()
                except EOFError:  # the process is gone, with or without a record
                    worker.process.join()
                    del workers[channel]
                    if worker.config.id() not in finished:
                        record = _lost(worker.config, worker.process.exitcode)
                        view.finished(worker.config, record, f"wrote {write(out, record, None)}")
                        finished[worker.config.id()] = record
                    continue
                if kind == "step":
                    view.stepped(worker.config, content)
                else:
                    finished[worker.config.id()] = content
                    view.finished(worker.config, content, f"wrote {out / content.path}")
    finally:
        for worker in workers.values():
            worker.process.terminate()
    return finished


def _work(config: RunConfig, out: Path, threads: int, channel: Connection) -> None:
    torch.set_num_threads(threads)
    record, weights = run_one(config, lambda step: channel.send(("step", step)))
    write(out, record, weights)
    channel.send(("record", record))


def _lost(config: RunConfig, exitcode: int | None) -> RunRecord:
    """The record of a run whose process died under it, for instance for want of memory."""
    nothing: dict[str, Any] = {}
    return RunRecord(
        schema=SCHEMA, id=config.id(), status="failed", error=f"the process died (exit code {exitcode})",
        config=config.to_json(), budget=config.budget(), parameters=None, state_bytes=None, train_flops=None,
        metrics=nothing, references=nothing, by_position=nothing, loss_curve=[], seconds=nothing,
        tokens_per_second=None, memory_bytes=nothing, energy_joules=None,
        platform=describe(config).to_json(), commit=None, dirty=None, weights=None,
    )  # fmt: skip
