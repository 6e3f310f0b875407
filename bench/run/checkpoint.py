"""The checkpoint file: everything that the next training step depends on. Reading one executes nothing from it.

The batch of step i follows from the seed and i, so the state of a run is its weights, its optimizers' tensors, the step
and the losses since the last evaluation. All of it is one safetensors file with a checksum over its whole content.
bench.run.keeper decides when a checkpoint is written, and which one is used.
"""

from __future__ import annotations

import hashlib
import json
import struct
from dataclasses import dataclass, field
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from bench.config import RunConfig
from bench.device import describe

SCHEMA = 1
STATE_TYPES = {
    "schema": int,
    "run": str,
    "step": int,
    "parts": int,
    "seconds": float,
    "data_seconds": float,
    "curve": list,
    "notes": list,
    "threads": int,
    "platform": str,
    "host": list,  # names of the tensors that are kept in CPU memory, whatever the run's device
}


class BadCheckpoint(ValueError):
    """The file is not a complete checkpoint of this run; the message says why."""


@dataclass
class Position:
    """How far training has come."""

    step: int = 0  # steps done
    parts: int = 1  # pieces into which a batch is split because the whole does not fit into memory
    seconds: float = 0.0
    data_seconds: float = 0.0
    curve: list[dict[str, Any]] = field(default_factory=list)
    losses: list[Tensor] = field(default_factory=list)  # since the last evaluation, on the device
    notes: list[str] = field(default_factory=list)


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
        "schema": SCHEMA,
        "run": config.id(),
        "step": at.step,
        "parts": at.parts,
        "seconds": at.seconds,
        "data_seconds": at.data_seconds,
        "curve": at.curve,
        "notes": at.notes,
        "threads": torch.get_num_threads(),
        "platform": platform_name(config),
        "host": [name for name, t in tensors.items() if t.device.type == "cpu"],
    }
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
    """State and tensors of a complete file; BadCheckpoint for any other."""
    try:
        (size,) = struct.unpack("<Q", content[:8])
        if size > len(content) - 8:
            raise BadCheckpoint("the file is truncated")
        metadata = json.loads(content[8 : 8 + size])["__metadata__"]
        text, expected = metadata["state"], metadata["sha256"]
        tensors = safetensors.torch.load(content)
        intact = checksum(text, tensors) == expected
        state = json.loads(text)
    except BadCheckpoint:
        raise
    except Exception as error:  # a damaged file can raise anything in the readers; they execute nothing from it
        raise BadCheckpoint(f"not a checkpoint: {type(error).__name__}: {error}") from error
    if not intact:
        raise BadCheckpoint("its checksum is wrong")
    return state, tensors


def check_fit(
    state: Any, tensors: dict[str, Tensor], config: RunConfig, model: nn.Module, optimizers: list[Optimizer]
) -> None:
    """Raise BadCheckpoint if this is not a checkpoint of this run, before any of it is used."""
    _check_state(state, config)
    expected = {f"model/{name}": t for name, t in model.state_dict().items()}
    for name, t in expected.items():
        if name not in tensors or tensors[name].shape != t.shape or tensors[name].dtype != t.dtype:
            raise BadCheckpoint(f"{name} is missing or has another shape or type")
    owners = dict(model.named_parameters())
    for name in sorted(tensors.keys() - expected.keys() - {"losses"}):
        part, number, owner, key = [*name.split("/"), "", "", ""][:4]
        if part != "optimizer" or number not in map(str, range(len(optimizers))) or owner not in owners or not key:
            raise BadCheckpoint(f"this run has no tensor {name}")
        shape, owned = tensors[name].shape, owners[owner].shape
        if tensors[name].numel() != 1 and shape[len(shape) - len(owned) :] != owned:
            raise BadCheckpoint(f"{name} has another shape")


def _check_state(state: Any, config: RunConfig) -> None:
    if not isinstance(state, dict) or state.keys() != STATE_TYPES.keys():
        raise BadCheckpoint("its state has the wrong fields")
    for name, kind in STATE_TYPES.items():
        if not isinstance(state[name], kind) or isinstance(state[name], bool):
            raise BadCheckpoint(f"its {name} has the wrong type ({type(state[name]).__name__})")
    if state["schema"] != SCHEMA or state["run"] != config.id():
        raise BadCheckpoint(f"it belongs to run {state['run']}, schema {state['schema']}")
    if not (0 < state["step"] <= config.steps and 0 < state["parts"] <= config.batch and state["threads"] > 0):
        raise BadCheckpoint(f"step {state['step']}, parts {state['parts']}, threads {state['threads']}")


def put(state: dict[str, Any], tensors: dict[str, Tensor], model: nn.Module, optimizers: list[Optimizer]) -> Position:
    """Fill model and optimizers with copies, not views of the file: the memory layout of an uninterrupted run."""
    model.load_state_dict({name.removeprefix("model/"): t for name, t in tensors.items() if name.startswith("model/")})
    owners = dict(model.named_parameters())
    for name, t in tensors.items():
        if name.startswith("optimizer/"):
            _, number, owner, key = name.split("/")
            device = "cpu" if name in state["host"] else owners[owner].device
            optimizers[int(number)].state[owners[owner]][key] = t.clone().to(device)
    device = next(iter(owners.values())).device
    return Position(
        step=state["step"],
        parts=state["parts"],
        seconds=state["seconds"],
        data_seconds=state["data_seconds"],
        curve=state["curve"],
        losses=list(tensors["losses"].clone().to(device)) if "losses" in tensors else [],
        notes=state["notes"],
    )


def platform_name(config: RunConfig) -> str:
    p = describe(config)
    library = [f"transformers {p.transformers}"] if p.transformers else []
    parts = (p.device, p.name, p.torch, p.triton, p.dtype, p.attention, p.muon, *library)
    return " ".join(str(part) for part in parts)
