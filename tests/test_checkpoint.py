"""Nothing is lost: a run that was interrupted, however, ends as if it had not been."""

import contextlib
import io
import json
import multiprocessing
import os
import random
import signal
import threading
import time
from dataclasses import asdict, replace
from itertools import pairwise

import pytest
import torch
from rich.console import Console

from bench import stop
from bench.config import compose
from bench.engine.dispatch import run_all
from bench.engine.lock import lock
from bench.engine.messages import Finished
from bench.engine.perform import finish_lost, perform
from bench.engine.plan import Plan
from bench.engine.workers import PRELOAD
from bench.records import CannotWrite, read, write
from bench.run import keeper as keeper_module
from bench.run.checkpoint import BadCheckpoint, parse
from bench.run.keeper import Keeper, Notice, Pace
from bench.run.run import make_model, run_one
from bench.run.train import Progress, backward, draw, fit, make_optimizers
from bench.run.turns import finish

OFTEN = Pace(steps=2, spare=0.0)
MEASURED = ("seconds", "tokens_per_second", "memory_bytes")  # what differs from one time to the next


def result(record):
    data = {name: value for name, value in asdict(record).items() if name not in MEASURED}
    data["loss_curve"] = [replace(look, seconds=0.0) for look in record.loss_curve]
    return data


def silent(_):
    pass


@pytest.fixture
def often(monkeypatch):
    """A checkpoint after every second step, whatever it costs."""
    monkeypatch.setattr(keeper_module, "PACE", OFTEN)


class Cut(BaseException):
    """The power goes."""


def run_until(config, folder, step):
    """Train with checkpoints until the power goes after a step."""
    keeper = Keeper(config, folder)
    stepped = keeper.stepped

    def cut(model, optimizers, complete):
        stepped(model, optimizers, complete)
        if keeper.at.step == step:
            raise Cut

    keeper.stepped = cut
    with pytest.raises(Cut):
        run_one(config, silent, keeper)
    return keeper


@pytest.mark.parametrize(("arch", "optimizer"), [("transformer", "muon"), ("mlp", "adamw"), ("transformer", "adamw")])
def test_a_run_that_goes_on_ends_with_the_same_bits(smoke, tmp_path, often, arch, optimizer):
    config = smoke(arch=arch, task="hmm", steps=41, optimizer=optimizer)  # evaluated every two steps, several blocks
    whole, whole_weights = run_one(config)
    for step in (1, 17, 32, 40):
        run_until(config, tmp_path, step)
        said = []
        record, weights = run_one(config, silent, Keeper(config, tmp_path, said.append))
        assert weights == whole_weights
        assert result(record) == result(whole)
        if step > 1:
            assert f"at step {step - step % 2} of 41" in said[0].text
        Keeper(config, tmp_path).remove()
        assert list(tmp_path.iterdir()) == []


def test_a_damaged_checkpoint_is_named_and_the_one_before_it_used(smoke, tmp_path, often):
    config = smoke(steps=12)
    whole, whole_weights = run_one(config)
    run_until(config, tmp_path, 8)
    steps = {path: parse(path.read_bytes())[0]["step"] for path in tmp_path.iterdir()}
    assert sorted(steps.values()) == [6, 8]
    newest = max(steps, key=steps.get)
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 1  # one bit
    newest.write_bytes(content)
    said = []
    record, weights = run_one(config, silent, Keeper(config, tmp_path, said.append))
    assert said[0] == Notice("warning", f"{newest} is damaged and not used: its checksum is wrong")
    assert said[1].event == "continued"
    assert "at step 6 of 12" in said[1].text
    assert weights == whole_weights
    assert result(record) == result(whole)


def test_with_no_whole_checkpoint_a_run_starts_at_the_beginning(smoke, tmp_path, often):
    config = smoke(steps=12)
    run_until(config, tmp_path, 8)
    for path in tmp_path.iterdir():
        path.write_bytes(path.read_bytes()[:-1])
    said = []
    _, weights = run_one(config, silent, Keeper(config, tmp_path, said.append))
    assert weights == run_one(config)[1]
    assert len(said) == 2
    assert all(notice.event == "warning" and "is damaged" in notice.text for notice in said)


