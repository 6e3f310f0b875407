"""Pools of laws and shifted priors: their answers against enumeration, and the parts of a record that they make."""

import math
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hmmlearn.hmm import CategoricalHMM
from scipy.stats import norm

from bench.config import compose
from bench.records import parse, read, record_files, write
from bench.registry import BadInput
from bench.run.run import run_one
from bench.run.score import make_exam, score
from bench.seeds import generator
from tasks.base import TASKS
from tasks.bernoulli import Bernoulli
from tasks.hmm import HMM, StickyHMM
from tasks.hmm_pool import HMMPool
from tasks.markov import Markov
from tasks.pool import laws
from tasks.regression import NEGLIGIBLE, Regression, masses, mix_all, mix_some
from tests.oracles import enumerate_pool_coins, enumerate_pool_paths, enumerate_pool_weights, integrate_coins
from tests.test_train import HostReads

EXACT = {"rtol": 0.0, "atol": 1e-12}
POOLED = ("bernoulli", "markov", "regression", "hmm-pool")
IN_AND_OUT = {"inside-full", "outside-full", "outside-pool"}


def draw(task, n, horizon=None, seed=0):
    return task.sample(n, horizon or task.horizon, generator("cpu", seed, "test"))


@pytest.mark.parametrize("bos", [False, True])
@pytest.mark.parametrize(("a", "pool"), [(1.0, 1), (0.05, 6), (2.0, 40)])
def test_bernoulli_pool_posterior_matches_enumeration(a, pool, bos):
    task = Bernoulli(a, 1.0, bos, horizon=15, pool=pool)
    for source in (task, Bernoulli(bos=bos, horizon=15)):
        batch = draw(source, 6)
        torch.testing.assert_close(task.posterior(batch), enumerate_pool_coins(task, batch), **EXACT)


@pytest.mark.parametrize("pool", [1, 7])
def test_regression_pool_posterior_matches_enumeration(pool):
    task = Regression(dims=3, bins=9, horizon=8, pool=pool)
    for source in (task, Regression(dims=3, bins=9, horizon=8)):
        batch = draw(source, 5)
        torch.testing.assert_close(task.posterior(batch), enumerate_pool_weights(task, batch), **EXACT)


@pytest.mark.parametrize(("states", "symbols", "pool", "horizon"), [(2, 3, 1, 4), (3, 2, 4, 4), (2, 2, 9, 5)])
def test_hmm_pool_posterior_matches_enumeration_of_chains_and_paths(states, symbols, pool, horizon):
    task = HMMPool(states, symbols, pool, horizon)
    batch = draw(task, 4)
    torch.testing.assert_close(task.posterior(batch), enumerate_pool_paths(task, batch), **EXACT)


def test_hmm_pool_equals_one_large_chain_in_hmmlearn():
    """M chains of S states are one chain of M S states whose transitions stay within a block."""
    task = HMMPool(pool=3)
    batch = draw(task, 10, 30)
    transition, emission = task.chains(torch.device("cpu"))
    library = CategoricalHMM(n_components=15, n_features=5)
    library.transmat_ = torch.block_diag(*transition).numpy()
    library.emissionprob_ = emission.flatten(0, 1).numpy()
    library.startprob_ = (torch.full((15,), 1 / 15, dtype=torch.float64) @ torch.block_diag(*transition)).numpy()
    ours = task.posterior(batch)
    for b, symbols in enumerate(batch.tokens.numpy()):
        for k in (0, 4, 29):
            theirs = torch.tensor(library.predict_proba(symbols[: k + 1, None])[-1]).view(3, 5).sum(0)
            torch.testing.assert_close(ours[b, k], theirs, rtol=0, atol=1e-10)


def test_without_knowing_the_chain_no_observation_says_anything_of_its_state():
    """Over fresh chains a state is as frequent after any two symbols as after any others."""
    full = HMMPool(states=2, symbols=2).variants()["outside-full"]
    batch = full.sample(40_000, 4, generator("cpu", 0, "test"))
    seen = batch.tokens[:, 2] * 2 + batch.tokens[:, 3]
    for value in range(4):
        states = batch.targets[seen == value, 3].double()
        assert abs(states.mean() - 0.5) < 4 * (0.25 / len(states)) ** 0.5
    assert (full.posterior(batch) == 0.5).all()


@pytest.mark.parametrize("task", [Bernoulli(), Markov(), Regression()])
def test_a_larger_pool_has_the_smaller_inside(task):
    small, large = laws(task, 3, torch.device("cpu")), laws(task, 600, torch.device("cpu"))
    assert torch.equal(large[:3], small)
    assert torch.equal(HMMPool(pool=8).chains(small.device)[0][:3], HMMPool(pool=3).chains(small.device)[0])


@pytest.mark.parametrize("name", POOLED)
def test_each_prior_is_best_where_it_is_true(name):
    """In the pool Bayes with the pool as prior has the lower loss, outside of it Bayes with the full prior."""
    task = TASKS[name](pool=4)
    parts = task.variants()
    inside, outside = make_exam(task, 20, 300, 0, "cpu"), make_exam(parts["outside-full"], 20, 300, 0, "cpu")
    for exam, other in ((inside, "full prior"), (outside, "pool prior")):
        known = task.references(exam.batch)
        assert score(exam, known[other].clamp(min=1e-300).log()).summary()["kl"] > 0.01
        best = known["pool prior" if other == "full prior" else "full prior"]
        torch.testing.assert_close(best, exam.posterior, **EXACT)
    again = make_exam(parts["inside-full"], 20, 300, 0, "cpu").batch
    assert torch.equal(again.tokens, inside.batch.tokens)


