"""What breaks when a part of the trained model is taken away?

Parts    a layer (both branches write nothing, so it is the identity), one branch of it, one head, two heads of layer 0
Factor   error without the part / error of the intact model, on the same sequences; 1 means that nothing was lost

Models are causal, so one forward at the longest horizon answers for every horizon: its first K predictions are an exam
at K. Layers and branches are scored at every horizon, heads and pairs at the training horizon alone. Layers before the
removed part are not run again, and large models see fewer sequences. Nothing is trained again: what the rest could have
learned without the part is another question, which the trained ablations (`bench list`) answer.

The hypothesis-frame head is the head of layer 0 whose loss hurts most, if it stands out: its factor is at least
`COLLAPSE` and at least `OUTSTANDING` times that of the next head.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
import torch
from matplotlib.colors import LogNorm
from torch import Tensor

from bench.report.diagnostics.anatomy import POSITIONS, SEQUENCES, Layer, affordable, layers, watch
from bench.report.diagnostics.base import NotAvailable, Picture, Run, Section, Table, canvas, section
from bench.report.diagnostics.frame import frame
from bench.report.interventions import Answers, Edits, without
from bench.run.score import Exam, Score, score
from bench.statements import OUTSTANDING
from tasks.base import Batch

WORK = 1.3e10  # parameters x positions of one forward: 256 sequences of a small model, 30 of the paper's
COLLAPSE = 10.0  # the paper's "more than 10x"
LEAST = 1e-9  # bits: an intact error below is rounding


class Write(NamedTuple):
    """What a part adds to the residual stream, over the stream's length: root mean square over positions."""

    size: float
    in_frame: float | None  # of its part in the frame; None where the frame is not a part of this space


class Ablations(NamedTuple):
    horizons: list[int]
    trained: int
    intact: Score
    layers: dict[int, dict[str, Score]]  # layer -> whole, attention, recurrence, feed-forward
    heads: dict[tuple[int, int], Score]  # layer, head
    pairs: dict[tuple[int, int], Score]  # two heads of the first layer that has some
    first: int | None  # that layer
    writes: dict[tuple[int, int | str], Write]  # layer, and head or branch

    def factor(self, of: Score, horizon: int | None = None) -> float:
        k = horizon or self.trained
        return float(of.entropy_mae[:k].mean() / self.intact.entropy_mae[:k].mean().clamp(min=LEAST))


def reachable(run: Run) -> list[int]:
    """The horizons of the config that the task has and the model can read."""
    limit, reach = run.task.max_horizon(), getattr(run.model, "max_length", None)
    return [
        k
        for k in run.config.horizons
        if k <= (limit or k) and (reach is None or run.task.shape.length(k) <= reach)
    ]  # fmt: skip


def shorten(run: Run, exam: Exam, horizon: int) -> Exam:
    """The first predictions of the same sequences."""
    tokens, features, targets, queries = exam.batch
    length = run.task.shape.length(horizon)
    batch = Batch(tokens[:, :length], features[:, :length], targets[:, :horizon], queries[:horizon])
    return Exam(batch, exam.posterior[:, :horizon])


def find_frame(run: Run) -> Tensor | None:
    try:
        return frame(run)
    except NotAvailable:
        return None


def measure_write(write_BTD: Tensor, stream_BTD: Tensor, basis_DR: Tensor | None) -> Write:
    """Positions differ in length, many times over: each counts by its own."""
    relative_BTD = write_BTD / stream_BTD.norm(dim=-1, keepdim=True).clamp(min=1e-9)
    size = relative_BTD.square().sum(-1).mean().sqrt().item()
    if basis_DR is None or len(basis_DR) != write_BTD.shape[-1]:
        return Write(size, None)
    return Write(size, (relative_BTD @ basis_DR).square().sum(-1).mean().sqrt().item())


