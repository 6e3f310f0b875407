"""The commands as a user types them."""

import csv
import json
import os
import re
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from bench import records
from bench.cli import main
from bench.commands import pages
from bench.device import pick_device
from bench.engine.tune import MOST_RATES
from bench.presets import PRESETS
from bench.records import RunRecord, read, read_all, write
from bench.run.run import run_in_turns
from bench.seeds import PUBLISHED_FROM, TUNING_SEEDS
from models.base import ARCHS
from tasks.base import TASKS
from tests.fixtures import make_record

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
    assert len(files(tmp_path)) == 6  # record, weights, events, board, the task's page, claims


def test_a_run_that_is_there_is_not_run_again(bench, tmp_path):
    bench(*ONE)
    before = {name: (tmp_path / name).stat().st_mtime_ns for name in files(tmp_path) if not name.endswith(".md")}
    code, out, _ = bench(*ONE)
    assert code == 0
    assert "already in results" in out
    assert before == {name: (tmp_path / name).stat().st_mtime_ns for name in before}
    assert "has changed since" not in out


def test_a_run_that_is_older_than_its_architecture_says_so(bench, tmp_path):
    bench(*ONE)
    os.utime(next((tmp_path / "results").rglob("*.json")), (0, 0))
    code, out, _ = bench(*ONE)
    assert code == 0
    assert "models/mlp.py has changed since; use --fresh to train again with the new code" in out


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


