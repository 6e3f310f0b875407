"""Instructions of whole warps: matrices in registers and shared memory, tensor cores, asynchronous copies.

A matrix lies in the registers of a warp as PTX's manual defines it: lane = 4 * row + column for 8 rows of 4 words.
Products are exact and summed in float64, then rounded to float32; how a tensor core rounds in between is not modelled.
"""

from __future__ import annotations

import re

import numpy as np

from bench.check.ptx.arithmetic import from_bfloat16
from bench.check.ptx.machine import LANES, Copy, Group, Product, operation
from bench.check.ptx.memory import Array
from bench.check.ptx.program import Fault, Instruction, listed

TEAM = 4 * LANES  # threads that share a product of wgmma
WIDTH = {"tf32": 1, "bf16": 2, "f16": 2}  # numbers in a word


def numbers(words: Array, kind: str) -> Array:
    """Words [..., n] as float64 [..., n * WIDTH]."""
    words = np.ascontiguousarray(words)
    if kind == "tf32":
        return (words & 0xFFFFE000).view(np.float32).astype(np.float64)  # the lowest 13 bits are not read
    halves = words.view(np.uint16)
    return (from_bfloat16(halves) if kind == "bf16" else halves.view(np.float16)).astype(np.float64)


def tiles(group: Group, registers: list[str]) -> Array:
    """Registers as [warps, registers, 8 rows, 4 words]."""
    words = np.stack([group.value(name, np.uint32) for name in registers])
    return words.reshape(len(registers), -1, 8, 4).transpose(1, 0, 2, 3)


def left_factor(group: Group, registers: list[str], kind: str) -> Array:
    """[warps, 16, k]: each pair of registers is 16 rows of 4 more words."""
    words = tiles(group, registers)
    pairs = [np.concatenate([words[:, i], words[:, i + 1]], axis=1) for i in range(0, len(registers), 2)]
    return np.concatenate([numbers(pair, kind) for pair in pairs], axis=2)


