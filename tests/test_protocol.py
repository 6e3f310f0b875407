"""What was searched and what is published share no seed and no evaluation sequence: computed from the records."""

import csv
import subprocess
from collections import Counter
from dataclasses import replace
from math import log
from pathlib import Path

import pytest
import torch

from bench.board.files import OLDER
from bench.board.rows import make_rankings
from bench.config import compose
from bench.records import read_all
from bench.run import score, train
from bench.run.run import run_one
from bench.seeds import PUBLISHED_FROM, TUNING_SEEDS, derive
from tasks.base import Batch

ROOT = Path(__file__).resolve().parent.parent
RECIPE_SEEDS = {0, 1, 2}  # of the records from before the rule
# Tuned runs whose commits a rewrite of the history removed; they are to be run again, so their number only falls.
LOST = {"38a644c00892e68f61f22ed947a97f0de4325149": 20, "d6717b5dbee128fe49de17b7ba224296a6682604": 10}


@pytest.fixture(scope="module")
def published():
    return read_all(ROOT / "leaderboard/runs")[0]


@pytest.fixture(scope="module")
def older():
    return (ROOT / "leaderboard" / OLDER).read_text().split()


@pytest.fixture(scope="module")
def searched(published):
    """Every seed of a recipe study, of a trial without a record or of a search, by the task that it was searched on."""
    seeds = {(record.config.task, record.config.seed) for record in read_all(ROOT / "docs/recipe")[0]}
    with (ROOT / "docs/recipe/starts.csv").open() as file:
        seeds |= {(line["task"], 0) for line in csv.DictReader(file)}  # docs/recipe.md: seed 0 only
    assert (ROOT / "docs/recipe/changes.csv").exists()
    seeds |= {("hmm", 0)}  # all of changes.csv
    return seeds | {(r.config.task, seed) for r in published for seed in r.config.tuning.get("seeds", ())}


def test_published_records_have_fresh_seeds_but_for_a_list_that_only_gets_shorter(published, older):
    seeds = {record.id: record.config.seed for record in published}
    assert older == sorted(set(older))
    assert set(older) <= seeds.keys(), "delete the ids of records that are gone"
    assert len(older) <= 346
    assert {seeds[id] for id in older} <= RECIPE_SEEDS
    assert {id for id, seed in seeds.items() if seed < PUBLISHED_FROM} == set(older)


def test_no_row_with_recipe_seeds_is_ranked_or_tuned(published):
    rows = [row for ranking in make_rankings(published) for row in ranking.rows]
    recipe = [row for row in rows if row.config.is_recipe_work]
    assert len(recipe) > 50 or not recipe
    assert not [row.name for row in recipe if row.rank or row.compares or row.config.tuning]
    assert not [row.name for row in rows if len({record.config.is_recipe_work for record in row.records}) > 1]


def test_searches_and_published_rows_share_no_seed(published, older, searched):
    assert {seed for _, seed in searched} >= {*TUNING_SEEDS, *RECIPE_SEEDS}
    assert all(seed < PUBLISHED_FROM for _, seed in searched)
    assert not searched & {(r.config.task, r.config.seed) for r in published if r.id not in set(older)}


class Blank:
    """A task whose sequences are empty, to see which streams are asked for."""

    def sample(self, n, horizon, rng):
        nothing = torch.zeros(n, 1)
        return Batch(nothing.long(), nothing[..., None], nothing.long(), torch.zeros(1).long())

    def posterior(self, batch):
        return torch.ones(len(batch.tokens), 1, 1)


@pytest.fixture
def asked(monkeypatch):
    """The streams that training and scoring ask for, as their generators are named by the code itself."""
    found = set()

    def record(device, seed, *names):
        found.add(derive(seed, *names))
        return torch.Generator(device).manual_seed(0)

    for module in (train, score):
        monkeypatch.setattr(module, "generator", record)
    return found


def streams(config, asked):
    asked.clear()
    for _ in train.draw(Blank(), replace(config, batch=1, device="cpu")):
        pass
    for k in {*config.horizons, config.horizon}:
        score.make_exam(Blank(), k, 1, config.seed, "cpu")
    return set(asked)


