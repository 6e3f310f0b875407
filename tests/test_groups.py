"""The table of state tracking, from records made without training."""

from dataclasses import replace

from bench.board.groups import Cell, make_trackings
from bench.board.markdown import pages
from bench.board.overview import make_board
from bench.board.rows import make_rankings
from tests.fixtures import fail, make_record


def tracked(arch, group, kl, seed=0, **settings):
    """A record of one group with this KL at the training horizon, twice and four times of it at the longer ones."""
    record = make_record(arch, "group", 10 + seed, preset="quick", horizons=(20, 30, 50), group=group, **settings)

    def certain(parts, factor):
        return {part: {**errors, "entropy_mae": 0.0, "kl": factor * kl} for part, errors in parts.items()}

    metrics = {k: parts and certain(parts, f) for (k, parts), f in zip(record.metrics.items(), (1, 2, 4), strict=True)}
    references = {
        k: {**known, "best constant": certain(known["best constant"], 1)} for k, known in record.references.items()
    }
    curves = {k: each and {**each, "h_bayes": [0.0] * len(each["h_bayes"])} for k, each in record.by_position.items()}
    return replace(record, metrics=metrics, references=references, by_position=curves)


def test_each_group_is_a_column_and_each_cell_the_mean_over_seeds():
    made = [tracked("lstm", "s5", 0.1), tracked("lstm", "s5", 0.3, seed=1), tracked("lstm", "s3", 0.01)]
    (tracking,) = make_trackings(make_rankings([*made, tracked("mlp", "s5", 0.5)]))
    assert (tracking.groups, tracking.horizons) == (("s3", "s5"), (20, 30, 50))
    assert tracking.archs == ("lstm", "mlp")  # two groups before one
    assert tracking.cells["lstm", "s5"] == Cell(0.2, (0.4, 0.8), True, True)
    assert tracking.cells["mlp", "s5"] == Cell(0.5, (None, None), False, True)  # it reads no further than trained
    assert tracking.uniform == {"s3": 2.0, "s5": 2.0}


def test_the_least_error_at_the_longest_horizon_comes_first():
    made = [tracked(arch, "a5", kl) for arch, kl in (("lstm", 0.3), ("gru", 0.1), ("mamba2", 0.2))]
    assert make_trackings(make_rankings(made))[0].archs == ("gru", "mamba2", "lstm")


def test_runs_with_other_steps_have_lines_of_their_own():
    long = tracked("lstm", "s5", 0.001, steps=3500)
    other = tracked("lstm", "s5", 0.002, steps=3500, lr=0.5)
    (tracking,) = make_trackings(make_rankings([tracked("lstm", "s5", 0.1), tracked("gru", "s5", 0.2), long, other]))
    assert tracking.archs == ("lstm steps=3500", "lstm", "gru")
    assert tracking.cells["lstm steps=3500", "s5"] == Cell(0.001, (0.002, 0.004), False, False)


def test_noise_failures_and_other_tracks_stay_out_of_the_table():
    noisy, sampled = tracked("lstm", "s3", 0.1, noise=0.1), tracked("lstm", "s3", 0.1, supervision="sampled")
    failed = fail(tracked("gru", "s3", 0.1))
    assert make_trackings(make_rankings([noisy, failed])) == []
    both = [tracked("lstm", "s3", 0.1), tracked("lstm", "z60", 0.1), sampled]
    assert [len(tracking.cells) for tracking in make_trackings(make_rankings(both))] == [2, 1]


def test_the_page_of_the_task_has_the_table_and_others_have_not():
    made = [tracked("lstm", "s5", 0.1), tracked("lstm", "z60", 0.2, steps=7), make_record()]
    written = pages(make_board(made), "README.md", True)
    page = written["group.md"]
    assert "## Every group: preset quick, posterior supervision, cpu" in page
    assert "| architecture   |        z60, K=20 / 30 / 50 |        s5, K=20 / 30 / 50 |" in page
    assert "| lstm           | 0.2000 / 0.4000 / 0.8000~† | 0.1000 / 0.2000 / 0.4000~ |" in page
    assert "| *uniform*      |                     2.0000 |                    2.0000 |" in page
    assert "Every group" not in written["bijection.md"]
