"""What tuning was worth is read from the search in the records."""

import pytest

from bench.board.markdown import pages
from bench.board.overview import make_board
from bench.board.rows import make_rankings
from tests.fixtures import make_record

NEWER = {"positions": "alibi-shift", "activation": "swiglu"}
BLOCK = "positions=alibi-shift activation=swiglu"


def tuned(arch, error, errors, **settings):
    search = {"seeds": [8, 9], "steps": 700, "errors": errors}
    return [make_record(arch, "hmm", s, error, preset="quick", tuning=search, **settings) for s in (10, 11)]


@pytest.fixture
def records():
    first = tuned(
        "transformer", 0.02, {"0.02": [0.04], f"0.02 {BLOCK}": [0.018, 0.02], f"0.04 {BLOCK}": [0.03]}, **NEWER
    )
    second = tuned("mamba2", 0.03, {"0.01": [0.05], "0.02": [0.03, 0.03], f"0.02 {BLOCK}": [0.1]})
    return [*first, *second]


def test_the_two_settings_are_compared_on_the_first_tuning_seed(records):
    (ranking,) = make_rankings(records)
    first, second = ranking.worths
    assert (first.arch, first.before, first.after, first.chosen) == ("transformer", 0.04, 0.018, f"0.02 {BLOCK}")
    assert (second.arch, second.before, second.after, second.chosen) == ("mamba2", 0.03, 0.03, "0.02")
    assert [w.trials for w in (first, second)] == [3, 3]
    assert [(w.place_before, w.place_after) for w in (first, second)] == [(2, 1), (1, 2)]
    assert first.ratio == pytest.approx(0.45)


def test_the_table_stands_on_the_tasks_page_where_two_rows_were_tuned(records):
    page = pages(make_board(records), "leaderboard.md", published=False)["hmm.md"]
    assert "| transformer " in page.split("What tuning was worth")[1]
    assert "2 → 1" in page
    alone = pages(make_board(records[:2]), "leaderboard.md", published=False)["hmm.md"]
    assert "What tuning was worth" not in alone


def test_a_search_without_the_presets_setting_has_no_line():
    (ranking,) = make_rankings(tuned("mlp", 0.1, {"0.04": [0.1, 0.1]}, lr=0.04))
    assert ranking.worths == ()
