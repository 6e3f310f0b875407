"""Rollouts: the same as reading everything again at every step, and the posterior where the predictor is exact."""

import pytest
import torch

from bench.report.rollout import refusal, rollout
from bench.seeds import generator
from models.base import Geometry
from tasks.bernoulli import Bernoulli
from tests.test_models import make


def recompute(model, contexts, length, u=None):
    """Read the whole sequence anew for every token; greedy, or one where a given uniform number lies above P(0)."""
    tokens = contexts
    for t in range(length):
        with torch.no_grad():
            p = model(tokens, torch.empty(*tokens.shape, 0))[:, -1].softmax(-1)
        following = p.argmax(-1) if u is None else (u[:, t] > p[:, 0]).long()
        tokens = torch.cat([tokens, following[:, None]], dim=1)
    return tokens[:, contexts.shape[1] :]


@pytest.mark.parametrize("bos", [False, True])
@pytest.mark.parametrize("arch", ["transformer", "transformer-uniform-attn", "transformer-no-attn-top2"])
def test_rollouts_equal_full_recomputation(arch, bos):
    task = Bernoulli(bos=bos)
    model = make(arch, task, Geometry(3, 2, 32, 64, "sinusoidal")).eval()
    contexts = task.sample(7, 15, generator("cpu", 0, "t")).tokens
    greedy = rollout(model, contexts, 1, 63, generator("cpu", 0, "r"), greedy=True)[:, 0].long()
    assert torch.equal(greedy, recompute(model, contexts, 63))
    drawn = rollout(model, contexts, 1, 63, generator("cpu", 0, "r"))[:, 0].long()
    assert torch.equal(drawn, recompute(model, contexts, 63, torch.rand(7, 63, generator=generator("cpu", 0, "r"))))
    assert len(drawn.unique(dim=0)) == 7


def test_sampled_rollouts_follow_the_models_own_probabilities():
    """Every first token is a draw from the prediction after its context, at four sigma."""
    task = Bernoulli()
    model = make("transformer", task).eval()
    contexts = task.sample(4, 15, generator("cpu", 0, "t")).tokens
    with torch.no_grad():
        p = model(contexts, torch.empty(4, 15, 0))[:, -1].softmax(-1)[:, 1]
    share = rollout(model, contexts, 4000, 1, generator("cpu", 0, "r")).double().mean((1, 2))
    assert ((share - p).abs() < 4 * (p * (1 - p) / 4000).sqrt()).all()


def test_the_memory_budget_changes_no_draw():
    task = Bernoulli(bos=True)
    model = make("transformer", task).eval()
    contexts = task.sample(5, 4, generator("cpu", 0, "t")).tokens
    heard = []
    whole = rollout(model, contexts, 3, 15, generator("cpu", 0, "r"))
    small = rollout(
        model, contexts, 3, 15, generator("cpu", 0, "r"), budget_bytes=4 * model.state_bytes(19),
        report=lambda done, total: heard.append((done, total)),
    )  # fmt: skip
    assert torch.equal(whole, small)
    assert heard == [(60, 225), (120, 225), (180, 225), (225, 225)]


def test_whoever_cannot_be_rolled_out_says_why():
    task = Bernoulli(horizon=15)
    assert refusal(make("transformer", task), 5000) is None
    assert "no step function" in refusal(make("mlp", task), 5)
    assert refusal(make("transformer", task, Geometry(3, 2, 32, 64, "learned")), 16) == (
        "the model reads at most 15 positions, not 16"
    )
