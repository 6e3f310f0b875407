"""Does a record say what its run did? Re-hash the weights, evaluate them again, compare every number.

On the platform of the record (device, its name, torch, Triton, dtype, attention, as many threads) numbers must be equal
to the last bit; elsewhere a sum may run in another order, and errors must agree within 1e-4 bits + 0.1 %. `--rerun`
trains again: on the same platform the result must be the same, elsewhere within a factor of 1.5 of the record's; of 3
where both lie where a further run may fall, given the other seeds beside the record (bench.stats).

Not checked, because no second look can: seconds, throughput and memory.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from bench.config import RunConfig, check
from bench.device import cores, describe, pick_device
from bench.records import BadRecord, RunRecord, parse_config, read, record_files
from bench.registry import BadInput
from bench.run import evaluate, make_model, run_one, state_bytes, step_flops
from bench.score import predict, score
from bench.stats import further
from bench.train import watched
from models.base import ARCHS, count_parameters
from tasks.base import TASKS

ABSOLUTE_BITS, RELATIVE = 1e-4, 1e-3  # off the platform
FACTOR = 1.5  # between a record and its rerun elsewhere
WIDEST = 3.0  # where the seeds differ by as much; two of them alone would allow nearly anything
SAME = ("device", "name", "torch", "triton", "dtype", "attention")


@dataclass
class Verdict:
    path: Path
    holds: bool | None = None  # None: it could not be checked
    how: str = ""
    differences: list[str] = field(default_factory=list)


def find(paths: list[Path]) -> list[Path]:
    """Record files: those named, and all below the folders named."""
    found: list[Path] = []
    for path in paths:
        if not path.exists():
            raise BadInput(f"no record or folder {path}")
        inside = record_files(path) if path.is_dir() else [path]
        if not inside:
            raise BadInput(f"no records in {path}")
        found += inside
    return found


def sample(paths: list[Path], size: int) -> list[Path]:
    """So many of them, the same ones every time, in no order that anybody chose."""
    return sorted(sorted(paths, key=lambda path: hashlib.sha256(path.name.encode()).digest())[:size])


def verify(path: Path, rerun: bool) -> Verdict:
    verdict = Verdict(path)
    threads = torch.get_num_threads()
    try:
        record = read(path)
        config = parse_config(record.config)
        for kind, name, known in (("architecture", config.arch, ARCHS), ("task", config.task, TASKS)):
            if name not in known:
                verdict.how = f"there is no {kind} '{name}' here"
                return verdict
        check(config)
        if path.stem != record.id:
            raise BadRecord(f"its name is not its id, {record.id}")
        if config.device == "cuda" and pick_device("auto")[0] != "cuda":
            verdict.how = "it was made on a GPU, and here is none"
            return verdict
        platform = describe(config).to_json()
        claimed = record.platform.get("threads")
        if isinstance(claimed, int) and 0 < claimed <= cores():
            torch.set_num_threads(claimed)
        same = all(record.platform.get(name) == platform[name] for name in SAME)
        same &= claimed == torch.get_num_threads() and not record.notes  # moved, or cut into parts, on the way
        (run_again if rerun else evaluate_again)(record, config, same, verdict)
    except (BadRecord, BadInput) as problem:
        verdict.holds, verdict.how = False, "damaged"
        verdict.differences.append(str(problem))
    finally:
        torch.set_num_threads(threads)
    detail = ("references", "loss_curve", "by_position")
    verdict.differences.sort(key=lambda line: (line.startswith(detail), not line.startswith("weights")))
    return verdict


def evaluate_again(record: RunRecord, config: RunConfig, same: bool, verdict: Verdict) -> None:
    if record.status != "ok":
        verdict.how = "a failed run has no weights: only --rerun can verify it"
        return
    file = verdict.path.with_suffix(".safetensors")
    if not file.exists():
        verdict.how = "weights not here: only --rerun can verify it"
        return
    content = file.read_bytes()
    model = make_model(config)
    try:
        model.load_state_dict(safetensors.torch.load(content))
    except Exception as error:  # safetensors and torch have several; the file is data, and is never executed
        reason = " ".join(str(error).split())
        raise BadRecord(f"{file.name} does not hold this model's weights ({reason})") from error
    task = config.make_task()
    found = {
        "budget": config.budget(),
        "parameters": count_parameters(model),
        "state_bytes": state_bytes(model, task.shape.length(config.horizon)),
        "train_flops": float(config.steps * step_flops(config)),
        "weights": f"sha256:{hashlib.sha256(content).hexdigest()}",
        **evaluate(model, task, config),
    }
    watch = watched(task, config)
    last = record.loss_curve[-1] if record.loss_curve else {}
    claimed = {**{name: getattr(record, name) for name in found}, "last_look": last}
    found["last_look"] = {
        **last,
        "step": config.steps,
        "entropy_mae": score(watch, predict(model, watch.batch)).summary()["entropy_mae"],
    }
    verdict.differences += compare(claimed, found, exact=same)
    verdict.holds = not verdict.differences
    verdict.how = "weights evaluated again, " + (
        "every number equal" if same else f"within {ABSOLUTE_BITS:g} bits + {RELATIVE:.1%}: another platform"
    )


def run_again(record: RunRecord, config: RunConfig, same: bool, verdict: Verdict) -> None:
    again, _ = run_one(config)
    verdict.how = "trained again, "
    if same:
        skip = ("seconds", "tokens_per_second", "memory_bytes", "energy_joules", "platform", "commit", "dirty", "notes")
        claimed, found = (
            {name: value for name, value in asdict(r).items() if name not in skip} for r in (record, again)
        )
        for data in (claimed, found):
            data["loss_curve"] = [
                {name: value for name, value in dict(point).items() if name != "seconds"}
                for point in data["loss_curve"]
            ]
        verdict.differences += compare(claimed, found, exact=True)
        verdict.how += "every number equal"
    elif record.status != again.status:
        verdict.differences.append(f"status: {record.status} in the record, {again.status} here")
    elif record.status == "ok":
        claim, number = (r.metrics[str(config.horizon)]["all"]["entropy_mae"] for r in (record, again))
        verdict.how += f"entropy_mae {number:.4g} here, {claim:.4g} in the record, allowed a factor of {FACTOR}"
        bounds = further_run(record, verdict.path)
        if bounds:
            verdict.how += f", or of {WIDEST:g} with both in {bounds[0]:.4g} to {bounds[1]:.4g}"
        factor = WIDEST if bounds and all(bounds[0] <= x <= bounds[1] for x in (claim, number)) else FACTOR
        if not claim / factor <= number <= claim * factor:
            verdict.differences.append(f"entropy_mae: {number:.6g} here, {claim:.6g} in the record")
    verdict.holds = not verdict.differences


def further_run(record: RunRecord, path: Path) -> tuple[float, float] | None:
    """Where a further run of this config may fall, given the other seeds in the same folder; None if there is but one.

    The record itself has no say: a false one would widen what it is held against.
    """

    def law(config: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in config.items() if name != "seed"}

    values = []
    for other in sorted(path.parent.glob("*.json")):
        try:
            sibling = read(other)
        except BadRecord:
            continue
        if sibling.id != record.id and sibling.status == "ok" and law(sibling.config) == law(record.config):
            values.append(sibling.metrics[str(record.config["horizon"])]["all"]["entropy_mae"])
    return further(values)


def compare(claimed: Any, found: Any, exact: bool, name: str = "") -> list[str]:
    """Every place where two trees differ, by name."""
    return list(_compare(claimed, found, exact, name))


def _compare(claimed: Any, found: Any, exact: bool, name: str) -> Iterator[str]:
    if isinstance(claimed, dict) and isinstance(found, dict):
        for key in sorted(claimed.keys() | found.keys()):
            path = f"{name}.{key}" if name else str(key)
            if key not in claimed or key not in found:
                yield f"{path}: only in the {'record' if key in claimed else 'rerun'}"
            else:
                yield from _compare(claimed[key], found[key], exact, path)
    elif isinstance(claimed, list) and isinstance(found, list) and len(claimed) == len(found):
        for i, (a, b) in enumerate(zip(claimed, found, strict=True)):
            yield from _compare(a, b, exact, f"{name}[{i}]")
    elif claimed != found and (exact or not _close(claimed, found)):
        yield f"{name}: {claimed!r} in the record, {found!r} here"


def _close(claimed: Any, found: Any) -> bool:
    numbers = isinstance(claimed, float) and isinstance(found, float)
    return numbers and abs(claimed - found) <= ABSOLUTE_BITS + RELATIVE * abs(found)
