"""Several reports in one: the seeds of a row with intervals, or rows side by side.

In: reports of single runs. Out: report.md with headline numbers (mean and 95 % interval over seeds, by Student's t) and
verdicts on statements, by the rules of bench/statements.py. Errors and steps differ by factors between seeds, so their
intervals are of the logarithm.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

from bench.config import RunConfig
from bench.records import RunRecord, prepare_folder, write_whole
from bench.registry import BadInput
from bench.report.diagnostics.base import GREY, MODEL, Picture, Section, Table, canvas
from bench.report.report import show
from bench.reports import Cell, Report
from bench.statements import (
    AFTER_0,
    EVIDENCE,
    NEAR,
    PARTIAL,
    SEEDS,
    STATEMENTS,
    Answered,
    Number,
    cell,
    forms,
    judge,
    least_error,
    probe,
    question,
)
from bench.stats import interval, mean_interval

QUANTITIES = ("identity", "eliminated", "belief", "entropy")
AFTER: Mapping[str, Cell] = {"place": AFTER_0, "positions": "evidence"}
HEADLINES = (
    *(Number(f"probe for {q}", probe(q, "axis", "probe")) for q in QUANTITIES),
    *(Number(f"probe for {q}, random twin", probe(q, "axis", "random twin")) for q in QUANTITIES),
    *(Number(f"KL without the axis of {q}", probe(q, "axis", "KL once removed"), True) for q in QUANTITIES),
    *(
        Number(f"KL without all that varies with {q}", probe(q, "covarying", "KL once removed"), True)
        for q in QUANTITIES
    ),
    Number("KL without a random direction", probe("entropy", "axis", "random: mean"), True),
    Number("KL without a matched direction", probe("entropy", "axis", "matched: mean"), True),
    Number("overlap of readout and frame, over null", cell("overlap", {"place": "embedding"}, "ratio")),
    Number("the most that it can be", cell("overlap", {"place": "embedding"}, "ceiling")),
    *(Number(f"swap margin, {name}", cell("swap", EVIDENCE, name)) for name in ("readout", "random")),
    *(Number(f"swap margin, {name} after layer 0", cell("swap", AFTER, name)) for name in ("frame", "whole")),
    Number("writes and costs, Spearman", cell("writers_rank", {"write": "in the frame"}, "Spearman with cost")),
    Number("the same, given the whole write", cell("writers_rank", {"write": PARTIAL}, "Spearman with cost")),
    Number("overlap in a random twin", cell("overlap", {"place": "embedding"}, "random twins")),
    *(Number(f"forms at step: {what}", forms(what), True) for what in ("overlap", "margin", "log error")),
)


def same_row(config: RunConfig) -> RunConfig:
    return replace(config, seed=0)


def group(records: Sequence[RunRecord], compare: bool) -> dict[str, list[RunRecord]]:
    """The records of each row by its architecture, or a refusal."""
    tasks = sorted({record.config.task for record in records})
    if len(tasks) > 1:
        raise BadInput(f"these runs are of several tasks: {', '.join(tasks)}. Report on one task at a time")
    asked = [(record.config.preset, question(record.config)) for record in records]
    if any(each != asked[0] for each in asked):
        raise BadInput("these runs differ in preset, supervision, horizon or task parameters: they do not compare")
    rows: dict[str, list[RunRecord]] = {}
    for record in records:
        rows.setdefault(record.config.arch, []).append(record)
    for name, members in rows.items():
        if len({same_row(record.config).id() for record in members}) > 1:
            raise BadInput(f"these runs of {name} differ in more than their seed; give the seeds of one row")
        if len({record.id for record in members}) < len(members):
            raise BadInput(f"a run of {name} is given twice")
    if len(rows) > 1 and not compare:
        raise BadInput(f"these runs are of several architectures: {', '.join(rows)}. Put them side by side: --compare")
    if len(rows) == 1 and compare:
        raise BadInput(f"--compare takes runs of several architectures, and all of these are of {next(iter(rows))}")
    return rows


def tell(values: Sequence[float], by_factors: bool) -> str:
    """A mean with its interval, or the one value there is."""
    if not values:
        return ""
    bounds = interval(values) if by_factors else mean_interval(values) if len(values) > 1 else None
    return f"{mean(values):.3g}" + (f" ({bounds[0]:.3g} to {bounds[1]:.3g})" if bounds else "")


def summarise(rows: Mapping[str, list[Answered]], known: Sequence[RunRecord]) -> Section:
    best = {name: least_error(known, of[0].record.config) for name, of in rows.items()}
    table: list[list[Any]] = [["seeds", *(", ".join(str(r.record.config.seed) for r in of) for of in rows.values())]]
    table.append(["error (bits)", *(tell([run.record.error_bits for run in of], True) for of in rows.values())])
    table.append(["least known for the task (bits)", *(f"{error:.3g}" for error in best.values())])
    for headline in HEADLINES:
        cells = [[v for r in of if (v := headline.read(r.report)) is not None] for of in rows.values()]
        if any(cells):
            table.append([headline.name, *(tell(values, headline.by_factors) for values in cells)])
    verdicts: list[list[Any]] = []
    for id, statement in STATEMENTS.items():
        verdicts += [[id, statement.rule, name, *judge(statement.holds, of, best[name])] for name, of in rows.items()]
    text = (
        f"Mean and 95 % interval over seeds. A statement is decided by at least {SEEDS} seeds that agree, of a row "
        f"whose errors are at most {NEAR:g} times the least that is known for its task."
    )
    tables = [
        Table("headlines", ["number", *rows], table),
        Table("statements", ["id", "holds if", "row", "verdict", "seeds"], verdicts),
    ]
    return Section(text, tables, [Picture("headlines", draw(rows), "KL once a quantity is removed; bars span seeds.")])


def draw(rows: Mapping[str, list[Answered]]) -> Any:
    """For each quantity and row the KL without its axis, and without all that varies with it, seed by seed."""
    figure, axes = canvas(2.6 * len(QUANTITIES) + 1, 3.4, 1, len(QUANTITIES), sharey=True, squeeze=False)
    for axis, quantity in zip(axes[0], QUANTITIES, strict=True):
        for x, runs in enumerate(rows.values()):
            for removed, colour, shift in (("axis", GREY, -0.12), ("covarying", MODEL, 0.12)):
                read = probe(quantity, removed, "KL once removed")
                values = [v for run in runs if (v := read(run.report)) is not None]
                axis.scatter([x + shift] * len(values), values, color=colour, s=24, label=removed if x == 0 else None)
        axis.set(yscale="log", title=quantity, xticks=range(len(rows)), xlim=(-0.5, len(rows) - 0.5))
        axis.set_xticklabels(list(rows), rotation=20, ha="right", fontsize=8)
    axes[0][0].set_ylabel("KL after removal (bits)")
    axes[0][-1].legend(fontsize=7)
    return figure


def write(
    records: Sequence[RunRecord], reports: Mapping[str, Report], out: Path, compare: bool, known: Sequence[RunRecord]
) -> None:
    """`known` are the runs among which the least error of the task is found."""
    rows = {
        name: [Answered(record, reports[record.id]) for record in members]
        for name, members in group(records, compare).items()
    }
    section = summarise(rows, known)
    prepare_folder(out)
    config = records[0].config
    title = f"# {config.task}, {'architectures side by side' if compare else config.arch}"
    write_whole(out / "report.md", ("\n\n".join([title, *show(section, out)]) + "\n").encode())
