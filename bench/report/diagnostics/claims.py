"""The claims of The Bayesian Geometry of Transformer Attention (arXiv:2512.22471), each tested on this run.

A test says when a claim holds and how to measure that; what was claimed, and where, is published.py's, under the same
id. Where the run lacks what a test needs, the reason is given. A verdict is about this run: other sizes, recipes and
seeds may give another.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import spearmanr

from bench.report.diagnostics import ablation, beliefs, clusters, dynamics, geometry, length, manifold
from bench.report.diagnostics.anatomy import attention_layers, layers
from bench.report.diagnostics.base import NotAvailable, Run, Section, Table, section
from bench.statements import EARLIER, OUTSTANDING, SIGNIFICANT

HOLDS, FAILS, UNTESTED = "holds", "does not hold", "cannot be tested with this run"
JUMP = 1.5  # K + 1 over K: more is a discontinuity
PROGRESS = 0.8  # Spearman of focus with depth
NEAR_ZERO = 0.1  # of the attention that equal attention would give
PC1 = 0.8  # REPRODUCE.md of the authors' repository; a later paper has 84-90 %
ALONG = 0.9  # Spearman of PC1 with entropy
DECODED = 0.9  # held-out R2
AS_CLEAR = 0.9  # of the clusters that the exact posterior itself forms: it knows no more than it knows
FITTED = 0.05  # bits at the training horizon

Measured = tuple[str, bool]


class Test(NamedTuple):
    rule: str
    measure: Callable[[Run], Measured]


def published_error(run: Run) -> Measured:
    published = run.published("error", run.config.task)
    if published is None or run.config.horizon != 20:
        raise NotAvailable("published for bijection and hmm at K = 20")
    if run.config.arch != "transformer":
        raise NotAvailable("published for the transformer")
    metric, kind = ("entropy_curve_mae", "curve MAE") if run.config.task == "hmm" else ("entropy_mae", "MAE")
    ours = run.record.at()["all"][metric]
    return f"{kind} {ours:.2g} bits, published {published[0]:.2g}", ours <= published[0]


def no_discontinuity(run: Run) -> Measured:
    r = length.measure(run)
    return f"error at {r.trained + 1} over {r.trained}: {r.jump:.2f}", r.jump <= JUMP


def every_layer_needed(run: Run) -> Measured:
    found = ablation.measure(run)
    factors = {i: found.factor(branches["whole"]) for i, branches in found.layers.items()}
    least = min(factors, key=lambda i: factors[i])
    scores = (found.intact, found.layers[least]["whole"])
    intact, damaged = (float(score.entropy_mae[: found.trained].mean()) for score in scores)
    text = f"least for layer {least}: {factors[least]:.3g}x ({intact:.2g} to {damaged:.2g} bits), "
    return f"{text}most: {max(factors.values()):.3g}x", factors[least] > ablation.COLLAPSE


def frame_head(run: Run) -> Measured:
    require_attention(run)
    head, largest, second = ablation.frame_head(ablation.measure(run))
    which = "no head stands out" if head is None else f"head {head}"
    return f"{which}: {largest:.3g}x, the next {second:.3g}x", head is not None


def require_attention(run: Run) -> None:
    if not layers(run.model) or layers(run.model)[0].kind != "attention":
        raise NotAvailable("layer 0 has no attention")


def orthogonal_keys(run: Run) -> Measured:
    require_attention(run)
    frames = geometry.key_frames(run)
    tested = [name for name in (geometry.INPUTS, geometry.HYPOTHESES) if name in frames]
    if not tested:
        raise NotAvailable("no token of this task is looked up, or stands for a hypothesis about the answer")
    told = [
        f"{name}: mean abs cos {np.mean(frames[name].heads):.3f}, random {frames[name].random.mean():.3f}, "
        f"p = {frames[name].p_all:.2g}"
        for name in tested
    ]
    return "; ".join(told), frames[tested[0]].p_all < SIGNIFICANT


def progressive_alignment(run: Run) -> Measured:
    depth = geometry.by_depth(run)
    focus = [d.focus for d in depth if d.focus is not None]
    if not focus:
        raise NotAvailable("no position that can be attended to stands for a feasible hypothesis")
    if len(focus) < 3:
        raise NotAvailable("a trend over depth takes at least three layers of attention")
    if np.ptp(focus) == 0:
        return f"focus {focus[0]:.2f} in every layer", False
    trend = float(spearmanr(range(len(focus)), focus).statistic)
    return f"focus {focus[0]:.2f} in the first layer, {focus[-1]:.2f} in the last, trend {trend:.2f}", (
        trend >= PROGRESS and focus[-1] > 1
    )


def eliminated_ignored(run: Run) -> Measured:
    last = geometry.by_depth(run)[-1]
    lift = last.lift("eliminated")
    if lift is None:
        raise NotAvailable("no position stands for an eliminated hypothesis")
    return f"layer {last.layer}: {lift:.2f} of equal attention", lift <= NEAR_ZERO


def late(run: Run) -> list[manifold.Manifold]:
    """Values and outputs of the last layer that attends, and the residual stream after it."""
    if not attention_layers(run.model):
        raise NotAvailable("the architecture has no attention")
    last = attention_layers(run.model)[-1].index
    return [m for m in manifold.measure(run) if m.layer == last]


def low_dimensional(run: Run) -> Measured:
    shares = {m.source: m.pc1 for m in late(run) if m.pc1 is not None}
    if not shares:
        raise NotAvailable("these vectors do not vary")
    return ", ".join(f"PC1 of {name} {share:.0%}" for name, share in shares.items()), max(shares.values()) >= PC1


def entropy_along(run: Run) -> Measured:
    found = {m.source: m.spearman for m in late(run) if m.spearman is not None}
    if not found:
        raise NotAvailable("the vectors or the posterior's entropy do not vary")
    top = max((m for m in manifold.measure(run) if m.spearman is not None), key=lambda m: m.spearman or 0.0)
    text = ", ".join(f"|Spearman| of {name} {r:.2f}" for name, r in found.items())
    return f"{text}; most anywhere {top.spearman:.2f}, {top.source} of layer {top.layer}", max(found.values()) >= ALONG


def belief_in_residual(run: Run) -> Measured:
    found = [probe for probe in beliefs.measure(run)[1:] if probe.posterior is not None]
    if not found:
        raise NotAvailable("the posterior does not vary")
    *before, last = found
    if not before:
        raise NotAvailable("it has one layer alone, and after that the head reads the belief anyway")
    best = max(before, key=lambda probe: probe.posterior or 0.0)
    return f"R2 {best.posterior:.2f} after {best.source}, {last.posterior:.2f} after the last", (
        (best.posterior or 0.0) >= DECODED
    )


def dissociation(run: Run) -> Measured:
    course = dynamics.measure(run)
    if "attention" not in course.settled:
        raise NotAvailable("the model has no attention that could move")
    at = ", ".join(f"{name} at {step:,.0f}" for name, step in course.settled.items())
    if course.steps[-2] < min(course.settled["attention"], course.settled["values"]):
        raise NotAvailable(f"both settle after step {course.steps[-2]:,}, the last snapshot but one")
    return f"settled: {at}", dynamics.settles_first(course)


def collapse_without_top(run: Run) -> Measured:
    if (run.config.arch, run.config.task) != ("transformer-no-attn-top2", "hmm"):
        raise NotAvailable("it is about transformer-no-attn-top2 on hmm")
    trained, far = run.config.horizon, max(run.config.horizons)
    near, away = (run.record.at(k)["all"]["entropy_mae"] for k in (trained, far))
    uniform = (run.record.references[str(far)] or {})["uniform"]["all"]["entropy_mae"]
    text = f"{near:.3g} bits at {trained}, {away:.3g} at {far}: {away / near:.2f}x (uniform predictor {uniform:.2g})"
    return text, near <= FITTED and away >= ablation.COLLAPSE * near


def one_cluster_a_state(run: Run) -> Measured:
    if not run.config.task.startswith("hmm"):
        raise NotAvailable("it is about hidden Markov chains")
    if all(layer.kind != "recurrence" for layer in layers(run.model)):
        raise NotAvailable("it is about recurrent models")
    *_, final, exact = clusters.measure(run)
    text = f"silhouette {final.silhouette:.2f}, purity {final.purity:.2f}; of the exact posterior "
    return f"{text}{exact.silhouette:.2f}, {exact.purity:.2f}", (
        final.silhouette >= AS_CLEAR * exact.silhouette and final.purity >= AS_CLEAR * exact.purity
    )


TESTS = {
    "calibrated": Test("error at K = 20 at most the published one", published_error),
    "no-discontinuity": Test(f"error at K + 1 at most {JUMP:g} times that at K", no_discontinuity),
    "every-layer": Test(f"each layer's removal costs more than {ablation.COLLAPSE:g}x", every_layer_needed),
    "frame-head": Test(
        f"its removal costs at least {ablation.COLLAPSE:g}x, and {OUTSTANDING:g} times what the next costs",
        frame_head,
    ),
    "orthogonal-keys": Test(
        f"those of input keys, else of hypotheses, are more orthogonal than random vectors, p < {SIGNIFICANT:g}",
        orthogonal_keys,
    ),
    "alignment": Test(
        f"focus grows with depth, Spearman at least {PROGRESS:g}, and ends above 1", progressive_alignment
    ),
    "eliminated": Test(f"in the last layer at most {NEAR_ZERO:g} of equal attention", eliminated_ignored),
    "manifold": Test(
        f"PC1 of the last attending layer's values, outputs or residual stream at least {PC1:.0%}", low_dimensional
    ),
    "entropy-axis": Test(f"|Spearman| of that PC1 with entropy at least {ALONG:g}", entropy_along),
    "belief": Test(
        f"held-out R2 of a softmax probe for the posterior at least {DECODED:g} after some layer before the last",
        belief_in_residual,
    ),
    "attention-first": Test(
        f"within {dynamics.SETTLED:.0%} of its end {EARLIER:g} times earlier than values", dissociation
    ),
    "top-attention": Test(
        f"at most {FITTED:g} bits at the training length, {ablation.COLLAPSE:g}x that at the longest",
        collapse_without_top,
    ),
    "clusters": Test(f"silhouette and purity at least {AS_CLEAR:g} of the exact posterior's own", one_cluster_a_state),
}


def judge(test: Test, run: Run) -> tuple[str, str]:
    """What was measured, or why nothing was; and the verdict."""
    try:
        text, holds = test.measure(run)
        return text, HOLDS if holds else FAILS
    except NotAvailable as reason:
        return str(reason), UNTESTED
    except Exception as error:  # the measurement's own section fails with it, and the exit code says so
        return f"the measurement failed: {type(error).__name__}: {error}", UNTESTED


@section("The paper's claims, tested on this run", repeats=True)
def table(run: Run) -> Section:
    rows: list[list[Any]] = []
    for id, test in TESTS.items():
        claim, place = run.literature.statements.get(id, (id, ""))
        rows.append([id, claim, place, test.rule, *judge(test, run)])
    counts = [sum(row[-1] == verdict for row in rows) for verdict in (HOLDS, FAILS, UNTESTED)]
    text = (
        "{} claims of arXiv:2512.22471 on this run: {} hold, {} do not hold, {} cannot be tested. "
        "A verdict is about this run alone; the sections below show what it rests on."
    ).format(len(rows), *counts)
    header = ["id", "claim", "source", "holds if", "measured here", "verdict"]
    return Section(text, [Table("claims", header, rows)])
