"""Where a run happens: device, precision and attention backend, chosen once, with a reason.

The only caller of torch.cuda.
"""

from __future__ import annotations

import ctypes
import os
import platform
import re
import shutil
import subprocess
import sysconfig
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from bench.registry import BadInput
from models.hf import from_library
from models.kernels.attention import BACKENDS, SERVED_LENGTH, SERVED_WIDTHS

if TYPE_CHECKING:
    from bench.config import RunConfig


DRIVER = Path("/proc/driver/nvidia/version")
NO_DEVICE = 100  # what CUDA answers on a machine without a GPU, and where CUDA_VISIBLE_DEVICES hides them all
BF16_WIDTH = 128  # of a model: at less, Muon takes too little of a step to change its rounding


@dataclass(frozen=True)
class Platform:
    device: str
    name: str
    torch: str
    triton: str | None
    dtype: str
    attention: str
    muon: str  # what the optimizer's products are computed in
    threads: int
    why: str
    transformers: str | None = None  # the library's version, for its models

    def to_json(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if name != "transformers" or value}


def pick_device(asked: str) -> tuple[str, str]:
    """cpu or cuda, and why. A GPU that is there and cannot be used is an error, not a reason to train on the CPU."""
    if asked == "cpu":
        return "cpu", "asked for"
    number = re.fullmatch(r"cuda(?::(\d+))?", asked)
    if asked != "auto" and number is None:
        raise BadInput(f"device must be auto, cpu, cuda or cuda:N, not '{asked}'")
    if number and number[1]:
        _choose(int(number[1]))
    if problem := gpu_problem():
        raise BadInput(f"{problem}; or train on the CPU with --device cpu")
    if torch.cuda.is_available():
        _remember_start()
        return "cuda", "auto: there is a CUDA device" if asked == "auto" else "asked for"
    if number and number[1]:
        raise BadInput(f"there is no GPU {number[1]}. Use --device cpu or leave it at auto")
    why = _why_no_gpu()
    if asked != "auto":
        raise BadInput(f"{why}. Use --device cpu or leave it at auto")
    return "cpu", f"auto: {why}"


def _why_no_gpu() -> str:
    """A container sees its host's driver in /proc, whether it was given a GPU or not."""
    if not DRIVER.exists():
        return "there is no CUDA device"
    if os.environ.get("CUDA_VISIBLE_DEVICES") == "":
        return "CUDA_VISIBLE_DEVICES is empty"
    return "there is an NVIDIA driver, but this process was given no GPU (docker: --gpus all)"


def has_gpu() -> bool:
    return torch.cuda.is_available() and gpu_problem() is None


def gpu_problem() -> str | None:
    """Why torch cannot use the GPU that is there, and what to install; None if it can, or if there is none."""
    if torch.version.cuda is None:
        refusal = "there is an NVIDIA driver, but this torch was built without CUDA: install torch's CUDA build"
        return refusal if DRIVER.exists() else None
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    code = driver.cuInit(0)
    if code == NO_DEVICE:
        return None
    if code != 0:
        name, text = _cuda_error(driver, code)
        return f"there is an NVIDIA driver, but CUDA does not start: {name} ({code}), {text}"
    found = ctypes.c_int()
    driver.cuDriverGetVersion(ctypes.byref(found))
    wanted = torch.version.cuda
    if found.value // 1000 < int(wanted.split(".")[0]):
        has = f"{found.value // 1000}.{found.value % 1000 // 10}"
        return f"the NVIDIA driver supports CUDA {has} and this torch needs {wanted}: install a newer driver"
    if not torch.cuda.is_available():
        return None
    targets = torch.cuda.get_arch_list()
    for number in range(gpus()):
        major, minor = torch.cuda.get_device_capability(number)
        if not any(runs_on(target, major, minor) for target in targets):
            which = f"GPU {number}, {torch.cuda.get_device_name(number)}, is sm_{major}{minor}"
            other = ", or choose another GPU with --device cuda:N" if gpus() > 1 else ""
            return f"{which}, and this torch was built for {', '.join(targets)}: install one built for it{other}"
    return None


