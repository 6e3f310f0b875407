"""What is used, and what can only be read?

Read       a linear probe of the normalised stream, fitted on half of the sequences and scored on the other half, after
           the embedding and after each layer. Identity: which hypothesis a position stands for (accuracy, at those
           positions). Eliminated, belief, entropy: which hypotheses have less than half of the uniform share, the
           logits of the exact posterior (floored at 0.001), and its entropy (R2, at scored positions)
Controls   the same probe on a random twin, and with its targets in a random order
Removed    at the first place where the probe has 95 % of its best score, and at the positions where the quantity is
           defined, a subspace is replaced by its mean there, in the normalised coordinates that the probe reads.
           `axis`: the directions that this probe weighs. `covarying`: all along which the stream varies with the
           quantity. They differ, as a probe weighs the direction with the least noise, and not the one with most of
           the signal: removing an axis leaves most of what can be read. A new probe says how much is left
Nulls      subspaces of the same rank. `random` ones are drawn without regard to the stream, so they hold little of its
           variance. `matched` ones are what the same estimator finds for the quantity in a random order
Used       KL rises above that of every random and every matched subspace, and by at least half of the intact model's.
           Matched subspaces that are nearly the removed one are no null, and do not count: where a stream has no more
           directions than the quantity, every estimate finds them all

Positions beyond a loss horizon are left out.
"""

from __future__ import annotations

from functools import lru_cache, partial
from statistics import mean
from typing import Any, NamedTuple

import torch
from torch import Tensor

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
from bench.report.diagnostics.frame import setting, trained, twin
from bench.report.diagnostics.geometry import FEASIBLE
from bench.report.interventions import ablate, describe_place, normalise, places
from bench.report.subspaces import Probe, covariance, covarying_subspace, overlap, random_subspace, span
from bench.run.score import Exam, Score, entropy_bits, score
from bench.statements import LEAST_DRAWS, READABLE, RISE, TWIN
from tasks.base import HasHypotheses, Task, one_hot

NEAR_BEST, SAME = 0.95, 0.75
CONSTANT = 1e-6
FLOOR = 1e-3  # of a probability whose logarithm is read
QUANTITIES = ("identity", "eliminated", "belief", "entropy")
AXIS, COVARYING = "axis", "covarying"


class Target(NamedTuple):
    positions: list[int]
    y_BPC: Tensor  # P positions


class Reading(NamedTuple):
    trained: list[float]  # by place
    twin: list[float]
    permuted: list[float]


class Fit(NamedTuple):
    """A probe with its score on sequences that it has not seen, and what it was fitted on."""

    score: float
    probe: Probe
    x_ND: Tensor  # normalised
    y_NC: Tensor

    @property
    def mean_D(self) -> Tensor:
        return self.x_ND.mean(0)

    def subspaces(self) -> dict[str, Tensor]:
        return {AXIS: self.probe.subspace(), COVARYING: covarying_subspace(self.x_ND, self.y_NC)}

    def matched(self, rng: torch.Generator) -> dict[str, list[Tensor]]:
        """What the same estimators find for the quantity in a random order."""
        orders = [torch.randperm(len(self.y_NC), generator=rng) for _ in range(LEAST_DRAWS)]
        y_NM, C = torch.cat([self.y_NC[order] for order in orders], 1), self.y_NC.shape[1]
        found = {AXIS: Probe(self.x_ND, y_NM).weight_DC.T, COVARYING: covariance(self.x_ND, y_NM)}
        return {kind: [span(part).float() for part in of.split(C)] for kind, of in found.items()}


class Removal(NamedTuple):
    mae: float
    kl: float
    variance: float  # the share of the normalised stream's variance that is removed


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
    matched: list[Removal]
    shared: float  # overlap of the removed subspace with the matched ones
    intact: Removal

    @property
    def used(self) -> bool:
        nulls = [*self.random, *(self.matched if self.shared < SAME else [])]
        return self.removed.kl > max(RISE * self.intact.kl, *(null.kl for null in nulls))

    @property
    def readable(self) -> str:
        score, control = self.reading.trained[self.place], self.reading.twin[self.place]
        if score < READABLE:
            return "no"
        return "as in a random twin" if control >= TWIN * score else "yes"


def targets(task: Task, exam: Exam, reads: slice = slice(None)) -> dict[str, Target]:
    """What can be asked of this task, leaving out what does not vary."""
    classes, queries, posterior = task.shape.classes, exam.batch.queries[reads].tolist(), exam.posterior[:, reads]
    found: dict[str, Target] = {}
    if isinstance(task, HasHypotheses):
        role_BT = task.hypotheses(exam.batch.tokens)
        positions = (role_BT >= 0).all(0).nonzero().flatten()
        found["identity"] = Target(positions.tolist(), one_hot(role_BT[:, positions], classes))
    found["eliminated"] = Target(queries, (posterior < FEASIBLE / classes).double())
    logits = posterior.clamp(min=FLOOR).log()
    found["belief"] = Target(queries, logits - logits.mean(-1, keepdim=True))
    found["entropy"] = Target(queries, entropy_bits(posterior)[..., None])
    return {name: t for name, t in found.items() if (t.y_BPC.amax((0, 1)) - t.y_BPC.amin((0, 1))).max() > CONSTANT}


def grade(name: str, said_NC: Tensor, true_NC: Tensor) -> float:
    if name == "identity":
        return (said_NC.argmax(-1) == true_NC.argmax(-1)).double().mean().item()
    return 1 - ((said_NC - true_NC).square().mean() / true_NC.var(0, correction=0).mean().clamp(min=CONSTANT)).item()