def test_a_checkpoint_of_another_run_is_refused(smoke, tmp_path, often):
    config, other = smoke(steps=12), smoke(steps=12, seed=1)
    run_until(other, tmp_path, 4)
    for path in list(tmp_path.iterdir()):
        path.rename(tmp_path / path.name.replace(other.id(), config.id()))
    said = []
    _, weights = run_one(config, silent, Keeper(config, tmp_path, said.append))
    assert f"it belongs to run {other.id()}" in said[0].text
    assert weights == run_one(config)[1]


def test_a_pickle_is_refused_and_never_loaded(smoke, tmp_path):
    class Trap:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "executed"),)

    torch.save(Trap(), tmp_path / "trap")
    with pytest.raises(BadCheckpoint, match=r"truncated|not a checkpoint"):
        parse((tmp_path / "trap").read_bytes())
    assert not (tmp_path / "executed").exists()


def test_a_first_signal_keeps_the_step_and_leaves(smoke, tmp_path):
    config = smoke(steps=12)
    for number in (signal.SIGINT, signal.SIGTERM):
        keeper = Keeper(config, tmp_path)

        def interrupt(progress, number=number):
            if progress.step == 5:
                os.kill(os.getpid(), number)

        with stop.catch_signals(announce=False), pytest.raises(stop.Stopped) as end:
            run_one(config, interrupt, keeper)
        assert end.value.number == number
        assert [parse(path.read_bytes())[0]["step"] for path in tmp_path.iterdir()] == [5]
        keeper.remove()


def test_a_second_ctrl_c_leaves_at_once():
    with stop.catch_signals(announce=False):
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt) as end:
            os.kill(os.getpid(), signal.SIGINT)
    assert not isinstance(end.value, stop.Stopped)


def test_a_batch_that_does_not_fit_is_split_with_the_same_gradient(smoke, monkeypatch):
    """A fake device that holds six sequences: the gradient is the whole batch's, and the record says so."""
    config = smoke(batch=16, steps=3)
    model, task = make_model(config), config.make_task()
    batch, answer = next(draw(task, config))
    backward(model, batch, answer, 1)
    whole = [p.grad.clone() for p in model.parameters()]
    for parts in (2, 5, 16):
        model.zero_grad()
        backward(model, batch, answer, parts)
        for p, gradient in zip(model.parameters(), whole, strict=True):
            torch.testing.assert_close(p.grad, gradient, rtol=1e-4, atol=1e-6)
    forward = type(model).forward

    def crowded(self, tokens, features):
        if self.training and torch.is_grad_enabled() and 6 < len(tokens) <= 16:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. More words")
        return forward(self, tokens, features)

    monkeypatch.setattr("bench.run.run.step_flops", lambda *_: 1)
    plain, _ = run_one(config)
    monkeypatch.setattr(type(model), "forward", crowded)
    record, _ = run_one(config)
    assert record.status == "ok"
    assert record.notes == [
        "out of memory at step 1 (CUDA out of memory): the batch goes in 2 parts",
        "out of memory at step 1 (CUDA out of memory): the batch goes in 4 parts",
    ]
    assert record.metrics["20"]["all"]["kl"] == pytest.approx(plain.metrics["20"]["all"]["kl"], rel=1e-3)
    assert plain.notes == []


def test_memory_that_ends_while_gradients_are_clipped_cuts_the_batch(smoke, monkeypatch):
    clip, calls = torch.nn.utils.clip_grad_norm_, []

    def crowded(*arguments, **settings):
        calls.append(1)
        if len(calls) == 1:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried")
        return clip(*arguments, **settings)

    monkeypatch.setattr("bench.run.run.step_flops", lambda *_: 1)
    monkeypatch.setattr("torch.nn.utils.clip_grad_norm_", crowded)
    record, _ = run_one(smoke(batch=4, steps=2))
    assert record.status == "ok"
    assert record.notes == ["out of memory at step 1 (CUDA out of memory): the batch goes in 2 parts"]


def test_one_sequence_that_does_not_fit_is_a_failed_record(smoke, monkeypatch):
    def full(*_):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried")

    monkeypatch.setattr("bench.run.run.step_flops", lambda *_: 1)
    monkeypatch.setattr("bench.run.train.loss_nats", full)
    record, _ = run_one(smoke(batch=4))
    assert record.status == "failed"
    assert record.error == "BatchTooLarge: CUDA out of memory"


