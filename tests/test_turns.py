"""Seeds that share a process: the same bits as alone, and each ends in its own way."""

import signal
from dataclasses import asdict, replace

import pytest
from rich.console import Console

from bench import stop
from bench.board.rows import make_rankings
from bench.config import compose
from bench.device import cores, threads
from bench.engine import workers
from bench.engine.lock import lock
from bench.engine.messages import Finished, Interrupted, Locked, Refused
from bench.engine.perform import perform
from bench.engine.plan import Plan
from bench.engine.progress import View
from bench.records import Memory, Seconds
from bench.run.keeper import Pace
from bench.run.run import run_one
from bench.run.train import Progress

FEW = {"steps": 6, "sequences": 32}
SEEDS = (10, 11, 12, 13)
COSTS = ("seconds", "memory_bytes", "tokens_per_second", "platform", "notes", "commit", "dirty")


def four(arch="transformer", task="bijection", **change):
    return [compose("smoke", arch, task, seed, "cpu", {**FEW, **change}) for seed in SEEDS]


def bits(record):
    """Everything in it but what it cost: scores, curves and the hash of the weights."""
    data = {name: value for name, value in asdict(record).items() if name not in COSTS}
    return {**data, "loss_curve": [replace(look, seconds=0.0) for look in record.loss_curve]}


def alone(configs, count):
    """Each in a process of its own would be the same: only the number of threads can change a bit."""
    with threads(count):
        return [bits(run_one(config)[0]) for config in configs]


class Heard(list):
    """The end of a pipe that keeps what is sent: (run, message)."""

    def __init__(self, at_progress=lambda: None):
        super().__init__()
        self.at_progress = at_progress

    def send(self, said):
        self.append(said)
        if isinstance(said[1], Progress):
            self.at_progress()

    def last(self):
        return dict(self)


def work(configs, plan, heard):
    workers.work(workers.Job(configs, plan, wait=False, threads=1, gpu=None), heard)
    return [heard.last()[config.id()] for config in configs]


@pytest.mark.parametrize("arch", ["transformer", "lstm", "mlp"])
def test_a_run_has_the_same_bits_alone_and_beside_three_others(tmp_path, arch):
    configs = four(arch)
    with View(4, Console(quiet=True)) as view:
        done = workers.Workers(configs, Plan(tmp_path, per_gpu=4), view).run()
    together = [done[config.id()] for config in configs]
    assert [bits(record) for record in together] == alone(configs, cores())
    assert len({record.weights for record in together}) == 4
    note = "shared its process with 3 other runs, so has no time and no memory of its own"
    for record in together:
        assert (record.seconds, record.memory_bytes, record.tokens_per_second) == (Seconds(), Memory(), None)
        assert (record.notes, record.platform["neighbours"]) == ([note], 3)
    (ranking,) = make_rankings(together)
    (row,) = [row for row in ranking.rows if row.records]
    assert (row.seconds, row.peak_bytes) == (None, None)


def test_runs_of_other_settings_do_not_share_a_process(tmp_path):
    """Groups of at most per_gpu seeds of one row, in the order of the configs."""
    many = [*four(), *four("mlp")]
    found = workers.Workers(many[::2] + many[1::2], Plan(tmp_path, per_gpu=3), View(8, Console(quiet=True)))
    groups = []
    while found.waiting:
        groups.append([(config.arch, config.seed) for config in found.next_group()])
    assert groups == [
        [("transformer", 10), ("transformer", 12), ("transformer", 11)],
        [("mlp", 10), ("mlp", 12), ("mlp", 11)],
        [("transformer", 13)],
        [("mlp", 13)],
    ]


def test_a_signal_saves_all_of_them_and_each_continues_to_the_same_bits(tmp_path, monkeypatch):
    monkeypatch.setattr(stop, "_requested", None)
    configs, plan = four(), Plan(tmp_path, pace=Pace(steps=100, spare=0.0))
    stopped = work(configs, plan, Heard(lambda: stop.request(signal.SIGTERM)))
    assert stopped == [Interrupted(signal.SIGTERM)] * 4
    assert len(list(tmp_path.rglob("*.checkpoint-*"))) >= 4
    monkeypatch.setattr(stop, "_requested", None)
    heard = Heard()
    ended = work(configs, plan, heard)
    assert all(isinstance(message, Finished) for message in ended)
    assert sum("continuing" in getattr(message, "text", "") for _, message in heard) == 4
    assert [bits(message.record) for message in ended] == alone(configs, 1)


def test_one_that_is_locked_done_or_cannot_be_written_does_not_stop_the_others(tmp_path):
    locked, done, refused, _ = configs = four()
    plan = Plan(tmp_path)
    perform(done, plan, lambda _: None, wait=False)
    plan.record_path(refused).mkdir(parents=True)
    with lock(plan.record_path(locked).parent, locked.id()):
        ends = work(configs, plan, Heard())
    assert [type(end) for end in ends] == [Locked, Finished, Refused, Finished]
    assert [end.new for end in ends if isinstance(end, Finished)] == [False, True]
    assert "cannot write" in ends[2].reason


def test_a_process_that_dies_leaves_a_failed_record_of_each_run_that_was_not_done(tmp_path, monkeypatch):
    configs = four()
    perform(configs[1], Plan(tmp_path), lambda _: None, wait=False)
    monkeypatch.setattr(workers, "PRELOAD", [])
    found = workers.Workers(configs, Plan(tmp_path, per_gpu=4), View(4, Console(quiet=True)))
    start = found.start

    def start_and_kill(*rest, **more):
        start(*rest, **more)
        for worker in found.running.values():
            worker.process.kill()

    monkeypatch.setattr(found, "start", start_and_kill)
    records = found.run()
    reasons = [records[config.id()].error for config in configs]
    assert reasons == ["the process died (exit code -9)", None, *["the process died (exit code -9)"] * 2]
