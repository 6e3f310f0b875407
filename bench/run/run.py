"""run_one: the whole story of a run, from a config to its record."""

from __future__ import annotations

import hashlib
import math
import os
import subprocess
import traceback
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bench.checkpoint import Keeper
from bench.config import RunConfig
from bench.device import describe
from bench.floors import reference_scores
from bench.kernels import Case, require_right
from bench.laws import Unlawful, require_lawful
from bench.meter import Meter, count_flops
from bench.records import SCHEMA, CannotWrite, RunRecord
from bench.score import Score, make_exam, predict, score
from bench.seeds import derive
from bench.snapshots import pack
from bench.train import Diverged, Progress, draw, fit, loss_nats
from models.base import count_parameters
from models.transformer import Attention
from tasks.base import Task


def run_one(
    config: RunConfig, report: Callable[[Progress], None] = lambda _: None, keeper: Keeper | None = None
) -> tuple[RunRecord, bytes | None]:
    """Train and score; a run that fails is a record too, with its error. Returns the record and the weights."""
    meter = Meter(config.device)
    keeper = keeper or Keeper(config)
    measured: dict[str, Any] = {
        "parameters": None, "state_bytes": None, "train_flops": None, "metrics": {}, "references": {},
        "by_position": {}, "loss_curve": [], "tokens_per_second": None, "weights": None,
    }  # fmt: skip
    status, error, weights = "ok", None, None
    try:
        with meter.phase("setup"):
            task = config.make_task()
            model = make_model(config)
            length = task.shape.length(config.horizon)
            measured["parameters"] = count_parameters(model)
            measured["state_bytes"] = state_bytes(model, length)
            measured["train_flops"] = float(config.steps * step_flops(config))
        if config.attention == "triton" and any(isinstance(module, Attention) for module in model.modules()):
            with meter.phase("compile"):
                check_kernels(model, task, config)
        with meter.phase("setup"):
            require_lawful(model, task, config)
        with meter.phase("train"):
            measured["loss_curve"], data_seconds = fit(model, task, config, report, keeper)
        meter.add("train", keeper.seconds_before)
        if config.device == "cpu":  # on a GPU sampling overlaps with training: no border to measure it at
            meter.seconds["data"] = data_seconds
        measured["tokens_per_second"] = config.steps * config.batch * length / (meter.seconds["train"] or 1.0)
        with meter.phase("eval"):
            require_lawful(model, task, config)
            measured |= evaluate(model, task, config)
        weights = pack(model)
        measured["weights"] = f"sha256:{hashlib.sha256(weights).hexdigest()}"
    except (CannotWrite, BrokenPipeError):
        raise  # not the run's failure: it goes on from its checkpoint where it can write, or tell, again
    except (Diverged, Unlawful) as cause:
        status, error = "failed", str(cause)
    except Exception as cause:
        status, error = "failed", f"{type(cause).__name__}: {cause}"
        traceback.print_exc()
    energy = None if keeper.seconds_before else meter.energy_joules()  # of the earlier part nobody kept count
    platform = {
        **describe(config).to_json(),
        "gpu": meter.gpu_facts(measured["train_flops"] if status == "ok" else None),
    }
    commit, dirty = SOURCE
    record = RunRecord(
        schema=SCHEMA, id=config.id(), status=status, error=error, config=config.to_json(), budget=config.budget(),
        seconds={name: None if s is None else round(s, 3) for name, s in meter.seconds.items()},
        memory_bytes=meter.memory(), energy_joules=energy, platform=platform, commit=commit, dirty=dirty,
        notes=keeper.at.notes, **measured,
    )  # fmt: skip
    return record, weights


def make_model(config: RunConfig) -> nn.Module:
    """Initialised on the CPU from its own stream: the same start on every device."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(config.seed, "initialisation"))
        return config.make_model().to(config.device)


def check_kernels(model: nn.Module, task: Task, config: RunConfig) -> None:
    """Once for each shape that this run will use, which compiles it: nothing is trained on a kernel that is wrong."""
    served = {
        (module.head_width, module.heads, module.slopes is not None)
        for module in model.modules()
        if isinstance(module, Attention)
    }
    for length, (width, heads, sloped) in product(config.lengths(), sorted(served)):
        header = min(length, task.shape.header)
        require_right(Case(length, width, header=header, sloped=sloped, gated=False, heads=heads), config.device)


def state_bytes(model: nn.Module, length: int) -> int | None:
    """What the model carries from one position to the next; None for an architecture that does not say."""
    tell: Callable[[int], int] | None = getattr(model, "state_bytes", None)
    return tell(length) if tell is not None else None


def step_flops(config: RunConfig) -> int:
    """Forward and backward of one batch; the optimizer is not counted, as is the custom.

    Counted for one sequence on the CPU, whatever the run's device, with attention written out: what is fused torch's
    counter takes for nothing.
    """
    twin = replace(config, device="cpu", batch=1, steps=1)
    batch, answer = next(draw(twin.make_task(), twin))
    model = make_model(twin)
    for module in model.modules():
        if isinstance(module, Attention):
            module.backend = "math"
    with count_flops() as counted:
        loss_nats(model, batch, answer).backward()
    return int(counted["flops"]) * config.batch


def evaluate(model: nn.Module, task: Task, config: RunConfig) -> dict[str, Any]:
    """Every horizon, whole and beyond training; null where the task or the model does not reach."""
    model.eval()
    metrics: dict[str, Any] = {}
    references: dict[str, Any] = {}
    by_position: dict[str, Any] = {}
    limit, reach = task.max_horizon(), getattr(model, "max_length", None)
    for horizon in config.horizons:
        key = str(horizon)
        metrics[key] = references[key] = by_position[key] = None
        if limit is not None and horizon > limit:
            continue
        exam = make_exam(task, horizon, config.sequences, config.seed, config.device)
        known = reference_scores(config.task, task, exam)
        references[key] = {name: _split(result, config.horizon, horizon) for name, result in known.items()}
        if reach is not None and task.shape.length(horizon) > reach:
            continue
        result = score(exam, predict(model, exam.batch))
        if not math.isfinite(result.kl.sum().item()):
            raise Diverged(f"its predictions are not finite at K = {horizon}")
        metrics[key] = _split(result, config.horizon, horizon)
        columns = ("h_bayes", "h_model", "entropy_mae", "kl")
        by_position[key] = {name: getattr(result, name).tolist() for name in columns}
    return {"metrics": metrics, "references": references, "by_position": by_position}


def _split(result: Score, trained: int, horizon: int) -> dict[str, dict[str, float]]:
    split = {"all": result.summary()}
    if horizon > trained:
        split["post"] = result.summary(start=trained)
    return split


def source_version(root: Path) -> tuple[str | None, bool | None]:
    """The commit of this code and whether it was changed since; an image carries both in its environment."""

    def git(*words: str) -> str:
        command = ["git", "-C", str(root), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        if Path(git("rev-parse", "--show-toplevel")).resolve() == root:  # and not of what this is installed inside of
            code = ["bench", "models", "tasks", "pyproject.toml", "constraints.txt"]
            return git("rev-parse", "HEAD"), bool(git("status", "--porcelain", "--", *code))
    except (OSError, subprocess.CalledProcessError):
        pass  # no git, or nothing under it: an image, which was told
    commit, _, changed = os.environ.get("TUNNEL_BENCH_COMMIT", "").partition("-")
    return commit or None, True if changed == "dirty" else None


# Of the code as it was loaded: while a run trains, the next commit may be made.
SOURCE = source_version(Path(__file__).resolve().parent.parent)
