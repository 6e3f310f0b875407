"""Checkpoints: what the next step of training depends on, in a file that loads without executing anything.

The batch of step i follows from the seed and i, so a run is its weights, its optimizers' tensors, the step, and the
losses since the last watch point. All of it stands in one safetensors file with a checksum over the whole, written
under a temporary name and renamed. Two files take turns, so that while one is written the other is complete:

<id>.checkpoint-a.safetensors, <id>.checkpoint-b.safetensors

A run that continues from one ends with the very bits of a run that was never interrupted, on the same machine and with
the same number of threads; the file says how many, and they are used again.
"""

from __future__ import annotations

import hashlib
import json
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from bench import snapshots, stop
from bench.config import RunConfig
from bench.device import cores, describe
from bench.records import write_whole

SCHEMA = 1


class BadCheckpoint(ValueError):
    """A file that is not a whole checkpoint of this run; the message says why."""


@dataclass(frozen=True)
class Pace:
    """How often a checkpoint is written."""

    steps: int = 500  # after so many steps
    seconds: float = 60.0  # or after so much time
    spare: float = (
        100.0  # but not before so many times what the last one cost: about 1 % of the training time at the most
    )


PACE = Pace()


@dataclass
class Position:
    """Where training stands."""

    step: int = 0  # steps done
    parts: int = 1  # pieces into which a batch is cut for want of memory
    seconds: float = 0.0
    data_seconds: float = 0.0
    curve: list[dict[str, Any]] = field(default_factory=list)
    losses: list[Tensor] = field(default_factory=list)  # since the last watch point, on the device
    notes: list[str] = field(default_factory=list)


class Keeper:
    """Keeps a run's checkpoints in a folder, or nothing where it has none."""

    def __init__(
        self,
        config: RunConfig,
        folder: Path | None = None,
        say: Callable[[str], None] = lambda _: None,
        pace: Pace | None = None,
        keep: int = 0,
    ) -> None:
        self.config, self.say, self.pace = config, say, pace or PACE
        self.album = snapshots.Album(folder / f"{config.id()}.json", config.steps, keep) if folder and keep else None
        self.files = (
            [] if folder is None else [folder / f"{config.id()}.checkpoint-{turn}.safetensors" for turn in "ab"]
        )
        self.at = Position()
        self.seconds_before = 0.0
        self.saved_step, self.saved_time, self.cost = 0, time.monotonic(), 0.0

    def restore(self, model: nn.Module, optimizers: list[Optimizer]) -> Position:
        """The newest whole checkpoint, put into model and optimizers; the beginning if there is none."""
        found: list[tuple[Path, dict[str, Any], dict[str, Tensor]]] = []
        for path in self.files:
            try:
                if path.exists():
                    state, tensors = parse(path.read_bytes())
                    check_fit(state, tensors, self.config, model, optimizers)
                    found.append((path, state, tensors))
            except (BadCheckpoint, OSError) as problem:
                self.say(f"  {path} is damaged ({problem}): not used")
        if found:
            path, state, tensors = max(found, key=lambda item: item[1]["step"])
            self.files.sort(key=lambda other: other == path)  # the next one goes to the other file
            self.at = put(state, tensors, model, optimizers)
            if state["platform"] != _platform(self.config):
                self.at.notes.append(f"continued at step {self.at.step} on another platform than before")
            if (threads := torch.get_num_threads()) != state["threads"]:
                self.at.notes.append(
                    f"continued at step {self.at.step} in {threads} threads, {state['threads']} before"
                )
            if code := self.config.newer_code(path):
                self.at.notes.append(f"continued at step {self.at.step} after a change to {code}")
                self.say(f"  {code} has changed since it was begun: with --fresh it would start over")
            self.say(
                f"  continuing {path.name.split('.')[0]} at step {self.at.step} of {self.config.steps}, from {path}"
            )
            if self.album and (lost := self.album.missing(self.at.step)):
                self.say(f"  no snapshots were kept at steps {', '.join(map(str, lost))}: with --fresh they would be")
        self.seconds_before = self.at.seconds
        self.saved_step, self.saved_time = self.at.step, time.monotonic()
        return self.at

    def stepped(self, model: nn.Module, optimizers: list[Optimizer]) -> None:
        """Called between steps: keep this one if it is time to, or if an end was asked for; in that case leave."""
        if self.album:
            self.album.stepped(self.at.step, model)
        waited = time.monotonic() - self.saved_time
        due = self.at.step - self.saved_step >= self.pace.steps or waited >= self.pace.seconds
        last = self.at.step == self.config.steps
        if stop.asked() is not None or (due and waited >= self.pace.spare * self.cost and not last):
            self.save(model, optimizers)
        stop.check()

    def save(self, model: nn.Module, optimizers: list[Optimizer]) -> None:
        start = time.monotonic()
        if self.files and all(t.isfinite().all() for t in model.state_dict().values() if t.is_floating_point()):
            write_whole(self.files[0], pack(self.at, self.config, model, optimizers))
            self.files.reverse()
        self.saved_step, self.saved_time = self.at.step, time.monotonic()
        self.cost = self.saved_time - start

    def remove(self) -> None:
        for path in self.files:
            path.unlink(missing_ok=True)


