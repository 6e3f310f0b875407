"""All tasks at once: every architecture's error on each, and the primitives of inference that it holds."""

from __future__ import annotations

from collections import defaultdict
from statistics import mean
from typing import NamedTuple

from bench.records import RunRecord
from bench.rows import group, is_the_presets, mean_of, number, one_row_each, plain, references_of, untouched
from tasks.base import TASKS

# A primitive is held on a task at an error below this share of the best constant's, and a KL below this share of the
# uniform predictor's; below the second share it is partly there.
HELD, PARTLY = 0.05, 0.5
PRIMITIVES = {  # and what each of them means
    "accumulation": "evidence adds up",
    "transport": "a belief moves on with a hidden state",
    "binding": "what was stored is found again by its key",
}
REFERENCES = ("best constant", "uniform")

GLANCE_LEGEND = (
    "MAE (mean of |H_model - H_Bayes|) at the training horizon in bits, and the number of seeds; rows in the order of "
    "their mean share of the best constant's error, those that were run on most tasks first. The smallest of a task "
    "is bold; which differences are more than chance, the ranks below say where rows have several seeds. Where an "
    "architecture has no row with the preset's own settings, its best one stands there with a dagger (†), its steps "
    "and its batch: it does not compare. *Italics* read nothing. Linear recurrences (mamba2, gated-deltanet, "
    "linear-attention, hybrid) have a short convolution; what gives attention the like, positions=alibi-shift, is not "
    "in every preset."
)
SHAKY = "~: its seeds disagree on the verdict, or there is but one."
PRIMITIVES_LEGEND = (
    "MAE at the training horizon as a share of the best constant's, or KL as a share of the uniform predictor's, "
    "whichever is larger, on every task of a primitive, with the preset's own settings; the weakest task decides. "
    f"**Held**: below {HELD:.0%}. Partly: below {PARTLY:.0%}. Without all of a primitive's tasks neither is said. "
    f"{SHAKY}"
)
NO_MEANS = (
    "No means: not at this size, in these steps, by a recipe that was found on the transformer. It does not show that "
    "an architecture cannot: more steps or another rate have changed such a verdict before (rules 11 and 12)."
)


def primitive_tasks(primitive: str) -> list[str]:
    return [task for task in TASKS.names() if TASKS.facts(task).get("primitive") == primitive]


class Cell(NamedTuple):
    errors: list[float]  # one a seed
    share: float  # of the best constant's
    comparable: bool  # with the preset's own settings
    settings: str  # steps and batch

    def told(self, best: float | None) -> str:
        error, seeds = mean(self.errors), len(self.errors)
        if not self.comparable:
            return f"{number(error)}† ({seeds}; {self.settings})"
        return f"**{number(error)}** ({seeds})" if error == best else f"{number(error)} ({seeds})"


def at_a_glance(records: list[RunRecord]) -> dict[str, tuple[list[str], list[list[str]]]]:
    """By preset, supervision and device, where there are several tasks: architectures by tasks, and what is missing."""
    tracks: dict[str, dict[str, dict[str, Cell]]] = defaultdict(dict)
    floors: dict[str, dict[str, dict[str, float]]] = defaultdict(dict)
    for name, members in group([r for r in records if r.status == "ok"]).items():
        if not is_the_presets(name):
            continue
        known = references_of(members, str(members[0].config["horizon"]))
        floors[name.track][plain(name.task)] = known
        cells = tracks[name.track].setdefault(plain(name.task), {})
        for arch, (errors, same) in one_row_each(members).items():
            c = same[0].config
            share = mean(errors.values()) / known["best constant"]
            settings = f"{c['steps']:,} x {c['batch']}"
            cells[plain(arch)] = Cell([*errors.values()], share, untouched(c), settings)
    return {track: _matrix(tasks, floors[track]) for track, tasks in tracks.items() if len(tasks) > 1}


def _matrix(
    tasks: dict[str, dict[str, Cell]], floors: dict[str, dict[str, float]]
) -> tuple[list[str], list[list[str]]]:
    archs = {
        arch: [cells[arch].share for cells in tasks.values() if arch in cells] for t in tasks.values() for arch in t
    }
    best = [min((mean(c.errors) for c in cells.values() if c.comparable), default=None) for cells in tasks.values()]

    def row(arch: str) -> list[str]:
        mine = [cells.get(arch) for cells in tasks.values()]
        return [cell.told(least) if cell else "missing" for cell, least in zip(mine, best, strict=True)]

    order = sorted(archs, key=lambda arch: (-len(archs[arch]), mean(archs[arch])))
    rows = [[arch, *row(arch)] for arch in order]
    rows += [[f"*{name}*", *(number(floors[task][name]) for task in tasks)] for name in REFERENCES]
    return ["architecture", *tasks], rows


