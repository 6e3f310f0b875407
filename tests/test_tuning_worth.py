"""What tuning was worth is read from the search in the records."""

import pytest

from bench.board.markdown import pages
from bench.board.overview import make_board
from bench.board.rows import make_rankings
from bench.stats import interval
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
    assert [(w.seeds, w.bounds) for w in (first, second)] == [(0, None)] * 2
    assert [(w.place_before, w.place_after) for w in (first, second)] == [(2, 1), (1, 2)]
    assert first.ratio == pytest.approx(0.45)


def test_the_table_stands_on_the_tasks_page_where_two_rows_were_tuned(records):
    page = pages(make_board(records), "leaderboard.md", published=False)["hmm.md"]
    assert "| transformer " in page.split("What tuning was worth")[1]
    assert "2 → 1" in page
    alone = pages(make_board(records[:2]), "leaderboard.md", published=False)["hmm.md"]
    assert "What tuning was worth" not in alone


def test_two_rows_with_the_same_fresh_seeds_are_compared_on_them(records):
    plain = [make_record("transformer", "hmm", s, e, preset="quick") for s, e in ((10, 0.05), (11, 0.04), (12, 0.9))]
    recipe = [make_record("mamba2", "hmm", s, 0.9, preset="quick") for s in (0, 1)]
    ranking = make_rankings([*records, *plain, *recipe])[0]
    first, second = ranking.worths
    assert (first.before, first.after, first.seeds) == (pytest.approx(0.045), 0.02, 2)
    assert first.bounds == pytest.approx(interval([0.4, 0.5]))
    assert (second.before, second.seeds) == (0.03, 0)  # recipe seeds say nothing
    page = pages(make_board([*records, *plain]), "leaderboard.md", published=False)["hmm.md"]
    assert "2 fresh seeds" in page


def test_a_rate_at_the_edge_is_marked_and_the_search_is_in_the_cost_table(records):
    first, second = make_rankings(records)[0].worths
    assert (first.is_edge, second.is_edge) == (True, True)  # 0.02 of 0.02 and 0.04; of 0.01 and 0.02
    inside = tuned("lstm", 0.01, {"0.01": [0.2], "0.02": [0.1, 0.1], "0.04": [0.15, 0.2]})
    made = make_rankings([*records, *inside])[0]
    assert [w.arch for w in made.worths if w.is_edge] == ["transformer", "mamba2"]
    page = pages(make_board([*records, *inside]), "leaderboard.md", published=False)["hmm.md"]
    assert "so a wider search may find a better one: transformer, mamba2." in page
    assert "5, 3.00e+13" in page  # two finalists ran twice, each with the row's 6e12 FLOPs


def test_a_search_without_the_presets_setting_has_no_line():
    (ranking,) = make_rankings(tuned("mlp", 0.1, {"0.04": [0.1, 0.1]}, lr=0.04))
    assert ranking.worths == ()
