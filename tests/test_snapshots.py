"""Snapshots: kept beside the record, without a trace in it."""

import hashlib
from dataclasses import asdict

import pytest
import safetensors.torch

from bench import stop
from bench.cli import main
from bench.engine.perform import perform
from bench.engine.plan import Plan
from bench.records import read, record_files
from bench.report import report
from bench.run import keeper
from bench.run.keeper import Keeper, Notice, Pace
from bench.run.run import run_one
from bench.run.snapshots import Snapshots, find
from bench.run.train import Progress
from bench.statements import EARLIER

MEASURED = ("seconds", "tokens_per_second", "memory_bytes", "loss_curve")
SMOKE = ["run", "--arch", "mlp-pointwise", "--task", "hmm", "--preset", "smoke"]


def silent(_):
    pass


def result(record):
    return {name: value for name, value in asdict(record).items() if name not in MEASURED}


@pytest.mark.parametrize(
    ("steps", "count", "expected"),
    [(100, 3, [1, 10, 100]), (12, 4, [1, 3, 6, 12]), (600, 1, [600]), (1, 5, [1]), (3, 10**15, [1, 2, 3])],
)
def test_snapshots_are_spaced_half_evenly_in_log_step_and_half_in_step(tmp_path, steps, count, expected):
    assert Snapshots(tmp_path / "x.json", steps, count).steps == expected


def test_the_last_snapshots_lie_near_enough_to_tell_what_settles_first(tmp_path):
    steps = Snapshots(tmp_path / "x.json", 700, 12).steps
    assert len(steps) == 12
    assert steps[-1] / steps[-2] < EARLIER


def test_a_run_with_snapshots_has_the_same_bits_and_the_last_one_is_the_model(smoke, tmp_path):
    config = smoke(steps=12)
    plain, weights = run_one(config)
    record = perform(config, Plan(tmp_path, snapshots=4), silent, wait=False).record
    assert result(record) == result(plain)
    path = tmp_path / record.path
    assert path.with_suffix(".safetensors").read_bytes() == weights
    kept = find(path)
    assert [step for step, _ in kept] == [1, 3, 6, 12]
    assert kept[-1][1].read_bytes() == weights
    early = safetensors.torch.load(kept[0][1].read_bytes())
    assert early.keys() == safetensors.torch.load(weights).keys()
    assert hashlib.sha256(kept[0][1].read_bytes()).hexdigest() != hashlib.sha256(weights).hexdigest()
    assert report.load(path).snapshots == kept


def test_a_run_that_goes_on_keeps_the_same_snapshots(smoke, tmp_path, monkeypatch):
    monkeypatch.setattr(keeper, "PACE", Pace(steps=2, spare=0.0))
    config = smoke(steps=12)
    whole = perform(config, Plan(tmp_path / "whole", snapshots=6), silent, wait=False).record

    def interrupt(message):
        if isinstance(message, Progress) and message.step == 7:
            stop.request(15)

    with stop.catch_signals(announce=False), pytest.raises(stop.Stopped):
        perform(config, Plan(tmp_path / "cut", snapshots=6), interrupt, wait=False)
    messages = []
    record = perform(config, Plan(tmp_path / "cut", snapshots=6), messages.append, wait=False).record
    assert [message.event for message in messages if isinstance(message, Notice)] == ["continued"]
    first, second = (
        [path.read_bytes() for _, path in find(tmp_path / name / record.path)] for name in ("whole", "cut")
    )
    assert first == second
    assert result(record) == result(whole)


def test_snapshots_that_were_asked_for_too_late_are_named(smoke, tmp_path):
    config = smoke(steps=12)
    messages = []

    def interrupt(message):
        if isinstance(message, Progress) and message.step == 7:
            stop.request(15)

    with stop.catch_signals(announce=False), pytest.raises(stop.Stopped):
        perform(config, Plan(tmp_path), interrupt, wait=False)
    record = perform(config, Plan(tmp_path, snapshots=4), messages.append, wait=False).record
    assert messages[1] == Notice("warning", "no snapshots were kept at steps 1, 3, 6; --fresh would keep them")
    assert [step for step, _ in find(tmp_path / record.path)] == [12]


def test_a_finished_run_without_snapshots_says_so_and_fresh_keeps_and_forgets_them(tmp_path, capsys):
    out = ["--out", str(tmp_path)]
    assert main([*SMOKE, *out]) == 0
    assert main([*SMOKE, *out, "--checkpoints", "5"]) == 0
    assert "this run has no such snapshots; use --fresh to train again and keep them" in capsys.readouterr().out
    (path,) = record_files(tmp_path)
    assert find(path) == ()
    assert main([*SMOKE, *out, "--checkpoints", "5", "--fresh"]) == 0
    assert len(find(path)) == 5
    capsys.readouterr()
    assert main([*SMOKE, *out, "--checkpoints", "5"]) == 0
    assert "no such snapshots" not in capsys.readouterr().out
    assert main([*SMOKE, *out, "--fresh"]) == 0
    assert find(path) == ()
    assert not path.with_suffix(".snapshots").exists()


def test_a_count_below_one_is_refused(tmp_path, capsys):
    assert main([*SMOKE, "--out", str(tmp_path), "--checkpoints", "0"]) == 2
    assert "--checkpoints must be at least 1, not 0" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_run_writes_reports_that_no_reader_of_records_takes_for_one(tmp_path, capsys):
    assert main([*SMOKE, "--out", str(tmp_path), "--checkpoints", "6", "--report"]) == 0
    (path,) = record_files(tmp_path)
    assert f"wrote {path.with_suffix('')}/report.md" in capsys.readouterr().out.replace("\n", "")
    assert (path.with_suffix("") / "report.json").exists()
    assert "## What settles first in training?" in (path.with_suffix("") / "report.md").read_text()
    assert main(["board", "--runs", str(tmp_path)]) == 0
    assert main(["verify", str(tmp_path)]) == 0
    seen = capsys.readouterr()
    assert "skipped" not in seen.err
    assert "1 hold, 0 do not, 0 not verified" in seen.out
    assert read(path).status == "ok"


def test_a_keeper_without_a_folder_keeps_nothing(smoke):
    assert Keeper(smoke(), keep=5).snapshots is None