class Share(NamedTuple):
    """Error over that of a predictor that reads nothing, of the two that are measured the larger share."""

    value: float  # of the means over seeds
    seeds: list[float]  # of each alone


Shares = dict[str, Share]  # by task


def primitive_shares(records: list[RunRecord]) -> dict[str, dict[str, dict[str, Shares]]]:
    """By preset, supervision and device, then architecture and primitive."""
    tables: dict[str, dict[str, dict[str, Shares]]] = defaultdict(lambda: defaultdict(dict))
    for name, members in group([r for r in records if r.status == "ok"]).items():
        config = members[0].config
        primitive = TASKS.facts(config["task"]).get("primitive")
        if primitive is None or not is_the_presets(name):
            continue
        trained = str(members[0].config["horizon"])
        for arch, (_, same) in one_row_each(members).items():
            if untouched(same[0].config):
                share = Share(share_of_nothing(same, trained), [share_of_nothing([r], trained) for r in same])
                tables[name.track][arch].setdefault(primitive, {})[config["task"]] = share
    return {track: dict(sorted(archs.items())) for track, archs in tables.items()}


def share_of_nothing(same: list[RunRecord], trained: str) -> float:
    """The error of a row over that of who reads nothing: MAE over the best constant's or KL over the uniform one's."""
    error = mean_of(same, trained, "entropy_mae") / mean_of(same, trained, "entropy_mae", "best constant")
    return max(error, mean_of(same, trained, "kl") / mean_of(same, trained, "kl", "uniform"))


def primitives(records: list[RunRecord]) -> dict[str, list[list[str]]]:
    """By preset, supervision and device: one row an architecture, one cell a primitive with each of its tasks."""
    return {
        track: [
            [plain(arch), *(_verdict(p, of_arch.get(p, {})) for p in PRIMITIVES)] for arch, of_arch in archs.items()
        ]
        for track, archs in primitive_shares(records).items()
    }


def conclusions(records: list[RunRecord]) -> dict[str, list[str]]:
    """By preset, supervision and device, where there are several tasks: a sentence for each primitive, who holds it.

    Where none was run on all tasks of a primitive, it is of those that were run, and says so.
    """
    found: dict[str, list[str]] = {}
    for track, archs in primitive_shares(records).items():
        run = {task for of_arch in archs.values() for shares in of_arch.values() for task in shares}
        for primitive, meaning in PRIMITIVES.items():
            asked = [task for task in primitive_tasks(primitive) if task in run]
            if len(run) < 2 or not asked:
                continue
            said: dict[str, list[str]] = defaultdict(list)
            for arch, of_arch in archs.items():
                shares = of_arch.get(primitive, {})
                said[strength(asked, shares)].append(plain(arch) + "~" * shaky(asked, shares))
            told = [
                f"{how} {', '.join(said[word])}"
                for word, how in (("held", "held by"), ("partly", "partly by"), ("no", "not by"))
                if word in said
            ]
            if "held" in said or "partly" in said:
                left = [plain(task) for task in primitive_tasks(primitive) if task not in run]
                tasks = ", ".join(map(plain, asked)) + f" alone; {', '.join(left)} was not run" * bool(left)
                found.setdefault(track, []).append(f"- **{primitive}** ({meaning}: {tasks}): {'; '.join(told)}.")
    return found


def strength(tasks: list[str], shares: Shares) -> str:
    """A primitive is as strong as its weakest task; of one that was not measured whole no more can be said than no."""
    return _word(tasks, {task: share.value for task, share in shares.items()})


def shaky(tasks: list[str], shares: Shares) -> bool:
    """Whether the best and the worst of its seeds would say something else, or there is but one."""
    best, worst = ({task: end(share.seeds) for task, share in shares.items()} for end in (min, max))
    alone = any(len(share.seeds) == 1 for share in shares.values())
    return alone or _word(tasks, best) != _word(tasks, worst)


def _word(tasks: list[str], shares: dict[str, float]) -> str:
    worst = max(shares.values(), default=0.0)
    if worst >= PARTLY:
        return "no"
    if set(tasks) - set(shares):
        return "not measured"
    return "held" if worst < HELD else "partly"


def _verdict(primitive: str, shares: Shares) -> str:
    tasks = primitive_tasks(primitive)
    word = strength(tasks, shares)
    told = [f"{plain(task)} {shares[task].value:.1%}" if task in shares else f"{plain(task)} missing"
            for task in sorted(tasks)]  # fmt: skip
    mark = "~" * (word != "not measured" and shaky(tasks, shares))
    return {"held": "**held**"}.get(word, word) + mark + (f" ({', '.join(told)})" if shares else "")
