"""Does the answer follow the donor's evidence?

The donor is the same sequence with its hypotheses renamed. After the embedding and after each layer its vectors, or
their part in a subspace, replace the recipient's at the positions that stand for hypotheses (evidence), or at the
scored positions (answer). The margin is KL(recipient's posterior || answer) - KL(donor's posterior || answer) in bits,
mean over reads where the two posteriors differ: negative for the intact model, positive once the answer has followed.

frame     the span in which donor and recipient embeddings differ. At the embedding it is the whole swap by construction
readout   as many directions, those to which later answers are most sensitive (the readout's Jacobian). There are none
          where no layer mixes positions any more
random    random subspaces of the same rank: the null
whole     the whole vector: the ceiling of this place and these positions
state     for models that read step by step: the donor's memory of one layer, taken over before the middle query
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

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
    require_once,
    section,
)
from bench.report.diagnostics.frame import frame, margin, need_donor, setting
from bench.report.interventions import (
    Answers,
    describe_place,
    memories,
    overlap,
    places,
    random_subspace,
    readout_subspaces,
    swap,
    swap_state,
)
from tasks.base import Batch

DRAWS = 2
EVIDENCE, ANSWER = "evidence", "answer"


class Swap(NamedTuple):
    place: int
    positions: str
    frame: float | None  # margins in bits; None where the frame is not a part of this space
    readout: float | None  # None where no later answer depends on this place
    random: list[float]
    whole: float


class Swaps(NamedTuple):
    intact: float
    donor: float  # of the answers to the donor itself
    rank: int
    rows: list[Swap]
    overlaps: list[tuple[float, float] | None]  # of readout and frame by place, and at random
    states: dict[str, float]  # margins by what was taken over


def first(batch: Batch, count: int) -> Batch:
    return Batch(batch.tokens[:count], batch.features[:count], batch.targets[:count], batch.queries)


@lru_cache(maxsize=1)
def readouts(run: Run) -> dict[str, Tensor]:
    """As many directions as the frame has, or half of the place's if that is less."""
    exam, _, answers, _ = setting(run)
    where = places(run.model)
    narrow = min(answers.at(place).shape[-1] for place in where)
    rank = min(frame(run).shape[1], max(1, narrow // 2))
    return readout_subspaces(run.model, first(exam.batch, 24), where, rank, run.rng("readout"))


@lru_cache(maxsize=1)
def measure(run: Run) -> Swaps:
    donor, basis = need_donor(run), frame(run)
    exam, _, answers, evidence = setting(run)
    require_once(answers.repeats)
    other, rng = Answers(run.model, donor.batch), run.rng("swap")
    asked = exam.batch.queries.tolist()
    reads = readouts(run)
    rows: list[Swap] = []
    overlaps: list[tuple[float, float] | None] = []

    def score(place: str, positions: list[int], basis_DR: Tensor | None) -> float:
        found = answers.with_donor(place, lambda d: swap(d, positions, basis_DR), other)
        return margin(found, exam.posterior, donor.posterior)

    for i, place in enumerate(places(run.model)):
        width, read = answers.at(place).shape[-1], reads.get(place)
        fits = len(basis) == width
        rank = basis.shape[1] if fits else max(1, width // 2)
        if fits and read is not None:
            overlaps.append((overlap(basis, read), max(rank, read.shape[1]) / width))
        else:
            overlaps.append(None)
        null = [random_subspace(width, rank, rng) for _ in range(DRAWS)]
        for name, positions in ((EVIDENCE, evidence), (ANSWER, asked)):
            in_frame = score(place, positions, basis) if fits else None
            at_random = [score(place, positions, each) for each in null]
            in_read = None if read is None else score(place, positions, read)
            rows.append(Swap(i, name, in_frame, in_read, at_random, score(place, positions, None)))
    posteriors = exam.posterior, donor.posterior
    ends = margin(answers.intact, *posteriors), margin(other.intact, *posteriors)
    return Swaps(*ends, basis.shape[1], rows, overlaps, swap_states(run))


def swap_states(run: Run) -> dict[str, float]:
    """The memory of each layer alone, and of all, before the middle query."""
    exam, donor = setting(run).exam, need_donor(run)
    middle = len(exam.batch.queries) // 2
    at, some = int(exam.batch.queries[middle]), 32
    own, other = first(exam.batch, some), first(donor.batch, some)
    posteriors = [part.posterior[:some, middle : middle + 1] for part in (exam, donor)]
    found = {}
    for name, layers in memories(run.model).items():
        log_q = swap_state(run.model, own, other, at, layers)[:, None]
        found[name] = margin(log_q, *posteriors)
    return found


@section("Does the answer follow the donor's evidence?")
def swaps(run: Run) -> Section:
    found = measure(run)
    where = [describe_place(run.model, place) for place in places(run.model)]
    rows: list[list[Any]] = []
    for row in found.rows:
        null = sum(row.random) / DRAWS
        rows.append([where[row.place], row.positions, row.frame, row.readout, null, max(row.random), row.whole])
    header = ["place", "positions", "frame", "readout", "random", "largest", "whole"]
    tables = [
        Table("swap", header, rows),
        Table(
            "overlap",
            ["place", "overlap of readout and frame", "at random", "ratio", "ceiling"],
            [
                [where[i], *pair, pair[0] / pair[1], 1 / pair[1]]
                for i, pair in enumerate(found.overlaps)
                if pair is not None
            ],
        ),
    ]
    if found.states:
        tables.append(Table("swap_states", ["memory of", "margin"], [[*item] for item in found.states.items()]))
    figure, axes = canvas(9, 3.4, 1, 2, sharey=True)
    for axis, name in zip(axes, (EVIDENCE, ANSWER), strict=True):
        draw(axis, found, name)
    axes[0].set_ylabel("margin (bits)")
    axes[1].legend(fontsize=7, loc="upper left", bbox_to_anchor=(1, 1))
    text = (
        f"Margins in bits: how much nearer the answer is to the donor's posterior than to the recipient's. Without a "
        f"swap it is {found.intact:.2f}; for the donor itself {found.donor:.2f}. The frame has rank {found.rank}. At "
        "the embedding the frame swap is the whole swap by construction; it is a finding further up."
    )
    if not found.states:
        text += " The architecture cannot read step by step, so its memory was not swapped."
    if all(row.frame is None for row in found.rows if row.place > 0):
        text += " Its residual stream is another space than its embedding, so there is no frame to swap there."
    picture = Picture("swap", figure, "Margin after a swap, by place. Dotted: without a swap, and the donor itself.")
    return Section(text, [table for table in tables if table.rows], [picture])


def draw(axis: Any, found: Swaps, positions: str) -> None:
    rows = [row for row in found.rows if row.positions == positions]
    ticks = ["emb", *map(str, range(len(rows) - 1))]
    lines: dict[str, tuple[list[float | None], str, str]] = {
        "whole": ([row.whole for row in rows], EXACT, "-"),
        "frame": ([row.frame for row in rows], MODEL, "-"),
        "readout": ([row.readout for row in rows], OTHER, "-"),
        "random": ([sum(row.random) / DRAWS for row in rows], GREY, "--"),
    }
    for label, (values, colour, style) in lines.items():
        heights = [float("nan") if value is None else value for value in values]
        axis.plot(ticks, heights, style, marker="o", color=colour, markersize=3, label=label)
    for level in (found.intact, found.donor):
        axis.axhline(level, color=GREY, linewidth=0.8, linestyle=":")
    axis.set(xlabel="after layer", title=f"swapped at {positions} positions")


def best_place(found: Swaps) -> Swap:
    """Where the frame moves the answer most, beyond the embedding, where it does so by construction."""
    rows = [row for row in found.rows if row.place > 0 and row.frame is not None]
    if not rows:
        raise NotAvailable("the residual stream is another space than the embedding, so there is no frame to swap")
    return max(rows, key=lambda row: row.frame or -torch.inf)
