"""The command line: parse, call, print."""

from __future__ import annotations

import argparse
import difflib
import itertools
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import torch
from rich.console import Console
from rich.table import Table

from bench import VERSION, board, engine, perf, records, report
from bench.config import RunConfig, compose, parse_settings
from bench.device import cores, pick_device
from bench.presets import PRESETS
from bench.progress import Bar
from bench.registry import BadInput, unknown
from models.base import ARCHS
from tasks.base import TASKS


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise BadInput(f"{message} (see {self.prog} --help)")


def main(arguments: Sequence[str] | None = None) -> int:
    console = Console()
    try:
        options = make_parser().parse_args(arguments)
        code: int = options.call(options, console)
        return code
    except BadInput as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("bench: stopped; finished runs are kept, and the same command goes on from there", file=sys.stderr)
        return 130
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output has left: nothing to say, and nobody to say it to
        return 141


def make_parser() -> Parser:
    parser = Parser(
        prog="bench",
        description="Which sequence architectures really perform Bayesian inference? Train them on tasks whose exact "
        "posterior is known, and measure the error in fractions of a bit.",
    )
    parser.add_argument("--version", action="version", version=f"tunnel-bench {VERSION}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    def command(name: str, call: object, summary: str, example: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(
            name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.", epilog=f"example: {example}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )  # fmt: skip
        sub.set_defaults(call=call)
        return sub

    run = command("run", run_command, "train and score architectures on tasks", "bench run --arch mlp --task hmm")
    run.add_argument("--arch", nargs="+", action="extend", metavar="A", help="architectures (default: the preset's)")
    run.add_argument("--task", nargs="+", action="extend", metavar="T", help="tasks (default: the preset's)")
    run.add_argument("--preset", default="quick", metavar="P", help=f"{', '.join(PRESETS)} (default: quick)")
    run.add_argument("--seeds", type=int, metavar="N", help="seeds 0..N-1 (default: the preset's)")
    run.add_argument("--supervision", nargs="+", metavar="S", help="posterior, sampled or both (default: the preset's)")
    run.add_argument("--device", default="auto", metavar="D", help="auto, cpu or cuda (default: auto)")
    run.add_argument("--jobs", type=int, metavar="N", help="runs at a time (default: one a core on a CPU, else 1)")
    run.add_argument("--out", type=Path, default=Path("results"), metavar="DIR", help="default: results")
    run.add_argument("--set", nargs="+", action="extend", default=[], metavar="KEY=VALUE", dest="settings",
                     help="change a setting or a task's parameter, e.g. --set steps=2000 size=10")  # fmt: skip

    show = command("board", board_command, "render records as a Markdown leaderboard",
                   "bench board --runs leaderboard/runs --out leaderboard/README.md --check")  # fmt: skip
    show.add_argument("--runs", type=Path, default=Path("results"), metavar="DIR", help="records (default: results)")
    show.add_argument("--out", type=Path, metavar="FILE", help="default: leaderboard.md in the folder of the records")
    show.add_argument("--check", action="store_true", help="write nothing; fail if the file and the records disagree")

    tell = command("report", report_command, "write one run's own report: tables and figures",
                   "bench report results/bernoulli/transformer/3f9a1c.json")  # fmt: skip
    tell.add_argument("run", metavar="RUN", help="a record's path, its folder, or its id below --runs")
    tell.add_argument("--samples", type=int, default=200, metavar="N", help="rollouts a context (default: 200)")
    tell.add_argument("--runs", type=Path, default=Path("results"), metavar="DIR", help="records (default: results)")
    tell.add_argument("--out", type=Path, metavar="DIR", help="default: a folder beside the record, named after it")

    command("list", list_command, "list tasks, architectures and presets", "bench list")
    command("perf", perf_command, "measure this machine: speeds as ratios, in one run", "bench perf")
    return parser