def _cuda_error(driver: ctypes.CDLL, code: int) -> tuple[str, str]:
    """CUDA's own name and description of an error."""
    texts = []
    for ask in (driver.cuGetErrorName, driver.cuGetErrorString):
        text = ctypes.c_char_p()
        ask(code, ctypes.byref(text))
        texts.append((text.value or b"unknown error").decode())
    return texts[0], texts[1]


def runs_on(target: str, major: int, minor: int) -> bool:
    """sm_XY runs on X.Y and later minors, compute_XY on everything later."""
    kind, _, digits = target.partition("_")
    has_major, has_minor = divmod(int(re.sub(r"\D", "", digits)), 10)
    return (has_major == major and has_minor <= minor) or (kind == "compute" and has_major < major)


_chosen: int | None = None


def _choose(number: int) -> None:
    """CUDA reads CUDA_VISIBLE_DEVICES once, when it starts, so the first choice of a process stands."""
    global _chosen
    if torch.cuda.is_initialized():
        _remember_start()
    if _chosen is None:
        use_gpu(number)
        _chosen = number
    elif _chosen != number:
        raise BadInput(f"CUDA uses GPU {_chosen} in this process: cuda:{number} takes a new process")


def _remember_start() -> None:
    """CUDA has started, on the first visible GPU if no other one was chosen."""
    global _chosen
    _chosen = _chosen or 0


def use_gpu(number: int) -> None:
    """Make this GPU, counted among the visible ones, the only one of this process. Before CUDA starts."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        os.environ["CUDA_VISIBLE_DEVICES"] = str(number)
    else:
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(visible.split(",")[number : number + 1])


def gpus() -> int:
    """GPUs that this process may use."""
    return torch.cuda.device_count()


def machine_facts() -> dict[str, Any]:
    """Of this machine and what is installed on it, for who was not there."""
    found = [torch.cuda.get_device_properties(number) for number in range(gpus())] if has_gpu() else []
    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")
    return {
        "gpus": [{"name": g.name, "sm": f"{g.major}{g.minor}", "bytes": g.total_memory} for g in found],
        "driver": DRIVER.read_text().splitlines()[0] if DRIVER.exists() else None,
        "compiler": _first_line(compiler, "--version") if compiler else None,
        "cuda": torch.version.cuda,
        **{name: _version(name) for name in ("torch", "triton", "fla-core")},
        "python": platform.python_version(),
        "system": platform.platform(),
        "processor": _cpu_name(),
        "cores": cores(),
    }


def _first_line(*command: str) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout.partition("\n")[0] or None


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
    if config.precision != "fp32":
        precision = f"products of training in {config.precision}: asked for; float32 otherwise"
    usual, reason = pick_attention(device, None, config.width // config.heads, max(config.lengths()))
    if from_library(config.arch):
        usual, reason = "sdpa", "of the transformers library"
    why = f"{precision}; {attention}: {reason if attention == usual else 'asked for'}"
    return Platform(
        device=device,
        name=_gpu_name() if device == "cuda" else _cpu_name(),
        torch=torch.__version__,
        triton=_version("triton") if device == "cuda" else None,
        dtype="float32",
        attention=attention,
        muon=muon_dtype(config),
        threads=torch.get_num_threads(),
        why=why,
        transformers=_version("transformers") if from_library(config.arch) else None,
    )


def muon_dtype(config: RunConfig) -> str:
    """bfloat16 where that is faster: on a GPU, and for wide models on a CPU with instructions for such products."""
    wide = config.width >= BF16_WIDTH
    return "bfloat16" if config.device == "cuda" or (wide and multiplies_bf16()) else "float32"


def multiplies_bf16() -> bool:
    """Whether this processor has AMX. torch's question for it is private, and not in every build."""
    ask = getattr(torch.cpu, "_is_amx_tile_supported", None)
    return ask is not None and bool(ask())


