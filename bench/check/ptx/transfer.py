"""Loads, stores, shuffles and barriers."""

from __future__ import annotations

from typing import Any

import numpy as np

from bench.check.ptx.machine import KINDS, LANES, Group, operation
from bench.check.ptx.memory import UNSIGNED, Array
from bench.check.ptx.program import Fault, Instruction, listed


@operation("ld")
def load(group: Group, instruction: Instruction, active: Array) -> None:
    space, size = instruction.name[1].partition("::")[0], np.dtype(KINDS[instruction.name[-1]]).itemsize
    target, source = instruction.operands
    names = listed(target)
    if space == "param":
        return load_parameter(group, instruction, active)
    address, whole = group.address(source)[active], size * len(names)
    if space == "global":
        at = group.memory.locate(address, whole, whole)
    else:
        at = group.shared.locate(address, group.slot[active], whole, whole)
    for i, name in enumerate(names):
        found = np.zeros(len(group.tid), UNSIGNED[size])
        if space == "global":
            found[active] = group.memory.load(at + i * size, size, group.block[active])
        else:
            found[active] = group.shared.load(at + i * size, size, group.thread[active], group.clock)
        group.set(name, found, active)
    return None


def load_parameter(group: Group, instruction: Instruction, active: Array) -> None:
    target, source = instruction.operands
    kind = KINDS[instruction.name[-1]]
    given = group.launch.arguments[source.strip("[] ")]
    if isinstance(given, float):
        value: Any = np.float32(given).view(np.uint32)
    else:
        value = np.asarray(given % 2 ** (8 * np.dtype(kind).itemsize), UNSIGNED[np.dtype(kind).itemsize]).view(kind)
    if target.startswith("%rd"):  # a narrower signed parameter is extended
        value = value.astype(np.int64 if np.issubdtype(kind, np.signedinteger) else np.uint64)
    group.set(target, np.full(len(group.tid), value), active)


@operation("st")
def store(group: Group, instruction: Instruction, active: Array) -> None:
    space, size = instruction.name[1].partition("::")[0], np.dtype(KINDS[instruction.name[-1]]).itemsize
    target, source = instruction.operands
    names = listed(source)
    address, whole = group.address(target)[active], size * len(names)
    if space == "global":
        at = group.memory.locate(address, whole, whole)
    else:
        at = group.shared.locate(address, group.slot[active], whole, whole)
    for i, name in enumerate(names):
        values = group.value(name, UNSIGNED[size])[active]
        if space == "global":
            group.memory.store(at + i * size, values, group.block[active])
        else:
            group.shared.store(at + i * size, values, group.thread[active], group.clock)


@operation("shfl")
def shuffle(group: Group, instruction: Instruction, active: Array) -> None:
    """Each lane reads a register of another one; a lane whose partner is beyond the warp keeps its own."""
    target, source, which, clamp, _ = instruction.operands
    how, chosen = instruction.name[2], group.value(which, np.uint32).astype(np.int64)
    if int(clamp, 0) != (0 if how == "up" else 31) or "|" in target or not active.all():
        raise Fault("unknown to this interpreter")
    lane = {"bfly": group.lane ^ chosen, "idx": chosen % LANES, "up": group.lane - chosen, "down": group.lane + chosen}[
        how
    ]
    lane = np.where((lane >= 0) & (lane < LANES), lane, group.lane)
    position = np.arange(len(group.tid)) - group.lane + lane
    group.set(target, group.value(source, np.uint32)[position], active)


@operation("bar", "barrier")
def wait(group: Group, instruction: Instruction, active: Array) -> None:
    if not active.all():
        raise Fault("not all threads reach the barrier")
    if instruction.name[1] == "warp":
        group.clock.wait_for_warp()
    elif instruction.operands == ("0",):
        group.clock.wait_for_block()
    else:
        raise Fault("unknown to this interpreter")


@operation("fence")
def fence(group: Group, instruction: Instruction, active: Array) -> None:
    """Orders accesses of one thread; accesses happen in order here anyway."""
