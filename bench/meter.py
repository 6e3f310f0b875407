"""What a run costs: seconds by phase, peak memory, arithmetic."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from torch.utils.flop_counter import FlopCounterMode

from bench.device import peak_memory, reset_peak_memory, synchronize


class Meter:
    """Seconds by phase, with a device synchronisation at phase borders only."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.seconds: dict[str, float | None] = {"setup": 0.0, "compile": 0.0, "data": None, "train": 0.0, "eval": 0.0}
        reset_peak_memory(device)
        _reset_resident_peak()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            synchronize(self.device)
            self.add(name, time.perf_counter() - start)

    def add(self, name: str, seconds: float) -> None:
        self.seconds[name] = (self.seconds[name] or 0.0) + seconds

    def memory(self) -> dict[str, int | None]:
        allocated, reserved = peak_memory(self.device)
        return {"resident": _resident_peak(), "allocated": allocated, "reserved": reserved, "nvml_process": None}


@contextmanager
def count_flops() -> Iterator[dict[str, Any]]:
    """Floating-point operations of what runs inside, by torch's own counter."""
    result: dict[str, Any] = {}
    with FlopCounterMode(display=False) as counter:
        yield result
    result["flops"] = counter.get_total_flops()


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