def fit(name: str, x_BPD: Tensor, y_BPC: Tensor) -> Fit:
    x_BPD, half = normalise(x_BPD), len(x_BPD) // 2
    seen = x_BPD[:half].flatten(0, 1), y_BPC[:half].flatten(0, 1)
    probe = Probe(*seen)
    return Fit(grade(name, probe.read(x_BPD[half:].flatten(0, 1)), y_BPC[half:].flatten(0, 1)), probe, *seen)


def remove(run: Run, place: str, positions: list[int], mean_D: Tensor, basis_DR: Tensor) -> Removal:
    exam, _, answers, *_ = setting(run)
    x_ND = normalise(answers.at(place)[:, positions]).flatten(0, 1)
    centred = x_ND - x_ND.mean(0)
    share = ((centred @ basis_DR).square().sum() / centred.square().sum().clamp(min=1e-30)).item()
    edits = {place: ablate(basis_DR, mean_D, positions)}
    return summarise(run, score(exam, answers.edited(edits)), share)


def summarise(run: Run, of: Score, variance: float = 0.0) -> Removal:
    reads = trained(run)
    return Removal(of.entropy_mae[reads].mean().item(), of.kl[reads].mean().item(), variance)


@lru_cache(maxsize=1)
def measure(run: Run) -> list[Finding]:
    where = places(run.model)
    if not where:
        raise NotAvailable("the architecture has no tap on a residual stream")
    require_once(setting(run).answers.repeats)
    exam, _, seen = look(run)
    control = watch(twin(run), exam.batch, *where)
    intact = summarise(run, score(setting(run).exam, setting(run).answers.intact))
    rng, found = run.rng("random subspaces"), []
    for name, (positions, y_BPC) in targets(run.task, exam, trained(run)).items():
        order = torch.randperm(y_BPC.shape[0] * y_BPC.shape[1], generator=run.rng("permuted targets"))
        shuffled = y_BPC.flatten(0, 1)[order].view_as(y_BPC)
        fits = [fit(name, seen[place][:, positions], y_BPC) for place in where]
        reading = Reading(
            [each.score for each in fits],
            [fit(name, control[place][:, positions], y_BPC).score for place in where],
            [fit(name, seen[place][:, positions], shuffled).score for place in where],
        )
        best = max(reading.trained)
        at = next(i for i, s in enumerate(reading.trained) if s >= NEAR_BEST * best or i + 1 == len(where))
        without = partial(remove, run, where[at], positions, fits[at].mean_D)
        matched, random = fits[at].matched(rng), dict[int, list[Removal]]()
        for kind, basis in fits[at].subspaces().items():
            left = fit(name, ablate(basis, fits[at].mean_D)(seen[where[at]][:, positions]), y_BPC).score
            width, rank = basis.shape
            if rank not in random:
                random[rank] = [without(random_subspace(width, rank, rng)) for _ in range(LEAST_DRAWS)]
            alike = [each[:, :rank] for each in matched[kind]]
            nulls = random[rank], [without(each) for each in alike], mean(overlap(basis, each) for each in alike)
            found.append(Finding(name, kind, reading, at, rank, left, without(basis), *nulls, intact))
    return found


HEADER = ["quantity", "read at", "probe", "random twin", "permuted target", "readable", "removed", "rank",
          "probe afterwards", "variance removed", "by random", "by matched", "MAE intact", "MAE once removed",
          "KL intact", "KL once removed", "random: mean", "random: largest", "matched: mean", "matched: largest",
          "overlap with matched", "draws", "used"]  # fmt: skip


def row(f: Finding, place: str) -> list[Any]:
    r = f.reading
    nulls = [[each.kl for each in null] for null in (f.random, f.matched)]
    shares = [mean(each.variance for each in null) for null in (f.random, f.matched)]
    return [
        f.quantity, place, r.trained[f.place], r.twin[f.place], r.permuted[f.place], f.readable, f.subspace, f.rank,
        f.left, f.removed.variance, *shares, f.intact.mae, f.removed.mae, f.intact.kl, f.removed.kl,
        *(of(null) for null in nulls for of in (mean, max)), f.shared, len(f.random), "yes" if f.used else "no",
    ]  # fmt: skip


@section("What is used, and what can only be read?")
def used(run: Run) -> Section:
    found = measure(run)
    where = [describe_place(run.model, place) for place in places(run.model)]
    rows = [row(f, where[f.place]) for f in found]
    once = [f for f in found if f.subspace == AXIS]
    by_place = [
        [f.quantity, place, f.reading.trained[i], f.reading.twin[i], f.reading.permuted[i]]
        for f in once
        for i, place in enumerate(where)
    ]
    tables = [
        Table("used", HEADER, rows),
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
        "mean, in normalised coordinates and at the positions where the quantity is defined: the axis that this probe "
        "weighs, and all directions that vary with the quantity; `probe afterwards` is what can still be read. Each "
        "has "
        f"two nulls of the same rank, {LEAST_DRAWS} draws each: random subspaces, which hold little of the stream's "
        "variance, and matched ones, which the same estimator finds for the quantity in a random order. A subspace "
        "counts as used if KL rises above that of all of them and by at least half. Matched subspaces that overlap "
        f"the removed one by {SAME:g} or more are no null, and do not count."
    )
    return Section(text, tables, [Picture("readable", figure, "What probes read after each layer, with controls.")])


def draw_reading(axis: Any, f: Finding) -> None:
    place = ["emb", *map(str, range(len(f.reading.trained) - 1))]
    for values, colour, label in ((f.reading.trained, MODEL, "this model"), (f.reading.twin, GREY, "random twin"),
                                  (f.reading.permuted, EXACT, "permuted target")):  # fmt: skip
        axis.plot(place, [max(0.0, v) for v in values], "o-", color=colour, markersize=3, label=label)
    axis.set(ylim=(0, 1.05), xlabel="after layer", title=f.quantity)
