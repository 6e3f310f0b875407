"""The command line: its options. The commands themselves are in bench.commands: most take seconds to import."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from rich.console import Console

from bench import SAMPLES, VERSION, stop
from bench.presets import PRESETS
from bench.registry import BadInput

RESULTS = Path(os.environ.get("TUNNEL_BENCH_RESULTS", "results"))  # set to /results in the container image


class Output(Console):
    def on_broken_pipe(self) -> None:
        raise BrokenPipeError  # rich would exit with code 1, which means that a run failed


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise BadInput(f"{message} (see {self.prog} --help)")


def main(arguments: Sequence[str] | None = None) -> int:
    console = Output()
    repeat = "the same command"
    try:
        options = make_parser().parse_args(arguments)
        if options.command == "board":
            options.runs = options.runs or [RESULTS]  # argparse would add the given folders to a default
        if getattr(options, "fresh", False):
            repeat = "the same command without --fresh"  # --fresh would delete what was saved
        from bench import commands  # the command's module imports torch, which --help need not wait for

        return commands.call(options, console)
    except BadInput as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as end:
        number = end.number if isinstance(end, stop.Stopped) else signal.SIGINT
        saved = "at their last step" if isinstance(end, stop.Stopped) else "at their last checkpoint"
        print(f"bench: stopped; finished runs are saved, active ones {saved}; {repeat} continues them", file=sys.stderr)
        return 128 + number
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nobody reads the output any more
        return 128 + signal.SIGPIPE


def make_parser() -> Parser:
    parser = Parser(
        prog="bench",
        description="Which sequence architectures really perform Bayesian inference? Train them on tasks whose exact "
        "posterior is known, and measure the error in fractions of a bit.",
    )
    parser.add_argument("--version", action="version", version=f"tunnel-bench {VERSION}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    def command(name: str, summary: str, example: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(
            name,
            help=summary,
            description=f"{summary[0].upper()}{summary[1:]}.",
            epilog=f"example: {example}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        sub.set_defaults(command=name)
        return sub

    add_run_options(command("run", "train and score architectures on tasks", "bench run --arch mlp --task hmm"))
    add_evaluate_options(
        command(
            "evaluate",
            "score a model that was trained elsewhere",
            "bench evaluate --task hmm --model ./mine.py:load --horizons 20 50",
        )
    )
    add_board_options(
        command(
            "board",
            "show records, and write them as a Markdown leaderboard or a site",
            "bench board --runs leaderboard/runs --out leaderboard/README.md --check",
        )
    )
    add_report_options(
        command(
            "report",
            "write the report of a run, or of several: tables and figures",
            "bench report results/bernoulli/transformer/3f9a1c.json",
        )
    )
    add_verify_options(
        command(
            "verify", "evaluate a run's weights again and compare every number of its record", "bench verify results"
        )
    )
    listing = command("list", "list tasks, architectures, presets and settings", "bench list")
    library = "hf: the types of models of the transformers library that work, and why others do not"
    listing.add_argument("--arch", metavar="hf", help=library)
    add_kernels_options(
        command(
            "kernels",
            "check the attention kernels on this machine, then time them",
            "bench kernels --static --out kernels.md",
        )
    )
    gpu = command("gpu", "check a GPU, train the headline rows on it, and pack the results", "bench gpu --hours 8")
    gpu.add_argument("--hours", type=float, metavar="H", help="train what is expected to fit (default: everything)")
    gpu.add_argument("--seeds", type=int, default=3, metavar="N", help="seeds of each row (default: 3)")
    gpu.add_argument("--rehearse", action="store_true", help="every stage but the kernels, tiny and on the CPU")
    gpu.add_argument("--out", type=Path, metavar="DIR", help="default: tunnel-bench-gpu, or tunnel-bench-rehearsal")
    perf = command("perf", "measure the speed of this machine, as ratios", "bench perf --json p.json")
    perf.add_argument("--json", type=Path, metavar="FILE", help="also write the results here, as one flat object")
    return parser


def add_run_options(run: argparse.ArgumentParser) -> None:
    several: dict[str, Any] = {"nargs": "+", "action": "extend"}
    other = "names, all, or code of yours: ./my_file.py, ./my_file.py:name, package.module:name"
    run.add_argument("--arch", **several, metavar="A", help=f"architectures: {other} (default: the preset's)")
    run.add_argument("--task", **several, metavar="T", help="tasks, given likewise (default: the preset's)")
    presets = f"{', '.join(PRESETS)}, or auto: paper on a GPU, else quick (default: quick)"
    run.add_argument("--preset", default="quick", metavar="P", help=presets)
    run.add_argument("--seeds", type=int, metavar="N", help="how many seeds, from 10 on (default: the preset's)")
    below = "start at seed N; below 10 is for work on recipes (default: 10)"
    run.add_argument("--first-seed", type=int, metavar="N", help=below)
    tracks = "posterior, sampled or both, a run each (default: the preset's)"
    run.add_argument("--supervision", **several, metavar="S", help=tracks)
    run.add_argument("--device", default="auto", metavar="D", help="auto, cpu, cuda or cuda:N (default: auto)")
    run.add_argument("--jobs", type=int, metavar="N", help="runs at a time (default: one per core, or per GPU)")
    together = "seeds of a row that share a GPU; they are not timed (default: 1)"
    run.add_argument("--per-gpu", type=int, default=1, metavar="N", help=together)
    run.add_argument("--tune", action="store_true", help="search the learning rate first, the same way for everyone")
    run.add_argument("--out", type=Path, default=RESULTS, metavar="DIR", help=f"default: {RESULTS}")
    run.add_argument("--engine", default="local", choices=("local", "ray"), help="this machine, or a Ray cluster")
    run.add_argument("--address", metavar="ADDR", help="address of the Ray cluster (default: on this machine)")
    run.add_argument(
        "--gpus-per-run", type=float, metavar="F", help="Ray only; may be a fraction (default: 1 with CUDA)"
    )
    run.add_argument(
        "--memory-per-run", type=float, default=0.0, metavar="GB", help="Ray only (default: none reserved)"
    )
    run.add_argument("--fresh", action="store_true", help="start over: delete what earlier runs of these configs left")
    snapshots = "keep N snapshots of the weights, early and late, for the report"
    run.add_argument("--checkpoints", type=int, metavar="N", help=snapshots)
    run.add_argument("--report", action="store_true", help="write a report beside the record of each finished run")
    run.add_argument("--verbose", "-v", action="store_true", help="print every evaluation")
    run.add_argument("--tensorboard", action="store_true", help="write scalars to DIR/tensorboard (extra: tensorboard)")
    settings = "change settings (bench list names them all), e.g. --set steps=2000 width=96"
    run.add_argument("--set", **several, default=[], metavar="KEY=VALUE", dest="settings", help=settings)


def add_evaluate_options(evaluate: argparse.ArgumentParser) -> None:
    evaluate.add_argument("--task", required=True, metavar="T", help="the task to score it on, or a file of yours")
    model = (
        "a function of a Python file, without arguments, that returns the model: a callable from tokens and features "
    )
    evaluate.add_argument("--model", required=True, metavar="FILE:FUNCTION", help=model + "to probabilities")
    horizons = "also score it at these horizons (default: the preset's)"
    evaluate.add_argument("--horizons", type=int, nargs="+", metavar="K", help=horizons)
    presets = f"whose parameters the task has: {', '.join(PRESETS)} (default: quick)"
    evaluate.add_argument("--preset", default="quick", metavar="P", help=presets)
    device = "where tokens and features are when the model is called: cpu, cuda or auto (default: cpu)"
    evaluate.add_argument("--device", default="cpu", metavar="D", help=device)
    evaluate.add_argument("--out", type=Path, default=RESULTS, metavar="DIR", help=f"default: {RESULTS}")
    settings = "change parameters of the task, its horizon or the number of sequences, e.g. --set states=3"
    evaluate.add_argument(
        "--set", nargs="+", action="extend", default=[], metavar="KEY=VALUE", dest="settings", help=settings
    )


def add_board_options(board: argparse.ArgumentParser) -> None:
    several: dict[str, Any] = {"nargs": "+", "action": "extend", "type": Path}
    runs = f"folders of records; a run in several folders counts once (default: {RESULTS})"
    board.add_argument("--runs", **several, metavar="DIR", help=runs)
    out = "default: leaderboard.md in the first of these folders; CLAIMS.md is written beside it"
    board.add_argument("--out", type=Path, metavar="FILE", help=out)
    board.add_argument("--html", type=Path, metavar="DIR", help="also write a site: open DIR/index.html")
    board.add_argument("--figures", action="store_true", help="also write its figures and results.csv beside it")
    board.add_argument("--csv", type=Path, metavar="FILE", help="also write every number, one row per record")
    add = "first add records that others have sent, or an archive of bench gpu, marked as self-reported"
    board.add_argument("--add", **several, default=[], metavar="FILE", help=add)
    board.add_argument(
        "--check", action="store_true", help="write nothing; fail if the file does not match the records"
    )


def add_report_options(report: argparse.ArgumentParser) -> None:
    which = "a record's path, its folder, or its id in --runs; several seeds give means with intervals"
    report.add_argument("run", nargs="+", metavar="RUN", help=which)
    report.add_argument("--compare", action="store_true", help="put several architectures side by side")
    samples = f"rollouts per context (default: {SAMPLES})"
    report.add_argument("--samples", type=int, default=SAMPLES, metavar="N", help=samples)
    report.add_argument("--runs", type=Path, default=RESULTS, metavar="DIR", help=f"records (default: {RESULTS})")
    report.add_argument("--out", type=Path, metavar="DIR", help="default: a folder beside the record")
    add_code_options(report)


def add_verify_options(verify: argparse.ArgumentParser) -> None:
    verify.add_argument("paths", nargs="+", type=Path, metavar="RUN|DIR", help="a record, or a folder of records")
    verify.add_argument("--rerun", action="store_true", help="train again and compare the result")
    verify.add_argument("--sample", type=int, metavar="N", help="only N of the records, always the same ones")
    add_code_options(verify)


def add_code_options(command: argparse.ArgumentParser) -> None:
    """A record never causes code to be loaded, so who wants to run it names it."""
    for option, kind in (("--arch", "architecture"), ("--task", "task")):
        text = f"the file or module of an external {kind}; a file is kept beside the record"
        command.add_argument(option, nargs="+", action="extend", default=[], metavar="CODE", help=text)


def add_kernels_options(kernels: argparse.ArgumentParser) -> None:
    static = "compile for all targets and inspect the binaries; needs no GPU"
    kernels.add_argument("--static", action="store_true", help=static)
    kernels.add_argument("--out", type=Path, metavar="FILE", help="with --static: write the table here")
