"""Publishing as CI does it: a commit for what changed, none for what did not; the workflows as GitHub reads them."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bench.config import compose
from bench.records import write
from bench.run.run import run_one

ROOT = Path(__file__).resolve().parent.parent
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))


@pytest.fixture(scope="module")
def records():
    """Of two architectures, from runs of two steps."""
    configs = [compose("smoke", arch, "bijection", 0, "cpu", {"steps": 2}) for arch in ("mlp", "lstm")]
    return [run_one(config)[0] for config in configs]


@pytest.fixture
def repository(tmp_path, records):
    """A repository with an empty leaderboard, a folder of results, and a way to publish."""
    folder, results = tmp_path / "repository", tmp_path / "results"
    (folder / "leaderboard").mkdir(parents=True)
    (folder / "README.md").write_text("<!-- results:begin -->\n<!-- results:end -->\n")
    for name in ("publish.sh", "summary.py", "weights.py"):
        shutil.copy(ROOT / "leaderboard" / name, folder / "leaderboard")
    write(results, records[0], b"weights")
    person = {f"GIT_{role}_{what}": "tester" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, **person, "PATH": path, "PYTHONPATH": str(ROOT)}

    def call(*words, check=True):
        return subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, check=check)

    call("git", "init", "--quiet")
    call("git", "add", ".")
    call("git", "commit", "--quiet", "--message", "start")

    def publish(check=True):
        done = call("leaderboard/publish.sh", str(results), check=check)
        return done, int(call("git", "rev-list", "--count", "HEAD").stdout) - 1

    return folder, results, call, publish


def test_changed_records_are_one_commit_and_unchanged_ones_none(repository, records):
    folder, results, call, publish = repository
    write(results / "tuning", records[1], None)  # the trials of a search are not published
    assert publish()[1] == 1
    assert records[1].id not in call("git", "ls-files").stdout
    assert records[0].id in call("git", "show", "--stat=200", "HEAD").stdout
    assert ".safetensors" not in call("git", "ls-files").stdout
    done, commits = publish()
    assert commits == 1
    assert "nothing changed: no commit" in done.stdout
    record = results / records[0].path
    record.write_text(re.sub(r'"train": [\d.e-]+', '"train": 1234.5', record.read_text()))
    write(results, records[1], None)
    done, commits = publish()
    assert commits == 2
    assert "2 records changed" in done.stdout
    assert call("git", "status", "--porcelain").stdout == ""
    assert "`bijection`" in (folder / "README.md").read_text()
    page = (folder / "leaderboard/README.md").read_text()
    listed = re.findall(r"^\| ([\w-]+) +\|", page, re.MULTILINE)
    assert {"mlp", "lstm"} <= set(listed)


def test_a_bad_record_is_never_committed(repository):
    _, results, _, publish = repository
    record = next(results.rglob("*.json"))
    record.write_text(record.read_text().replace('"seed": 0', '"seed": 1'))
    done, commits = publish(check=False)
    assert done.returncode != 0
    assert "does not belong to its config" in done.stderr
    assert commits == 0


def test_recipe_seeds_are_published_no_more(repository, records):
    folder, _, _, publish = repository
    older = folder / "leaderboard/recipe-seeds.txt"
    older.write_text("0123456789ab\n")
    done, commits = publish(check=False)
    assert (done.returncode, commits) == (2, 0)
    said = [line for line in done.stderr.splitlines() if line.startswith("bench: ")]
    (line,) = said
    assert "1 of the records in leaderboard/runs have seeds below 10 and are not in recipe-seeds.txt" in line
    assert f"{records[0].id}.json" in line
    older.write_text(f"{records[0].id}\n")
    assert publish()[1] == 1


def test_the_published_pages_are_what_the_published_records_say():
    """By the command that the rules give."""
    rules = (ROOT / "leaderboard/RULES.md").read_text()
    words = re.search(r"`(bench board [^`]+ --check)`", rules)[1].split()
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_pins_every_action_and_may_do_nothing_by_default(path):
    """zizmor and the schema are asked in `make lint`; this holds without them."""
    text = path.read_text()
    uses = re.findall(r"uses: (\S+)(.*)", text)
    assert uses
    for action, comment in uses:
        assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", action)
        assert re.fullmatch(r" # v\d+\.\d+\.\d+", comment)
    assert "\npermissions: {}\n" in text
    assert "\nconcurrency:\n" in text
    assert text.count("persist-credentials: false") == text.count("actions/checkout@")
    for script in re.findall(r"[\w./-]+\.sh|\.ci/run", text):
        assert os.access(ROOT / script, os.X_OK)
