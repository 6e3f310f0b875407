"""The commands, a module each: it checks what was asked, calls the rooms that do the work, and prints.

In: parsed options. Out: an exit code. This room may use every other one. A module is imported when its command is
called, so a command waits only for the libraries that it needs; pages.py is what several commands share.
"""

from __future__ import annotations

import argparse
from importlib import import_module

from rich.console import Console


def call(options: argparse.Namespace, console: Console) -> int:
    """Run the command that was asked for, from the module of its name."""
    code: int = import_module(f"bench.commands.{options.command}").command(options, console)
    return code
