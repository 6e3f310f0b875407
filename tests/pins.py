"""constraints.txt: the version of everything that the project installs, dependencies of dependencies included.

`make pins` writes it from a fresh environment with the newest versions, torch and Triton excepted. tests/test_pins.py
compares the environment at hand with it.
"""

import tomllib
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[1]
FILE = ROOT / "constraints.txt"
PROJECT = "tunnel-bench"
# What the CUDA build of torch brings on its own. It differs between builds, and the file is written without CUDA.
CUDA = ("nvidia-", "cuda-")
HEADER = """\
# The exact versions that are tested. Everything is installed through this file, and `make pins` renews it.
# Not pinned: what the CUDA build of torch brings (nvidia-* and cuda-*; torch's own metadata asks for them), what only
# another platform or version of Python needs, pip, and Python itself.
"""


def installed() -> dict[str, str]:
    """The versions of all distributions that the project needs and that are installed, by canonical name."""
    project = distribution(PROJECT)
    extras = set(project.metadata.get_all("Provides-Extra") or ())
    found: dict[str, str] = {}
    seen: set[tuple[str, str]] = set()
    waiting = [(project, extra) for extra in ("", *extras)]
    waiting += [(at, "") for at in map(find, build_requirements()) if at]
    while waiting:
        at, extra = waiting.pop()
        name = canonicalize_name(at.metadata["Name"])
        if (name, extra) in seen:
            continue
        seen.add((name, extra))
        found[name] = Version(at.version).public  # without the +cpu of a build
        for text in at.requires or ():
            need = Requirement(text)
            there = find(need.name) if need.marker is None or need.marker.evaluate({"extra": extra}) else None
            if there:
                waiting += [(there, each) for each in ("", *need.extras)]
    del found[PROJECT]
    return dict(sorted(found.items()))


def build_requirements() -> list[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    return [Requirement(text).name for text in project["build-system"]["requires"]]


def find(name: str) -> Distribution | None:
    try:
        return distribution(name)
    except PackageNotFoundError:
        return None


def can_be_pinned(name: str) -> bool:
    return name == "nvidia-ml-py" or not name.startswith(CUDA)


def pinned() -> dict[str, str]:
    lines = [line for line in FILE.read_text().splitlines() if line and not line.startswith("#")]
    pairs = [line.split("==") for line in lines]
    assert all(len(pair) == 2 for pair in pairs), "every line is name==version"
    return {canonicalize_name(name): version for name, version in pairs}


def render(versions: dict[str, str]) -> str:
    return HEADER + "".join(f"{name}=={version}\n" for name, version in versions.items() if can_be_pinned(name))


if __name__ == "__main__":
    FILE.write_text(render(installed()))
    print(f"wrote {FILE}: {len(pinned())} versions")