@pytest.mark.parametrize("problem", ["No space left on device", "Read-only file system", "gone"])
def test_a_folder_that_cannot_be_written_is_one_line_and_stays_consistent(smoke, tmp_path, often, monkeypatch, problem):
    config = smoke(steps=12)
    folder = tmp_path / config.task / config.arch
    fsync = os.fsync
    calls = []

    def full(handle):
        calls.append(handle)
        if len(calls) == 3 and problem == "gone":
            for path in folder.iterdir():
                path.unlink()
            folder.rmdir()
        elif len(calls) == 3:
            raise OSError(28, problem)
        fsync(handle)

    monkeypatch.setattr(os, "fsync", full)
    expected = "No such file or directory" if problem == "gone" else problem
    with pytest.raises(CannotWrite, match=f"cannot write .*checkpoint-a.safetensors: {expected}"):
        perform(config, Plan(tmp_path, pace=OFTEN), silent, wait=False)
    left = sorted(path.name.split(".", 1)[1] for path in folder.iterdir()) if folder.exists() else []
    whole = ["checkpoint-a.safetensors", "checkpoint-b.safetensors", "events.jsonl"]
    assert left == ([] if problem == "gone" else whole)
    record = perform(config, Plan(tmp_path, pace=OFTEN), silent, wait=False).record
    assert result(record) == result(run_one(config)[0])


def test_a_locked_run_is_left_to_its_owner_and_a_dead_owner_has_no_lock(smoke, tmp_path):
    with lock(tmp_path, "abc") as owner:
        assert owner is None
        with lock(tmp_path, "abc") as second:
            assert second.startswith(f"process {os.getpid()} on ")
        with lock(tmp_path, "abd") as other:
            assert other is None
    assert list(tmp_path.iterdir()) == []
    child = multiprocessing.get_context("forkserver").Process(target=hold, args=(tmp_path,))
    child.start()
    deadline = time.monotonic() + 60
    while not (tmp_path / "held").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    with lock(tmp_path, "abc") as owner:
        assert owner.startswith(f"process {child.pid} on ")
    child.kill()
    child.join()
    assert (tmp_path / ".abc.lock").exists()
    with lock(tmp_path, "abc") as owner:
        assert owner is None


def hold(folder):
    with lock(folder, "abc"):
        (folder / "held").touch()
        time.sleep(600)


def kept(config, out, halted_writes, channel):
    """A run in a process of its own, with a checkpoint every third step; may halt in the middle of every write."""
    torch.set_num_threads(1)
    fsync = os.fsync

    def halt(handle):
        channel.send("writing")
        assert channel.recv() == "go on"
        fsync(handle)

    if halted_writes:
        os.fsync = halt
    channel.send("started")
    perform(config, Plan(out, pace=Pace(steps=3, spare=0.0)), silent, wait=False)


def test_a_run_that_is_killed_at_any_moment_ends_with_the_same_bits(smoke, tmp_path):
    """SIGKILL at twenty random moments, ten of them in the middle of a write."""
    config = smoke(arch="mlp-pointwise", steps=40, layers=1, width=16, horizons=(20,), sequences=16)
    whole, whole_weights = run_one(config)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    rng = random.Random(0)
    begin = time.monotonic()
    perform(config, Plan(tmp_path / "timed"), silent, wait=False)
    length = time.monotonic() - begin
    killed_at = []
    for moment in range(20):
        out = tmp_path / str(moment)
        in_a_write = moment % 2 == 1
        ours, theirs = context.Pipe()
        process = context.Process(target=kept, args=(config, out, in_a_write, theirs))
        process.start()
        theirs.close()
        assert ours.recv() == "started"
        if in_a_write:
            for _ in range(rng.randrange(11)):
                assert ours.recv() == "writing"
                ours.send("go on")
            assert ours.recv() == "writing"
        else:
            time.sleep(rng.uniform(0, length))
        process.kill()
        process.join()
        folder = out / config.task / config.arch
        torn = [path for path in folder.glob(f".{config.id()}.*") if path.suffix != ".lock"]
        assert len(torn) == in_a_write or not in_a_write
        messages = []
        record = perform(config, Plan(out), messages.append, wait=False).record
        steps = [message.step for message in messages if isinstance(message, Progress)]
        killed_at.append(steps[0] if steps else None)
        assert result(record) == result(whole)
        assert (folder / f"{config.id()}.safetensors").read_bytes() == whole_weights
        assert sorted(p.name.split(".", 1)[1] for p in folder.iterdir()) == ["events.jsonl", "json", "safetensors"]
    assert len(set(killed_at)) > 4, killed_at  # the moments were different ones


