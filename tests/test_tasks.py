"""Laws of the tasks: their posteriors against brute force and another library, and the formulas of the paper."""

import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from hmmlearn.hmm import CategoricalHMM

from bench.registry import BadInput
from bench.run.score import entropy_bits, make_exam, score
from bench.seeds import generator
from tasks.base import TASKS
from tasks.bernoulli import BOS, Bernoulli
from tasks.bijection import Bijection, BijectionRevisit
from tasks.hmm import HMM, StickyHMM
from tasks.recall import Recall
from tasks.regression import Regression
from tests.oracles import (
    condition_functions,
    enumerate_bijections,
    enumerate_paths,
    enumerate_tables,
    enumerate_window,
    integrate_coins,
    sum_over_weights,
)

RELAXATIONS = (2.0, 8.0, 32.0)  # rungs of hmm-sticky
EXACT = {"rtol": 0.0, "atol": 1e-12}


def draw(task, n, horizon=None, seed=0):
    return task.sample(n, horizon or task.horizon, generator("cpu", seed, "test"))


@pytest.mark.parametrize("size", [2, 3, 5, 6])
def test_bijection_posterior_matches_enumeration(size):
    task = Bijection(size, horizon=size)
    batch = draw(task, 16)
    torch.testing.assert_close(task.posterior(batch), enumerate_bijections(task, batch), **EXACT)


@pytest.mark.parametrize(("size", "horizon"), [(2, 7), (3, 1), (4, 9), (5, 15)])
def test_revisit_posterior_matches_enumeration(size, horizon):
    task = BijectionRevisit(size, horizon=horizon)
    batch = draw(task, 16)
    torch.testing.assert_close(task.posterior(batch), enumerate_bijections(task, batch), **EXACT)


@pytest.mark.parametrize(("states", "symbols", "horizon"), [(2, 2, 6), (2, 5, 4), (3, 2, 5), (5, 5, 3), (3, 4, 1)])
def test_hmm_posterior_matches_path_enumeration(states, symbols, horizon):
    task = HMM(states, symbols, horizon)
    batch = draw(task, 4)
    torch.testing.assert_close(task.posterior(batch), enumerate_paths(task, batch), **EXACT)


@pytest.mark.parametrize("window", [1, 2, 3, 7])
def test_window_posterior_matches_path_enumeration(window):
    task = HMM(states=3, symbols=3, horizon=5)
    batch = draw(task, 4)
    torch.testing.assert_close(task.window_posterior(batch, window), enumerate_window(task, batch, window), **EXACT)


def test_hmm_filter_equals_hmmlearn_at_fifty_steps():
    task = HMM()
    batch = draw(task, 200, horizon=50)
    ours = task.posterior(batch).numpy()
    for b in range(len(batch.tokens)):
        transition, emission = batch.features[b, :5, :5].numpy(), batch.features[b, 5:10, :5].numpy()
        library = CategoricalHMM(n_components=5, n_features=5)
        library.startprob_ = np.full(5, 0.2) @ transition  # a transition comes before the first observation
        library.transmat_, library.emissionprob_ = transition, emission
        symbols = batch.tokens[b, 10:].numpy()[:, None]
        # a filter is a smoother that stops now: the last row of each prefix
        for k in (0, 1, 7, 19, 29, 49):
            theirs = library.predict_proba(symbols[: k + 1])[-1]
            np.testing.assert_allclose(ours[b, k], theirs, rtol=0, atol=1e-10)


@pytest.mark.parametrize("relaxation", [0.5, *RELAXATIONS])
def test_sticky_posterior_matches_path_enumeration(relaxation):
    task = StickyHMM(3, 3, 5, relaxation)
    batch = draw(task, 4)
    torch.testing.assert_close(task.posterior(batch), enumerate_paths(task, batch), **EXACT)
    torch.testing.assert_close(task.window_posterior(batch, 2), enumerate_window(task, batch, 2), **EXACT)


