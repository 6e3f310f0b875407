"""What the documents promise, done as they say."""

import csv
import os
import re
import shlex
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from statistics import mean

import pytest

from bench.records import read_all
from bench.rows import row_name, same_settings
from bench.stats import interval

ROOT = Path(__file__).resolve().parent.parent
VENV = Path(sys.executable).parent.parent
README = (ROOT / "README.md").read_text()
COMMANDS = [
    line.removeprefix("$ ")
    for block in re.findall(r"```console\n(.*?)```", README, re.DOTALL)
    for line in block.splitlines()
    if line.startswith("$ ")
]


def run(command, folder, **environment):
    path = f"{VENV / 'bin'}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        shlex.split(command), cwd=folder, capture_output=True, text=True, check=False,
        env={**os.environ, "PATH": path, **environment},
    )  # fmt: skip


def test_readme_has_commands():
    assert {"make run", "make test", "bench run --arch mlp --task hmm"} <= set(COMMANDS)


def test_every_number_of_what_it_says_stands_on_the_leaderboard():
    section = README.split("\n## What it says so far\n")[1].split("\n## ")[0]
    quoted = re.findall(r"\d\.\d+(?:e-\d+)?", section)
    published = "".join((ROOT / "leaderboard" / name).read_text() for name in ("README.md", "CLAIMS.md"))
    assert len(quoted) > 10
    assert set(quoted) <= set(re.findall(r"\d\.\d+(?:e-\d+)?", published))


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.startswith("bench run")])
def test_every_run_command_in_readme_works(command, tmp_path):
    """As typed, at the smallest size: the last preset given wins."""
    done = run(f"{command} --preset smoke", tmp_path)
    assert done.returncode == 0, done.stderr
    assert list((tmp_path / "results").rglob("*.json"))
    for report in (c for c in COMMANDS if c.startswith("bench report") and (tmp_path / c.split()[-1]).is_dir()):
        done = run(f"{report} --samples 2", tmp_path)
        assert done.returncode == 0, done.stderr
        assert list(tmp_path.rglob("report.md"))


