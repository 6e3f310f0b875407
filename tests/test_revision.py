"""Laws of belief revision: the released E, the layout, and the posterior by weighing every candidate."""

import math

import numpy as np
import pytest
import torch

from bench.registry import BadInput
from bench.seeds import generator
from tasks.revision import Revision, RevisionCue

EXACT = {"rtol": 0.0, "atol": 1e-12}
CPU = torch.device("cpu")
SOFT = [
    Revision(),
    Revision(candidates=3, names=3, horizon=4),
    Revision(candidates=3, names=7, opaque=True, filler=0, gap=3, horizon=4),
    Revision(candidates=2, names=5, alpha=2.0, opaque=True, filler=1, horizon=1),
]
HARD = [RevisionCue(), Revision(candidates=4, names=6, hard=True, opaque=True, horizon=3)]


def draw(task, n, horizon=None, seed=0):
    return task.sample(n, horizon or task.horizon, generator("cpu", seed, "test"))


def read(task, tokens):
    """Names in order of introduction, and the names that the evidence gives, read off by the marks."""
    M = task.names
    names = [tokens[i + 1] for i, token in enumerate(tokens) if token == M]
    evidence = [tokens[i + 1] for i, token in enumerate(tokens) if token == M + 3]
    return names, evidence


def weigh_candidates(task, batch):
    """After every piece, the probability of each candidate and all that was read, summed and divided."""
    law = task.law(CPU).tolist()
    answer = torch.zeros(*batch.targets.shape, task.names, dtype=torch.float64)
    for b, tokens in enumerate(batch.tokens.tolist()):
        names, evidence = read(task, tokens)
        for k in range(len(evidence)):
            pieces = [names.index(name) for name in evidence[: k + 1]]
            weights = [math.prod(law[z][e] for e in pieces) / task.candidates for z in range(task.candidates)]
            for name, weight in zip(names, weights, strict=True):
                answer[b, k, name] = weight / math.fsum(weights)
    return answer


@pytest.mark.parametrize("task", [*SOFT, *HARD])
def test_posterior_matches_every_candidate_weighed(task):
    batch = draw(task, 20)
    torch.testing.assert_close(task.posterior(batch), weigh_candidates(task, batch), **EXACT)


def test_law_is_the_released_one():
    """numpy's Dirichlet of seed 42; its first numbers are those that the released code prints."""
    law = Revision().law(CPU)
    assert law[0, :4].tolist() == pytest.approx(
        [0.6877403700624333, 0.036516602466721386, 1.795361679e-05, 0.01962910406]
    )
    torch.testing.assert_close(law.sum(1), torch.ones(16, dtype=torch.float64), **EXACT)
    assert law.diagonal().min() >= 2 / 3


def test_evidence_follows_the_law():
    task = Revision(horizon=5)
    batch = draw(task, 20_000)
    evidence = batch.tokens[:, task.shape.lead :: 2]
    counts = torch.zeros(16, 16, dtype=torch.float64)
    counts.index_put_(
        (batch.targets.flatten(), evidence.flatten()), torch.ones(1, dtype=torch.float64), accumulate=True
    )
    rows = counts.sum(1, keepdim=True)
    law = task.law(CPU)
    assert ((counts / rows - law).abs() <= 5 * (law * (1 - law) / rows).sqrt() + 1 / rows).all()
    assert (rows / rows.sum() - 1 / 16).abs().max() < 5 * (1 / 16 / 20_000) ** 0.5


@pytest.mark.parametrize("task", [*SOFT, *HARD])
def test_tokens_are_the_layout_that_the_docstring_draws(task):
    M, N, K = task.names, task.candidates, task.horizon
    for tokens, targets in zip(*(x.tolist() for x in (draw(task, 9).tokens, draw(task, 9).targets)), strict=True):
        names, evidence = read(task, tokens)
        intros = [token for name in names for token in (M, name, *[M + 1] * task.filler)]
        pieces = [token for name in evidence for token in (M + 3, name)]
        assert tokens == [*intros, M + 2, *[M + 1] * task.gap, *pieces]
        assert (len(names), len(set(names)), len(evidence)) == (N, N, K)
        assert set(evidence) <= set(names)
        assert len(set(targets)) == 1
        assert targets[0] in names
        if not task.opaque:
            assert names == list(range(N))


@pytest.mark.parametrize("task", HARD)
def test_a_hard_cue_is_certain_at_once(task):
    batch = draw(task, 40, horizon=3)
    exact = task.posterior(batch)
    assert torch.equal(exact.argmax(-1), batch.targets)
    assert set(exact.unique().tolist()) == {0.0, 1.0}


def test_opaque_names_are_uniform():
    task = Revision(candidates=4, names=8, opaque=True, filler=0)
    names = draw(task, 20_000).tokens[:, 1:8:2]
    for column in names.unbind(1):
        shares = np.bincount(column.numpy(), minlength=8) / len(names)
        assert np.abs(shares - 1 / 8).max() < 5 * (7 / 64 / len(names)) ** 0.5


def test_more_evidence_leaves_less_doubt():
    task = Revision()
    exact = task.posterior(draw(task, 4000))
    doubt = 1 - exact.max(-1).values.mean(0)
    assert (doubt.diff() < 0).all()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Revision(candidates=1), "candidates must be at least 2, not 1"),
        (lambda: Revision(candidates=20), "names must be 20, the number of candidates, to 4096, not 16"),
        (lambda: Revision(alpha=0.0), "alpha must be 0.05 to 1000, not 0.0"),
        (lambda: Revision(candidates=20_000, names=20_000), "to 4096, not 20000"),
        (lambda: Revision(filler=-1), "filler must be 0 to 4096, not -1"),
        (lambda: Revision(gap=-1), "gap must be 0 to 4096, not -1"),
        (lambda: Revision().sample(1, 0, generator("cpu", 0)), "horizon must be at least 1, not 0"),
    ],
)
def test_impossible_parameters_are_refused_by_name(make, message):
    with pytest.raises(BadInput, match=message):
        make()
