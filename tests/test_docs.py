"""Every command that README, docs and CONTRIBUTING show is run here, as they show it."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from bench.cli import make_parser
from bench.registry import BadInput

ROOT = Path(__file__).resolve().parent.parent
VENV = Path(sys.executable).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
EXTENDING = ROOT / "docs/extending.md"


def shown(text):
    """The commands of all console blocks."""
    blocks = re.findall(r"```console\n(.*?)```", text, re.DOTALL)
    return [line.removeprefix("$ ") for block in blocks for line in block.splitlines() if line.startswith("$ ")]


def is_bench(command):
    """All but those that send a result, which have tests of their own."""
    return command.startswith("bench ") and "--add" not in command


SECTIONS = {
    f"{page.name}: {part.splitlines()[0]}": [command for command in shown(part) if is_bench(command)]
    for page in PAGES
    for part in page.read_text().split("\n## ")
}
COMMANDS = list(dict.fromkeys(command for page in PAGES for command in shown(page.read_text())))
SMALLER = {"run": "--preset smoke", "evaluate": "--preset smoke", "report": "--samples 2"}  # the last preset given wins


def run(command, folder, **environment):
    path = f"{VENV / 'bin'}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        shlex.split(command), cwd=folder, capture_output=True, text=True, check=False,
        env={**os.environ, "PATH": path, **environment},
    )  # fmt: skip


def test_readme_has_the_commands_that_a_reader_needs():
    assert {"make run", "make test", "bench run --arch mlp --task hmm"} <= set(shown(PAGES[0].read_text()))


def test_every_console_block_has_only_commands():
    """Else a command without its dollar sign would be shown and not run."""
    for page in PAGES:
        for block in re.findall(r"```console\n(.*?)```", page.read_text(), re.DOTALL):
            assert all(line.startswith("$ ") for line in block.splitlines()), f"{page.name}: {block}"


def test_no_command_is_left_untested():
    made = {"make run", "make test", "make page"}  # below, and by whoever runs this
    made |= {"make gpu", "make gpu GPU=--rehearse"}  # the first needs a GPU
    assert all(c.startswith(("bench ", "docker ")) or c in made for c in COMMANDS)


TEXTS = [*PAGES, ROOT / "leaderboard/RULES.md"]
INLINE = sorted(
    {
        (page.name, " ".join(code.split()))
        for page in TEXTS
        for code in re.findall(r"`([^`]+)`", re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL))
    }
)
PARSER = make_parser()
SUBCOMMANDS = next(action.choices for action in PARSER._actions if isinstance(action.choices, dict))
OPTIONS = {option for sub in SUBCOMMANDS.values() for action in sub._actions for option in action.option_strings}


@pytest.mark.parametrize(("page", "code"), [each for each in INLINE if each[1].startswith("bench ")])
def test_every_command_within_a_sentence_can_be_parsed(page, code):
    words = shlex.split(code)
    if words[1] == "COMMAND":
        assert words[2:] == ["--help"]
        return
    assert words[1] in SUBCOMMANDS, page
    known = {option for action in SUBCOMMANDS[words[1]]._actions for option in action.option_strings}
    assert {word for word in words if word.startswith("-")} <= known, page
    try:
        PARSER.parse_args(words[1:])
        problem = ""
    except BadInput as error:  # a sentence may leave out the run or the file
        problem = str(error)
    assert re.search("^$|arguments are required|expected (one|at least one) argument", problem), page


@pytest.mark.parametrize(("page", "code"), [each for each in INLINE if each[1].startswith("make ")])
def test_every_target_within_a_sentence_exists(page, code):
    assert re.search(rf"^{code.split()[1]}:", (ROOT / "Makefile").read_text(), re.MULTILINE), page


@pytest.mark.parametrize(("page", "code"), [each for each in INLINE if each[1].startswith("--")])
def test_every_option_within_a_sentence_exists(page, code):
    """Of a command of ours; `docker` and `pip` have options of their own."""
    others = {"--gpus", "--constraint"}
    for option in re.findall(r"(?<!\S)--[a-z-]+", code):
        assert option in OPTIONS | others, page


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """A folder with one finished run."""
    folder = tmp_path_factory.mktemp("results")
    done = run("bench run --arch mlp-pointwise --task hmm --preset smoke", folder)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize("section", [name for name, commands in SECTIONS.items() if commands])
def test_every_bench_command_works_after_those_before_it(section, results, tmp_path):
    """Those of a section in one folder, as a reader would type them, at the smallest size."""
    shutil.copytree(results / "results", tmp_path / "results")
    (tmp_path / "leaderboard").symlink_to(ROOT / "leaderboard")  # as in a checkout; nothing is written to it
    for name in sorted({name for command in SECTIONS[section] for name in re.findall(r"\./(\w+\.py)", command)}):
        code = re.search(rf"`{name}`.*?```python\n(.*?)```", EXTENDING.read_text(), re.DOTALL)[1]
        (tmp_path / name).write_text(code)  # the file that the section shows
    for command in SECTIONS[section]:
        words = shlex.split(command)
        done = run(f"{command} {SMALLER.get(words[1], '')}", tmp_path)
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        assert done.stdout
        if words[1] == "verify":
            assert "1 hold, 0 do not, 0 not verified" in done.stdout, command
        if words[1] == "report":
            assert list((tmp_path / words[-1]).rglob("report.md")), command
        for option, file in (("--csv", ""), ("--html", "index.html")):
            assert option not in words or (tmp_path / words[words.index(option) + 1] / file).is_file(), command


def test_the_command_that_sends_a_result_works(results, tmp_path):
    """With a record that exists, into a copy of a leaderboard."""
    command = next(c for c in COMMANDS if c.endswith(".json"))
    record = next((results / "results").rglob("*.json"))
    sent = tmp_path / shlex.split(command)[-1]
    sent.parent.mkdir(parents=True)
    clean = {**json.loads(record.read_text()), "commit": "0" * 40, "dirty": False}
    sent.write_text(json.dumps(clean))
    (tmp_path / "leaderboard/runs").mkdir(parents=True)
    done = run(command, tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "leaderboard/runs/self-reported/hmm/mlp-pointwise" / record.name).is_file()
    assert "(self-reported)" in (tmp_path / "leaderboard/hmm.md").read_text()


def test_make_gpu_can_be_rehearsed_and_its_archive_sent(tmp_path):
    """`make gpu` itself needs a GPU; of its stages only the kernels do."""
    plain, rehearsal = [c for c in COMMANDS if c.startswith("make gpu")]
    assert (
        run(f"{plain.replace('make', 'make --no-print-directory -n')} VENV={VENV}", ROOT)
        .stdout.strip()
        .endswith("bin/bench gpu")
    )
    options = rehearsal.partition("GPU=")[2]
    folder = tmp_path / "tunnel-bench-rehearsal"
    done = run(f"make gpu VENV={VENV} GPU='{options} --seeds 1 --out {folder}'", ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    smoke = json.loads((folder / "smoke.json").read_text())
    assert {record["config"]["arch"] for record in smoke} > {"transformer", "gated-deltanet", "lstm"}
    assert all(record["status"] == "ok" for record in smoke)
    command = next(c for c in COMMANDS if c.endswith(".tar"))
    sent = tmp_path / shlex.split(command)[-1]
    sent.parent.mkdir(parents=True)
    shutil.copy(folder / "tunnel-bench-rehearsal.tar", sent)
    (tmp_path / "leaderboard/runs").mkdir(parents=True)
    done = run(command, tmp_path)
    if json.loads((folder / "facts.json").read_text())["dirty"]:  # while the code is being changed
        assert done.stderr.count("dirty: the code had changes") == 8
    else:
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("self-reported until verified") == 8


def test_every_docker_command_fits_the_image():
    """The image itself is built and run by `make image-test`, without an engine; here, what the commands rely on."""
    build, suite, one, mine = (shlex.split(c) for c in COMMANDS if c.startswith("docker"))
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
    assert mine[mine.index("-v") + 1] == "$PWD/my_model.py:/home/bench/my_model.py"
    assert "WORKDIR /home/bench\n" in dockerfile
    assert f"bench {shlex.join(mine[mine.index('run', 2) :])}" in COMMANDS
    assert "${entry[@]}" in script
    assert "${words[@]}" in script


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


def test_the_architectures_in_extending_are_complete(tmp_path):
    """One file each, as shown: every law of tests/test_models.py holds for it, and it can be run."""
    for package in ("bench", "tasks", "tests"):
        (tmp_path / package).symlink_to(ROOT / package)
    shutil.copytree(ROOT / "models", tmp_path / "models", ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("models/decay.py", "models/fast_weights.py"):
        code = re.search(rf"`{file}`.*?```python\n(.*?)```", EXTENDING.read_text(), re.DOTALL)[1]
        (tmp_path / file).write_text(code)

    def passed(arch):
        laws = "tests/test_models.py::TestEveryArchitecture"
        call = f"{sys.executable} -m pytest -p no:cacheprovider -q -k {arch} {laws}"
        done = run(call, tmp_path, PYTHONPATH=str(tmp_path))
        assert done.returncode == 0, done.stdout
        return int(re.search(r"(\d+) passed", done.stdout)[1])

    assert passed("decay") == passed("fast-weights") == passed("gru")
    command = "from bench.cli import main; main(['run', '--arch', 'decay', '--task', 'hmm', '--preset', 'smoke'])"
    done = run(f'{sys.executable} -c "{command}"', tmp_path, PYTHONPATH=str(tmp_path))
    assert list((tmp_path / "results/hmm/decay").glob("*.json")), done.stdout + done.stderr


def test_every_direct_dependency_is_pinned():
    pinned = {line.split("==")[0] for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = [*project["dependencies"], *(d for extra in project["optional-dependencies"].values() for d in extra)]
    assert {re.match(r"[\w-]+", name)[0] for name in named} <= pinned


def test_the_table_of_nodes_is_the_one_that_the_null_gpu_is_held_to():
    nodes = json.loads((ROOT / "tests/nullgpu/nodes.json").read_text())["paper"]
    table = (ROOT / "docs/cuda.md").read_text().partition("| architecture | before | after |")[2].partition("\n\n")[0]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()[2:]]
    tested = {arch: int(after.replace(",", "")) for arch, _, after, _ in rows if "not tested" not in after}
    assert tested == nodes
    assert len(rows) >= 5
