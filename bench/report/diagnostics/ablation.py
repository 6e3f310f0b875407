"""What breaks when a part of the trained model is taken away?

Parts    a layer (both branches write nothing, so it is the identity), one branch of it, one head, two heads of layer 0
Factor   error without the part / error of the intact model, on the same sequences; 1 means that nothing was lost

Models are causal, so one forward at the longest horizon answers for every horizon: its first K predictions are an exam
at K. Nothing is trained again: what the rest could have learned without the part is another question, which the trained
ablations (`bench list`) answer.

The hypothesis-frame head is the head of layer 0 whose loss hurts most, if it stands out: its factor is at least
`COLLAPSE` and at least `OUTSTANDING` times that of the next head.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
import torch
from matplotlib.colors import LogNorm
from torch import Tensor

from bench.diagnostics.anatomy import layers, make_exam, watch
from bench.diagnostics.base import NotAvailable, Picture, Run, Section, Table, canvas, section
from bench.score import Score, predict, score
from models.taps import edit
from tasks.base import Batch

COLLAPSE = 10.0  # the paper's "more than 10x"
OUTSTANDING = 2.0
LEAST = 1e-9  # bits: an intact error below is rounding

Edits = Mapping[str, Callable[[Tensor], Tensor]]


class Ablations(NamedTuple):
    horizons: list[int]
    trained: int
    intact: Score
    layers: dict[int, dict[str, Score]]  # layer -> whole, attention, recurrence, feed-forward
    heads: dict[tuple[int, int], Score]  # layer, head
    pairs: dict[tuple[int, int], Score]  # two heads of the first layer that has some
    first: int | None  # that layer

    def factor(self, of: Score, horizon: int | None = None) -> float:
        k = horizon or self.trained
        return float(of.entropy_mae[:k].mean() / self.intact.entropy_mae[:k].mean().clamp(min=LEAST))


def without_heads(*heads: int) -> Callable[[Tensor], Tensor]:
    def change(z_BTHd: Tensor) -> Tensor:
        keep_H = torch.ones(z_BTHd.shape[2])
        keep_H[list(heads)] = 0
        return z_BTHd * keep_H[:, None]

    return change


def reachable(run: Run) -> list[int]:
    """The horizons of the config that the task has and the model can read."""
    limit, reach = run.task.max_horizon(), getattr(run.model, "max_length", None)
    return [
        k
        for k in run.config.horizons
        if k <= (limit or k) and (reach is None or run.task.shape.length(k) <= reach)
    ]  # fmt: skip


@lru_cache(maxsize=1)
def measure(run: Run) -> Ablations:
    parts = [layer for layer in layers(run.model) if layer.branches]
    if not parts:
        raise NotAvailable("the architecture has no taps that end a branch")
    horizons = reachable(run)
    exam = make_exam(run, max(horizons), "ablation")
    one = Batch(exam.batch.tokens[:1], exam.batch.features[:1], exam.batch.targets[:1], exam.batch.queries)
    widths = {name: z.shape for name, z in watch(run.model, one, "*").items()}
    headed = {layer.index: layer.outputs for layer in parts if layer.outputs and len(widths[layer.outputs]) == 4}
    counts = {index: widths[tap][2] for index, tap in headed.items()}
    first = min(headed, default=None)

    plans: dict[tuple[Any, ...], Edits] = {("intact",): {}}
    for layer in parts:
        plans["layer", layer.index, "whole"] = dict.fromkeys(layer.branches.values(), torch.zeros_like)
        for name, tap in layer.branches.items():
            plans["layer", layer.index, name] = {tap: torch.zeros_like}
    plans |= {("head", i, h): {headed[i]: without_heads(h)} for i in headed for h in range(counts[i])}
    if first is not None:
        pairs = combinations(range(counts[first]), 2)
        plans |= {("pair", a, b): {headed[first]: without_heads(a, b)} for a, b in pairs}
    found: dict[tuple[Any, ...], Score] = {}
    for done, (plan, edits) in enumerate(plans.items()):
        run.progress("ablations", done, len(plans))
        with edit(run.model, edits):
            found[plan] = score(exam, predict(run.model, exam.batch))
    run.progress("ablations", len(plans), len(plans))
    return Ablations(
        horizons=horizons, trained=run.config.horizon, intact=found["intact",], first=first,
        layers={p.index: {n[2]: s for n, s in found.items() if n[:2] == ("layer", p.index)} for p in parts},
        heads={(n[1], n[2]): s for n, s in found.items() if n[0] == "head"},
        pairs={(n[1], n[2]): s for n, s in found.items() if n[0] == "pair"},
    )  # fmt: skip


class Frame(NamedTuple):
    head: int | None  # None: no head stands out
    largest: float
    second: float


def frame_head(found: Ablations) -> Frame:
    factors = [found.factor(s) for (layer, _), s in sorted(found.heads.items()) if layer == found.first]
    if len(factors) < 2:
        raise NotAvailable("a head stands out among others, and there is one or none in the first layer")
    second, largest = sorted(factors)[-2:]
    out = largest >= COLLAPSE and largest >= OUTSTANDING * second
    return Frame(factors.index(largest) if out else None, largest, second)


def row(found: Ablations, of: Score) -> list[Any]:
    cells: list[Any] = []
    for k in found.horizons:
        cells += [of.entropy_mae[:k].mean().item(), of.kl[:k].mean().item(), found.factor(of, k)]
    return cells


@section("What breaks when a part is removed?")
def parts(run: Run) -> Section:
    found = measure(run)
    header = [f"{name} K={k}" for k in found.horizons for name in ("MAE", "KL", "factor")]
    whole = [["nothing", *row(found, found.intact)]]
    for i, branches in found.layers.items():
        names = {"whole": f"layer {i}"} | {name: f"layer {i}, {name}" for name in branches if name != "whole"}
        whole += [[names[name], *row(found, of)] for name, of in branches.items()]
    tables = [Table("ablation_layers", ["removed", *header], whole)]
    if found.heads:
        single = [[f"layer {i}, head {h}", *row(found, of)] for (i, h), of in found.heads.items()]
        tables.append(Table("ablation_heads", ["removed", *header], single))
    if found.pairs:
        double = [[f"layer {found.first}, heads {a} and {b}", *row(found, of)] for (a, b), of in found.pairs.items()]
        tables.append(Table("ablation_pairs", ["removed", *header], double))
    lines = [
        "Errors in bits, mean over the first K predictions of the same sequences; factor is the entropy error over "
        "that of the intact model. A removed branch writes nothing; a removed layer is the identity. Where KL rises "
        "and the entropy error does not, the entropy is right for a wrong distribution.",
        say_frame(found),
    ]
    return Section("\n\n".join(lines), tables, [Picture("ablation", draw(found), "Factor over the intact error.")])


def say_frame(found: Ablations) -> str:
    rule = (
        "A hypothesis-frame head is the head of the first layer that has heads whose removal costs most, provided "
        f"that its factor is at least {COLLAPSE:g} and at least {OUTSTANDING:g} times the next one's."
    )
    try:
        head, largest, second = frame_head(found)
    except NotAvailable as reason:
        return f"{rule} Here: n/a ({reason})."
    numbers = f"the largest factor is {largest:.3g}, the next {second:.3g}"
    if head is None:
        return f"{rule} Here none stands out in layer {found.first}: {numbers}."
    return f"{rule} Here it is **head {head} of layer {found.first}**: {numbers}."


def draw(found: Ablations) -> Any:
    """Three grids on one scale: branches, heads, pairs of heads."""
    kinds = list(dict.fromkeys(name for branches in found.layers.values() for name in branches))
    index = list(found.layers)
    grids = [("Removed from a layer", "layer", kinds, index, np.full((len(index), len(kinds)), np.nan))]
    for i, branches in found.layers.items():
        for name, of in branches.items():
            grids[0][4][index.index(i), kinds.index(name)] = found.factor(of)
    if found.heads:
        most = 1 + max(h for _, h in found.heads)
        rows = sorted({i for i, _ in found.heads})
        grid = np.full((len(rows), most), np.nan)
        for (i, h), of in found.heads.items():
            grid[rows.index(i), h] = found.factor(of)
        grids.append(("One head off", "layer", [f"head {h}" for h in range(most)], rows, grid))
    if found.pairs:
        count = 1 + max(b for _, b in found.pairs)
        grid = np.full((count, count), np.nan)
        for (a, b), of in found.pairs.items():
            grid[b, a] = found.factor(of)
        for h in range(count):
            grid[h, h] = found.factor(found.heads[found.first or 0, h])
        title = f"Two heads of layer {found.first} off"
        grids.append((title, "head", [f"head {h}" for h in range(count)], list(range(count)), grid))
    widths = [0.85 * grid.shape[1] + 0.9 for *_, grid in grids]
    height = 0.42 * max(grid.shape[0] for *_, grid in grids) + 1.6
    figure, axes = canvas(sum(widths) + 1.2, height, 1, len(grids), width_ratios=widths, squeeze=False)
    top = max(COLLAPSE, *(float(np.nanmax(grid)) for *_, grid in grids))
    norm = LogNorm(1.0, top)
    for axis, (title, label, columns, lines, grid) in zip(axes[0], grids, strict=True):
        image = axis.imshow(np.clip(grid, 1.0, top), norm=norm, cmap="Blues", aspect="auto")
        for (y, x), value in np.ndenumerate(grid):
            if np.isfinite(value):
                colour = "white" if norm(max(value, 1.0)) > 0.55 else "black"
                text = f"{value:.0f}x" if value >= 99.5 else f"{value:.2g}x" if value < 9.95 else f"{value:.3g}x"
                axis.text(x, y, text, ha="center", va="center", color=colour, fontsize=8)
        axis.set(xticks=range(len(columns)), yticks=range(len(lines)), yticklabels=lines, ylabel=label)
        axis.set_xticklabels(
            ["whole layer" if c == "whole" else c for c in columns], rotation=30, ha="right", fontsize=8
        )
        axis.set_title(title, fontsize=10)
        axis.tick_params(length=0)
        for side in axis.spines.values():
            side.set_visible(False)
    figure.colorbar(image, ax=axes[0].tolist(), label=f"entropy error at K = {found.trained}, over intact", shrink=0.9)
    return figure