def test_a_record_outlives_the_process_that_died_after_writing_it(smoke, tmp_path):
    config = smoke(arch="mlp-pointwise", steps=2)
    lost = finish_lost(config, Plan(tmp_path), "the process died")
    assert (lost.record.status, read(lost.path).error, lost.new) == ("failed", "the process died", True)
    good, weights = run_one(config)
    write(tmp_path, good, weights)
    assert finish_lost(config, Plan(tmp_path), "the process died") == Finished(good, tmp_path / good.path, new=False)
    assert read(tmp_path / good.path).status == "ok"


def test_a_run_lost_on_a_gpu_elsewhere_needs_none_here(tmp_path):
    config = compose("smoke", "mlp", "hmm", 0, "cuda", {})
    record = finish_lost(config, Plan(tmp_path), "the machine was lost").record
    assert record.platform["name"] == "unknown GPU" or torch.cuda.is_available()


def test_the_event_log_tells_the_story(smoke, tmp_path, often):
    config = smoke(steps=12)
    folder = tmp_path / config.task / config.arch

    def interrupt(message):
        if isinstance(message, Progress) and message.step == 5:
            stop.request(signal.SIGTERM)

    with stop.catch_signals(announce=False), pytest.raises(stop.Stopped):
        perform(config, Plan(tmp_path), interrupt, wait=False)
    perform(config, Plan(tmp_path, pace=OFTEN), silent, wait=False)
    lines = (folder / f"{config.id()}.events.jsonl").read_text().splitlines()
    events = [json.loads(line) for line in lines]
    kinds = [event["event"] for event in events]
    assert kinds == ["started", *["step"] * 5, "stopped", "started", "continued", *["step"] * 7, "finished"]
    assert [event["step"] for event in events if event["event"] == "step"] == list(range(1, 13))
    assert {"time", "loss", "lr", "entropy_mae"} <= events[1].keys()


def stop_at_three(config, out):
    def interrupt(message):
        if isinstance(message, Progress) and message.step == 3:
            stop.request(signal.SIGTERM)

    with stop.catch_signals(announce=False), pytest.raises(stop.Stopped):
        perform(config, Plan(out), interrupt, wait=False)


def test_a_run_that_goes_on_in_fewer_threads_notes_it(smoke, tmp_path, monkeypatch):
    config = smoke(steps=6)
    torch.set_num_threads(2)
    stop_at_three(config, tmp_path)
    monkeypatch.setattr("bench.run.keeper.cores", lambda: 1)
    record = perform(config, Plan(tmp_path), silent, wait=False).record
    assert record.notes == ["continued at step 3 with 1 threads instead of 2"]


def test_a_run_that_goes_on_with_changed_code_notes_it(smoke, tmp_path):
    config = smoke(steps=6)
    stop_at_three(config, tmp_path)
    for path in Keeper(config, tmp_path / config.task / config.arch).files:
        if path.exists():
            os.utime(path, (0, 0))
    record = perform(config, Plan(tmp_path), silent, wait=False).record
    assert record.notes == ["continued at step 3 after a change to models/transformer.py"]


def test_a_run_starts_over_once_a_command(smoke, tmp_path):
    """As on Ray, which gives a run whose machine was lost to another: there it goes on."""
    config = smoke(steps=12)
    whole = perform(config, Plan(tmp_path), silent, wait=False).record
    plan = Plan(tmp_path, fresh=True)

    def interrupt(message):
        if isinstance(message, Progress) and message.step == 5:
            stop.request(signal.SIGTERM)

    with stop.catch_signals(announce=False), pytest.raises(stop.Stopped):
        perform(config, plan, interrupt, wait=False)
    assert not (tmp_path / whole.path).exists()
    messages = []
    record = perform(config, plan, messages.append, wait=False).record
    assert messages[0].event == "continued"
    assert "at step 5 of 12" in messages[0].text
    assert result(record) == result(whole)
    assert not perform(config, plan, silent, wait=False).new
    assert perform(config, Plan(tmp_path, fresh=True), silent, wait=False).new


