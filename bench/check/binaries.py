"""Compile the attention kernels for real GPUs, without having one, and read the binaries.

Every configuration that the package ships is compiled ahead of time: kernel, dtype, head width, padded length, with
slopes and without. Reported are registers, spilled bytes, shared memory, instructions, tensor-core instructions, and
the bytes moved by loads and stores. Bytes are counted in the compiler's intermediate code and compared with the minimum
that any kernel must move. Triton cannot compile with its interpreter on, so this runs in processes of its own.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch

A = TypeVar("A")
B = TypeVar("B")
LENGTHS = (15, 30, 59, 128)  # one per padded size: 16, 32, 64, 128
TORCH = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
TARGETS = {  # name: (backend, architecture, warp size, bytes of shared memory per block)
    "sm_80": ("cuda", 80, 32, 163 * 1024),
    "sm_86": ("cuda", 86, 32, 99 * 1024),
    "sm_89": ("cuda", 89, 32, 99 * 1024),
    "sm_90": ("cuda", 90, 32, 227 * 1024),
    "sm_100": ("cuda", 100, 32, 227 * 1024),
    "sm_120": ("cuda", 120, 32, 99 * 1024),
    "gfx942": ("hip", "gfx942", 64, 64 * 1024),
}
TENSOR_CORES = ("mma.sync", "wgmma", "tcgen05.mma", "v_mfma")
SMALL_SPILL = 8  # bytes a thread: two registers. NVIDIA's assembler does it in some binaries with registers to spare
MAX_INSTRUCTIONS = 16_000  # per kernel: a regression in code size shows here first


class Job(NamedTuple):
    target: str
    kernel: str
    dtype: str
    width: int
    length: int | None  # None: the long path and decoding take any length
    sloped: bool


@dataclass(frozen=True)
class Compiled:
    target: str
    kernel: str
    dtype: str
    width: int
    length: int | None
    sloped: bool
    warps: int
    registers: int
    spilled: int
    shared: int
    instructions: int
    tensor_cores: bool
    bytes_moved: int | None  # by one program; None if its loops have no constant length
    bytes_least: int | None

    def name(self) -> str:
        slopes = "slopes" if self.sloped else "no slopes"
        return f"{self.target} {self.kernel} {self.dtype} width {self.width} L {self.length or 'any'} {slopes}"

    def complaints(self) -> list[str]:
        """Every reason not to ship this binary."""
        limit = TARGETS[self.target][3]
        found = []
        if self.spilled > SMALL_SPILL:
            found.append(f"{self.spilled} bytes spilled")
        if self.shared > limit:
            found.append(f"{self.shared} bytes of shared memory, {self.target} has {limit}")
        if self.instructions > MAX_INSTRUCTIONS:
            found.append(f"{self.instructions} instructions, more than {MAX_INSTRUCTIONS}")
        if self.dtype != "fp32" and self.kernel != "decode" and not self.tensor_cores:
            found.append("no tensor-core instruction")
        if self.bytes_moved != self.bytes_least:
            found.append(f"moves {self.bytes_moved} bytes, {self.bytes_least} are enough")
        return found


def jobs(targets: list[str]) -> list[Job]:
    from models.kernels.attention import SERVED_WIDTHS
    from models.kernels.attention_triton import is_short

    work = []
    for target, dtype, width, sloped in product(targets, TORCH, SERVED_WIDTHS, (True, False)):
        for way in ("forward", "backward"):
            lengths = [n for n in LENGTHS if is_short(n, width, TORCH[dtype])]
            work += [Job(target, f"short {way}", dtype, width, n, sloped) for n in lengths]
        for kernel in ("long forward", "long backward kv", "long backward q", "decode"):
            work.append(Job(target, kernel, dtype, width, None, sloped))
    return work


def compile_job(job: Job) -> Compiled:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from models.kernels import attention_triton as source

    dtype = TORCH[job.dtype]
    backward = "backward" in job.kernel
    constants: dict[str, Any] = {"H": 4, "D": job.width, "DP": source.padded(job.width), "SLOPED": job.sloped}
    if job.length is not None:
        tile = source.short_tile(job.length, job.width, dtype, backward, hip=job.target.startswith("gfx"))
        constants |= {"L": job.length, "BM": tile.rows, "BN": tile.columns}
    elif job.kernel == "decode":
        tile = source.DECODE_TILE
        constants |= {"BN": tile.columns}
    else:
        tile = source.long_tile(dtype, job.kernel.removeprefix("long "))
        constants |= {"BM": tile.rows, "BN": tile.columns}
    kernel = source.KERNELS[job.kernel]
    names: list[str] = kernel.arg_names  # type: ignore[attr-defined]
    if not job.sloped:
        constants["slopes"] = None  # as a run passes it
    signature = {name: "constexpr" if name in constants else _kind(name, job.dtype) for name in names}
    # the launcher knows that the pointers of real tensors are aligned to 16 bytes
    aligned = {(i,): [["tt.divisibility", 16]] for i, name in enumerate(names) if signature[name].startswith("*")}
    values = {(names.index(name),): value for name, value in constants.items()}
    backend, arch, warp, _ = TARGETS[job.target]
    compiled = triton.compile(
        ASTSource(kernel, signature, values, aligned),
        target=GPUTarget(backend, arch, warp),
        options={"num_warps": tile.warps, "num_stages": tile.stages},
    )
    read = _read_cubin if backend == "cuda" else _read_hsaco
    registers, spilled, instructions = read(compiled.asm)
    assembly = compiled.asm["ptx" if backend == "cuda" else "amdgcn"]
    moved = count_bytes(compiled.asm["ttir"]) if job.length is not None else None
    least = _least_bytes(job, tile) if job.length is not None else None
    return Compiled(
        *job,
        warps=tile.warps,
        registers=registers,
        spilled=spilled,
        shared=compiled.metadata.shared,
        instructions=instructions,
        tensor_cores=any(name in assembly for name in TENSOR_CORES),
        bytes_moved=moved,
        bytes_least=least,
    )


def _kind(name: str, dtype: str) -> str:
    """The type of a kernel's argument."""
    if name in ("qkv", "out", "d_out", "d_qkv", "q", "cache"):
        return f"*{dtype}"
    if name in ("slopes", "lse", "delta"):
        return "*fp32"
    return "fp32" if name == "scale" else "i32"


