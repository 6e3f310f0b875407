"""The figure of memorising against inferring, from records made without training."""

from dataclasses import replace

import pytest

from bench.board.figures import draw
from bench.board.markdown import pages
from bench.board.overview import make_board
from bench.board.pools import make_curves
from bench.board.rows import make_rankings
from tests.fixtures import change, make_record


def pooled(arch: str, pool: int, to_pool: float, to_full: float):
    """A record of bernoulli with a pool: `to_pool` and `to_full` bits from the two exact answers."""
    record = make_record(arch, "bernoulli", pool=pool, horizons=(20,))
    trained = str(record.config.horizon)

    def parts(at_pool: float, at_full: float) -> dict:
        whole = record.at()["all"]
        kls = {"all": at_pool, "inside-full": at_full, "outside-pool": at_pool, "outside-full": at_full}
        return {part: {**whole, "kl": kl} for part, kl in kls.items()}

    known = {"pool prior": parts(0.0, 0.1 / pool), "full prior": parts(0.1 / pool, 0.0)}
    usual = {
        name: dict.fromkeys(known["pool prior"], found["all"]) for name, found in record.references[trained].items()
    }
    references = {**record.references, trained: {**usual, **known}}
    return replace(record, metrics={**record.metrics, trained: parts(to_pool, to_full)}, references=references)


def test_a_curve_has_a_point_for_each_pool_from_small_to_large():
    made = [pooled("mlp", pool, 0.01 * pool, 0.1 / pool) for pool in (8, 2, 4)]
    others = [make_record("mlp", "bernoulli"), make_record("mlp")]
    (curves,) = make_curves(make_rankings([*made, *others]))
    points = curves.points["mlp", "laws of the pool"]
    assert [point.pool for point in points] == [2, 4, 8]
    assert points[0] == pytest.approx((2, 0.02, 0.05, 0.05))
    assert [point.to_pool < point.to_full for point in points] == [True, False, False]  # they cross


def test_a_point_is_one_row_and_not_a_mean_over_settings():
    made = [pooled("mlp", pool, 0.01 * pool, 0.1 / pool) for pool in (8, 2, 4)]
    others = [change(pooled("mlp", 4, 9.0, 9.0), steps=5), change(pooled("mlp", 4, 9.0, 9.0), steps=5, seed=1)]
    (curves,) = make_curves(make_rankings([*others, *made]))
    assert curves.points["mlp", "laws of the pool"][1].to_pool == pytest.approx(0.04)


def test_two_pools_make_no_curve_and_no_figure():
    made = [pooled("mlp", pool, 0.1, 0.1) for pool in (2, 4)]
    assert make_curves(make_rankings(made)) == []
    assert not [name for name in draw(make_board(made)) if "pool" in name]


def test_the_page_of_a_task_shows_its_figure():
    made = [pooled("mlp", pool, 0.1, 0.1) for pool in (2, 4, 8)]
    images = {name: image for name, image in draw(make_board(made)).items() if "pool" in name}
    assert list(images) == ["pool-bernoulli.svg", "pool-bernoulli-dark.svg"]
    page = pages(make_board(made), "README.md", True, images)["bernoulli.md"]
    assert 'src="pool-bernoulli.svg"' in page
    assert 'srcset="pool-bernoulli-dark.svg"' in page
    assert "pool-bernoulli" not in pages(make_board(made), "README.md", True)["bernoulli.md"]


def test_the_page_of_a_task_has_every_part_beside_both_exact_answers():
    made = [pooled("mlp", 4, 0.1, 0.2), pooled("lstm", 4, 0.3, 0.4)]
    page = pages(make_board(made), "README.md", True)["bernoulli.md"]
    assert "| architecture   |    all |   inside-full |   outside-full |   outside-pool |" in page
    assert "| mlp            | 0.1000 |        0.2000 |         0.2000 |         0.1000 |" in page
    assert "| *pool prior*   |      0 |        0.0250 |         0.0250 |              0 |" in page
    assert "inside-full" not in pages(make_board([make_record("mlp", "bernoulli")]), "README.md", True)["bernoulli.md"]
