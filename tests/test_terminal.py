"""What a terminal shows: nothing that the table does not say, and no control characters of somebody else's."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

from bench.config import compose
from bench.progress import View
from bench.run import run_one
from bench.terminal import BARS, HEIGHT, picture, show, sparkline
from bench.train import Progress


@pytest.fixture(scope="module")
def records():
    return [run_one(compose("smoke", arch, "hmm", 0, "cpu", {"steps": 2}))[0] for arch in ("transformer", "mlp")]


def shown(records, encoding="utf-8", **how):
    out = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    show(records, Console(file=out, **how), pictures=True)
    out.seek(0)
    return out.read()


def with_curve(record, k, **curves):
    return replace(record, by_position={**record.by_position, k: {**record.by_position[k], **curves}})


def test_a_run_that_another_command_began_can_be_watched(records):
    config = compose("smoke", "mlp", "hmm", 0, "cpu", {})
    out = io.StringIO()
    with View(1, Console(file=out, force_terminal=True), verbose=False) as view:
        view.stepped(config, Progress(3, 12, 1.0, 1.0, 0.5, 2.0))


def test_a_sparkline_rises_with_the_error_and_marks_the_horizon(records):
    rising = [10 ** (-3 + 3 * i / 49) for i in range(50)]
    line = sparkline([with_curve(records[0], "50", entropy_mae=rising)])
    before, after = line.split("|")
    assert [BARS.index(c) for c in before + after] == sorted(BARS.index(c) for c in before + after)
    assert (before[0], after[-1]) == (BARS[0], BARS[-1])
    assert "|" not in sparkline(records[1:])  # the MLP cannot read further
    assert sparkline([with_curve(records[0], "50", entropy_mae=[0.0] * 50)]) == f"{BARS[0] * 8}|{BARS[0] * 8}"


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
    config = {**records[0].config, "task_params": {"note": hostile}}
    platform = {**records[0].platform, "name": hostile}
    broken = replace(records[1], config=config, status="failed", error=hostile)
    text = shown([replace(records[0], config=config, platform=platform), broken])
    assert "\x1b" not in text
    assert "[red]boo[/red]" in text
    assert "FAILED: transformer, seed 0" in text
