"""Laws of recall as a ladder: old batches and ids stay, recall-64 asks for what was stored, every rung is exact."""

import hashlib

import pytest
import torch

from bench.config import compose
from bench.registry import BadInput
from bench.seeds import generator
from tasks.recall import Recall, Recall64
from tests.oracles import enumerate_tables

LADDER = (4, 8, 16, 32, 64)


def draw(task, n, horizon=None, seed=0):
    return task.sample(n, horizon or task.horizon, generator("cpu", seed, "test"))


@pytest.mark.parametrize(
    ("task", "tokens", "targets", "posterior"),
    [
        (Recall(), "a1586d5ee8da708b", "e6cf8ca89530b90b", "56a21eedfd369d3f"),
        (Recall(5, 3, 5, 0, 7), "69e6ec3e3b082ed4", "69e308a3992ea5cd", "8a4c6dd52f59b72e"),
    ],
)
def test_batches_of_recall_are_those_of_its_first_version(task, tokens, targets, posterior):
    batch = task.sample(33, task.horizon, generator("cpu", 3, "bits"))
    found = (batch.tokens, batch.targets, task.posterior(batch))
    assert [hashlib.sha256(x.numpy().tobytes()).hexdigest()[:16] for x in found] == [tokens, targets, posterior]


@pytest.mark.parametrize(
    ("preset", "overrides", "id"),
    [
        ("smoke", {}, "e933e98749ee"),
        ("quick", {}, "e763e1e53c76"),
        ("quick", {"pairs": 4}, "cabb4fde9321"),
        ("small", {}, "61d132340efb"),
    ],
)
def test_ids_of_recall_are_those_of_its_first_version(preset, overrides, id):
    assert compose(preset, "transformer", "recall", 0, "cpu", overrides).id() == id


@pytest.mark.parametrize(
    ("keys", "values", "pairs", "gap", "horizon"), [(5, 4, 3, 2, 3), (4, 4, 4, 0, 1), (6, 3, 2, 1, 2)]
)
def test_posterior_matches_enumeration(keys, values, pairs, gap, horizon):
    task = Recall64(keys, values, pairs, gap, horizon)
    batch = draw(task, 8)
    torch.testing.assert_close(task.posterior(batch), enumerate_tables(task, batch), rtol=0, atol=0)


@pytest.mark.parametrize("pairs", LADDER)
def test_every_rung_asks_for_stored_keys_once_each(pairs):
    task = Recall64(pairs=pairs)
    batch = draw(task, 50)
    assert batch.tokens.shape == (50, 2 * pairs + 32 + 3)
    assert task.shape.vocab == 513
    for tokens, answers in zip(batch.tokens.tolist(), batch.targets.tolist(), strict=True):
        stored = dict(zip(tokens[0 : 2 * pairs : 2], tokens[1 : 2 * pairs : 2], strict=True))
        assert len(stored) == len(set(stored.values())) == pairs
        assert tokens[2 * pairs : 2 * pairs + 32] == [512] * 32
        asked = tokens[-3:]
        assert len(set(asked)) == 3
        assert [stored[key] - 256 for key in asked] == answers
    exact = task.posterior(batch)
    assert torch.equal(exact.argmax(-1), batch.targets)
    assert set(exact.unique().tolist()) == {0.0, 1.0}


def test_keys_values_and_questions_are_uniform():
    """Each of 64 keys and values is stored in a quarter of the sequences; questions fall on every pair alike."""
    task = Recall64(keys=64, values=64, pairs=16, gap=0, horizon=4)
    batch = draw(task, 20_000)
    pairs = batch.tokens[:, :32].reshape(-1, 16, 2)
    for column, offset in ((0, 0), (1, 64)):
        shares = torch.bincount((pairs[..., column] - offset).flatten(), minlength=64) / len(pairs)
        assert (shares - 0.25).abs().max() < 5 * (0.25 * 0.75 / len(pairs)) ** 0.5
    asked = (batch.tokens[:, None, 32:] == pairs[..., :1]).long().argmax(1)
    shares = torch.bincount(asked.flatten(), minlength=16) / len(pairs)
    assert (shares - 0.25).abs().max() < 5 * (0.25 * 0.75 / len(pairs)) ** 0.5


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Recall64(keys=32), "pairs must be 1 to 32, the number of keys, not 64"),
        (lambda: Recall64(values=32), "pairs must be at most 32, the number of values, not 64"),
        (lambda: Recall64(pairs=2), "stored keys once each: at most 2, not 3"),
        (lambda: Recall64(pairs=4).sample(1, 5, generator("cpu", 0)), "stored keys once each: at most 4, not 5"),
    ],
)
def test_impossible_parameters_are_refused_by_name(make, message):
    with pytest.raises(BadInput, match=message):
        make()
