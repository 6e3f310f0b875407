"""The meter agrees with an outside measurement, tells what NVML tells, and never loses a run."""

import ctypes
import json
import os
import re
import shutil
import subprocess
import sys
import time
from types import SimpleNamespace

import pynvml
import pytest

from bench import device
from bench.run import nvml
from bench.run.keeper import Keeper
from bench.run.meter import Meter
from bench.run.run import run_one

UUID = "GPU-8f6d1b1e-4f3c-2b0a-9d1e-7c5a3b2d1f00"
NEIGHBOUR = 4_000_000


class Driver:
    """libnvidia-ml as pynvml calls it: each question gets its next answer, the last one for ever.

    The answers have the form that the API gives them, for an A100; none was recorded on hardware. A `Refusal` is NVML's
    return code instead. pynvml itself is real, so codes become its own errors and structures are its own.
    """

    def __init__(self, **changes):
        self.answers = {
            "nvmlInitWithFlags": [None],
            "nvmlDeviceGetHandleByUUID": [1],
            "nvmlSystemGetDriverVersion": [b"570.86.15"],
            "nvmlDeviceGetName": [b"NVIDIA A100-SXM4-80GB"],
            "nvmlDeviceGetTotalEnergyConsumption": [81_234_567_000, 81_234_987_500],
            "nvmlDeviceGetComputeRunningProcesses_v3": [[(os.getpid(), 1_000 << 20)]],
            "nvmlDeviceGetClockInfo": [1410, 1593],
            "nvmlDeviceGetCurrentClocksThrottleReasons": [pynvml.nvmlClocksThrottleReasonGpuIdle],
            **changes,
        }

    def __getattr__(self, question):
        if question not in self.answers:
            raise AttributeError(question)

        def call(*arguments):
            queue = self.answers[question]
            size_only = question.endswith("Processes_v3") and arguments[2] is None
            answer = queue[0] if len(queue) == 1 or size_only else queue.pop(0)
            if isinstance(answer, Refusal):
                return answer.code
            if isinstance(answer, bytes):
                arguments[-2].value = answer
            elif isinstance(answer, list):
                arguments[1]._obj.value = len(answer)
                if size_only:
                    return pynvml.NVML_ERROR_INSUFFICIENT_SIZE if answer else pynvml.NVML_SUCCESS
                # as NVML does: the caller's array may be longer than the answer
                for slot, (pid, used) in zip(arguments[2], answer, strict=False):
                    slot.pid, slot.usedGpuMemory = pid, used
            elif question == "nvmlDeviceGetHandleByUUID":
                assert arguments[0].value == UUID.encode()
                ctypes.cast(arguments[1], ctypes.POINTER(ctypes.c_void_p))[0] = answer
            elif answer is not None:
                arguments[-1]._obj.value = answer
            return pynvml.NVML_SUCCESS

        return call


class Refusal:
    def __init__(self, code):
        self.code = code


@pytest.fixture
def gpu(monkeypatch):
    """A GPU whose driver answers like this."""

    def make(**changes):
        monkeypatch.setattr(pynvml, "nvmlLib", Driver(**changes))
        monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
        return nvml.Gpu(UUID)

    return make


def test_a_gpu_is_asked_for_by_the_name_that_nothing_renumbers(monkeypatch):
    monkeypatch.setattr("torch.cuda.current_device", lambda: 3)
    monkeypatch.setattr(
        "torch.cuda.get_device_properties", lambda index: SimpleNamespace(uuid=UUID.removeprefix("GPU-"))
    )
    assert device.uuid() == UUID


def test_nvml_answers_come_out_as_they_were_given(gpu):
    a100 = gpu(
        nvmlDeviceGetComputeRunningProcesses_v3=[
            [(os.getpid(), 700 << 20)],
            [(os.getpid(), 900 << 20), (NEIGHBOUR, 5 << 20)],
            [(os.getpid(), 800 << 20)],
        ],
        nvmlDeviceGetCurrentClocksThrottleReasons=[0x4, 0x1, 0x20],
    )
    for _ in range(3):
        a100.look()
    assert a100.process_bytes == 900 << 20
    assert a100.energy_joules() == pytest.approx(420.5)
    assert a100.facts() == {
        "name": "NVIDIA A100-SXM4-80GB",
        "driver": "570.86.15",
        "clocks_mhz": {"sm": 1593, "memory": 1593},
        "slowdowns": ["power cap", "temperature"],
        "other_processes": 1,
        "notes": [],
    }


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, "Driver Not Loaded"),
        (pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, "RM has detected an NVML/RM version mismatch."),
    ],
)
def test_without_a_driver_nothing_is_known_and_one_note_says_why(gpu, code, words):
    none = gpu(nvmlInitWithFlags=[Refusal(code)])
    none.look()
    assert none.energy_joules() is None
    assert none.process_bytes is None
    facts = none.facts()
    assert facts["notes"] == [f"nvmlInit: {words}"]
    assert facts["name"] is facts["driver"] is facts["slowdowns"] is facts["other_processes"] is None


