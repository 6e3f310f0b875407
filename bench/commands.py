"""The commands: each checks what was asked, calls what does the work, and prints.

What only one command needs is imported by it: a figure's library is no part of a run.
"""

from __future__ import annotations

import argparse
import difflib
import itertools
import json
import sys
from dataclasses import fields
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from bench import SAMPLES, board, engine, ledger, page, records, stop, submissions, terminal
from bench.config import CHOICES, FIXED, RunConfig, compose, parse_settings, task_parameters
from bench.device import cores, pick_device, require_compiler
from bench.evidence import read_reports
from bench.log import board_writer
from bench.presets import PRESETS
from bench.progress import Bar
from bench.registry import BadInput, unknown
from bench.tune import GRID, tune
from models.base import ARCHS, count_built
from models.kernels.attention import BACKENDS
from tasks.base import TASKS

SHOWN = 20  # differences of one record
BOARD, CLAIMS = "leaderboard.md", "CLAIMS.md"  # the second beside every leaderboard, whatever its name


def run_command(options: argparse.Namespace, console: Console) -> int:
    device, why = where(options)
    chosen = options.preset == "auto"
    if chosen:
        options.preset = "paper" if device == "cuda" else "quick"
    configs = make_configs(options)
    compiled = [c for c in configs if c.attention == "triton" or ARCHS.facts(c.arch).get("triton")]
    if options.engine != "ray" and device == "cuda" and compiled:
        require_compiler()
    jobs = options.jobs or (1_000 if options.engine == "ray" else cores() if device == "cpu" else 1)
    plan = make_plan(options, device, jobs)
    records.prepare_folder(options.out)
    for name in (BOARD, CLAIMS):
        require_ours(options.out / name)
    if chosen:
        hint = " in use (docker: --gpus all)" * why.endswith("no CUDA device")
        reason = why.removeprefix("auto: ") + hint if options.device == "auto" else f"the device is {device}"
        console.print(f"preset {options.preset}, because {reason}", highlight=False, soft_wrap=True)
    first = configs[0]
    console.print(
        f"{len(configs)} run{'s' * (len(configs) > 1)}, preset {first.preset}, on {device} in fp32 ({why}), "
        f"{'as many as fit' if options.engine == 'ray' and not options.jobs else min(jobs, len(configs))} at a time",
        highlight=False,
        soft_wrap=True,
    )
    if len(configs) == 1:
        parameters = count_built(first.make_model)
        version = TASKS.facts(first.task)["version"]
        console.print(
            f"{first.task} v{version}, {first.arch}, {parameters:,} parameters (budget {first.budget():,}), "
            f"{first.steps:,} steps, {first.supervision} supervision",
            highlight=False,
        )
    with stop.watched():
        if options.tune:
            console.print(f"tuning first: {len(GRID)} learning rates a row, on a seed of its own", highlight=False)
            configs = tune(configs, plan, console)
        results = engine.run_all(configs, plan, console)
    terminal.show(results, console, pictures=True)
    print(
        "\nErrors in bits against the exact posterior. Rows without a rank are references; -: no better than guessing; "
        "†: other settings than the rest."
    )
    good = [record for record in results if record.status == "ok"]
    failed = len(good) < len(results)
    if options.report:
        for record in good:
            try:
                failed |= write_report(options.out / record.path, None, console) > 0
            except BadInput as error:  # of an earlier run whose weights are gone: the others have theirs
                print(f"bench: no report: {error}", file=sys.stderr)
                failed = True
    write_board(options.out, console)  # after the reports: the claims are read from them
    return 1 if failed else 0


def where(options: argparse.Namespace) -> tuple[str, str]:
    """The device of the runs, and why. On Ray the machine at hand need not have what the cluster has."""
    if options.engine == "ray" and options.device == "cuda":
        return "cuda", "asked for, of the cluster"
    return pick_device(options.device)


def make_plan(options: argparse.Namespace, device: str, jobs: int) -> engine.Plan:
    if options.engine != "ray" and (options.address or options.gpus_per_run or options.memory_per_run):
        raise BadInput("--address, --gpus-per-run and --memory-per-run are for --engine ray")
    gpus = options.gpus_per_run if options.gpus_per_run is not None else float(device == "cuda")
    if gpus < 0 or options.memory_per_run < 0 or (device == "cuda" and gpus == 0):
        raise BadInput(f"a run on {device} cannot have {gpus:g} GPUs and {options.memory_per_run:g} GB")
    if options.tensorboard:
        board_writer()  # is it installed? Before anything is started over
    return engine.Plan(
        out=options.out.resolve() if options.engine == "ray" else options.out, jobs=jobs, fresh=options.fresh,
        verbose=options.verbose, tensorboard=options.tensorboard, engine=options.engine, address=options.address,
        gpus=gpus, memory=int(options.memory_per_run * 1e9), snapshots=options.checkpoints or 0,
    )  # fmt: skip