@pytest.mark.parametrize("relaxation", RELAXATIONS)
def test_sticky_chains_relax_at_the_time_they_say(relaxation):
    """Every eigenvalue of T but the first is exp(-1 / relaxation)."""
    transition = draw(StickyHMM(relaxation=relaxation), 20).features[:, :5, :5]
    sizes = torch.linalg.eigvals(transition).abs().sort(-1).values
    expected = torch.tensor([math.exp(-1 / relaxation)] * 4 + [1.0], dtype=torch.float64)
    torch.testing.assert_close(sizes, expected.expand_as(sizes), rtol=0, atol=1e-6)


def window_error(task, window):
    exam = make_exam(task, 40, 500, 0, "cpu")
    return score(exam, task.window_posterior(exam.batch, window).log()).summary()["entropy_mae"]


def test_the_ladder_on_the_page_is_the_one_computed():
    text = (Path(__file__).parent.parent / "docs/tasks.md").read_text()
    chains = {"`hmm`": HMM(), **{f"relaxation {r:g}": StickyHMM(relaxation=r) for r in RELAXATIONS}}
    for name, task in chains.items():
        cells = re.search(rf"^\| {name} \| (0[^|]*\|.*) \|$", text, re.MULTILINE)[1].split(" | ")
        for window, cell in zip((1, 2, 4, 8, 16, 32), cells, strict=True):
            assert float(cell) == pytest.approx(window_error(task, window), rel=0.02, abs=6e-5)


def test_each_rung_of_the_ladder_needs_more_memory():
    """On the top rung a filter that remembers eight steps errs at least ten times as much as on hmm."""
    errors = [window_error(StickyHMM(relaxation=relaxation), 8) for relaxation in RELAXATIONS]
    assert errors == sorted(errors)
    assert errors[-1] >= 10 * window_error(HMM(), 8)
    assert StickyHMM().relaxation == RELAXATIONS[-1]


@pytest.mark.parametrize(
    ("keys", "values", "pairs", "gap", "horizon"), [(1, 2, 1, 0, 1), (4, 3, 2, 3, 7), (5, 4, 5, 1, 6), (6, 3, 1, 0, 15)]
)
def test_recall_posterior_matches_enumeration(keys, values, pairs, gap, horizon):
    task = Recall(keys, values, pairs, gap, horizon)
    batch = draw(task, 8)
    torch.testing.assert_close(task.posterior(batch), enumerate_tables(task, batch), **EXACT)


@pytest.mark.parametrize(("dims", "noise", "bins", "horizon"), [(1, 0.5, 2, 1), (3, 0.2, 7, 15), (4, 1.0, 20, 20)])
def test_regression_posterior_matches_conditioning_of_functions(dims, noise, bins, horizon):
    task = Regression(dims, noise, bins, horizon)
    batch = draw(task, 8)
    torch.testing.assert_close(task.posterior(batch), condition_functions(task, batch), rtol=0, atol=1e-10)


def test_regression_posterior_matches_a_sum_over_weights():
    task = Regression(dims=1, noise=0.5, bins=6, horizon=8)
    batch = draw(task, 5)
    torch.testing.assert_close(task.posterior(batch), sum_over_weights(task, batch), rtol=0, atol=1e-9)


@pytest.mark.parametrize("bos", [False, True])
@pytest.mark.parametrize(("a", "b", "horizon"), [(1.0, 1.0, 1), (1.0, 1.0, 15), (2.0, 5.0, 9), (1.5, 1.0, 6)])
def test_bernoulli_posterior_matches_integration(a, b, bos, horizon):
    task = Bernoulli(a, b, bos, horizon)
    batch = draw(task, 4)
    expected = integrate_coins(task, batch)
    torch.testing.assert_close(task.posterior(batch), expected, rtol=0.0, atol=1e-9)


