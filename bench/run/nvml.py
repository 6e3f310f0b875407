"""One GPU as its driver sees it, through NVML. The only caller of pynvml.

NVML may be absent, refuse a question or lose the GPU. A question without an answer is None and leaves a note with the
driver's own words; it never ends a run.
"""

from __future__ import annotations

import os
import re
from typing import Any

import pynvml

# Published peaks in TFLOP/s, dense, with fp32 accumulation: name as NVML says it, then fp32, tf32, bf16.
PEAKS: tuple[tuple[str, float, float | None, float | None], ...] = (
    (r"(Tesla|NVIDIA) V100-SXM2-.*", 15.7, None, None),
    (r"(Tesla|NVIDIA) T4", 8.1, None, None),
    (r"NVIDIA A100[- ].*", 19.5, 156.0, 312.0),
    (r"NVIDIA A10", 31.2, 62.5, 125.0),
    (r"NVIDIA A40", 37.4, 74.8, 149.7),
    (r"NVIDIA L4", 30.3, 60.0, 121.0),
    (r"NVIDIA L40S", 91.6, 183.0, 362.0),
    (r"NVIDIA H100 80GB HBM3", 66.9, 494.7, 989.4),
    (r"NVIDIA H100 PCIe", 51.2, 378.0, 756.0),
    (r"NVIDIA H200", 66.9, 494.7, 989.4),
    (r"NVIDIA B200", 75.0, 1125.0, 2250.0),
    (r"NVIDIA GeForce RTX 3090", 35.6, 35.6, 71.2),
    (r"NVIDIA GeForce RTX 4090", 82.6, 82.6, 165.2),
    (r"NVIDIA GeForce RTX 5090", 104.8, 104.8, 209.5),
)
# What slows a clock down; an idle GPU and a display's own setting do not count.
SLOWDOWNS = {
    pynvml.nvmlClocksThrottleReasonApplicationsClocksSetting: "clocks set by the user",
    pynvml.nvmlClocksThrottleReasonSwPowerCap: "power cap",
    pynvml.nvmlClocksThrottleReasonHwSlowdown: "hardware slowdown",
    pynvml.nvmlClocksThrottleReasonSyncBoost: "sync boost",
    pynvml.nvmlClocksThrottleReasonSwThermalSlowdown: "temperature",
    pynvml.nvmlClocksThrottleReasonHwThermalSlowdown: "temperature, in hardware",
    pynvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown: "power brake",
}


def peak_flops(name: str | None, precision: str) -> float | None:
    """Floating-point operations a second at best; None for a GPU that is not in the table, or a slice of one."""
    column = {"fp32": 0, "tf32": 1, "bf16": 2}[precision]
    for pattern, *peaks in PEAKS:
        if name is not None and " MIG " not in name and re.fullmatch(pattern, name):
            peak = peaks[column]
            return None if peak is None else peak * 1e12
    return None


class Gpu:
    """Facts at the start, then one look at every phase border, energy from the first to the last."""

    def __init__(self, uuid: str) -> None:
        self.notes: list[str] = []
        self.process_bytes: int | None = None  # the most that was seen since the meter's peaks were restarted
        self.others: int | None = None
        self.clocks: dict[str, int | None] = {"sm": None, "memory": None}
        self.slowdowns: set[str] | None = None
        self._handle: Any = None
        self._ask("nvmlInit")
        if not self.notes:
            self._handle = self._ask("nvmlDeviceGetHandleByUUID", uuid)
        self.name: str | None = self._ask_device("nvmlDeviceGetName")
        self.driver: str | None = self._ask("nvmlSystemGetDriverVersion") if self._handle else None
        self._first_mj: int | None = self._ask_device("nvmlDeviceGetTotalEnergyConsumption")

    def look(self) -> None:
        """What can only be seen while it lasts: memory, neighbours, clocks and what holds them down."""
        processes = self._ask_device("nvmlDeviceGetComputeRunningProcesses")
        if processes is not None:
            mine = [process.usedGpuMemory for process in processes if process.pid == os.getpid()]
            if not mine:
                self._note("this process is not in the driver's list: a container numbers its processes anew")
            else:
                self.others = max(self.others or 0, len(processes) - len(mine))
                if mine[0] is None:
                    self._note("the driver does not tell a process's memory")
                else:
                    self.process_bytes = max(self.process_bytes or 0, mine[0])
        self.clocks = {
            "sm": self._ask_device("nvmlDeviceGetClockInfo", pynvml.NVML_CLOCK_SM),
            "memory": self._ask_device("nvmlDeviceGetClockInfo", pynvml.NVML_CLOCK_MEM),
        }
        reasons = self._ask_device("nvmlDeviceGetCurrentClocksThrottleReasons")
        if reasons is not None:
            self.slowdowns = (self.slowdowns or set()) | {text for bit, text in SLOWDOWNS.items() if reasons & bit}

    def energy_joules(self) -> float | None:
        """Since the start, of the whole GPU: whoever shares it is counted too."""
        now = self._ask_device("nvmlDeviceGetTotalEnergyConsumption")
        if now is None or self._first_mj is None:
            return None
        if now < self._first_mj:
            self._note("the energy counter went backwards: the driver was loaded anew")
            return None
        return float(now - self._first_mj) / 1000

    def facts(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "driver": self.driver,
            "clocks_mhz": self.clocks,
            "slowdowns": None if self.slowdowns is None else sorted(self.slowdowns),
            "other_processes": self.others,
            "notes": self.notes,
        }

    def _ask_device(self, question: str, *arguments: Any) -> Any:
        return None if self._handle is None else self._ask(question, self._handle, *arguments)

    def _ask(self, question: str, *arguments: Any) -> Any:
        try:
            return getattr(pynvml, question)(*arguments)
        except Exception as error:  # whatever metering meets, the run goes on
            self._note(f"{question}: {error}")
            return None

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)
