"""What was searched and what is published share no seed and no evaluation sequence: computed from the records."""

from pathlib import Path

import pytest

from bench.records import read_all
from bench.seeds import PUBLISHED_FROM, TUNING_SEEDS, derive

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def fresh():
    """Published rows under the present rule. Rows with other seeds are older, and none of them is tuned."""
    records = read_all(ROOT / "leaderboard/runs")[0]
    older = [record for record in records if record.config.is_recipe_work]
    assert not [record.id for record in older if record.config.tuning]
    return [record for record in records if not record.config.is_recipe_work]


@pytest.fixture(scope="module")
def searched(fresh):
    """Every seed of a recipe study or of a search, by the task that it was searched on."""
    studies = read_all(ROOT / "docs/recipe")[0]
    seeds = {(record.config.task, record.config.seed) for record in studies}
    return seeds | {(r.config.task, seed) for r in fresh for seed in r.config.tuning.get("seeds", ())}


def test_searches_and_published_rows_share_no_seed(fresh, searched):
    assert {seed for _, seed in searched} >= set(TUNING_SEEDS)
    assert all(seed < PUBLISHED_FROM for _, seed in searched)
    assert not searched & {(record.config.task, record.config.seed) for record in fresh}


def test_searches_and_published_rows_share_no_stream(fresh, searched):
    """Sequences follow from the stream's number: training blocks and evaluations of two seeds have none in common."""

    def streams(seed, config):
        evaluations = {derive(seed, "evaluation", k) for k in (*config.horizons, config.horizon)}
        return evaluations | {derive(seed, "training", block) for block in range(config.steps)}

    configs = {(r.config.task, r.config.seed): r.config for r in fresh}
    for (task, seed), config in configs.items():
        others = {other for of, other in searched if of == task}
        assert not streams(seed, config) & set().union(*(streams(other, config) for other in others), set())
