"""Arithmetic, comparisons, moves between registers and conversions."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from bench.check.ptx.machine import KINDS, Group, operation
from bench.check.ptx.memory import UNSIGNED, Array
from bench.check.ptx.program import Fault, Instruction, listed

BINARY: dict[str, Callable[..., Any]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "and": operator.and_, "or": operator.or_,
    "xor": operator.xor, "min": np.minimum, "max": np.maximum,
}  # fmt: skip
COMPARE = {
    "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge, "eq": operator.eq, "ne": operator.ne,
    "lo": operator.lt, "ls": operator.le, "hi": operator.gt, "hs": operator.ge,
}  # fmt: skip


def flush(values: Array) -> Array:
    """Denormal numbers to zero of the same sign."""
    return np.where(np.abs(values) < np.finfo(np.float32).tiny, np.copysign(np.float32(0), values), values)


def to_bfloat16(values: Array) -> Array:
    """float32 to the bits of the nearest bfloat16, ties to even."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(values), 0x7FFF, rounded).astype(np.uint16)


def from_bfloat16(bits: Array) -> Array:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def to_half(values: Array, kind: str) -> Array:
    return to_bfloat16(values) if kind == "bf16" else values.astype(np.float16).view(np.uint16)


@operation("add", "sub", "mul", "and", "or", "xor", "min", "max", "mad", "fma", "div", "rem", "neg", "not", "abs")
def compute(group: Group, instruction: Instruction, active: Array) -> None:
    name, kind = instruction.name[0], KINDS[instruction.name[-1]]
    target, *operands = instruction.operands
    if "wide" in instruction.name or "hi" in instruction.name:
        return multiply_wide(group, instruction, active)
    x, *others = (group.value(operand, kind) for operand in operands)
    if kind == np.float32:
        result = compute_float(name, x, *others)
        if "ftz" in instruction.name:
            result = flush(compute_float(name, *map(flush, (x, *others))))
    elif name in BINARY:
        result = BINARY[name](x, others[0])
    elif name == "mad":
        result = x * others[0] + others[1]
    elif name in ("div", "rem"):
        quotient = np.trunc(x.astype(np.longdouble) / others[0]).astype(kind)  # longdouble holds 64 bits
        result = quotient if name == "div" else x - quotient * others[0]
    elif name == "neg":
        result = -x
    elif name == "not":
        result = ~x
    else:
        raise Fault("unknown to this interpreter")
    group.set(target, result, active)
    return None


def compute_float(name: str, *x: Array) -> Array:
    if name == "fma":
        return (x[0].astype(np.float64) * x[1] + x[2]).astype(np.float32)
    if name in ("min", "max"):
        return {"min": np.fmin, "max": np.fmax}[name](*x)
    if name == "div":
        return x[0] / x[1]
    if name in ("neg", "abs"):
        return -x[0] if name == "neg" else np.abs(x[0])
    result: Array = {"add": np.add, "sub": np.subtract, "mul": np.multiply}[name](*x)
    return result


def multiply_wide(group: Group, instruction: Instruction, active: Array) -> None:
    kind = KINDS[instruction.name[-1]]
    if np.dtype(kind).itemsize != 4:
        raise Fault("unknown to this interpreter")
    wide: Any = np.int64 if kind == np.int32 else np.uint64
    target, first, second, *added = instruction.operands
    product = group.value(first, kind).astype(wide) * group.value(second, kind).astype(wide)
    if "hi" in instruction.name:
        product, wide = (product >> wide(32)).astype(kind), kind
    for operand in added:
        product = product + group.value(operand, wide)
    group.set(target, product, active)


@operation("shl", "shr")
def shift(group: Group, instruction: Instruction, active: Array) -> None:
    kind = KINDS[instruction.name[-1]]
    target, first, second = instruction.operands
    x, amount, bits = group.value(first, kind), group.value(second, np.uint32), 8 * np.dtype(kind).itemsize
    count: Array = np.minimum(amount, bits - 1).astype(kind)
    result = x << count if instruction.name[0] == "shl" else x >> count
    if not np.issubdtype(kind, np.signedinteger) or instruction.name[0] == "shl":
        result = np.where(amount >= bits, kind(0), result)
    group.set(target, result, active)