def test_a_run_that_another_process_is_at_is_not_started_over(smoke, tmp_path):
    config = smoke(steps=2)
    record = perform(config, Plan(tmp_path), silent, wait=False).record
    path = tmp_path / record.path
    before = path.stat().st_mtime_ns
    holding, output = contextlib.ExitStack(), io.StringIO()
    assert holding.enter_context(lock(path.parent, config.id())) is None
    release = threading.Timer(0.5, holding.close)
    release.start()
    run_all([config], Plan(tmp_path, fresh=True), Console(file=output, width=300))
    release.join()
    assert f"{config.id()} is not started over: locked by process {os.getpid()} on " in output.getvalue()
    assert "; retrying last" in output.getvalue()
    assert "already in" in output.getvalue()
    assert path.stat().st_mtime_ns == before


def test_what_cannot_be_forgotten_is_one_line(smoke, tmp_path, monkeypatch):
    config = smoke(steps=2)
    record = perform(config, Plan(tmp_path), silent, wait=False).record
    report = (tmp_path / record.path).with_suffix("")
    report.write_text("not a folder")
    with pytest.raises(CannotWrite, match=f"cannot remove .*{config.id()}: Not a directory"):
        perform(config, Plan(tmp_path, fresh=True), silent, wait=False)


@pytest.mark.parametrize("cost", [0.001, 0.5, 20.0])
def test_checkpoints_take_about_a_percent_of_the_time_and_come_regularly(smoke, tmp_path, monkeypatch, cost):
    """By a clock of our own: steps of 50 ms, and writes of a millisecond, of half a second, of twenty seconds."""
    config = smoke(steps=100_000)
    now, written = [0.0], []
    monkeypatch.setattr("time.monotonic", lambda: now[0])

    def write(path, content):
        now[0] += cost
        written.append(keeper.at.step)

    monkeypatch.setattr(keeper_module, "write_whole", write)
    monkeypatch.setattr(keeper_module, "pack", lambda *_: b"")
    keeper = Keeper(config, tmp_path)
    model = torch.nn.Linear(1, 1)
    for step in range(1, config.steps):
        now[0] += 0.05
        keeper.at.step = step
        keeper.stepped(model, [])
    assert cost * len(written) < 0.0125 * now[0]
    gaps = [b - a for a, b in pairwise([0, *written])]
    assert max(gaps) <= max(500, 101 * cost / 0.05)


def test_an_optimizer_whose_state_is_not_kept_would_be_noticed(smoke, tmp_path, often):
    """The law above can fail: forget one tensor of one optimizer, and the weights differ."""
    config = smoke(steps=12)
    keeper = run_until(config, tmp_path, 8)
    model = make_model(config)
    optimizers = make_optimizers(model, config)
    keeper = Keeper(config, tmp_path)
    keeper.restore(model, optimizers)
    momentum = next(iter(optimizers[-1].state.values()))["momentum"]
    assert momentum.abs().max() > 0
    restore = keeper.restore

    def forgetful(model, optimizers):
        at = restore(model, optimizers)
        next(iter(optimizers[-1].state.values()))["momentum"].zero_()
        return at

    keeper.restore = forgetful
    model = make_model(config)
    finish(fit(model, config.make_task(), config, silent, keeper))
    whole = make_model(config)
    finish(fit(whole, config.make_task(), config, silent))
    assert any(not torch.equal(a, b) for a, b in zip(model.parameters(), whole.parameters(), strict=True))


def test_a_checkpoint_between_watch_points_has_all_seconds_of_drawing(smoke, tmp_path, monkeypatch):
    """They are counted on the device, and read only where something is written down."""
    from bench.run.train import fit

    config = smoke(steps=100)
    read, total = iter(range(1, 1000)), []
    monkeypatch.setattr("bench.device.Stopwatch.read", lambda self: total.append(next(read)) or total[-1])
    keeper = Keeper(config, tmp_path, pace=Pace(steps=7, seconds=1e9, spare=0.0))
    run = fit(make_model(config), config.make_task(), config, lambda _: None, keeper)
    for _ in range(7):
        next(run)
    state, _ = parse(next(tmp_path.glob("*.checkpoint-*")).read_bytes())
    assert state["step"] == 7
    assert len(total) == 2  # the watch point at step 5, and the checkpoint
    assert state["data_seconds"] == sum(total)
