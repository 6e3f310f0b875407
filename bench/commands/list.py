"""`bench list`: tasks, architectures, presets and settings."""

from __future__ import annotations

import argparse
import sys
from dataclasses import fields

from rich.console import Console
from rich.table import Table
from rich.text import Text

from bench import external
from bench.config import CHOICES, FIXED, RunConfig, task_parameters
from bench.presets import PRESETS
from bench.registry import BadInput, Registry
from models import hf
from models.base import ARCHS
from models.kernels.attention import BACKENDS
from tasks.base import TASKS


def command(options: argparse.Namespace, console: Console) -> int:
    if options.arch:
        return list_library(options.arch, console)
    tables = (_registry("task", TASKS), _registry("architecture", ARCHS), _presets(), _settings())
    for table in tables:
        console.print(table)
        if table is not tables[-1]:
            console.print()
    return 0


def _registry(title: str, registry: Registry) -> Table:
    table = Table(title, "what it is", box=None, header_style="bold")
    for name in registry.names():
        facts = registry.facts(name)
        document = (sys.modules[registry[name].__module__].__doc__ or "").split("\n")[0] if title == "task" else ""
        table.add_row(name, facts.get("note", document))
    for entry in external.offered(registry):
        package = f"{entry.dist.name} {entry.dist.version}" if entry.dist else "unknown"
        taken = ", which has a name of ours and cannot be used" if entry.name in registry else ""
        table.add_row(entry.name, f"from package {package} ({entry.module}){taken}")
    if registry is ARCHS:
        table.add_row(f"{hf.PREFIX}TYPE", "models of the transformers library: bench list --arch hf")
    return table


def _presets() -> Table:
    table = Table("preset", "what it is", "seeds", "tasks", box=None, header_style="bold")
    for name, preset in PRESETS.items():
        table.add_row(name, preset.note, str(preset.seeds), ", ".join(preset.tasks))
    return table


def _settings() -> Table:
    table = Table("for --set", "what can be set", box=None, header_style="bold")
    choices = {**CHOICES, "attention": BACKENDS}
    table.add_row("every run", ", ".join(f.name for f in fields(RunConfig) if f.name not in FIXED | choices.keys()))
    table.add_row("", ", ".join(f"{name}={'|'.join(allowed)}" for name, allowed in choices.items()))
    for name in TASKS.names():
        if parameters := task_parameters(name):
            table.add_row(name, ", ".join(f"{parameter}={value}" for parameter, value in parameters.items()))
    return table


def list_library(name: str, console: Console) -> int:
    if name != "hf":
        raise BadInput(f"bench list --arch takes hf, the models of the transformers library, not '{name}'")
    version, works, larger, refused = (hf.types()[key] for key in ("transformers", "works", "larger", "refused"))
    count = len(works) + len(larger)
    console.print(f"Tried with transformers {version}: {count} types work, {len(refused)} do not.\n")
    console.print(", ".join(hf.PREFIX + kind for kind in works), highlight=False)
    console.print("\nWith larger budgets only (its least number of parameters on hmm):")
    console.print(", ".join(f"{hf.PREFIX}{kind} ({least:,})" for kind, least in larger.items()), highlight=False)
    console.print()
    table = Table("refused", "why", box=None, header_style="bold")
    for kind, reason in refused.items():
        table.add_row(hf.PREFIX + kind, Text(reason))
    console.print(table)
    return 0
