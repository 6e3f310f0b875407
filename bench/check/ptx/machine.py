"""Execute a program: all threads of a group of blocks in lockstep, each register an array with one entry per thread.

Blocks that take different branches become two groups. Threads of one block that take different branches are a Fault:
the compiler writes masks as predicates, so a block's branches are uniform in every kernel so far.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from bench.check.ptx.memory import UNSIGNED, Array, Clock, Global, Shared
from bench.check.ptx.program import Fault, Instruction, Program

LANES = 32
AT_ONCE = 8192  # threads
KINDS: dict[str, Any] = {
    "b16": np.uint16, "u16": np.uint16, "s16": np.int16, "f16": np.float16, "bf16": np.uint16,
    "b32": np.uint32, "u32": np.uint32, "s32": np.int32, "f32": np.float32, "tf32": np.uint32,
    "b64": np.uint64, "u64": np.uint64, "s64": np.int64, "pred": np.bool_,
}  # fmt: skip
Operation = Callable[["Group", Instruction, Array], None]
OPERATIONS: dict[str, Operation] = {}  # by the first part of an instruction's name


def operation(*names: str) -> Callable[[Operation], Operation]:
    def register(function: Operation) -> Operation:
        OPERATIONS.update(dict.fromkeys(names, function))
        return function

    return register


@lru_cache(maxsize=4096)
def constant(text: str, kind: Any) -> Any:
    if text.startswith(("0f", "0F")):
        return np.uint32(int(text[2:], 16)).view(kind)
    if kind == np.bool_:
        return np.bool_(int(text, 0) != 0)
    size = np.dtype(kind).itemsize
    return UNSIGNED[size](int(text, 0) % 2 ** (8 * size)).view(kind)


class Copy(NamedTuple):
    """A copy to shared memory under way; one entry for each thread."""

    place: Array
    data: Array
    active: Array


class Product(NamedTuple):
    """A product of a group of warps under way: values [threads, registers], the places [blocks, n] that it reads."""

    registers: list[str]
    values: Array
    reads: Array


class Group:
    """Blocks at the same instruction: `blocks` numbers them in the grid, `slots` in the shared memory."""

    def __init__(self, launch: Launch, blocks: Array, slots: Array, shared: Shared) -> None:
        threads = launch.program.threads
        self.launch, self.shared, self.memory = launch, shared, launch.memory
        self.blocks, self.slots = blocks, slots
        self.block, self.slot = np.repeat(blocks, threads), np.repeat(slots, threads)
        self.tid = np.tile(np.arange(threads), len(blocks))
        self.thread = self.slot * threads + self.tid
        self.lane = self.tid % LANES
        self.registers: dict[str, Array] = {}
        self.clock = Clock()
        self.at = 0  # the next instruction
        # what was started and not awaited; the last list is not committed yet
        self.copies: list[list[Copy]] = [[]]
        self.products: list[list[Product]] = [[]]

    def value(self, operand: str, kind: Any) -> Array:
        found = self.registers.get(operand)
        if found is None:
            return np.broadcast_to(self._other(operand, kind), self.tid.shape)
        if found.dtype.itemsize != np.dtype(kind).itemsize:
            raise Fault(f"{operand} is used with another size than it was written with")
        return found.view(kind)

    def _other(self, operand: str, kind: Any) -> Any:
        if operand == "%tid.x":
            return self.tid.astype(kind)
        if operand.startswith(("%ctaid.", "%nctaid.", "%tid.", "%ntid.")):
            axis, (x, y, _) = "xyz".index(operand[-1]), self.launch.grid
            where = (self.block % x, self.block // x % y, self.block // (x * y))[axis]
            sizes = {"%nctaid": self.launch.grid[axis], "%ntid": self.launch.program.threads if axis == 0 else 1}
            given = {"%ctaid": where, "%tid": 0} | sizes
            return np.asarray(given[operand[:-2]]).astype(kind)
        if operand.startswith("%"):
            raise Fault(f"{operand} is read before it is written")
        if operand == "global_smem":
            return constant("0", kind)
        return constant(operand, kind)

    def set(self, register: str, values: Array, active: Array) -> None:
        if register == "_":
            return
        if values.dtype != np.bool_:
            values = np.ascontiguousarray(values).view(UNSIGNED[values.dtype.itemsize])
        if not active.all():
            before = self.registers.get(register)
            if before is None:
                before = np.full_like(values, False if values.dtype == np.bool_ else np.iinfo(values.dtype).max)
            values = np.where(active, values, before)
        self.registers[register] = values

    def address(self, operand: str) -> Array:
        """`[%rd1 + 16]` in bytes."""
        base, _, offset = operand.strip("[] ").partition("+")
        wide = base.strip() in self.registers and self.registers[base.strip()].dtype == np.uint64
        start = self.value(base.strip(), np.uint64 if wide else np.uint32)
        return start.astype(np.int64) + int(offset or "0", 0)

    def run(self) -> Group | None:
        """Up to the end; returns the blocks that went another way at a branch, if any."""
        code, executed = self.launch.program.code, self.launch.executed
        everybody = np.ones(len(self.tid), bool)
        while self.at < len(code):
            instruction = code[self.at]
            name = instruction.name[0]
            executed[name] += len(self.blocks)
            self.at += 1
            self.clock.now += 1
            try:
                active = everybody
                if instruction.guard is not None:
                    active = self.value(instruction.guard, np.bool_) ^ instruction.negated
                if name == "ret":
                    self._require_quiet()
                    return None
                if name == "bra":
                    if (other := self._branch(instruction, active)) is not None:
                        return other
                elif name in OPERATIONS:
                    OPERATIONS[name](self, instruction, active)
                else:
                    raise Fault("unknown to this interpreter")
            except Fault as fault:
                raise Fault(f"{fault}: {instruction.text}") from None
            except (KeyError, ValueError, TypeError, IndexError) as error:
                raise Fault(f"unknown to this interpreter ({error!r}): {instruction.text}") from error
        raise Fault("the program does not end with ret")

    def _require_quiet(self) -> None:
        if any(self.copies) or any(self.products):
            raise Fault("the kernel ends while copies or products that nobody waited for are under way")

    def _branch(self, instruction: Instruction, active: Array) -> Group | None:
        taken = active.reshape(len(self.blocks), -1)
        if (taken.any(1) != taken.all(1)).any():
            raise Fault("threads of one block take different branches")
        going = np.asarray(taken.all(1))
        if going.all():
            self.at = self.launch.program.labels[instruction.operands[0]]
        elif going.any():
            other = self._split(~going)
            self._keep(going)
            self.at = self.launch.program.labels[instruction.operands[0]]
            return other
        return None

    def _split(self, which: Array) -> Group:
        other = Group(self.launch, self.blocks, self.slots, self.shared)
        other.registers, other.clock, other.at = self.registers, self.clock.copy(), self.at
        other.copies, other.products = self.copies, self.products
        other._keep(which)
        return other

    def _keep(self, which: Array) -> None:
        threads = np.repeat(which, self.launch.program.threads)
        self.copies = [[Copy(*(x[threads] for x in c)) for c in some] for some in self.copies]
        self.products = [
            [Product(p.registers, p.values[threads], p.reads[which]) for p in some] for some in self.products
        ]
        self.registers = {name: values[threads] for name, values in self.registers.items()}
        for name in ("block", "slot", "tid", "thread", "lane"):
            setattr(self, name, getattr(self, name)[threads])
        self.blocks, self.slots = self.blocks[which], self.slots[which]


class Launch:
    """One launch of a grid of blocks."""

    def __init__(
        self, program: Program, grid: tuple[int, int, int], arguments: list[int | float], shared: int, memory: Global
    ) -> None:
        self.program, self.grid, self.memory = program, grid, memory
        self.arguments = dict(zip((name for _, name in program.parameters), arguments, strict=True))
        self.shared = shared
        self.executed: Counter[str] = Counter()  # instructions by the first part of their name, summed over blocks

    def run(self) -> Counter[str]:
        blocks = np.arange(np.prod(self.grid))
        together = max(1, AT_ONCE // self.program.threads)
        with np.errstate(all="ignore"):
            for start in range(0, len(blocks), together):
                some = blocks[start : start + together]
                groups = [Group(self, some, np.arange(len(some)), Shared(len(some), self.shared))]
                while groups:
                    group = groups.pop()
                    if (other := group.run()) is not None:
                        groups += [other, group]
        return self.executed
