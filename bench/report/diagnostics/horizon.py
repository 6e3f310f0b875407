"""Beyond a loss horizon: does the geometry stay where the computation ends, and does a transplant rescue it?

For `recurrence` with loss_horizon=n: only the first n positions were trained on. Inside and beyond:

error       KL from the exact posterior, bits
overlap     of the directions at the embedding that answers are sensitive to with the embeddings of the numbers, over
            what random subspaces have; from the queries inside, and from those beyond
decode      held-out R2 of a linear probe for the logits of the posterior, in the stream after the last layer
Transplant  the last n numbers, read as a sequence of their own, end at a position that was trained on and have the same
            answer. The vector there, after a layer, replaces the one beyond. If KL falls, what follows still works, and
            what failed is the computation before. The null is the vector of another sequence, the ceiling the
            model's own answer to those numbers alone; after the last layer the transplant is that answer. The share
            rescued is (KL without - KL with it) / (KL without - ceiling). In a recurrent model the memory before the
            last number is transplanted, too: that of each layer and of all
"""

from __future__ import annotations

from functools import lru_cache
from statistics import mean
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
    section,
)
from bench.report.diagnostics.frame import kl_bits, make_frame, setting, twins
from bench.report.diagnostics.used import fit, targets
from bench.report.interventions import (
    EMBEDDING,
    Answers,
    describe_place,
    memories,
    places,
    swap,
    swap_state,
)
from bench.report.subspaces import overlap, readout_subspaces
from bench.run.score import Exam
from tasks.base import Batch

SEQUENCES = 32


class Rescue(NamedTuple):
    place: str
    own: float  # KL beyond with the transplant, bits
    other: float  # with that of another sequence


class Sensitivity(NamedTuple):
    """The overlap of frame and readout."""

    share: float
    null: float
    twins: list[float]  # in random twins


class Part(NamedTuple):
    kl: float
    overlap: Sensitivity | None  # None where answers do not depend on the embedding
    decode: float


class Horizon(NamedTuple):
    last: int  # positions that were trained on
    kl: list[float]  # by position
    inside: Part
    beyond: Part
    ceiling: float  # KL of the model's own answer to the last numbers alone
    rescues: list[Rescue]
    by_memory: list[Rescue]  # at the last position, by the memory that was transplanted; empty where there is none


def windows(run: Run, batch: Batch, last: int) -> Batch:
    """Each stretch of `last` steps that ends beyond the horizon, as a sequence: [B * beyond, lead + last]."""
    lead = run.task.shape.lead
    steps_BK = batch.tokens[:, lead:]
    parts_BWL = steps_BK.unfold(1, last, 1)[:, 1:]  # the first one ends inside
    W = parts_BWL.shape[1]
    head = batch.tokens[:, None, :lead].expand(-1, W, -1)
    tokens = torch.cat([head, parts_BWL], dim=2).flatten(0, 1)
    features = batch.features.new_empty(*tokens.shape, 0)
    return Batch(tokens, features, tokens[:, -1:], torch.tensor([lead + last - 1]))