def test_tune_gives_everyone_the_same_search_and_records_it(bench, tmp_path):
    words = ["run", "--preset", "smoke", "--arch", "mlp", "transformer", "--task", "bijection", "--seeds", "2"]
    words += ["--tune", "--set", "steps=8", "--jobs", "1"]
    assert bench(*words)[0] == 0
    tuned = [read(path) for path in (tmp_path / "results/bijection").rglob("*.json")]
    trials = [read(path) for path in (tmp_path / "results/tuning").rglob("*.json")]
    assert [path.name for path in tmp_path.iterdir()] == ["results"]  # in a container nothing else is kept
    assert len(read_all(tmp_path / "results")[0]) == len(tuned) == 2 * 2  # a trial is no row
    assert {trial.config.seed for trial in trials} == set(TUNING_SEEDS)
    assert {trial.config.steps for trial in trials} == {8}
    for arch in ("mlp", "transformer"):
        first, second = (
            {(t.config.activation, t.config.lr): t.error_bits for t in trials
             if (t.config.arch, t.config.seed) == (arch, seed)} for seed in TUNING_SEEDS
        )  # fmt: skip
        block = min(("relu2", "swiglu"), key=lambda kind: first[kind, 0.02])  # both were tried at the preset's rate
        rates = sorted(lr for kind, lr in first if kind == block)
        assert {0.01, 0.02, 0.04} <= set(rates)
        assert len(first) == len(rates) + 1
        assert all(high == 2 * low for low, high in pairwise(rates))
        inside = min(rates, key=lambda lr: first[block, lr]) in rates[1:-1]
        assert inside or len(rates) == MOST_RATES  # the search ends where the best is not at an edge
        assert sorted(second) == sorted(sorted(first, key=first.get)[:2])
        best = min(second, key=lambda trial: first[trial] * second[trial])
        for record in (record for record in tuned if record.config.arch == arch):
            assert (record.config.activation, record.config.lr) == best
            assert record.config.positions == {"relu2": "alibi", "swiglu": "alibi-shift"}[record.config.activation]
            assert record.config.adam_lr == pytest.approx(best[1] * 0.003 / 0.02)
            search = record.config.tuning["errors"]
            assert len(search) == len(first)
            for (kind, lr), error in first.items():
                name = f"{lr:g}" if kind == "relu2" else f"{lr:g} positions=alibi-shift activation=swiglu"
                repeated = [second[kind, lr]] if (kind, lr) in second else []
                assert search[name] == pytest.approx([error, *repeated], rel=1e-3)
    _, out, _ = bench(*words)  # neither trials nor runs are done twice
    assert out.count("already in") == len(tuned) + len(trials)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "--arch", "transfomer"], "no architecture 'transfomer'. Did you mean 'transformer'? Known: "),
        (["run", "--task", "hm"], "no task 'hm'. Did you mean 'hmm'? Known: "),
        (["run", "--preset", "quik"], "no preset 'quik'. Did you mean 'quick'? Known: "),
        (["run", "--task", "hmm-sticky", "hmm", "--set", "relaxation=8"], "no setting of hmm 'relaxation'."),
        (["run", "--set", "seed=3"], "seed is not for --set: use --seeds"),
        (["run", "--per-gpu", "0"], "--per-gpu must be at least 1, not 0"),
        (["run", "--per-gpu", "2"], "--per-gpu is for the GPUs of this machine; these runs are on a CPU"),
        (["run", "--per-gpu", "2", "--engine", "ray"], "--per-gpu is for the GPUs of this machine; on Ray use --gpus-"),
        (["run", "--engine", "ray", "--memory-per-run", "nan"], "a run on cpu cannot have 0 GPUs and nan GB"),
        (["run", "--engine", "ray", "--gpus-per-run", "inf"], "a run on cpu cannot have inf GPUs and 0 GB"),
        (["run", "--gpus-per-run", "1"], "--gpus-per-run and --memory-per-run are for --engine ray"),
        (["perf", "--json", "."], "--json takes a file, and . is a folder"),
        (["run", "--set", "stepps=3"], "no setting 'stepps'. Did you mean 'steps'? Known: "),
        (["run", "--task", "hmm", "--set", "size=3"], "no setting of hmm 'size'."),
        (["run", "--set", "tuning=3"], "tuning is not for --set: use --tune"),
        (["run", "--set", "steps"], "--set takes key=value, not 'steps'"),
        (["run", "--set", "steps=many"], "steps takes a whole number, not 'many'"),
        (["run", "--set", "lr=nan"], "lr must be a finite number, not nan"),
        (["run", "--set", "weight_decay=nan"], "weight_decay must be a finite number, not nan"),
        (["run", "--task", "regression", "--set", "noise=inf"], "noise must be 0.001 to 1000, not inf"),
        (["run", "--task", "hmm-sticky", "--set", "relaxation=inf"], "relaxation must be a finite number, not inf"),
        (["run", "--set", "__pydantic_config__=1"], "no setting '__pydantic_config__'"),
        (["run", "--set", "steps=0"], "steps must be at least 1, not 0"),
        (["run", "--set", "precision=fp16"], "precision must be one of fp32, tf32, bf16, not 'fp16'"),
        (["run", "--set", "precision=tf32"], "precision=tf32 needs a GPU: a CPU trains in fp32"),
        (["run", "--set", "heads=5"], "cannot be divided among 5 heads"),
        (["run", "--set", "horizons=20,x"], "horizons takes numbers like 20,30,50, not '20,x'"),
        (["run", "--task", "bijection", "--set", "horizon=25"], "at most 20 steps, not 25"),
        (["run", "--task", "bijection", "--set", "size=1"], "size must be 2 to 4096, not 1"),
        (["run", "--preset", "markov-report", "--set", "order=-1100"], "order must be 1 to 8, not -1100"),
        (["run", "--task", "markov", "--set", "alphabet=0", "order=-1"], "order must be 1 to 8, not -1"),
        (["run", "--task", "hmm", "--set", "states=0"], "states must be 2 to 4096, not 0"),
        (["run", "--seeds", "0"], "--seeds must be at least 1, not 0"),
        (["run", "--jobs", "-1"], "--jobs must be at least 1, not -1"),
        (["run", "--supervision", "none"], "supervision must be one of posterior, sampled, not 'none'"),
        (["run", "--device", "tpu"], "device must be auto, cpu, cuda or cuda:N, not 'tpu'"),
        (["run", "--colour"], "unrecognized arguments: --colour"),
        (["fly"], "invalid choice: 'fly'"),
        ([], "the following arguments are required: COMMAND"),
        (["board", "--runs", "nowhere"], "no folder nowhere"),
        (["board", "--runs", ".", "--add", "a.json", "--check"], "--check writes nothing, --add does"),
        (["board", "--runs", "."], "no records in ."),
        (["board", "--runs", ".", "--check"], "no leaderboard.md to check: name the leaderboard with --out"),
        (["run", "--set", "supervision=sampled", "--supervision", "posterior"], "supervision is given twice"),
        (["board", "--runs", ".", "..", "--add", "a.json"], "--add takes one folder of records, not 2"),
        (["board", "--runs", ".", "nowhere"], "no folder nowhere"),
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
    assert err == "bench: there is no CUDA device. Use --device cpu or leave it at auto\n"