def test_a_large_pool_is_nearly_the_prior():
    wide = Bernoulli(horizon=20, pool=2**14)
    batch = draw(wide, 50)
    torch.testing.assert_close(wide.posterior(batch), wide.references(batch)["full prior"], rtol=0, atol=0.01)


def test_a_shifted_prior_is_answered_by_its_own_bayes_and_by_the_one_of_training():
    task = Bernoulli(horizon=9, eval_prior=4.0)
    parts = task.variants()
    batch = parts["shifted"].sample(4, 9, generator("cpu", 0, "test"))
    assert torch.equal(batch.tokens, parts["shifted-own"].sample(4, 9, generator("cpu", 0, "test")).tokens)
    for part, prior in (("shifted", 4.0), ("shifted-own", 1.0)):
        expected = integrate_coins(Bernoulli(prior, prior, horizon=9), batch)
        torch.testing.assert_close(parts[part].posterior(batch), expected, rtol=0, atol=1e-9)
    chain = Markov(horizon=9, eval_prior=4.0)
    batch = chain.variants()["shifted"].sample(4, 9, generator("cpu", 0, "test"))
    expected = Markov(horizon=9, prior=4.0).posterior(batch)
    torch.testing.assert_close(chain.variants()["shifted"].posterior(batch), expected, **EXACT)


@pytest.mark.parametrize("kind", [HMM, StickyHMM])
def test_a_shifted_hmm_has_rows_of_the_other_prior(kind):
    part = kind(eval_prior=0.3).variants()["shifted"]
    batch = part.sample(20_000, 5, generator("cpu", 0, "test"))
    emission = batch.features[:, 5:10, :5]
    assert emission.var().item() == pytest.approx(0.2 * 0.8 / 2.5, rel=0.03)  # of Dirichlet(0.3 x 5)
    p = part.posterior(batch)
    torch.testing.assert_close(p.sum(-1), torch.ones_like(p[..., 0]), **EXACT)


@pytest.mark.parametrize(
    ("task", "params", "further"),
    [
        ("bernoulli", {"pool": 3, "eval_prior": 0.5}, {*IN_AND_OUT, "shifted", "shifted-own"}),
        ("markov", {"eval_prior": 0.5}, {"shifted", "shifted-own"}),
        ("regression", {"pool": 3}, IN_AND_OUT),
        ("hmm-pool", {}, IN_AND_OUT),
        ("hmm", {"eval_prior": 0.5}, {"shifted"}),
        ("recurrence", {"loss_horizon": 5, "holdout": 0.2}, {"beyond", "heldout"}),
        ("hmm", {}, set()),
        ("bernoulli", {}, set()),
    ],
)  # fmt: skip
def test_a_record_has_the_parts_of_its_task_for_model_and_references(task, params, further, tmp_path):
    record, _ = run_one(compose("smoke", "transformer", task, 0, "cpu", {"steps": 2, **params}))
    assert record.ok, record.error
    assert read(write(tmp_path, record, None)) == record
    trained = str(record.config.horizon)
    for k, parts in record.metrics.items():
        expected = {"all", *further} if k == trained else {"all", "post", *further}
        assert set(parts) == expected
        assert all(set(row) == expected for row in record.references[k].values())
    for part in further - {"beyond", "heldout"}:
        assert record.references[trained]["exact"][part]["kl"] == pytest.approx(0, abs=1e-9)
    if "outside-pool" in further:
        rows = record.references[trained]
        assert rows["pool prior"]["outside-pool"]["kl"] == pytest.approx(0, abs=1e-9)
        assert rows["full prior"]["outside-full"]["kl"] == pytest.approx(0, abs=1e-9)
        assert rows["pool prior"]["outside-full"]["kl"] > 0.01


def test_published_records_still_parse():
    files = record_files(Path(__file__).parent.parent / "leaderboard/runs")[::20]
    assert files
    for file in files:
        assert parse(file.read_bytes()).id == file.stem


@pytest.mark.parametrize("name", POOLED)
def test_a_pool_of_nothing_is_refused(name):
    with pytest.raises(BadInput, match="pool must be 1 to 65,536 laws, not 0"):
        TASKS[name](pool=0)


@pytest.mark.parametrize("shift", [0.0, 0.3, 12.0, -12.0, 30.0, -30.0])
def test_masses_keep_their_digits_far_out(shift):
    """Against scipy, each bin from the side on which it lies: a bin far out has a small mass and not a rounded zero."""
    z = torch.tensor([-2.0, -0.5, -0.0, 0.0, 0.5, 3.0], dtype=torch.float64) + shift
    borders = [-math.inf, *z.tolist(), math.inf]
    expected = [
        norm.cdf(high) - norm.cdf(low) if high <= 0 else norm.sf(low) - norm.sf(high) if low >= 0
        else 1 - norm.cdf(low) - norm.sf(high)
        for low, high in pairwise(borders)
    ]  # fmt: skip
    assert masses(z).tolist() == pytest.approx(expected, rel=1e-12, abs=1e-15 * (abs(shift) < 1))


def test_a_mixture_without_negligible_weights_is_the_whole_mixture():
    """The form for CPUs leaves out what the form for GPUs adds up, and the host never waits for the latter."""
    rng = generator("cpu", 0)
    edges = torch.randn(7, generator=rng, dtype=torch.float64).sort().values
    mean = torch.randn(3, 5, 400, generator=rng, dtype=torch.float64) * 3
    weight = (torch.randn(3, 5, 400, generator=rng, dtype=torch.float64) * 30).softmax(-1)
    assert (weight < NEGLIGIBLE).double().mean() > 0.3
    torch.testing.assert_close(mix_some(edges, mean, weight), mix_all(edges, mean, weight), rtol=0, atol=1e-14)
    with HostReads() as reads:
        mix_all(edges, mean, weight)
    assert reads.found == []
