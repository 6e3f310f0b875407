"""The three calls from Python: their examples, and laws against the rest of the suite."""

import doctest
import re
import subprocess
import sys
from pathlib import Path
from statistics import mean, stdev

import numpy as np
import pytest
import torch

from bench import external, library
from bench.config import compose
from bench.registry import BadInput
from bench.run.run import run_one
from bench.run.score import METRICS, make_exam
from bench.seeds import PUBLISHED_FROM
from models.base import ARCHS
from models.stack import mixer
from tasks.base import TASKS, Batch
from tests import test_external

EXTENDING = Path(__file__).parents[1] / "docs/extending.md"


def uniform(tokens, features):
    return torch.full((*tokens.shape, 5), 0.2)


@pytest.mark.parametrize("call", ["draw", "score", "train"])
def test_the_examples_in_the_documentation_of_each_call_hold(call):
    (test,) = doctest.DocTestFinder(recurse=False).find(getattr(library, call), call, globs=dict(vars(library)))
    assert test.examples
    assert doctest.DocTestRunner().run(test).failed == 0


def test_the_examples_in_extending_hold():
    """The section with the three calls comes first."""
    title, section = EXTENDING.read_text().split("\n## ")[1].split("\n", 1)
    assert title == "Three calls from Python"
    blocks = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    test = doctest.DocTestParser().get_doctest("\n".join(blocks), {}, "extending.md", str(EXTENDING), 0)
    assert all(f"library.{call}(" in "".join(e.source for e in test.examples) for call in ("draw", "score", "train"))
    assert doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test).failed == 0


@pytest.mark.parametrize("name", TASKS.names())
def test_a_drawn_batch_has_the_exact_posterior_of_its_task(name):
    task, batch, posterior = library.draw(name, 3, preset="smoke", seed=1)
    torch.testing.assert_close(posterior, task.posterior(batch))
    assert posterior.shape == (3, len(batch.queries), task.shape.classes)
    again = library.draw(name, 3, preset="smoke", seed=1).batch
    assert all(torch.equal(a, b) for a, b in zip(batch, again, strict=True))
    assert not torch.equal(library.draw(name, 3, preset="smoke", seed=2).batch.targets, batch.targets)


def test_drawn_sequences_are_not_those_of_the_evaluation():
    task, batch, _ = library.draw("hmm", 8, seed=PUBLISHED_FROM)
    assert not torch.equal(batch.tokens, make_exam(task, task.horizon, 8, PUBLISHED_FROM, "cpu").batch.tokens)


def test_parameters_and_horizons_are_those_asked_for():
    task, batch, posterior = library.draw("hmm", 2, horizon=7, states=3)
    assert (task.states, batch.targets.shape[1], posterior.shape[-1]) == (3, 7, 3)


@pytest.mark.parametrize("name", ["hmm", "bijection", "markov"])
def test_the_exact_posterior_scores_zero(name):
    task = library.draw(name, 1, preset="smoke").task

    def exact(tokens, features):
        """In numpy; at positions that are not scored any distribution will do."""
        queries = torch.arange(task.shape.length(1) - 1, tokens.shape[1], task.shape.stride)
        p = task.posterior(Batch(tokens, features, torch.zeros(len(tokens), len(queries)).long(), queries))
        filled = np.full((*tokens.shape, task.shape.classes), 1 / task.shape.classes)
        filled[:, queries] = p.numpy()
        return filled

    for scored in library.score(exact, name, preset="smoke").values():
        for metrics in scored.metrics.values():
            assert all(abs(estimate.value) < 1e-9 for estimate in metrics.values())