def test_the_streams_of_a_config_are_those_that_a_run_asks_for(asked):
    config = compose("smoke", "mlp", "hmm", PUBLISHED_FROM, "cpu", {"steps": 40})
    wanted = streams(config, asked)
    asked.clear()
    assert run_one(config)[0].ok
    assert asked == wanted
    assert len(wanted) > 4
    assert not wanted & streams(replace(config, seed=TUNING_SEEDS[0]), asked)


def test_searches_and_published_rows_share_no_stream(published, older, searched, asked):
    """Sequences follow from the stream's number: training blocks and evaluations of two seeds have none in common."""
    fresh = [record.config for record in published if record.id not in set(older)]
    longest = {(c.task, c.seed): c for c in sorted(fresh, key=lambda config: config.steps)}
    assert len(longest) > 10
    for (task, _), config in longest.items():
        mine = streams(config, asked)
        for seed in {other for of, other in searched if of == task}:
            assert not mine & streams(replace(config, seed=seed), asked)


def test_every_published_record_is_of_a_commit_in_this_history(published):
    def git(*words):
        return subprocess.run(["git", "-C", ROOT, *words], capture_output=True, text=True, check=False)

    if git("rev-parse", "--is-shallow-repository").stdout.strip() != "false":
        pytest.skip("NOT CHECKED: this clone is shallow or no repository, so the records' commits cannot be looked up")
    counts = Counter(record.commit for record in published)
    lost = {c: n for c, n in counts.items() if git("merge-base", "--is-ancestor", str(c), "HEAD").returncode}
    assert {c: n for c, n in lost.items() if n > LOST.get(c, 0)} == {}
    assert LOST.keys() <= counts.keys(), "delete the commits that no record has any more"


def test_the_numbers_in_the_objections_are_those_of_the_records(published):
    """Under "What this table cannot show": if one fails after new runs, say there what holds now."""
    said = " ".join((ROOT / "leaderboard/RULES.md").read_text().split("## What this table cannot show")[1].split())
    studies = read_all(ROOT / "docs/recipe")[0]
    ours = [record.config for record in studies if record.config.arch == "transformer"]
    same = {"seed": 0, "supervision": "", "horizons": (1,), "sequences": 1}
    settings = {str(replace(config, **same)) for config in ours}
    with (ROOT / "docs/recipe/changes.csv").open() as file:
        changes = len(list(csv.DictReader(file)))
    assert f"{len(settings)} settings of the transformer with records ({len(ours)} runs) and {changes} without" in said
    rankings = {str(ranking.group): ranking for ranking in make_rankings(published)}
    hmm = [row for row in rankings["hmm: preset quick, posterior supervision, cpu"].rows if row.arch == "transformer"]
    newer = [row for row in hmm if (row.config.positions, row.config.activation) == ("alibi-shift", "swiglu")]
    recipe = next(row.scores.error for row in newer if row.config.is_recipe_work)
    fresh = next(row.scores.error for row in newer if not row.config.is_recipe_work)
    assert f"has {recipe:.4f} bits on seeds 0 to 2 and {fresh:.4f} on fresh ones" in said
    sticky = rankings["hmm-sticky: preset quick, posterior supervision, cpu"]
    long, short = (next(r for r in sticky.rows if r.arch == "transformer" and r.config.steps == n) for n in (2500, 500))
    shares = [row.scores.error / sticky.baseline for row in (long, short)]
    factor = shares[1] / shares[0]
    steps = 2500 * (shares[0] / 0.05) ** (log(5) / log(factor))
    assert long is sticky.rows[0]
    assert f"{shares[0]:.1%} of the best constant's".replace("%", " %") in said
    assert f"recipe seeds have {shares[1]:.0%}".replace("%", " %") in said
    assert (
        f"divide the error by {factor:.1f}, and at that rate 5 % would take some {round(steps, -3):,.0f} steps" in said
    )
    assert f"sees the last {long.memory} observations" in said
    assert f"has an error of {sticky.reference('window 32').error:.4f}" in said
