"""What is used, and what can only be read?

Read       a linear probe of the normalised stream, fitted on half of the sequences and scored on the other half, after
           the embedding and after each layer. Identity: which hypothesis a position stands for (accuracy, at those
           positions). Eliminated, belief, entropy: which hypotheses have less than half of the uniform share, the
           logits of the exact posterior (floored at 0.001), and its entropy (R2, at scored positions)
Controls   the same probe on a random twin, and with its targets in a random order
Removed    at the first place where the probe has 95 % of its best score, at every position, a subspace is replaced by
           its mean: `axis`, the directions that the probe weighs, and `covarying`, all along which the stream varies
           with the quantity. They differ, as a probe weighs the direction with the least noise, and not the one with
           most of the signal: removing an axis leaves most of what can be read. A probe that is fitted afterwards says
           how much is left
Used       KL rises above that of every random subspace of the same rank, and by at least half of the intact model's.
           Single directions are compared with more of them: one like five others is above them all once in six
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import layer_norm

from bench.report.diagnostics.anatomy import look, watch
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
    require_once,
    section,
)
from bench.report.diagnostics.frame import setting, twin
from bench.report.diagnostics.geometry import FEASIBLE
from bench.report.interventions import Probe, ablate, covarying_subspace, describe_place, places, random_subspace
from bench.run.score import Exam, entropy_bits, score
from bench.statements import LEAST_DRAWS, READABLE, RISE, TWIN
from tasks.base import HasHypotheses, Task, one_hot

NEAR_BEST, DRAWS = 0.95, 5
CONSTANT = 1e-6
FLOOR = 1e-3  # of a probability whose logarithm is read
QUANTITIES = ("identity", "eliminated", "belief", "entropy")


class Target(NamedTuple):
    positions: list[int]
    y_BPC: Tensor  # P positions


class Reading(NamedTuple):
    trained: list[float]  # by place
    twin: list[float]
    permuted: list[float]


class Removal(NamedTuple):
    mae: float
    kl: float
    variance: float  # the share of the stream's variance that is removed


class Finding(NamedTuple):
    """One quantity, one subspace removed."""

    quantity: str
    subspace: str  # axis or covarying
    reading: Reading
    place: int
    rank: int
    left: float  # what a probe reads after the removal
    removed: Removal
    random: list[Removal]
    intact: Removal

    @property
    def used(self) -> bool:
        return self.removed.kl > max(RISE * self.intact.kl, *(each.kl for each in self.random))

    @property
    def readable(self) -> str:
        score, control = self.reading.trained[self.place], self.reading.twin[self.place]
        if score < READABLE:
            return "no"
        return "as in a random twin" if control >= TWIN * score else "yes"


def targets(task: Task, exam: Exam) -> dict[str, Target]:
    """What can be asked of this task, leaving out what does not vary."""
    classes, queries = task.shape.classes, exam.batch.queries.tolist()
    found: dict[str, Target] = {}
    if isinstance(task, HasHypotheses):
        role_BT = task.hypotheses(exam.batch.tokens)
        positions = (role_BT >= 0).all(0).nonzero().flatten()
        found["identity"] = Target(positions.tolist(), one_hot(role_BT[:, positions], classes))
    found["eliminated"] = Target(queries, (exam.posterior < FEASIBLE / classes).double())
    logits = exam.posterior.clamp(min=FLOOR).log()
    found["belief"] = Target(queries, logits - logits.mean(-1, keepdim=True))
    found["entropy"] = Target(queries, entropy_bits(exam.posterior)[..., None])
    return {name: t for name, t in found.items() if (t.y_BPC.amax((0, 1)) - t.y_BPC.amin((0, 1))).max() > CONSTANT}


def grade(name: str, said_NC: Tensor, true_NC: Tensor) -> float:
    if name == "identity":
        return (said_NC.argmax(-1) == true_NC.argmax(-1)).double().mean().item()
    return 1 - ((said_NC - true_NC).square().mean() / true_NC.var(0, correction=0).mean().clamp(min=CONSTANT)).item()


def read(name: str, x_BPD: Tensor, y_BPC: Tensor) -> float:
    """The score of a probe on sequences that it has not seen."""
    x_BPD = layer_norm(x_BPD, x_BPD.shape[-1:]) if x_BPD.shape[-1] > 2 else x_BPD
    half = len(x_BPD) // 2
    probe = Probe(x_BPD[:half].flatten(0, 1), y_BPC[:half].flatten(0, 1))
    return grade(name, probe.read(x_BPD[half:].flatten(0, 1)), y_BPC[half:].flatten(0, 1))


def remove(run: Run, place: str, basis_DR: Tensor) -> Removal:
    exam, _, answers, _ = setting(run)
    x_ND = answers.at(place).flatten(0, 1)
    centred = x_ND - x_ND.mean(0)
    share = ((centred @ basis_DR).square().sum() / centred.square().sum().clamp(min=1e-30)).item()
    of = score(exam, answers.edited({place: ablate(basis_DR, x_ND.mean(0))}))
    return Removal(of.entropy_mae.mean().item(), of.kl.mean().item(), share)


@lru_cache(maxsize=1)
def measure(run: Run) -> list[Finding]:
    where = places(run.model)
    if not where:
        raise NotAvailable("the architecture has no tap on a residual stream")
    require_once(setting(run).answers.repeats)
    exam, _, seen = look(run)
    control = watch(twin(run), exam.batch, *where)
    of = score(setting(run).exam, setting(run).answers.intact)
    intact = Removal(of.entropy_mae.mean().item(), of.kl.mean().item(), 0.0)
    rng, found = run.rng("random subspaces"), []
    random: dict[tuple[str, int], list[Removal]] = {}
    for name, (positions, y_BPC) in targets(run.task, exam).items():
        order = torch.randperm(y_BPC.shape[0] * y_BPC.shape[1], generator=run.rng("permuted targets"))
        shuffled = y_BPC.flatten(0, 1)[order].view_as(y_BPC)
        reading = Reading(
            [read(name, seen[place][:, positions], y_BPC) for place in where],
            [read(name, control[place][:, positions], y_BPC) for place in where],
            [read(name, seen[place][:, positions], shuffled) for place in where],
        )
        at = next(
            i for i, s in enumerate(reading.trained) if s >= NEAR_BEST * max(reading.trained) or i + 1 == len(where)
        )
        x_BPD = seen[where[at]][:, positions]
        flat = x_BPD.flatten(0, 1), y_BPC.flatten(0, 1)
        for kind, basis in (("axis", Probe(*flat).subspace()), ("covarying", covarying_subspace(*flat))):
            left = read(name, ablate(basis, x_BPD.mean((0, 1)))(x_BPD), y_BPC)
            width, rank = basis.shape
            if (where[at], rank) not in random:
                drawn = [random_subspace(width, rank, rng) for _ in range(LEAST_DRAWS if rank == 1 else DRAWS)]
                random[where[at], rank] = [remove(run, where[at], each) for each in drawn]
            removed = remove(run, where[at], basis)
            found.append(Finding(name, kind, reading, at, rank, left, removed, random[where[at], rank], intact))
    return found


@section("What is used, and what can only be read?")
def used(run: Run) -> Section:
    found = measure(run)
    where = [describe_place(run.model, place) for place in places(run.model)]
    rows: list[list[Any]] = []
    for f in found:
        r, kls, draws = f.reading, [each.kl for each in f.random], len(f.random)
        rows.append(
            [f.quantity, where[f.place], r.trained[f.place], r.twin[f.place], r.permuted[f.place], f.readable,
             f.subspace, f.rank, f.left, f.removed.variance, sum(each.variance for each in f.random) / draws,
             f.intact.mae, f.removed.mae, sum(each.mae for each in f.random) / draws,
             f.intact.kl, f.removed.kl, sum(kls) / draws, max(kls), draws, "yes" if f.used else "no"]
        )  # fmt: skip
    header = ["quantity", "read at", "probe", "random twin", "permuted target", "readable", "removed", "rank",
              "probe afterwards", "variance removed", "by random", "MAE intact", "MAE without it", "MAE without random",
              "KL intact", "KL without it", "KL without random", "largest", "draws", "used"]  # fmt: skip
    once = [f for f in found if f.subspace == "axis"]
    by_place = [
        [f.quantity, place, f.reading.trained[i], f.reading.twin[i], f.reading.permuted[i]]
        for f in once
        for i, place in enumerate(where)
    ]
    tables = [
        Table("used", header, rows),
        Table("readable", ["quantity", "place", "probe", "random twin", "permuted target"], by_place),
    ]
    figure, axes = canvas(2.9 * len(once) + 0.6, 3.2, 1, len(once), squeeze=False)
    for axis, f in zip(axes[0], once, strict=True):
        draw_reading(axis, f)
    axes[0][0].set_ylabel("held-out score")
    axes[0][-1].legend(fontsize=7)
    text = (
        "Probe, random twin and permuted target are held-out scores of a linear probe: accuracy for identity, R² for "
        "the others. What a random twin gives as well says nothing about training. Two subspaces are replaced by their "
        "mean, everywhere: the axis that the probe weighs, and all directions that vary with the quantity; `probe "
        f"afterwards` is what can still be read. {DRAWS} random subspaces of the same rank are the null, or "
        f"{LEAST_DRAWS} directions. A subspace "
        "counts as used if KL rises above that of each of them and by at least half."
    )
    return Section(text, tables, [Picture("readable", figure, "What probes read after each layer, with controls.")])


def draw_reading(axis: Any, f: Finding) -> None:
    place = ["emb", *map(str, range(len(f.reading.trained) - 1))]
    for values, colour, label in ((f.reading.trained, MODEL, "this model"), (f.reading.twin, GREY, "random twin"),
                                  (f.reading.permuted, EXACT, "permuted target")):  # fmt: skip
        axis.plot(place, [max(0.0, v) for v in values], "o-", color=colour, markersize=3, label=label)
    axis.set(ylim=(0, 1.05), xlabel="after layer", title=f.quantity)
