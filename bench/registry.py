"""Names to things, where their code comes from, and the one error that is the user's own.

Imports nothing of ours, so that tasks and models may register themselves without knowing the bench.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from importlib import import_module
from os.path import isabs
from pathlib import Path
from pkgutil import iter_modules
from traceback import extract_tb
from typing import Any, ClassVar

NAME = r"[a-z0-9]+(-[a-z0-9]+)*"  # of tasks and architectures: they become folders
LONGEST_NAME = 64
# Folders and pages that results have beside those of tasks and architectures, and words of the command line.
RESERVED = {"all", "claims", "compare", "leaderboard", "readme", "rules", "seeds", "self-reported", "tensorboard"}
RESERVED |= {"tuning", "weights"}
OURS = {"bench", "models", "tasks"}  # the packages of this suite


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
            raise BadInput(f"{package}/{module.name}.py cannot be loaded: {describe_error(error)}") from error


def describe_error(error: BaseException) -> str:
    """What went wrong, and in which line of which file, in one line."""
    at = extract_tb(error.__traceback__)[-1]
    where = "" if isinstance(error, SyntaxError) else f" ({Path(at.filename).name}, line {at.lineno})"
    return f"{type(error).__name__}: {' '.join(str(error).split())}{where}"


@dataclass(frozen=True)
class Code:
    """A file or a package from outside this suite. Whatever it registers carries its hash."""

    origin: str  # a file's absolute path, or the name of a module
    text: str  # of the file, or of every file of the module's package

    @property
    def is_file(self) -> bool:
        return isabs(self.origin)

    @property
    def name(self) -> str:
        return Path(self.origin).name if self.is_file else self.origin

    @property
    def digest(self) -> str:
        from hashlib import sha256  # loads OpenSSL, which --help need not wait for

        return f"sha256:{sha256(self.text.encode()).hexdigest()}"


class Registry:
    """A dictionary that is filled by decorators and answers a wrong name helpfully."""

    _loading: ClassVar[Code | None] = None  # the external code that is being imported

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._entries: dict[str, Callable[..., Any]] = {}
        self._facts: dict[str, dict[str, Any]] = {}
        self._code: dict[str, Code] = {}  # of the external entries

    def add(self, name: str, **facts: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        def register(entry: Callable[..., Any]) -> Callable[..., Any]:
            if name in self._entries:
                raise BadInput(f"{self.kind} '{name}' is registered already: choose another name")
            if not re.fullmatch(NAME, name):
                raise BadInput(f"{self.kind} '{name}' needs another name: small letters and digits, with hyphens")
            if len(name) > LONGEST_NAME:
                raise BadInput(f"{self.kind} '{name[:20]}...' needs a name of at most {LONGEST_NAME} letters")
            if name in RESERVED:
                raise BadInput(f"{self.kind} '{name}' needs another name: results have a folder or a page of that name")
            self._entries[name] = entry
            self._facts[name] = facts
            if Registry._loading is not None:
                self._code[name] = Registry._loading
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
        """Without those that need an extra to be installed: `all` does not mean them."""
        return [name for name, facts in self._facts.items() if "extra" not in facts]

    @staticmethod
    @contextmanager
    def loading(code: Code) -> Iterator[None]:
        """What is registered meanwhile belongs to this code."""
        Registry._loading = code
        try:
            yield
        finally:
            Registry._loading = None

    def external(self) -> dict[str, Code]:
        """The code of every entry that is not part of this suite."""
        return dict(self._code)

    def digest(self, name: str) -> str:
        """The hash of an external entry's code; empty for ours and for unknown names."""
        return self._code[name].digest if name in self._code else ""

    def registered_here(self, name: str) -> bool:
        """Whether the running program has registered it itself: no file is known that a record could name."""
        entry = self[name]
        while isinstance(entry, partial) and "__module__" not in vars(entry):
            entry = entry.func
        return name not in self._code and entry.__module__.partition(".")[0] not in OURS

    def forget(self, origin: str) -> None:
        """Remove what external code has registered."""
        for name in [name for name, code in self._code.items() if code.origin == origin]:
            del self._entries[name], self._facts[name], self._code[name]
