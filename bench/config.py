"""RunConfig: everything that decides a run's result, as flat plain values.

A config is a preset, its lines for the task, then the user's overrides; an unknown key raises. The geometry (layers,
heads, width, ffn, positions, activation) draws the reference transformer of the row: its parameter count is the budget
of every architecture on that task.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import math
import types
import typing
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

import models  # noqa: F401  for what it registers
import tasks  # noqa: F401
from bench import VERSION
from bench.device import pick_attention
from bench.presets import PRESETS
from bench.registry import BadInput, told, unknown
from models.base import ACTIVATIONS, ARCHS, POSITIONS, Geometry, build, count_built
from models.transformer import reference
from tasks.base import TASKS, Task

LIMITS = {  # far beyond any sensible run: what is larger is a slip, and would fill the memory before it failed
    "steps": 10**9, "batch": 10**6, "layers": 1000, "heads": 1000, "width": 10**5, "ffn": 10**6, "sequences": 10**7,
    "horizon": 10**5, "seed": 2**63 - 1, "warmup": 10**9,
}  # fmt: skip
CHOICES = {
    "supervision": ("posterior", "sampled"),
    "positions": tuple(POSITIONS),
    "activation": tuple(ACTIVATIONS),
    "optimizer": ("muon", "adamw"),
    "decay": ("linear", "none"),
}
USUAL: dict[str, Any] = {"tuning": {}, "decay": "linear", "activation": "relu2"}  # fields that a record may leave out
FIXED = {"arch", "task", "preset", "seed", "device", "task_params", "tuning"}  # not to be changed with --set
OPTIONS = {
    "arch": "--arch",
    "task": "--task",
    "preset": "--preset",
    "seed": "--seeds",
    "device": "--device",
    "tuning": "--tune",
}  # of those that the command line has in other ways


@dataclass(frozen=True)
class RunConfig:
    arch: str
    task: str
    preset: str
    seed: int
    supervision: str
    device: str  # cpu or cuda: what was really used, never "auto"
    attention: str
    # the task
    horizon: int  # training horizon
    horizons: tuple[int, ...]  # evaluation horizons
    # the reference transformer, and with it the parameter budget
    layers: int
    heads: int
    width: int
    ffn: int
    positions: str
    # training
    steps: int
    batch: int
    optimizer: str
    lr: float  # of Muon's matrices, or of AdamW where it does everything
    adam_lr: float  # of what Muon leaves to AdamW: vectors, embeddings, the head
    weight_decay: float
    warmup: int
    clip: float
    # evaluation
    sequences: int
    task_params: dict[str, Any] = field(default_factory=dict)  # fields of the task other than its horizon
    tuning: dict[str, Any] = field(
        default_factory=dict
    )  # the search behind the learning rates; empty if there was none
    activation: str = "relu2"  # of every architecture's feed-forward layers; swiglu's are two thirds as wide
    decay: str = "linear"  # of the learning rates, over the whole run: linear to nothing, or none

    def make_task(self) -> Task:
        task: Task = TASKS[self.task](horizon=self.horizon, **self.task_params)
        return task

    def lengths(self) -> list[int]:
        """Of the sequences it trains on and is scored on, where the task reaches that far."""
        task = self.make_task()
        limit = task.max_horizon()
        return sorted({task.shape.length(k) for k in (self.horizon, *self.horizons) if limit is None or k <= limit})

    def geometry(self) -> Geometry:
        return Geometry(self.layers, self.heads, self.width, self.ffn, self.positions, self.attention, self.activation)

    def budget(self) -> int:
        shape = self.make_task().shape
        return count_built(lambda: reference(shape, self.geometry()))

    def make_model(self) -> nn.Module:
        return build(self.arch, self.make_task().shape, self.budget(), self.geometry())

    def to_json(self) -> dict[str, Any]:
        """Plain values; what came later only where it is not the usual, so that it changes no id but its own."""
        values = {**asdict(self), "horizons": list(self.horizons)}
        return {name: value for name, value in values.items() if name not in USUAL or value != USUAL[name]}

    def id(self) -> str:
        law = {"config": self.to_json(), "task_version": TASKS.facts(self.task)["version"], "bench": VERSION}
        return hashlib.sha256(json.dumps(law, sort_keys=True).encode()).hexdigest()[:12]

    def newer_code(self, than: Path) -> str | None:
        """The architecture's own file if it is younger than what its run left behind: its id does not know."""
        entry = ARCHS[self.arch]
        code = Path(inspect.getfile(getattr(entry, "func", entry)))  # some are partials
        return f"models/{code.name}" if code.stat().st_mtime > than.stat().st_mtime else None


def compose(preset: str, arch: str, task: str, seed: int, device: str, overrides: Mapping[str, Any]) -> RunConfig:
    """The preset's values for this task, then the overrides; checked, so that a bad one is known before any work."""
    config = draft(preset, arch, task, seed, device, overrides)
    check(config)
    return config