@operation("bfe")
def extract_bits(group: Group, instruction: Instruction, active: Array) -> None:
    kind = KINDS[instruction.name[-1]]
    target, first, start, count = instruction.operands
    at, n = int(start), int(count)
    if np.dtype(kind).itemsize != 4 or not 0 < n <= 32 - at:
        raise Fault("unknown to this interpreter")
    moved = group.value(first, np.uint32) << np.uint32(32 - at - n)
    group.set(target, moved.view(kind) >> kind(32 - n), active)


@operation("ex2", "lg2", "rcp", "sqrt", "rsqrt")
def approximate(group: Group, instruction: Instruction, active: Array) -> None:
    x = group.value(instruction.operands[1], KINDS[instruction.name[-1]])
    ftz = "ftz" in instruction.name
    exact = (flush(x) if ftz else x).astype(np.float64)
    functions = {"ex2": np.exp2, "lg2": np.log2, "rcp": np.reciprocal, "sqrt": np.sqrt}
    name = instruction.name[0]
    result = (1 / np.sqrt(exact) if name == "rsqrt" else functions[name](exact)).astype(np.float32)
    group.set(instruction.operands[0], flush(result) if ftz else result, active)


@operation("setp")
def compare(group: Group, instruction: Instruction, active: Array) -> None:
    name, kind = instruction.name[1], KINDS[instruction.name[-1]]
    target, first, second = instruction.operands
    x, y = group.value(first, kind), group.value(second, kind)
    unordered = kind == np.float32 and name not in COMPARE
    if unordered:
        if name in ("num", "nan"):
            either = np.isnan(x) | np.isnan(y)
            return group.set(target, either if name == "nan" else ~either, active)
        name = name.removesuffix("u")
    result = COMPARE[name](x, y)
    if kind == np.float32:
        nan = np.isnan(x) | np.isnan(y)
        result = result | nan if unordered else result & ~nan
    group.set(target, result, active)
    return None


@operation("selp")
def select(group: Group, instruction: Instruction, active: Array) -> None:
    kind = KINDS[instruction.name[-1]]
    target, first, second, which = instruction.operands
    chosen = np.where(group.value(which, np.bool_), group.value(first, kind), group.value(second, kind))
    group.set(target, chosen, active)


@operation("mov")
def move(group: Group, instruction: Instruction, active: Array) -> None:
    kind = KINDS[instruction.name[-1]]
    target, source = instruction.operands
    size = np.dtype(kind).itemsize
    if target.startswith("{"):
        names = listed(target)
        part = UNSIGNED[size // len(names)]
        parts = np.ascontiguousarray(group.value(source, kind)).view(part).reshape(-1, len(names))
        for i, name in enumerate(names):
            group.set(name, parts[:, i], active)
    elif source.startswith("{"):
        names = listed(source)
        part = UNSIGNED[size // len(names)]
        packed = np.stack([group.value(name, part) for name in names], axis=1)
        group.set(target, packed.view(kind)[:, 0], active)
    else:
        group.set(target, group.value(source, kind).copy(), active)


@operation("cvt")
def convert(group: Group, instruction: Instruction, active: Array) -> None:
    to, source = instruction.name[-2:]
    target, *operands = instruction.operands
    values = [group.value(operand, KINDS[source]) for operand in operands]
    if source == "bf16":
        values = [from_bfloat16(x) for x in values]
    if to in ("bf16x2", "f16x2"):  # the first operand is the upper half
        high, low = (to_half(x, to.removesuffix("x2")).astype(np.uint32) for x in values)
        result = high << 16 | low
    elif to in ("bf16", "f16"):
        result = to_half(values[0], to)
    elif to == "tf32":  # "rna": the nearest of ten bits, ties away from zero
        result = (values[0].view(np.uint32) + 0x1000) & 0xFFFFE000
    elif source in ("f32", "f16") and to[0] in "su":
        rounded = {"rzi": np.trunc, "rni": np.rint, "rmi": np.floor, "rpi": np.ceil}[instruction.name[1]](values[0])
        limits = np.iinfo(KINDS[to])
        # PTX clamps to the range of the integer and turns NaN into 0
        result = np.clip(np.nan_to_num(rounded.astype(np.float64)), limits.min, limits.max).astype(KINDS[to])
    else:
        result = values[0].astype(KINDS[to])
    group.set(target, result, active)
