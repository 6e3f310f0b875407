"""A mixer that is registered by its decorator obeys every law of an architecture, and a bad one is refused."""

import importlib.util
import os
import re
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from bench.cli import main
from bench.config import compose
from bench.registry import BadInput
from bench.report.rollout import refusal, rollout
from bench.run.run import run_one, train_flops
from bench.seeds import generator
from models.base import ARCHS, Geometry, residual_out
from models.stack import RecurrentStack, Stack, mixer
from models.taps import tap_names
from tasks.base import TASKS
from tasks.bernoulli import Bernoulli
from tests import test_mechanism, test_models, test_rollout, test_train

EXTENDING = (Path(__file__).parent.parent / "docs/extending.md").read_text()
LAWS = sorted(name for name in vars(test_models.TestEveryArchitecture) if name.startswith("test_"))


@pytest.fixture(autouse=True)
def _only_ours(monkeypatch):
    """Nothing is registered but what a test registers, and it is forgotten afterwards."""
    monkeypatch.setattr(ARCHS, "_entries", {})
    monkeypatch.setattr(ARCHS, "_facts", {})


@pytest.fixture
def example(tmp_path, monkeypatch):
    """Load an example of docs/extending.md from a file, as it is shown, and return the file."""

    def load(name):
        file = tmp_path / f"{name}.py"
        file.write_text(re.search(rf"`models/{name}\.py`.*?```python\n(.*?)```", EXTENDING, re.DOTALL)[1])
        spec = importlib.util.spec_from_file_location(f"example_{name}", file)
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, spec.name, module)
        spec.loader.exec_module(module)
        return file

    return load


EXAMPLES = [("decay", "decay"), ("fast_weights", "fast-weights")]


def test_the_example_has_ten_lines():
    code = re.search(r"`models/decay\.py`.*?\n(@mixer.*?)```", EXTENDING, re.DOTALL)[1]
    assert len([line for line in code.splitlines() if line]) == 10


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize(("file", "arch"), EXAMPLES)
def test_a_mixer_obeys_the_laws_of_an_architecture(example, file, arch, law):
    example(file)
    for task in ("bijection", "hmm"):
        getattr(test_models.TestEveryArchitecture(), law)(arch, task)


@pytest.mark.parametrize(("file", "arch"), EXAMPLES)
def test_a_mixers_matrices_are_muons(example, smoke, file, arch):
    example(file)
    for task, positions in (("bijection", "learned"), ("hmm", "alibi-shift")):
        test_train.test_muon_takes_the_matrices_between_embedding_and_head(smoke, task, positions)


@pytest.mark.parametrize(("file", "arch"), EXAMPLES)
def test_a_report_can_ask_a_mixer(example, monkeypatch, tmp_path, file, arch):
    example(file)
    test_mechanism.test_every_architecture_can_be_asked(arch, monkeypatch, tmp_path)


def test_a_matrix_that_nobody_marked_is_muons_as_one_map():
    @mixer("plain", note="")
    class Plain(nn.Linear):
        def __init__(self, width):
            super().__init__(width, width)

    model = test_models.make("plain", TASKS["hmm"]())
    assert type(model) is Stack
    assert {(b.mixer.weight.optimizer, b.mixer.weight.parts) for b in model.blocks} == {("muon", 1)}
    assert "blocks.0.mixed" in tap_names(model)


def test_the_same_run_gives_the_same_bits(example, smoke):
    example("fast_weights")
    config = smoke("fast-weights", "hmm", steps=3, sequences=16)
    (first, weights), (second, again) = run_one(config), run_one(config)
    assert first.ok
    assert weights == again
    assert first.metrics == second.metrics


def test_a_mixer_with_steps_can_be_rolled_out(example):
    example("fast_weights")
    example("decay")
    task = Bernoulli(horizon=15)
    model = test_models.make("fast-weights", task, Geometry(3, 2, 32, 64, "alibi-shift")).eval()
    assert isinstance(model, RecurrentStack)
    width = model.head.in_features
    assert model.state_bytes(15) == model.state_bytes(5000) == 3 * 4 * (width * 8 + width)  # matrices and the shift
    contexts = task.sample(3, 7, generator("cpu", 0, "t")).tokens
    greedy = rollout(model, contexts, 1, 15, generator("cpu", 0, "r"), greedy=True)[:, 0].long()
    assert torch.equal(greedy, test_rollout.recompute(model, contexts, 15))
    assert refusal(test_models.make("decay", task), 5) == "the architecture has no step function"


