"""What a model is made of, and one look inside it that the questions share.

A layer is a block with up to two branches: what mixes positions (attention or a recurrence) and what works within one
(feed-forward). Each branch ends in a tap, so removing it is an edit that writes zeros, and a layer without branches is
the identity. All of it goes by taps: no weight is touched.

Softmax attention is fused and never writes its weights down; they are recomputed from the queries and keys that pass
its tap, softmax(q k / sqrt(d) - slope * distance), and weights times values is the tapped output.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from bench.report.diagnostics.base import NotAvailable, Run
from bench.report.interventions import EMBEDDING
from bench.run.score import Exam, entropy_bits
from models.base import count_parameters
from models.kernels.attention import attention_weights
from models.taps import record, tap_names
from models.transformer import Attention, UniformAttention
from tasks.base import Batch, HasHypotheses, Task

SEQUENCES, POSITIONS = 256, 40_000  # of an exam: so many sequences, fewer where they are long
WORK = 6e10  # parameters x positions of one forward: 256 sequences of a small model, 128 of the paper's


@dataclass(frozen=True)
class Layer:
    index: int
    kind: str  # of its mixing: attention, recurrence, or nothing
    branches: dict[str, str]  # attention, recurrence or feed-forward -> the tap it ends in
    values: str | None  # the tap of [B, T, 3, H, d] or, of a mean, of [B, T, H, d]
    outputs: str | None  # the tap of [B, T, H, d], or of [B, T, D] where there are no heads
    resid: str


def layers(model: nn.Module) -> list[Layer]:
    """One for each tap on the residual stream; a block that is applied again and again shows its last pass."""
    taps = tap_names(model)
    found: list[Layer] = []
    for resid in (name for name in taps if name.endswith(".resid")):
        block = resid.removesuffix("resid")

        def end(pattern: str, block: str = block) -> str | None:
            return next((name for name in taps if re.fullmatch(re.escape(block) + pattern, name)), None)

        inside = model.get_submodule(block[:-1]).modules()
        attends = any(isinstance(module, Attention | UniformAttention) for module in inside)
        kind = "attention" if attends else "recurrence" if end("mixed") else "none"
        ends = {kind: end("mixed"), "feed-forward": end(r"(ffn\.)?out")}
        branches = {name: tap for name, tap in ends.items() if tap is not None}
        found.append(Layer(len(found), kind, branches, end(r".*\.(qkv|v)"), end(r"(.*\.z|h)"), resid))
    return found


def attention_layers(model: nn.Module) -> list[Layer]:
    return [layer for layer in layers(model) if layer.kind == "attention"]


def weights(model: nn.Module, layer: Layer, tapped: Tensor) -> Tensor:
    """The attention of a layer, [B, H, T, T], from what passed its tap."""
    assert layer.values is not None
    module = model.get_submodule(layer.values.rpartition(".")[0])
    if isinstance(module, Attention):
        return attention_weights(tapped, module.slopes, module.header)
    B, T, H, _ = tapped.shape
    mean_TT = torch.ones(T, T).tril() / torch.arange(1, T + 1)[:, None]
    return mean_TT.expand(B, H, T, T)


def values_of(tapped: Tensor) -> Tensor:
    """[B, T, H, d] of a values tap, whatever else passes it."""
    return tapped[:, :, 2] if tapped.ndim == 5 else tapped


def affordable(run: Run, length: int, most: int, work: float) -> int:
    """Fewer sequences where parameters x positions are many."""
    return min(most, int(work / (count_parameters(run.model) * length)))


def make_exam(run: Run, horizon: int, *names: str) -> Exam:
    """Sequences of the report's own, with their exact answers: the same ones for everything that is compared."""
    length = run.task.shape.length(horizon)
    run.require_length(length)
    sequences = max(16, affordable(run, length, min(SEQUENCES, POSITIONS // length), WORK))
    batch = run.task.sample(sequences, horizon, run.rng(*names))
    return Exam(batch, run.task.posterior(batch))


class Look(NamedTuple):
    """Everything that passed the taps in one forward."""

    exam: Exam
    h_BQ: np.ndarray  # the exact posterior's entropy, bits
    seen: dict[str, Tensor]


@torch.no_grad()
def watch(model: nn.Module, batch: Batch, *patterns: str) -> dict[str, Tensor]:
    with record(model, *patterns) as seen:
        model(batch.tokens, batch.features)
    return seen


@lru_cache(maxsize=1)
def look(run: Run) -> Look:
    """Once a run, at the training horizon."""
    exam = make_exam(run, run.config.horizon, "anatomy")
    wanted = {tap for layer in layers(run.model) for tap in (layer.values, layer.outputs, layer.resid) if tap}
    if not wanted:
        raise NotAvailable("the architecture has no taps in its layers")
    wanted |= {EMBEDDING} & set(tap_names(run.model))
    return Look(exam, entropy_bits(exam.posterior).numpy(), watch(run.model, exam.batch, *sorted(wanted)))


def stands_for(task: Task, tokens_BT: Tensor) -> Tensor:
    """Which hypothesis about the answer each position stands for, [B, T]: a class, or -1."""
    if not isinstance(task, HasHypotheses):
        raise NotAvailable("no token of this task stands for a hypothesis about the answer")
    return task.hypotheses(tokens_BT)


def input_keys(task: Task) -> int:
    """How many tokens, from the first on, are looked up by the task's questions; 0 where none is."""
    return task.lookup_tokens if isinstance(task, HasHypotheses) else 0
