"""The ladder of recall-64: the error against the number of stored pairs, and against the bytes of state.

A rung is one architecture at one number of pairs, its seeds averaged. The error is the KL: the exact answer is a point
mass, so the KL is the log loss of the right value, and a confident wrong answer does not hide. State bytes are those
that a record holds: what the model carries from one position to the next at the end of a training sequence.

In: rankings. Out: a ladder for each track.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from bench.board.ranking import Ranking, Track
from bench.config import UNKNOWN

TASK = "recall-64"


class Rung(NamedTuple):
    arch: str
    pairs: int
    kl_bits: float
    state_bytes: int | None  # None for an architecture that does not say


@dataclass(frozen=True)
class Ladder:
    track: Track
    rungs: tuple[Rung, ...]  # by architecture, then from few pairs to many
    uniform_bits: float  # the KL of the uniform predictor

    @property
    def archs(self) -> set[str]:
        return {rung.arch for rung in self.rungs}

    def of(self, arch: str) -> list[Rung]:
        return [rung for rung in self.rungs if rung.arch == arch]


def make_ladders(rankings: Sequence[Ranking]) -> list[Ladder]:
    """One ladder for each track, the longest first. Only `pairs` may differ from the preset's task."""
    tracks: dict[Track, list[Ranking]] = defaultdict(list)
    for ranking in rankings:
        is_elsewhere = ranking.group.supervision == UNKNOWN["supervision"]
        if ranking.task != TASK or is_elsewhere or not ranking.rows:
            continue
        if {name for name, _ in ranking.group.unusual} <= {"pairs"}:
            tracks[ranking.group.track].append(ranking)
    return sorted((_make_ladder(*item) for item in tracks.items()), key=lambda x: (-len(x.rungs), x.track))


def _make_ladder(track: Track, rankings: list[Ranking]) -> Ladder:
    rungs = [
        Rung(arch, row.config.make_task().pairs, row.scores.kl, row.records[0].state_bytes)  # type: ignore[attr-defined]
        for ranking in rankings
        for arch, row in ranking.one_row_each().items()
    ]
    return Ladder(track, tuple(sorted(rungs, key=lambda r: r[:2])), rankings[0].reference("uniform").kl)
