"""RunConfig: everything that decides a run's result, as flat plain values.

A config is a preset, its lines for the task, then the user's overrides; an unknown key raises. The geometry (layers,
heads, width, ffn, positions, activation) describes the reference transformer of the row. Its parameter count is the
budget of every architecture on that task.

Each field states its own type and bounds; pydantic checks them, for a config from the command line and for one that is
read from a record.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import math
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, ClassVar

import torch
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from torch import nn

import models  # noqa: F401  for what it registers
import tasks  # noqa: F401
from bench import VERSION
from bench.device import pick_attention
from bench.presets import PRESETS
from bench.registry import NAME, BadInput, Code, Registry, describe_error, unknown
from bench.seeds import PUBLISHED_FROM
from models.base import ACTIVATIONS, ARCHS, POSITIONS, Geometry, build, count_built
from models.hf import from_library, missing_library
from models.transformer import reference
from tasks.base import TASKS, Task

CHOICES = {
    "supervision": ("posterior", "sampled"),
    "positions": tuple(POSITIONS),
    "activation": tuple(ACTIVATIONS),
    "optimizer": ("muon", "adamw"),
    "decay": ("linear", "none"),
    "precision": ("fp32", "tf32", "bf16"),
}
# Fields that were added after the first records. A record leaves them out where they have these values, so that its id
# does not change.
LATER_DEFAULTS: dict[str, Any] = {
    "tuning": {},
    "decay": "linear",
    "activation": "relu2",
    "arch_source": "",
    "task_source": "",
    "elsewhere": {},
    "value_lr": 1.0,
    "precision": "fp32",
}
# Settings that are unknown of a model that was trained elsewhere. Its record leaves them out; in memory these values
# take their places, and mean nothing.
UNKNOWN: dict[str, Any] = {
    "supervision": "unknown", "attention": "unknown", "layers": 1, "heads": 1, "width": 1, "ffn": 0,
    "positions": "unknown", "steps": 1, "batch": 1, "optimizer": "unknown", "lr": 1.0, "adam_lr": 1.0,
    "weight_decay": 0.0, "warmup": 0, "clip": 1.0, "activation": "unknown", "decay": "unknown", "tuning": {},
    "precision": "unknown",
}  # fmt: skip
SEARCHED = ("lr", "adam_lr", "positions", "activation")  # what --tune chooses
FIXED = {  # not for --set
    "arch",
    "task",
    "preset",
    "seed",
    "device",
    "task_params",
    "tuning",
    "arch_source",
    "task_source",
    "elsewhere",
}
OPTIONS = {  # the options of those that have one
    "arch": "--arch",
    "task": "--task",
    "preset": "--preset",
    "seed": "--seeds",
    "device": "--device",
    "tuning": "--tune",
    "arch_source": "--arch",
    "task_source": "--task",
}

# The upper bounds lie far beyond any sensible run: a larger value is a slip, and would exhaust the memory.
Horizon = Annotated[int, Field(ge=1, le=10**5)]
Positive = Annotated[float, Field(gt=0)]
Digest = Annotated[str, Field(pattern="^(sha256:[0-9a-f]{64})?$")]


@dataclass(frozen=True)
class RunConfig:
    __pydantic_config__: ClassVar = ConfigDict(
        strict=True,
        extra="forbid",
        allow_inf_nan=False,
        revalidate_instances="always",  # check() validates a config that was built here, not read
    )

    arch: Annotated[str, Field(pattern=f"^{NAME}$")]
    task: Annotated[str, Field(pattern=f"^{NAME}$")]
    preset: str
    seed: Annotated[int, Field(ge=0, le=2**63 - 1)]
    supervision: str
    device: str  # cpu or cuda: the device that was used, never "auto"
    attention: str
    # the task
    horizon: Horizon  # training horizon
    horizons: Annotated[tuple[Horizon, ...], Field(min_length=1)]  # evaluation horizons
    # the reference transformer, and with it the parameter budget
    layers: Annotated[int, Field(ge=1, le=256)]
    heads: Annotated[int, Field(ge=1, le=256)]
    width: Annotated[int, Field(ge=1, le=16_384)]
    ffn: Annotated[int, Field(ge=0, le=65_536)]
    positions: str
    # training
    steps: Annotated[int, Field(ge=1, le=10**9)]
    batch: Annotated[int, Field(ge=1, le=10**6)]
    optimizer: str
    lr: Positive  # of Muon's matrices, or of everything if AdamW is the only optimizer
    adam_lr: Positive  # of the parameters that Muon leaves to AdamW: vectors, embeddings, the head
    weight_decay: Annotated[float, Field(ge=0)]
    warmup: Annotated[int, Field(ge=0, le=10**9)]
    clip: Positive
    # evaluation
    sequences: Annotated[int, Field(ge=1, le=10**7)]
    task_params: dict[str, Any] = field(default_factory=dict)  # fields of the task other than its horizon
    tuning: dict[str, Any] = field(default_factory=dict)  # the learning-rate search; empty if there was none
    activation: str = "relu2"  # of every architecture's feed-forward layers; swiglu's are two thirds as wide
    decay: str = "linear"  # of the learning rates over the run: linear to zero, or none
    arch_source: Digest = ""  # the hash of the architecture's code if it is external (bench.external)
    task_source: Digest = ""
    elsewhere: dict[str, str] = field(default_factory=dict)  # file and hash of a model that was not trained here
    value_lr: Positive = 1.0  # the learning rate of values, as a factor on that of their optimizer
    precision: str = "fp32"  # of training's products: fp32, tf32, or bf16 by autocast; scoring is always in fp32

    @property
    def is_recipe_work(self) -> bool:
        """Its seed was free for choosing recipes, so its error says more about the choice than about the model."""
        return self.seed < PUBLISHED_FROM

    @property
    def label(self) -> str:
        """The architecture's name in tables: an external one is marked, with the first digits of its hash."""
        return mark_external(self.arch, self.arch_source)

    @property
    def task_label(self) -> str:
        return mark_external(self.task, self.task_source)

    def missing_code(self) -> str | None:
        """Why code of this config is not at hand: external code, which the user names, or a library.

        Reading a record never loads it.
        """
        task = _missing(TASKS, "--task", self.task, self.task_source)
        return task or _missing(ARCHS, "--arch", self.arch, self.arch_source) or missing_library(self.arch)

    def external_code(self) -> dict[str, Code]:
        """The loaded code of an external architecture and of an external task."""
        loaded = {"arch": ARCHS.external().get(self.arch), "task": TASKS.external().get(self.task)}
        return {kind: code for kind, code in loaded.items() if code is not None}

    def require_own_names(self) -> None:
        """External code must not have a name of this suite: their rows would be taken for ours."""
        for registry, name, source in ((ARCHS, self.arch, self.arch_source), (TASKS, self.task, self.task_source)):
            if source and name in registry and not registry.digest(name):
                raise BadInput(f"{registry.kind} '{name}' is part of this suite, and the record's is external code")

    def make_task(self) -> Task:
        if reason := _missing(TASKS, "--task", self.task, self.task_source):
            raise BadInput(reason)
        task: Task = TASKS[self.task](horizon=self.horizon, **self.task_params)
        return task

    def lengths(self) -> list[int]:
        """Lengths of the training and evaluation sequences, as far as the task reaches."""
        task = self.make_task()
        limit = task.max_horizon()
        return sorted({task.shape.length(k) for k in (self.horizon, *self.horizons) if limit is None or k <= limit})

    def geometry(self) -> Geometry:
        return Geometry(self.layers, self.heads, self.width, self.ffn, self.positions, self.attention, self.activation)

    def budget(self) -> int:
        shape = self.make_task().shape
        return count_built(lambda: reference(shape, self.geometry()))

    def make_model(self) -> nn.Module:
        if reason := self.missing_code():
            raise BadInput(reason)
        return build(self.arch, self.make_task().shape, self.budget(), self.geometry())

    def to_json(self) -> dict[str, Any]:
        """Plain values. Later fields are left out at their defaults, so that they change no older id."""
        values = {**vars(self), "horizons": list(self.horizons)}
        if self.elsewhere:
            return {k: v for k, v in values.items() if k not in UNKNOWN}
        return {k: v for k, v in values.items() if k not in LATER_DEFAULTS or v != LATER_DEFAULTS[k]}

    def id(self) -> str:
        version = None if self.task_source else TASKS.facts(self.task)["version"]  # a hash says more than a version
        law = {"config": self.to_json(), "task_version": version, "bench": VERSION}
        return hashlib.sha256(json.dumps(law, sort_keys=True).encode()).hexdigest()[:12]

    def newer_code(self, than: Path) -> str | None:
        """The architecture's own file if it is younger than what its run left behind: its id does not know.

        The id of a run with external code does know.
        """
        if self.arch_source:
            return None
        entry = inspect.unwrap(ARCHS[self.arch])  # of a registered mixer, the mixer
        code = Path(inspect.getfile(getattr(entry, "func", entry)))  # some are partials
        return f"models/{code.name}" if code.stat().st_mtime > than.stat().st_mtime else None


