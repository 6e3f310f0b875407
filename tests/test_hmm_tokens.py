"""Laws of hmm-tokens: rows, tokens and order of events as released; its posterior by all paths and by a library."""

from itertools import pairwise, product

import numpy as np
import pytest
import torch
from hmmlearn.hmm import CategoricalHMM

from bench.registry import BadInput
from bench.seeds import generator
from tasks.hmm_tokens import HMMTokens, round_rows

EXACT = {"rtol": 0.0, "atol": 1e-12}


def draw(task, n, horizon=None, seed=0):
    return task.sample(n, horizon or task.horizon, generator("cpu", seed, "test"))


def spell(task, tokens):
    """T, E and the symbols, read off one sequence by its markers."""
    S, V = task.states, task.symbols
    assert tokens[0] == 96
    emit, sep = tokens.index(97), tokens.index(98)
    transition = (np.array(tokens[1:emit]) + 5).reshape(S, S) / 100
    emission = (np.array(tokens[emit + 1 : sep]) + 5).reshape(S, V) / 100
    body = tokens[sep + 1 :]
    assert set(body[0::2]) == {99}
    return transition, emission, [token - 100 for token in body[1::2]]


def enumerate_paths(task, batch, window=None):
    """Sum over every hidden path; observations older than `window` weigh nothing. No transition before the first."""
    S = task.states
    answer = torch.zeros(*batch.targets.shape, S, dtype=torch.float64)
    for b, tokens in enumerate(batch.tokens.tolist()):
        transition, emission, symbols = spell(task, tokens)
        for k in range(len(symbols)):
            for path in product(range(S), repeat=k + 1):
                weight = 1.0 / S
                for before, now in pairwise(path):
                    weight *= transition[before, now]
                for j, (state, symbol) in enumerate(zip(path, symbols[: k + 1], strict=True)):
                    if window is None or j > k - window:
                        weight *= emission[state, symbol]
                answer[b, k, path[-1]] += weight
            answer[b, k] /= answer[b, k].sum()
    return answer


def round_one(row):
    """The released rule for one row, hundredth by hundredth."""
    floored = np.maximum(row, 0.05)
    cents = np.maximum(np.rint(floored / floored.sum() * 100).astype(int), 5)
    order = np.argsort(cents, kind="stable") if cents.sum() < 100 else np.argsort(-cents, kind="stable")
    turn = 0
    while cents.sum() != 100:
        j = order[turn % len(row)]
        if cents.sum() < 100:
            cents[j] += 1
        elif cents[j] > 5:
            cents[j] -= 1
        turn += 1
    return cents / 100


@pytest.mark.parametrize("columns", [2, 3, 5, 8, 19, 20])
@pytest.mark.parametrize("alpha", [0.1, 1.0, 10.0])
def test_rows_are_rounded_hundredth_by_hundredth(columns, alpha):
    rows = np.random.default_rng(0).dirichlet(np.full(columns, alpha), size=2000)
    expected = np.array([round_one(row) for row in rows])
    torch.testing.assert_close(round_rows(torch.from_numpy(rows)), torch.from_numpy(expected), **EXACT)


def test_tokens_are_the_released_layout():
    """53 tokens of law, then [OBS] and a symbol a step; 96 probabilities, four marks and five symbols."""
    task = HMMTokens()
    assert task.shape.vocab == 105
    batch = draw(task, 20)
    assert batch.tokens.shape == (20, 53 + 2 * 15)
    assert batch.queries.tolist() == [53 + 2 * t + 1 for t in range(15)]
    assert (batch.tokens[:, [0, 26, 52]] == torch.tensor([96, 97, 98])).all()
    for tokens in batch.tokens.tolist():
        transition, emission, symbols = spell(task, tokens)
        np.testing.assert_allclose(transition.sum(1), 1, atol=1e-12)
        np.testing.assert_allclose(emission.sum(1), 1, atol=1e-12)
        assert min(transition.min(), emission.min()) >= 0.05
        assert set(symbols) <= set(range(5))


@pytest.mark.parametrize(("states", "symbols", "horizon"), [(2, 2, 6), (2, 5, 4), (3, 2, 5), (5, 5, 3), (3, 4, 1)])
def test_posterior_matches_all_paths(states, symbols, horizon):
    task = HMMTokens(states, symbols, horizon)
    batch = draw(task, 4)
    torch.testing.assert_close(task.posterior(batch), enumerate_paths(task, batch), **EXACT)


@pytest.mark.parametrize("window", [1, 2, 3, 7])
def test_window_posterior_matches_all_paths(window):
    task = HMMTokens(states=3, symbols=3, horizon=5)
    batch = draw(task, 4)
    torch.testing.assert_close(task.window_posterior(batch, window), enumerate_paths(task, batch, window), **EXACT)


def test_filter_equals_hmmlearn_at_fifty_steps():
    task = HMMTokens()
    batch = draw(task, 50, horizon=50)
    ours = task.posterior(batch).numpy()
    for b, tokens in enumerate(batch.tokens.tolist()):
        library = CategoricalHMM(n_components=5, n_features=5)
        library.startprob_ = np.full(5, 0.2)
        library.transmat_, library.emissionprob_, symbols = spell(task, tokens)
        for k in (0, 1, 7, 14, 19, 29, 49):
            theirs = library.predict_proba(np.array(symbols[: k + 1])[:, None])[-1]
            np.testing.assert_allclose(ours[b, k], theirs, rtol=0, atol=1e-10)


def test_first_state_is_uniform_and_later_ones_follow_the_chain():
    task = HMMTokens(horizon=2)
    batch = draw(task, 40_000)
    first, second = batch.targets.unbind(1)
    shares = torch.bincount(first, minlength=5) / len(first)
    assert (shares - 0.2).abs().max() < 4 * (0.16 / len(first)) ** 0.5
    transition = (batch.tokens[:, 1:26] + 5).double().reshape(-1, 5, 5) / 100
    expected = transition[torch.arange(len(first)), first]  # of each second state
    happened = torch.nn.functional.one_hot(second, 5) - expected
    assert (happened.mean(0).abs() < 4 * (0.16 / len(first)) ** 0.5).all()
    likely = expected.gather(1, second[:, None]).mean()
    assert abs(likely - (expected**2).sum(1).mean()) < 4 * (0.05 / len(first)) ** 0.5


def test_probabilities_stand_for_the_state_of_their_row():
    task = HMMTokens(states=2, symbols=3, horizon=2)
    found = task.hypotheses(draw(task, 2).tokens)
    assert found.tolist() == [[-1, 0, 0, 1, 1, -1, 0, 0, 0, 1, 1, 1, -1, -1, -1, -1, -1]] * 2


@pytest.mark.parametrize("name", ["states", "symbols"])
def test_more_outcomes_than_the_floor_allows_are_refused(name):
    with pytest.raises(BadInput, match=f"{name} must be at most 20, since none is rarer than 0.05: 21"):
        HMMTokens(**{name: 21})
