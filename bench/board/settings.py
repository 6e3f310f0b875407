"""Settings of a run against its preset's: which are usual, and which two runs must share to be compared."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from bench.config import LATER_DEFAULTS, SEARCHED, RunConfig, law
from bench.presets import PRESETS


def task_settings(config: RunConfig) -> tuple[dict[str, Any], dict[str, Any]]:
    """All of a task's parameters, as this run had them and as its preset has them."""
    horizon = {"horizon": config.horizon}
    return law(config) | horizon, law(replace(config, task_params={})) | horizon | preset_values(config)


def preset_values(config: RunConfig) -> dict[str, Any]:
    """The preset's values for this task; none for an unknown preset."""
    preset = PRESETS.get(config.preset)
    return {**LATER_DEFAULTS, **preset.values_for(config.task, config.task_params)} if preset else {}


def is_preset_default(config: RunConfig) -> bool:
    """Every setting is its preset's or was searched; supervision and horizons have tables or columns of their own."""
    usual = preset_values(config)
    elsewhere = {"supervision", "horizons", "arch_source", "task_source", "tuning"}
    elsewhere |= set(SEARCHED) if config.tuning else set()
    return bool(usual) and all(usual[k] == v for k, v in vars(config).items() if k in usual and k not in elsewhere)


def comparable_settings(config: RunConfig) -> str:
    """The settings that two architectures must share to be compared. Those that were searched may differ."""
    ignored = ("arch", "arch_source", "seed", *(SEARCHED if config.tuning else ()))
    shared = {k: v for k, v in vars(config).items() if k not in ignored}
    shared |= {"tuning": bool(config.tuning), "task_params": law(config)}
    return json.dumps(shared, sort_keys=True)