def to_registers(result: Array) -> Array:
    """[warps, 16, n] in float32 as [threads, n / 2 registers]: rows 0 to 7, then 8 to 15, of each 8 columns."""
    warps, _, n = result.shape
    parts = result.astype(np.float32).reshape(warps, 2, 8, n // 8, 4, 2)  # half, row, block, word, number
    return parts.transpose(0, 2, 4, 3, 1, 5).reshape(warps * LANES, n // 2)


def from_registers(values: Array) -> Array:
    """The inverse of to_registers."""
    warps, n = len(values) // LANES, 2 * values.shape[1]
    return values.reshape(warps, 8, 4, n // 8, 2, 2).transpose(0, 4, 1, 3, 2, 5).reshape(warps, 16, n)


def accumulator(group: Group, registers: list[str]) -> Array:
    return np.stack([group.value(name, np.float32) for name in registers], axis=1)


def require_all(active: Array) -> None:
    if not active.all():
        raise Fault("not all threads of the warp take part")


@operation("mma")
def multiply(group: Group, instruction: Instruction, active: Array) -> None:
    """D = A B + C, rows of A by columns of B: A is 16 x k, B is k x 8."""
    require_all(active)
    kind = instruction.name[-2]
    target, first, second, added = map(listed, instruction.operands)
    if instruction.name[4:6] != ("row", "col") or instruction.name[-1] != "f32" or kind not in WIDTH:
        raise Fault("unknown to this interpreter")
    a = left_factor(group, first, kind)
    b = np.concatenate([numbers(words, kind) for words in tiles(group, second).transpose(1, 0, 2, 3)], axis=2)
    result = a @ b.transpose(0, 2, 1) + from_registers(accumulator(group, added))
    for name, values in zip(target, to_registers(result).T, strict=True):
        group.set(name, values, active)


@operation("ldmatrix", "stmatrix")
def move_matrix(group: Group, instruction: Instruction, active: Array) -> None:
    """8 x 8 matrices of 16 bits; lane 8 i + r has the address of row r of matrix i."""
    require_all(active)
    loads = instruction.name[0] == "ldmatrix"
    registers, place = instruction.operands if loads else reversed(instruction.operands)
    address, names = group.address(place), listed(registers)
    first_lane = np.arange(len(group.tid)) - group.lane
    row, word = group.lane // 4, group.lane % 4
    transposed = "trans" in instruction.name
    for i, name in enumerate(names):
        if not transposed:
            at = group.shared.locate(address[first_lane + 8 * i + row], group.slot, 16, 16) + 4 * word
            if loads:
                group.set(name, group.shared.load(at, 4, group.thread, group.clock), active)
            else:
                group.shared.store(at, group.value(name, np.uint32), group.thread, group.clock)
            continue
        columns = [address[first_lane + 8 * i + 2 * word + j] for j in (0, 1)]
        halves = [group.shared.locate(column, group.slot, 16, 16) + 2 * row for column in columns]
        if loads:
            low, high = (group.shared.load(at, 2, group.thread, group.clock).astype(np.uint32) for at in halves)
            group.set(name, high << 16 | low, active)
        else:
            value = group.value(name, np.uint32)
            for j, at in enumerate(halves):
                group.shared.store(at, (value >> (16 * j)).astype(np.uint16), group.thread, group.clock)


@operation("cp")
def copy(group: Group, instruction: Instruction, active: Array) -> None:
    """Copies from global to shared memory that run until somebody waits; until then their target is undefined."""
    if instruction.name[1] != "async" or instruction.name[2] == "bulk":
        raise Fault("unknown to this interpreter")
    if instruction.name[2] == "commit_group":
        group.copies.append([])
    elif instruction.name[2] in ("wait_group", "wait_all"):
        left = int(instruction.operands[0]) if instruction.operands else 0
        if instruction.name[2] == "wait_all":
            group.copies.append([])
        finish_copies(group, len(group.copies) - 1 - left)
    else:
        start_copy(group, instruction, active)


def start_copy(group: Group, instruction: Instruction, active: Array) -> None:
    target, source, length, *rest = instruction.operands
    size = int(length, 0)
    wanted = group.value(rest[0], np.uint32) if rest else np.full(len(group.tid), size)  # the rest becomes zero
    reads = active & (wanted > 0)
    if (wanted[reads] != size).any():
        raise Fault("unknown to this interpreter: a part of a copy")
    data = np.zeros((len(group.tid), size // 4), np.uint32)
    at = group.memory.locate(group.address(source)[reads], size, size)
    for i in range(size // 4):
        data[reads, i] = group.memory.load(at + 4 * i, 4, group.block[reads])
    place = np.zeros(len(group.tid), np.int64)
    place[active] = group.shared.locate(group.address(target)[active], group.slot[active], size, size)
    for i in range(size // 4):
        undefined = np.full(int(active.sum()), 0xFFFFFFFF, np.uint32)
        group.shared.store(place[active] + 4 * i, undefined, group.thread[active], group.clock)
    group.copies[-1].append(Copy(place, data, active))


def finish_copies(group: Group, count: int) -> None:
    for _ in range(max(0, count)):
        for begun in group.copies.pop(0):
            active, place = begun.active, begun.place[begun.active]
            for i in range(begun.data.shape[1]):
                group.shared.store(place + 4 * i, begun.data[active, i], group.thread[active], group.clock)


@operation("wgmma")
def multiply_by_group(group: Group, instruction: Instruction, active: Array) -> None:
    """Products of four warps that run until somebody waits; until then their registers are undefined."""
    require_all(active)
    if instruction.name[1] == "mma_async":
        start_product(group, instruction, active)
    elif instruction.name[1] == "commit_group":
        group.products.append([])
    elif instruction.name[1] == "wait_group":
        for _ in range(max(0, len(group.products) - 1 - int(instruction.operands[0]))):
            for product in group.products.pop(0):
                note_reads(group, product.reads)  # what it reads must stay until now
                for name, values in zip(product.registers, product.values.T, strict=True):
                    group.set(name, values, active)
    elif instruction.name[1] != "fence":
        raise Fault("unknown to this interpreter")


def start_product(group: Group, instruction: Instruction, active: Array) -> None:
    size, kind = re.fullmatch(r"m64n(\d+)k(\d+)", instruction.name[4]), instruction.name[-1]
    if size is None or instruction.name[5] != "f32" or kind not in WIDTH:
        raise Fault("unknown to this interpreter")
    n, k = int(size[1]), int(size[2])
    target, first, second, keep, scale_a, scale_b, *transposed = instruction.operands
    if (scale_a, scale_b) != ("1", "1"):
        raise Fault("unknown to this interpreter")
    registers, blocks, teams = listed(target), len(group.blocks), len(group.tid) // TEAM
    reads = []
    if first.startswith("{"):
        a = left_factor(group, listed(first), kind).reshape(teams, 64, k)
    else:
        places = described_places(group, first, 64, k, kind, transposed[0] == "1")
        a = fetch(group, places, kind)
        reads.append(places.reshape(blocks, -1))
    places = described_places(group, second, n, k, kind, transposed[-1] == "1")
    b = fetch(group, places, kind)
    reads.append(places.reshape(blocks, -1))
    result = a @ b.transpose(0, 2, 1)
    if (keeps := group.value(keep, np.bool_)).any():
        if not keeps.all():
            raise Fault("unknown to this interpreter: some blocks add and some do not")
        result = result + from_registers(sum_so_far(group, registers)).reshape(teams, 64, n)
    all_reads = np.concatenate(reads, axis=1)
    note_reads(group, all_reads)
    for name in registers:
        group.set(name, np.full(len(group.tid), 0xFFFFFFFF, np.uint32), active)
    group.products[-1].append(Product(registers, to_registers(result.reshape(-1, 16, n)), all_reads))


def sum_so_far(group: Group, registers: list[str]) -> Array:
    """The sum that a product adds to: of the last product under way in the same registers, or of the registers."""
    for product in (product for some in reversed(group.products) for product in reversed(some)):
        if product.registers == registers:
            return product.values
    return accumulator(group, registers)


def note_reads(group: Group, reads: Array) -> None:
    """Read by several warps together, so no thread may write there before all have waited."""
    first_thread = group.thread.reshape(len(group.blocks), -1)[:, :1]
    for warp in (0, 1):
        thread = np.broadcast_to(first_thread + LANES * warp, reads.shape)
        group.shared.note_read(reads.ravel(), 2, thread.ravel(), group.clock)


def fetch(group: Group, places: Array, kind: str) -> Array:
    if kind == "tf32":
        raise Fault("unknown to this interpreter")
    halves = group.shared.bytes.view(np.uint16)[places // 2]
    return (from_bfloat16(halves) if kind == "bf16" else halves.view(np.float16)).astype(np.float64)


def described_places(group: Group, register: str, rows: int, k: int, kind: str, transposed: bool) -> Array:
    """Where a factor [teams, rows, k] lies, by its descriptor: start, two strides, and how the bytes are swizzled.

    A row of 128, 64 or 32 bytes goes along k, or along `rows` if transposed. Eight of them are an atom; in each, the
    16-byte pieces are permuted by the number of the row, which three bits of the address hold.
    """
    words = group.value(register, np.uint64).reshape(-1, TEAM)
    if (words != words[:, :1]).any() or (words >> np.uint64(16) != words[0, 0] >> np.uint64(16)).any():
        raise Fault("unknown to this interpreter: threads describe different matrices")
    start = (words[:, 0] & np.uint64(0x3FFF)).astype(np.int64)[:, None, None] << 4
    word = int(words[0, 0])
    leading, stride, base, swizzle = word >> 16 & 0x3FFF, word >> 32 & 0x3FFF, word >> 49 & 7, word >> 62
    if swizzle == 0 or base != 0:
        raise Fault("unknown to this interpreter: a descriptor without a swizzle, or with a base offset")
    wide = {1: 128, 2: 64, 3: 32}[swizzle]  # bytes in a row of an atom
    r, c = np.arange(rows)[:, None], np.arange(k)[None, :]
    if transposed:
        offset = r * 2 // wide * (leading << 4) + r * 2 % wide + c // 8 * (stride << 4) + c % 8 * wide
    else:
        offset = r // 8 * (stride << 4) + r % 8 * wide + c * 2
        if k * 2 > wide:
            raise Fault("unknown to this interpreter: a product longer than its swizzle")
    address = start + offset
    address = address ^ (address >> 7 & {1: 7, 2: 3, 3: 1}[swizzle]) << 4
    slot = group.slot[::TEAM, None, None]
    return group.shared.locate(address, slot, 2, 2)
