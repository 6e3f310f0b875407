"""The command line: what can be asked for. What answers is in bench.commands, which takes seconds to import."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from rich.console import Console

from bench import SAMPLES, VERSION, stop
from bench.presets import PRESETS
from bench.registry import BadInput

RESULTS = Path(os.environ.get("TUNNEL_BENCH_RESULTS", "results"))  # the image says /results


class Output(Console):
    def on_broken_pipe(self) -> None:
        raise BrokenPipeError  # rich would end with exit code 1, which says that a run failed


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise BadInput(f"{message} (see {self.prog} --help)")


def main(arguments: Sequence[str] | None = None) -> int:
    console = Output()
    again = "the same command"
    try:
        options = make_parser().parse_args(arguments)
        if options.command == "board":
            options.runs = options.runs or [RESULTS]  # a default would be one of those that are given
        again += " without --fresh" * getattr(options, "fresh", False)  # with it, what was kept would be forgotten
        from bench import commands  # torch and all that stand on it: not for a --help or a misspelt option

        return commands.COMMANDS[options.command](options, console)
    except BadInput as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as end:
        kept = "every run under way at its last step" if isinstance(end, stop.Stopped) else "others at their checkpoint"
        print(f"bench: stopped; finished runs are kept, {kept}; {again} goes on from there", file=sys.stderr)
        return 128 + (end.number if isinstance(end, stop.Stopped) else signal.SIGINT)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # its reader has left: nobody to tell
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
            name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.", epilog=f"example: {example}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )  # fmt: skip
        sub.set_defaults(command=name)
        return sub

    run = command("run", "train and score architectures on tasks", "bench run --arch mlp --task hmm")
    run.add_argument(
        "--arch", nargs="+", action="extend", metavar="A", help="architectures, or all (default: the preset's)"
    )
    run.add_argument("--task", nargs="+", action="extend", metavar="T", help="tasks, or all (default: the preset's)")
    run.add_argument("--preset", default="quick", metavar="P",
                     help=f"{', '.join(PRESETS)}, or auto: paper on a GPU, else quick (default: quick)")  # fmt: skip
    run.add_argument("--seeds", type=int, metavar="N", help="seeds 0..N-1 (default: the preset's)")
    run.add_argument("--supervision", nargs="+", action="extend", metavar="S",
                     help="one or more of posterior, sampled: a run each (default: the preset's)")  # fmt: skip
    run.add_argument("--device", default="auto", metavar="D", help="auto, cpu or cuda (default: auto)")
    run.add_argument("--jobs", type=int, metavar="N", help="runs at a time (default: one a core on a CPU, else 1)")
    run.add_argument("--tune", action="store_true", help="search the learning rate first, alike for every architecture")
    run.add_argument("--out", type=Path, default=RESULTS, metavar="DIR", help=f"default: {RESULTS}")
    run.add_argument("--engine", default="local", choices=("local", "ray"), help="this machine, or a Ray cluster")
    run.add_argument("--address", metavar="ADDR", help="of the Ray cluster (default: the one of this machine, or none)")
    run.add_argument("--gpus-per-run", type=float, metavar="F", help="on Ray: may be a fraction (default: 1 with CUDA)")
    run.add_argument("--memory-per-run", type=float, default=0.0, metavar="GB", help="on Ray (default: not reserved)")
    run.add_argument("--fresh", action="store_true", help="start over: forget what these runs have left behind")
    run.add_argument("--checkpoints", type=int, metavar="N",
                     help="keep N snapshots of the weights, early and late ones, for the report")  # fmt: skip
    run.add_argument("--report", action="store_true", help="write each finished run's report beside its record")
    run.add_argument("--verbose", "-v", action="store_true", help="a line at every look at a run")
    run.add_argument("--tensorboard", action="store_true", help="scalars in DIR/tensorboard (extra: tensorboard)")
    run.add_argument("--set", nargs="+", action="extend", default=[], metavar="KEY=VALUE", dest="settings",
                     help="change settings (bench list has them all), e.g. --set steps=2000 width=96")  # fmt: skip

    show = command("board", "show records, and write them as a Markdown leaderboard or a site",
                   "bench board --runs leaderboard/runs --out leaderboard/README.md --check")  # fmt: skip
    show.add_argument("--runs", nargs="+", action="extend", type=Path, metavar="DIR",
                      help=f"records, each run counted once (default: {RESULTS})")  # fmt: skip
    show.add_argument("--out", type=Path, metavar="FILE",
                      help="default: leaderboard.md in the first of these; CLAIMS.md is written beside it")  # fmt: skip
    show.add_argument("--html", type=Path, metavar="DIR", help="also write a site to look at: open DIR/index.html")
    show.add_argument("--figures", action="store_true", help="also draw its two figures beside it: overview, entropy")
    show.add_argument("--add", nargs="+", action="extend", type=Path, default=[], metavar="FILE",
                      help="first take in records that others have sent, marked as self-reported")  # fmt: skip
    show.add_argument("--check", action="store_true", help="write nothing; fail if the file and the records disagree")

    tell = command("report", "write one run's own report: tables and figures",
                   "bench report results/bernoulli/transformer/3f9a1c.json")  # fmt: skip
    tell.add_argument("run", metavar="RUN", help="a record's path, its folder, or its id below --runs")
    tell.add_argument("--samples", type=int, default=SAMPLES, metavar="N",
                      help=f"rollouts a context (default: {SAMPLES})")  # fmt: skip
    tell.add_argument("--runs", type=Path, default=RESULTS, metavar="DIR", help=f"records (default: {RESULTS})")
    tell.add_argument("--out", type=Path, metavar="DIR", help="default: a folder beside the record, named after it")

    trust = command("verify", "evaluate a run's weights again and compare every number of its record",
                    "bench verify results")  # fmt: skip
    trust.add_argument("paths", nargs="+", type=Path, metavar="RUN|DIR", help="a record, or a folder of them")
    trust.add_argument("--rerun", action="store_true", help="train again, and compare with that")
    trust.add_argument("--sample", type=int, metavar="N", help="only so many of the records, always the same ones")

    command("list", "list tasks, architectures, presets and settings", "bench list")
    check = command("kernels", "check the attention kernels on this machine, then time them",
                    "bench kernels --static --out kernels.md")  # fmt: skip
    check.add_argument(
        "--static", action="store_true", help="compile for all targets, no GPU needed, and read the binaries"
    )
    check.add_argument("--out", type=Path, metavar="FILE", help="with --static: write the table here")
    speed = command("perf", "measure this machine: speeds as ratios, in one run", "bench perf --json p.json")
    speed.add_argument("--json", type=Path, metavar="FILE", help="write them here too, as one flat object")
    return parser
