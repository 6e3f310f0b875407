"""Which version of this code a record was made with."""

from __future__ import annotations

import os
import subprocess
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent.parent
CODE = ("bench", "models", "tasks", "pyproject.toml", "constraints.txt")


class Source(NamedTuple):
    commit: str | None
    dirty: bool | None  # files differ from the commit


@cache
def loaded_source() -> Source:
    """The version that this process runs: read once, before its first training, as a later commit is not loaded."""
    return read_source(ROOT)


def read_source(root: Path) -> Source:
    """The commit checked out in a folder; without git, the one that the container image names in its environment."""

    def git(*words: str) -> str:
        command = ["git", "-C", str(root), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        if Path(git("rev-parse", "--show-toplevel")).resolve() == root:  # not a project that this is installed inside
            return Source(git("rev-parse", "HEAD"), bool(git("status", "--porcelain", "--", *CODE)))
    except (OSError, subprocess.CalledProcessError):
        pass  # no git, or no repository
    commit, _, suffix = os.environ.get("TUNNEL_BENCH_COMMIT", "").partition("-")
    return Source(commit or None, True if suffix == "dirty" else None)