def test_every_board_and_verify_command_in_readme_works(tmp_path):
    assert run("bench run --arch mlp-pointwise --task hmm --preset smoke", tmp_path).returncode == 0
    (tmp_path / "leaderboard").symlink_to(ROOT / "leaderboard")  # in a checkout it is there; nothing is written to it
    for command in (c for c in COMMANDS if c.startswith("bench board")):
        done = run(command, tmp_path)
        assert done.returncode == 0, done.stderr
        assert "mlp-pointwise" in done.stdout
    for command in (c for c in COMMANDS if c.startswith("bench verify")):
        done = run(command, tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "1 hold, 0 do not, 0 not verified" in done.stdout


@pytest.mark.parametrize("command", ["bench list", "bench perf"])
def test_every_other_bench_command_in_readme_works(command, tmp_path):
    assert command in COMMANDS
    done = run(command, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_every_docker_command_in_readme_fits_the_image():
    """The image itself is built and run by `make image-test`, without an engine; here, what the commands lean on."""
    build, suite, one = (shlex.split(c) for c in COMMANDS if c.startswith("docker"))
    dockerfile, script = (ROOT / "Dockerfile").read_text(), (ROOT / "tests/image.sh").read_text()
    assert build[:4] == ["docker", "build", "-t", "tunnel-bench"]
    assert build[-1] == "."
    assert "ARG COMMIT=" in dockerfile
    assert build[build.index("--build-arg") + 1].startswith("COMMIT=")
    assert suite[-1] == "tunnel-bench"
    assert suite[suite.index("-v") + 1] == "$PWD/results:/results"
    assert "TUNNEL_BENCH_RESULTS=/results" in dockerfile
    assert 'CMD ["run", "--preset", "auto"]' in dockerfile
    assert one[: one.index("run", 2)] == ["docker", "run", "--gpus", "all", "tunnel-bench"]
    assert f"bench {shlex.join(one[one.index('run', 2) :])}" in COMMANDS
    assert "${entry[@]}" in script
    assert "${words[@]}" in script


def test_no_command_in_readme_is_left_untested():
    made = [c.split() for c in COMMANDS if c.startswith("bench run")]
    for report in (c.split()[-1] for c in COMMANDS if c.startswith("bench report")):  # of a run that a command makes
        assert any({Path(report).parent.name, Path(report).name} <= set(words) for words in made)
    tested = (
        "make run",
        "make test",
        "make page",
        "bench run",
        "bench board",
        "bench report",
        "bench verify",
        "bench list",
        "bench perf",
        "docker build",
        "docker run",
    )
    assert all(command.startswith(tested) for command in COMMANDS)


def test_make_run_prints_the_table(tmp_path):
    """In the environment at hand; .ci/run makes one from nothing."""
    if not (VENV / "installed").exists():
        pytest.fail("run the tests with `make test`: it prepares the environment that `make run` uses")
    done = run(f"make run VENV={VENV} PRESET=smoke OUT={tmp_path}", ROOT)
    assert done.returncode == 0, done.stderr
    assert "hmm: preset smoke" in done.stdout
    assert f"wrote {tmp_path}/leaderboard.md" in done.stdout


def test_make_page_writes_the_site(tmp_path):
    assert "make page" in COMMANDS
    done = run(f"make page VENV={VENV} SITE={tmp_path / 'site'} TABLE={tmp_path / 'table.md'}", ROOT)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "table.md").read_text().startswith("# tunnel-bench leaderboard")
    published = {path.stem for path in (ROOT / "leaderboard/runs").rglob("*.json") if path.name != "report.json"}
    assert {path.stem for path in (tmp_path / "site/runs").iterdir()} == published


def test_the_architecture_in_contributing_is_complete(tmp_path):
    code = re.search(r"`models/decay.py`.*?```python\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL)[1]
    assert len(code.splitlines()) < 60
    for package in ("bench", "models", "tasks"):
        (tmp_path / package).symlink_to(ROOT / package)
    (tmp_path / "models").unlink()
    (tmp_path / "models").mkdir()
    for item in (ROOT / "models").iterdir():
        (tmp_path / "models" / item.name).symlink_to(item)
    (tmp_path / "models" / "decay.py").write_text(code)
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    call = f"{sys.executable} -m pytest -p no:cacheprovider -q -k decay tests/test_models.py"
    done = run(call, tmp_path, PYTHONPATH=str(tmp_path))
    assert done.returncode == 0, done.stdout
    assert "8 passed" in done.stdout
    command = "from bench.cli import main; main(['run', '--arch', 'decay', '--task', 'hmm', '--preset', 'smoke'])"
    done = run(f'{sys.executable} -c "{command}"', tmp_path, PYTHONPATH=str(tmp_path))
    assert "hmm decay seed 0" in done.stdout, done.stderr


def test_the_published_table_says_what_the_published_records_say():
    done = run("bench board --runs leaderboard/runs --out leaderboard/README.md --figures --check", ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_direct_dependency_is_pinned():
    pinned = {line.split("==")[0] for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line}
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = [*project["dependencies"], *(d for extra in project["optional-dependencies"].values() for d in extra)]
    assert {re.match(r"[\w-]+", name)[0] for name in named} <= pinned


RECIPE = (ROOT / "docs/recipe.md").read_text()


def recipe_records(study):
    """Those of the study at equal time, all of them at quick; or the single runs, each of which has a row."""
    records, problems = read_all(ROOT / "docs/recipe")
    assert not problems
    return [record for record in records if (record.config["preset"] == "quick") == study]


def study_table(task):
    """Rows of the study at equal time, the best on exact targets first: what differs, then each track's errors."""
    members = [record for record in recipe_records(study=True) if record.config["task"] == task]
    rows = defaultdict(dict)
    for same in same_settings(members):
        named = row_name(same[0], same).split()[1:]
        name = " ".join(part for part in named if not part.startswith(("steps=", "batch="))) or "the preset"
        steps = f"{same[0].config['steps']:,} x {same[0].config['batch']}"
        assert [r.config["seed"] for r in same] == [0, 1, 2]
        rows[name, steps][same[0].config["supervision"]] = [
            [(r.metrics[k] or {}).get(part, {}).get("entropy_mae") for r in same]
            for k, part in (("20", "all"), *([("50", "post")] * (task == "hmm")))
        ]

    def cell(errors):
        if not errors or None in errors:
            return "n/a" if errors else "not run"
        low, high = interval(errors)
        return f"{mean(errors):.4f} [{low:.4f}, {high:.4f}]"

    lines = []
    shown = [track for track in ("posterior", "sampled") if any(track in tracks for tracks in rows.values())]
    for (name, steps), tracks in sorted(rows.items(), key=lambda row: mean(row[1]["posterior"][0])):
        nothing = [[] for _ in tracks["posterior"]]
        cells = [cell(errors) for track in shown for errors in tracks.get(track, nothing)]
        lines.append(f"| {' | '.join([name, steps, *cells])} |")
    return "\n".join(lines)


@pytest.mark.parametrize("task", ["hmm", "bijection"])
def test_every_row_of_the_study_at_equal_time_is_its_records(task):
    table = study_table(task)
    assert table.count("\n") > 5
    assert table in RECIPE


def test_every_single_run_of_the_recipe_is_its_record():
    """A row ends with its record's id; its numbers are that record's, and no record is left out."""
    rows = re.findall(r"^\| (.+) \| `([0-9a-f]{12})` \|$", RECIPE, re.MULTILINE)
    known = {record.id: record for record in recipe_records(study=False)}
    assert {name for _, name in rows} == known.keys()
    for cells, name in rows:
        record = known[name]
        steps, error, new, kl = cells.split(" | ")[1:5]
        beyond = (record.metrics[max(record.metrics, key=int)] or {}).get("post")
        assert steps == f"{record.config['steps']:,} x {record.config['batch']}"
        assert error == f"{record.metrics[str(record.config['horizon'])]['all']['entropy_mae']:.4f}"
        assert new == (f"{beyond['entropy_mae']:.4f}" if beyond else "n/a")
        assert kl == f"{record.metrics[str(record.config['horizon'])]['all']['kl']:.4f}"


@pytest.mark.parametrize(
    ("title", "file", "columns"),
    [
        ("What is in the code", "changes.csv", slice(1, 4)),
        ("How the others start", "starts.csv", slice(3, 5)),
    ],
)
def test_numbers_of_trials_without_records_are_those_of_their_file(title, file, columns):
    trials = list(csv.reader((ROOT / "docs/recipe" / file).read_text().splitlines()))[1:]
    known = {f"{float(value):.4f}" for trial in trials for value in trial[columns]}
    section = RECIPE.split(f"\n## {title}\n")[1].split("\n## ")[0]
    quoted = re.findall(r"\b\d\.\d{4}\b", section)
    assert len(quoted) > 5
    assert set(quoted) <= known
    assert f"{len(trials)} trials" in section
