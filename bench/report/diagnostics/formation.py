"""When does it form: the frame, its use, and the precision of the answer?

At each snapshot (`bench run --checkpoints N`), on the same sequences:

overlap   of the frame with the directions at the embedding to which later answers are most sensitive, over what two
          random subspaces would have (1 is the null)
margin    of a swap of those directions at the positions that stand for hypotheses, in bits (see the section on swaps)
error     the entropy error

Each settles at the step from which on its distance to the end stays below a tenth of its largest. The error has two
such steps: most bits are gained early, while its logarithm, the precision, goes on falling.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from bench.report.diagnostics.base import (
    EXACT,
    MODEL,
    OTHER,
    NotAvailable,
    Picture,
    Run,
    Section,
    Table,
    canvas,
    load_model,
    section,
)
from bench.report.diagnostics.dynamics import LEAST, SETTLED, settled_at
from bench.report.diagnostics.frame import make_frame, margin, setting
from bench.report.diagnostics.swap import first
from bench.report.interventions import EMBEDDING, Answers, overlap, readout_subspaces, swap
from bench.run.score import Exam, score
from bench.statements import EARLIER, EXCESS

SEQUENCES, DRAWS, NOISE = 16, 4, 0.01


class Formation(NamedTuple):
    steps: list[int]
    overlap: list[float]  # over the null
    margin: list[float] | None  # None where the task has no donors
    error: list[float]
    settled: dict[str, float]
    excess: float  # of the last overlap: 0 at random, 1 if one subspace holds the other


@lru_cache(maxsize=1)
def measure(run: Run) -> Formation:
    if len(run.snapshots) < LEAST:
        count = len(run.snapshots) or "no"
        raise NotAvailable(f"{count} snapshots were kept, and {LEAST} are needed: bench run --fresh --checkpoints 12")
    exam, donor, _, evidence = setting(run)
    exam = Exam(first(exam.batch, 2 * SEQUENCES), exam.posterior[: 2 * SEQUENCES])
    other = None if donor is None else Exam(first(donor.batch, 2 * SEQUENCES), donor.posterior[: 2 * SEQUENCES])
    overlaps, margins, errors = [], [], []
    for done, (_, path) in enumerate(run.snapshots):
        run.progress("formation", done, len(run.snapshots))
        model = load_model(run.config, path.read_bytes())
        basis = make_frame(model, exam.batch, None if other is None else other.batch)
        width, rank = basis.shape
        rank = min(rank, max(1, width // 2))
        batch = first(exam.batch, SEQUENCES)
        read = readout_subspaces(model, batch, [EMBEDDING], rank, run.rng("formation"), DRAWS).get(EMBEDDING)
        answers = Answers(model, exam.batch)
        errors.append(score(exam, answers.intact).entropy_mae.mean().item())
        overlaps.append(1.0 if read is None else overlap(basis, read) * width / basis.shape[1])
        if other is not None:
            moved = answers.intact
            if read is not None:
                replaced = swap(Answers(model, other.batch).at(EMBEDDING), evidence, read)
                moved = answers.edited({EMBEDDING: replaced})
            margins.append(margin(moved, exam.posterior, other.posterior))
    steps = [step for step, _ in run.snapshots]
    courses = {"overlap": overlaps, "error": errors, "log error": list(np.log(np.maximum(errors, 1e-9)))}
    courses |= {"margin": margins} if margins else {}
    settled = {name: settled_at(steps, distance(values)) for name, values in courses.items()}
    null = basis.shape[1] / width
    excess = null * (overlaps[-1] - 1) / (1 - null) if null < 1 else 0.0
    return Formation(steps, overlaps, margins or None, errors, settled, excess)


def distance(values: list[float]) -> np.ndarray:
    """To the last value; less than a hundredth of it is none."""
    away = np.abs(np.array(values) - values[-1])
    return np.where(away < NOISE * abs(values[-1]), 0.0, away)


def frame_first(found: Formation) -> bool:
    return found.excess >= EXCESS and found.settled["overlap"] * EARLIER <= found.settled["log error"]


@section("When does it form?")
def forms(run: Run) -> Section:
    found = measure(run)
    margins: list[float | None] = [*found.margin] if found.margin else [None] * len(found.steps)
    rows = [list(row) for row in zip(found.steps, found.overlap, margins, found.error, strict=True)]
    figure, axis = canvas(6.4, 3.6)
    draw(axis, found)
    at = ", ".join(f"{name} at step {step:,.0f}" for name, step in found.settled.items())
    verdict = "settles before" if frame_first(found) else "does not settle before"
    text = (
        f"Settled (within {SETTLED:.0%} of the end): {at}. The frame {verdict} the precision, the logarithm of "
        f"the error (before means {EARLIER:g} times earlier). Overlap is relative to random subspaces: 1 is the null."
    )
    header = ["step", "overlap over null", "swap margin (bits)", "entropy MAE (bits)"]
    settled = [[name, step] for name, step in found.settled.items()]
    tables = [Table("formation", header, rows), Table("formation_settled", ["what", "settled at step"], settled)]
    return Section(text, tables, [Picture("formation", figure, "Frame, swap margin and error over training.")])


def draw(axis: Any, found: Formation) -> None:
    """Overlap and margin over their largest; the error on a log scale, from its largest (0) to its smallest (1)."""
    logs = np.log(np.maximum(found.error, 1e-9))
    precision = (logs.max() - logs) / max(np.ptp(logs), 1e-9)
    courses = {"frame overlap": (np.array(found.overlap) / max(found.overlap), MODEL), "precision": (precision, EXACT)}
    if found.margin is not None:
        courses["swap margin"] = (np.array(found.margin) / max(np.abs(found.margin).max(), 1e-9), OTHER)
    for name, (share, colour) in courses.items():
        axis.plot(found.steps, share, "o-", color=colour, markersize=3, label=name)
    axis.axhline(1 / max(found.overlap), color=MODEL, linewidth=0.8, linestyle=":", label="null of the overlap")
    axis.set(xscale="log", xlabel="step", ylabel="share of its largest", ylim=(-0.1, 1.1))
    axis.legend(fontsize=8)
