"""Statements about how a model works: what a report must say for each to hold, and what several seeds decide.

In: the reports of single runs. A statement reads cells of their tables; where a report lacks them, it was not measured.
Out: a verdict with its reason. A statement is decided by at least three seeds of a row that agree, and whose errors are
at most twice the least that is known for the task; otherwise it is undecided.

The first rules were written down before any report was asked; some changed later, when the instruments were corrected,
and CLAIMS.md names those. Rules that changed read columns that older reports do not have. A subspace of the width's
dimensions overlaps a random one by chance, and no more than wholly, so an overlap is judged by its excess: 0 at random,
1 if one subspace holds the other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from bench.config import RunConfig, law
from bench.records import RunRecord
from bench.reports import Cell, Report

SEEDS, NEAR = 3, 2.0
READABLE = 0.9  # a probe's held-out score
TWIN = 0.9  # of that score: what a random twin has as well says nothing about training
EARLIER = 1.5  # a factor between two steps
OUTSTANDING = 2.0  # a factor between the largest cost and the next
DYING = 10.0  # a factor between two errors
SIGNIFICANT = 0.05
LEARNED = 0.1  # bits of KL: a model with more has not learned its task
RISE = 1.5  # what is removed makes a difference if KL is so many times the intact one
LEAST_DRAWS = 20  # of random directions: one more like them is the largest of all with probability 1/21
FOLLOWS = 0.5  # of the way from the intact answer to that of the whole swap
RESCUED = 0.5  # of the way from KL beyond the horizon to that of the model's answer to the last numbers alone

# published: 3 times the null, in a model of width 192 with 20 hypotheses. A ratio has another ceiling in every width
OVERLAP, PUBLISHED_NULL = 3.0, 19 / 192
EXCESS = (OVERLAP - 1) * PUBLISHED_NULL / (1 - PUBLISHED_NULL)

Read = Callable[[Report], float | None]
Holds = Callable[[Report], bool | None]


class Number(NamedTuple):
    """A number of a report, None where it has none."""

    name: str
    read: Read
    by_factors: bool = False  # seeds differ by factors, as errors and steps do: intervals are of the logarithm


class Statement(NamedTuple):
    rule: str
    holds: Holds
    shown: tuple[Number, ...]  # what it rests on


class Answered(NamedTuple):
    record: RunRecord
    report: Report


def find(report: Report, table: str, row: Mapping[str, Cell], column: str) -> Cell:
    """The cell of a report, or None where it has none."""
    return next((line.get(column) for line in report.lines(table) if row.items() <= line.items()), None)


def real(value: Cell) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def greatest(lines: Sequence[Mapping[str, Cell]], column: str) -> Mapping[str, Cell]:
    """The line with the largest number in this column; empty if none has one."""
    numbered = [(value, line) for line in lines if (value := real(line.get(column))) is not None]
    return max(numbered, key=lambda pair: pair[0], default=(0.0, {}))[1]


def cell(table: str, row: Mapping[str, Cell], column: str) -> Read:
    return lambda report: real(find(report, table, row, column))


def combine(how: Callable[..., float | None], *parts: Read) -> Read:
    """A number made of others; None if any of them is missing."""

    def read(report: Report) -> float | None:
        values = [part(report) for part in parts]
        return None if None in values else how(*values)

    return read


def probe(quantity: str, removed: str, column: str) -> Read:
    return cell("used", {"quantity": quantity, "removed": removed}, column)


def cost(quantity: str, removed: str) -> Read:
    """What the removal adds to the entropy error."""
    columns = (probe(quantity, removed, f"MAE {which}") for which in ("once removed", "intact"))
    return combine(lambda without, intact: without - intact, *columns)


def excess(table: str, row: Mapping[str, Cell], share: str) -> Read:
    """Over random subspaces, and over the largest of the random twins if that is more."""

    def above(found: float, random: float, twin: float) -> float | None:
        null = max(random, twin)
        return (found - null) / (1 - null) if null < 1 else None

    return combine(above, *(cell(table, row, column) for column in (share, "at random", "largest of the twins")))


def after_one_step(report: Report) -> float | None:
    """The share of the last excess that the first snapshot of training already has."""
    course = [(line.get("step"), real(line.get("excess over null"))) for line in report.lines("formation")]
    found = [value for step, value in course if step and value is not None]
    return found[0] / found[-1] if found and found[-1] > 0 else None


def overlaps(report: Report) -> bool | None:
    found, early = excess("overlap", EMBEDDING, SHARE)(report), after_one_step(report)
    if found is None:
        return None
    return found >= EXCESS and (early is None or early < TWIN)


def rescue(column: str) -> Read:
    """At the place before the end of the last layer where a transplant helps most; after it, it is the answer."""

    def read(report: Report) -> float | None:
        return real(greatest(list(report.lines("transplants"))[:-1], "share rescued").get(column))

    return read


def swapped(place: str, column: str) -> Read:
    """A margin at the positions where the whole vectors, swapped at this place, move the answer further."""

    def read(report: Report) -> float | None:
        rows = [line for line in report.lines("swap") if line.get("place") == place]
        return real(greatest(rows, "whole").get(column))

    return read


def before_last(quantity: str, column: str) -> Read:
    """At the place before the end of the last layer where a probe reads most; after it the head reads the belief."""

    def read(report: Report) -> float | None:
        lines = [line for line in report.lines("readable") if line.get("quantity") == quantity][:-1]
        return real(greatest(lines, "probe").get(column))

    return read


def at_end(quantity: str, column: str) -> Read:
    def read(report: Report) -> float | None:
        lines = [line for line in report.lines("readable") if line.get("quantity") == quantity]
        return real(lines[-1].get(column)) if lines else None

    return read


def fall(report: Report) -> float | None:
    """How many times the error falls once the frame has formed."""
    at = forms("overlap")(report)
    errors = [(line["step"], line["entropy MAE (bits)"]) for line in report.lines("formation")]
    later = [
        float(error) for step, error in errors if at is not None and isinstance(step, int) and step >= at and error
    ]
    return later[0] / later[-1] if later else None


def comes_first(frame: float, error: float, found: float) -> bool | None:
    """None where there is no frame at the end."""
    return EARLIER * frame <= error if found >= EXCESS else None


def holds_if(test: Callable[..., bool | None], *parts: Read) -> Holds:
    """None if any of the numbers is missing."""

    def holds(report: Report) -> bool | None:
        values = [part(report) for part in parts]
        return None if None in values else test(*values)

    return holds


def inert(removed: str) -> Holds:
    """Decoded, and its removal changes nothing; false if the report calls it used.

    None if it cannot be decoded or the null is a few draws, and where the removal costs something, but no more than
    that of other directions, random or matched: then nothing can be told.
    """

    def holds(report: Report) -> bool | None:
        columns = ("probe", "draws", "KL intact", "KL once removed")
        score, draws, intact, without = (probe("entropy", removed, column)(report) for column in columns)
        used = find(report, "used", {"quantity": "entropy", "removed": removed}, "used")
        if score is None or score < READABLE or (draws or 0) < LEAST_DRAWS or intact is None or without is None:
            return None
        return False if used == "yes" else without < RISE * intact or None

    return holds


def used(quantity: str, removed: str) -> Holds:
    def holds(report: Report) -> bool | None:
        row = {"quantity": quantity, "removed": removed}
        measured = find(report, "used", row, "KL once removed") is not None
        return find(report, "used", row, "used") == "yes" if measured else None

    return holds


EMBEDDING: Mapping[str, Cell] = {"place": "embedding"}
EVIDENCE: Mapping[str, Cell] = {"place": "embedding", "positions": "evidence"}
HEADS: Mapping[str, Cell] = {"parts": "heads"}
BEYOND: Mapping[str, Cell] = {"positions": "beyond"}
AFTER_0 = "after layer 0"
SHARE = "overlap of readout and frame"
KL = "KL (bits)"
FRAME_WAY, RANDOM_WAY = "share of the way: frame", "share: largest random"
PARTIAL = "in the frame, given the whole"


def forms(what: str) -> Read:
    return cell("formation_dates", {"what": what}, "forms at step")


def follows(share: float, random: float) -> bool:
    return share >= FOLLOWS and share > random


STATEMENTS: Mapping[str, Statement] = {
    "frame-overlap": Statement(
        f"the directions that answers are sensitive to lie in the frame, with an excess of at least {EXCESS:.2f} over "
        f"random subspaces and over each of several random twins ({OVERLAP:g} times the null in the published model's "
        f"shape), and the first snapshot of training, where there are some, has less than {TWIN:g} of it",
        overlaps,
        (
            Number("excess", excess("overlap", EMBEDDING, SHARE)),
            Number("times the null", cell("overlap", EMBEDDING, "ratio")),
            Number("at most", combine(lambda null: 1 / null, cell("overlap", EMBEDDING, "at random"))),
            Number("overlap of a random twin", cell("overlap", EMBEDDING, "random twins")),
            Number("share that the first snapshot has", after_one_step),
        ),
    ),
    "identity-random": Statement(
        f"a probe reads the identity of hypotheses from a random twin with accuracy {READABLE:g}",
        holds_if(lambda score: score >= READABLE, probe("identity", "axis", "random twin")),
        (
            Number("random twin", probe("identity", "axis", "random twin")),
            Number("trained", probe("identity", "axis", "probe")),
        ),
    ),
    "readout-swap": Statement(
        f"swapping the readout's directions at the embedding moves the answer at least {FOLLOWS:g} of the way that the "
        "whole vectors move it, and further than each random subspace",
        holds_if(follows, cell("swap", EVIDENCE, "share: readout"), cell("swap", EVIDENCE, RANDOM_WAY)),
        (
            Number("share of the way", cell("swap", EVIDENCE, "share: readout")),
            *(Number(name, cell("swap", EVIDENCE, name)) for name in ("readout", "whole", "random", "intact")),
        ),
    ),
    "frame-swap": Statement(
        f"swapping the frame after layer 0 (as many directions as the embedding's, in which other sequences differ "
        f"there), at the positions where the whole vectors move the answer most, moves it at least {FOLLOWS:g} of "
        "that way, and further than each random subspace",
        holds_if(follows, swapped(AFTER_0, FRAME_WAY), swapped(AFTER_0, RANDOM_WAY)),
        (
            Number("share of the way, after layer 0", swapped(AFTER_0, FRAME_WAY)),
            *(Number(name, swapped(AFTER_0, name)) for name in ("frame", "whole", "random", "intact")),
        ),
    ),
    "belief-readable": Statement(
        f"before the end of the last layer a probe reads the logits of the posterior with an R² of {READABLE:g}, and a "
        f"random twin's less than {TWIN:g} of that",
        holds_if(
            lambda score, twin: score >= READABLE and twin < TWIN * score,
            before_last("belief", "probe"),
            before_last("belief", "random twin"),
        ),
        (
            *(Number(name, before_last("belief", name)) for name in ("probe", "random twin", "permuted target")),
            Number("probe at the end of the last layer", at_end("belief", "probe")),
        ),
    ),
    "entropy-axis-inert": Statement(
        f"a probe reads entropy with an R² of {READABLE:g}, and KL without the axis that it weighs is less than "
        f"{RISE:g} times the intact one; it does not if that is above the KL without each of {LEAST_DRAWS} random "
        f"directions and of {LEAST_DRAWS} that the same estimator finds for the quantity in a random order; in between "
        "nothing can be told, because other directions cost as much",
        inert("axis"),
        (
            Number("R²", probe("entropy", "axis", "probe")),
            Number("MAE added without the axis", cost("entropy", "axis")),
            Number("R² of a random twin", probe("entropy", "axis", "random twin")),
            Number("KL intact", probe("entropy", "axis", "KL intact"), by_factors=True),
            Number("KL without the axis", probe("entropy", "axis", "KL once removed"), by_factors=True),
            Number("KL without a random direction", probe("entropy", "axis", "random: mean"), by_factors=True),
            Number("KL without a matched direction", probe("entropy", "axis", "matched: mean"), by_factors=True),
            Number("without all that varies with identity", cost("identity", "covarying")),
        ),
    ),
    "entropy-inert": Statement(
        "the same without all that varies with entropy",
        inert("covarying"),
        (
            Number("R²", probe("entropy", "covarying", "probe")),
            Number("MAE added", cost("entropy", "covarying")),
        ),
    ),
    "frame-before-precision": Statement(
        f"the frame forms (the first step with 90 % of the largest excess after which more than half of it stays) "
        f"{EARLIER:g} times earlier than half of the fall of log error is done, and at the end answers are "
        f"sensitive to it, with an excess of at least {EXCESS:.2f}; otherwise there is no frame to ask about",
        holds_if(comes_first, forms("overlap"), forms("log error"), excess("overlap", EMBEDDING, SHARE)),
        (
            Number("frame at step", forms("overlap"), by_factors=True),
            Number("precision at step", forms("log error"), by_factors=True),
            Number("then the error falls by", fall, by_factors=True),
        ),
    ),
    "frame-ablation": Statement(
        "removing all directions that vary with the identity of hypotheses raises KL above that of both nulls, and by "
        "at least half",
        used("identity", "covarying"),
        (
            Number("bits of entropy error", cost("identity", "covarying")),
            Number("KL", probe("identity", "covarying", "KL once removed"), by_factors=True),
        ),
    ),
    "no-single-head": Statement(
        f"the head whose removal costs most costs less than {OUTSTANDING:g} times the next",
        holds_if(lambda times: times < OUTSTANDING, cell("writers_heads", HEADS, "largest over next")),
        (
            Number("largest over next", cell("writers_heads", HEADS, "largest over next"), by_factors=True),
            Number("heads above half of it", cell("writers_heads", HEADS, "above half")),
            Number("of", cell("writers_heads", HEADS, "number")),
        ),
    ),
    "writers": Statement(
        "heads that write more into the frame cost more when they are removed, beyond what the size of their whole "
        "write tells: the partial rank correlation given the whole write is positive, with its 95 % interval",
        holds_if(
            lambda low, _heads: low > 0,
            cell("writers_rank", {"write": PARTIAL}, "low"),
            cell("writers_heads", HEADS, "number"),
        ),
        tuple(
            Number(f"Spearman, {which}", cell("writers_rank", {"write": which}, "Spearman with cost"))
            for which in (PARTIAL, "in the frame", "whole")
        ),
    ),
    "geometry-outlives": Statement(
        f"beyond the loss horizon the overlap keeps an excess of at least {EXCESS:.2f} over random subspaces and over "
        f"each of several random twins, and KL is at least {DYING:g} "
        f"times that inside; where KL inside is above {LEARNED:g} bits the model has not learned what could end",
        holds_if(
            lambda found, beyond, inside: found >= EXCESS and beyond >= DYING * inside if inside <= LEARNED else None,
            excess("horizon", BEYOND, "overlap"),
            cell("horizon", BEYOND, KL),
            cell("horizon", {"positions": "inside"}, KL),
        ),
        (
            Number("excess beyond", excess("horizon", BEYOND, "overlap")),
            Number("times the null", cell("horizon", BEYOND, "overlap over null")),
            Number("KL inside", cell("horizon", {"positions": "inside"}, KL), by_factors=True),
            Number("KL beyond", cell("horizon", BEYOND, KL), by_factors=True),
        ),
    ),
    "rescue": Statement(
        "beyond the loss horizon, the vector of the last numbers read alone, put in after a layer but the last, brings "
        f"KL at least {RESCUED:g} of the way to that of the model's own answer to these numbers, and another "
        f"sequence's vector does not; where KL inside is above {LEARNED:g} bits the model has not learned what could "
        "be rescued",
        holds_if(
            lambda own, other, inside: own >= RESCUED > other if inside <= LEARNED else None,
            rescue("share rescued"),
            rescue("by another's"),
            cell("horizon", {"positions": "inside"}, KL),
        ),
        (
            Number("share rescued", rescue("share rescued")),
            Number("by another sequence's", rescue("by another's")),
            Number("KL beyond", rescue("KL beyond"), by_factors=True),
            Number("with the transplant", rescue("with its own transplant"), by_factors=True),
            Number("ceiling", rescue("ceiling"), by_factors=True),
        ),
    ),
}


def judge(holds: Holds, runs: Sequence[Answered], best: float) -> tuple[str, str]:
    """A verdict and its reason. `best` is the least error that is known for the task."""
    found = {run.record.id: answer for run in runs if (answer := holds(run.report)) is not None}
    if not found:
        return "undecided", "no seed decides it"
    held = sum(found.values())
    told = f"{held} of {len(found)} seeds"
    if len(found) < SEEDS:
        return "undecided", f"{told}; it takes at least {SEEDS}"
    worst = max(run.record.error_bits for run in runs if run.record.id in found)
    if worst > NEAR * best:
        return "undecided", f"{told}; an error of {worst:.2g} bits is more than {NEAR:g} times the best, {best:.2g}"
    if 0 < held < len(found):
        return "undecided", f"{told}: they disagree"
    return ("holds" if held else "does not hold"), told


def least_error(records: Sequence[RunRecord], config: RunConfig) -> float:
    """Over runs of the same task, parameters, horizon and supervision, of whatever architecture and size."""
    return min(record.error_bits for record in records if record.ok and question(record.config) == question(config))


def question(config: RunConfig) -> tuple[object, ...]:
    """What errors must share to be compared."""
    return config.task, config.task_source, law(config), config.horizon, config.supervision
