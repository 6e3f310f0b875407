"""Claims about the course of training: a schedule that gets there in fewer steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import inf, isinf
from statistics import mean

from bench.claims.evidence import Evidence, seeds, setting, spread, steps
from bench.claims.verdicts import REFUTED, UNDECIDED, Verdict, compare
from bench.records import RunRecord
from bench.statements import SEEDS
from bench.stats import interval

PUBLISHED = "sgd"
OTHERWISE = (
    "Undecided: the paper trains a small model of its own by plain gradient descent. Ours is trained by AdamW, whose "
    "steps do not grow with the gradient, so ten times the rate is another schedule"
)
LAST = 5  # evaluations whose mean is the loss that a run ends with: at a constant rate single ones are noisy


@dataclass(frozen=True)
class FewerSteps:
    """A setting is said to reach the loss that the usual one ends with in a share of its steps, on the same sequences.

    Both have a constant learning rate: under a decay every run falls most at its end, whatever its schedule.
    """

    id: str
    claim: str
    source: str
    published: float  # steps, as a share of the usual setting's
    task: str
    arch: str
    setting: str
    usual: float
    changed: float
    both: Mapping[str, object]  # settings that both share
    params: Mapping[str, object] = field(default_factory=dict)  # of the task, where they are not the preset's

    def judge(self, evidence: Evidence) -> Verdict:
        claimed = Verdict(self.id, self.claim, self.source, f"{self.published:.0%} of the steps", "mechanism")
        rows = evidence.rows(self.task, self.arch, params=self.params, free={self.setting, "lr", *self.both})
        found = ((row, other) for row in rows for other in rows if self._differ_in_the_setting_alone(row, other))
        row, other = next(found, ([], []))
        usual, changed = ({record.config.seed: record for record in records} for records in (row, other))
        if not (common := sorted(usual.keys() & changed.keys())):
            return claimed
        shares = [share_of_steps(usual[seed], changed[seed]) for seed in common]
        if late := sum(map(isinf, shares)):
            verdict = REFUTED if late == len(shares) else UNDECIDED
            ours = f"not reached by {late} of {len(shares)} seeds"
        else:
            verdict, ours = compare(mean(shares), self.published, bounds=interval(shares)), spread(shares)
        if len(shares) < SEEDS or self.both["optimizer"] != PUBLISHED:
            verdict = UNDECIDED
        return claimed._replace(
            ours=ours,
            where=f"{setting(row[0])}, {self.both['optimizer']} at {row[0].config.lr:g}, no decay, "
            f"{seeds(common)}, {steps(row[0])}",
            why=f"Steps to the loss that {self.setting}={self.usual:g} ends with, the mean of its last {LAST} "
            "evaluations, as a share of those that it takes itself; both at a constant rate"
            + ("" if self.both["optimizer"] == PUBLISHED else f". {OTHERWISE}")
            + (f". Undecided: a verdict takes {SEEDS} seeds" if len(shares) < SEEDS else ""),
            verdict=verdict,
        )

    def _differ_in_the_setting_alone(self, row: Sequence[RunRecord], other: Sequence[RunRecord]) -> bool:
        usual, changed = ({**asdict(records[0].config), "seed": 0} for records in (row, other))
        values = usual.pop(self.setting), changed.pop(self.setting)
        return values == (self.usual, self.changed) and usual == changed and self.both.items() <= usual.items()


def share_of_steps(usual: RunRecord, changed: RunRecord) -> float:
    """Infinite where the other run never gets as low."""
    last = mean(_losses(usual)[-LAST:])
    return _reached(changed, last) / _reached(usual, last)


def _reached(record: RunRecord, loss: float) -> float:
    """The step of the first evaluation at this loss."""
    return next((look.step for look, of in zip(record.loss_curve, _losses(record), strict=True) if of <= loss), inf)


def _losses(record: RunRecord) -> list[float]:
    """Of the evaluation's sequences; older records have only those of training."""
    return [look.loss if look.eval_loss is None else look.eval_loss for look in record.loss_curve]
