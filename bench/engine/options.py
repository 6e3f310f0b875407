"""How the options of `bench run` become a plan: the device, and what may be asked of an engine."""

from __future__ import annotations

import argparse
import math

from bench import external
from bench.device import pick_device
from bench.engine.events import tensorboard_writer
from bench.engine.plan import Plan
from bench.registry import BadInput

ELSEWHERE = "asked for, of the cluster"  # why a run's device is not of this machine


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
