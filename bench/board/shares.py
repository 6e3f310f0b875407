"""Errors as shares of a baseline's, the words for them, and when a word is settled.

The baselines read nothing: the best constant by MAE, and the uniform predictor by KL.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from bench.board.ranking import Row
from bench.board.rows import mean_metric
from bench.board.settings import comparable_settings
from bench.records import CERTAIN, RunRecord

# A primitive is held on a task if the error is below this share of the best constant's and the KL below this share of
# the uniform predictor's. Below the second share it is partly held.
HELD, PARTLY = 0.05, 0.5
SEEDS, LONGER = 5, 5  # a word needs so many seeds, and a run with so many times the steps, that all agree


def share_of_baseline(records: Sequence[RunRecord]) -> float:
    """Error as a share of the baseline's, by the more severe of the two metrics."""
    return max(baseline_shares(records))


def baseline_shares(records: Sequence[RunRecord]) -> tuple[float, ...]:
    """KL over the uniform predictor's; also MAE over the best constant's, unless answers are certain."""
    trained = records[0].config.horizon
    kl = mean_metric(records, trained, "kl") / mean_metric(records, trained, "kl", "uniform")
    constant = mean_metric(records, trained, "entropy_mae", "best constant")
    if constant < CERTAIN:  # it knows the entropy: answers are certain, or every sequence has the same law
        return (kl,)
    mae = mean_metric(records, trained, "entropy_mae") / constant
    return kl, mae


def word(share: float) -> str:
    return "held" if share < HELD else "partly" if share < PARTLY else "no"


def seeds_agree(row: Row) -> bool:
    """All seeds give the same word, and do not fall apart; a single seed cannot show that."""
    shares = [share_of_baseline([record]) for record in row.records]
    return len(shares) > 1 and word(min(shares)) == word(max(shares)) and row.groups is None


def settled(row: Sequence[RunRecord], records: Sequence[RunRecord]) -> str | None:
    """The word on which MAE and KL, enough seeds of a row, and a run with more steps agree; else None.

    `records` are all of its architecture on this task.
    """
    longer = with_more_steps(row, records)
    words = {word(share) for record in (*row, *longer) for share in baseline_shares([record])}
    return words.pop() if len(row) >= SEEDS and longer and len(words) == 1 else None


def with_more_steps(row: Sequence[RunRecord], records: Sequence[RunRecord]) -> list[RunRecord]:
    """Those of an architecture's records that had at least LONGER times the steps of a row, and else its settings."""
    first = row[0].config
    return [
        record
        for record in records
        if record.config.steps >= LONGER * first.steps
        and comparable_settings(replace(record.config, steps=first.steps)) == comparable_settings(first)
    ]