def run_command(options: argparse.Namespace, console: Console) -> int:
    configs = make_configs(options)
    device, why = pick_device(options.device)
    jobs = options.jobs or (cores() if device == "cpu" else 1)
    records.prepare_folder(options.out)
    first = configs[0]
    console.print(
        f"{len(configs)} run{'s' * (len(configs) > 1)}, preset {first.preset}, on {device} in fp32 ({why}), "
        f"{min(jobs, len(configs))} at a time",
        highlight=False,
    )
    if len(configs) == 1:
        parameters = sum(p.numel() for p in first.make_model().parameters())
        version = TASKS.facts(first.task)["version"]
        console.print(
            f"{first.task} v{version}, {first.arch}, {parameters:,} parameters (budget {first.budget():,}), "
            f"{first.steps:,} steps, {first.supervision} supervision",
            highlight=False,
        )
    results = engine.run_all(configs, options.out, jobs, console)
    return show_board(results, console, options.out)


def show_board(results: list[records.RunRecord], console: Console, out: Path) -> int:
    print(f"\n{board.render_terminal(results)}\n")
    print("Errors in bits against the exact posterior; rows without a rank are references.")
    found, problems = records.read_all(out)
    for path, reason in problems:
        print(f"bench: skipped {path}: {reason}", file=sys.stderr)
    target = out / "leaderboard.md"
    records.write_whole(target, board.render(found).encode())
    console.print(f"wrote {target}, from all {len(found)} records in {out}", highlight=False, soft_wrap=True)
    return 1 if any(record.status != "ok" for record in results) else 0


def make_configs(options: argparse.Namespace) -> list[RunConfig]:
    """The grid that the options span, every point checked before the first one runs."""
    if options.preset not in PRESETS:
        raise unknown("preset", options.preset, PRESETS)
    preset = PRESETS[options.preset]
    seeds = preset.seeds if options.seeds is None else options.seeds
    for name, value in (("--seeds", seeds), ("--jobs", options.jobs)):
        if value is not None and value < 1:
            raise BadInput(f"{name} must be at least 1, not {value}")
    settings = parse_settings(options.settings)
    device, _ = pick_device(options.device)
    supervision = options.supervision or [settings.get("supervision")]
    grid = itertools.product(options.task or preset.tasks, options.arch or preset.archs, supervision, range(seeds))
    configs: dict[str, RunConfig] = {}
    for task, arch, track, seed in grid:
        overrides = {**settings, **({"supervision": track} if track else {})}
        config = compose(preset.name, arch, task, seed, device, overrides)
        configs[config.id()] = config
    return list(configs.values())


def board_command(options: argparse.Namespace, console: Console) -> int:
    if not options.runs.is_dir():
        raise BadInput(f"no folder {options.runs}: `bench run` makes one, or name another with --runs")
    found, problems = records.read_all(options.runs)
    for path, reason in problems:
        print(f"bench: skipped {path}: {reason}", file=sys.stderr)
    target = options.out or options.runs / "leaderboard.md"
    text = board.render(found)
    if not options.check:
        records.prepare_folder(target.parent)
        records.write_whole(target, text.encode())
        console.print(f"wrote {target}: {len(found)} records", highlight=False, soft_wrap=True)
        return 1 if problems else 0
    written = target.read_text() if target.exists() else ""
    for line in difflib.unified_diff(written.splitlines(), text.splitlines(), str(target), "the records", lineterm=""):
        print(line)
    if written != text or problems:
        print(f"bench: {target} does not say what the records say", file=sys.stderr)
        return 1
    console.print(f"{target} says what {len(found)} records say", highlight=False, soft_wrap=True)
    return 0


def report_command(options: argparse.Namespace, console: Console) -> int:
    if options.samples < 2:
        raise BadInput(f"--samples must be at least 2, not {options.samples}")
    path = report.find(options.run, options.runs)
    out = options.out or path.with_suffix("")
    torch.set_num_threads(1)  # rollouts are small steps: threads would wait for each other longer than they work
    with Bar(console) as bar:
        failed = report.write(report.load(path, options.samples, bar), out)
    for title in failed:
        print(f"bench: section failed: {title}", file=sys.stderr)
    console.print(f"wrote {out / 'report.md'}", highlight=False, soft_wrap=True)
    return 1 if failed else 0


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
    return 0


def perf_command(options: argparse.Namespace, console: Console) -> int:
    console.print(perf.report())
    return 0
