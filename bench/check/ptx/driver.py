"""A Triton driver for a GPU that is not there: kernels are compiled for its target and executed by the interpreter.

Everything above the driver is real: the wrapper that chooses tiles and grids, Triton's specialisation on the arguments,
the compiler and NVIDIA's assembler. Tensors stay on the CPU.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import torch
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver

from bench.check.binaries import TARGETS
from bench.check.ptx import arithmetic, matrix, transfer  # noqa: F401  they register their operations
from bench.check.ptx.machine import Launch
from bench.check.ptx.memory import Global
from bench.check.ptx.program import Fault, Program

GRID_LIMITS = (2**31 - 1, 65535, 65535)
THREADS = 1024  # a block's limit
NUMBERS = count()  # a number for each driver: Triton keeps compiled kernels by the number of their device


class Launched(NamedTuple):
    kernel: str
    grid: tuple[int, int, int]
    executed: Counter[str]  # instructions, summed over blocks


class Launcher:
    """What Triton calls to launch a kernel."""

    def __init__(self, source: Any, metadata: Any) -> None:
        self.source, self.metadata = source, metadata

    def __call__(self, x: int, y: int, z: int, stream: int, program: Program, *given: Any) -> None:
        _packed, _launch_metadata, _enter, _exit, *arguments = given
        grid = (x, y, z)
        if any(not 1 <= n <= limit for n, limit in zip(grid, GRID_LIMITS, strict=True)):
            raise Fault(f"{self.metadata.name} is launched on a grid of {grid}, more than CUDA allows")
        kinds = self.source.signature.values()
        passed = [(kind, a) for kind, a in zip(kinds, arguments, strict=True) if kind != "constexpr"]
        memory = Global([a for _, a in passed if isinstance(a, torch.Tensor)])
        values: list[int | float] = []
        for kind, argument in passed:
            if isinstance(argument, torch.Tensor):
                values.append(memory.address(argument))
            else:
                values.append(float(argument) if kind.startswith("fp") else int(argument))
        scratch = len(program.parameters) - len(values)  # pointers that Triton adds and these kernels do not use
        launch = Launch(program, grid, values + [0] * scratch, self.metadata.shared, memory)
        try:
            executed = launch.run()
        except Fault as fault:
            raise Fault(f"{self.metadata.name}: {fault}") from None
        memory.give_back()
        driver.active.launched.append(Launched(self.metadata.name, grid, executed))


class Driver:
    """The part of Triton's driver interface that a launch needs; `change` may alter the PTX before it is executed."""

    launcher_cls = Launcher

    def __init__(self, target: str, change: Callable[[str], str]) -> None:
        backend, arch, warp, self.shared = TARGETS[target]
        self.target, self.change = GPUTarget(backend, arch, warp), change
        self.number = next(NUMBERS)
        self.launched: list[Launched] = []
        self.program: Program | None = None
        self.utils = self

    def get_device_properties(self, _device: int) -> dict[str, int]:
        return {"max_shared_mem": self.shared, "multiprocessor_count": 108, "warpSize": self.target.warp_size}

    def read_ptx(self, _module: object, _function: object, _name: str, files: dict[str, str], _hash: str) -> None:
        (path,) = (Path(path) for name, path in files.items() if name.endswith(".ptx"))
        self.program = Program(self.change(path.read_text()))

    def load_binary(self, *_: object) -> tuple[object, Program | None, int, int, int]:
        return None, self.program, 0, 0, THREADS

    def get_current_target(self) -> GPUTarget:
        return self.target

    def get_current_device(self) -> int:
        return self.number

    def set_current_device(self, _device: int) -> None:
        pass

    def get_current_stream(self, _device: int) -> int:
        return 0

    def get_benchmarker(self) -> Callable[..., list[float]]:
        return lambda *_, **__: [
            1.0,
            1.0,
            1.0,
        ]  # no time is known here: of a kernel's configurations the first is taken

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")


@contextmanager
def executing(target: str, change: Callable[[str], str] = lambda ptx: ptx) -> Iterator[list[Launched]]:
    """Within it, Triton's kernels run here as compiled for the target, and every new tensor begins as NaN."""
    if knobs.runtime.interpret:
        raise Fault("TRITON_INTERPRET is set, so Triton compiles nothing")
    here = Driver(target, change)
    before, deterministic = driver._active, torch.are_deterministic_algorithms_enabled()
    driver.set_active(here)
    knobs.runtime.kernel_load_start_hook.add(here.read_ptx)
    torch.use_deterministic_algorithms(True)  # which fills uninitialised memory
    try:
        yield here.launched
    finally:
        torch.use_deterministic_algorithms(deterministic)
        knobs.runtime.kernel_load_start_hook.remove(here.read_ptx)
        driver._active = before
