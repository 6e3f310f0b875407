"""Publishing as CI does it: a commit for what changed, none for what did not; the workflows as GitHub reads them."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PUBLISHED = ROOT / "leaderboard/runs"
RECORDS = [  # of two architectures
    next(path for path in sorted((PUBLISHED / "bijection" / arch).glob("*.json")) if '"seed": 0' in path.read_text())
    for arch in ("mlp", "lstm")
]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))


def copy(record, results):
    place = results / record.relative_to(PUBLISHED)
    place.parent.mkdir(parents=True)
    return Path(shutil.copy(record, place))


@pytest.fixture
def repository(tmp_path):
    """A repository with an empty leaderboard, a folder of results, and a way to publish."""
    folder, results = tmp_path / "repository", tmp_path / "results"
    (folder / "leaderboard").mkdir(parents=True)
    shutil.copy(ROOT / "leaderboard/publish.sh", folder / "leaderboard")
    copy(RECORDS[0], results).with_suffix(".safetensors").write_bytes(b"weights")
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


def test_changed_records_are_one_commit_and_unchanged_ones_none(repository):
    folder, results, call, publish = repository
    copy(RECORDS[1], results / "tuning")  # the trials of a search are not published
    assert publish()[1] == 1
    assert RECORDS[1].stem not in call("git", "ls-files").stdout
    assert RECORDS[0].stem in call("git", "show", "--stat=200", "HEAD").stdout
    assert ".safetensors" not in call("git", "ls-files").stdout
    done, commits = publish()
    assert commits == 1
    assert "nothing changed: no commit" in done.stdout
    record = next(results.glob("*/*/*.json"))
    record.write_text(re.sub(r'"train": [\d.]+', '"train": 1234.5', record.read_text()))
    copy(RECORDS[1], results)
    done, commits = publish()
    assert commits == 2
    assert "2 records changed" in done.stdout
    assert call("git", "status", "--porcelain").stdout == ""
    table = (folder / "leaderboard/README.md").read_text()
    assert all(json.loads(path.read_text())["config"]["arch"] in table for path in RECORDS)


def test_a_bad_record_is_never_committed(repository):
    _, results, _, publish = repository
    record = next(results.rglob("*.json"))
    record.write_text(record.read_text().replace('"seed": 0', '"seed": 1'))
    done, commits = publish(check=False)
    assert done.returncode != 0
    assert "does not belong to its config" in done.stderr
    assert commits == 0


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