def test_widths_are_multiples_of_what_the_mixer_needs():
    for name, multiple in (("eights", 8), ("thirties", 30)):
        mixer(name, note="", multiple=multiple)(lambda width: nn.Linear(width, width))
        assert test_models.make(name, TASKS["hmm"]()).head.in_features % multiple == 0


def test_a_mixers_own_file_decides_whether_its_code_is_newer(example, smoke, tmp_path):
    file = example("decay")
    record = tmp_path / "record.json"
    record.touch()
    os.utime(file, (0, 0))
    assert smoke("decay").newer_code(record) is None
    os.utime(record, (0, 0))
    os.utime(file, (9, 9))
    assert smoke("decay").newer_code(record) == "models/decay.py"


class Changed(nn.Linear):
    """A linear layer whose output is changed, with steps."""

    def __init__(self, width, change, step=lambda y: y):
        super().__init__(width, width)
        self.change, self.change_step = change, step

    def forward(self, x):
        return self.change(super().forward(x))

    def start(self, batch, length):
        return []

    def step(self, x_BD, state):
        return self.change_step(super().forward(x_BD))


class StartOnly(nn.Linear):
    start = None


@pytest.mark.parametrize(
    ("make", "fault"),
    [
        (lambda w: Changed(w, lambda y: (y, None)), r"bad on hmm: its mixer returns a tuple for \[2, 9, \d+\]"),
        (lambda w: Changed(w, lambda y: y[..., :1]), r"its mixer returns \[2, 9, 1\] for \[2, 9, \d+\]"),
        (lambda w: Changed(w, lambda y: y[:, -1]), r"its mixer returns \[2, \d+\] for"),
        (lambda w: Changed(w, lambda y: y + y.flip(1).cumsum(1).flip(1)), "its mixer sees the future"),
        (
            lambda w: Changed(w, lambda y: y + y[:, [1, 0, 3, 2, 5, 4, 7, 6, 8]]),
            "its mixer sees the future",
        ),  # in pairs
        (lambda w: Changed(w, lambda y: y + y[:, [2, 1, 0, 5, 4, 3, 8, 7, 6]]), "its mixer sees the future"),
        (lambda w: residual_out(Changed(w, lambda y: y + y.flip(1))), "its mixer sees the future"),  # it starts at zero
        (lambda w: Changed(w, lambda y: y, lambda y: 1.01 * y), "its mixer's steps differ from its forward pass"),
        (lambda w: Changed(w, lambda y: y, lambda y: y[:, None]), "its mixer's steps differ"),
        (lambda w: StartOnly(w, w), "its mixer has one of start and step: it needs both, or neither"),
        (lambda w: {}, "its mixer is a dict, not a torch module"),
        (lambda w: Changed(w, lambda y: nothing), "no bad on hmm can be built from this: NameError"),  # noqa: F821
        (lambda: None, "no bad on hmm can be built from this: TypeError"),
    ],
)
def test_a_bad_mixer_is_refused_before_anything_is_written(make, fault, smoke):
    mixer("good", note="")(lambda width: Changed(width, lambda y: y))
    mixer("bad", note="")(make)
    smoke("good", "hmm")
    with pytest.raises(BadInput, match=fault):
        smoke("bad", "hmm")


def test_a_bad_mixer_is_one_line_and_exit_code_2(capsys, tmp_path):
    mixer("bad", note="")(lambda width: Changed(width, lambda y: y.flip(1)))
    assert main(["run", "--arch", "bad", "--task", "hmm", "--preset", "smoke", "--out", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_state_of_unknown_kind_is_refused(smoke):
    class Odd(Changed):
        def start(self, batch, length):
            return object()

    mixer("odd", note="")(lambda width: Odd(width, lambda y: y))
    with pytest.raises(
        BadInput, match="odd on hmm: a state holds tensors and numbers in lists, tuples or dicts, not a"
    ):
        smoke("odd", "hmm")


def test_a_mixer_for_cuda_is_refused_on_a_cpu_in_one_line(example, smoke):
    example("gla")
    with pytest.raises(BadInput, match="gla runs on CUDA only, not on cpu"):
        smoke("gla", "hmm")
    if importlib.util.find_spec("fla.layers") is None:
        with pytest.raises(
            BadInput, match="no gla on hmm can be built from this: ModuleNotFoundError: No module named"
        ):
            compose("smoke", "gla", "hmm", 0, "cuda", {})


def test_a_mixer_for_cuda_is_not_tried_and_not_counted_on_a_cpu():
    mixer("stub", note="", cuda=True)(lambda width: Changed(width, lambda y: nothing))  # noqa: F821
    assert train_flops(compose("smoke", "stub", "hmm", 0, "cuda", {})) is None
