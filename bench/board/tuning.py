"""What the search of block and learning rate was worth for each tuned row of a table.

Both settings, the preset's and the chosen one, were run on the first tuning seed with all steps, so the two errors are
of the same data. The choice saw that seed, so the gain is a little flattering. In: the rows of a ranking. Out: a line
for each tuned one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from bench.board.ranking import Row, Worth
from bench.board.settings import preset_values


def worths(rows: Sequence[Row]) -> list[Worth]:
    """One line for each tuned row whose two settings were measured; the best tuned one first."""
    found = [worth for row in rows if row.compares and (worth := _worth(row))]
    before, after = ([getattr(worth, name) for worth in found] for name in ("before", "after"))
    placed = [replace(w, place_before=_place(w.before, before), place_after=_place(w.after, after)) for w in found]
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