@pytest.mark.parametrize(("a", "b"), [(1.0, 1.0), (0.5, 0.5), (2.0, 8.0)])
def test_bernoulli_biases_have_the_moments_of_their_prior(a, b):
    p = Bernoulli(a, b).draw_p(40_000, generator("cpu", 0, "test"))
    mean, variance = a / (a + b), a * b / ((a + b) ** 2 * (a + b + 1))
    assert abs(p.mean() - mean) < 4 * (variance / 40_000) ** 0.5
    assert p.var().item() == pytest.approx(variance, rel=0.05)


def test_bernoulli_targets_are_the_bits_that_come_next():
    plain, marked = Bernoulli(horizon=9), Bernoulli(bos=True, horizon=9)
    batch = draw(plain, 5)
    assert torch.equal(batch.targets[:, :-1], batch.tokens[:, 1:])
    batch = draw(marked, 5)
    assert (batch.tokens[:, 0] == BOS).all()
    assert torch.equal(batch.targets[:, :-1], batch.tokens[:, 1:])
    assert marked.posterior(batch)[:, 0].tolist() == [[0.5, 0.5]] * 5  # nothing seen: the prior's mean


def test_bijection_entropy_is_the_papers_formula():
    task = Bijection()
    h = entropy_bits(task.posterior(draw(task, 32)))
    expected = torch.tensor([math.log2(20 - k + 1) for k in range(1, 21)], dtype=torch.float64)
    torch.testing.assert_close(h, expected.expand_as(h), **EXACT)


VARIANTS = (
    *((name, {}) for name in TASKS.names()),
    ("bernoulli", {"pool": 7}), ("markov", {"order": 3, "pool": 5}),
    ("markov", {"order": 1, "alphabet": 3, "sticky": 4.0}),
    ("regression", {"pool": 6}), ("recurrence", {"opaque": True}), ("recurrence", {"modulus": 5, "holdout": 0.3}),
    ("group", {"group": "a5", "noise": 0.2}), ("hmm-pool", {"pool": 3}), ("recall-64", {"pairs": 16}),
)  # fmt: skip


