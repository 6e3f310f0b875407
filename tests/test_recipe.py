"""What docs/recipe.md extrapolates, on a law that is known."""

import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def render():
    spec = importlib.util.spec_from_file_location("recipe_render", ROOT / "docs/recipe/render.py")
    module = importlib.util.module_from_spec(spec)
    found = sys.modules.setdefault(spec.name, module)  # dataclasses look there
    spec.loader.exec_module(found)
    return found


def test_a_power_law_is_found_and_its_bill_is_steps_times_their_cost(render):
    runs = [(n, render.GOAL * (100_000 / n) ** 0.5, n / 1e4) for n in (1_000, 4_000, 16_000)]
    for bill in render.bills(runs).values():
        assert (bill.exponent, bill.steps, bill.hours) == pytest.approx((-0.5, 100_000, 10.0))
    steeper = [*runs[:2], (16_000, runs[2][1] / 2, 1.6)]
    found = render.bills(steeper)
    assert found["least"].steps < found["most"].steps < 100_000
    assert found["least"].exponent == pytest.approx(-1.0)  # the last two alone


def test_the_page_has_the_bill_of_the_records(render):
    records = render.read_json(render.HERE)
    runs = [render.long_runs(records, "bijection")[id] for id in render.ON_DRAWS]
    points = [(records[run.id]["config"]["steps"], run.mae, run.hours) for run in runs]
    said = " ".join(render.PAGE.read_text().split())
    for bill in render.bills(points).values():
        assert f"{bill.steps:,.0f}" in said
        assert f"{bill.hours:.1f} core-hours" in said
