"""Beyond a loss horizon: does the geometry stay where the computation ends, and does a transplant rescue it?

For `recurrence` with loss_horizon=n: only the first n positions were trained on. Inside and beyond:

error       KL from the exact posterior, bits
overlap     of the directions at the embedding that answers are sensitive to with the embeddings of the numbers, over
            what random subspaces have; from the queries inside, and from those beyond
decode      held-out R2 of a linear probe for the logits of the posterior, in the stream after the last layer
Transplant  the last n numbers, read as a sequence of their own, end at a position that was trained on and have the same
            answer. The vector there, after a layer, replaces the one beyond. If KL falls, what follows still works, and
            what failed is the computation before. The null is the vector of another sequence. In a recurrent
            model the memory before the last number is transplanted, too: that of each layer and of all
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
    NotAvailable,
    Picture,
    Run,
    Section,
    Table,
    canvas,
    section,
)
from bench.report.diagnostics.frame import kl_bits, make_frame, setting
from bench.report.diagnostics.used import read, targets
from bench.report.interventions import (
    EMBEDDING,
    Answers,
    describe_place,
    memories,
    overlap,
    places,
    readout_subspaces,
    swap,
    swap_state,
)
from bench.run.score import Exam
from tasks.base import Batch

SEQUENCES = 32


class Rescue(NamedTuple):
    place: str
    own: float  # KL beyond with the transplant, bits
    other: float  # with that of another sequence


class Part(NamedTuple):
    kl: float
    overlap: float | None  # None where answers do not depend on the embedding
    null: float | None
    decode: float


class Horizon(NamedTuple):
    last: int  # positions that were trained on
    kl: list[float]  # by position
    inside: Part
    beyond: Part
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


def sensitivity(run: Run, batch: Batch, queries: Tensor) -> tuple[float, float] | tuple[None, None]:
    """The overlap, and that of random subspaces."""
    basis = make_frame(run.model, batch, None)
    width, rank = len(basis), min(basis.shape[1], max(1, len(basis) // 2))
    some = batch._replace(queries=queries)
    found = readout_subspaces(run.model, some, [EMBEDDING], rank, run.rng("horizon")).get(EMBEDDING)
    return (None, None) if found is None else (overlap(basis, found), basis.shape[1] / width)


@lru_cache(maxsize=1)
def measure(run: Run) -> Horizon:
    last: int | None = getattr(run.task, "loss_horizon", None)
    if last is None:
        raise NotAvailable("every position was trained on: it takes --set loss_horizon=5")
    exam, _, answers, _ = setting(run)
    kl_BQ = kl_bits(exam.posterior, answers.intact)
    cut = [exam.batch.queries[:last], exam.batch.queries[last:]]
    small = Batch(exam.batch.tokens[:SEQUENCES], exam.batch.features[:SEQUENCES], exam.batch.targets[:SEQUENCES],
                  exam.batch.queries)  # fmt: skip
    x_BQD = answers.at(places(run.model)[-1])[:, exam.batch.queries]
    logits_BQC = targets(run.task, exam)["belief"].y_BPC
    halves = []
    for queries, part in zip(cut, (slice(None, last), slice(last, None)), strict=True):
        decoded = read("belief", x_BQD[:, part], logits_BQC[:, part])
        share, null = sensitivity(run, small, queries)
        halves.append(Part(kl_BQ[:, part].mean().item(), share, null, decoded))
    pieces = windows(run, exam.batch, last)
    donors = Answers(run.model, pieces)
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
    return Horizon(last, kl_BQ.mean(0).tolist(), halves[0], halves[1], rescues, by_memory)


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


@section("What is left beyond the loss horizon?", tasks=("recurrence",), taps="*resid")
def beyond(run: Run) -> Section:
    found = measure(run)
    rows: list[list[Any]] = []
    for name, part in (("inside", found.inside), ("beyond", found.beyond)):
        ratio = None if part.overlap is None or part.null is None else part.overlap / part.null
        rows.append([name, part.kl, part.overlap, part.null, ratio, part.decode])
    rescues = [[*rescue] for rescue in found.rescues]
    figure, (left, right) = canvas(9, 3.4, 1, 2)
    left.plot(range(1, len(found.kl) + 1), found.kl, "o-", color=MODEL, markersize=4)
    left.axvline(found.last + 0.5, color=GREY, linestyle=":")
    left.set(xlabel="position", ylabel="KL (bits)", title="dotted: the loss horizon")
    ticks = ["emb", *map(str, range(len(rescues) - 1))]
    right.plot(ticks, [r.own for r in found.rescues], "o-", color=MODEL, markersize=4, label="own transplant")
    right.plot(ticks, [r.other for r in found.rescues], "o--", color=GREY, markersize=4, label="of another sequence")
    right.axhline(found.beyond.kl, color=EXACT, linewidth=1, label="without")
    right.set(xlabel="transplanted after layer", ylabel="KL beyond (bits)", title="Transplants")
    right.legend(fontsize=7)
    text = (
        f"Trained on the first {found.last} positions. An overlap is 1 at most. A transplant is the vector at the "
        f"end of the last {found.last} numbers, read as a sequence of their own; below the line `without` it helps."
    )
    tables = [
        Table(
            "horizon",
            ["positions", "KL (bits)", "overlap", "at random", "overlap over null", "R² of the posterior's logits"],
            rows,
        ),
        Table("transplants", ["place", "KL beyond, own transplant", "KL beyond, of another sequence"], rescues),
    ]
    if found.by_memory:
        header = ["memory of", "KL at the end, own transplant", "KL at the end, of another sequence"]
        tables.append(Table("transplanted_memory", header, [[*each] for each in found.by_memory]))
    return Section(text, tables, [Picture("horizon", figure, "KL by position, and after a transplant.")])