def write_board(out: Path, console: Console) -> None:
    found, reported = read_records([out])[:2]
    for path, text in pages([out], out / BOARD, found, reported).items():
        records.write_whole(path, text.encode())
        console.print(f"wrote {path}, from all {len(found)} records in {out}", highlight=False, soft_wrap=True)


def read_records(folders: list[Path]) -> tuple[list[records.RunRecord], list[records.RunRecord], bool]:
    """Our own records, those that others report, and whether any file was skipped, which is said.

    A run that stands in several folders counts once, as the first of them has it; ours before what others report.
    """
    found: dict[str, records.RunRecord] = {}
    reported: dict[str, records.RunRecord] = {}
    skipped = []
    for folder in folders:
        ours, problems = records.read_all(folder)
        theirs, strange = submissions.read_submissions(folder)
        found |= {record.id: record for record in ours if record.id not in found}
        reported |= {record.id: record for record in theirs if record.id not in reported}
        skipped += [*problems, *strange]
    for path, reason in skipped:
        print(f"bench: skipped {path}: {reason}", file=sys.stderr)
    return list(found.values()), [r for r in reported.values() if r.id not in found], bool(skipped)


def make_configs(options: argparse.Namespace) -> list[RunConfig]:
    """The grid that the options span, every point checked before the first one runs."""
    if options.preset not in PRESETS:
        raise unknown("preset", options.preset, [*PRESETS, "auto"])
    preset = PRESETS[options.preset]
    seeds = preset.seeds if options.seeds is None else options.seeds
    for name, value in (("--seeds", seeds), ("--jobs", options.jobs), ("--checkpoints", options.checkpoints)):
        if value is not None and value < 1:
            raise BadInput(f"{name} must be at least 1, not {value}")
    settings = parse_settings(options.settings)
    device, _ = where(options)
    if options.supervision and "supervision" in settings:
        raise BadInput("supervision is given twice: with --supervision and with --set")
    supervision = options.supervision or [settings.get("supervision")]
    tasks = TASKS.names() if "all" in (options.task or ()) else options.task or preset.tasks
    archs = ARCHS.names() if "all" in (options.arch or ()) else options.arch or preset.archs
    grid = itertools.product(tasks, archs, supervision, range(seeds))
    configs: dict[str, RunConfig] = {}
    for task, arch, track, seed in grid:
        overrides = {**settings, **({"supervision": track} if track else {})}
        config = compose(preset.name, arch, task, seed, device, overrides)
        configs[config.id()] = config
    return list(configs.values())


def board_command(options: argparse.Namespace, console: Console) -> int:
    for folder in options.runs:
        if not folder.is_dir():
            raise BadInput(f"no folder {folder}: `bench run` makes one, or name another with --runs")
    for name, asked in (("--add", options.add), ("--html", options.html)):
        if asked and options.check:
            raise BadInput(f"--check writes nothing, {name} does: use one of them")
    if options.add and len(options.runs) > 1:
        raise BadInput(f"--add takes one folder of records, not {len(options.runs)}: name one with --runs")
    target = options.out or options.runs[0] / BOARD
    for path in (target, target.parent / CLAIMS):
        require_ours(path)
        if options.check and not path.exists():
            raise BadInput(f"no {path} to check: name the leaderboard with --out")
    if options.html:
        page.prepare(options.html)
    for path in options.add:
        if not path.is_file():
            raise BadInput(f"--add {path}: no such file")
    added, refused = submissions.add(options.add, options.runs[0])
    for path in added:
        console.print(f"added {path}: self-reported until verified", highlight=False, soft_wrap=True)
    for path, reason in refused:
        print(f"bench: refused {path}: {reason}", file=sys.stderr)
    found, reported, problems = read_records(options.runs)
    if not (found or reported or problems or refused):
        raise BadInput(f"no records in {', '.join(map(str, options.runs))}")
    wanted = pages(options.runs, target, found, reported)
    if options.figures:
        from bench import figures

        wanted |= {target.parent / f"{name}.svg": image for name, image in figures.draw(found).items()}
    if not options.check:
        terminal.show([*found, *reported], console, marked=frozenset(record.id for record in reported))
        print()
        records.prepare_folder(target.parent)
        for path, text in wanted.items():
            records.write_whole(path, text.encode())
            console.print(f"wrote {path}: {len(found) + len(reported)} records", highlight=False, soft_wrap=True)
        if options.html:
            page.write(options.html, options.runs, found, reported)
            console.print(f"wrote {options.html / 'index.html'}: open it", highlight=False, soft_wrap=True)
        return 1 if problems or refused else 0
    return 1 if sum(differs(path, text, console) for path, text in wanted.items()) or problems else 0


