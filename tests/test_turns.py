"""Seeds that share a process: the same bits as alone, and each ends in its own way."""

import multiprocessing
import os
import signal
import struct
from dataclasses import asdict, replace

import pytest
import torch
from rich.console import Console

from bench import stop
from bench.board import submissions
from bench.board.rows import make_rankings
from bench.check import verify
from bench.config import compose
from bench.device import cores, threads
from bench.engine import workers
from bench.engine.lock import lock
from bench.engine.messages import Finished, Interrupted, Locked, Refused
from bench.engine.perform import finish_lost, perform
from bench.engine.plan import Plan
from bench.engine.progress import View
from bench.records import BadRecord, Memory, Seconds, read
from bench.registry import BadInput
from bench.run.keeper import Pace
from bench.run.run import run_one
from bench.run.train import Progress

FEW = {"steps": 6, "sequences": 32}
SEEDS = (10, 11, 12, 13)
COSTS = ("seconds", "memory_bytes", "tokens_per_second", "notes", "commit", "dirty")


def four(arch="transformer", task="bijection", **change):
    return [compose("smoke", arch, task, seed, "cpu", {**FEW, **change}) for seed in SEEDS]


def bits(record):
    """Everything in it but what it cost: scores, curves and the hash of the weights."""
    data = {name: value for name, value in asdict(record).items() if name not in COSTS}
    return {**data, "loss_curve": [replace(look, seconds=None) for look in record.loss_curve]}


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


def require_untimed(record):
    assert record.notes == ["shared its process with other seeds, so has no time and no memory of its own"]
    assert (record.seconds, record.memory_bytes, record.tokens_per_second) == (Seconds(), Memory(), None)
    assert {look.seconds for look in record.loss_curve} == {None}


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
    for record in together:
        require_untimed(record)
    (ranking,) = make_rankings(together)
    (row,) = [row for row in ranking.rows if row.records]
    assert (row.seconds, row.peak_bytes) == (None, None)


def test_runs_of_other_settings_do_not_share_a_process(tmp_path):
    """Groups of at most per_gpu seeds of one row, in the order of the configs."""
    many = [*four(), *four("mlp")]
    assert groups(tmp_path, many[::2] + many[1::2], jobs=1, per_gpu=3) == [
        [("transformer", 10), ("transformer", 12), ("transformer", 11)],
        [("mlp", 10), ("mlp", 12), ("mlp", 11)],
        [("transformer", 13)],
        [("mlp", 13)],
    ]


def test_no_place_stays_empty_while_others_have_several_runs(tmp_path):
    assert [len(group) for group in groups(tmp_path, four(), jobs=4, per_gpu=4)] == [1, 1, 1, 1]
    assert [len(group) for group in groups(tmp_path, four(), jobs=2, per_gpu=4)] == [2, 2]
    assert [len(group) for group in groups(tmp_path, four(), jobs=3, per_gpu=2)] == [2, 1, 1]


def groups(folder, configs, jobs, per_gpu):
    found = workers.Workers(configs, Plan(folder, jobs=jobs, per_gpu=per_gpu), View(8, Console(quiet=True)))
    made = []
    while found.waiting:
        made.append([(config.arch, config.seed) for config in found.next_group()])
        if len(found.running) < jobs - 1:
            found.running[len(made)] = made[-1]
    return made


def test_they_take_turns_step_by_step(tmp_path):
    """Every look at step n of one seed comes before any look at step n + 1 of another."""
    configs, heard = four(), Heard()
    work(configs, Plan(tmp_path), heard)
    looks = [(message.step, run) for run, message in heard if isinstance(message, Progress)]
    assert looks == [(step, config.id()) for step in range(1, 7) for config in configs]


def test_each_keeps_the_number_of_threads_that_it_was_continued_with(tmp_path, monkeypatch):
    """As in a process of its own; a checkpoint brings its number."""
    seen = []

    def steps(config, *_):
        torch.set_num_threads(1 + config.seed % 2)
        for _ in range(3):
            yield
            seen.append((config.seed, torch.get_num_threads()))
        return Locked("nobody")

    monkeypatch.setattr(workers, "perform_in_turns", steps)
    work(four(), Plan(tmp_path), Heard())
    assert set(seen) == {(10, 1), (11, 2), (12, 1), (13, 2)}


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
    require_untimed(ended[0].record)
    assert [bits(message.record) for message in ended] == alone(configs, 1)


def test_what_was_timed_beside_others_is_not_timed_when_it_goes_on_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(stop, "_requested", None)
    configs = four()
    work(configs, Plan(tmp_path), Heard(lambda: stop.request(signal.SIGTERM)))
    monkeypatch.setattr(stop, "_requested", None)
    require_untimed(perform(configs[1], Plan(tmp_path), lambda _: None, wait=False).record)


def test_its_record_is_checked_bit_by_bit_and_may_be_sent_in(tmp_path):
    (config, *_), heard = four(), Heard()
    work(four(), Plan(tmp_path), heard)
    record = heard.last()[config.id()].record
    found = verify.verify(tmp_path / record.path, rerun=True)
    assert (found.holds, found.how.endswith("every number equal")) == (True, True)
    submissions._check_costs(record)
    timed = replace(record, seconds=Seconds(setup=1.0, train=1.0, eval=1.0))
    for wrong in (timed, replace(record, notes=[])):
        with pytest.raises(BadRecord, match="seconds of setup, train or eval"):
            submissions._check_costs(wrong)


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


def test_an_old_record_is_no_outcome_of_a_process_that_died_before_it_started_over(tmp_path):
    config = four()[0]
    perform(config, Plan(tmp_path), lambda _: None, wait=False)
    assert finish_lost(config, Plan(tmp_path), "died").record.ok
    assert finish_lost(config, Plan(tmp_path, fresh=True), "died").record.error == "died"
    assert read(Plan(tmp_path).record_path(config)).ok  # and it is not lost with the process


def test_a_process_that_was_only_asked_to_stop_has_not_failed(tmp_path, monkeypatch):
    found = workers.Workers(four(), Plan(tmp_path), View(4, Console(quiet=True)))
    monkeypatch.setattr(workers, "PRELOAD", [])
    found.start([found.waiting.popleft()], found.plan, wait=False)
    found.refused = BadInput("another run cannot be written")
    (connection,) = found.running
    found.terminate()
    while found.running:
        found.receive(connection)
    assert not found.finished
    assert not list(tmp_path.rglob("*.json"))


def test_a_message_that_breaks_off_is_that_of_a_dead_process(tmp_path, monkeypatch):
    monkeypatch.setattr(workers, "PRELOAD", [])
    config = four()[0]
    found = workers.Workers([config], Plan(tmp_path), View(1, Console(quiet=True)))
    found.start([found.waiting.popleft()], found.plan, wait=False)
    (worker,) = found.running.values()
    worker.process.kill()
    worker.process.join()
    ours, theirs = multiprocessing.Pipe(duplex=False)
    os.write(theirs.fileno(), struct.pack("!i", 100) + b"the first part")
    theirs.close()
    found.running = {ours: worker}
    found.receive(ours)
    assert found.finished[config.id()].error == "the process died (exit code -9)"
