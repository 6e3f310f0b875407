"""Does the answer follow the donor's evidence?

The donor is the same sequence with its hypotheses renamed. After the embedding and after each layer its vectors, or
their part in a subspace, replace the recipient's at the positions that stand for hypotheses (evidence), or at the
scored positions (answer). The margin is KL(recipient's posterior || answer) - KL(donor's posterior || answer) in bits,
mean over reads where the two posteriors differ: negative for the intact model, positive once the answer has followed.

frame     the span in which donor and recipient embeddings differ: at the embedding the whole swap by construction.
          After a layer: as many directions, the leading ones in which donor and recipient differ there, at these
          positions and in other sequences
readout   as many directions, those to which later answers are most sensitive (the readout's Jacobian, on other
          sequences). There are none where no layer mixes positions any more
random    random subspaces of the same rank: the null
whole     the whole vector: the ceiling of this place and these positions
state     for models that read step by step: the donor's memory of one layer, taken over before the middle query

The share of the way of a swap is (its margin - intact) / (whole - intact).
"""

from __future__ import annotations

from functools import lru_cache
from math import nan
from statistics import mean
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bench.report.diagnostics.anatomy import watch
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
from bench.report.diagnostics.frame import frame, make_frame, margin, need_donor, setting, twins
from bench.report.interventions import (
    EMBEDDING,
    Answers,
    describe_place,
    memories,
    normalise,
    places,
    swap,
    swap_state,
)
from bench.report.subspaces import overlap, random_subspace, readout_subspaces, span
from tasks.base import Batch

DRAWS, READERS = 5, 24  # random subspaces; sequences for a Jacobian
FAR = 0.1  # of the way to the donor: where the whole vectors move the answer less, there is no ceiling to compare with
EVIDENCE, ANSWER = "evidence", "answer"


class Swap(NamedTuple):
    place: int
    positions: str
    frame: float | None  # margins in bits; None where donor and recipient do not differ here
    readout: float | None  # None where no later answer depends on this place
    random: list[float]
    whole: float


class Overlap(NamedTuple):
    """Of readout and frame at a place."""

    share: float
    null: float
    twins: list[float]  # in random twins; empty beyond the embedding


class Swaps(NamedTuple):
    intact: float
    donor: float  # of the answers to the donor itself
    rank: int
    rows: list[Swap]
    overlaps: list[Overlap | None]  # by place
    states: dict[str, float]  # margins by what was taken over
    twin: tuple[float, float]  # a random twin's margins: intact, and of the answers to the donor itself

    def share(self, row: Swap, margin: float | None) -> float | None:
        """Of the way from the intact answer to that of the whole swap."""
        way = row.whole - self.intact
        is_far = way > 0 and way >= FAR * (self.donor - self.intact)
        return (margin - self.intact) / way if is_far and margin is not None else None


def first(batch: Batch, count: int) -> Batch:
    return Batch(batch.tokens[:count], batch.features[:count], batch.targets[:count], batch.queries)


