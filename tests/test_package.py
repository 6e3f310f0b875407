"""What an installed package contains, and a checkout has anyway."""

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("bench", "models", "tasks")


def test_files_that_are_not_python_are_installed_too(tmp_path):
    tree, built = tmp_path / "tree", tmp_path / "built"
    for name in PACKAGES:
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    script = "from setuptools import setup; setup()"
    subprocess.run([sys.executable, "-c", script, "-q", "build_py", "-d", str(built)], cwd=tree, check=True)
    wanted = {path.relative_to(tree) for name in PACKAGES for path in (tree / name).rglob("*") if path.is_file()}
    found = {path.relative_to(built) for path in built.rglob("*") if path.is_file()}
    assert found == wanted
    assert {Path(name, "py.typed") for name in PACKAGES} < found  # their types are for others too
    assert Path("models/hf_types.json") in found
