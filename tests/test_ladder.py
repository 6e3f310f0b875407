"""The ladder: each rung is its records' mean, only `pairs` may differ, and the figure is drawn from them alone."""

import re
from dataclasses import replace

import pytest

from bench.board import figures, ladder
from bench.board.ladder import Rung
from bench.board.overview import make_board
from bench.board.rows import make_rankings
from bench.config import compose
from bench.run.run import run_one, state_bytes


def make_ladders(records):
    return ladder.make_ladders(make_rankings(records))


def draw(records):
    return {name: image for name, image in figures.draw(make_board(records)).items() if "ladder" in name}


@pytest.fixture(scope="module")
def first():
    config = compose("smoke", "transformer", "recall-64", 0, "cpu", {"steps": 1, "batch": 2, "sequences": 4})
    return run_one(config)[0]


@pytest.fixture
def climb(first):
    """A record of another rung, with a KL as asked."""

    def make(arch, pairs, kl, seed=0, state=None, **params):
        config = replace(first.config, arch=arch, seed=seed, task_params={"pairs": pairs, **params})
        parts = {k: v and {p: {**m, "kl": kl} for p, m in v.items()} for k, v in first.metrics.items()}
        return replace(first, config=config, id=config.id(), metrics=parts, state_bytes=state)

    return make


def test_a_rung_is_the_mean_over_its_seeds(climb):
    records = [climb("lstm", 4, 1.0, 0, 64), climb("lstm", 4, 3.0, 1, 64), climb("lstm", 16, 5.0, 0, 64)]
    (found,) = make_ladders([*records, climb("transformer", 4, 0.5, 0, 999)])
    assert found.rungs == (Rung("lstm", 4, 2.0, 64), Rung("lstm", 16, 5.0, 64), Rung("transformer", 4, 0.5, 999))
    assert found.uniform_bits == pytest.approx(8.0)  # of 256 values


def test_a_run_with_another_setting_or_a_failed_one_is_no_rung(climb, first):
    other = climb("lstm", 4, 1.0, 0, 64, gap=5)
    failed = replace(climb("lstm", 8, 1.0), status="failed", error="nan", metrics={})
    assert make_ladders([other, failed]) == []
    assert draw([other, failed]) == {}
    assert [rung.pairs for rung in make_ladders([first, other])[0].rungs] == [64]  # the task's own number of pairs


def test_the_track_with_most_rungs_is_drawn(climb):
    records = [climb("lstm", pairs, 1.0) for pairs in (4, 8)]
    sampled = [replace(r, config=replace(r.config, supervision="sampled")) for r in records[:1]]
    assert [len(each.rungs) for each in make_ladders([*sampled, *records])] == [2, 1]


def test_the_figure_shows_every_rung_twice_and_is_the_same_each_time(climb):
    records = [climb(arch, p, p / 10, 0, 100 * p) for arch in ("lstm", "mamba2") for p in (4, 16, 64)]
    drawn = draw(records)
    assert set(drawn) == {"ladder.svg", "ladder-dark.svg"}
    assert draw(records[::-1]) == drawn
    assert draw([*records[:-1], climb("mamba2", 64, 0.001, 0, 6400)]) != drawn
    marks = re.findall(r'<use xlink:href="#m\w+" x="([0-9.]+)" y="([0-9.]+)" style="fill: #', drawn["ladder.svg"])
    assert len(marks) >= 2 * len(records)


def test_an_architecture_that_does_not_say_its_state_is_drawn_once(climb):
    def count(state):
        drawn = draw([climb("lstm", 4, 1.0, 0, state), climb("lstm", 8, 1.0, 0, state)])["ladder.svg"]
        return len(re.findall(r'style="fill: #', drawn))

    assert count(None) < count(0)


@pytest.mark.parametrize(("arch", "grows"), [("transformer", True), ("lstm", False), ("gated-deltanet", False)])
def test_state_bytes_of_attention_grow_with_the_pairs_and_of_recurrences_do_not(arch, grows):
    sizes = []
    for pairs in (4, 64):
        config = compose("smoke", arch, "recall-64", 0, "cpu", {"pairs": pairs})
        sizes.append(state_bytes(config.make_model(), config.make_task().shape.length(config.horizon)))
    assert (sizes[1] > sizes[0]) == grows
    assert sizes[0] > 0