def require_ours(path: Path) -> None:
    """Nothing is written over but what bench board has written, or what is empty."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return
    except OSError as error:
        raise BadInput(f"cannot write {path}: {error.strerror}. Name another place with --out") from error
    if text and board.GENERATED not in text:
        raise BadInput(f"{path} is not a page of bench board: name another place with --out")


def pages(
    runs: list[Path], target: Path, found: list[records.RunRecord], reported: list[records.RunRecord]
) -> dict[Path, str]:
    """What the records say: the leaderboard, and beside it the ledger of published claims."""
    claims = ledger.judge(found, read_reports(runs, found))
    return {target: board.render(found, reported), target.parent / CLAIMS: ledger.render(claims)}


def differs(path: Path, text: str, console: Console) -> bool:
    """Whether a generated page is not what it would be now; the difference is shown."""
    written = path.read_text() if path.exists() else ""
    for line in difflib.unified_diff(written.splitlines(), text.splitlines(), str(path), "the records", lineterm=""):
        print(line)
    if written != text:
        print(f"bench: {path} does not say what the records say", file=sys.stderr)
    else:
        console.print(f"{path} says what the records say", highlight=False, soft_wrap=True)
    return written != text


def report_command(options: argparse.Namespace, console: Console) -> int:
    from bench import report

    if options.samples < 2:
        raise BadInput(f"--samples must be at least 2, not {options.samples}")
    return write_report(report.find(options.run, options.runs), options.out, console, options.samples)


def write_report(path: Path, out: Path | None, console: Console, samples: int = SAMPLES) -> int:
    """One run's page, by default in a folder beside its record; 1 if a section failed."""
    from bench import report

    out = out or path.with_suffix("")
    torch.set_num_threads(1)  # rollouts are small steps: threads would wait for each other longer than they work
    with Bar(console) as bar:
        failed = report.write(report.load(path, samples, bar), out)
    for title in failed:
        print(f"bench: section failed: {title}", file=sys.stderr)
    console.print(f"wrote {out / 'report.md'}", highlight=False, soft_wrap=True)
    return 1 if failed else 0


def verify_command(options: argparse.Namespace, console: Console) -> int:
    """0 if every record holds; 1 if a number differs or a record could not be checked."""
    from bench import verify

    paths = verify.find(options.paths)
    if options.sample is not None:
        if options.sample < 1:
            raise BadInput(f"--sample must be at least 1, not {options.sample}")
        paths = verify.sample(paths, options.sample)
    counts = {True: 0, False: 0, None: 0}
    for path in paths:
        verdict = verify.verify(path, options.rerun)
        counts[verdict.holds] += 1
        word = {True: "holds", False: "DOES NOT HOLD", None: "not verified"}[verdict.holds]
        print(f"{path}: {word} ({verdict.how})")
        for line in verdict.differences[:SHOWN]:
            print(f"  {line}")
        if len(verdict.differences) > SHOWN:
            print(f"  and {len(verdict.differences) - SHOWN} more")
    print(f"{counts[True]} hold, {counts[False]} do not, {counts[None]} not verified; times and memory are not checked")
    return 0 if counts[True] == len(paths) else 1


def list_command(options: argparse.Namespace, console: Console) -> int:
    for title, registry in (("task", TASKS), ("architecture", ARCHS)):
        table = Table(title, "what it is", box=None, header_style="bold")
        for name in registry.names():
            facts = registry.facts(name)
            document = (sys.modules[registry[name].__module__].__doc__ or "").split("\n")[0] if title == "task" else ""
            table.add_row(name, facts.get("note", document))
        console.print(table)
        console.print()
    table = Table("preset", "what it is", "seeds", "tasks", box=None, header_style="bold")
    for name, preset in PRESETS.items():
        table.add_row(name, preset.note, str(preset.seeds), ", ".join(preset.tasks))
    console.print(table)
    console.print()
    table = Table("for --set", "what can be set", box=None, header_style="bold")
    choices = {**CHOICES, "attention": BACKENDS}
    table.add_row("every run", ", ".join(f.name for f in fields(RunConfig) if f.name not in FIXED | choices.keys()))
    table.add_row("", ", ".join(f"{name}={'|'.join(allowed)}" for name, allowed in choices.items()))
    for name in TASKS.names():
        if parameters := task_parameters(name):
            table.add_row(name, ", ".join(f"{parameter}={value}" for parameter, value in parameters.items()))
    console.print(table)
    return 0


def kernels_command(options: argparse.Namespace, console: Console) -> int:
    from bench import kernels

    if options.static:
        return kernels.report_static(options.out, console)
    if options.out is not None:
        raise BadInput("--out goes with --static")
    return kernels.report(console)


def perf_command(options: argparse.Namespace, console: Console) -> int:
    from bench import perf

    if options.json is not None:
        if options.json.is_dir():
            raise BadInput(f"--json takes a file, and {options.json} is a folder")
        records.prepare_folder(options.json.parent, "--json")
    with console.status("measuring") as status:
        found = perf.measure(lambda what: status.update(f"measuring: {what}"))
    console.print(perf.report(found))
    if options.json is not None:
        records.write_whole(options.json, (json.dumps(found, indent=1) + "\n").encode())
    return 0


COMMANDS = {
    "run": run_command,
    "board": board_command,
    "report": report_command,
    "verify": verify_command,
    "list": list_command,
    "kernels": kernels_command,
    "perf": perf_command,
}