def test_a_driver_that_torch_cannot_use_is_not_taken_for_no_gpu(bench, monkeypatch, tmp_path):
    driver = tmp_path / "version"
    driver.write_text("550")
    monkeypatch.setattr("bench.device.DRIVER", driver)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("torch.version.cuda", "13.0")
    code, _, err = bench("run", "--device", "cuda")
    assert code == 2
    assert "there is an NVIDIA driver, but this process was given no GPU (docker: --gpus all)" in err
    assert pick_device("auto")[0] == "cpu"  # CUDA_VISIBLE_DEVICES may hide it, or the container
    monkeypatch.setattr("torch.version.cuda", None)
    for asked in ("cuda", "auto"):
        code, _, err = bench("run", "--device", asked)
        assert code == 2
        assert err.startswith("bench: there is an NVIDIA driver, but this torch was built without CUDA: install")
        assert err.endswith("or train on the CPU with --device cpu\n")


def test_a_gpu_without_a_compiler_is_one_line(bench, monkeypatch, tmp_path):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("bench.device.shutil.which", lambda _: None)
    monkeypatch.setattr("bench.device.sysconfig.get_paths", lambda _: {"include": str(tmp_path)})
    monkeypatch.delenv("CC", raising=False)
    recurrence = ["run", "--arch", "mamba2", "--preset", "smoke", "--set", "attention=sdpa"]
    for command in (ONE, recurrence):
        code, _, err = bench(*command)
        assert code == 2
        assert err.startswith("bench: on a GPU Triton needs a C compiler (gcc) and Python's headers (python3-dev). ")
        assert list(tmp_path.iterdir()) == []


def test_preset_auto_is_paper_on_a_gpu_and_quick_without_one(bench, monkeypatch):
    """What the image runs without arguments; stopped before the first step."""
    seen = []
    monkeypatch.setattr("bench.engine.dispatch.run_all", lambda configs, *_: seen.append(configs) or [])
    monkeypatch.setattr("bench.commands.run.require_compiler", lambda: None)
    assert "because the device is cpu" in bench("run", "--preset", "auto", "--device", "cpu", "--arch", "mlp")[1]
    for there, preset in ((True, "paper"), (False, "quick")):
        monkeypatch.setattr("torch.cuda.is_available", lambda there=there: there)
        code, out, _ = bench("run", "--preset", "auto", "--arch", "mlp", "--task", "bijection")
        assert code == 0
        assert out.startswith(f"preset {preset}, because there is {'a' if there else 'no'} CUDA device")
        assert {config.preset for config in seen[-1]} == {preset}
        assert len(seen[-1]) == PRESETS[preset].seeds


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


def store(folder: Path, *records: RunRecord) -> list[Path]:
    return [write(folder, record, None) for record in records]


def test_board_names_a_corrupt_record_and_renders_the_others(bench, tmp_path):
    store(tmp_path / "results", make_record("mlp-pointwise"))
    (tmp_path / "results/bijection/broken.json").write_text("{")
    code, _, err = bench("board")
    assert code == 1
    assert "skipped results/bijection/broken.json: not readable as JSON" in err
    assert "mlp-pointwise" in (tmp_path / "results/leaderboard.md").read_text()


@pytest.mark.parametrize("page", ["leaderboard.md", "bijection.md"])
def test_board_check_fails_where_table_and_records_disagree(bench, tmp_path, page):
    store(tmp_path / "results", make_record("mlp-pointwise"))
    assert bench("board")[0] == 0
    assert bench("board", "--check")[0] == 0
    table = tmp_path / "results" / page
    table.write_text(table.read_text().replace("| mlp-pointwise", "| mlp-perfect"))
    code, out, err = bench("board", "--check")
    assert code == 1
    assert re.search(r"^-\|.*mlp-perfect", out, re.MULTILINE)
    assert f"results/{page} does not match the records" in err


def test_board_writes_over_nothing_that_is_not_its_own(bench, tmp_path):
    store(tmp_path / "results", make_record())
    folder = tmp_path / "mine"
    folder.mkdir()
    for name in ("CLAIMS.md", "bijection.md", "table.md", "notes"):
        mine = folder / name
        mine.write_text("by hand")
        target = "mine/notes" if name == "notes" else "mine/table.md"
        code, _, err = bench("board", "--out", target)
        assert code == 2
        assert f"mine/{name} is not a page of bench board: name another place with --out" in err
        assert mine.read_text() == "by hand"
        assert files(folder) == [name]
        mine.unlink()
    code, _, err = bench("board", "--out", "mine")
    assert code == 2
    assert "cannot write mine: Is a directory. Name another place with --out" in err
    (folder / "CLAIMS.md").touch()  # an empty file is nobody's
    assert bench("board", "--out", "mine/table.md")[0] == 0
    (tmp_path / "other").mkdir()
    (tmp_path / "other/leaderboard.md").write_text("by hand")
    assert bench(*ONE, "--out", "other")[0] == 2
    assert files(tmp_path / "other") == ["leaderboard.md"]