def _read_cubin(asm: dict[str, Any]) -> tuple[int, int, int]:
    """Registers, spilled bytes and instructions, read from the binary with NVIDIA's tools."""
    code = _run_tool("nvdisasm", "-c", asm["cubin"])
    instructions = len(re.findall(r"^\s+/\*[0-9a-f]{4,}\*/", code, re.MULTILINE))
    return *read_usage(asm["cubin"]), instructions


def read_usage(cubin: bytes) -> tuple[int, int]:
    """Registers and spilled bytes."""
    usage = re.search(r"REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)", _run_tool("cuobjdump", "-res-usage", cubin))
    assert usage is not None
    return int(usage[1]), int(usage[2]) + int(usage[3])


def _run_tool(name: str, option: str, cubin: bytes) -> str:
    import triton

    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / name
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        return subprocess.run([str(tool), option, file.name], capture_output=True, text=True, check=True).stdout


def _read_hsaco(asm: dict[str, Any]) -> tuple[int, int, int]:
    text: str = asm["amdgcn"]

    def number(key: str) -> int:
        found = re.search(rf"\.{key}:\s+(\d+)", text)
        assert found is not None, key
        return int(found[1])

    spilled = 4 * number("vgpr_spill_count")  # scalar registers spill into lanes of vector registers, not to memory
    instructions = len(re.findall(r"^\t(?:v|s|ds|global|buffer|flat)_", text, re.MULTILINE))
    return number("vgpr_count"), spilled, instructions


def count_bytes(ttir: str) -> int:
    """Bytes of all loads and stores of one program, every pass of a loop and masked lanes included."""
    constants = {name: int(value) for name, value in re.findall(r"(%\S+) = arith.constant (\d+) : i32", ttir)}
    total, trips, depth = 0, [1], 0
    loops: list[int] = []
    for line in ttir.splitlines():
        if loop := re.search(r"scf\.for \S+ = (%\S+) to (%\S+) step (%\S+)", line):
            first, last, step = (constants[name] for name in loop.groups())
            loops.append(depth)
            trips.append(trips[-1] * -(-(last - first) // step))
        if access := re.search(r"tt\.(?:load|store) .*: (?:tensor<([0-9x]+)x)?!tt\.ptr<(\w+)>", line):
            shape, element = access.groups()
            size = {"f32": 4, "f16": 2, "bf16": 2}[element]
            for n in (shape or "1").split("x"):
                size *= int(n)
            total += size * trips[-1]
        depth += line.count("{") - line.count("}")
        if loops and depth == loops[-1]:
            loops.pop()
            trips.pop()
    return total


def _least_bytes(job: Job, tile: Any) -> int:
    """Each tensor once at the padded sizes of the tile, and the slope."""
    from models.kernels.attention_triton import padded

    assert job.length is not None
    size = 4 if job.dtype == "fp32" else 2
    queries = -(-job.length // tile.rows) * tile.rows
    row = padded(job.width) * size
    slope = 4 if job.sloped else 0
    if job.kernel == "short forward":
        return (2 * queries + 2 * tile.columns) * row + slope  # Q, O; K, V
    return (3 * queries + 4 * tile.columns) * row + slope  # Q, dO, dQ; K, V, dK, dV


def in_processes(function: Callable[[A], B], work: list[A], processes: int) -> Iterator[B]:
    """Results in the order of the work, from processes started without the flag of Triton's interpreter."""
    flag = os.environ.pop("TRITON_INTERPRET", None)
    try:
        with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn")) as pool:
            yield from pool.map(function, work, chunksize=4)
    finally:
        if flag is not None:
            os.environ["TRITON_INTERPRET"] = flag
