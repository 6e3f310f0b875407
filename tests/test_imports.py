"""The law of imports: `make lint` checks it, and here it is shown that the check can fail."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LINT = [str(Path(sys.executable).parent / "lint-imports"), "--no-cache"]


@pytest.fixture
def tree(tmp_path):
    for package in ("bench", "models", "tasks"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__", "assets"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def test_the_tree_keeps_the_law(tree):
    done = subprocess.run(LINT, cwd=tree, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("bench/run/score.py", "from bench.board import rows"),
        ("bench/board/rows.py", "from bench.engine import local"),
        ("bench/report/report.py", "from bench.claims import published"),
        ("bench/claims/evidence.py", "from bench.report import report"),
        ("models/mlp.py", "from bench import config"),
        ("models/mlp.py", "from tasks import hmm"),
        ("tasks/hmm.py", "from models import mlp"),
    ],
)
def test_an_import_turned_round_is_refused(tree, module, line):
    file = tree / module
    file.write_text(
        file.read_text().replace(
            "from __future__ import annotations\n", f"from __future__ import annotations\n{line}\n"
        )
    )
    assert line in file.read_text()
    done = subprocess.run(LINT, cwd=tree, capture_output=True, text=True)
    assert done.returncode == 1, done.stdout
    assert "BROKEN" in done.stdout