def draft(preset: str, arch: str, task: str, seed: int, device: str, overrides: Mapping[str, Any]) -> RunConfig:
    """The same, before it is checked: the values alone."""
    if preset not in PRESETS:
        raise unknown("preset", preset, PRESETS)
    ARCHS.facts(arch), TASKS.facts(task)  # raise for unknown names
    own, of_task = {f.name for f in fields(RunConfig)}, task_parameters(task).keys()
    values: dict[str, Any] = {**PRESETS[preset].values_for(task)}
    task_params: dict[str, Any] = {}
    for key, value in {**values, **overrides}.items():
        if key in of_task:
            task_params[key] = value
        elif key in own - FIXED:
            values[key] = value
        else:
            raise unknown(f"setting of {task}", key, (own | of_task) - FIXED)
    if "width" in overrides and "ffn" not in overrides:
        values["ffn"] = 4 * values["width"]
    horizon = values["horizon"]
    if "horizons" not in overrides and ("horizon" in overrides or "horizons" not in values):
        values["horizons"] = (horizon, horizon * 3 // 2, horizon * 5 // 2)
    values["horizons"] = tuple(sorted({*values["horizons"], horizon}))  # the one that ranks is always there
    head_width = values["width"] // max(1, values["heads"])
    asked = values.pop("attention", None)
    values = {key: value for key, value in values.items() if key in own}
    named: dict[str, Any] = {"arch": arch, "task": task, "preset": preset, "seed": seed, "device": device}
    config = RunConfig(**named, attention="math", task_params=task_params, **values)
    return replace(config, attention=pick_attention(device, asked, head_width, max(config.lengths(), default=0))[0])


def task_parameters(task: str) -> dict[str, Any]:
    """What a task takes besides its horizon, with what it is if nobody says."""
    own = {f.name for f in fields(RunConfig)}
    return {f.name: f.default for f in fields(typing.cast(Any, TASKS[task])) if f.name not in own}


def check(config: RunConfig) -> None:
    """Refuse what cannot be run, in one line."""
    for name, allowed in CHOICES.items():
        if getattr(config, name) not in allowed:
            raise BadInput(f"{name} must be one of {', '.join(allowed)}, not '{getattr(config, name)}'")
    for name in ("steps", "batch", "layers", "heads", "width", "sequences", "horizon"):
        if getattr(config, name) < 1:
            raise BadInput(f"{name} must be at least 1, not {getattr(config, name)}")
    for name in ("warmup", "seed", "ffn", "weight_decay"):
        if getattr(config, name) < 0:
            raise BadInput(f"{name} must not be negative, not {getattr(config, name)}")
    for name, limit in LIMITS.items():
        if getattr(config, name) > limit:
            raise BadInput(f"{name} must be at most {limit}, not {getattr(config, name)}")
    for name in ("lr", "adam_lr", "clip"):
        if not 0 < getattr(config, name) < float("inf"):
            raise BadInput(f"{name} must be a positive number, not {getattr(config, name)}")
    if not config.horizons or min(config.horizons) < 1:
        raise BadInput(f"horizons must be positive numbers, not {list(config.horizons)}")
    if max(config.horizons) > LIMITS["horizon"]:
        raise BadInput(f"horizons must be at most {LIMITS['horizon']}, not {max(config.horizons)}")
    if config.width % config.heads:
        raise BadInput(f"width {config.width} cannot be divided among {config.heads} heads")
    if config.positions == "rope" and config.width // config.heads % 2:
        raise BadInput(f"rope needs an even head width, not {config.width // config.heads}")
    for name, value in {**asdict(config), **config.task_params}.items():  # JSON, and so a record, has no others
        if isinstance(value, float) and not math.isfinite(value):
            raise BadInput(f"{name} must be a finite number, not {value}")
    try:
        with torch.device("meta"):
            config.make_model()  # the task's own parameters, and the budget
    except BadInput as error:
        raise BadInput(f"{config.arch} on {config.task}: {error}") from error
    except Exception as error:  # of a kind or a size that nothing can be built from, or a mistake in its file
        raise BadInput(f"no {config.arch} on {config.task} can be built from this: {told(error)}") from error


def parse_settings(pairs: list[str]) -> dict[str, Any]:
    """`key=value` pairs from the command line, each read as its field's own type."""
    known: dict[str, Any] = {k: kind for k, kind in typing.get_type_hints(RunConfig).items() if k not in FIXED}
    for name in TASKS.names():
        known |= {f.name: typing.get_type_hints(TASKS[name])[f.name] for f in fields(typing.cast(Any, TASKS[name]))}
    settings: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals:
            raise BadInput(f"--set takes key=value, not '{pair}'")
        if key in FIXED:
            raise BadInput(f"{key} is not for --set: use {OPTIONS.get(key, 'the names of its parts')}")
        if key not in known:
            raise unknown("setting", key, known)
        settings[key] = _parse(key, text, known[key])
    return settings


def _parse(key: str, text: str, kind: Any) -> Any:
    try:
        if typing.get_origin(kind) is tuple:
            return tuple(int(part) for part in text.split(","))
        if isinstance(kind, types.UnionType):
            kind = next(k for k in typing.get_args(kind) if k is not types.NoneType)
        if kind is bool:
            return {"true": True, "false": False}[text.lower()]
        return kind(text)
    except (ValueError, KeyError) as error:
        expected = {int: "a whole number", float: "a number", bool: "true or false"}.get(kind, "numbers like 20,30,50")
        raise BadInput(f"{key} takes {expected}, not '{text}'") from error
