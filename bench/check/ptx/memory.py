"""Shared and global memory, with checks of bounds, alignment and races.

Addresses are arrays with one entry for each active thread. Memory is watched in cells of two bytes, the smallest
access.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from bench.check.ptx.program import Fault

Array = np.ndarray[Any, Any]
CELL = 2
NOBODY, MANY = -1, -2  # whose access is recorded; several threads of warp w are MANY - 1 - w
BAND = 4096  # bytes of NaN in front of and behind every tensor
BASE = 0x7F00_0000_0000  # address of the first byte of global memory
UNSIGNED: dict[int, Any] = {2: np.uint16, 4: np.uint32, 8: np.uint64}


def _cells(address: Array, size: int) -> Array:
    return (address[:, None] // CELL + np.arange(size // CELL)).ravel()


def _load(memory: Array, address: Array, size: int) -> Array:
    return memory.view(UNSIGNED[size])[address // size]


def _store(memory: Array, address: Array, values: Array) -> None:
    memory.view(values.dtype)[address // values.dtype.itemsize] = values


class Clock:
    """When the threads of some blocks last waited for each other. They run in lockstep, so one clock serves all."""

    def __init__(self) -> None:
        self.now = self.block = self.warp = 0

    def wait_for_block(self) -> None:
        self.block = self.warp = self.now

    def wait_for_warp(self) -> None:
        self.warp = self.now

    def copy(self) -> Clock:
        other = Clock()
        other.now, other.block, other.warp = self.now, self.block, self.warp
        return other


class Shared:
    """The shared memory of several blocks, one behind the other; filled with NaN, because it starts undefined."""

    def __init__(self, blocks: int, size: int) -> None:
        self.size = -(-size // 16) * 16
        self.bytes = np.full(blocks * self.size, 0xFF, np.uint8)
        cells = blocks * self.size // CELL
        self.writer, self.reader = np.full(cells, NOBODY, np.int64), np.full(cells, NOBODY, np.int64)
        self.written, self.read = np.full(cells, -1, np.int64), np.full(cells, -1, np.int64)

    def locate(self, address: Array, slot: Array, size: int, align: int) -> Array:
        """Positions in `bytes` of accesses by threads of the given blocks."""
        if (address < 0).any() or (address + size > self.size).any():
            raise Fault(f"outside of the {self.size} bytes of shared memory")
        if (address % align).any():
            raise Fault(f"not aligned to {align} bytes in shared memory")
        return address + slot * self.size

    def load(self, at: Array, size: int, thread: Array, clock: Clock) -> Array:
        self.note_read(at, size, thread, clock)
        return _load(self.bytes, at, size)

    def store(self, at: Array, values: Array, thread: Array, clock: Clock) -> None:
        size = values.dtype.itemsize
        self.note_write(at, size, thread, clock)
        _store(self.bytes, at, values)
        if (_load(self.bytes, at, size) != values).any():
            raise Fault("race: two threads write different values to one place of shared memory")

    def note_read(self, at: Array, size: int, thread: Array, clock: Clock) -> None:
        cells, me = _cells(at, size), np.repeat(thread, size // CELL)
        self._require_order(self.writer[cells], self.written[cells], me, clock, "is read before a barrier, after")
        before, when = self.reader[cells], self.read[cells]
        same_warp = _warp(before) == me // 32
        fresh = (before == me) | (when < np.where(same_warp, clock.warp, clock.block))
        code = np.where(fresh, me, np.where(same_warp, MANY - 1 - me // 32, MANY))
        self.reader[cells] = code
        self.read[cells] = clock.now
        lost = self.reader[cells] != code  # cells that several threads read by this very instruction
        if lost.any():
            where, kept = cells[lost], self.reader[cells[lost]]
            one_warp = (_warp(kept) == me[lost] // 32) & (kept != MANY)
            self.reader[where] = np.where(one_warp, MANY - 1 - me[lost] // 32, MANY)

    def note_write(self, at: Array, size: int, thread: Array, clock: Clock) -> None:
        cells, me = _cells(at, size), np.repeat(thread, size // CELL)
        self._require_order(self.writer[cells], self.written[cells], me, clock, "is written before a barrier, after")
        self._require_order(self.reader[cells], self.read[cells], me, clock, "is overwritten before a barrier, after")
        self.writer[cells] = me
        self.written[cells] = clock.now

    def _require_order(self, other: Array, when: Array, me: Array, clock: Clock, what: str) -> None:
        barrier = np.where(_warp(other) == me // 32, clock.warp, clock.block)
        # an access of this very instruction (when == now) is compared by value, in store
        races = (other != me) & (other != NOBODY) & (when >= barrier) & (when < clock.now)
        if races.any():
            raise Fault(f"race: shared memory {what} an access by another thread ({int(races.sum())} places)")


def _warp(thread: Array) -> Array:
    """The warp of a recorded access; no warp's number for NOBODY and MANY."""
    return np.where(thread >= 0, thread // 32, np.where(thread < MANY, MANY - 1 - thread, -1))


class Global:
    """The tensors of one launch, each between bands of NaN. An access outside of every tensor is a Fault."""

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        self.places: dict[int, tuple[int, torch.Tensor]] = {}
        top = BAND
        for tensor in tensors:
            if tensor.data_ptr() in self.places or tensor.numel() == 0:
                continue
            self.places[tensor.data_ptr()] = (top, _flat(tensor))
            top = -(-(top + _flat(tensor).nbytes + BAND) // 512) * 512
        self.bytes = np.full(top, 0xFF, np.uint8)
        self.owned = np.zeros(top // CELL, bool)
        self.writer, self.reader = np.full(top // CELL, NOBODY, np.int64), np.full(top // CELL, NOBODY, np.int64)
        for start, flat in self.places.values():
            self.bytes[start : start + flat.nbytes] = flat.view(torch.uint8).numpy()
            self.owned[start // CELL : (start + flat.nbytes) // CELL] = True

    def address(self, tensor: torch.Tensor) -> int:
        """Where the kernel finds a tensor; an empty tensor has an address that must not be used."""
        return BASE + self.places[tensor.data_ptr()][0] if tensor.numel() else 0

    def give_back(self) -> None:
        """Copy the tensors back, past torch's record of changes, as a kernel does."""
        for start, flat in self.places.values():
            flat.view(torch.uint8).numpy()[:] = self.bytes[start : start + flat.nbytes]

    def locate(self, address: Array, size: int, align: int) -> Array:
        at = address - BASE
        inside = (at >= 0) & (at + size <= len(self.bytes))
        if not inside.all() or not self.owned[_cells(at, size)].all():
            raise Fault("outside of every tensor in global memory")
        if (at % align).any():
            raise Fault(f"not aligned to {align} bytes in global memory")
        return at

    def load(self, at: Array, size: int, block: Array) -> Array:
        cells, me = _cells(at, size), np.repeat(block, size // CELL)
        self._require_alone(self.writer[cells], me, "is read")
        code = np.where((self.reader[cells] == NOBODY) | (self.reader[cells] == me), me, MANY)
        self.reader[cells] = code
        self.reader[cells[self.reader[cells] != code]] = MANY
        return _load(self.bytes, at, size)

    def store(self, at: Array, values: Array, block: Array) -> None:
        cells, me = _cells(at, values.dtype.itemsize), np.repeat(block, values.dtype.itemsize // CELL)
        self._require_alone(self.writer[cells], me, "is written")
        self._require_alone(self.reader[cells], me, "is overwritten")
        self.writer[cells] = me
        _store(self.bytes, at, values)
        if (self.writer[cells] != me).any() or (_load(self.bytes, at, values.dtype.itemsize) != values).any():
            raise Fault("race: two threads write to one place of global memory")

    def _require_alone(self, other: Array, me: Array, what: str) -> None:
        if ((other != NOBODY) & (other != me)).any():
            raise Fault(f"race: global memory {what} after an access by another block of the same launch")


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """All of the memory between a tensor's first and last element, as one row."""
    extent = 1 + sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.detach().as_strided((extent,), (1,))
