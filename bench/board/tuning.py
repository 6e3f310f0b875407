"""What the search of block and learning rate was worth for each tuned row of a table, and what it cost.

Where an architecture has the preset's setting and the chosen one on the same fresh seeds, those are compared. Otherwise
the two settings are compared on the first tuning seed, where both had all steps; the choice saw that seed, so the gain
is a little flattering. In: the rows of a ranking. Out: a line for each tuned one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import mean

from bench.board.ranking import Row, Worth
from bench.board.settings import preset_values
from bench.stats import interval

BLOCK = ("positions", "activation")


def worths(rows: Sequence[Row]) -> list[Worth]:
    """One line for each tuned row whose two settings were measured; the best tuned one first."""
    tuned = [row for row in rows if row.compares and row.config.tuning]
    found = [worth for row in tuned if (worth := _worth(row, _untuned(row, rows)))]
    before, after = ([getattr(worth, name) for worth in found] for name in ("before", "after"))
    placed = [replace(w, place_before=_place(w.before, before), place_after=_place(w.after, after)) for w in found]
    return sorted(placed, key=lambda worth: worth.after)


def search_runs(row: Row) -> int:
    """How many runs of all steps a search took."""
    return sum(len(errors) for errors in row.config.tuning.get("errors", {}).values())


def _untuned(row: Row, rows: Sequence[Row]) -> dict[int, float]:
    """The errors by seed of the architecture's row with the preset's setting and fresh seeds."""
    own = [other for other in rows if other.arch == row.arch and other.is_preset_default and not other.config.tuning]
    return next((other.errors for other in own if not other.config.is_recipe_work), {})


def _worth(row: Row, untuned: dict[int, float]) -> Worth | None:
    chosen, errors = _name(row), row.config.tuning.get("errors", {})
    common = sorted(row.errors.keys() & untuned.keys())
    if common:
        before, after = (mean(of[seed] for seed in common) for of in (untuned, row.errors))
        bounds = interval([row.errors[seed] / untuned[seed] for seed in common])
        return Worth(row.arch, before, after, len(common), bounds, chosen, _is_edge(chosen, errors))
    usual = f"{preset_values(row.config)['lr']:g}"
    first, last = (errors.get(name, [None])[0] for name in (usual, chosen))
    return Worth(row.arch, first, last, 0, None, chosen, _is_edge(chosen, errors)) if first and last else None


def _name(row: Row) -> str:
    """The chosen setting as the search names it: the rate, then the block if it is not the preset's."""
    config, usual = row.config, preset_values(row.config)
    is_other = any(getattr(config, name) != usual[name] for name in BLOCK)
    block = [f"{name}={getattr(config, name)}" for name in BLOCK] if is_other else []
    return " ".join([f"{config.lr:g}", *block])


def _is_edge(chosen: str, tried: Sequence[str]) -> bool:
    rate, _, block = chosen.partition(" ")
    rates = [float(each.partition(" ")[0]) for each in tried if each.partition(" ")[2] == block]
    return not min(rates, default=0.0) < float(rate) < max(rates, default=0.0)


def _place(error: float, errors: Sequence[float]) -> int:
    return 1 + sum(other < error for other in errors)
