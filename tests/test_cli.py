"""The commands as a user types them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.cli import main

ONE = ["run", "--arch", "mlp-pointwise", "--task", "bijection", "--preset", "smoke", "--set", "steps=2"]


@pytest.fixture
def bench(capsys, tmp_path, monkeypatch):
    """Run a command in an empty folder: exit code, what it said, what it complained of."""
    monkeypatch.chdir(tmp_path)

    def call(*words: str) -> tuple[int, str, str]:
        code = main([str(word) for word in words])
        said = capsys.readouterr()
        return code, said.out, said.err

    return call


def files(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


def test_run_writes_a_record_and_the_board(bench, tmp_path):
    code, out, err = bench(*ONE)
    assert (code, err) == (0, "")
    record = next((tmp_path / "results/bijection/mlp-pointwise").glob("*.json"))
    assert f"wrote results/bijection/mlp-pointwise/{record.name}" in out
    assert "parameters (budget" in out
    assert json.loads(record.read_text())["status"] == "ok"
    assert "mlp-pointwise" in (tmp_path / "results/leaderboard.md").read_text()
    assert len(files(tmp_path)) == 3


def test_a_run_that_is_there_is_not_run_again(bench, tmp_path):
    bench(*ONE)
    before = {name: (tmp_path / name).stat().st_mtime_ns for name in files(tmp_path) if "leaderboard" not in name}
    code, out, _ = bench(*ONE)
    assert code == 0
    assert "already in results" in out
    assert before == {name: (tmp_path / name).stat().st_mtime_ns for name in before}


def test_a_damaged_record_is_run_again_aloud(bench, tmp_path):
    bench(*ONE)
    record = next((tmp_path / "results").rglob("*.json"))
    whole = record.read_text()
    record.write_text(whole[:100])
    code, out, _ = bench(*ONE)
    assert code == 0
    assert "is damaged" in out
    assert json.loads(record.read_text())["metrics"] == json.loads(whole)["metrics"]


def test_several_values_make_a_grid_and_jobs_give_the_same_records(bench, tmp_path):
    grid = ["run", "--preset", "smoke", "--arch", "mlp", "mlp-pointwise", "--task", "hmm", "bijection", "--seeds", "2"]
    grid += ["--supervision", "posterior", "sampled", "--set", "steps=2"]
    assert bench(*grid, "--out", "beside", "--jobs", "2")[0] == 0
    made = [name for name in files(tmp_path / "beside") if name.endswith(".json")]
    assert len(made) == 2 * 2 * 2 * 2
    one = ["run", "--preset", "smoke", "--arch", "mlp", "--task", "hmm", "--set", "steps=2", "--out", "here"]
    assert bench(*one, "--jobs", "1")[0] == 0
    name = next(name for name in files(tmp_path / "here") if name.endswith(".json"))
    here, beside = (json.loads((tmp_path / where / name).read_text()) for where in ("here", "beside"))
    for key in ("id", "config", "parameters", "train_flops", "references"):
        assert here[key] == beside[key]
    # threads may change the order of a sum, and nothing else
    assert here["metrics"]["20"]["all"]["kl"] == pytest.approx(beside["metrics"]["20"]["all"]["kl"], rel=1e-4)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "--arch", "transfomer"], "no architecture 'transfomer'. Did you mean 'transformer'? Known: "),
        (["run", "--task", "hm"], "no task 'hm'. Did you mean 'hmm'? Known: "),
        (["run", "--preset", "quik"], "no preset 'quik'. Did you mean 'quick'? Known: "),
        (["run", "--set", "stepps=3"], "no setting 'stepps'. Did you mean 'steps'? Known: "),
        (["run", "--task", "hmm", "--set", "size=3"], "no setting 'size'."),
        (["run", "--set", "seed=3"], "no setting 'seed'."),
        (["run", "--set", "steps"], "--set takes key=value, not 'steps'"),
        (["run", "--set", "steps=many"], "steps takes a whole number, not 'many'"),
        (["run", "--set", "lr=nan"], "lr must be a positive number, not nan"),
        (["run", "--set", "steps=0"], "steps must be at least 1, not 0"),
        (["run", "--set", "heads=5"], "cannot be divided among 5 heads"),
        (["run", "--set", "horizons=20,x"], "horizons takes numbers like 20,30,50, not '20,x'"),
        (["run", "--task", "bijection", "--set", "horizon=25"], "at most 20 steps, not 25"),
        (["run", "--task", "bijection", "--set", "size=1"], "size must be at least 2, not 1"),
        (["run", "--task", "hmm", "--set", "states=0"], "states must be at least 2, not 0"),
        (["run", "--seeds", "0"], "--seeds must be at least 1, not 0"),
        (["run", "--jobs", "-1"], "--jobs must be at least 1, not -1"),
        (["run", "--supervision", "none"], "supervision must be one of posterior, sampled, not 'none'"),
        (["run", "--device", "tpu"], "device must be auto, cpu or cuda, not 'tpu'"),
        (["run", "--colour"], "unrecognized arguments: --colour"),
        (["fly"], "invalid choice: 'fly'"),
        ([], "the following arguments are required: COMMAND"),
        (["board", "--runs", "nowhere"], "no folder nowhere"),
        (["report", "nothing"], "'nothing' does not name one run. No record fits."),
        (["report", "x", "--samples", "1"], "--samples must be at least 2, not 1"),
    ],
)
def test_a_users_mistake_is_one_line_and_leaves_nothing(bench, tmp_path, words, message):
    code, out, err = bench(*words)
    assert code == 2
    assert err.startswith("bench: ")
    assert err.count("\n") == 1
    assert message in err
    assert out == ""
    assert list(tmp_path.iterdir()) == []


def test_cuda_without_a_gpu_is_refused(bench, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    code, _, err = bench("run", "--device", "cuda")
    assert code == 2
    assert "no CUDA device on this machine" in err


def test_an_unwritable_folder_is_refused_before_any_work(bench, tmp_path):
    (tmp_path / "file").write_text("not a folder")
    code, _, err = bench(*ONE, "--out", "file/results")
    assert code == 2
    assert "cannot write to file/results: Not a directory" in err
    assert files(tmp_path) == ["file"]


def test_a_failed_run_keeps_its_record_and_the_exit_code_says_so(bench, tmp_path):
    code, out, _ = bench(*ONE, "lr=1e30", "adam_lr=1e30", "steps=40")
    assert code == 1
    assert "FAILED" in out
    record = json.loads(next((tmp_path / "results").rglob("*.json")).read_text())
    assert record["status"] == "failed"
    assert "the loss is" in record["error"]


def test_board_names_a_corrupt_record_and_renders_the_others(bench, tmp_path):
    bench(*ONE)
    (tmp_path / "results/bijection/broken.json").write_text("{")
    code, _, err = bench("board")
    assert code == 1
    assert "skipped results/bijection/broken.json: not readable as JSON" in err
    assert "mlp-pointwise" in (tmp_path / "results/leaderboard.md").read_text()


def test_board_check_fails_where_table_and_records_disagree(bench, tmp_path):
    bench(*ONE)
    assert bench("board", "--check")[0] == 0
    table = tmp_path / "results/leaderboard.md"
    table.write_text(table.read_text().replace("mlp-pointwise", "mlp-perfect"))
    code, out, err = bench("board", "--check")
    assert code == 1
    assert "-|   1 | mlp-perfect" in out
    assert "does not say what the records say" in err


def test_list_names_everything(bench):
    code, out, _ = bench("list")
    assert code == 0
    for name in ("bijection-revisit", "transformer-uniform-attn", "paper"):
        assert name in out


@pytest.mark.parametrize("command", [[], ["run"], ["board"], ["report"], ["list"], ["perf"]])
def test_help_has_an_example(capsys, command):
    with pytest.raises(SystemExit) as stop:
        main([*command, "--help"])
    assert stop.value.code == 0
    out = capsys.readouterr().out
    assert not command or f"example: bench {command[0]}" in out


def test_a_process_that_dies_is_a_failed_record_and_the_others_go_on(tmp_path):
    """Kill a worker from outside, as the kernel does when memory runs out."""
    script = f"""
import os, sys, bench.engine as engine
from pathlib import Path
from rich.console import Console
from bench.config import compose
work = engine._work
def die(config, out, threads, channel):
    if config.arch == "mlp":
        os._exit(9)
    work(config, out, threads, channel)
engine._work = die
engine.multiprocessing.get_context = lambda kind, get=engine.multiprocessing.get_context: get("fork")
import multiprocessing.context
multiprocessing.context.ForkContext.set_forkserver_preload = lambda *_: None
archs = ("mlp", "mlp-pointwise", "transformer")
configs = [compose("smoke", arch, "hmm", 0, "cpu", {{"steps": 2}}) for arch in archs]
records = engine.run_all(configs, Path({str(tmp_path)!r}), 2, Console())
print([r.status for r in records], records[0].error)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert "['failed', 'ok', 'ok'] the process died (exit code 9)" in done.stdout, done.stderr
    assert len(list(tmp_path.rglob("*.json"))) == 3


def test_output_into_a_closed_pipe_is_no_traceback(tmp_path):
    bench = Path(sys.executable).parent / "bench"
    command = f"{bench} list | head -n 1"
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    done = subprocess.run(command, shell=True, capture_output=True, text=True, env=environment, check=False)
    assert "Traceback" not in done.stderr
