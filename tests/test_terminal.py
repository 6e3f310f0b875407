"""What a terminal shows: nothing that the table does not say, and no control characters of somebody else's."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

from bench.board.rows import make_rankings
from bench.board.terminal import BARS, HEIGHT, picture, show, sparkline
from bench.config import compose
from bench.engine.progress import View
from bench.run.train import Progress
from bench.text import number
from tests.fixtures import certain, change, fail, make_record, make_records


@pytest.fixture(scope="module")
def records():
    return [make_record("transformer", "hmm"), make_record("mlp", "hmm")]


def shown(records, encoding="utf-8", **how):
    out = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    show(make_rankings(records), Console(file=out, **how), pictures=True)
    out.seek(0)
    return out.read()


def line_of(*records):
    (ranking,) = make_rankings(records)
    return sparkline(ranking.rows[0])


def with_curve(record, k, **curves):
    return replace(record, by_position={**record.by_position, k: {**record.by_position[k], **curves}})


def test_a_run_that_another_command_began_can_be_watched(records):
    config = compose("smoke", "mlp", "hmm", 0, "cpu", {})
    out = io.StringIO()
    with View(1, Console(file=out, force_terminal=True), verbose=False) as view:
        view.stepped(config, Progress(3, 12, 1.0, 1.0, 0.5, 2.0))


def test_a_sparkline_rises_with_the_error_and_marks_the_horizon(records):
    rising = [10 ** (-3 + 3 * i / 49) for i in range(50)]
    line = line_of(with_curve(records[0], "50", entropy_mae=rising))
    before, after = line.split("|")
    assert [BARS.index(c) for c in before + after] == sorted(BARS.index(c) for c in before + after)
    assert (before[0], after[-1]) == (BARS[0], BARS[-1])
    assert "|" not in line_of(records[1])  # the MLP cannot read further
    assert line_of(with_curve(records[0], "50", entropy_mae=[0.0] * 50)) == f"{BARS[0] * 8}|{BARS[0] * 8}"


def test_a_picture_draws_both_curves(records):
    down, flat = [2 - i / 49 for i in range(50)], [2.0] * 50
    lines = picture(with_curve(records[0], "50", h_bayes=down, h_model=flat)).plain.split("\n")[2:-1]
    assert len(lines) == HEIGHT
    assert lines[0].startswith(" 2.00 ●")
    assert lines[0].endswith("○")
    assert lines[-1].startswith(" 1.00 ")
    assert lines[-1].endswith("·")
    assert sum(line.count("●") + line.count("○") for line in lines) == 40
    same = picture(with_curve(records[0], "50", h_bayes=down, h_model=down)).plain.split("\n", 2)[2]
    assert "○" not in same
    assert picture(with_curve(records[0], "50", h_bayes=flat, h_model=flat)).plain.count("●") == 41  # and in the key


def test_output_that_is_no_terminal_is_plain(records):
    text = shown(records)
    assert "\x1b" not in text
    assert "hmm: preset smoke, posterior supervision, cpu" in text
    assert "transformer on hmm" in text or "mlp on hmm" in text
    assert "best constant" in text
    assert max(map(len, text.splitlines())) <= 120
    assert "\x1b[" in shown(records, force_terminal=True, width=100)


def test_a_terminal_that_cannot_show_the_signs_gets_none(records):
    text = shown(records, encoding="ascii")
    assert "transformer" in text
    assert "error by position" not in text


def test_text_from_a_record_cannot_steer_the_terminal(records):
    hostile = "\x1b[2J[red]boo[/red]"
    ours, theirs = (change(record, task_params={"note": hostile}) for record in records)
    platform = {**ours.platform, "name": hostile}
    text = shown([replace(ours, platform=platform), fail(theirs, hostile)])
    assert "\x1b" not in text
    assert "[red]boo[/red]" in text
    assert "FAILED: mlp, seed 10" in text


def test_a_terminal_shows_what_the_ranking_says():
    """Rank, error, interval, KL, new positions and memory of each row; references between them, without a rank."""
    made = [*make_records("transformer", [0.10, 0.11], "hmm"), *make_records("mlp", [0.31, 0.31], "hmm")]
    (ranking,) = make_rankings(made)
    best = ranking.rows[0]
    lines = [line.split() for line in shown(made).splitlines()]
    (first,) = [line for line in lines if line[:2] == ["1", "transformer"]]
    low, high = map(number, best.interval)
    assert first[2:] == [
        "0.1050",
        f"[{low},",
        f"{high}]",
        "0.0105",
        "0.2100",
        *str(best.memory).split(),
        "10",
        sparkline(best),
    ]
    (second,) = [line for line in lines if line[:2] == ["2", "mlp"]]
    assert second[6] == "n/a"  # it reads no further than it was trained
    names = ("window 16", "window 4", "1 transformer", "window 2", "window 1", "2 mlp", "best constant")
    assert [" ".join(line[:2]) for line in lines if " ".join(line[:2]) in names] == list(names)


def test_where_the_answer_is_certain_the_terminal_shows_kl_first_and_no_best_constant():
    made = [certain(make_record(arch, "recall", error=0.001, kl=kl)) for arch, kl in (("mlp", 0.9), ("lstm", 0.01))]
    made += [replace(each, config=replace(each.config, seed=11), id=each.id[::-1]) for each in made]
    text = shown(made)
    lines = [line.split() for line in text.splitlines()]
    (head,) = [line for line in lines if line[:1] == ["#"]]
    assert head[2:5] == ["KL", "K=20", "MAE"]
    assert [(*line[1:3], line[5]) for line in lines if line[:1] in (["1"], ["2"])] == [
        ("lstm", "0.0100", "0.0010"),
        ("mlp", "0.9000", "0.0010"),
    ]
    assert "best constant" not in text
    (ranking,) = make_rankings(made)
    best, worst = (BARS.index(sparkline(row)[0]) for row in ranking.rows)
    assert best < worst  # the KL's curve
