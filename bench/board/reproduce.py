"""The commands that check a run and that make it again."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from bench.config import FIXED, LATER_DEFAULTS, SEARCHED, RunConfig, draft
from bench.presets import PRESETS
from bench.records import RunRecord


def commands(record: RunRecord, place: Path) -> list[str]:
    """`place` is where the record lies. A commit does not contain the records that were made with it."""
    code = kept_code(record.config, place)
    if record.config.elsewhere:
        return [evaluate_command(record.config, code)]
    found = [shlex.join(["bench", "verify", str(place), "--rerun", *code])] if record.ok else []
    changed = changed_settings(record.config)
    # a setting at its later default may be newer than the commit, which would refuse it
    is_newer = any(name in LATER_DEFAULTS and value == LATER_DEFAULTS[name] for name, value in changed.items())
    if record.commit and not is_newer:
        found.append(shlex.join(["git", "checkout", record.commit]))
    return [*found, run_command(record.config, changed, code)]


def evaluate_command(c: RunConfig, code: Sequence[str]) -> str:
    """The command for a reader who has the file. It names every parameter of the task."""
    words = ["bench", "evaluate", "--preset", c.preset, *(code or ["--task", c.task]), "--device", c.device]
    words += ["--model", c.elsewhere.get("model", ""), "--horizons", *map(str, c.horizons)]
    settings = {**c.task_params, "horizon": c.horizon, "sequences": c.sequences}
    return shlex.join([*words, "--set", *(f"{name}={value}" for name, value in settings.items())])


def kept_code(c: RunConfig, place: Path) -> list[str]:
    """Options that name the external code kept beside a record. A package has to be installed instead."""
    kept = [("--arch", c.arch, place.with_suffix(".arch.py")), ("--task", c.task, place.with_suffix(".task.py"))]
    return [word for option, name, file in kept if file.exists() for word in (option, f"{file}:{name}")]


def run_command(c: RunConfig, changed: dict[str, object], code: Sequence[str] = ()) -> str:
    words = ["bench", "run", "--preset", c.preset, *code]
    for option, name in (("--arch", c.arch), ("--task", c.task)):
        words += [] if option in code else [option, name]
    words += ["--first-seed", str(c.seed), "--seeds", "1", "--supervision", c.supervision, "--device", c.device]
    words += ["--tune"] if c.tuning else []
    settings = [f"{k}={','.join(map(str, v)) if isinstance(v, tuple) else v}" for k, v in changed.items()]
    return shlex.join([*words, *(["--set", *settings] if settings else [])])


def changed_settings(c: RunConfig) -> dict[str, object]:
    """All settings that are not the preset's."""
    if c.preset not in PRESETS:
        return {}
    if c.task_source:  # showing a record does not load its code
        preset = PRESETS[c.preset].values_for(c.task)
        known = {k: v for k, v in preset.items() if k not in ("supervision", "horizons") and hasattr(c, k)}
        return {k: getattr(c, k) for k, v in known.items() if getattr(c, k) != v} | {
            "horizons": c.horizons,
            **c.task_params,
        }
    usual = draft(c.preset, "transformer", c.task, c.seed, c.device, {})  # no setting depends on the architecture
    skipped = FIXED | {"supervision"} | set(SEARCHED if c.tuning else ())
    changed = {k: v for k, v in vars(c).items() if k not in skipped and v != getattr(usual, k)}
    # a new width would derive another ffn, a new horizon other horizons
    for cause, derived in (("width", "ffn"), ("horizon", "horizons")):
        if cause in changed:
            changed[derived] = getattr(c, derived)
    return changed | {k: v for k, v in c.task_params.items() if usual.task_params.get(k) != v}
