"""Code from outside: a file or an installed package that registers architectures or tasks.

    ./my_model.py               a file that registers one architecture
    ./my_model.py:name          one of several
    my_package.models:name      a module that can be imported
    name                        an entry point of an installed package, in tunnel_bench.architectures or .tasks,
                                whose value is the module: `name = "my_package.models"`
    hf:llama                    a model of the transformers library (models/hf.py); nothing is loaded for it here

Only the command line loads code; a record, a page or `bench list` never does. The text is read once and travels to
worker processes and to Ray, so that all runs of a command use the same code, even if the file is edited meanwhile.
A package must be installed wherever a run takes place; its text is compared there. The hash of a file covers that file
alone, the hash of a package all of its Python files; what they import from elsewhere is not covered.
"""

from __future__ import annotations

import linecache
import re
import sys
import types
import typing
from collections.abc import Iterable
from dataclasses import is_dataclass
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path

from bench.registry import NAME, BadInput, Code, Registry, describe_error, unknown
from models import hf
from models.base import ARCHS
from tasks.base import TASKS, Task

GROUPS = {"architecture": "tunnel_bench.architectures", "task": "tunnel_bench.tasks"}  # of entry points
MODULE = r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*"
MAX_BYTES = 1 << 22  # of a package's text, which is kept beside each record


def find(registry: Registry, word: str) -> str:
    """The registered name that a word of the command line stands for; code from outside is loaded for it."""
    if word in registry:
        return word
    if registry is ARCHS and word.startswith(hf.PREFIX):
        return hf.find(word.removeprefix(hf.PREFIX))
    if any(word == entry.name for entry in offered(registry)):
        word = _entry_point(registry, word)
    elif re.fullmatch(NAME, word) and not _is_module(word):
        known = (*registry.names(), *(entry.name for entry in offered(registry)))
        raise unknown(registry.kind, word, known)
    has_name = ":" in word and not word.endswith(".py")
    origin, name = word.rsplit(":", 1) if has_name else (word, "")
    code = read_code(origin)
    load(code)
    names = [each for each, known in registry.external().items() if known.digest == code.digest]
    if not has_name:
        name = _only(registry, code, names)
    if name not in names:
        raise unknown(f"{registry.kind} in {code.name}", name, names)
    if registry is TASKS:
        _check_task(name, code)
    return name


def load_words(archs: Iterable[str], tasks: Iterable[str]) -> None:
    """What --arch and --task name."""
    for registry, words in ((ARCHS, archs), (TASKS, tasks)):
        for word in words:
            find(registry, word)


def load(code: Code) -> None:
    """Run external code, once; what it registers carries its hash. If it fails, nothing stays registered."""
    known = loaded_code()
    if code in known or (code.is_file and code.digest in {each.digest for each in known}):  # or a copy of it
        return
    if code.is_file:
        _forget(code.origin)  # an earlier text of the same file
    try:
        with Registry.loading(code):
            if code.is_file:
                _run_text(code)
            else:
                _import_package(code)
    except BadInput as error:
        _forget(code.origin)
        raise BadInput(f"{code.name}: {error}") from error
    except (Exception, SystemExit) as error:
        _forget(code.origin)
        raise BadInput(f"{code.name} cannot be loaded: {describe_error(error)}") from error


def loaded_code() -> tuple[Code, ...]:
    """All external code of this process, for the processes that it starts."""
    return tuple(dict.fromkeys(code for registry in (ARCHS, TASKS) for code in registry.external().values()))


def offered(registry: Registry) -> list[EntryPoint]:
    """What installed packages offer, by name. Nothing is imported."""
    return sorted(entry_points(group=GROUPS[registry.kind]), key=lambda entry: entry.name)


