"""What `bench run` refuses to score, whoever wrote the model."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from bench.registry import BadInput, Registry, load
from bench.run.contract import Unlawful, require_lawful
from bench.run.run import run_one
from models.base import ARCHS
from models.transformer import reference


class Changed(nn.Module):
    """The reference transformer, its logits changed."""

    def __init__(self, config, change):
        super().__init__()
        self.inner = reference(config.make_task().shape, config.geometry())
        self.change = change

    def forward(self, tokens_BT, features_BTF):
        return self.change(self.inner(tokens_BT, features_BTF))


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda x: x + x.flip(1).cumsum(1).flip(1), "sees the future: what follows position"),
        (lambda x: x + x.mean(0, keepdim=True), "mixes sequences"),
        (
            lambda x: torch.cat([x, x[:, -1:]], 1),
            "returns [2, 31, 5], where [sequences, positions, classes] are [2, 30, 5]",
        ),
        (lambda x: x[..., :-1], "returns [2, 30, 4], where"),
        (lambda x: (x, None), "returns a tuple, where"),
    ],
)
def test_what_is_against_the_laws_is_said_in_one_line(smoke, change, fault):
    config = smoke(task="hmm")
    with pytest.raises(Unlawful) as refused:
        require_lawful(Changed(config, change), config.make_task(), config)
    assert fault in str(refused.value)
    require_lawful(Changed(config, lambda x: x), config.make_task(), config)


class Late(nn.Module):
    """Sees the future by a weight that starts at zero."""

    def __init__(self, inner):
        super().__init__()
        self.inner, self.ahead = inner, nn.Parameter(torch.zeros(1))

    def forward(self, tokens_BT, features_BTF):
        x = self.inner(tokens_BT, features_BTF)
        return x + self.ahead * x.flip(1).cumsum(1).flip(1)


def test_what_training_brings_out_is_a_failed_run(smoke, monkeypatch, capsys):
    config = smoke(task="hmm", steps=12)
    make = type(config).make_model
    monkeypatch.setattr(type(config), "make_model", lambda self: Late(make(self)))
    record, weights = run_one(config)
    assert (record.status, weights) == ("failed", None)
    assert "transformer sees the future" in record.error
    assert record.seconds.train > 0  # only its trained weights showed it
    assert capsys.readouterr().err == ""


def test_a_module_that_cannot_be_loaded_is_named_with_its_line(tmp_path, monkeypatch):
    package = tmp_path / "shelf"
    package.mkdir()
    (package / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    for source, told in (
        ("def x(:", r"shelf/broken.py cannot be loaded: SyntaxError: .*line 1"),
        ("\nnothing", r"NameError: name 'nothing' is not defined \(broken.py, line 2\)"),
    ):
        (package / "broken.py").write_text(source)
        with pytest.raises(BadInput, match=told):
            load("shelf", [str(package)])


@pytest.mark.parametrize("name", ["Upper", "under_score", "", "a--b", "../up"])
def test_a_name_that_no_record_could_have_is_refused(name):
    with pytest.raises(BadInput, match="needs another name"):
        Registry("architecture").add(name)(lambda: None)


def test_a_mistake_in_a_model_is_one_line(bench_run, monkeypatch):
    def build(*_):
        return undefined  # noqa: F821

    monkeypatch.setitem(ARCHS._entries, "mlp", build)
    code, err = bench_run("--arch", "mlp", "--task", "hmm", "--preset", "smoke")
    assert code == 2
    assert "no mlp on hmm can be built from this: NameError: name 'undefined' is not defined (test_laws.py, line" in err


@pytest.fixture
def bench_run(capsys, tmp_path, monkeypatch):
    from bench.cli import main

    monkeypatch.chdir(tmp_path)

    def call(*words):
        return main(["run", *words]), capsys.readouterr().err

    return call


def test_all_among_others_is_all(bench_run, monkeypatch):
    seen = []
    monkeypatch.setattr("bench.engine.dispatch.run_all", lambda configs, *_: seen.extend(c.arch for c in configs) or [])
    assert bench_run("--arch", "mlp", "all", "--task", "hmm", "--preset", "smoke") == (0, "")
    assert seen == ARCHS.names()


def test_python_m_bench_is_bench():
    root = Path(__file__).parent.parent
    done = subprocess.run([sys.executable, "-m", "bench", "--version"], cwd=root, capture_output=True, text=True)
    assert (done.returncode, done.stdout.split()[0]) == (0, "tunnel-bench")