@lru_cache(maxsize=1)
def measure(run: Run) -> Ablations:
    parts = [layer for layer in layers(run.model) if layer.branches]
    if not parts:
        raise NotAvailable("the architecture has no taps that end a branch")
    horizons = reachable(run)
    length = run.task.shape.length(max(horizons))
    run.require_length(length)
    count = max(24, affordable(run, length, min(SEQUENCES, POSITIONS // length), WORK))
    batch = run.task.sample(count, max(horizons), run.rng("ablation"))
    exam = Exam(batch, run.task.posterior(batch))
    near = shorten(run, exam, run.config.horizon)
    branches = [tap for layer in parts for tap in layer.branches.values()]
    far_answers = Answers(run.model, exam.batch)
    near_answers = Answers(run.model, near.batch, *branches)
    basis = find_frame(run)

    headed, counts = count_heads(run, parts, near.batch)
    first = min(headed, default=None)
    whole: dict[tuple[int, str], Edits] = {}
    for layer in parts:
        whole[layer.index, "whole"] = dict.fromkeys(layer.branches.values(), torch.zeros_like)
        whole |= {(layer.index, name): {tap: torch.zeros_like} for name, tap in layer.branches.items()}
    pairs = [] if first is None else list(combinations(range(counts[first]), 2))
    total, done = len(whole) + sum(counts.values()) + len(pairs), iter(range(10**6))

    def ask(answers: Answers, of: Exam, edits: Edits, *also: str) -> Score:
        run.progress("ablations", next(done), total)
        return score(of, answers.edited(edits, *also))

    by_layer: dict[int, dict[str, Score]] = {layer.index: {} for layer in parts}
    for (i, name), edits in whole.items():
        by_layer[i][name] = ask(far_answers, exam, edits)
    by_head: dict[tuple[int, int], Score] = {}
    writes: dict[tuple[int, int | str], Write] = {}
    for layer in parts:
        stream = near_answers.at(layer.resid)
        for name, tap in layer.branches.items():
            writes[layer.index, name] = measure_write(near_answers.at(tap), stream, basis)
        end = layer.branches.get(layer.kind)
        for h in range(counts.get(layer.index, 0)):
            edits = {headed[layer.index]: without(h)}
            by_head[layer.index, h] = ask(near_answers, near, edits, *([end] if end else []))
            if end:  # what is missing from the branch is what the head wrote
                missing = near_answers.at(end) - torch.cat([kept[end] for kept in near_answers.kept])
                writes[layer.index, h] = measure_write(missing, stream, basis)
    by_pair = {pair: ask(near_answers, near, {headed[first or 0]: without(*pair)}) for pair in pairs}
    run.progress("ablations", total, total)
    intact = score(exam, far_answers.intact)
    return Ablations(horizons, run.config.horizon, intact, by_layer, by_head, by_pair, first, writes)


def count_heads(run: Run, parts: list[Layer], batch: Batch) -> tuple[dict[int, str], dict[int, int]]:
    """The tap of each layer that has heads, and their number."""
    one = Batch(batch.tokens[:1], batch.features[:1], batch.targets[:1], batch.queries)
    taps = {layer.index: layer.outputs for layer in parts if layer.outputs}
    seen = watch(run.model, one, *taps.values()) if taps else {}
    headed = {index: tap for index, tap in taps.items() if seen[tap].ndim == 4}
    return headed, {index: seen[tap].shape[2] for index, tap in headed.items()}


class Frame(NamedTuple):
    head: int | None  # None: no head stands out
    largest: float
    second: float


def frame_head(found: Ablations) -> Frame:
    factors = [found.factor(s) for (layer, _), s in sorted(found.heads.items()) if layer == found.first]
    if len(factors) < 2:
        raise NotAvailable("needs at least two heads in the first layer")
    second, largest = sorted(factors)[-2:]
    out = largest >= COLLAPSE and largest >= OUTSTANDING * second
    return Frame(factors.index(largest) if out else None, largest, second)


def row(found: Ablations, of: Score, horizons: list[int]) -> list[Any]:
    cells: list[Any] = []
    for k in horizons:
        cells += [of.entropy_mae[:k].mean().item(), of.kl[:k].mean().item(), found.factor(of, k)]
    return cells


@section("What breaks when a part is removed?")
def parts(run: Run) -> Section:
    found = measure(run)
    near, far = [found.trained], found.horizons

    def header(horizons: list[int]) -> list[str]:
        return ["removed", *(f"{name} K={k}" for k in horizons for name in ("MAE", "KL", "factor"))]

    whole = [["nothing", *row(found, found.intact, far)]]
    for i, branches in found.layers.items():
        names = {"whole": f"layer {i}"} | {name: f"layer {i}, {name}" for name in branches if name != "whole"}
        whole += [[names[name], *row(found, of, far)] for name, of in branches.items()]
    tables = [Table("ablation_layers", header(far), whole)]
    if found.heads:
        single = [[f"layer {i}, head {h}", *row(found, of, near)] for (i, h), of in found.heads.items()]
        tables.append(Table("ablation_heads", header(near), single))
    if found.pairs:
        double = [
            [f"layer {found.first}, heads {a} and {b}", *row(found, of, near)] for (a, b), of in found.pairs.items()
        ]
        tables.append(Table("ablation_pairs", header(near), double))
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