def pack(at: Position, config: RunConfig, model: nn.Module, optimizers: list[Optimizer]) -> bytes:
    tensors = {f"model/{name}": t for name, t in model.state_dict().items()}
    for i, optimizer in enumerate(optimizers):
        for name, p in model.named_parameters():
            for key, value in optimizer.state.get(p, {}).items():
                assert isinstance(value, Tensor), f"{type(optimizer).__name__} keeps a {type(value).__name__}"
                tensors[f"optimizer/{i}/{name}/{key}"] = value
    if at.losses:
        tensors["losses"] = torch.stack(at.losses)
    state = {
        "schema": SCHEMA, "run": config.id(), "step": at.step, "parts": at.parts, "seconds": at.seconds,
        "data_seconds": at.data_seconds, "curve": at.curve, "notes": at.notes, "threads": torch.get_num_threads(),
        "platform": _platform(config), "host": [name for name, t in tensors.items() if t.device.type == "cpu"],
    }  # fmt: skip
    return seal(state, {name: t.detach().contiguous().cpu() for name, t in tensors.items()})


def seal(state: dict[str, Any], tensors: dict[str, Tensor]) -> bytes:
    text = json.dumps(state, sort_keys=True, allow_nan=False)
    return safetensors.torch.save(tensors, {"state": text, "sha256": checksum(text, tensors)})


def checksum(text: str, tensors: dict[str, Tensor]) -> str:
    """Over the state, and over every tensor's name, type, shape and bytes."""
    digest = hashlib.sha256(text.encode())
    for name, t in sorted(tensors.items()):
        digest.update(f"{name} {t.dtype} {tuple(t.shape)}".encode())
        digest.update(t.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def parse(content: bytes) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """State and tensors of a file that is whole, or the reason why it is not."""
    try:
        (size,) = struct.unpack("<Q", content[:8])
        if size > len(content) - 8:
            raise BadCheckpoint("cut short")
        metadata = json.loads(content[8 : 8 + size])["__metadata__"]
        text, expected = metadata["state"], metadata["sha256"]
        tensors = safetensors.torch.load(content)
        whole = checksum(text, tensors) == expected
        state = json.loads(text)
    except BadCheckpoint:
        raise
    except Exception as error:  # whatever a damaged file makes of the readers: they execute nothing of it
        raise BadCheckpoint(f"not a checkpoint: {type(error).__name__}: {error}") from error
    if not whole:
        raise BadCheckpoint("its checksum is wrong")
    return state, tensors


def check_fit(
    state: Any, tensors: dict[str, Tensor], config: RunConfig, model: nn.Module, optimizers: list[Optimizer]
) -> None:
    """Refuse a checkpoint that is not one of this run, before any of it is used."""
    kinds = {
        "schema": int, "run": str, "step": int, "parts": int, "seconds": float, "data_seconds": float, "curve": list,
        "notes": list, "threads": int, "platform": str, "host": list,
    }  # fmt: skip
    if not isinstance(state, dict) or state.keys() != kinds.keys():
        raise BadCheckpoint("its state has the wrong fields")
    for name, kind in kinds.items():
        if not isinstance(state[name], kind) or isinstance(state[name], bool):
            raise BadCheckpoint(f"its {name} has the wrong type ({type(state[name]).__name__})")
    if state["schema"] != SCHEMA or state["run"] != config.id():
        raise BadCheckpoint(f"it belongs to run {state['run']}, schema {state['schema']}")
    if not (0 < state["step"] <= config.steps and 0 < state["parts"] <= config.batch and state["threads"] > 0):
        raise BadCheckpoint(f"step {state['step']}, parts {state['parts']}, threads {state['threads']}")
    expected = {f"model/{name}": t for name, t in model.state_dict().items()}
    for name, t in expected.items():
        if name not in tensors or tensors[name].shape != t.shape or tensors[name].dtype != t.dtype:
            raise BadCheckpoint(f"{name} is missing or of another shape")
    owners = dict(model.named_parameters())
    for name in sorted(tensors.keys() - expected.keys() - {"losses"}):
        part, number, owner, key = [*name.split("/"), "", "", ""][:4]
        if part != "optimizer" or number not in map(str, range(len(optimizers))) or owner not in owners or not key:
            raise BadCheckpoint(f"{name} has no place in this run")
        shape, owned = tensors[name].shape, owners[owner].shape
        if tensors[name].numel() != 1 and shape[len(shape) - len(owned) :] != owned:
            raise BadCheckpoint(f"{name} is of another shape")


def put(state: dict[str, Any], tensors: dict[str, Tensor], model: nn.Module, optimizers: list[Optimizer]) -> Position:
    """Copies, never views of the file: memory then lies as it does in a run that was not interrupted."""
    model.load_state_dict({name.removeprefix("model/"): t for name, t in tensors.items() if name.startswith("model/")})
    owners = dict(model.named_parameters())
    for name, t in tensors.items():
        if name.startswith("optimizer/"):
            _, number, owner, key = name.split("/")
            device = "cpu" if name in state["host"] else owners[owner].device
            optimizers[int(number)].state[owners[owner]][key] = t.clone().to(device)
    torch.set_num_threads(min(state["threads"], cores()))
    device = next(iter(owners.values())).device
    return Position(
        step=state["step"], parts=state["parts"], seconds=state["seconds"], data_seconds=state["data_seconds"],
        curve=state["curve"], losses=list(tensors["losses"].clone().to(device)) if "losses" in tensors else [],
        notes=state["notes"],
    )  # fmt: skip


def _platform(config: RunConfig) -> str:
    p = describe(config)
    return " ".join(str(part) for part in (p.device, p.name, p.torch, p.triton, p.dtype, p.attention))
