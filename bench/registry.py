"""Names to things, and the one error that is the user's own.

Imports nothing of ours, so that tasks and models may register themselves without knowing the bench.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from traceback import extract_tb
from typing import Any

NAME = r"[a-z0-9]+(-[a-z0-9]+)*"  # of tasks and architectures: they become folders


class BadInput(ValueError):
    """A user's mistake: shown as one line, exit code 2, no traceback."""


def unknown(kind: str, name: str, known: Iterable[str]) -> BadInput:
    """What was asked, what was probably meant, what is allowed."""
    names = sorted(known)
    close = get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f" Did you mean '{close[0]}'?" if close else ""
    return BadInput(f"no {kind} '{name}'.{hint} Known: {', '.join(names)}")


def load(package: str, folders: Iterable[str]) -> None:
    """Import every module of a package; one that cannot be is the mistake of who wrote it."""
    for module in iter_modules(folders):
        try:
            import_module(f"{package}.{module.name}")
        except BadInput:
            raise
        except Exception as error:
            raise BadInput(f"{package}/{module.name}.py cannot be loaded: {told(error)}") from error


def told(error: Exception) -> str:
    """What went wrong, and in which line of which file, in one line."""
    at = extract_tb(error.__traceback__)[-1]
    where = "" if isinstance(error, SyntaxError) else f" ({Path(at.filename).name}, line {at.lineno})"
    return f"{type(error).__name__}: {' '.join(str(error).split())}{where}"


class Registry:
    """A dictionary that is filled by decorators and answers a wrong name helpfully."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._entries: dict[str, Callable[..., Any]] = {}
        self._facts: dict[str, dict[str, Any]] = {}

    def add(self, name: str, **facts: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        def register(entry: Callable[..., Any]) -> Callable[..., Any]:
            if name in self._entries:
                raise BadInput(f"{self.kind} '{name}' is registered twice")
            if not re.fullmatch(NAME, name):
                raise BadInput(f"{self.kind} '{name}' needs another name: small letters and digits, with hyphens")
            self._entries[name] = entry
            self._facts[name] = facts
            return entry

        return register

    def __getitem__(self, name: str) -> Callable[..., Any]:
        if name not in self._entries:
            raise unknown(self.kind, name, self._entries)
        return self._entries[name]

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def facts(self, name: str) -> dict[str, Any]:
        self[name]  # raises for an unknown name
        return self._facts[name]

    def names(self) -> list[str]:
        return list(self._entries)
