"""The commands: each checks what was asked, calls what does the work, and prints.

What only one command needs is imported by it: a figure's library is no part of a run.
"""

from __future__ import annotations

import argparse
import difflib
import json
import math
import sys
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from bench import SAMPLES, campaign, external, records, reports, stop
from bench.board import archives, results, site, submissions, terminal
from bench.board.files import Found, compose_pages, merge_records, require_ours
from bench.board.overview import Board, make_board
from bench.board.rows import make_rankings
from bench.claims import markdown as claims_markdown
from bench.claims import published
from bench.claims.verdicts import Verdict, judge
from bench.config import CHOICES, FIXED, RunConfig, parse_settings, task_parameters
from bench.device import cores, gpu_problem, gpus, pick_device, require_compiler, threads
from bench.engine import dispatch
from bench.engine.events import tensorboard_writer
from bench.engine.grid import make_configs
from bench.engine.plan import Plan
from bench.engine.progress import Bar
from bench.engine.tune import MOST_RATES, tune
from bench.library import Estimate
from bench.presets import PRESETS
from bench.registry import BadInput
from bench.text import number, plural
from models import hf
from models.base import ARCHS, count_built
from models.kernels.attention import BACKENDS
from tasks.base import TASKS

SHOWN = 20  # differences of one record
ELSEWHERE = "asked for, of the cluster"  # why a run's device is not of this machine
BOARD, CLAIMS = "leaderboard.md", "CLAIMS.md"


def run_command(options: argparse.Namespace, console: Console) -> int:
    device, why = where(options)
    chosen = options.preset == "auto"
    if chosen:
        options.preset = "paper" if device == "cuda" else "quick"
    configs = make_configs(options, device, try_code=why != ELSEWHERE)
    compiled = [c for c in configs if c.attention == "triton" or ARCHS.facts(c.arch).get("triton")]
    if options.engine != "ray" and device == "cuda" and compiled:
        require_compiler()
    jobs = options.jobs or (1_000 if options.engine == "ray" else cores() if device == "cpu" else max(1, gpus()))
    plan = make_plan(options, device, jobs)
    records.prepare_folder(options.out)
    for name in (BOARD, CLAIMS):
        require_ours(options.out / name)
    if chosen:
        hint = " in use (docker: --gpus all)" if why.endswith("no CUDA device") else ""
        reason = why.removeprefix("auto: ") + hint if options.device == "auto" else f"the device is {device}"
        console.print(f"preset {options.preset}, because {reason}", highlight=False, soft_wrap=True)
    first = configs[0]
    places = (
        "as many as fit" if options.engine == "ray" and not options.jobs else min(jobs * options.per_gpu, len(configs))
    )
    console.print(
        f"{plural(len(configs), 'run')}, preset {first.preset}, on {device} in {first.precision} ({why}), "
        f"{places} at a time",
        highlight=False,
        soft_wrap=True,
    )
    if len(configs) == 1:
        parameters = count_built(first.make_model)
        version = TASKS.facts(first.task)["version"]
        console.print(
            f"{first.task} v{version}, {first.label}, {parameters:,} parameters (budget {first.budget():,}), "
            f"{first.steps:,} steps, {first.supervision} supervision",
            highlight=False,
        )
    with stop.catch_signals():
        if options.tune:
            console.print(
                f"tuning first: two blocks and 3 to {MOST_RATES} learning rates a row, on seeds of their own",
                highlight=False,
            )
            configs = tune(configs, plan, console)
        done = dispatch.run_all(configs, plan, console)
    terminal.show(make_rankings(done), console, pictures=True)
    print(
        "\nErrors in bits against the exact posterior. Rows without a rank are references; -: no better than guessing; "
        "†: other settings than the rest."
    )
    good = [record for record in done if record.ok]
    failed = len(good) < len(done)
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
        return "cuda", ELSEWHERE
    if options.engine == "ray" and options.device.startswith("cuda:"):
        raise BadInput(f"{options.device} is a GPU of this machine: Ray chooses its own, with --device cuda")
    return pick_device(options.device)