def mark_external(name: str, source: str) -> str:
    return f"{name} (external {source[7:15]})" if source else name


def _missing(registry: Registry, option: str, name: str, source: str) -> str | None:
    here = registry.digest(name)
    if source == here:
        return None
    if not here:
        return f"{registry.kind} '{name}' is external code, {source[:19]}: name its file with {option}"
    was = source[:19] or "part of this suite"
    return f"{registry.kind} '{name}' was {was} in this run, and what {option} names is {here[:19]}"


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
    values: dict[str, Any] = {**PRESETS[preset].values_for(task, overrides)}
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
    asked = values.pop("attention", "sdpa" if from_library(arch) else None)
    values = {key: value for key, value in values.items() if key in own}
    named: dict[str, Any] = {"arch": arch, "task": task, "preset": preset, "seed": seed, "device": device}
    named |= {"arch_source": ARCHS.digest(arch), "task_source": TASKS.digest(task)}
    config = RunConfig(**named, attention="math", task_params=task_params, **values)
    return replace(config, attention=pick_attention(device, asked, head_width, max(config.lengths(), default=0))[0])


def task_parameters(task: str) -> Mapping[str, Any]:
    """What a task takes besides its horizon, with what it is if nobody says."""
    return _parameters(TASKS[task])


@cache
def _parameters(task: Any) -> Mapping[str, Any]:
    own = {f.name for f in fields(RunConfig)}
    return MappingProxyType({f.name: f.default for f in fields(task) if f.name not in own})


