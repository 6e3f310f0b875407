"""The command as a process: stopped from outside, and two of them in one folder."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter

import pytest

from bench.engine.events import read_events
from bench.records import read_all
from bench.run.checkpoint import parse

BENCH = [sys.executable, "-c", "import sys; from bench.cli import main; sys.exit(main())"]
FEW = ["sequences=16", "horizons=20", "layers=1", "width=16"]


def start(folder, *words):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [*BENCH, "run", "--preset", "smoke", *words, "--out", str(folder)], env=environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip


def events(folder):
    return [event for path in folder.rglob("*.events.jsonl") for event, _ in read_events(path)]


def wait_for_steps(folder, runs):
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        stepping = [p for p in folder.rglob("*.events.jsonl") if any(e["event"] == "step" for e, _ in read_events(p))]
        if len(stepping) >= runs:
            return
        time.sleep(0.02)
    pytest.fail(f"{runs} runs did not get going")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("jobs", [1, 2])
def test_a_signal_keeps_every_run_under_way_and_the_command_goes_on(tmp_path, number, code, jobs):
    words = ["--arch", "mlp-pointwise", "--task", "bijection", "--seeds", "2", "--jobs", str(jobs)]
    goes_on = jobs == 2 and number == signal.SIGINT
    words += ["--set", f"steps={3_000 if goes_on else 1_000_000}", *FEW]  # long enough to be under way when it is told
    process = start(tmp_path, *words)
    wait_for_steps(tmp_path, jobs)
    os.killpg(process.pid, number)  # to the whole group, as a terminal does
    _, err = process.communicate(timeout=120)
    assert process.returncode == code, err
    assert "Traceback" not in err
    assert "bench: stopped; finished runs are saved, active ones at their last step" in err
    last: dict[str, int] = {}  # a slow machine has time for an earlier checkpoint, too
    for path in tmp_path.rglob("*.checkpoint-*"):
        run = path.name.split(".")[0]
        last[run] = max(last.get(run, 0), parse(path.read_bytes())[0]["step"])
    stopped = [event["step"] for event in events(tmp_path) if event["event"] == "stopped"]
    assert len(stopped) == jobs
    assert sorted(last.values()) == sorted(stopped)
    assert not list(tmp_path.rglob("*.json"))
    if goes_on:
        process = start(tmp_path, *words)
        out, err = process.communicate(timeout=200)
        assert process.returncode == 0, err
        assert out.count("  continuing ") == 2
        assert len(list(tmp_path.rglob("*.json"))) == 2
        assert not list(tmp_path.rglob("*.checkpoint-*"))


def test_fresh_forgets_no_run_before_its_turn(tmp_path):
    words = ["--arch", "mlp-pointwise", "--task", "bijection", "--seeds", "4", "--jobs", "2"]
    words += ["--set", "steps=400", *FEW]
    process = start(tmp_path, *words)
    assert process.wait(timeout=200) == 0
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.json")}
    assert len(before) == 4
    process = start(tmp_path, *words, "--fresh")
    deadline = time.monotonic() + 120
    while all(path.exists() for path in before) and time.monotonic() < deadline:
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert "the same command without --fresh continues them" in err
    untouched = [path for path, time in before.items() if path.exists() and path.stat().st_mtime_ns == time]
    assert len(untouched) in (2, 3)  # of the two that were under way, both or one had begun


def test_two_commands_in_one_folder_lose_and_tear_nothing(tmp_path):
    words = ["--arch", "mlp-pointwise", "mlp", "--task", "bijection", "--seeds", "25", "--jobs", "1"]
    both = [start(tmp_path, *words, "--set", "steps=2", *FEW) for _ in range(2)]
    for process in both:
        _, err = process.communicate(timeout=300)
        assert process.returncode == 0, err
        assert err == ""
    found, problems = read_all(tmp_path)
    assert (len(found), problems) == (50, [])
    assert all(record.status == "ok" for record in found)
    assert Counter(event["event"] for event in events(tmp_path))["finished"] == 50  # none was run twice
    suffixes = Counter(path.name.split(".", 1)[1] for path in tmp_path.rglob("*.*") if path.parent != tmp_path)
    assert suffixes == {"json": 50, "safetensors": 50, "events.jsonl": 50}
    starters = {json.dumps(event["config"]) for event in events(tmp_path) if event["event"] == "started"}
    assert len(starters) == 50
