"""PTX text as a list of instructions."""

from __future__ import annotations

import re
from typing import NamedTuple

OPERAND = re.compile(r"\{[^}]*\}|\[[^\]]*\]|[^,\s]+")
STATEMENT = re.compile(r"(?:@(!?)(%\w+)\s+)?([a-z][\w.:]*)\s*(.*)", re.DOTALL)


class Fault(Exception):
    """A kernel did what no kernel may do, or what this interpreter does not know."""


class Instruction(NamedTuple):
    guard: str | None  # the predicate register under which it is executed
    negated: bool
    name: tuple[str, ...]  # "ld.global.v4.b32" as its parts
    operands: tuple[str, ...]
    text: str


class Program:
    """One kernel: `parameters` as (type, name), threads in a block, code, and where its labels point."""

    def __init__(self, text: str) -> None:
        head, _, body = text.partition("\n{\n")
        self.parameters = re.findall(r"\.param \.(\w+)[^\n]*?(\w+_param_\d+)", head)
        found = re.search(r"\.reqntid (\d+)", head)
        if found is None:
            raise Fault("the kernel does not say how many threads a block has")
        self.threads = int(found[1])
        self.code: list[Instruction] = []
        self.labels: dict[str, int] = {}
        for line in body.partition("\n}")[0].splitlines():
            line = line.partition("//")[0].strip()
            if not line.startswith("."):  # a directive: declarations and positions in the source
                for statement in line.split(";"):
                    self._add(statement.strip())

    def _add(self, statement: str) -> None:
        if label := re.match(r"([$\w]+):", statement):
            self.labels[label[1]] = len(self.code)
            statement = statement[label.end() :].strip()
        if statement in ("", "{", "}"):
            return
        found = STATEMENT.fullmatch(statement)
        if found is None:
            raise Fault(f"cannot read: {statement}")
        negated, guard, name, operands = found.groups()
        parts = tuple(OPERAND.findall(operands))
        self.code.append(Instruction(guard, bool(negated), tuple(name.split(".")), parts, statement))


def listed(operand: str) -> list[str]:
    """The registers of `{%r1, %r2}`, or the operand alone."""
    return [name.strip() for name in operand.strip("{} ").split(",")]
