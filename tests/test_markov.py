"""Chains whose law is hidden: the exact answer against integration, scipy and enumeration of a pool."""

import math

import pytest
import torch
from scipy.integrate import quad
from scipy.stats import betabinom, dirichlet_multinomial

from bench.config import compose
from bench.registry import BadInput
from bench.report.rollout import refusal
from bench.run.references import reference_scores
from bench.run.score import make_exam
from bench.seeds import generator
from tasks.bernoulli import Bernoulli
from tasks.hmm_pool import HMMPool
from tasks.markov import Markov
from tests.oracles import enumerate_pool_chains, follow_chain

EXACT = {"rtol": 0.0, "atol": 1e-12}


def draw(task, n, horizon=None, seed=0):
    return task.sample(n, horizon or task.horizon, generator("cpu", seed, "test"))


@pytest.mark.parametrize(
    ("order", "alphabet", "prior", "horizon", "sticky"),
    [
        (1, 2, 1.0, 15, 0.0),
        (2, 2, 1.0, 63, 0.0),
        (3, 2, 0.5, 40, 0.0),
        (8, 2, 1.0, 30, 0.0),
        (1, 5, 2.0, 20, 0.0),
        (2, 3, 0.3, 1, 0.0),
        (4, 2, 1.0, 2, 0.0),
        (1, 4, 0.5, 30, 6.0),
        (2, 3, 1.0, 40, 0.5),
    ],
)
def test_markov_posterior_is_a_ratio_of_evidences(order, alphabet, prior, horizon, sticky):
    """P(next = y | seen) = P(seen, y) / P(seen), each evidence a product of scipy's Dirichlet-multinomials."""
    task = Markov(order, alphabet, prior, horizon, sticky)
    batch = draw(task, 4)
    p = task.posterior(batch)
    for b, tokens in enumerate(batch.tokens.tolist()):
        for t in range(horizon):
            seen = tokens[: t + 1]
            base = log_evidence(task, seen)
            expected = [math.exp(log_evidence(task, [*seen, y]) - base) for y in range(alphabet)]
            assert p[b, t].tolist() == pytest.approx(expected, abs=1e-12)


def log_evidence(task, symbols):
    """Of a sequence, given that an order of appearance does not matter within a context."""
    counts = follow_chain(task, symbols)
    total = -math.log(task.alphabet) * min(task.order, len(symbols))
    for context, row in counts.items():
        n = sum(row)
        orders = math.lgamma(n + 1) - sum(math.lgamma(c + 1) for c in row)
        prior = [task.prior + task.sticky * (y == context[-1]) for y in range(task.alphabet)]
        total += dirichlet_multinomial.logpmf(row, prior, n) - orders
    return total


def test_markov_posterior_matches_integration_over_the_row():
    """In two symbols: the mean of a context's P(1) under prior times likelihood, by adaptive quadrature."""
    task = Markov(order=2, prior=1.5, horizon=24)
    batch = draw(task, 3)
    p = task.posterior(batch)
    for b, tokens in enumerate(batch.tokens.tolist()):
        for t in range(1, 24):
            zeros, ones = follow_chain(task, tokens[: t + 1]).get(tuple(tokens[t - 1 : t + 1]), (0, 0))

            def weight(x, ones=ones, zeros=zeros):
                return x ** (ones + 0.5) * (1 - x) ** (zeros + 0.5)

            total = quad(weight, 0, 1, epsabs=0, epsrel=1e-11)[0]
            mean = quad(lambda x, w=weight: x * w(x), 0, 1, epsabs=0, epsrel=1e-11)[0] / total
            assert p[b, t, 1].item() == pytest.approx(mean, abs=1e-9)


def test_a_context_counts_as_the_beta_binomial_law_says():
    """Over fresh chains the ones after the first five visits of a context are beta-binomial."""
    task = Markov(order=1, prior=2.0, horizon=200)
    batch = draw(task, 4000)
    symbols = torch.cat([batch.tokens, batch.targets[:, -1:]], 1)
    after = (symbols[:, :-1] == 1).long()
    first_five = (after.cumsum(1) <= 5) & (after == 1)
    reached = after.sum(1) >= 5
    ones = (symbols[:, 1:] * first_five).sum(1)[reached]
    found = torch.bincount(ones, minlength=6).double() / reached.sum()
    expected = torch.tensor(betabinom.pmf(range(6), 5, 2.0, 2.0))
    assert (found - expected).abs().max() < 4 * (0.25 / 4000) ** 0.5


def test_a_sticky_chain_repeats_itself_as_often_as_its_prior_says():
    """The first symbol after the context is known repeats the last one with probability (c + s) / (A c + s)."""
    task = Markov(order=2, alphabet=3, prior=0.5, horizon=3, sticky=2.0)
    batch = draw(task, 20_000)
    repeated = (batch.targets[:, 1] == batch.tokens[:, 1]).double().mean().item()
    assert abs(repeated - 2.5 / 3.5) < 4 * (0.25 / 20_000) ** 0.5
    state = task.start(20_000)
    for t in range(3):
        q = task.step(batch.tokens[:, t], state)
        torch.testing.assert_close(q, task.posterior(batch)[:, t], **EXACT)