def test_score_gives_the_numbers_of_a_run():
    """For a trained model: those of its own record, in every part, for it and for the references."""
    config = compose("smoke", "gru", "hmm-pool", PUBLISHED_FROM, "cpu", {"steps": 3})
    expected, _ = run_one(config)
    record, model = library.train("gru", "hmm-pool", preset="smoke", device="cpu", steps=3)
    assert record.metrics == expected.metrics
    found = library.score(lambda t, f: model(t, f).double().softmax(-1), "hmm-pool", preset="smoke")
    assert {str(k) for k in found} == set(record.metrics)
    for k, scored in found.items():
        assert scored.references == record.references[str(k)]
        assert scored.metrics.keys() == record.metrics[str(k)].keys()
        for part, metrics in scored.metrics.items():
            assert set(metrics) == set(METRICS)
            for name, estimate in metrics.items():
                assert estimate.value == pytest.approx(record.metrics[str(k)][part][name], abs=1e-12)
        for name, curve in scored.by_position.items():
            assert curve == pytest.approx(record.by_position[str(k)][name], abs=1e-12)


def test_intervals_are_students_t_over_sequences():
    """Against the textbook's formula: 2.0096 is the 97.5 % quantile of Student's t with 49 degrees of freedom."""
    kl = library.score(uniform, "hmm", preset="smoke", sequences=50)[20].metrics["all"]["kl"]
    task = library.draw("hmm", 1, preset="smoke").task
    p = make_exam(task, 20, 50, PUBLISHED_FROM, "cpu").posterior
    values = (torch.xlogy(p, p).sum(-1) / np.log(2) + np.log2(5)).mean(1).tolist()
    reach = 2.0096 * stdev(values) / 50**0.5
    assert kl == pytest.approx((mean(values), mean(values) - reach, mean(values) + reach), rel=1e-4)


def test_what_has_no_interval_says_so():
    scored = library.score(uniform, "hmm", preset="smoke", sequences=4)[20].metrics["all"]
    assert scored["entropy_curve_mae"][1:] == (None, None)
    alone = library.score(uniform, "hmm", preset="smoke", sequences=1)[20].metrics["all"]
    assert alone["kl"][1:] == (None, None)


def test_a_limited_model_is_scored_where_it_reaches():
    class Limited(torch.nn.Module):
        max_length = library.draw("hmm", 1).task.shape.length(20)

        def forward(self, tokens, features):
            return uniform(tokens, features)

    found = library.score(Limited(), "hmm", preset="smoke")
    assert [bool(found[k].metrics) for k in (20, 30, 50)] == [True, False, False]
    assert found[50].references["uniform"]["post"]["kl"] > 0


@pytest.mark.parametrize("training", [True, False])
def test_a_module_is_scored_without_dropout_and_left_in_its_mode(training):
    class Dropping(torch.nn.Module):
        def forward(self, tokens, features):
            assert not self.training
            return uniform(tokens, features)

    model = Dropping().train(training)
    library.score(model, "hmm", preset="smoke", sequences=4)
    assert model.training == training


def test_an_outcome_called_impossible_is_costly_and_finite():
    def sure(tokens, features):
        return np.eye(5)[np.zeros(tokens.shape, dtype=int)]

    assert 100 < library.score(sure, "hmm", preset="smoke")[20].metrics["all"]["kl"].value < 997


def looks_ahead(tokens, features):
    seen = tokens.double().mean(1)
    return torch.softmax(seen[:, None, None] * torch.arange(5).expand(*tokens.shape, 5), -1)