def cores() -> int:
    """Cores this process may use, not those the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def threads(count: int | None = None) -> Iterator[None]:
    """Compute with this many threads (None: as now); afterwards with as many as before, whatever was set inside."""
    before = torch.get_num_threads()
    if count is not None:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def settle_arithmetic(device: str) -> None:
    """On a GPU: float32 products in float32, and the same bits from the same run. Before the first product.

    cuDNN multiplies in tf32 by default. Some of torch's kernels add floats in the order in which threads arrive; with
    deterministic algorithms it takes others or refuses. torch would also fill new tensors with NaN, a kernel each.
    """
    if device == "cuda":
        torch.backends.cudnn.allow_tf32 = False
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # a workspace for each stream, always the same
        torch.use_deterministic_algorithms(True)
        deterministic: Any = torch.utils.deterministic
        deterministic.fill_uninitialized_memory = False


def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def capture(work: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
    """Record what work does on the GPU, without doing it; the result does it, and gives the place of its answer."""
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
    # a run on a stream of its own is captured there: cuBLAS has a workspace for each stream, and two runs may not share
    with torch.cuda.graph(graph, stream=None if stream == torch.cuda.default_stream() else stream):
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


def watch_waits(work: Callable[[], torch.Tensor]) -> tuple[torch.Tensor, bool]:
    """Do it, and tell whether the host waited for the GPU, which no capture allows."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")  # which itself warns that it is new
        try:
            answer = work()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return answer, any("synchronizing CUDA operation" in str(warning.message) for warning in caught)


def own_stream(device: str) -> AbstractContextManager[object]:
    """To be entered again and again: what is launched inside waits for nothing that was launched elsewhere."""
    return torch.cuda.stream(torch.cuda.Stream()) if device == "cuda" else nullcontext()


@cache
def _side_stream() -> torch.cuda.Stream:
    return torch.cuda.Stream()


class Stopwatch:
    """Seconds that the device spends on parts of a run. Reading waits for the GPU, so it belongs where a run waits."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.seconds = 0.0
        self.pending: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    @contextmanager
    def running(self) -> Iterator[None]:
        if self.device == "cuda":
            start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            yield
            stop.record()
            self.pending.append((start, stop))
        else:
            before = time.perf_counter()
            yield
            self.seconds += time.perf_counter() - before

    def read(self) -> float:
        """What was measured since the last time."""
        if self.pending:
            self.pending[-1][1].synchronize()
        found = self.seconds + sum(start.elapsed_time(stop) for start, stop in self.pending) / 1e3
        self.seconds = 0.0
        self.pending.clear()
        return found


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


@contextmanager
def products(precision: str, is_forward: bool) -> Iterator[None]:
    """Matrix products in this precision; tensors in memory stay float32, but for what autocast makes of them.

    torch's autocast is for a forward pass: the backward pass takes the types that it finds. Our attention kernels and
    fla's multiply float32 in float32 whatever this says.
    """
    if precision == "fp32":
        yield
    elif precision == "bf16":
        # without its cache, which would outlive a captured step
        with torch.autocast("cuda", torch.bfloat16, enabled=is_forward, cache_enabled=False):
            yield
    else:
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
        try:
            yield
        finally:
            torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False


def release_memory(device: str) -> None:
    """Give back what torch keeps in reserve: after an allocation that failed, its pieces are in the way."""
    if device == "cuda":
        torch.cuda.empty_cache()


def reset_peak_memory(device: str) -> None:
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()


def allocated_memory(device: str) -> dict[str, int]:
    """Bytes that tensors on the GPU take now; nothing off the GPU."""
    return {"allocated_bytes": torch.cuda.memory_allocated()} if device == "cuda" else {}


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
