"""Is a record true? Hash the weights, evaluate them again and compare every number.

On the platform of the record (device and its name, torch, Triton, dtype, attention, Muon, number of threads,
and transformers for its models) all numbers must be equal to the last bit. On another platform sums may be computed in
another order, so errors must agree within 1e-4 bits + 0.1 %. `--rerun` trains again. On the same platform the result
must be identical. On another, the error must be within a factor of 1.5 of the record's, or of 3 if both are in the
prediction interval of the other seeds in the record's folder (bench.stats).

Seconds, throughput and memory are not checked, because they differ from run to run.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from bench.config import RunConfig, check
from bench.device import cores, describe, has_gpu
from bench.records import BadRecord, RunRecord, read, record_files, weights_file
from bench.registry import BadInput
from bench.run.keeper import SHARED
from bench.run.run import evaluate, make_model, run_one, state_bytes, train_flops
from bench.run.score import predict, score
from bench.run.train import NOT_CAPTURED, watch_exam
from bench.stats import SLACK, prediction_interval
from models.base import ARCHS, count_parameters
from tasks.base import TASKS

ABSOLUTE_BITS, RELATIVE = 1e-4, 1e-3  # tolerance on another platform
WIDEST = 3.0  # limit for seeds that differ a lot: the interval of only two seeds allows almost anything
SAME = ("device", "name", "torch", "triton", "dtype", "attention", "muon", "transformers")
OLDER = {"muon": "float32"}  # what older records, all made on CPUs, do not name


@dataclass
class Verdict:
    path: Path
    holds: bool | None = None  # None: it could not be checked
    how: str = ""
    lacks_weights: bool = False  # and so only a rerun could check it
    differences: list[str] = field(default_factory=list)


def find(paths: list[Path]) -> list[Path]:
    """The given record files, and all record files in the given folders."""
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
    """A sample that is the same every time, chosen by the hash of the file name."""
    return sorted(sorted(paths, key=lambda path: hashlib.sha256(path.name.encode()).digest())[:size])


def verify(path: Path, rerun: bool) -> Verdict:
    verdict = Verdict(path)
    threads = torch.get_num_threads()
    try:
        record = read(path)
        config = record.config
        if config.elsewhere:
            verdict.how = "trained elsewhere: with its file, bench evaluate scores it again"
            return verdict
        if reason := config.missing_code():
            verdict.how = reason
            return verdict
        for kind, name, known in (("architecture", config.arch, ARCHS), ("task", config.task, TASKS)):
            if name not in known:
                verdict.how = f"there is no {kind} '{name}' here"
                return verdict
        check(config)
        if path.stem != record.id:
            raise BadRecord(f"the file should be named after its id, {record.id}")
        if config.device == "cuda" and not has_gpu():
            verdict.how = "the run used a GPU, and this machine has none"
            return verdict
        platform = describe(config).to_json()
        claimed = record.platform.get("threads")
        if isinstance(claimed, int) and 0 < claimed <= cores():
            torch.set_num_threads(claimed)
        same = all((OLDER | record.platform).get(name) == platform.get(name) for name in SAME)
        changed = set(record.notes) - {SHARED, NOT_CAPTURED}  # it moved, or its batch was cut
        same &= claimed == torch.get_num_threads() and not changed
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
    if not record.ok:
        verdict.how, verdict.lacks_weights = "a failed run has no weights: only --rerun can verify it", True
        return
    file = weights_file(verdict.path)
    if not file.exists():
        verdict.how, verdict.lacks_weights = "it has no weights: only --rerun can verify it", True
        return
    content = file.read_bytes()
    model = make_model(config)
    try:
        model.load_state_dict(safetensors.torch.load(content))
    except Exception as error:  # safetensors and torch raise several types; the file is data and is never executed
        reason = " ".join(str(error).split())
        raise BadRecord(f"{file.name} does not hold this model's weights ({reason})") from error
    task = config.make_task()
    found = {
        "budget": config.budget(),
        "parameters": count_parameters(model),
        "state_bytes": state_bytes(model, task.shape.length(config.horizon)),
        "train_flops": train_flops(config),
        "weights": f"sha256:{hashlib.sha256(content).hexdigest()}",
        **evaluate(model, task, config),
    }
    watch = watch_exam(task, config)
    last = asdict(record.loss_curve[-1]) if record.loss_curve else {}
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
            {name: value for name, value in r.to_json().items() if name not in skip} for r in (record, again)
        )
        for data in (claimed, found):
            for look in data["loss_curve"]:
                del look["seconds"]
        verdict.differences += compare(claimed, found, exact=True)
        verdict.how += "every number equal"
    elif record.status != again.status:
        verdict.differences.append(f"status: {record.status} in the record, {again.status} here")
    elif record.ok:
        claim, number = record.error_bits, again.error_bits
        verdict.how += f"entropy_mae {number:.4g} here, {claim:.4g} in the record, allowed a factor of {SLACK}"
        bounds = expected_range(record, verdict.path)
        if bounds:
            verdict.how += f", or of {WIDEST:g} with both in {bounds[0]:.4g} to {bounds[1]:.4g}"
        factor = WIDEST if bounds and all(bounds[0] <= x <= bounds[1] for x in (claim, number)) else SLACK
        if not claim / factor <= number <= claim * factor:
            verdict.differences.append(f"entropy_mae: {number:.6g} here, {claim:.6g} in the record")
    verdict.holds = not verdict.differences


def expected_range(record: RunRecord, path: Path) -> tuple[float, float] | None:
    """The prediction interval for this config from the other seeds in the folder; None with fewer than two.

    The record itself is left out, because a false record would widen the interval that it is checked against.
    """
    values = []
    for other in sorted(path.parent.glob("*.json")):
        try:
            sibling = read(other)
        except BadRecord:
            continue
        same_row = replace(sibling.config, seed=record.config.seed) == record.config
        if sibling.id != record.id and sibling.ok and same_row:
            values.append(sibling.error_bits)
    return prediction_interval(values)


def compare(claimed: Any, found: Any, exact: bool, name: str = "") -> list[str]:
    """One line for every difference between two nested structures."""
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
