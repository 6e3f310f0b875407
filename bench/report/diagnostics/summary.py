"""The causal sections in one picture: what is readable, what is used, who writes it, and when it forms."""

from __future__ import annotations

from collections.abc import Callable
from textwrap import fill
from typing import Any

from bench.report.diagnostics import formation, swap, used, writers
from bench.report.diagnostics.base import EXACT, GREY, MODEL, NotAvailable, Picture, Run, Section, canvas, section
from bench.report.interventions import describe_place, places


def draw_readable(axis: Any, run: Run) -> None:
    found = [f for f in used.measure(run) if f.subspace == "axis"]
    place = range(len(found))
    marks = (("this model", "trained", MODEL, "o"), ("random twin", "twin", GREY, "s"),
             ("permuted target", "permuted", EXACT, "x"))  # fmt: skip
    for label, field, colour, mark in marks:
        heights = [max(0.0, getattr(f.reading, field)[f.place]) for f in found]
        axis.scatter(place, heights, color=colour, marker=mark, label=label, s=46, zorder=3)
    axis.set(xticks=place, ylim=(-0.05, 1.25), ylabel="held-out probe score", title="What is readable?")
    axis.set_xticklabels([f.quantity for f in found])
    axis.legend(fontsize=8, loc="upper center", ncols=3)


def draw_used(axis: Any, run: Run) -> None:
    found = used.measure(run)
    names = list(dict.fromkeys(f.quantity for f in found))
    for f in found:
        x = names.index(f.quantity) + (-0.2 if f.subspace == "axis" else 0.2)
        colour = "#9ec3e6" if f.subspace == "axis" else MODEL
        label = {"axis": "the probe's axis", "covarying": "all that varies with it"}[f.subspace]
        axis.bar(x, f.removed.kl, 0.36, color=colour, label=label if f.quantity == names[0] else None)
        kls = [each.kl for each in f.random]
        axis.plot([x - 0.18, x + 0.18], [max(kls)] * 2, color=EXACT, linewidth=1.6,
                  label="largest of random subspaces" if f is found[0] else None)  # fmt: skip
    axis.axhline(found[0].intact.kl, color=GREY, linestyle=":", linewidth=1, label="intact")
    axis.set(yscale="log", xticks=range(len(names)), ylabel="KL after removal (bits)", title="What is used?")
    axis.set_ylim(top=8 * axis.get_ylim()[1])  # room for the legend
    axis.set_xticklabels(names)
    axis.legend(fontsize=8, loc="upper center", ncols=2)


def draw_writers(axis: Any, run: Run) -> None:
    writers.draw(axis, writers.measure(run))
    axis.set_title(f"Who writes the frame? {axis.get_title()}", fontsize=12)


def draw_formation(axis: Any, run: Run) -> None:
    formation.draw(axis, formation.measure(run))
    axis.set_title("When does it form?")


def draw_swap(axis: Any, run: Run) -> None:
    found = swap.measure(run)
    swap.draw(axis, found, swap.EVIDENCE)
    axis.set(ylabel="margin (bits)", title="Does the answer follow swapped evidence?")
    axis.legend(fontsize=8)


PANELS: tuple[Callable[[Any, Run], None], ...] = (draw_readable, draw_used, draw_swap, draw_writers, draw_formation)


def say_used(run: Run) -> list[str]:
    found = used.measure(run)
    axes = [f.quantity for f in found if f.subspace == "axis" and f.used]
    rest = [f.quantity for f in found if f.subspace == "covarying" and f.used]
    return [
        f"Used, all that varies with it: {', '.join(rest) or 'none'}",
        f"Used, the probe's axis: {', '.join(axes) or 'none'}",
    ]


def say_swap(run: Run) -> list[str]:
    found = swap.measure(run)
    best = swap.best_place(found)
    where = describe_place(run.model, places(run.model)[best.place])
    return [
        f"Swap margin: intact {found.intact:.1f}, donor {found.donor:.1f} bits",
        f"Frame alone, best beyond the embedding: {best.frame:.1f} bits {where}",
    ]


def say_writers(run: Run) -> list[str]:
    found = writers.measure(run)
    return [
        f"Largest cost {found.concentration:.2g} times the next; {found.half} of {len(found.parts)} above half of it"
    ]


def say_formation(run: Run) -> list[str]:
    settled = formation.measure(run).settled
    return ["Settled at step: " + ", ".join(f"{name} {step:,.0f}" for name, step in settled.items())]


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
    error = run.record.at()["all"]
    lines = [
        f"{run.record.parameters:,} parameters",
        f"Entropy MAE {error['entropy_mae']:.2g} bits, KL {error['kl']:.2g} bits",
    ]
    for say in (say_used, say_swap, say_writers, say_formation):
        try:
            lines += say(run)
        except NotAvailable as reason:
            missing[str(reason)] = None
    lines += [f"Not shown: {reason}" for reason in missing]
    words = axes.flat[len(PANELS)]
    words.set_axis_off()
    words.text(0, 1, "\n\n".join(fill(line, 58) for line in lines), va="top", fontsize=10.5)
    figure.suptitle(f"{run.config.task}, {run.config.arch}, seed {run.config.seed}", fontsize=14)
    text = "The causal sections below, in one picture."
    return Section(text, [], [Picture("summary", figure, "What is readable, what is used, who writes, when.")])