def test_board_writes_a_csv_where_it_is_asked_to(bench, tmp_path):
    made = [make_record("mlp", seed=seed) for seed in (0, 1)]
    store(tmp_path / "results", *made)
    code, out, err = bench("board", "--csv", "tables/mine.csv")
    assert (code, err) == (0, "")
    assert out.endswith("wrote tables/mine.csv\n")
    with (tmp_path / "tables/mine.csv").open() as file:
        assert {row["id"] for row in csv.DictReader(file)} == {record.id for record in made}
    assert not (tmp_path / "results/results.csv").exists()


def test_a_folder_is_no_place_for_a_csv(bench, tmp_path):
    store(tmp_path / "results", make_record())
    before = files(tmp_path)
    code, out, err = bench("board", "--csv", ".")
    assert (code, out, err) == (2, "", "bench: --csv takes a file, and . is a folder\n")
    code, out, err = bench("board", "--csv", "mine.csv", "--check")
    assert (code, out) == (2, "")
    assert err == "bench: --check writes nothing, --csv does: use one of them\n"
    assert files(tmp_path) == before


def test_figures_and_csv_are_written_beside_the_board_and_checked_with_it(bench, tmp_path):
    store(tmp_path / "results", make_record())
    assert bench("board", "--figures")[0] == 0
    written = {name for name in files(tmp_path / "results") if name.endswith((".svg", ".csv"))}
    assert {"results.csv", "heatmap.svg", "heatmap-dark.svg"} <= written
    assert bench("board", "--figures", "--check")[0] == 0
    for name in sorted(written):
        image = tmp_path / "results" / name
        text = image.read_text()
        image.write_text(text + "x")
        code, _, err = bench("board", "--figures", "--check")
        assert (code, err) == (1, f"bench: results/{name} does not match the records\n")
        image.write_text(text)


def test_board_reads_each_record_once_and_judges_claims_once(bench, tmp_path, monkeypatch):
    """Also of several folders, with the site, the CSV and the figures."""
    paths = store(tmp_path / "results", *(make_record(arch) for arch in ("mlp", "transformer")), make_record(seed=1))
    paths += store(tmp_path / "more", make_record(task="hmm"))
    read, judged = [], []
    parse, judge = records.parse, pages.judge

    def parsed(text):
        read.append(json.loads(text)["id"])
        return parse(text)

    monkeypatch.setattr(records, "parse", parsed)
    monkeypatch.setattr(pages, "judge", lambda *rest: judged.append(rest) or judge(*rest))
    code, _, err = bench("board", "--runs", "results", "more", "--html", "site", "--csv", "a.csv", "--figures")
    assert (code, err) == (0, "")
    assert sorted(read) == sorted(path.stem for path in paths)
    assert len(judged) == 1


def test_all_stands_for_every_task_and_architecture(bench, monkeypatch):
    seen = []
    monkeypatch.setattr("bench.engine.dispatch.run_all", lambda configs, *_: seen.extend(configs) or [])
    assert bench("run", "--preset", "smoke", "--arch", "all", "--task", "all")[0] == 0
    assert {config.arch for config in seen} == set(ARCHS.names())
    assert {config.task for config in seen} == set(TASKS.names())
    assert len(seen) == len(ARCHS.names()) * len(TASKS.names())