def make_plan(options: argparse.Namespace, device: str, jobs: int) -> Plan:
    if options.engine != "ray" and (options.address or options.gpus_per_run or options.memory_per_run):
        raise BadInput("--address, --gpus-per-run and --memory-per-run are for --engine ray")
    gpus = options.gpus_per_run if options.gpus_per_run is not None else float(device == "cuda")
    sane = gpus >= 0 and options.memory_per_run >= 0 and math.isfinite(gpus + options.memory_per_run)
    if not sane or (device == "cuda" and gpus == 0):
        raise BadInput(f"a run on {device} cannot have {gpus:g} GPUs and {options.memory_per_run:g} GB")
    if options.per_gpu > 1 and (options.engine == "ray" or device == "cpu"):
        why = "on Ray use --gpus-per-run" if options.engine == "ray" else "these runs are on a CPU"
        raise BadInput(f"--per-gpu is for the GPUs of this machine; {why}")
    if options.tensorboard:
        tensorboard_writer()  # is it installed? Before anything is started over
    return Plan(
        out=options.out.resolve() if options.engine == "ray" else options.out, jobs=jobs, per_gpu=options.per_gpu,
        fresh=options.fresh, verbose=options.verbose, tensorboard=options.tensorboard, engine=options.engine,
        address=options.address, gpus=gpus, memory=int(options.memory_per_run * 1e9),
        snapshots=options.checkpoints or 0, code=external.loaded_code(),
    )  # fmt: skip


def read_records(folders: list[Path]) -> Found:
    found = merge_records(folders)
    for path, reason in found.problems:
        print(f"bench: skipped {path}: {reason}", file=sys.stderr)
    return found


def write_board(out: Path, console: Console) -> None:
    """The pages of a results folder after its runs."""
    found = read_records([out])
    board = make_board(found.records, found.reported)
    verdicts = judge_claims(board, reports.find([out], board.records))
    for path, text in pages(out / BOARD, board, verdicts).items():
        records.write_whole(path, text.encode())
    console.print(
        f"wrote {out / BOARD}, from all {len(found.records)} records in {out}", highlight=False, soft_wrap=True
    )


def pages(target: Path, board: Board, verdicts: list[Verdict], figures_too: bool = False) -> dict[Path, str]:
    """All pages by their paths, with the published claims."""
    found = compose_pages(board, target.name, figures_too) | {CLAIMS: claims_markdown.render(verdicts)}
    return {target.parent / name: text for name, text in found.items()}


def judge_claims(board: Board, found: Mapping[str, reports.Found]) -> list[Verdict]:
    readable = {run: each.report for run, each in found.items() if each.report}
    return judge(published.CLAIMS, board.records, readable)


def evaluate_command(options: argparse.Namespace, console: Console) -> int:
    from bench import elsewhere

    task = external.find(TASKS, options.task)  # first: an external task has settings of its own
    settings = parse_settings(options.settings)
    loaded = elsewhere.load(options.model)
    is_new = not options.out.exists()
    records.prepare_folder(options.out)  # first: scoring takes minutes
    try:
        record, scored = elsewhere.evaluate(loaded, task, options.preset, options.device, options.horizons, settings)
    except BadInput:
        if is_new:
            options.out.rmdir()
        raise
    terminal.show(make_rankings([record]), console, pictures=True)
    print(f"\n95 % intervals over {record.config.sequences:,} sequences, in bits:")
    for k, at in scored.items():
        for part, metrics in at.metrics.items():
            cells = (f"{name} {number(e.value)} {_bounds(e)}" for name, e in metrics.items())
            print(f"K={k} {part}: {', '.join(cell.rstrip() for cell in cells)}")
    print("Trained elsewhere: the row is shown and never ranked.")
    path = records.write(options.out, record, None)
    console.print(f"wrote {path}", highlight=False, soft_wrap=True)
    return 0


def _bounds(estimate: Estimate) -> str:
    return "" if estimate.low is None or estimate.high is None else f"[{number(estimate.low)}, {number(estimate.high)}]"


def board_command(options: argparse.Namespace, console: Console) -> int:
    target = options.out or options.runs[0] / BOARD
    check_board_options(options, target)
    found = read_records(options.runs)
    known = {record.id for record in (*found.records, *found.reported)}
    tars = [path for path in options.add if path.suffix == ".tar"]
    added, refused = submissions.add([path for path in options.add if path not in tars], options.runs[0], known)
    for tar in tars:
        more, bad = archives.add(tar, options.runs[0], known | {record.id for record in added.values()})
        added, refused = added | more, refused + bad
    for path in added:
        console.print(f"added {path}: self-reported until verified", highlight=False, soft_wrap=True)
    for path, reason in refused:
        print(f"bench: refused {path}: {reason}", file=sys.stderr)
    everything = [*found.records, *found.reported, *added.values()]
    if not (everything or found.problems or refused):
        raise BadInput(f"no records in {', '.join(map(str, options.runs))}")
    board = make_board(found.records, [*found.reported, *added.values()])
    written = find_reports(options.runs, board)
    verdicts = judge_claims(board, written)
    wanted = pages(target, board, verdicts, options.figures)
    for path in wanted:
        if path.suffix not in (".csv", ".svg"):  # they have no mark, and need none
            require_ours(path)
    if options.check:
        differing = [path for path, text in wanted.items() if differs(path, text, console)]
        return 1 if differing or found.problems else 0
    terminal.show(board.rankings, console)
    print()
    records.prepare_folder(target.parent)
    if options.csv:
        wanted[options.csv] = results.render(board)
    for path, text in wanted.items():
        records.write_whole(path, text.encode())
    console.print(f"wrote {target} and the pages beside it: {len(everything)} records", highlight=False, soft_wrap=True)
    if options.csv:
        console.print(f"wrote {options.csv}", highlight=False, soft_wrap=True)
    if options.html:
        claims = [{**verdict._asdict(), "source": published.SOURCES[verdict.source].name} for verdict in verdicts]
        site.write(options.html, options.runs, board, claims, written)
        console.print(f"wrote {options.html / 'index.html'}: open it", highlight=False, soft_wrap=True)
    return 1 if found.problems or refused else 0