@pytest.mark.parametrize(("name", "params"), VARIANTS, ids=lambda part: part if isinstance(part, str) else str(part))
class TestEveryTask:
    def test_rows_sum_to_one_at_every_horizon(self, name, params):
        task = TASKS[name](**params)
        for horizon in {1, 2, 15, task.horizon, task.max_horizon() or 50}:
            batch = draw(task, 9, horizon)
            p = task.posterior(batch)
            assert p.dtype == torch.float64
            assert p.shape == (9, len(batch.queries), task.shape.classes)
            torch.testing.assert_close(p.sum(-1), torch.ones_like(p[..., 0]), **EXACT)
            assert (p >= 0).all()

    def test_a_batch_has_the_shape_it_promises(self, name, params):
        task = TASKS[name](**params)
        batch = draw(task, 7)
        length = task.shape.length(task.horizon)
        assert batch.tokens.shape == (7, length)
        assert batch.features.shape == (7, length, task.shape.features)
        assert batch.targets.shape == (7, len(batch.queries))
        assert batch.tokens.min() >= 0
        assert batch.tokens.max() < task.shape.vocab
        assert batch.targets.max() < task.shape.classes

    def test_same_seed_same_batch_and_another_seed_another(self, name, params):
        task = TASKS[name](**params)
        for a, b in zip(draw(task, 5), draw(task, 5), strict=True):
            assert torch.equal(a, b)
        one, other = draw(task, 5), draw(task, 5, seed=1)
        assert not (torch.equal(one.tokens, other.tokens) and torch.equal(one.features, other.features))

    def test_targets_are_honest_draws_from_the_posterior(self, name, params):
        """Outcomes that the posterior calls p happen in a share p of cases; checked in ten bins, at four sigma."""
        task = TASKS[name](**params)
        batch = draw(task, 4000)
        p = task.posterior(batch).flatten()
        happened = torch.nn.functional.one_hot(batch.targets, task.shape.classes).double().flatten()
        for low in (*torch.arange(0, 1, 0.1).tolist(), 1.0):  # what is certain has a bin of its own
            inside = (p >= low) & (p < min(low + 0.1, 1.0)) if low < 1 else p == 1
            if inside.sum() < 100:
                continue
            expected, observed = p[inside].mean(), happened[inside].mean()
            # outcomes of one sequence are not independent: count sequences, not positions
            sigma = (expected * (1 - expected) / inside.sum() * task.horizon).sqrt()
            assert abs(observed - expected) <= 4 * sigma

    def test_posterior_ignores_targets_and_the_future(self, name, params):
        task = TASKS[name](**params)
        batch = draw(task, 6)
        p = task.posterior(batch)
        blind = batch._replace(targets=torch.zeros_like(batch.targets))
        assert torch.equal(task.posterior(blind), p)
        middle = len(batch.queries) // 2
        cut = int(batch.queries[middle])
        shorter = task.sample(6, middle + 1, generator("cpu", 1, "test"))
        prefix = shorter._replace(tokens=batch.tokens[:, : cut + 1], features=batch.features[:, : cut + 1])
        torch.testing.assert_close(task.posterior(prefix), p[:, : middle + 1], **EXACT)

    def test_an_impossible_parameter_is_refused(self, name, params):
        with pytest.raises(BadInput, match="horizon must be at least 1, not 0"):
            TASKS[name](**params, horizon=0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Bijection(size=1), "size must be 2 to 4096, not 1"),
        (lambda: Bijection(size=10**9), "size must be 2 to 4096, not 1000000000"),
        (lambda: Bijection(size=5, horizon=6), "at most 5 steps, not 6"),
        (lambda: Bijection(5, 5).sample(1, 6, generator("cpu", 0)), "at most 5 steps, not 6"),
        (lambda: Bernoulli(a=0.0), "a must be a number from 0.05 to 1,000,000, not 0.0"),
        (lambda: Bernoulli(b=math.nan), "b must be a number from 0.05 to 1,000,000, not nan"),
        (lambda: Bernoulli().sample(1, 0, generator("cpu", 0)), "horizon must be at least 1, not 0"),
        (lambda: HMM(states=1), "states must be 2 to 4096, not 1"),
        (lambda: HMM(symbols=0), "symbols must be 2 to 4096, not 0"),
        (lambda: HMM(symbols=10**6), "symbols must be 2 to 4096, not 1000000"),
        (lambda: StickyHMM(relaxation=0.0), "relaxation must be positive"),
        (lambda: Recall(keys=5, pairs=6), "pairs must be 1 to 5, the number of keys, not 6"),
        (lambda: Recall(keys=0), "keys must be 1 to 4096, not 0"),
        (lambda: Recall(keys=10**8), "keys must be 1 to 4096, not 100000000"),
        (lambda: Recall(values=10**8), "values must be 2 to 4096, not 100000000"),
        (lambda: Recall(gap=-1), "gap must be 0 to 4096, not -1"),
        (lambda: Regression(dims=100_000), "dims must be 1 to 4096, not 100000"),
        (lambda: Regression(bins=1), "bins must be 2 to 4096, not 1"),
        (lambda: Regression(noise=0.0), "noise must be 0.001 to 1000, not 0.0"),
    ],
)
def test_impossible_parameters_are_refused_by_name(make, message):
    with pytest.raises(BadInput, match=message):
        make()


def test_hmm_rows_are_uniform_on_the_simplex():
    """Dirichlet(1, ..., 1) of five: each entry has mean 1/5 and variance 4/150."""
    features = draw(HMM(), 20_000).features[:, :10, :5]
    assert abs(features.mean() - 0.2) < 1e-12
    assert abs(features.var() - 4 / 150) < 2e-4
