"""The causal sections in one picture: what is readable, what is used, who writes it, and when it forms."""

from __future__ import annotations

from collections.abc import Callable
from textwrap import fill
from typing import Any

import numpy as np

from bench.report.diagnostics import formation, horizon, swap, used, writers
from bench.report.diagnostics.base import (
    EXACT,
    GREY,
    MODEL,
    OTHER,
    NotAvailable,
    Picture,
    Run,
    Section,
    canvas,
    section,
)
from bench.report.interventions import describe_place, places
from bench.statements import RISE

LIGHT = "#9ec3e6"  # the axis, beside all that varies with the quantity
WORDS = (
    "Frame: the directions in which sequences differ whose hypotheses are renamed.",
    "Readout: the directions to which later answers are most sensitive.",
    "Random twin: the same architecture, untrained.",
    "Matched null: directions found in the same way for the quantity in a random order.",
)


def draw_readable(axis: Any, run: Run) -> None:
    found = [f for f in used.measure(run) if f.subspace == used.AXIS]
    marks = (("this model", "trained", MODEL, "o", -0.16), ("random twin", "twin", GREY, "s", 0.0),
             ("permuted target", "permuted", EXACT, "x", 0.16))  # fmt: skip
    for label, field, colour, mark, shift in marks:
        heights = [max(0.0, getattr(f.reading, field)[f.place]) for f in found]
        x = np.arange(len(found)) + shift
        axis.scatter(x, heights, color=colour, marker=mark, label=label, s=46, zorder=3)
    axis.set(xticks=range(len(found)), ylim=(-0.05, 1.25), ylabel="held-out probe score", title="What is readable?")
    axis.set_xticklabels([f.quantity for f in found])
    axis.legend(fontsize=8, loc="upper center", ncols=3)


def draw_used(axis: Any, run: Run) -> None:
    found = used.measure(run)
    names = list(dict.fromkeys(f.quantity for f in found))
    labels = {used.AXIS: "without the probe's axis", used.COVARYING: "without all that varies with it"}
    for f in found:
        x = names.index(f.quantity) + (-0.22 if f.subspace == used.AXIS else 0.22)
        once = f.quantity == names[0]
        colour = LIGHT if f.subspace == used.AXIS else MODEL
        intact = max(f.intact.kl, 1e-9)
        axis.plot([x], [f.removed.kl / intact], "D", color=colour, markersize=9, markeredgecolor="black", zorder=3,
                  label=labels[f.subspace] if once else None)  # fmt: skip
        for null, tint, shift, label in ((f.random, GREY, -0.1, "random subspaces"),
                                         (f.matched, OTHER, 0.1, "matched null")):  # fmt: skip
            kls = [each.kl / intact for each in null]
            axis.bar(x + shift, max(kls) - min(kls), 0.18, bottom=min(kls), color=tint, alpha=0.55,
                     label=f"{label}: range" if f is found[0] else None)  # fmt: skip
        if f.used:
            axis.annotate(
                "used", (x, f.removed.kl / intact), (0, 9), textcoords="offset points", ha="center", fontsize=8
            )
    axis.axhline(1, color=GREY, linewidth=1)
    axis.axhline(RISE, color=GREY, linestyle=":", linewidth=1)
    axis.set(yscale="log", xticks=range(len(names)), ylabel="KL after removal, over intact", title="What is used?")
    low, high = axis.get_ylim()
    axis.set_ylim(min(low, 0.7), high * (high / min(low, 0.7)) ** 0.35)  # room for the legend
    axis.set_xticklabels(names)
    axis.legend(fontsize=8, loc="upper center", ncols=2)


def draw_writers(axis: Any, run: Run) -> None:
    writers.draw(axis, writers.measure(run))
    axis.set_title(f"Who writes the frame?\n{axis.get_title()}", fontsize=11)


def draw_formation(axis: Any, run: Run) -> None:
    formation.draw(axis, formation.measure(run))
    axis.set_title("When does it form?")


def draw_swap_or_horizon(axis: Any, run: Run) -> None:
    """Where no hypothesis can be renamed and the loss ends, what is left beyond the horizon."""
    try:
        found = swap.measure(run)
    except NotAvailable:
        horizon.draw_kl(axis, horizon.measure(run))
        axis.set_title("What is left beyond the loss horizon?")
        return
    swap.draw(axis, found, swap.EVIDENCE)
    axis.set(ylabel="margin (bits)", title="Does the answer follow swapped evidence?")
    axis.legend(fontsize=8)


PANELS: tuple[Callable[[Any, Run], None], ...] = (
    draw_readable,
    draw_used,
    draw_swap_or_horizon,
    draw_writers,
    draw_formation,
)


def say_used(run: Run) -> list[str]:
    found = used.measure(run)
    axes = [f.quantity for f in found if f.subspace == used.AXIS and f.used]
    rest = [f.quantity for f in found if f.subspace == used.COVARYING and f.used]
    return [
        f"Used (above both nulls), all that varies with it: {', '.join(rest) or 'none'}; "
        f"the probe's axis: {', '.join(axes) or 'none'}.",
    ]


def say_swap(run: Run) -> list[str]:
    try:
        found = swap.measure(run)
        best = swap.best_place(found)
    except NotAvailable:
        return say_horizon(run)
    where = describe_place(run.model, places(run.model)[best.place])
    return [
        f"Swap margin: intact {found.intact:.1f}, donor {found.donor:.1f} bits; the frame alone, {where}: "
        f"{best.frame:.1f}."
    ]


def say_horizon(run: Run) -> list[str]:
    found = horizon.measure(run)
    best = min(found.rescues[:-1], key=lambda rescue: rescue.own)
    return [
        f"KL inside the loss horizon {found.inside.kl:.2g} bits, beyond {found.beyond.kl:.2g}; with a transplant "
        f"({best.place}) {best.own:.2g}, ceiling {found.ceiling:.2g}."
    ]


def say_writers(run: Run) -> list[str]:
    found = writers.measure(run)
    return [
        f"The largest cost is {found.concentration:.2g} times the next; {found.half} of {len(found.parts)} parts cost "
        "more than half of it."
    ]


def say_formation(run: Run) -> list[str]:
    return [formation.say(formation.measure(run))]


@section("In one picture", taps="*resid", repeats=True)
def picture(run: Run) -> Section:
    figure, axes = canvas(15.5, 8.6, 2, 3)
    missing: dict[str, None] = {}
    for axis, panel in zip(axes.flat[: len(PANELS)], PANELS, strict=True):
        try:
            panel(axis, run)
        except NotAvailable as reason:
            axis.clear()
            axis.set_axis_off()
            missing[str(reason)] = None
    lines = []
    for say in (say_used, say_swap, say_writers, say_formation):
        try:
            lines += say(run)
        except NotAvailable as reason:
            missing[str(reason)] = None
    lines += [*(f"Not shown: {reason}." for reason in missing), *WORDS]
    words = axes.flat[len(PANELS)]
    words.set_axis_off()
    words.text(0, 1, "\n\n".join(fill(line, 62) for line in lines), va="top", fontsize=9.5)
    c, error = run.config, run.record.at()["all"]
    figure.suptitle(
        f"{c.task}, {c.arch}, preset {c.preset}, seed {c.seed}: {run.record.parameters:,} parameters, entropy MAE "
        f"{error['entropy_mae']:.2g} bits, KL {error['kl']:.2g} bits",
        fontsize=14,
    )
    text = "The causal sections below, in one picture."
    return Section(text, [], [Picture("summary", figure, "What is readable, what is used, who writes, when.")])