def sensitivity(run: Run, batch: Batch, queries: Tensor) -> Sensitivity | None:
    found = []
    for i, model in enumerate((run.model, *twins(run))):
        basis = make_frame(model, batch, None)
        rank, rng = min(basis.shape[1], max(1, len(basis) // 2)), run.rng("horizon", *([i] if i else []))
        read = readout_subspaces(model, batch._replace(queries=queries), [EMBEDDING], rank, rng).get(EMBEDDING)
        if read is None:
            return None
        found.append((overlap(basis, read), basis.shape[1] / len(basis)))
    (share, null), *others = found
    return Sensitivity(share, null, [of for of, _ in others])


@lru_cache(maxsize=1)
def measure(run: Run) -> Horizon:
    last: int | None = getattr(run.task, "loss_horizon", None)
    if last is None:
        raise NotAvailable("every position was trained on: it takes --set loss_horizon=5")
    exam, _, answers, *_ = setting(run)
    kl_BQ = kl_bits(exam.posterior, answers.intact)
    cut = [exam.batch.queries[:last], exam.batch.queries[last:]]
    small = Batch(exam.batch.tokens[:SEQUENCES], exam.batch.features[:SEQUENCES], exam.batch.targets[:SEQUENCES],
                  exam.batch.queries)  # fmt: skip
    x_BQD = answers.at(places(run.model)[-1])[:, exam.batch.queries]
    logits_BQC = targets(run.task, exam)["belief"].y_BPC
    halves = []
    for queries, part in zip(cut, (slice(None, last), slice(last, None)), strict=True):
        decoded = fit("belief", x_BQD[:, part], logits_BQC[:, part]).score
        halves.append(Part(kl_BQ[:, part].mean().item(), sensitivity(run, small, queries), decoded))
    pieces = windows(run, exam.batch, last)
    donors = Answers(run.model, pieces)
    answered = donors.intact[:, -1].unflatten(0, (len(exam.batch.tokens), -1))
    ceiling = kl_bits(exam.posterior[:, last:], answered).mean().item()
    rescues = []
    for place in places(run.model):
        ends_BWD = donors.at(place)[:, -1].unflatten(0, (len(exam.batch.tokens), -1))
        kls = []
        for vectors_BWD in (ends_BWD, ends_BWD.roll(1, 0)):
            stream_BTD = answers.at(place).clone()
            stream_BTD[:, cut[1]] = vectors_BWD
            replaced = iter(stream_BTD.split(len(answers.inputs[0][0])))
            log_q = answers.edited({place: lambda x, parts=replaced: swap(next(parts), cut[1])(x)})  # type: ignore[misc]
            kls.append(kl_bits(exam.posterior, log_q)[:, last:].mean().item())
        rescues.append(Rescue(describe_place(run.model, place), *kls))
    by_memory = transplant_memory(run, exam, pieces)
    return Horizon(last, kl_BQ.mean(0).tolist(), halves[0], halves[1], ceiling, rescues, by_memory)


def transplant_memory(run: Run, exam: Exam, pieces: Batch) -> list[Rescue]:
    """The memory before the last number, from the model after it has read the last numbers alone.

    Empty for a model without a memory, and for one with attention, whose memory is bound to positions.
    """
    chosen = memories(run.model)
    if not chosen or hasattr(run.model.start(1, 1), "memory"):  # type: ignore[operator]
        return []
    n, ends = len(exam.batch.tokens), pieces.tokens.shape[1] - 1
    at = exam.batch.tokens.shape[1] - 1
    tokens_BT = pieces.tokens.unflatten(0, (n, -1))[:, -1]  # the windows that end where the sequence does
    features = exam.batch.features.new_empty(*tokens_BT.shape, 0)
    donors = [Batch(tokens, features, tokens[:, -1:], pieces.queries) for tokens in (tokens_BT, tokens_BT.roll(1, 0))]
    found = []
    for name, layers in chosen.items():
        log_qs = (swap_state(run.model, exam.batch, donor, at, layers, ends) for donor in donors)
        kls = (kl_bits(exam.posterior[:, -1:], log_q[:, None]).mean().item() for log_q in log_qs)
        found.append(Rescue(name, *kls))
    return found


def draw_kl(axis: Any, found: Horizon) -> None:
    axis.plot(range(1, len(found.kl) + 1), found.kl, "o-", color=MODEL, markersize=4)
    axis.axvline(found.last + 0.5, color=GREY, linestyle=":")
    axis.set(xlabel="position", ylabel="KL (bits)", title="dotted: the loss horizon")


@section("What is left beyond the loss horizon?", tasks=("recurrence",), taps="*resid")
def beyond(run: Run) -> Section:
    found = measure(run)
    rows: list[list[Any]] = []
    for name, part in (("inside", found.inside), ("beyond", found.beyond)):
        columns: list[float | None] = [None] * 5
        if part.overlap is not None:
            share, null, others = part.overlap
            columns = [share, null, share / null, mean(others), max(others)]
        rows.append([name, part.kl, *columns, part.decode])
    way = found.beyond.kl - found.ceiling
    rescues = [
        [r.place, found.beyond.kl, r.own, r.other, found.ceiling,
         *((found.beyond.kl - kl) / way if way > 0 else None for kl in (r.own, r.other))]
        for r in found.rescues
    ]  # fmt: skip
    figure, (left, right) = canvas(9, 3.4, 1, 2)
    draw_kl(left, found)
    ticks = ["emb", *map(str, range(len(rescues) - 1))]
    right.plot(ticks, [r.own for r in found.rescues], "o-", color=MODEL, markersize=4, label="own transplant")
    right.plot(ticks, [r.other for r in found.rescues], "o--", color=GREY, markersize=4, label="of another sequence")
    right.axhline(found.beyond.kl, color=EXACT, linewidth=1, label="without")
    right.axhline(found.ceiling, color=OTHER, linewidth=1, label="own answer to the last numbers alone")
    right.set(xlabel="transplanted after layer", ylabel="KL beyond (bits)", title="Transplants")
    right.legend(fontsize=7)
    text = (
        f"Trained on the first {found.last} positions. An overlap is 1 at most. A transplant is the vector at the "
        f"end of the last {found.last} numbers, read as a sequence of their own; below the line `without` it "
        f"helps. The ceiling is the model's own answer to those numbers alone, KL {found.ceiling:.3g}."
    )
    if not found.by_memory:
        text += (
            " Memory transplant: n/a, because a memory of attention is bound to positions, and a model without a step "
            "function has none."
        )
    tables = [
        Table(
            "horizon",
            [
                "positions",
                "KL (bits)",
                "overlap",
                "at random",
                "overlap over null",
                "random twins",
                "largest of the twins",
                "R² of the posterior's logits",
            ],
            rows,
        ),
        Table(
            "transplants",
            [
                "place",
                "KL beyond",
                "with its own transplant",
                "with another's",
                "ceiling",
                "share rescued",
                "by another's",
            ],
            rescues,
        ),
    ]
    if found.by_memory:
        header = ["memory of", "KL at the end, own transplant", "KL at the end, of another sequence"]
        tables.append(Table("transplanted_memory", header, [[*each] for each in found.by_memory]))
    return Section(text, tables, [Picture("horizon", figure, "KL by position, and after a transplant.")])
