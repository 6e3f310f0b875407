"""Where a run happens: device, precision and attention backend, chosen once, with a reason.

The only caller of torch.cuda.
"""

from __future__ import annotations

import os
import platform
import shutil
import sysconfig
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from bench.registry import BadInput
from models.kernels.attention import BACKENDS, SERVED_LENGTH, SERVED_WIDTHS

if TYPE_CHECKING:
    from bench.config import RunConfig


DRIVER = Path("/proc/driver/nvidia/version")
_cells: Any = torch.backends.cudnn.rnn
_cells.fp32_precision = "ieee"  # torch would compute them in tf32 unless told otherwise, as it does nothing else here


@dataclass(frozen=True)
class Platform:
    device: str
    name: str
    torch: str
    triton: str | None
    dtype: str
    attention: str
    threads: int
    why: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def pick_device(asked: str) -> tuple[str, str]:
    """cpu or cuda, and why."""
    if asked == "cpu":
        return "cpu", "asked for"
    if asked not in ("auto", "cuda"):
        raise BadInput(f"device must be auto, cpu or cuda, not '{asked}'")
    if torch.cuda.is_available():
        return "cuda", "asked for" if asked == "cuda" else "auto: there is a CUDA device"
    if not DRIVER.exists():
        why = "there is no CUDA device"
    elif torch.version.cuda is None:
        why = "there is an NVIDIA driver, but this torch was built without CUDA"
    else:
        why = f"there is an NVIDIA driver, but torch for CUDA {torch.version.cuda} finds no device: is it too old?"
    if asked == "cuda":
        raise BadInput(f"{why}. Use --device cpu or leave it at auto")
    return "cpu", f"auto: {why}"


def require_compiler() -> None:
    """On a GPU Triton compiles its launcher before its first kernel runs: better told now than by every run."""
    scheme = sysconfig.get_default_scheme()
    include = sysconfig.get_paths("posix_prefix" if scheme == "posix_local" else scheme)["include"]
    missing = []
    if "CC" not in os.environ and not shutil.which("gcc") and not shutil.which("clang"):
        missing.append("a C compiler (gcc)")
    elsewhere = {"CPATH", "C_INCLUDE_PATH"} & os.environ.keys()
    if not elsewhere and not (Path(include) / "Python.h").exists():
        missing.append("Python's headers (python3-dev)")
    if missing:
        needs = " and ".join(missing)
        raise BadInput(
            f"on a GPU Triton needs {needs}. Install that, or use --device cpu; attention alone can do without it, by "
            "--set attention=sdpa"
        )


def pick_attention(device: str, asked: str | None, head_width: int, length: int) -> tuple[str, str]:
    """The attention backend, and why."""
    if asked is not None:
        if asked not in BACKENDS:
            raise BadInput(f"attention must be one of {', '.join(BACKENDS)}, not '{asked}'")
        if asked == "triton" and device != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
            raise BadInput("attention=triton needs a CUDA device, or TRITON_INTERPRET=1 to run it very slowly without")
        if asked == "triton" and head_width not in SERVED_WIDTHS:
            raise BadInput(f"no Triton kernel for head width {head_width}: served are {_listed(SERVED_WIDTHS)}")
        if asked == "triton" and length > SERVED_LENGTH:
            raise BadInput(f"no Triton kernel for sequences of {length}: served are up to {SERVED_LENGTH}")
        return asked, "asked for"
    if device == "cpu":
        return "sdpa", "a CPU has no Triton"
    if _version("triton") is None:
        return "sdpa", "Triton is not installed"
    if head_width not in SERVED_WIDTHS:
        return "sdpa", f"no kernel for head width {head_width}, only for {_listed(SERVED_WIDTHS)}"
    if length > SERVED_LENGTH:
        return "sdpa", f"no kernel for sequences of {length}, only up to {SERVED_LENGTH}"
    return "triton", "fused kernels on CUDA"


def describe(config: RunConfig) -> Platform:
    """The platform of a run that starts now."""
    device, attention = config.device, config.attention
    precision = {
        "cpu": "float32: bfloat16 is slower on a CPU and costs accuracy",
        "cuda": "float32: errors are measured to 1e-4 bits, below bfloat16's resolution",
    }[device]
    usual, reason = pick_attention(device, None, config.width // config.heads, max(config.lengths()))
    why = f"{precision}; {attention}: {reason if attention == usual else 'asked for'}"
    return Platform(
        device=device,
        name=_gpu_name() if device == "cuda" else _cpu_name(),
        torch=torch.__version__,
        triton=_version("triton") if device == "cuda" else None,
        dtype="float32",
        attention=attention,
        threads=torch.get_num_threads(),
        why=why,
    )


def cores() -> int:
    """Cores this process may use, not those the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def capture(work: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
    """Record what work does on the GPU, without doing it; the result does it, and gives the place of its answer."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        answer = work()

    def replay() -> torch.Tensor:
        graph.replay()
        return answer

    return replay


def beside(work: Callable[[], torch.Tensor]) -> torch.Tensor:
    """Do it on a stream of its own, as what is to be captured later must be done first.

    Always the same one: memory that was used on a stream is kept for it, and so would be counted once for each.
    """
    stream = _side_stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        answer = work()
    torch.cuda.current_stream().wait_stream(stream)
    return answer


@cache
def _side_stream() -> torch.cuda.Stream:
    return torch.cuda.Stream()


def cuda_events(work: Callable[[], object]) -> float:
    """Milliseconds that the GPU spends on it."""
    start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    work()
    stop.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(stop))


def uuid() -> str:
    """The GPU's own name for itself, which no CUDA_VISIBLE_DEVICES renumbers."""
    return f"GPU-{torch.cuda.get_device_properties(torch.cuda.current_device()).uuid}"


def float32_precision() -> str:
    """What a float32 product is computed in: tf32 only where somebody has allowed it."""
    return "fp32" if torch.get_float32_matmul_precision() == "highest" else "tf32"


def release_memory(device: str) -> None:
    """Give back what torch keeps in reserve: after an allocation that failed, its pieces are in the way."""
    if device == "cuda":
        torch.cuda.empty_cache()


def reset_peak_memory(device: str) -> None:
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()


def peak_memory(device: str) -> tuple[int | None, int | None]:
    """Bytes allocated and reserved at the peak; None off the GPU."""
    if device != "cuda":
        return None, None
    return torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()


def _listed(numbers: tuple[int, ...]) -> str:
    return ", ".join(map(str, numbers))


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _gpu_name() -> str:
    """Where a run on another machine was lost, there may be none here to ask."""
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "unknown GPU"


def _cpu_name() -> str:
    """Its name, and what decides how sums are ordered: many machines share a name without sharing that."""
    facts: dict[str, str] = {}
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().split("\n\n")[0].splitlines():
            key, _, value = line.partition(":")
            facts[key.strip()] = value.strip()
    name = facts.get("model name") or platform.processor() or platform.machine()
    model = "-".join(facts[key] for key in ("cpu family", "model", "stepping") if key in facts)
    return " ".join(part for part in (name, model, torch.backends.cpu.get_cpu_capability()) if part)