def read_code(origin: str) -> Code:
    """The text of a file or of a package; nothing is run."""
    if origin.endswith(".py") or "/" in origin:
        path = Path(origin)
        try:
            return Code(str(path.resolve()), path.read_bytes().decode())
        except OSError as error:
            raise BadInput(f"cannot read {origin}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise BadInput(f"{origin} is not text in UTF-8") from error
    if not re.fullmatch(MODULE, origin):
        raise BadInput(f"'{origin}' is neither a file that ends in .py nor a module such as my_package.models")
    return Code(origin, _package_text(origin.partition(".")[0]))


def _is_module(word: str) -> bool:
    return (
        re.fullmatch(MODULE, word) is not None and word not in sys.stdlib_module_names and find_spec(word) is not None
    )


def _package_text(package: str) -> str:
    try:
        spec = find_spec(package)
    except ValueError:  # __main__
        spec = None
    if spec is None:
        raise BadInput(f"no package '{package}' here: install it, or name a file that ends in .py")
    folders = [Path(folder) for folder in spec.submodule_search_locations or ()]
    files = {
        f"{package}/{p.relative_to(folder)}": p
        for folder in folders
        for p in sorted(folder.rglob("*.py"))
        if p.is_file()
    }
    if not folders and spec.origin and spec.origin.endswith(".py"):
        files = {Path(spec.origin).name: Path(spec.origin)}
    if not files:
        raise BadInput(f"package '{package}' has no Python files here, so a record could not say what its code was")
    if sum(path.stat().st_size for path in files.values()) > MAX_BYTES:
        raise BadInput(
            f"package '{package}' has more than {MAX_BYTES >> 20} MiB of Python: use a file or a package alone"
        )
    try:
        return "".join(f"# {name}\n{path.read_text(errors='replace')}\n" for name, path in files.items())
    except OSError as error:
        raise BadInput(f"cannot read {error.filename}: {error.strerror}") from error


def _run_text(code: Code) -> None:
    """As an import would, from the text at hand. Tracebacks and Triton find it in linecache, whatever the disk has."""
    module = types.ModuleType(f"external_{code.digest[7:19]}")
    module.__file__ = code.origin
    linecache.cache[code.origin] = (len(code.text), None, code.text.splitlines(keepends=True), code.origin)
    sys.modules[module.__name__] = module  # dataclasses and type hints look there
    exec(compile(code.text.encode(), code.origin, "exec", dont_inherit=True), module.__dict__)


def _import_package(code: Code) -> None:
    if read_code(code.origin).digest != code.digest:
        raise BadInput("the package installed here is not the one that the command was started with")
    if code.origin in sys.modules and any(c.origin == code.origin for c in loaded_code()):
        raise BadInput("the package has changed since it was imported: start Python again")
    import_module(code.origin)


def _entry_point(registry: Registry, name: str) -> str:
    """`module:name` of the package that offers this name."""
    known = offered(registry)
    modules = sorted({entry.module for entry in known if entry.name == name})
    if len(modules) > 1:
        raise BadInput(f"several packages have {registry.kind} '{name}': choose {modules[0]}:{name} or another")
    can_be_registered = re.fullmatch(NAME, name)
    return f"{modules[0]}:{name}" if can_be_registered else modules[0]


def _only(registry: Registry, code: Code, names: list[str]) -> str:
    if not names:
        kind = "ARCHS" if registry is ARCHS else "TASKS"
        raise BadInput(f"{code.name} registers no {registry.kind}: decorate one with @{kind}.add('my-name')")
    if len(names) > 1:
        listed = ", ".join(names)
        raise BadInput(f"{code.name} registers several {registry.kind}s, {listed}: choose with {code.name}:{names[0]}")
    return names[0]


def _check_task(name: str, code: Code) -> None:
    """What the command line relies on before a run is built."""
    entry = TASKS[name]
    try:
        if not is_dataclass(entry) or "version" not in TASKS.facts(name):
            raise BadInput("it must be a frozen dataclass, registered with a version")
        typing.get_type_hints(entry)
        task: Task = TASKS[name](horizon=TASKS[name]().horizon)
        task.shape.length(task.horizon), task.max_horizon()
    except Exception as error:
        reason = str(error) if isinstance(error, BadInput) else describe_error(error)
        raise BadInput(f"task '{name}' in {code.name} cannot be used: {reason}") from error


def _forget(origin: str) -> None:
    for registry in (ARCHS, TASKS):
        registry.forget(origin)