def law(config: RunConfig) -> dict[str, Any]:
    """All parameters of its task; of external code, which need not be loaded, only those that were given."""
    usual = {} if config.task_source else task_parameters(config.task)
    return {**usual, **config.task_params}


FIELDS = TypeAdapter(RunConfig)


def check(config: RunConfig) -> None:
    """Refuse a config that cannot run, in one line."""
    try:
        FIELDS.validate_python(config)
    except ValidationError as error:
        raise BadInput(explain(error)) from error
    for name, allowed in CHOICES.items():
        if getattr(config, name) not in allowed:
            raise BadInput(f"{name} must be one of {', '.join(allowed)}, not '{getattr(config, name)}'")
    if config.device != "cuda" and config.precision != "fp32":
        raise BadInput(f"precision={config.precision} needs a GPU: a CPU trains in fp32")
    if config.device != "cuda" and ARCHS.facts(config.arch).get("cuda"):
        raise BadInput(f"{config.arch} runs on CUDA only, not on {config.device}")
    if config.attention == "triton" and from_library(config.arch):
        raise BadInput(f"{config.arch} has its library's attention: sdpa or math, not triton")
    if config.width % config.heads:
        raise BadInput(f"width {config.width} cannot be divided among {config.heads} heads")
    if config.positions == "rope" and config.width // config.heads % 2:
        raise BadInput(f"rope needs an even head width, not {config.width // config.heads}")
    for name, value in config.task_params.items():  # JSON, and so a record, has no others
        if isinstance(value, float) and not math.isfinite(value):
            raise BadInput(f"{name} must be a finite number, not {value}")
    try:
        with torch.device("meta"):
            model = config.make_model()  # checks the task's own parameters and the budget
        if config.value_lr != 1 and not any(hasattr(p, "value_rows") for p in model.parameters()):
            raise BadInput("it has no values, so value_lr changes nothing")
    except BadInput as error:
        raise BadInput(f"{config.arch} on {config.task}: {error}") from error
    except Exception as error:  # a type or a size that nothing can be built from, or a mistake in its file
        raise BadInput(f"no {config.arch} on {config.task} can be built from this: {describe_error(error)}") from error


def explain(error: ValidationError) -> str:
    """The first thing that pydantic found wrong, in one line and in our words."""
    first = error.errors(include_url=False)[0]
    name = ".".join(str(part) for part in first["loc"])
    value, limits = first["input"], first.get("ctx", {})
    match first["type"]:
        case "missing":
            return f"missing {name}"
        case "unexpected_keyword_argument":
            return f"unknown {name}"
        case "greater_than_equal":
            return f"{name} must be at least {limits['ge']}, not {value}"
        case "less_than_equal":
            return f"{name} must be at most {limits['le']}, not {value}"
        case "greater_than":
            return f"{name} must be a positive number, not {value}"
        case "finite_number":
            return f"{name} must be a finite number, not {value}"
        case "too_short":
            return f"{name} must not be empty"
        case "string_pattern_mismatch":
            return f"{name} {value[:60]!r} is not a name"
        case "literal_error":
            return f"{name} {value!r}, expected {limits['expected']}"
        case "json_invalid":
            return f"not readable as JSON ({limits['error']})"
    return f"{name or 'the file'} has the wrong type ({type(value).__name__})"


def parse_settings(pairs: list[str]) -> dict[str, Any]:
    """`key=value` pairs from the command line, each read as its field's own type."""
    known = {name: kind for name, kind in _field_types(RunConfig).items() if name not in FIXED}
    for name in TASKS.names():
        known |= _field_types(TASKS[name])
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


def _field_types(of: Any) -> dict[str, Any]:
    hints = typing.get_type_hints(of)
    return {f.name: hints[f.name] for f in fields(of)}


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