def test_reports_are_written_before_the_claims_that_are_read_from_them(bench, tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr("bench.commands.report.write_report", lambda *_: seen.append(files(tmp_path)) or 1)
    code, _, _ = bench(*ONE, "--report")
    assert code == 1  # a section failed
    assert [name for name in seen[0] if name.endswith(".md")] == []
    assert {"results/leaderboard.md", "results/CLAIMS.md"} <= set(files(tmp_path))


def test_board_of_several_folders_counts_a_run_once_as_the_first_has_it(bench, tmp_path, monkeypatch):
    seen = []
    judge = pages.judge
    monkeypatch.setattr(pages, "judge", lambda claims, runs, told: seen.append(told) or judge(claims, runs, told))
    (mine,) = store(tmp_path / "mine", make_record("mlp", error=0.1234567))
    shared, other = store(tmp_path / "theirs", make_record("mlp", error=0.2), make_record("mlp", seed=1, error=0.3))
    for path, title in ((mine, "mine"), (shared, "theirs"), (other, "theirs")):
        path.with_suffix("").mkdir()
        report = {"run": path.stem, "title": title, "sections": []}
        (path.with_suffix("") / "report.json").write_text(json.dumps(report))
    theirs = files(tmp_path / "theirs")
    code, out, err = bench("board", "--runs", "mine", "theirs")
    assert (code, err) == (0, "")
    assert "wrote mine/leaderboard.md and the pages beside it: 2 records" in out
    assert {run: report.title for run, report in seen[-1].items()} == {mine.stem: "mine", other.stem: "theirs"}
    assert files(tmp_path / "theirs") == theirs
    both = pages.read_records([tmp_path / "mine", tmp_path / "theirs"]).records
    assert {record.id: record.error_bits for record in both} == {mine.stem: 0.1234567, other.stem: 0.3}
    assert bench("board", "--runs", "mine", "theirs", "--check")[0] == 0
    assert bench("board", "--runs", "theirs", "mine", "--check", "--out", "mine/leaderboard.md")[0] == 1
    assert bench("board", "--runs", "mine", "theirs", "--html", "site")[0] == 0
    assert {page.stem for page in (tmp_path / "site/runs").iterdir()} == {mine.stem, other.stem}


def test_a_missing_extra_is_said_before_anything_is_started_over(bench, tmp_path, monkeypatch):
    bench(*ONE)
    before = files(tmp_path)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    code, _, err = bench(*ONE, "--fresh", "--tensorboard")
    assert code == 2
    assert err == "bench: --tensorboard needs the extra: pip install 'tunnel-bench[tensorboard]'\n"
    assert files(tmp_path) == before


def test_a_run_without_weights_keeps_no_other_from_its_report(bench, tmp_path):
    both = [*ONE, "--seeds", "2"]
    bench(*both)
    next((tmp_path / "results").rglob("*.safetensors")).unlink()
    code, _, err = bench(*both, "--report")
    assert code == 1
    assert "bench: no report: no weights at " in err
    assert len(list((tmp_path / "results").rglob("report.json"))) == 1


def test_an_option_that_is_given_twice_counts_twice(bench):
    bench(*ONE)
    code, _, err = bench("board", "--add", "a.json", "--add", "b.json")
    assert code == 2
    assert "--add a.json: no such file" in err
    code, _, err = bench("board", "--runs", "results", "--runs", "nothere")
    assert code == 2
    assert "nothere" in err
    code, out, _ = bench(*ONE, "--supervision", "posterior", "--supervision", "sampled")
    assert code == 0
    assert out.startswith("2 runs")


def test_verbose_says_every_look_and_tensorboard_gets_every_scalar(bench, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    code, out, _ = bench(*ONE, "-v", "--tensorboard")
    assert code == 0
    assert "step 1/2" in out
    assert "step 2/2" in out
    board = EventAccumulator(str(next((tmp_path / "results/tensorboard").rglob("events.*")).parent))
    board.Reload()
    record = json.loads(next((tmp_path / "results").rglob("*.json")).read_text())
    assert [scalar.step for scalar in board.Scalars("loss")] == [1, 2]
    assert board.Scalars("entropy_mae at 20")[0].value == pytest.approx(record["metrics"]["20"]["all"]["entropy_mae"])


def test_fresh_forgets_the_record_and_starts_over(bench, tmp_path):
    bench(*ONE)
    record = next((tmp_path / "results").rglob("*.json"))
    before = (record.stat().st_mtime_ns, json.loads(record.read_text())["metrics"])
    record.with_suffix("").mkdir()
    (record.with_suffix("") / "report.json").write_text("{}")  # of the weights that will be gone
    code, out, _ = bench(*ONE, "--fresh")
    assert code == 0
    assert "already in" not in out
    assert record.stat().st_mtime_ns > before[0]
    assert json.loads(record.read_text())["metrics"] == before[1]
    assert not record.with_suffix("").exists()


def test_fresh_that_is_interrupted_in_its_first_run_leaves_the_others(bench, tmp_path, monkeypatch):
    four = [*ONE, "--seeds", "4", "--jobs", "1"]
    assert bench(*four)[0] == 0
    before = {path: json.loads(path.read_text()) for path in (tmp_path / "results").rglob("*.json")}
    (first,) = (path for path, record in before.items() if record["config"]["seed"] == PUBLISHED_FROM)

    def interrupted(*rest):
        os.kill(os.getpid(), signal.SIGINT)
        return run_in_turns(*rest)

    with monkeypatch.context() as patch:
        patch.setattr("bench.engine.perform.run_in_turns", interrupted)
        code, _, err = bench(*four, "--fresh")
    assert code == 130
    assert err.endswith("the same command without --fresh continues them\n")
    assert set((tmp_path / "results").rglob("*.json")) == before.keys() - {first}
    assert all(path.with_suffix(".safetensors").exists() for path in before.keys() - {first})
    code, out, _ = bench(*four)
    assert (code, out.count("already in"), out.count("  continuing ")) == (0, 3, 1)
    assert json.loads(first.read_text())["metrics"] == before[first]["metrics"]


@pytest.mark.parametrize("words", [["--address", "127.0.0.1:1"], ["--memory-per-run", "4"]])
def test_what_is_for_ray_is_refused_without_it(bench, tmp_path, words):
    code, _, err = bench(*ONE, *words)
    assert code == 2
    assert "are for --engine ray" in err


def test_a_cluster_that_is_not_there_is_one_line(bench):
    code, _, err = bench(*ONE, "--engine", "ray", "--address", "127.0.0.1:1")
    assert code == 2
    assert "no Ray cluster at 127.0.0.1:1: " in err


def test_list_names_everything(bench):
    code, out, _ = bench("list")
    assert code == 0
    for name in ("bijection-revisit", "transformer-uniform-attn", "paper"):
        assert name in out


def test_list_says_of_every_task_what_no_other_is(bench, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    lines = [
        line.split(maxsplit=1)
        for line in bench("list")[1].partition("architecture")[0].splitlines()[1:]
        if line.strip()
    ]
    assert [name for name, _ in lines] == TASKS.names()
    assert len({what for _, what in lines}) == len(lines)


@pytest.mark.parametrize("command", [[], ["run"], ["board"], ["report"], ["verify"], ["list"], ["kernels"], ["perf"]])
def test_help_has_an_example(capsys, command):
    with pytest.raises(SystemExit) as stop:
        main([*command, "--help"])
    assert stop.value.code == 0
    out = capsys.readouterr().out
    assert not command or f"example: bench {command[0]}" in out


def test_a_process_that_dies_is_a_failed_record_and_the_others_go_on(tmp_path):
    """Kill a worker from outside, as the kernel does when memory runs out."""
    script = f"""
import os
from pathlib import Path
from rich.console import Console
from bench.config import compose
from bench.engine import workers
from bench.engine.dispatch import run_all
from bench.engine.plan import Plan
work = workers.work
def die(job, connection):
    if job.configs[0].arch == "mlp":
        os._exit(9)
    work(job, connection)
workers.work = die
workers.multiprocessing.get_context = lambda kind, get=workers.multiprocessing.get_context: get("fork")
import multiprocessing.context
multiprocessing.context.ForkContext.set_forkserver_preload = lambda *_: None
archs = ("mlp", "mlp-pointwise", "transformer")
configs = [compose("smoke", arch, "hmm", 0, "cpu", {{"steps": 2}}) for arch in archs]
records = run_all(configs, Plan(Path({str(tmp_path)!r}), jobs=2), Console())
print([r.status for r in records], records[0].error)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert "['failed', 'ok', 'ok'] the process died (exit code 9)" in done.stdout, done.stderr
    assert len(list(tmp_path.rglob("*.json"))) == 3


def test_output_into_a_closed_pipe_is_no_traceback(tmp_path):
    bench = Path(sys.executable).parent / "bench"
    for words in (["list"], [*ONE, "steps=40", "-v", "--out", str(tmp_path)]):
        unread, pipe = os.pipe()
        os.close(unread)
        done = subprocess.run([bench, *words], stdout=pipe, stderr=subprocess.PIPE, text=True, check=False)
        os.close(pipe)
        assert done.stderr == ""
        assert done.returncode == 141
    assert not list(tmp_path.rglob("*.json"))  # that nobody reads is no failure of the run
