"""Claims about what a model does where it was not trained: held-out prefixes, and laws outside of its pool."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from bench.board.shares import HELD, PARTLY
from bench.claims.evidence import ADMITTED, Evidence, seeds, setting, spread, steps
from bench.claims.verdicts import REFUTED, REPRODUCED, UNDECIDED, Verdict
from bench.records import RunRecord
from bench.stats import SLACK, bounds
from bench.text import significant

OUTSIDE = "laws from outside"
LEARNED = 0.5


@dataclass(frozen=True)
class HeldOut:
    """A part is said to fail where the rest is learned: the KL of both, as shares of the uniform predictor's there.

    All positions contain some of that part, so they need not be learned altogether: they must be half as bad at most.
    """

    id: str
    claim: str
    source: str
    published: str
    task: str
    arch: str
    part: str
    params: Mapping[str, object] = field(default_factory=dict)  # of the task, where they are not the preset's

    def judge(self, evidence: Evidence) -> Verdict:
        claimed = Verdict(self.id, self.claim, self.source, self.published, "failure")
        tracks = (evidence.rows(self.task, self.arch, track, self.params) for track in ("sampled", "posterior"))
        row = next((rows[0] for rows in tracks if rows), None)
        if not row:
            return claimed
        rest, held = ([_share(record, part) for record in row] for part in ("all", self.part))
        low, high = bounds(held)
        learned = all(share < LEARNED * of for share, of in zip(rest, held, strict=True))
        verdict = REPRODUCED if low >= PARTLY and learned else REFUTED if high < HELD else UNDECIDED
        return claimed._replace(
            ours=f"{self.part} {spread(held)}, all positions {spread(rest)}",
            where=f"{setting(row[0])}, {seeds(row)}, {steps(row[0])}",
            why=f"KL over the uniform predictor's. It fails at {PARTLY:g} or more, if over all positions the share is "
            f"less than half as large: otherwise too little is learned. Below {HELD:g} it does not fail",
            verdict=verdict,
        )


def _share(record: RunRecord, part: str) -> float:
    k = record.config.horizon
    return record.at()[part]["kl"] / (record.references[str(k)] or {})["uniform"][part]["kl"]


@dataclass(frozen=True)
class Diversity:
    """Few laws are memorised, many are not: which of two exact answers is nearer, on laws from outside of the pool."""

    id: str
    claim: str
    source: str
    published: str
    task: str
    arch: str

    def judge(self, evidence: Evidence) -> Verdict:
        claimed = Verdict(self.id, self.claim, self.source, self.published, "mechanism")
        curves = [of for of in evidence.curves(self.task) if of.track.preset in ADMITTED]
        points = next((p for of in curves if (p := of.points.get((self.arch, OUTSIDE)))), None)
        if points is None:
            return claimed
        few, many = points[0], points[-1]
        ratios = [_ratio(few.to_full, few.to_pool), _ratio(many.to_pool, many.to_full)]
        verdict = REPRODUCED if min(ratios) > SLACK else REFUTED if min(ratios) < 1 / SLACK else UNDECIDED
        track = next(of.track for of in curves if (self.arch, OUTSIDE) in of.points)
        told = (
            f"M = {p.pool}: {significant(p.to_pool)} to the pool's, {significant(p.to_full)} to the full"
            for p in (few, many)
        )
        return claimed._replace(
            ours="; ".join(told),
            where=f"preset {track.preset}, {track.supervision}, pools of {_list([p.pool for p in points])} laws",
            why=f"KL to Bayes with the pool as prior, and with the full prior, on laws from outside. It holds if by a "
            f"factor of {SLACK:g} the first is nearer with the smallest pool, and the second with the largest",
            verdict=verdict,
        )


def _ratio(far: float, near: float) -> float:
    return far / near if near > 0 else inf


def _list(pools: Sequence[int]) -> str:
    return ", ".join(f"{pool:,}" for pool in pools)
