"""docs/tasks.md: its sequences and floors are those of the code.

A block marked `sequence` names a task with its parameters, then shows the first sequence of a fixed stream, the real
numbers of the positions that carry some, and the exact answer at every scored position. A block marked `floors` shows
the errors of reference predictors.
"""

import re
from pathlib import Path

import pytest
import torch

from bench.config import parse_settings
from bench.run.references import reference_scores
from bench.run.score import make_exam
from bench.seeds import generator
from tasks.base import TASKS, variants

PAGE = Path(__file__).resolve().parent.parent / "docs/tasks.md"
BLOCKS = re.findall(r"```(sequence|floors)\n(.*?)```", PAGE.read_text(), re.DOTALL)
POOLS = re.findall(r"^\| `([a-z-]+)` \| (4|64|1024) \| ([0-9.e-]+) \| ([0-9.e-]+) \|$", PAGE.read_text(), re.MULTILINE)
SHOWN = 3  # classes of an answer
CERTAIN = 1e-9
SHARED = {"recall-64", "revision-cue"}  # have no section of their own


def make(line):
    """A task from `name key=value ...`."""
    name, *settings = line.split()
    return name, TASKS[name](**parse_settings(settings))


def show(line):
    """The block that a page must have for this task."""
    _, task = make(line)
    batch = task.sample(1, task.horizon, generator("cpu", 0, "page"))
    exact = task.posterior(batch)[0]
    lines = [line, "tokens   " + " ".join(map(str, batch.tokens[0].tolist()))]
    lines += [f"numbers  {' '.join(f'{x:.3f}' for x in row)}" for row in batch.features[0].tolist() if any(row)]
    for position, row in zip(batch.queries.tolist(), exact, strict=True):
        best = row.sort(descending=True, stable=True)
        likely = [
            f"{c} {p:.3f}" for p, c in zip(best.values[:SHOWN], best.indices[:SHOWN].tolist(), strict=True) if p > 0
        ]
        lines.append(f"after {position:<3}" + ", ".join(likely) + (", ..." if (row > 0).sum() > SHOWN else ""))
    return "\n".join(lines) + "\n"


def floors(line):
    name, task = make(line)
    scores = reference_scores(name, task, make_exam(task, task.horizon, 2000, 0, "cpu"))
    return {floor: result.summary() for floor, result in scores.items()}


@pytest.mark.parametrize("block", [text for kind, text in BLOCKS if kind == "sequence"])
def test_every_sequence_is_the_one_drawn(block):
    assert block == show(block.splitlines()[0])


@pytest.mark.parametrize("block", [text for kind, text in BLOCKS if kind == "floors"])
def test_every_floor_is_the_one_computed(block):
    first, *rows = block.splitlines()
    found = floors(first)
    shown = set()
    for row in rows:
        floor, mae, kl = re.fullmatch(r"(.*?)\s{2,}MAE ([0-9.]+) bits(?:, KL ([0-9.]+) bits)?(?:: .*)?", row).groups()
        assert float(mae) == pytest.approx(found[floor]["entropy_mae"], rel=0.02, abs=CERTAIN)
        assert kl is not None or floor == "best constant"  # it is fitted to the MAE
        if kl is not None:
            rounding = 0.5 * 10 ** -len(kl.split(".")[-1])
            assert float(kl) == pytest.approx(found[floor]["kl"], rel=0.02, abs=rounding)
        shown.add(floor)
    assert {"uniform", "best constant"} <= shown


@pytest.mark.parametrize("name", [name for name in TASKS.names() if name not in SHARED])
def test_every_task_has_a_section_with_a_sequence_and_floors(name):
    section = re.search(rf"^## {name}\n(.*?)(?=^## |\Z)", PAGE.read_text(), re.DOTALL | re.MULTILINE)[1]
    assert "```sequence\n" + name in section
    assert "```floors\n" + name in section


@pytest.mark.parametrize("row", POOLS)
def test_the_distance_of_the_two_priors_is_the_one_computed(row):
    name, size, *shown = row
    task = TASKS[name](pool=int(size))
    for law, other, kl in ((task, "full prior", shown[0]), (variants(task)["outside-full"], "pool prior", shown[1])):
        scores = reference_scores(name, task, make_exam(law, task.horizon, 300, 0, "cpu"))
        assert float(kl) == pytest.approx(scores[other].summary()["kl"], rel=0.06)


def test_a_block_depends_on_the_parameters_that_it_names():
    assert show("group group=s3 horizon=6").splitlines()[1:] != show("group group=s5 horizon=6").splitlines()[1:]
    assert torch.equal(make("group group=s3")[1].sample(2, 3, generator("cpu", 0)).queries, torch.arange(3))
