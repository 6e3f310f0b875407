"""What a run costs: seconds by phase, peak memory, energy, arithmetic."""

from __future__ import annotations

import gc
import math
import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from bench.device import peak_memory, release_memory, reset_peak_memory, synchronize, uuid
from bench.run.nvml import Gpu, peak_flops


class Meter:
    """Seconds by phase, with a device synchronisation, and a look at the GPU, at phase borders only."""

    def __init__(self, device: str) -> None:
        self.device = device
        nothing = 0.0 if device == "cpu" else None  # on a GPU what is compiled is known where it has a phase, or not
        self.seconds: dict[str, float | None] = {
            "setup": 0.0, "compile": nothing, "data": None, "train": 0.0, "eval": 0.0,
        }  # fmt: skip
        self.gpu = Gpu(uuid()) if device == "cuda" else None
        self.restart_peaks()  # of an earlier run in this process
        _reset_resident_peak()

    def restart_peaks(self) -> None:
        """Of the GPU's memory. What torch keeps in reserve is given back first, else it would count again.

        So are objects that hold each other, which may hold tensors.
        """
        if self.device == "cuda":
            gc.collect()
        release_memory(self.device)
        reset_peak_memory(self.device)
        if self.gpu is not None:
            self.gpu.process_bytes = None

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            synchronize(self.device)
            self.add(name, time.perf_counter() - start)
            if self.gpu is not None:
                self.gpu.look()

    def add(self, name: str, seconds: float) -> None:
        self.seconds[name] = (self.seconds[name] or 0.0) + seconds

    def memory(self) -> dict[str, int | None]:
        allocated, reserved = peak_memory(self.device)
        process = self.gpu.process_bytes if self.gpu is not None else None
        return {"resident": _resident_peak(), "allocated": allocated, "reserved": reserved, "nvml_process": process}

    def energy_joules(self) -> float | None:
        return self.gpu.energy_joules() if self.gpu is not None else None

    def gpu_facts(self, train_flops: float | None, precision: str) -> dict[str, Any] | None:
        """What the driver says of the GPU, and the share of its peak that training reached; None off the GPU."""
        if self.gpu is None:
            return None
        peak = peak_flops(self.gpu.name, precision)
        seconds = self.seconds["train"]
        share = train_flops / seconds / peak if train_flops and seconds and peak else None
        return {**self.gpu.facts(), "peak_flops": peak, "flops_utilisation": share}


@contextmanager
def count_flops() -> Iterator[dict[str, Any]]:
    """Floating-point operations of what runs inside on a CPU, by torch's own counter.

    oneDNN's LSTM is one opaque call: without it torch spells the cell out in matrix products, which can be counted.
    """
    result: dict[str, Any] = {}
    solve = {torch.ops.aten.linalg_solve_triangular: _solve_flops}
    onednn: Any = torch.backends.mkldnn
    before, onednn.enabled = onednn.enabled, False
    try:
        with FlopCounterMode(display=False, custom_mapping=solve) as counter:
            yield result
    finally:
        onednn.enabled = before
    result["flops"] = counter.get_total_flops()


def _solve_flops(a_shape: Any, b_shape: Any, *_: Any, **__: Any) -> int:
    """Half a square matrix product for each right-hand side."""
    return math.prod(b_shape) * int(a_shape[-1])


def _reset_resident_peak() -> None:
    """Forget the peak of earlier runs in this process, where the kernel lets us."""
    with suppress(OSError):  # then the peak is that of the whole process, which is never too low
        Path("/proc/self/clear_refs").write_text("5")


def _resident_peak() -> int:
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