@pytest.mark.parametrize(("order", "alphabet", "pool"), [(1, 2, 1), (2, 2, 5), (1, 3, 7), (3, 2, 3)])
def test_markov_pool_posterior_matches_enumeration_of_the_pool(order, alphabet, pool):
    task = Markov(order, alphabet, horizon=15, pool=pool)
    for source in (task, Markov(order, alphabet, horizon=15)):  # in the pool, and outside of it
        batch = draw(source, 6)
        torch.testing.assert_close(task.posterior(batch), enumerate_pool_chains(task, batch), **EXACT)


def test_a_pool_in_pieces_is_a_pool(monkeypatch):
    task = Markov(order=2, horizon=20, pool=9)
    batch = draw(task, 11)
    whole = task.posterior(batch)
    monkeypatch.setattr("tasks.pool.CHUNK", {"cpu": 1000})
    assert torch.equal(task.posterior(batch), whole)
    hidden = HMMPool(pool=9)
    batch = draw(hidden, 11)
    whole = hidden.posterior(batch)
    monkeypatch.setattr("tasks.hmm_pool.BELIEFS", 100)
    torch.testing.assert_close(hidden.posterior(batch), whole, **EXACT)


def test_lower_orders_err_more_the_lower_they_are():
    task = Markov(order=3, horizon=128)
    scores = reference_scores("markov", task, make_exam(task, 128, 400, 0, "cpu"))
    errors = [scores[f"order {j}"].summary()["kl"] for j in range(3)]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] > 0.01
    lower = Markov(order=1, horizon=20)
    batch = draw(task, 5, 20)
    torch.testing.assert_close(task.references(batch)["order 1"], lower.posterior(batch), **EXACT)
    torch.testing.assert_close(task.references(batch)["order 0"], Bernoulli().posterior(batch), **EXACT)


@pytest.mark.parametrize(("order", "horizon"), [(1, 64), (2, 64), (3, 128), (4, 256), (6, 1024)])
def test_the_horizon_of_a_preset_follows_the_order(order, horizon):
    config = compose("quick", "transformer", "markov", 0, "cpu", {"order": order})
    assert (config.horizon, config.horizons) == (horizon, (horizon, horizon * 3 // 2, horizon * 5 // 2))
    assert compose("quick", "transformer", "markov", 0, "cpu", {"order": order, "horizon": 30}).horizon == 30


@pytest.mark.parametrize(
    ("order", "bits", "batch", "layers", "width", "heads", "ffn", "steps"),
    [(1, 200, 64, 2, 64, 4, 256, 2000), (2, 400, 32, 4, 128, 8, 512, 2000), (3, 800, 16, 6, 128, 8, 512, 3600)],
)
def test_the_report_preset_is_the_sources_setting(order, bits, batch, layers, width, heads, ffn, steps):
    config = compose("markov-report", "transformer", "markov", 0, "cpu", {"order": order})
    assert (config.horizon, config.batch, config.supervision) == (bits - 1, batch, "sampled")
    assert (config.layers, config.width, config.heads, config.ffn) == (layers, width, heads, ffn)
    assert config.steps == steps
    prefix, rollout = 16, bits
    assert refusal(config.make_model(), prefix + rollout) is None


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"order": 0}, "order must be 1 to 8, not 0"),
        ({"order": 9}, "order must be 1 to 8, not 9"),
        ({"order": -1100}, "order must be 1 to 8, not -1100"),
        ({"order": 10**9}, "order must be 1 to 8, not 1000000000"),
        ({"alphabet": 0, "order": -1}, "order must be 1 to 8, not -1"),
        ({"alphabet": 0, "order": 1}, "alphabet must be at least 2, not 0"),
        ({"alphabet": 1}, "alphabet must be at least 2, not 1"),
        ({"alphabet": 8, "order": 4}, "order 4 on 8 symbols has 4,096 contexts, more than 1,024"),
        ({"prior": 0.0}, "prior must be a number from 0.05 to 1,000,000, not 0.0"),
        ({"prior": 1e308}, "prior must be a number from 0.05 to 1,000,000, not 1e\\+308"),
        ({"sticky": -1.0}, "sticky must be a number from 0 to 1,000,000, not -1.0"),
        ({"eval_prior": 0.0}, "eval_prior must be a number from 0.05 to 1,000,000, not 0.0"),
        ({"pool": 0}, "pool must be 1 to 65,536 laws, not 0"),
    ],
)
def test_impossible_chains_are_refused_by_name(params, message):
    with pytest.raises(BadInput, match=message):
        Markov(**params)
    for preset in ("quick", "markov-report"):
        with pytest.raises(BadInput, match=message):
            compose(preset, "transformer", "markov", 0, "cpu", params)
