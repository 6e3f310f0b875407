"""The figures of the leaderboard: drawn from the board alone, the same bytes each time, for both themes."""

import re
from pathlib import Path

import pytest

from bench.board.figures import draw, short
from bench.board.overview import make_board
from bench.board.palette import INKS
from bench.records import read_all
from models.base import ARCHS
from tasks.base import TASKS as ALL_TASKS
from tests.fixtures import fail, make_record, make_records

ROOT = Path(__file__).resolve().parent.parent
TASKS = ("bijection", "hmm")
THEMES = [("light", ""), ("dark", "-dark")]


def figures(*records):
    return draw(make_board(records))


def suite(**settings):
    return [make_record(arch, task, error=0.1, **settings) for arch in ("transformer", "mlp", "lstm") for task in TASKS]


def words(image):
    """The texts of a figure; matplotlib names each in a comment."""
    return re.findall(r"<!-- (.*?) -->", image)


def outlines(image):
    return image.count("fill: none; stroke-dasharray")


def test_the_same_records_give_the_same_figures_in_both_themes():
    first = figures(*suite())
    assert set(first) == {f"heatmap{suffix}.svg" for _, suffix in THEMES}
    assert figures(*suite()[::-1]) == first
    other = figures(*suite()[1:], make_record(error=0.2))
    assert other["heatmap.svg"] != first["heatmap.svg"]
    for theme, suffix in THEMES:
        assert INKS[theme]["back"] in first[f"heatmap{suffix}.svg"]


def test_the_published_figures_are_of_the_published_records():
    for name, image in draw(make_board(read_all(ROOT / "leaderboard/runs")[0])).items():
        assert (ROOT / "leaderboard" / name).read_text() == image, name


def test_the_fullest_track_is_shown_whatever_else_there_is():
    """Another preset with a single run changes nothing."""
    assert figures(*suite(preset="quick"), make_record(preset="paper")) == figures(*suite(preset="quick"))


def test_a_cell_of_the_heat_map_has_the_error_as_its_number():
    made = [*make_records("transformer", [0.1, 0.3]), *make_records("mlp", [0.7, 0.8], "hmm")]
    made += make_records("transformer", [0.00012, 0.00012], "hmm", steps=999)
    drawn = figures(*made)
    for _, suffix in THEMES:
        said = words(drawn[f"heatmap{suffix}.svg"])
        numbers = [text for text in said if re.match(r"[\d.]+(e-\d+)?†?$", text)]
        assert sorted(numbers) == ["0.2", "0.75", "1.2e-4†"]
        assert {"transformer", "mlp", "bijection", "hmm"} <= set(said)
        assert any("†: not ranked" in text for text in said)
    assert not any("†" in text for text in words(figures(*suite())["heatmap.svg"]))


@pytest.mark.parametrize(
    ("value", "text"),
    [(1.8454, "1.8"), (0.0201, "0.02"), (0.001, "0.001"), (0.0004, "4e-4"), (0.00013, "1.3e-4"), (2e-12, "0")],
)
def test_numbers_in_cells_have_two_digits(value, text):
    assert short(value) == text


def test_letters_do_not_shrink_with_the_number_of_tasks():
    """At 830 pixels, the width of a README, the letters of ten tasks are those of a page or larger."""
    made = [make_record("transformer", task) for task in ALL_TASKS.names()[:10]]
    width = float(re.search(r'<svg [^>]*width="([\d.]+)pt"', figures(*made)["heatmap.svg"])[1])
    assert 9.5 * 830 / width >= 12


def test_a_cell_is_outlined_where_seeds_disagree_or_are_one():
    agree, disagree, one = [0.2, 0.3], [0.01, 0.3], [0.2]
    apart = [0.06, 0.07, 0.4]  # all partly held, and yet two groups
    for errors, marked in ((agree, 0), (disagree, 1), (one, 1), (apart, 1)):
        made = [*make_records("transformer", agree), *make_records("mlp", errors)]
        assert outlines(figures(*made)["heatmap.svg"]) == marked, errors


def test_a_cell_is_darker_the_larger_its_share_of_the_best_constants_error():
    """On a white page; on a dark one brighter. Beyond the ends of the scale the colour stays."""
    errors = (0.00005, 0.0001, 0.01, 0.3, 1.0, 2.0)
    archs = ARCHS.names()[: len(errors)]
    drawn = figures(*(make_record(arch, error=error) for arch, error in zip(archs, errors, strict=True)))
    for sign, (theme, suffix) in zip((-1, 1), THEMES, strict=True):
        fills = re.findall(r'<g id="patch_\d+">\s*<path [^>]*style="fill: (#\w{6})"', drawn[f"heatmap{suffix}.svg"])
        cells = [sum(bytes.fromhex(hue[1:])) for hue in fills if hue != INKS[theme]["back"]]
        assert len(cells) == len(errors)
        assert [sign * value for value in cells] == sorted(sign * value for value in cells)
        assert (cells[0], cells[-1]) == (cells[1], cells[-2])
        assert len(set(cells)) == 4


def test_no_finished_run_is_no_figure():
    assert figures(fail(make_record())) == {}
    assert figures() == {}