def find_reports(runs: list[Path], board: Board) -> dict[str, reports.Found]:
    sent = [folder / records.SELF_REPORTED for folder in runs]
    return reports.find(sent, board.reported) | reports.find(runs, board.records)


def check_board_options(options: argparse.Namespace, target: Path) -> None:
    """Refuse what cannot be done before anything is written."""
    for folder in options.runs:
        if not folder.is_dir():
            raise BadInput(f"no folder {folder}: `bench run` makes one, or name another with --runs")
    for name, asked in (("--add", options.add), ("--html", options.html), ("--csv", options.csv)):
        if asked and options.check:
            raise BadInput(f"--check writes nothing, {name} does: use one of them")
    if options.add and len(options.runs) > 1:
        raise BadInput(f"--add takes one folder of records, not {len(options.runs)}: name one with --runs")
    for path in (target, target.parent / CLAIMS):
        require_ours(path)
        if options.check and not path.exists():
            raise BadInput(f"no {path} to check: name the leaderboard with --out")
    if options.html:
        site.prepare(options.html)
    if options.csv:
        records.prepare_file(options.csv, "--csv")
    for path in options.add:
        if not path.is_file():
            raise BadInput(f"--add {path}: no such file")


def differs(path: Path, text: str, console: Console) -> bool:
    """Whether a generated page is out of date; the difference is shown."""
    written = path.read_text() if path.exists() else ""
    for line in difflib.unified_diff(written.splitlines(), text.splitlines(), str(path), "the records", lineterm=""):
        print(line)
    if written != text:
        print(f"bench: {path} does not match the records", file=sys.stderr)
    else:
        console.print(f"{path} matches the records", highlight=False, soft_wrap=True)
    return written != text


def report_command(options: argparse.Namespace, console: Console) -> int:
    from bench.report import report

    if options.samples < 2:
        raise BadInput(f"--samples must be at least 2, not {options.samples}")
    external.load_words(options.arch, options.task)
    paths = [path for name in options.run for path in report.find_all(name, options.runs)]
    if len(paths) == 1 and not options.compare:
        return write_report(paths[0], options.out, console, options.samples)
    return write_reports(paths, options, console)


def write_reports(paths: list[Path], options: argparse.Namespace, console: Console) -> int:
    """A report beside each record, and one of all of them; 1 if a section failed."""
    from bench.report import report, seeds

    found = [report.load(path).record for path in paths]
    seeds.group(found, options.compare)  # refuses before any work
    failed = max([write_report(path, None, console, options.samples) for path in paths])
    written = {r.id: reports.read(p.with_suffix("") / records.REPORT, r.id) for p, r in zip(paths, found, strict=True)}
    near = paths[0].parent
    known = [*read_records([options.runs]).records, *found]
    out = options.out or (near.parent / "compare" if options.compare else near / "seeds")
    seeds.write(found, written, out, options.compare, known)
    console.print(f"wrote {out / 'report.md'}", highlight=False, soft_wrap=True)
    return failed


def write_report(path: Path, out: Path | None, console: Console, samples: int = SAMPLES) -> int:
    """One run's page, by default in a folder beside its record; 1 if a section failed."""
    from bench.report import report
    from bench.report.diagnostics.base import Literature

    literature = Literature(published.NUMBERS, published.LPE_SETTINGS, published.STATEMENTS)
    out = out or path.with_suffix("")
    with threads(1), Bar(console) as bar:  # rollouts are small steps: more threads would mostly wait for each other
        failed = report.write(report.load(path, samples, bar, literature), out)
    for title in failed:
        print(f"bench: section failed: {title}", file=sys.stderr)
    console.print(f"wrote {out / 'report.md'}", highlight=False, soft_wrap=True)
    return 1 if failed else 0


