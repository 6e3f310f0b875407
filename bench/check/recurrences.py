"""Compile fla's kernels for real GPUs, as the runs of this suite use them, and read the binaries.

A kernel has one configuration (models/kernels/recurrence.py). It is compiled for the shapes of every architecture with
a linear recurrence at the presets `paper` and `small`.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import torch
from tabulate import tabulate

from bench.check.binaries import TARGETS, read_usage
from bench.config import compose
from bench.presets import PRESETS
from models.kernels.check import Recurrence, warm_up
from models.kernels.recurrence import FUSED_CHUNK, TILE, WARPS
from models.linear import Mixer

DEVICES = {
    "sm_80": "NVIDIA A100-SXM4-80GB",
    "sm_86": "NVIDIA GeForce RTX 3090",
    "sm_89": "NVIDIA GeForce RTX 4090",
    "sm_90": "NVIDIA H100 80GB HBM3",
    "sm_100": "NVIDIA B200",
    "sm_120": "NVIDIA GeForce RTX 5090",
}
MOST_SPILL = 128  # bytes a thread. fla's own configurations spill up to 45 KB; a few of ours still spill less than this


class Sizes(NamedTuple):
    recurrence: str
    keys: int
    values: int


@dataclass(frozen=True)
class Binary:
    target: str
    sizes: Sizes
    kernel: str
    registers: int
    spilled: int
    shared: int
    seconds: float  # to compile, on this machine

    def complaints(self) -> list[str]:
        """Every reason not to use this binary."""
        limit, found = TARGETS[self.target][3], []
        if self.spilled > MOST_SPILL:
            found.append(f"{self.spilled} bytes spilled")
        if self.shared > limit:
            found.append(f"{self.shared} bytes of shared memory, {self.target} has {limit}")
        return found


@cache
def sizes_of_runs() -> list[Sizes]:
    """The sizes that runs at the presets `paper` and `small` use on a GPU."""
    found = set()
    for preset in ("paper", "small"):
        for task in PRESETS[preset].tasks:
            for arch in ("linear-attention", "mamba2", "gated-deltanet", "gated-deltanet-signed", "hybrid"):
                model = compose(preset, arch, task, 0, "cuda", {}).make_model()
                mixers = (module for module in model.modules() if isinstance(module, Mixer))
                found |= {Sizes(mixer.recurrence, mixer.keys, mixer.values) for mixer in mixers}
    return sorted(found)


def compile_target(target: str, wanted: list[Sizes]) -> list[Binary]:
    """Forward and backward of all sizes. fla looks at the GPU when it is imported: one process for each target."""
    _pretend(target)
    from triton import knobs
    from triton.runtime.driver import driver

    from bench.check.ptx.driver import THREADS, Driver

    found: list[Binary] = []
    seconds: list[float] = []

    class Compiling(Driver):
        launcher_cls: Any = lambda *_: lambda *_, **__: None

        def load_binary(self, *binary: Any) -> tuple[object, None, int, int, int]:
            kernel, cubin, shared, _ = binary
            registers, spilled = read_usage(cubin)
            found.append(Binary(target, sizes, kernel, registers, spilled, shared, seconds[-1]))
            return object(), None, 0, 0, THREADS

    knobs.compilation.listener = lambda *, times, **_: seconds.append(times.total / 1e6)
    knobs.compilation.always_compile = True  # what is in Triton's cache has no time
    here = Compiling(target, lambda ptx: ptx)
    driver.set_active(here)
    _tell_shared_memory(here)
    for sizes in wanted:
        warm_up(Recurrence(sizes.recurrence, 39, 2, sizes.keys, sizes.values), "cpu")
    return found


def _pretend(target: str) -> None:
    """Answer fla's questions about the GPU as the target would."""
    arch = TARGETS[target][1]
    assert isinstance(arch, int)
    torch.cuda.get_device_name = lambda *_: DEVICES[target]
    torch.cuda.get_device_capability = lambda *_: (arch // 10, arch % 10)
    torch.cuda.device_count = lambda: 1
    torch.cuda.current_device = lambda: 0


def _tell_shared_memory(here: Any) -> None:
    """fla chooses tiles by the target's shared memory. Triton is not to refuse what does not fit: it is reported."""
    from fla.utils import hardware

    limit = here.shared
    hardware.get_all_max_shared_mem = lambda: [limit]
    here.shared = 2**31


def compile_all(targets: list[str], wanted: list[Sizes], processes: int) -> Iterator[list[Binary]]:
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=context, max_tasks_per_child=1) as pool:
        yield from pool.map(compile_target, targets, [wanted] * len(targets))


def complaints(binaries: list[Binary]) -> list[str]:
    names = [f"{one.target} {one.kernel} at {', '.join(map(str, one.sizes))}" for one in binaries]
    return [f"{name}: {fault}" for name, one in zip(names, binaries, strict=True) for fault in one.complaints()]


def render(binaries: list[Binary]) -> str:
    """The section of the page. A kernel that is compiled twice, for the forward and the backward pass, has one row."""
    rows: dict[tuple[object, ...], list[float]] = {}
    for one in binaries:
        name = (one.target, *one.sizes, one.kernel)
        cells = [one.registers, one.spilled, one.shared, round(one.seconds, 1)]
        rows[name] = [*map(max, zip(cells, rows.get(name, cells), strict=True))]
    faulty = sum(bool(one.complaints()) for one in binaries)
    spilling = [one for one in binaries if one.spilled]
    spills = f"{len(spilling)} binaries spill, {max((one.spilled for one in spilling), default=0)} bytes at the most."
    note = (
        f"Linear recurrences run in fla-core's kernels, with float32 products, chunks of {FUSED_CHUNK} positions, tiles"
        f" of {TILE} keys or values and up to {WARPS} warps. fla's tuner, which would choose configurations by time, is"
        " not used. The sizes are those of the presets `paper` and `small`."
        f" **Binaries with a fault: {faulty} of {len(binaries)}** (more than {MOST_SPILL} bytes spilled per thread, or"
        f" more shared memory than the GPU has). {spills} Seconds are the slowest compilation on the machine that made"
        " this page."
        " Before training, a run compares its shapes with float64. No GPU was used: whether other configurations are"
        " faster was not measured."
    )
    header = ["target", "recurrence", "keys", "values", "kernel", "registers", "spilled", "shared", "seconds"]
    table = tabulate([[*name, *cells] for name, cells in rows.items()], headers=header, tablefmt="pipe")
    return f"## Linear recurrences\n\n{note}\n\n{table}\n"
