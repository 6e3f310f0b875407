"""What the documents promise, done as they say."""

import csv
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from bench.records import read_all

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


def test_every_row_of_the_recipe_study_is_its_record():
    """A row ends with its record's id; its numbers are that record's, and no record is left out."""
    rows = re.findall(r"^\| (.+) \| `([0-9a-f]{12})` \|$", (ROOT / "docs/recipe.md").read_text(), re.MULTILINE)
    records, problems = read_all(ROOT / "docs/recipe")
    known = {record.id: record for record in records}
    assert not problems
    assert {name for _, name in rows} == known.keys()
    for cells, name in rows:
        record = known[name]
        steps, error, new, kl = cells.split(" | ")[1:5]
        longest = max(record.metrics, key=int)
        assert steps == f"{record.config['steps']:,} x {record.config['batch']}"
        assert error == f"{record.metrics[str(record.config['horizon'])]['all']['entropy_mae']:.4f}"
        assert new in ("n/a", f"{(record.metrics[longest] or {}).get('post', {}).get('entropy_mae', -1):.4f}")
        assert kl == f"{record.metrics[str(record.config['horizon'])]['all']['kl']:.4f}"


def test_starts_of_the_others_are_as_their_table_says():
    rows = list(csv.reader((ROOT / "docs/recipe/starts.csv").read_text().splitlines()))[1:]
    lines = [f"| `{arch}` | {what} | {task} | {float(a):.4f} | {float(b):.4f} |" for arch, what, task, a, b, _ in rows]
    assert len(rows) > 5
    assert "\n".join(lines) in (ROOT / "docs/recipe.md").read_text()


def test_changes_of_the_code_are_as_their_table_says():
    rows = list(csv.reader((ROOT / "docs/recipe/changes.csv").read_text().splitlines()))[1:]
    lines = [f"| {what} | {float(mae):.4f} | {float(new):.4f} | {float(kl):.4f} |" for what, mae, new, kl, _ in rows]
    assert len(rows) > 5
    assert "\n".join(lines) in (ROOT / "docs/recipe.md").read_text()