def verify_command(options: argparse.Namespace, console: Console) -> int:
    """0 if records hold and the others have no weights; 1 if a number differs or no record could be checked."""
    from bench.check import verify

    external.load_words(options.arch, options.task)
    paths = verify.find(options.paths)
    if options.sample is not None:
        if options.sample < 1:
            raise BadInput(f"--sample must be at least 1, not {options.sample}")
        paths = verify.sample(paths, options.sample)
    counts = {True: 0, False: 0, None: 0}
    without_weights = 0
    for path in paths:
        verdict = verify.verify(path, options.rerun)
        counts[verdict.holds] += 1
        without_weights += verdict.lacks_weights
        word = {True: "holds", False: "DOES NOT HOLD", None: "not verified"}[verdict.holds]
        print(f"{path}: {word} ({verdict.how})")
        for line in verdict.differences[:SHOWN]:
            print(f"  {line}")
        if len(verdict.differences) > SHOWN:
            print(f"  and {len(verdict.differences) - SHOWN} more")
    print(f"{counts[True]} hold, {counts[False]} do not, {counts[None]} not verified; times and memory are not checked")
    return 0 if counts[True] and counts[True] + without_weights == len(paths) else 1


def list_command(options: argparse.Namespace, console: Console) -> int:
    if options.arch:
        return list_library(options.arch, console)
    for title, registry in (("task", TASKS), ("architecture", ARCHS)):
        table = Table(title, "what it is", box=None, header_style="bold")
        for name in registry.names():
            facts = registry.facts(name)
            document = (sys.modules[registry[name].__module__].__doc__ or "").split("\n")[0] if title == "task" else ""
            table.add_row(name, facts.get("note", document))
        for entry in external.offered(registry):
            package = f"{entry.dist.name} {entry.dist.version}" if entry.dist else "unknown"
            taken = ", which has a name of ours and cannot be used" if entry.name in registry else ""
            table.add_row(entry.name, f"from package {package} ({entry.module}){taken}")
        if registry is ARCHS:
            table.add_row(f"{hf.PREFIX}TYPE", "models of the transformers library: bench list --arch hf")
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


def list_library(name: str, console: Console) -> int:
    if name != "hf":
        raise BadInput(f"bench list --arch takes hf, the models of the transformers library, not '{name}'")
    version, works, refused = hf.TYPES["transformers"], hf.TYPES["works"], hf.TYPES["refused"]
    larger = hf.TYPES["larger"]
    count = len(works) + len(larger)
    console.print(f"Tried with transformers {version}: {count} types work, {len(refused)} do not.\n")
    console.print(", ".join(hf.PREFIX + kind for kind in works), highlight=False)
    console.print("\nWith larger budgets only (its least number of parameters on hmm):")
    console.print(", ".join(f"{hf.PREFIX}{kind} ({least:,})" for kind, least in larger.items()), highlight=False)
    console.print()
    table = Table("refused", "why", box=None, header_style="bold")
    for kind, reason in refused.items():
        table.add_row(hf.PREFIX + kind, Text(reason))
    console.print(table)
    return 0


def kernels_command(options: argparse.Namespace, console: Console) -> int:
    from bench.check import kernels

    if options.static:
        return kernels.report_static(options.out, console)
    if options.out is not None:
        raise BadInput("--out goes with --static")
    return kernels.report(console)


def gpu_command(options: argparse.Namespace, console: Console) -> int:
    size = campaign.REHEARSAL if options.rehearse else campaign.GPU
    if options.seeds < 1:
        raise BadInput(f"--seeds must be at least 1, not {options.seeds}")
    if options.hours is not None and not options.hours >= 0:
        raise BadInput(f"--hours must be at least 0, not {options.hours:g}")
    device = "cpu"
    if not options.rehearse:
        if problem := gpu_problem():
            raise BadInput(f"{problem}. Try the command on the CPU with --rehearse")
        device, why = pick_device("auto")
        if device != "cuda":
            raise BadInput(f"{why.removeprefix('auto: ')}. Try the command on the CPU with --rehearse")
        require_compiler()
    out = options.out or Path(size.name)
    records.prepare_folder(out)
    plan = Plan(out=out, jobs=cores() if device == "cpu" else gpus())
    with stop.catch_signals():
        return campaign.Campaign(out, size, plan, device, console).run(options.seeds, options.hours)


def perf_command(options: argparse.Namespace, console: Console) -> int:
    from bench.check import perf

    if options.json is not None:
        records.prepare_file(options.json, "--json")
    with console.status("measuring") as status:
        found = perf.measure(lambda what: status.update(f"measuring: {what}"))
    console.print(perf.report(found))
    if options.json is not None:
        records.write_whole(options.json, (json.dumps(found, indent=1) + "\n").encode())
    return 0


COMMANDS = {
    "run": run_command,
    "evaluate": evaluate_command,
    "board": board_command,
    "report": report_command,
    "verify": verify_command,
    "list": list_command,
    "kernels": kernels_command,
    "gpu": gpu_command,
    "perf": perf_command,
}
