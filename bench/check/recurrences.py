"""Compile fla's kernels for real GPUs, in every configuration that fla's tuner would try, and read the binaries.

A tuner launches each configuration and keeps the fastest, so all of them are compiled on a user's machine before a run
starts. Reported for each kernel: how many there are, how many spill or do not fit, and how long they take to compile.
The configuration that is kept is launched, and so counted, once more.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from tabulate import tabulate

from bench.check.binaries import SMALL_SPILL, TARGETS, read_usage
from models.kernels.recurrence import FUSED_CHUNK

DEVICES = {"sm_80": "NVIDIA A100-SXM4-80GB", "sm_89": "NVIDIA GeForce RTX 4090", "sm_90": "NVIDIA H100 80GB HBM3"}
WIDTHS = {"decayed_sum": (64, 65), "delta_rule": (64, 64)}  # keys and values: linear-attention's, gated-deltanet's


@dataclass(frozen=True)
class Binary:
    target: str
    recurrence: str
    kernel: str
    registers: int
    spilled: int
    shared: int
    seconds: float  # to compile, on this machine


def compile_recurrence(job: tuple[str, str]) -> list[Binary]:
    """Forward and backward of one recurrence. fla looks at the GPU when it is imported: one process for each target."""
    target, name = job
    _pretend(target)
    from triton import knobs
    from triton.runtime.driver import driver

    from bench.check.ptx.driver import THREADS, Driver
    from models.kernels.recurrence import fused

    found: list[Binary] = []
    seconds: list[float] = []

    class Compiling(Driver):
        launcher_cls: Any = lambda *_: lambda *_, **__: None

        def load_binary(self, *binary: Any) -> tuple[object, None, int, int, int]:
            kernel, cubin, shared, _ = binary
            registers, spilled = read_usage(cubin)
            found.append(Binary(target, name, kernel, registers, spilled, shared, seconds[-1]))
            return None, None, 0, 0, THREADS

        def get_benchmarker(self) -> Callable[..., list[float]]:
            def try_once(call: Callable[[], object], *_: object, **__: object) -> list[float]:
                call()
                return [1.0, 1.0, 1.0]

            return try_once

    knobs.compilation.listener = lambda *, times, **_: seconds.append(times.total / 1e6)
    knobs.compilation.always_compile = True  # what is in Triton's cache has no time
    here = Compiling(target, lambda ptx: ptx)
    here.shared = 2**31  # what does not fit is counted, not refused
    driver.set_active(here)
    keys, values = WIDTHS[name]
    shape = (2, 39, 2)
    tensors = [torch.zeros(*shape, n, requires_grad=True) for n in (keys, keys, values)]
    tensors += [torch.zeros(*shape, requires_grad=True) for _ in range(2 if name == "delta_rule" else 1)]
    fused(name, *tensors).sum().backward()
    return found


def _pretend(target: str) -> None:
    """Answer fla's questions about the GPU as the target would."""
    arch = TARGETS[target][1]
    assert isinstance(arch, int)
    torch.cuda.get_device_name = lambda *_: DEVICES[target]
    torch.cuda.get_device_capability = lambda *_: (arch // 10, arch % 10)
    torch.cuda.device_count = lambda: 1
    torch.cuda.current_device = lambda: 0
    os.environ["FLA_CACHE_RESULTS"] = "0"


def compile_all(targets: list[str], processes: int) -> Iterator[list[Binary]]:
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=context, max_tasks_per_child=1) as pool:
        yield from pool.map(compile_recurrence, product(targets, WIDTHS))


def by_kernel(binaries: list[Binary]) -> dict[tuple[str, str, str], list[Binary]]:
    """The configurations of each kernel, by target, recurrence and name."""
    groups: dict[tuple[str, str, str], list[Binary]] = {}
    for one in binaries:
        groups.setdefault((one.target, one.recurrence, one.kernel), []).append(one)
    return groups


def complaints(binaries: list[Binary]) -> list[str]:
    """Kernels that leave the tuner no good choice: every configuration spills, or does not fit."""
    found = []
    for (target, name, kernel), some in by_kernel(binaries).items():
        if not any(one.spilled <= SMALL_SPILL and one.shared <= TARGETS[target][3] for one in some):
            least = min(one.spilled for one in some)
            found.append(f"{target} {name} {kernel}: no configuration fits without spilling; {least} bytes at least")
    return found


def render(binaries: list[Binary]) -> str:
    """The section of the page: what was compiled, by target and kernel."""
    rows = []
    for (target, name, kernel), some in by_kernel(binaries).items():
        spilling = [one.spilled for one in some if one.spilled > SMALL_SPILL]
        unfit = sum(one.shared > TARGETS[target][3] for one in some)
        most = max(one.seconds for one in some)
        total = sum(one.seconds for one in some)
        cells = [len(some), max(one.registers for one in some), len(spilling), max(spilling, default=0)]
        rows.append(
            [target, name, kernel, *cells, max(one.shared for one in some), unfit, f"{most:.1f}", f"{total:.0f}"]
        )
    header = ["target", "recurrence", "kernel", "configurations", "registers", "spilling", "most spilled", "shared"]
    header += ["do not fit", "slowest compile, s", "all, s"]
    spill = sum(one.spilled > SMALL_SPILL for one in binaries)
    unfit = sum(one.shared > TARGETS[one.target][3] for one in binaries)
    note = (
        f"Linear recurrences run in fla-core's kernels, with float32 products and chunks of {FUSED_CHUNK} positions."
        " fla tunes each kernel: on a new machine it compiles and times every configuration before the first step."
        f" {spill or 'None'} of {len(binaries)} configurations spill more than {SMALL_SPILL} bytes a thread, and"
        f" {unfit or 'none'} need more shared memory than their GPU has; the tuner skips those. Compile times are of"
        " the machine that made this page. Before training, a run checks its shapes against float64."
    )
    table = tabulate(rows, headers=header, tablefmt="pipe")
    return f"## Linear recurrences\n\n{note}\n\n{table}\n"
