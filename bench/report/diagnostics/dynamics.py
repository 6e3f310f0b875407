"""What settles first in training: where attention looks, or what it carries?

From snapshots of the weights (`bench run --checkpoints N`), each shown the same sequences as the finished model:

attention     total variation between the attention of a scored position and its final attention; mean over heads
values        the angle between the two sets of value vectors, arccos(CKA) / (pi / 2), where CKA = |Y'X|^2 / |X'X||Y'Y|
              for centred X, Y (Kornblith et al. 2019, Williams et al. 2021): 0 for the same geometry up to rotation and
              scale. Like total variation it grows in proportion to a small change. Outputs stand in for values where a
              layer has none
calibration   the entropy error; its distance to the final one is the absolute difference

A quantity has settled at the step from which on its distance to the end stays below `SETTLED` of its largest, with
the step in between two snapshots read off a line in log step. Attention settles first, a frame-precision dissociation,
if it does so at least `EARLIER` times earlier than values.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from torch import Tensor, nn

from bench.report.diagnostics.anatomy import Look, affordable, attention_layers, layers, look, values_of, watch, weights
from bench.report.diagnostics.base import (
    GREY,
    MODEL,
    OTHER,
    NotAvailable,
    Picture,
    Run,
    Section,
    Table,
    canvas,
    load_model,
    section,
)
from bench.report.diagnostics.manifold import Manifold, describe, flat
from bench.run.score import Exam, predict, score
from bench.statements import EARLIER
from tasks.base import Batch

SETTLED = 0.1
WORK = 1.3e10  # parameters x positions of one forward
LEAST = 4  # snapshots


class Course(NamedTuple):
    steps: list[int]
    attention: np.ndarray | None  # [S] mean over layers; None where there is none that moves
    values: np.ndarray  # [S]
    error: np.ndarray  # [S] entropy MAE, bits
    manifold: list[Manifold]  # of the last layer's values
    settled: dict[str, float]  # step


def angle(x_ND: np.ndarray, y_ND: np.ndarray) -> float:
    """0 for the same geometry, 1 for geometries that have nothing in common."""
    x, y = x_ND - x_ND.mean(0), y_ND - y_ND.mean(0)
    norms = np.linalg.norm(x.T @ x) * np.linalg.norm(y.T @ y)
    if norms == 0:
        return 1.0
    cka = float(np.linalg.norm(y.T @ x) ** 2 / norms)
    return float(np.arccos(min(1.0, cka)) / (np.pi / 2))


def settled_at(steps: list[int], distance: np.ndarray) -> float:
    """The step from which on the distance stays below SETTLED of its largest."""
    share = distance / distance.max() if distance.max() > 0 else np.zeros_like(distance)
    late = np.flatnonzero(share > SETTLED)
    if not len(late):
        return float(steps[0])
    i = int(late[-1])
    if i == len(steps) - 1:
        return float(steps[-1])
    part = (share[i] - SETTLED) / (share[i] - share[i + 1])
    return float(np.exp(np.log(steps[i]) + part * np.log(steps[i + 1] / steps[i])))


def carried(model: nn.Module, seen: dict[str, Tensor], queries: Tensor) -> list[np.ndarray]:
    """What each layer carries from place to place, at the scored positions: values, or else outputs."""
    found = []
    for layer in layers(model):
        if layer.values is not None and values_of(seen[layer.values]).ndim == 4:
            found.append(flat(values_of(seen[layer.values]), queries))
        elif layer.outputs is not None:
            found.append(flat(seen[layer.outputs], queries))
    return found


def fewer(run: Run, whole: Look) -> Look:
    """The first sequences, as many as every snapshot of a large model can be shown."""
    batch, posterior = whole.exam
    n = max(16, affordable(run, batch.tokens.shape[1], len(batch.tokens), WORK))
    exam = Exam(Batch(batch.tokens[:n], batch.features[:n], batch.targets[:n], batch.queries), posterior[:n])
    return Look(exam, whole.h_BQ[:n], {tap: x[:n] for tap, x in whole.seen.items()})


@lru_cache(maxsize=1)
def measure(run: Run) -> Course:
    if not run.snapshots:
        raise NotAvailable("no snapshots were kept while it trained: bench run --fresh --checkpoints 12 keeps some")
    if len(run.snapshots) < LEAST:
        raise NotAvailable(f"{len(run.snapshots)} snapshots were kept, and a course takes at least {LEAST}")
    contents = [path.read_bytes() for _, path in run.snapshots]
    if f"sha256:{hashlib.sha256(contents[-1]).hexdigest()}" != run.record.weights:
        raise NotAvailable(f"the last snapshot, of step {run.snapshots[-1][0]:,}, is not the finished model")
    end = fewer(run, look(run))
    batch, queries = end.exam.batch, end.exam.batch.queries
    attending, taps = attention_layers(run.model), sorted(end.seen)
    if not carried(run.model, end.seen, queries):
        raise NotAvailable("no layer carries anything from one position to another")
    final = [weights(run.model, layer, end.seen[layer.values or ""])[:, :, queries] for layer in attending]
    kept = carried(run.model, end.seen, queries)
    attention, values, error, shapes = [], [], [], []
    for done, content in enumerate(contents):
        run.progress("snapshots", done, len(contents))
        model = load_model(run.config, content)
        seen = watch(model, batch, *taps)
        now = [weights(model, layer, seen[layer.values or ""])[:, :, queries] for layer in attending]
        attention.append([(a - b).abs().sum(-1).mean().item() / 2 for a, b in zip(now, final, strict=True)])
        rows = [x.reshape(-1, x.shape[2]) for x in carried(model, seen, queries)]
        values.append([angle(x, y.reshape(-1, y.shape[2])) for x, y in zip(rows, kept, strict=True)])
        error.append(score(end.exam, predict(model, batch)).entropy_mae.mean().item())
        shapes.append(describe(len(kept) - 1, "values", carried(model, seen, queries)[-1], end.h_BQ))
    steps = [step for step, _ in run.snapshots]
    of_values, of_error = np.mean(values, axis=1), np.array(error)
    of_attention = np.mean(attention, axis=1) if np.any(attention) else None  # a plain mean over positions never moves
    settled = {} if of_attention is None else {"attention": settled_at(steps, of_attention)}
    settled |= {"values": settled_at(steps, of_values), "calibration": settled_at(steps, abs(of_error - of_error[-1]))}
    return Course(steps, of_attention, of_values, of_error, shapes, settled)


@section("What settles first in training?", taps="*resid")
def course(run: Run) -> Section:
    c = measure(run)
    figure, (left, middle, right) = canvas(13, 3.7, 1, 3)
    curves = {} if c.attention is None else {"attention": (c.attention, MODEL)}
    for name, (distance, colour) in (curves | {"values": (c.values, OTHER)}).items():
        left.plot(
            c.steps, distance, "o-", color=colour, markersize=4, label=f"{name}: settled at {c.settled[name]:,.0f}"
        )
        left.axvline(c.settled[name], color=colour, linestyle=":", linewidth=1)
    left.set(
        xscale="log", xlabel="step", ylabel="distance to the finished model", ylim=(0, None), title="Frame and values"
    )
    middle.plot(c.steps, c.error, "o-", color=MODEL, markersize=4, label=f"settled at {c.settled['calibration']:,.0f}")
    middle.axvline(c.settled["calibration"], color=MODEL, linestyle=":", linewidth=1)
    middle.set(xscale="log", yscale="log", xlabel="step", ylabel="entropy MAE (bits)", title="Calibration")
    right.plot(c.steps, [m.pc1 for m in c.manifold], "o-", color=GREY, markersize=4, label="PC1 share")
    if all(m.spearman is not None for m in c.manifold):
        right.plot(
            c.steps, [m.spearman for m in c.manifold], "o-", color=OTHER, markersize=4, label="|Spearman|, entropy"
        )
    right.set(xscale="log", xlabel="step", ylim=(0, 1.02), title="Value manifold, last layer")
    for axis in (left, middle, right):
        axis.legend(fontsize=8)
    rows = []
    for i, step in enumerate(c.steps):
        m = c.manifold[i]
        away = None if c.attention is None else float(c.attention[i])
        rows.append([step, away, float(c.values[i]), float(c.error[i]), m.pc1, m.participation, m.spearman])
    header = ["step", "attention, TV to final", "values, angle to final", "entropy MAE (bits)", "PC1 share"]
    header += ["participation ratio", "Spearman PC1, entropy"]
    return Section(say(c), [Table("dynamics", header, rows)], [Picture("dynamics", figure, "The course of training.")])


def settles_first(c: Course) -> bool:
    return "attention" in c.settled and c.settled["attention"] * EARLIER <= c.settled["values"]


def say(c: Course) -> str:
    text = (
        f"{len(c.steps)} snapshots. Settled is the step from which on the distance to the finished model stays below "
        f"{SETTLED:.0%} of its largest. "
    )
    at = {name: f"{step:,.0f}" for name, step in c.settled.items()}
    if "attention" not in at:
        rest = f"values settle at step {at['values']}, calibration at step {at['calibration']}"
        return f"{text}The model has no attention that could move; {rest}."
    verdict = "Attention settles first" if settles_first(c) else "Attention does not settle first"
    return (
        f"{text}{verdict}: attention at step {at['attention']}, values at step {at['values']}, calibration at step "
        f"{at['calibration']} (first means {EARLIER:g} times earlier than values)."
    )
