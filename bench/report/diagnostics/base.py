"""What a report is made of: a section asks one question of a run and answers it in text, tables and figures.

    @section("Does the order of the bits matter?", tasks=("bernoulli",))
    def permutation(run: Run) -> Section: ...

A section is asked only where it applies: of the tasks it names (all, if it names none) and of models that have the taps
it needs. What a model cannot do it refuses with `NotAvailable`, which the page shows as n/a with the reason; any other
error is a failed section.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import filter as matching
from pathlib import Path
from typing import Any, NamedTuple

import safetensors.torch
import torch
from matplotlib.figure import Figure
from torch import nn

from bench import SAMPLES
from bench.config import RunConfig
from bench.records import RunRecord
from bench.run.run import make_model
from bench.seeds import generator
from models.taps import tap_names
from models.transformer import Attention
from tasks.base import Task

MODEL, EXACT, OTHER, GREY = "#2a6fbb", "#c0392b", "#e08e0b", "#888888"  # one colour one meaning, in every figure


class NotAvailable(Exception):
    """The question makes sense, this model cannot be asked; the message says why."""


def require_once(repeats: bool) -> None:
    """Of a place in a model: that a sequence passes it once."""
    if repeats:
        raise NotAvailable("its blocks are applied several times, so a place has several vectors in each sequence")


class Literature(NamedTuple):
    """What was published, for comparison: the caller of a report knows it, a report does not."""

    numbers: Mapping[str, Mapping[str, tuple[float, ...]]] = {}  # by table and row
    settings: Mapping[str, str] = {}  # of the LPE report's model
    statements: Mapping[str, tuple[str, str]] = {}  # by id: what is said of how a model works, and where


NOTHING_PUBLISHED = Literature()


@dataclass(frozen=True, eq=False)
class Run:
    """A finished run with its weights, in evaluation mode on the CPU."""

    record: RunRecord
    config: RunConfig
    task: Task
    model: nn.Module
    samples: int = SAMPLES  # rollouts a context
    progress: Callable[[str, int, int], None] = lambda _what, _done, _total: None
    snapshots: tuple[tuple[int, Path], ...] = ()  # step and weights, kept while it trained
    literature: Literature = NOTHING_PUBLISHED

    def published(self, table: str, row: str) -> tuple[float, ...] | None:
        return self.literature.numbers.get(table, {}).get(row)

    def rng(self, *names: str | int) -> torch.Generator:
        """A report's own stream of random numbers, the same for every architecture with this seed."""
        return generator("cpu", self.config.seed, "report", *names)

    def require_length(self, length: int) -> None:
        reach: int | None = getattr(self.model, "max_length", None)
        if reach is not None and length > reach:
            raise NotAvailable(f"the model reads at most {reach} positions, and this takes {length}")


def load_model(config: RunConfig, weights: bytes) -> nn.Module:
    """The model of a run, for looking at: on the CPU, whatever it was trained on."""
    model = config.make_model()
    model.load_state_dict(safetensors.torch.load(weights))  # strict: every name, nothing else
    return _settle(model)


def initial_model(config: RunConfig) -> nn.Module:
    """As it was before its first step."""
    return _settle(make_model(replace(config, device="cpu")))


def _settle(model: nn.Module) -> nn.Module:
    for module in model.modules():
        if isinstance(module, Attention):
            module.backend = "sdpa"
    return model.eval()


class Table(NamedTuple):
    name: str  # of its CSV file
    header: list[str]
    rows: list[list[Any]]  # text, numbers, or None where there is nothing to say


class Picture(NamedTuple):
    name: str  # of its PNG and SVG files
    figure: Figure
    caption: str


@dataclass
class Section:
    text: str
    tables: list[Table] = field(default_factory=list)
    pictures: list[Picture] = field(default_factory=list)


class Question(NamedTuple):
    title: str
    ask: Callable[[Run], Section]
    tasks: tuple[str, ...]
    taps: str | None
    repeats: bool = False  # it shows what other sections measure, so it is asked after them

    def applies(self, run: Run) -> bool:
        return not self.tasks or run.config.task in self.tasks

    def answer(self, run: Run) -> Section:
        if self.taps is not None and not matching(tap_names(run.model), self.taps):
            raise NotAvailable(f"the architecture has no tap like {self.taps}")
        return self.ask(run)


def section(
    title: str, tasks: tuple[str, ...] = (), taps: str | None = None, repeats: bool = False
) -> Callable[[Callable[[Run], Section]], Question]:
    return lambda ask: Question(title, ask, tasks, taps, repeats)


def canvas(width: float, height: float, rows: int = 1, columns: int = 1, **how: Any) -> tuple[Figure, Any]:
    """A figure without global state, and its axes, an array if there are several."""
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots(rows, columns, **how)
    return figure, axes
