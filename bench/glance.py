"""All tasks at once: every architecture's error on each, and the primitives of inference that it holds."""

from __future__ import annotations

from collections import defaultdict
from statistics import mean
from typing import NamedTuple

from bench.records import RunRecord
from bench.rows import group, is_the_presets, mean_of, number, one_row_each, plain, untouched
from tasks.base import TASKS

# A primitive is held on a task at an error below this share of the best constant's, and a KL below this share of the
# uniform predictor's; below the second share it is partly there.
HELD, PARTLY = 0.05, 0.5
PRIMITIVES = ("accumulation", "transport", "binding")

GLANCE_LEGEND = (
    "MAE at the training horizon in bits, and the number of seeds. The best of a task is bold. Where an architecture "
    "has no row with the preset's own settings, its best one stands there with a dagger (†): it does not compare."
)

PRIMITIVES_LEGEND = (
    "MAE at the training horizon as a share of the best constant's, or KL as a share of the uniform predictor's, "
    "whichever is larger, on every task of a primitive that was run with the preset's own settings; the weakest task "
    f"decides. **Held**: below {HELD:.0%}. Partly: below {PARTLY:.0%}."
)


def at_a_glance(records: list[RunRecord]) -> dict[str, tuple[list[str], list[list[str]]]]:
    """By preset, supervision and device, where there are several tasks: architectures by tasks, and what is missing."""
    tracks: dict[str, dict[str, dict[str, Cell]]] = defaultdict(dict)
    for name, members in group([r for r in records if r.status == "ok"]).items():
        if is_the_presets(name):
            cells = tracks[name.track].setdefault(plain(name.task), {})
            for arch, (errors, same) in one_row_each(members).items():
                cells[plain(arch)] = Cell(mean(errors.values()), len(same), untouched(same[0].config))
    return {track: _matrix(tasks) for track, tasks in tracks.items() if len(tasks) > 1}


class Cell(NamedTuple):
    error: float
    seeds: int
    comparable: bool  # with the preset's own settings

    def told(self, best: float | None) -> str:
        error = number(self.error)
        if not self.comparable:
            error += "†"
        elif self.error == best:
            error = f"**{error}**"
        return f"{error} ({self.seeds})"


def _matrix(tasks: dict[str, dict[str, Cell]]) -> tuple[list[str], list[list[str]]]:
    archs = dict.fromkeys(arch for cells in tasks.values() for arch in cells)  # in the order of the first task
    best = [min((c.error for c in cells.values() if c.comparable), default=None) for cells in tasks.values()]

    def row(arch: str) -> list[str]:
        mine = [cells.get(arch) for cells in tasks.values()]
        return [cell.told(least) if cell else "missing" for cell, least in zip(mine, best, strict=True)]

    return ["architecture", *tasks], [[arch, *row(arch)] for arch in archs]


def primitive_shares(records: list[RunRecord]) -> dict[str, dict[str, dict[str, dict[str, float]]]]:
    """Error over that of a predictor that reads nothing, of the two that are measured the larger share: by preset,
    supervision and device, then architecture, primitive and task."""
    tables: dict[str, dict[str, dict[str, dict[str, float]]]] = defaultdict(lambda: defaultdict(dict))
    for name, members in group([r for r in records if r.status == "ok"]).items():
        config = members[0].config
        primitive = TASKS.facts(config["task"]).get("primitive")
        if primitive is None or not is_the_presets(name):
            continue
        trained = str(members[0].config["horizon"])
        for arch, (errors, same) in one_row_each(members).items():
            if untouched(same[0].config):
                error = mean(errors.values()) / mean_of(same, trained, "entropy_mae", "best constant")
                kl = mean_of(same, trained, "kl") / mean_of(same, trained, "kl", "uniform")
                tables[name.track][arch].setdefault(primitive, {})[config["task"]] = max(error, kl)
    return {track: dict(sorted(archs.items())) for track, archs in tables.items()}


def primitives(records: list[RunRecord]) -> dict[str, list[list[str]]]:
    """By preset, supervision and device: one row an architecture, one cell a primitive with each of its tasks."""
    return {
        track: [[plain(arch), *(_verdict(of_arch.get(p, {})) for p in PRIMITIVES)] for arch, of_arch in archs.items()]
        for track, archs in primitive_shares(records).items()
    }


def strength(shares: dict[str, float]) -> str:
    """A primitive is as strong as its weakest task."""
    worst = max(shares.values(), default=None)
    return "not measured" if worst is None else "held" if worst < HELD else "partly" if worst < PARTLY else "no"


def _verdict(shares: dict[str, float]) -> str:
    word = strength(shares)
    told = ", ".join(f"{plain(task)} {share:.1%}" for task, share in sorted(shares.items()))
    return {"held": "**held**"}.get(word, word) + (f" ({told})" if told else "")