@lru_cache(maxsize=1)
def readouts(run: Run) -> dict[str, Tensor]:
    """As many directions as the frame has, or half of the place's if that is less."""
    answers, others = setting(run).answers, setting(run).others
    where = places(run.model)
    narrow = min(answers.at(place).shape[-1] for place in where)
    rank = min(frame(run).shape[1], max(1, narrow // 2))
    return readout_subspaces(run.model, first(others[0], READERS), where, rank, run.rng("readout"))


def frames(run: Run, positions: dict[str, list[int]]) -> dict[tuple[str, str], Tensor]:
    """By place and positions; no entry where donor and recipient do not differ."""
    where, rank = places(run.model), frame(run).shape[1]
    own, other = (watch(run.model, batch, *where) for batch in setting(run).others)
    found = {}
    for place in where:
        differ_BTD = normalise(other[place]) - normalise(own[place])
        for name, at in positions.items():
            if differ_BTD[:, at].any():
                found[place, name] = span(differ_BTD[:, at].flatten(0, 1), min(rank, max(1, differ_BTD.shape[-1] // 2)))
    if (EMBEDDING, EVIDENCE) in found:
        found[EMBEDDING, EVIDENCE] = frame(run)
    return found


@lru_cache(maxsize=1)
def twin_overlaps(run: Run) -> list[float]:
    """Of readout and frame at the embedding of random twins."""
    others, found = setting(run).others, []
    for i, model in enumerate(twins(run)):
        basis = make_frame(model, *others[:2])
        batch, rank = first(others[0], READERS), min(basis.shape[1], max(1, len(basis) // 2))
        read = readout_subspaces(model, batch, [EMBEDDING], rank, run.rng("readout", "twin", i)).get(EMBEDDING)
        found += [] if read is None else [overlap(basis, read)]
    return found


def overlaps(run: Run, of: dict[tuple[str, str], Tensor]) -> list[Overlap | None]:
    found: list[Overlap | None] = []
    for place in places(run.model):
        basis, read = of.get((place, EVIDENCE)), readouts(run).get(place)
        if basis is None or read is None:
            found.append(None)
            continue
        null = max(basis.shape[1], read.shape[1]) / len(basis)
        found.append(Overlap(overlap(basis, read), null, twin_overlaps(run) if place == EMBEDDING else []))
    return found


@lru_cache(maxsize=1)
def measure(run: Run) -> Swaps:
    donor, rng = need_donor(run), run.rng("swap")
    exam, _, answers, evidence, _ = setting(run)
    require_once(answers.repeats)
    other = Answers(run.model, donor.batch)
    sets = {EVIDENCE: evidence, ANSWER: exam.batch.queries.tolist()}
    reads, of = readouts(run), frames(run, sets)
    rows: list[Swap] = []

    def score(place: str, positions: list[int], basis_DR: Tensor | None) -> float:
        found = answers.with_donor(place, lambda d: swap(d, positions, basis_DR), other)
        return margin(found, exam.posterior, donor.posterior)

    for i, place in enumerate(places(run.model)):
        width, read = answers.at(place).shape[-1], reads.get(place)
        ranks = [basis.shape[1] for basis in (of.get((place, EVIDENCE)), read) if basis is not None]
        null = [random_subspace(width, max(ranks, default=1), rng) for _ in range(DRAWS)]
        for name, positions in sets.items():
            basis = of.get((place, name))
            in_frame = None if basis is None else score(place, positions, basis)
            in_read = None if read is None else score(place, positions, read)
            at_random = [score(place, positions, each) for each in null]
            rows.append(Swap(i, name, in_frame, in_read, at_random, score(place, positions, None)))
    twin = [Answers(twins(run)[0], batch).intact for batch in (exam.batch, donor.batch)]
    intact, followed, *of_twin = (
        margin(log_q, exam.posterior, donor.posterior) for log_q in (answers.intact, other.intact, *twin)
    )
    states = swap_states(run)
    return Swaps(intact, followed, frame(run).shape[1], rows, overlaps(run, of), states, (of_twin[0], of_twin[1]))


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
        shares = [found.share(row, margin) for margin in (row.frame, row.readout, max(row.random))]
        margins = [found.intact, row.frame, row.readout, null, max(row.random), row.whole]
        rows.append([where[row.place], row.positions, *margins, *shares])
    header = ["place", "positions", "intact", "frame", "readout", "random", "largest", "whole",
              "share of the way: frame", "share: readout", "share: largest random"]  # fmt: skip
    overlapping = [
        [where[i], o.share, o.null, o.share / o.null, 1 / o.null, mean(o.twins or [nan]), max(o.twins, default=nan)]
        for i, o in enumerate(found.overlaps)
        if o is not None
    ]
    columns = ["place", "overlap of readout and frame", "at random", "ratio", "ceiling",
               "random twins", "largest of the twins"]  # fmt: skip
    tables = [Table("swap", header, rows), Table("overlap", columns, overlapping)]
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
        "the embedding the frame swap is the whole swap by construction. After a layer the frame is as many "
        "directions, the leading ones in which donor and recipient differ there in other sequences. The share of the "
        f"way is 0 for the intact answer and 1 for the whole swap. A random twin has a margin of {found.twin[0]:.2f}, "
        f"and {found.twin[1]:.2f} for the donor itself."
    )
    if not found.states:
        text += " The architecture cannot read step by step, so its memory was not swapped."
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
        raise NotAvailable("donor and recipient differ at no place beyond the embedding")
    return max(rows, key=lambda row: row.frame or -torch.inf)
