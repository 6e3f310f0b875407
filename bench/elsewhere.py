"""A model that was trained elsewhere: loaded from a user's file, scored, and kept as a record that says so.

`FILE:function` names a function without arguments that returns the model, a callable as in `bench.library.score`. It is
the user's own code, which they asked to run; no record ever causes a file to be loaded.

The record's config has `elsewhere`, the file's name and hash. Everything that only a training here could tell is null.
"""

from __future__ import annotations

import hashlib
import importlib.util
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

from torch import Tensor, nn

from bench.config import UNKNOWN
from bench.device import describe
from bench.library import Scored, describe_task, score_config
from bench.records import SCHEMA, Memory, RunRecord, Seconds
from bench.registry import NAME, BadInput, describe_error, unknown
from bench.run.outside import Predictor
from bench.run.source import loaded_source
from bench.seeds import PUBLISHED_FROM
from models.base import ARCHS, count_parameters


class Loaded(NamedTuple):
    model: Predictor
    name: str  # of its row: the file's and the function's
    source: dict[str, str]  # what the record says of it
    parameters: int | None  # known of a torch module


def load(spec: str) -> Loaded:
    """The model that FILE:function returns. Errors of the user's code become one line."""
    place, colon, function = spec.rpartition(":")
    if not colon or not place or not function:
        raise BadInput(f"--model takes FILE:function, as in ./mine.py:load, not '{spec}'")
    path = Path(place)
    if not path.is_file() or path.suffix != ".py":
        raise BadInput(f"no Python file {path}")
    name = re.sub(r"[^a-z0-9]+", "-", f"{path.stem}-{function}".lower()).strip("-")
    if not re.fullmatch(NAME, name) or name in ARCHS:
        raise BadInput(f"'{name}' cannot be the name of a row: rename the file or the function")
    content = path.read_bytes()
    sys.path.insert(0, str(path.parent.resolve()))  # files beside it can be imported, as with `python FILE`
    try:
        module = _import(path)
        known = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        if function not in known:
            raise unknown(f"function in {path.name}", function, known)
        model = _call(f"{path.name}:{function}", getattr(module, function))
    finally:
        sys.path.pop(0)
    if not callable(model):
        raise BadInput(f"{path.name}:{function} returns a {type(model).__name__}, not a model that can be called")
    source = {"model": f"{path.name}:{function}", "sha256": hashlib.sha256(content).hexdigest()}
    return Loaded(model, name, source, count_parameters(model) if isinstance(model, nn.Module) else None)


def _import(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(f"elsewhere_{path.stem}", path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[module.__name__] = module  # dataclasses look their module up there
    _call(path.name, lambda: spec.loader.exec_module(module))  # type: ignore[union-attr]
    return module


def _call(what: str, work: Callable[[], Any]) -> Any:
    try:
        return work()
    except BadInput:
        raise
    except (Exception, SystemExit) as error:
        raise BadInput(f"{what} failed: {describe_error(error)}") from error


class Guarded(nn.Module):
    """The user's model; its exceptions become one line."""

    def __init__(self, loaded: Loaded) -> None:
        super().__init__()
        self.model, self.what = loaded.model, loaded.source["model"]
        self.max_length: int | None = getattr(loaded.model, "max_length", None)

    def forward(self, tokens_BT: Tensor, features_BTF: Tensor) -> Any:
        what = f"the model of {self.what}, called with tokens {list(tokens_BT.shape)},"
        return _call(what, lambda: self.model(tokens_BT, features_BTF))


def evaluate(
    loaded: Loaded,
    task: str,
    preset: str,
    device: str,
    horizons: Sequence[int] | None,
    parameters: Mapping[str, Any],
) -> tuple[RunRecord, dict[int, Scored]]:
    """Score it; returns its record, and the same numbers with their intervals."""
    config = describe_task(task, preset, PUBLISHED_FROM, device, horizons, parameters)
    platform = {**describe(config).to_json(), "attention": None, "dtype": None, "why": "trained elsewhere", "gpu": None}
    config = replace(config, arch=loaded.name, elsewhere=loaded.source, **UNKNOWN)
    started = perf_counter()
    scored = score_config(Guarded(loaded), config)
    seconds = perf_counter() - started
    commit, dirty = loaded_source()
    record = RunRecord(
        schema=SCHEMA, id=config.id(), status="ok", error=None, config=config, budget=None,
        parameters=loaded.parameters, state_bytes=None, train_flops=None,
        metrics={str(k): _values(at) for k, at in scored.items()},
        references={str(k): at.references for k, at in scored.items()},
        by_position={str(k): at.by_position or None for k, at in scored.items()},
        loss_curve=[], seconds=Seconds(eval=round(seconds, 3)), tokens_per_second=None, memory_bytes=Memory(),
        energy_joules=None, platform=platform, commit=commit, dirty=dirty, weights=None,
    )  # fmt: skip
    return record, scored


def _values(at: Scored) -> dict[str, dict[str, float]] | None:
    parts = {part: {name: estimate.value for name, estimate in row.items()} for part, row in at.metrics.items()}
    return parts or None
