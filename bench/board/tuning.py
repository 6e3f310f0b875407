"""What the search of block and learning rate was worth for each tuned row of a table.

Both settings, the preset's and the chosen one, were run on the first tuning seed with all steps, so the two errors are
of the same data. The choice saw that seed, so the gain is a little flattering. In: a ranking. Out: lines.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench.board.ranking import Ranking, Row
from bench.board.rows import preset_values


@dataclass(frozen=True)
class Worth:
    arch: str
    before: float  # the preset's setting, on the first tuning seed
    after: float  # the chosen setting, on the same seed
    chosen: str
    trials: int
    place_before: int = 0  # among the rows of the table
    place_after: int = 0

    @property
    def ratio(self) -> float:
        return self.after / self.before

    @property
    def places(self) -> str:
        return f"{self.place_before} → {self.place_after}"


def worths(ranking: Ranking) -> list[Worth]:
    """One line for each tuned row whose two settings were measured; the best tuned one first."""
    found = [worth for row in ranking.rows if row.compares and (worth := _worth(row))]
    before, after = ([getattr(worth, name) for worth in found] for name in ("before", "after"))
    placed = [
        Worth(w.arch, w.before, w.after, w.chosen, w.trials, _place(w.before, before), _place(w.after, after))
        for w in found
    ]
    return sorted(placed, key=lambda worth: worth.after)


def _place(error: float, errors: Sequence[float]) -> int:
    return 1 + sum(other < error for other in errors)


def _worth(row: Row) -> Worth | None:
    config, usual = row.config, preset_values(row.config)
    errors = config.tuning.get("errors", {})
    blocks = [f"{k}={getattr(config, k)}" for k in ("positions", "activation")]
    block = " ".join(blocks) if any(getattr(config, k) != usual[k] for k in ("positions", "activation")) else ""
    chosen = f"{config.lr:g} {block}".strip()
    before, after = (errors.get(name, [None])[0] for name in (f"{usual['lr']:g}", chosen))
    return Worth(row.arch, before, after, chosen, len(errors)) if before and after else None
