"""CLAIMS.md: a short table for each source, with what explains a difference as notes below it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from bench.board.markdown import GENERATED, table
from bench.claims.places import place_of
from bench.claims.published import SOURCES
from bench.claims.verdicts import REFUTED, VERDICTS, Verdict
from bench.statements import NEAR, SEEDS
from bench.stats import SLACK
from bench.text import plain

TITLE = "# Published claims, and what we measured"
LONG = 2_000  # characters of a note at most
KINDS = {
    "failure": "published failures that we do not see",
    "error": "errors that ours did not reach",
    "order": "orders of two architectures",
    "primitives": "sets of primitives that an architecture has",
    "mechanism": "statements of how a model works",
}
INTRODUCTION = (
    "Errors are in bits unless a claim says otherwise. [low, high] is the 95 % interval over seeds; (2 of 3: x) says "
    "that they fall apart and the better ones have a mean of x; (a to b) is their range. [n] is a note "
    "below the table: the runs that ours comes from, and what explains a difference."
)
READING = f"""\
## How to read a verdict

- **reproduced**: the whole interval of ours is within a factor of {SLACK} of the published number, on both sides. A
  single seed, or a single report, has a factor of {SLACK} either way for an interval. A claimed failure is reproduced
  by a worse one, too; a claimed success without any error cannot be exceeded.
- **exceeded**: a success was claimed, and the whole interval is better than the published number by more than {SLACK}.
- **not reproduced**: the whole interval is worse than a claimed success, or better than a claimed failure, by more than
  {SLACK}.
- **undecided**: the interval reaches across an end of that range (from equal to better is undecided, too); or ours
  misses a success, or shows a failure, and has seen fewer sequences than the published run, so that it may only be
  short (a short run that beats a claimed failure does refute it); or a failure was claimed of a model that learned from
  draws, and ours had exact targets, which are easier.
- **not tested here**: no run of ours can speak to it, or ours is no worse than the exact predictor's own noise.

An error is compared with a row of at least {SEEDS} fresh seeds if there is one, else with the largest preset at which
the row was run. Failures are judged on the authors' own task, targets and architecture. An order of two architectures
is compared with the ratio of their errors, seed by seed: the interval of the ratio must exclude 1. Where the published
model learned from draws, our runs on draws decide; those on the exact posterior are shown as well.

A claim about how a model works is read from the reports of several seeds of one row: the largest with {SEEDS} reports
that can answer, else the one with most of them. They were trained on the exact posterior, and may be much smaller than
the published model. It holds or does not if at least {SEEDS} seeds agree and their errors are at most {NEAR:g} times
the least that is known for the task; otherwise it is *undecided*, for the reason in the note. The study's claims need
{SEEDS} reports that agree. When a statement in words holds is our choice, and the note says it; a number near that line
decides little. Four such lines were drawn after a first look at our numbers: which
vectors count as a manifold (values and outputs at first, then the residual stream too, as in the authors' code); what
is not exactly alike (0.001 at first, which ours misses at 0.0009, then the rounding of float32); that nothing is
decided about the entropy axis where its removal costs something, but no more than that of a random direction (it
counted as not used at first); and that nothing is decided beyond a loss horizon where the KL inside is above 0.1 bits.
Others were drawn anew when the instruments were corrected, and our numbers were known then, too. What is removed
is removed in normalised coordinates where the quantity is defined, and counts as used only above a second, matched
null; matched subspaces that share 0.75 of the removed one do not count (0.9 at first, which a planted model failed).
The frame forms when it first has 90 % of its largest excess and keeps half (at first: when it stays near its last
value), and precision when half of the fall of the log error is done. The overlap must exceed that of random twins and
of the first snapshot, not of random subspaces alone. A swap is judged by the share of the way that the whole vectors
move the answer (at first: by one bit), with the frame after a layer taken from that layer. Writers are judged by the
partial correlation given the whole write. Values that learn faster stay undecided under another optimizer than the
paper's. Reports from before have none of these numbers.
An overlap with the frame is judged by its excess over random, (share - null) / (1 - null), since its ratio to the null
cannot exceed width over rank.

`sampled`: trained on one draw from the posterior, as the authors' bijection models are; all others learned from the
exact posterior, as their hmm models. `alibi-shift`: attention also sees the previous position's projections. `swiglu`:
gated feed-forward layers. A plain transformer has neither."""


def render(verdicts: Sequence[Verdict]) -> str:
    parts = [TITLE, GENERATED, _counts(verdicts), INTRODUCTION]
    for source, (name, about) in SOURCES.items():
        parts += [f"## {name}", about, *_section([v for v in verdicts if v.source == source])]
    return "\n\n".join([*parts, READING]) + "\n"


def _counts(verdicts: Sequence[Verdict]) -> str:
    counts = Counter(v.verdict for v in verdicts)
    missed = Counter(v.kind for v in verdicts if v.verdict == REFUTED)
    detail = "; ".join(f"{what}: {missed[kind]}" for kind, what in KINDS.items() if missed[kind])
    said = [f"{counts[v]} {v}" + (f" ({detail})" if v == REFUTED and detail else "") for v in VERDICTS]
    return f"{len(verdicts)} claims: {', '.join(said)}."


def _section(verdicts: Sequence[Verdict]) -> list[str]:
    rows: list[list[str]] = []
    notes: list[str] = []
    for v in verdicts:
        mark = ""
        if v.where or v.why:
            place = f"Published in: {place_of(v.id)}" if place_of(v.id) else ""
            note = ". ".join(filter(None, (v.where[:1].upper() + v.where[1:], v.why, place)))
            notes.append(f"{len(notes) + 1}. {plain(note, LONG)}.")
            mark = f" [{len(notes)}]"
        rows.append([plain(v.claim), plain(v.published), plain(v.ours, LONG) + mark, v.verdict])
    header = ["claim", "published", "ours", "verdict"]
    return [table(header, rows, left=header), *(["\n".join(notes)] if notes else [])]
