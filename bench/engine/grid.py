"""The grid of runs that the options of `bench run` span: every point is checked before the first one runs."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Sequence

from bench import external
from bench.config import RunConfig, compose, parse_settings
from bench.presets import PRESETS
from bench.registry import BadInput, Registry, unknown
from bench.run.contract import require_lawful_code
from bench.seeds import PUBLISHED_FROM
from models import hf
from models.base import ARCHS
from tasks.base import TASKS


def make_configs(options: argparse.Namespace, device: str, try_code: bool = True) -> list[RunConfig]:
    """Check and return every config. External code is tried out here, unless the device is on another machine."""
    if options.preset not in PRESETS:
        raise unknown("preset", options.preset, [*PRESETS, "auto"])
    preset = PRESETS[options.preset]
    seeds = preset.seeds if options.seeds is None else options.seeds
    counts = {
        "--seeds": seeds, "--jobs": options.jobs, "--per-gpu": options.per_gpu, "--checkpoints": options.checkpoints,
    }  # fmt: skip
    for name, value in counts.items():
        if value is not None and value < 1:
            raise BadInput(f"{name} must be at least 1, not {value}")
    first = PUBLISHED_FROM if options.first_seed is None else options.first_seed
    if first < 0:
        raise BadInput(f"--first-seed must be at least 0, not {first}")
    if options.tune and first < PUBLISHED_FROM:
        raise BadInput(f"--tune searches on seeds below {PUBLISHED_FROM}: its rows need others")
    tasks = named(TASKS, options.task or preset.tasks)  # first: external tasks have settings of their own
    archs = named(ARCHS, options.arch or preset.archs)
    settings = parse_settings(options.settings)
    if options.supervision and "supervision" in settings:
        raise BadInput("supervision is given twice: with --supervision and with --set")
    supervision = options.supervision or [settings.get("supervision")]
    grid = itertools.product(tasks, archs, supervision, range(first, first + seeds))
    configs: dict[str, RunConfig] = {}
    for task, arch, track, seed in grid:
        overrides = {**settings, **({"supervision": track} if track else {})}
        config = compose(preset.name, arch, task, seed, device, overrides)
        configs[config.id()] = config
    if try_code:
        foreign = [c for c in configs.values() if c.arch_source or c.task_source or hf.from_library(c.arch)]
        for config in {(c.task, c.arch): c for c in foreign}.values():
            require_lawful_code(config)
    return list(configs.values())


def named(registry: Registry, words: Sequence[str]) -> list[str]:
    """Registered names of the words that were given; `all` stands for everything in this suite."""
    found = [external.find(registry, word) for word in words if word != "all"]
    ours = [name for name in registry.names() if not registry.digest(name)]
    return list(dict.fromkeys([*ours, *found])) if "all" in words else found
