"""What is installed is what was pinned, down to the last package."""

from pathlib import Path

import pytest

from tests import pins

ROOT = Path(__file__).parents[1]


def test_every_installed_version_is_the_pinned_one():
    wanted = pins.pinned()
    found = {name: version for name, version in pins.installed().items() if pins.can_be_pinned(name)}
    loose = sorted(found.keys() - wanted.keys())
    assert not loose, f"installed and not pinned: {', '.join(loose)}; make pins renews constraints.txt"
    differing = {name: (version, wanted[name]) for name, version in found.items() if version != wanted[name]}
    assert not differing, f"installed, pinned: {differing}; make pins renews constraints.txt"


def test_dependencies_of_dependencies_are_among_them():
    """Of torch (sympy, mpmath), of matplotlib (pillow), of the notebook's kernel (pyzmq)."""
    found = pins.installed()
    assert {"torch", "sympy", "mpmath", "pillow", "ray", "pyzmq", "setuptools"} <= found.keys()
    assert "pip" not in found
    assert pins.PROJECT not in found


def test_nothing_is_pinned_that_is_not_needed():
    extra = sorted(pins.pinned().keys() - pins.installed().keys())
    assert not extra, f"pinned and not needed here: {', '.join(extra)}; make pins renews constraints.txt"


@pytest.mark.parametrize("change", ["version", "missing"])
def test_a_difference_is_found(change, monkeypatch, tmp_path):
    versions = pins.installed()
    if change == "version":
        versions["sympy"] = "0.1"
    else:
        del versions["sympy"]
    file = tmp_path / "constraints.txt"
    file.write_text(pins.render(versions))
    monkeypatch.setattr(pins, "FILE", file)
    with pytest.raises(AssertionError, match="sympy"):
        test_every_installed_version_is_the_pinned_one()


def test_the_file_is_what_would_be_written():
    """In order, with the note on what is not pinned; a line by hand does not last."""
    assert pins.FILE.read_text() == pins.render(dict(sorted(pins.pinned().items())))


def test_what_torch_brings_for_cuda_is_left_to_torch():
    versions = {"nvidia-cublas": "13.1", "cuda-bindings": "13.0", "nvidia-ml-py": "13.6", "torch": "2.13"}
    assert [line.split("==")[0] for line in pins.render(versions).splitlines() if "==" in line] == [
        "nvidia-ml-py",
        "torch",
    ]


def test_make_and_image_install_through_the_file():
    makefile, dockerfile = ((ROOT / name).read_text() for name in ("Makefile", "Dockerfile"))
    assert "PIP_CONSTRAINT=constraints.txt" in makefile
    assert "pip install --no-cache-dir -c constraints.txt" in dockerfile