def in_pairs(tokens, features):
    """Each even position sees the next one, too: a cut after an even number of positions shows nothing."""
    seen = torch.nn.functional.pad(tokens, (0, tokens.shape[1] % 2)).unflatten(1, (-1, 2)).sum(2)
    return torch.softmax(seen.repeat_interleave(2, 1)[:, : tokens.shape[1], None] * torch.arange(5.0), -1)


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (lambda t, f: uniform(t, f)[:, :-1], r"returns \[2, \d+, 5\], where \[sequences, positions, classes\] are "),
        (lambda t, f: uniform(t, f) * 0.9, r"sum to 0\.9, not to 1"),
        (lambda t, f: uniform(t, f).log(), "a probability of -1.609: logits need a softmax"),
        (lambda t, f: uniform(t, f) / 0, "not finite"),
        (lambda t, f: [0.2] * 5, "returns a list, not a tensor or an array"),
        (looks_ahead, "model sees the future"),
        (in_pairs, "model sees the future"),
        (None, "the model is a NoneType, which cannot be called with tokens and features"),
    ],
)
def test_what_is_no_prediction_is_refused(model, reason):
    with pytest.raises(BadInput, match=reason):
        library.score(model, "hmm", preset="smoke")


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda: library.draw("hm", 1), "no task 'hm'. Did you mean 'hmm'"),
        (lambda: library.draw("hmm", 1, preset="huge"), "no preset 'huge'"),
        (lambda: library.draw("hmm", 0), "sequences must be at least 1, not 0"),
        (lambda: library.draw("hmm", 1, horizon=-1), "horizons.* must be at least 1, not -1"),
        (lambda: library.draw("hmm", 1, stats=3), "no parameter of hmm 'stats'. Did you mean 'states'"),
        (lambda: library.score(uniform, "hmm", steps=3), "no parameter of hmm 'steps'"),
        (lambda: library.score(uniform, "bijection", horizons=[20, 30]), "no horizon 30: its longest is 20"),
        (lambda: library.score(uniform, "hmm", horizons=[0]), "horizons.* must be at least 1, not 0"),
        (lambda: library.score(uniform, "hmm", device="tpu"), "device must be auto, cpu, cuda or cuda:N, not 'tpu'"),
        (lambda: library.train("mpl", "hmm"), "Did you mean 'mlp'"),
        (lambda: library.score(uniform, "hmm", horizons=50), "horizons must be a list of whole numbers, not 50"),
        (lambda: library.train("mlp", "hmm", preset="smoke", out=Path("/proc/x")), "cannot write to /proc/x"),
    ],
)
def test_a_mistake_is_named(call, reason):
    with pytest.raises(BadInput, match=reason):
        call()


def test_files_are_named_as_on_the_command_line(tmp_path):
    (tmp_path / "mine.py").write_text(test_external.MODEL)
    (tmp_path / "coins.py").write_text(test_external.TASK)
    arch, task = str(tmp_path / "mine.py"), str(tmp_path / "coins.py")
    try:
        assert library.draw(task, 3).batch.tokens.shape == (3, 20)
        record, _ = library.train(arch, task, preset="smoke", device="cpu", steps=2, out=tmp_path / "results")
        assert record.config.arch_source.startswith("sha256:")
        assert list((tmp_path / "results").rglob("*.arch.py"))
    finally:
        for code in external.loaded_code():
            ARCHS.forget(code.origin)
            TASKS.forget(code.origin)


def test_code_that_no_file_is_known_of_is_trained_and_not_written(tmp_path):
    """Its record would be said to come from this suite, and another text would replace it."""

    @mixer("typed-here", note="")
    class TypedHere(torch.nn.Linear):
        def __init__(self, width):
            super().__init__(width, width)

    try:
        assert library.train("typed-here", "hmm", preset="smoke", device="cpu", steps=1).record.ok
        with pytest.raises(BadInput, match="architecture 'typed-here' was registered by this program"):
            library.train("typed-here", "hmm", preset="smoke", device="cpu", steps=1, out=tmp_path)
        assert list(tmp_path.iterdir()) == []
    finally:
        del ARCHS._entries["typed-here"], ARCHS._facts["typed-here"]
    assert not any(ARCHS.registered_here(name) for name in ARCHS.names())
    assert not any(TASKS.registered_here(name) for name in TASKS.names())


@pytest.mark.parametrize("hides", ["models/__init__.py", "tasks.py"])
def test_a_folder_that_hides_ours_is_named(tmp_path, hides):
    (tmp_path / hides).parent.mkdir(exist_ok=True)
    (tmp_path / hides).write_text("")
    done = subprocess.run([sys.executable, "-c", "import bench"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1
    assert f"{tmp_path / hides} hides the package '{hides.removesuffix('.py').split('/')[0]}'" in done.stderr
