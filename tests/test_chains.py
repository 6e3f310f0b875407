"""The report on chains: its exact predictor, its counts, and what it says of a model that is exact."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from bench.config import compose
from bench.report.diagnostics import chains
from bench.report.diagnostics.base import NotAvailable, Run
from bench.report.rollout import Exact
from bench.seeds import generator
from tasks.markov import Markov
from tests.oracles import follow_chain


def run_of(order=2, samples=40, **params):
    """A report on the exact predictor itself."""
    config = compose("smoke", "transformer", "markov", 0, "cpu", {"order": order, **params})
    task = config.make_task()
    return Run(SimpleNamespace(), config, task, Exact(task), samples)


@pytest.mark.parametrize(("order", "alphabet"), [(1, 2), (3, 2), (2, 3)])
def test_the_exact_predictor_steps_as_it_reads(order, alphabet):
    task = Markov(order, alphabet, prior=0.7, horizon=20)
    batch = task.sample(5, 20, generator("cpu", 0, "test"))
    model = Exact(task)
    whole = model(batch.tokens, batch.features)
    torch.testing.assert_close(whole.exp(), task.posterior(batch), rtol=0, atol=1e-12)
    state = model.start(5, 20)
    for t in range(20):
        stepped = model.step(batch.tokens[:, t], batch.features[:, t], state)
        torch.testing.assert_close(stepped, whole[:, t], rtol=0, atol=1e-12)


@pytest.mark.parametrize("start", [0, 1, 7])
def test_visits_are_those_met_on_a_walk_along_the_sequence(start):
    task = Markov(order=2, horizon=30)
    bits = task.sample(4, 30, generator("cpu", 0, "test")).tokens
    ones, visits = chains.tally(task, bits, start)
    for b, symbols in enumerate(bits.tolist()):
        counts = follow_chain(task, symbols[max(0, start - 2) :])
        for context in range(4):
            zero, one = counts.get((context // 2, context % 2), (0, 0))
            assert (ones[b, context], visits[b, context]) == (one, zero + one)


def test_an_exact_model_has_no_gap_and_lower_orders_have():
    rows = {row[0]: row for row in chains.loss.ask(run_of()).tables[0].rows}
    assert rows["this run"][3:] == pytest.approx([0, 0], abs=1e-9)
    assert rows["order 0"][4] > rows["order 1"][4] > 1


def test_an_exact_model_has_the_errors_of_the_exact_predictor():
    run = run_of()
    made = chains.rollouts(run)
    np.testing.assert_array_equal(made.model, made.exact)
    found = chains.quality.ask(run)
    for row in found.tables[0].rows:
        assert row[1] == pytest.approx(row[6])  # the mean of this run, and of the exact predictor
    assert len(found.tables[1].rows) == 4
    # posterior means come out, up to the noise of 40 rollouts
    exact = made.ones / (made.ones + made.zeros)
    assert np.abs(made.model.mean(1) - exact).mean() < 0.05


def test_teacher_forcing_of_an_exact_model_is_the_exact_probability():
    run = run_of()
    each = chains.estimation.ask(run).tables[1].rows
    for row in each:
        assert row[1] == pytest.approx(row[2], rel=1e-9)
        assert row[5] == pytest.approx(0, abs=1e-9)
        assert row[1] < -20


def test_the_exact_probability_is_the_product_along_the_string():
    """By hand for one prefix: predict, multiply, read on."""
    run = run_of(order=1)
    made = chains.rollouts(run)
    bits = made.prefixes[0].tolist()
    target = (torch.randperm(100, generator=torch.Generator().manual_seed(0)) < 50).long().tolist()
    total = 0.0
    for bit in target:
        zeros, ones = follow_chain(run.task, bits).get((bits[-1],), (0, 0))
        p_one = (ones + 1) / (zeros + ones + 2)
        total += math.log10(p_one if bit else 1 - p_one)
        bits.append(bit)
    assert chains.estimation.ask(run).tables[1].rows[0][1] == pytest.approx(total, rel=1e-9)


@pytest.mark.parametrize(
    ("params", "reason"),
    [
        ({"alphabet": 3}, "chains on two symbols"),
        ({"pool": 4}, "no Beta distribution"),
        ({"samples": 10**6}, "tokens, more"),
    ],
)
def test_what_cannot_be_asked_is_said(params, reason):
    with pytest.raises(NotAvailable, match=reason):
        chains.rollouts(run_of(**params))