def test_without_the_library_it_is_the_same(monkeypatch):
    """Nothing faked here, but where to look for the library."""
    monkeypatch.setattr(pynvml, "nvmlLib", None)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    monkeypatch.setattr(pynvml, "CDLL", lambda name: ctypes.CDLL(f"no-such-{name}"))
    assert nvml.Gpu(UUID).facts()["notes"] == ["nvmlInit: NVML Shared Library Not Found"]


def test_what_a_gpu_does_not_support_is_null_and_the_rest_is_there(gpu):
    geforce = gpu(
        nvmlDeviceGetName=[b"NVIDIA GeForce GTX 1080"],
        nvmlDeviceGetTotalEnergyConsumption=[Refusal(pynvml.NVML_ERROR_NOT_SUPPORTED)],
    )
    geforce.look()
    assert geforce.energy_joules() is None
    assert geforce.facts()["notes"] == ["nvmlDeviceGetTotalEnergyConsumption: Not Supported"]
    assert geforce.process_bytes == 1_000 << 20


def test_a_gpu_lost_on_the_way_keeps_what_was_seen(gpu):
    lost = Refusal(pynvml.NVML_ERROR_GPU_IS_LOST)
    dying = gpu(
        nvmlDeviceGetTotalEnergyConsumption=[5_000, lost],
        nvmlDeviceGetComputeRunningProcesses_v3=[[(os.getpid(), 1 << 20)]],
        nvmlDeviceGetClockInfo=[1410, 1593, lost],
        nvmlDeviceGetCurrentClocksThrottleReasons=[0x4, lost],
    )
    dying.look()
    dying.look()
    assert dying.energy_joules() is None
    assert dying.process_bytes == 1 << 20
    assert dying.facts()["clocks_mhz"] == {"sm": None, "memory": None}
    assert dying.facts()["slowdowns"] == ["power cap"]
    assert len(dying.notes) == 3
    assert all(note.endswith("GPU is lost") for note in dying.notes)


def test_an_energy_counter_that_restarts_is_no_energy(gpu):
    fresh = gpu(nvmlDeviceGetTotalEnergyConsumption=[9_000, 10])
    assert fresh.energy_joules() is None
    assert "went backwards" in fresh.notes[0]


def test_a_process_that_the_driver_does_not_list_has_no_memory_figure(gpu):
    """In a container the driver's process numbers are the host's."""
    contained = gpu(nvmlDeviceGetComputeRunningProcesses_v3=[[(NEIGHBOUR, 5 << 20)]])
    contained.look()
    assert contained.process_bytes is None
    assert contained.others is None  # it may be ourselves, under another number
    assert "a container numbers its processes anew" in contained.notes[0]
    windows = gpu(nvmlDeviceGetComputeRunningProcesses_v3=[[(os.getpid(), 2**64 - 1)]])
    windows.look()
    assert windows.process_bytes is None
    assert "does not tell" in windows.notes[0]


@pytest.mark.parametrize(
    ("name", "precision", "teraflops"),
    [
        ("NVIDIA A100-SXM4-80GB", "fp32", 19.5),
        ("NVIDIA A100 80GB PCIe", "tf32", 156.0),
        ("NVIDIA H100 80GB HBM3", "bf16", 989.4),
        ("NVIDIA L4", "fp32", 30.3),
        ("NVIDIA L40S", "fp32", 91.6),
        ("NVIDIA GeForce RTX 4090", "fp32", 82.6),
        ("Tesla T4", "bf16", None),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "fp32", None),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "fp32", None),
        ("AMD Instinct MI300X", "fp32", None),
        (None, "fp32", None),
    ],
)
def test_the_peak_of_a_gpu_is_known_by_its_whole_name_or_not_at_all(name, precision, teraflops):
    assert nvml.peak_flops(name, precision) == (teraflops and teraflops * 1e12)


@pytest.fixture
def metered_gpu(monkeypatch):
    """Runs happen on the CPU and are metered as if it were a GPU."""

    def put(gpu):
        class OnGpu(Meter):
            def __init__(self, device):
                super().__init__(device)
                self.gpu = gpu

        monkeypatch.setattr("bench.run.run.Meter", OnGpu)

    return put


