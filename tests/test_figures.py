"""The figures of the README: drawn from records alone, the same bytes each time."""

import re
from dataclasses import replace
from pathlib import Path

from bench.figures import HUES, draw
from bench.records import read_all

ROOT = Path(__file__).resolve().parent.parent


def test_the_same_records_give_the_same_figures():
    records = read_all(ROOT / "leaderboard/runs")[0]
    first = draw(records)
    assert set(first) == {"overview", "entropy"}
    assert draw(records[::-1]) == first
    worse = [replace(r, metrics=_scaled(r.metrics)) for r in records]
    assert draw(worse)["overview"] != first["overview"]


def test_the_fullest_track_is_shown_whatever_else_there_is():
    """The published records of one preset, as if of one seed: another preset with a single run changes nothing."""
    found = read_all(ROOT / "leaderboard/runs")[0]
    records = [r for r in found if r.config["preset"] == "quick"]
    other = replace(records[0], id="0" * 12, config={**records[0].config, "preset": "paper"})
    assert draw([*records, other]) == draw(records)


def test_intervals_are_drawn_where_there_are_seeds():
    records = read_all(ROOT / "leaderboard/runs")[0]
    one = [r for r in records if r.config["seed"] == 0]
    two = [*one, *(replace(r, config={**r.config, "seed": 1}, metrics=_scaled(r.metrics)) for r in one)]
    count = [len(re.findall(r'<g id="line2d_', draw(some)["overview"])) for some in (one, two)]
    assert count[1] > count[0]


def test_no_two_lines_of_a_chart_share_a_colour():
    records = [r for r in read_all(ROOT / "leaderboard/runs")[0] if r.config["task"] == "hmm"]
    assert len({r.config["arch"] for r in records}) > len(HUES)
    drawn = draw([replace(r, config={**r.config, "seed": 0}) for r in records])["entropy"]
    curves = re.findall(r"stroke: (#[0-9a-f]{6}); stroke-width: 1.6", drawn)
    assert set(curves) == set(HUES)
    assert len(curves) == 2 * len(HUES)  # in the chart and in its legend
    draw([r for r in records if r.config["arch"] == "mlp-pointwise"])  # the last in order alone


def test_no_finished_run_is_no_figure():
    failed = replace(read_all(ROOT / "leaderboard/runs")[0][0], status="failed", error="nan")
    assert draw([failed]) == {}


def _scaled(tree):
    return {k: _scaled(v) for k, v in tree.items()} if isinstance(tree, dict) else None if tree is None else 2 * tree
