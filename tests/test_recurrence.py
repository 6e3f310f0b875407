"""Program or noise: the exact answer against all programs, and what is trained on."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from bench.config import compose
from bench.registry import BadInput
from bench.run.run import make_model
from bench.run.train import draw as draw_steps
from bench.run.train import loss_nats
from bench.seeds import generator
from tasks.recurrence import Recurrence, held_out, inverses
from tests.oracles import enumerate_programs

EXACT = {"rtol": 0.0, "atol": 1e-12}


def draw(task, n, horizon=None, seed=0):
    return task.sample(n, horizon or task.horizon, generator("cpu", seed, "test"))


@pytest.mark.parametrize("opaque", [False, True])
@pytest.mark.parametrize(("modulus", "horizon"), [(3, 15), (5, 1), (5, 2), (7, 6)])
def test_recurrence_posterior_matches_enumeration_of_programs(modulus, horizon, opaque):
    task = Recurrence(modulus, opaque, horizon=horizon)
    batch = draw(task, 12)
    torch.testing.assert_close(task.posterior(batch), enumerate_programs(task, batch), **EXACT)


@pytest.mark.parametrize(
    "numbers", [[2, 2, 2, 2], [2, 2, 2, 1], [2, 2, 1, 0], [1, 3, 2, 2], [0, 1, 1, 1], [4, 1, 1, 0]]
)
def test_recurrence_posterior_matches_enumeration_where_a_program_stands_still(numbers):
    task = Recurrence(5, horizon=4)
    batch = draw(task, 1)._replace(tokens=torch.tensor([numbers]))
    torch.testing.assert_close(task.posterior(batch), enumerate_programs(task, batch), **EXACT)


def test_a_long_sequence_does_not_overflow():
    task = Recurrence(horizon=2000)
    p = task.posterior(draw(task, 20))
    assert p.isfinite().all()
    torch.testing.assert_close(p.sum(-1), torch.ones_like(p[..., 0]), **EXACT)


def test_an_inverse_is_one():
    x = torch.arange(1, 17)
    assert (x * inverses(17, x.device)[1:] % 17 == 1).all()


def test_even_odds_is_exact_with_three_numbers_and_wrong_with_more():
    task = Recurrence(horizon=6)
    batch = draw(task, 400)
    moving = batch.tokens[:, 0] != batch.tokens[:, 1]
    exact, even = task.posterior(batch)[moving], task.references(batch)["even odds"][moving]
    torch.testing.assert_close(even[:, :3], exact[:, :3], **EXACT)
    assert (even[:, 4] - exact[:, 4]).abs().max() > 0.4


def test_a_share_of_the_triples_is_held_out_and_none_of_them_stands_still():
    codes, held = held_out(17, 0.2, torch.device("cpu"))
    assert len(codes) == held.sum() == round(0.2 * 17 * 16 * 17)
    assert (codes // 289 != codes // 17 % 17).all()
    # without a pattern: about a fifth of every first, second and third number
    for place in (codes // 289, codes // 17 % 17, codes % 17):
        assert torch.bincount(place, minlength=17).sub(len(codes) / 17).abs().max() < 4 * (0.2 * 272 * 0.8) ** 0.5


def test_the_heldout_part_has_the_held_out_sequences_alone_with_their_law():
    task = Recurrence(holdout=0.2)
    part = task.variants()["heldout"]
    batch = part.sample(4000, 15, generator("cpu", 0, "test"))
    code = (batch.tokens[:, 0] * 17 + batch.tokens[:, 1]) * 17 + batch.tokens[:, 2]
    assert held_out(17, 0.2, torch.device("cpu"))[1][code].all()
    assert (task.loss_weights(batch, generator("cpu", 0, "w"))[:, 2:] == 0).all()
    assert part.start == 2
    p = task.posterior(batch)[:, 2:].gather(2, batch.targets[:, 2:, None])
    program = (p[:, -1, 0] > 0.5).double().mean()
    assert abs(program - 0.5) < 4 * (0.25 / 4000) ** 0.5


def test_the_loss_falls_on_the_positions_that_are_trained_on():
    generator_of_weights = generator("cpu", 0, "w")
    task = Recurrence(loss_horizon=5, loss_density=0.05)
    weights = task.loss_weights(draw(task, 4000), generator_of_weights)
    assert (weights[:, :5] == 1).all()
    assert weights[:, 5:].mean().item() == pytest.approx(0.05, abs=0.005)
    assert (Recurrence(loss_horizon=5).loss_weights(draw(task, 50), generator_of_weights)[:, 5:] == 0).all()
    assert {*task.variants()} == {"beyond"}
    held = Recurrence(holdout=0.5)
    weights = held.loss_weights(draw(held, 4000), generator_of_weights)
    assert (weights[:, :2] == 1).all()
    assert weights[:, 2:].mean().item() == pytest.approx(1 - 0.5 * 16 / 17, abs=0.03)


@pytest.mark.parametrize("supervision", ["posterior", "sampled"])
def test_the_trainer_takes_the_mean_over_what_is_trained_on(supervision):
    config = compose("smoke", "transformer", "recurrence", 0, "cpu", {"loss_horizon": 4, "supervision": supervision})
    task = config.make_task()
    model = make_model(config).eval()
    batch, answer = next(draw_steps(task, config))
    logits = model(batch.tokens, batch.features)[:, batch.queries][:, :4].flatten(0, 1)
    target = task.posterior(batch)[:, :4].float() if supervision == "posterior" else batch.targets[:, :4]
    expected = cross_entropy(logits, target.flatten(0, 1))
    torch.testing.assert_close(loss_nats(model, batch, answer), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"modulus": 15}, "modulus must be a prime from 3 to 101, not 15"),
        ({"modulus": 2}, "modulus must be a prime from 3 to 101, not 2"),
        ({"modulus": 103}, "modulus must be a prime from 3 to 101, not 103"),
        ({"loss_horizon": 1, "horizon": 1}, "a loss_horizon needs a horizon of at least 2"),
        ({"loss_horizon": 15}, "loss_horizon must be 1 to 14, before the horizon, not 15"),
        ({"loss_horizon": 0}, "loss_horizon must be 1 to 14, before the horizon, not 0"),
        ({"loss_horizon": 5, "loss_density": 1.5}, "loss_density must be 0 to 1, not 1.5"),
        ({"loss_density": 0.1}, "loss_density needs a loss_horizon"),
        ({"holdout": 1.0}, "holdout must be 0 to 0.9, not 1.0"),
        ({"holdout": 1e-6}, "holdout 1e-06 holds nothing out"),
    ],
)
def test_impossible_recurrences_are_refused_by_name(params, message):
    with pytest.raises(BadInput, match=message):
        Recurrence(**params)