def test_a_record_holds_what_nvml_told(gpu, metered_gpu, smoke):
    metered_gpu(gpu())
    record, _ = run_one(smoke(steps=2))
    assert record.status == "ok"
    assert record.energy_joules == pytest.approx(420.5)
    assert record.memory_bytes.nvml_process == 1_000 << 20
    told = record.platform["gpu"]
    assert told["peak_flops"] == 19.5e12
    expected = record.train_flops / record.seconds.train / 19.5e12
    assert told["flops_utilisation"] == pytest.approx(expected, rel=0.05)
    json.dumps(record.platform, allow_nan=False)


def test_memory_that_was_given_back_before_training_is_not_the_runs(gpu, metered_gpu, smoke):
    """The first look is before the peaks are restarted: at what the checks of the kernels took."""
    metered_gpu(gpu(nvmlDeviceGetComputeRunningProcesses_v3=[[(os.getpid(), n << 20)] for n in (9_000, 700, 1_000)]))
    record, _ = run_one(smoke(steps=2))
    assert record.memory_bytes.nvml_process == 1_000 << 20


def test_a_run_that_was_cut_off_has_no_energy(gpu, metered_gpu, smoke):
    """The counter saw its last part only."""
    metered_gpu(gpu())
    keeper = Keeper(smoke(steps=2))
    keeper.at.seconds = 1.0
    assert run_one(smoke(steps=2), keeper=keeper)[0].energy_joules is None


def test_a_metering_failure_never_loses_a_run(gpu, metered_gpu, smoke, monkeypatch):
    broken = gpu()
    metered_gpu(broken)

    def fail(*_):
        raise OSError("the driver went away")

    for question in dir(pynvml):
        if question.startswith("nvmlDeviceGet"):
            monkeypatch.setattr(pynvml, question, fail)
    record, weights = run_one(smoke(steps=2))
    assert record.status == "ok"
    assert weights
    assert record.energy_joules is None
    assert record.memory_bytes.nvml_process is None
    assert any("the driver went away" in note for note in record.platform["gpu"]["notes"])


def test_a_cpu_run_has_no_gpu_figures(smoke):
    record, _ = run_one(smoke(steps=2))
    assert record.platform["gpu"] is record.energy_joules is None
    memory = record.memory_bytes
    assert memory.allocated is memory.reserved is memory.nvml_process is None


def test_phases_add_up_and_none_is_counted_twice():
    clock = Meter("cpu")
    start = time.perf_counter()
    for name, seconds in (("setup", 0.05), ("train", 0.1), ("train", 0.1)):
        with clock.phase(name):
            time.sleep(seconds)
    outside = time.perf_counter() - start
    assert clock.seconds["train"] >= 0.2
    assert clock.seconds["setup"] + clock.seconds["train"] <= outside


def test_the_device_is_waited_for_at_phase_borders_and_never_between_steps(smoke, monkeypatch):
    waits = []
    for steps in (2, 6):
        calls = []
        monkeypatch.setattr("bench.run.meter.synchronize", calls.append)
        run_one(smoke("mlp-pointwise", steps=steps))
        waits.append(len(calls))
    assert waits[0] == waits[1] > 0


PROBE = """
import os
import time
from pathlib import Path

import torch
from bench.run.meter import Meter

ticks = int(Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()[19])
before = float(Path("/proc/uptime").read_text().split()[0]) - ticks / os.sysconf("SC_CLK_TCK")
meter = Meter("cpu")
with meter.phase("setup"):
    held = torch.ones(300 << 18)
with meter.phase("train"):
    until = time.perf_counter() + 4.0
    while time.perf_counter() < until:
        held.mul_(1.0)
del held
print(meter.memory()["resident"], meter.seconds["setup"] + meter.seconds["train"], before, flush=True)
os._exit(0)
"""


def test_resident_peak_and_seconds_agree_with_an_outside_measurement():
    """GNU time sees the whole process: what came before the first phase, by the kernel's clock, is taken off."""
    outside = shutil.which("time")
    if outside is None:
        pytest.skip("no GNU time here (Debian: apt-get install time): the meter was not compared with anything")
    done = subprocess.run([outside, "-v", sys.executable, "-c", PROBE], capture_output=True, text=True, check=True)
    resident, seconds, before = map(float, done.stdout.split())
    peak = float(re.search(r"Maximum resident set size \(kbytes\): (\d+)", done.stderr)[1]) * 1024
    minutes, rest = re.search(r"Elapsed .*: (\d+):([\d.]+)", done.stderr).groups()
    assert resident == pytest.approx(peak, rel=0.1)
    assert seconds == pytest.approx(int(minutes) * 60 + float(rest) - before, rel=0.1)
