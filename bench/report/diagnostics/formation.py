"""When does it form: the frame, its use, and the precision of the answer?

At initialisation (step 0, made again from the run's seed) and at each snapshot (`bench run --checkpoints N`), on the
same sequences:

overlap   of the frame with the directions at the embedding to which later answers are most sensitive: over what random
          subspaces have (1 is the null), and as the excess (overlap - null) / (1 - null)
margin    of a swap of those directions at the positions that stand for hypotheses, in bits (see the section on swaps),
          beside that of a random subspace (the null) and of the donor's whole vectors (the ceiling)
error     the entropy error; its logarithm is the precision

Forms     the first step at which the excess, or the margin's way from its value at step 0, has 90 % of its largest, and
          from which on it stays above half of it. Precision: the step at which half of the fall of log error is done
Settled   the step from which on the distance to the end stays below a tenth of its largest: this dates slow drift, too
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor, nn

from bench.report.diagnostics.base import (
    EXACT,
    GREY,
    MODEL,
    OTHER,
    NotAvailable,
    Picture,
    Run,
    Section,
    Table,
    canvas,
    initial_model,
    load_model,
    section,
)
from bench.report.diagnostics.dynamics import LEAST, SETTLED, settled_at
from bench.report.diagnostics.frame import make_frame, margin, setting
from bench.report.diagnostics.swap import first
from bench.report.interventions import EMBEDDING, Answers, swap
from bench.report.subspaces import overlap, random_subspace, readout_subspaces
from bench.run.score import Exam, score
from bench.statements import EARLIER, EXCESS
from tasks.base import Batch

SEQUENCES, READERS, DRAWS, NOISE = 32, 16, 6, 0.01
PLATEAU, STAYS = 0.9, 0.5  # of the largest value


class Margins(NamedTuple):
    """Bits, at one step."""

    intact: float
    readout: float
    random: float
    whole: float


class Formation(NamedTuple):
    steps: list[int]  # 0: as initialised
    overlap: list[float]  # over the null
    excess: list[float]  # 0 at random, 1 if one subspace holds the other
    margins: list[Margins] | None  # None where the task has no donors
    error: list[float]
    forms: dict[str, float | None]  # None: it does not
    settled: dict[str, float]


def formed_at(steps: list[int], values: list[float]) -> float | None:
    """The first step with PLATEAU of the largest value from which on STAYS of it are kept; None if there is none."""
    top = max(values)
    kept = [i for i, value in enumerate(values) if value >= PLATEAU * top and min(values[i:]) > STAYS * top]
    return _cross(steps, values, kept[0], PLATEAU * top) if kept and top > 0 else None


def half_fallen(steps: list[int], errors: list[float]) -> float | None:
    """Of the logarithm, from the first error to the last."""
    falls = [float(np.log(errors[0] / max(error, 1e-9))) for error in errors]
    i = next((i for i, fall in enumerate(falls) if fall >= falls[-1] / 2 > 0), None)
    return None if i is None else _cross(steps, falls, i, falls[-1] / 2)


def _cross(steps: list[int], values: list[float], i: int, level: float) -> float:
    """Where the course crosses a level just before snapshot i, on a line in log step; step 0 has no logarithm."""
    if i == 0 or steps[i - 1] == 0 or values[i - 1] >= level:
        return float(steps[i])
    part = (level - values[i - 1]) / (values[i] - values[i - 1])
    return float(steps[i - 1] * (steps[i] / steps[i - 1]) ** part)


class Shown(NamedTuple):
    """The sequences that every snapshot is shown."""

    exam: Exam
    donor: Exam | None
    evidence: list[int]
    readers: Batch  # others, for the Jacobian


def show(run: Run) -> Shown:
    exam, donor, _, evidence, others = setting(run)
    few = [of and Exam(first(of.batch, SEQUENCES), of.posterior[:SEQUENCES]) for of in (exam, donor)]
    assert few[0] is not None
    return Shown(few[0], few[1], evidence, first(others[0], READERS))


class Snapshot(NamedTuple):
    overlap: float
    null: float
    margins: Margins | None
    error: float


def measure_snapshot(run: Run, model: nn.Module, shown: Shown) -> Snapshot:
    exam, donor, evidence, readers = shown
    basis = make_frame(model, exam.batch, None if donor is None else donor.batch)
    width, rank = len(basis), min(basis.shape[1], max(1, len(basis) // 2))
    read = readout_subspaces(model, readers, [EMBEDDING], rank, run.rng("formation"), DRAWS).get(EMBEDDING)
    answers, null = Answers(model, exam.batch), basis.shape[1] / width
    error = score(exam, answers.intact).entropy_mae.mean().item()
    share = null if read is None else overlap(basis, read)
    if donor is None:
        return Snapshot(share, null, None, error)
    other = Answers(model, donor.batch)

    def moved(subspace: Tensor | None) -> Tensor:
        return answers.edited({EMBEDDING: swap(other.at(EMBEDDING), evidence, subspace)})

    reads = answers.intact if read is None else moved(read)
    answered = answers.intact, reads, moved(random_subspace(width, rank, run.rng("formation", "random"))), moved(None)
    return Snapshot(
        share, null, Margins(*(margin(log_q, exam.posterior, donor.posterior) for log_q in answered)), error
    )


@lru_cache(maxsize=1)
def measure(run: Run) -> Formation:
    if len(run.snapshots) < LEAST:
        count = len(run.snapshots) or "no"
        raise NotAvailable(f"{count} snapshots were kept, and {LEAST} are needed: bench run --fresh --checkpoints 12")
    shown = show(run)
    found = [measure_snapshot(run, initial_model(run.config), shown)]
    for done, (_, path) in enumerate(run.snapshots):
        run.progress("formation", done, len(run.snapshots))
        found.append(measure_snapshot(run, load_model(run.config, path.read_bytes()), shown))
    steps = [0, *(step for step, _ in run.snapshots)]
    ratios, errors = [each.overlap / each.null for each in found], [each.error for each in found]
    excess = [(each.overlap - each.null) / (1 - each.null) if each.null < 1 else 0.0 for each in found]
    margins = [each.margins for each in found if each.margins is not None]
    courses = {"overlap": excess, "log error": [float(np.log(max(error, 1e-9))) for error in errors]}
    forms = {"overlap": formed_at(steps, excess), "log error": half_fallen(steps, errors)}
    if margins:
        courses["margin"] = [each.readout for each in margins]
        forms["margin"] = formed_at(steps, [each.readout - margins[0].readout for each in margins])
    settled = {name: settled_at(steps[1:], distance(values[1:])) for name, values in courses.items()}
    return Formation(steps, ratios, excess, margins or None, errors, forms, settled)


def distance(values: list[float]) -> np.ndarray:
    """To the last value; less than a hundredth of it is none."""
    away = np.abs(np.array(values) - values[-1])
    return np.where(away < NOISE * abs(values[-1]), 0.0, away)


def frame_first(found: Formation) -> bool:
    frame, precision = found.forms["overlap"], found.forms["log error"]
    return None not in (frame, precision) and found.excess[-1] >= EXCESS and (frame or 0) * EARLIER <= (precision or 0)


@section("When does it form?")
def forms(run: Run) -> Section:
    found = measure(run)
    nothing = [(None,) * len(Margins._fields)] * len(found.steps)
    columns = zip(found.steps, found.overlap, found.excess, found.error, found.margins or nothing, strict=True)
    rows = [[step, ratio, excess, error, *of] for step, ratio, excess, error, of in columns]
    figure, axis = canvas(6.4, 3.6)
    draw(axis, found)
    verdict = "forms before" if frame_first(found) else "does not form before"
    text = (
        f"{say(found)} The frame {verdict} the precision (before means {EARLIER:g} times earlier). Step 0 is the model "
        "as initialised. The frame, and the use of it that the swap margin shows, form at the first step with "
        f"{PLATEAU:.0%} of their largest value after which they stay above {STAYS:.0%} of it; for precision it is the "
        f"step at which half of the fall of the logarithm of the error is done. Settled is the step from which on the "
        f"distance to the end stays below {SETTLED:.0%} of its largest, which dates slow drift too. An overlap of 1 "
        "over null is that of random subspaces."
    )
    header = ["step", "overlap over null", "excess over null", "entropy MAE (bits)",
              *(f"margin: {name}" for name in Margins._fields)]  # fmt: skip
    dates = [[name, step, found.settled[name]] for name, step in found.forms.items()]
    tables = [
        Table("formation", header, rows),
        Table("formation_dates", ["what", "forms at step", "settled at step"], dates),
    ]
    return Section(text, tables, [Picture("formation", figure, "Frame, swap margin and error over training.")])


def say(found: Formation) -> str:
    names = {"overlap": "frame", "margin": "swap margin", "log error": "precision"}
    at = {names[what]: "never" if step is None else f"at step {step:,.0f}" for what, step in found.forms.items()}
    return f"Forms: {', '.join(f'{name} {when}' for name, when in at.items())}."


def draw(axis: Any, found: Formation) -> None:
    """Each from 0 (none) to 1 (its largest): the excess of the overlap, the fall of log error, the margin's way."""
    logs = np.log(np.maximum(found.error, 1e-9))
    courses = {"frame (overlap above null)": (np.array(found.excess) / max(*found.excess, 1e-9), MODEL)}
    if found.margins is not None:
        way = np.array([each.readout for each in found.margins]) - found.margins[0].readout
        courses["swap margin"] = (way / max(way.max(), 1e-9), OTHER)
    courses["precision (-log error)"] = ((logs[0] - logs) / max(np.ptp(logs), 1e-9), EXACT)
    dates = dict(zip(courses, (found.forms[what] for what in ("overlap", "margin", "log error") if what in found.forms),
                     strict=True))  # fmt: skip
    for name, (share, colour) in courses.items():
        axis.plot(found.steps, share, "o-", color=colour, markersize=3, label=name)
        if (step := dates[name]) is not None:
            axis.axvline(max(step, 0.5), color=colour, linewidth=0.9, linestyle=":")
    axis.axhline(0, color=GREY, linewidth=0.8)
    axis.set_xscale("symlog", linthresh=1)
    axis.set(xlabel="training step (0: as initialised); dotted: forms", ylabel="share of its largest",
             ylim=(-0.25, 1.1), xlim=(-0.1, None))  # fmt: skip
    axis.legend(fontsize=8)
