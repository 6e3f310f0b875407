"""What can be known of the kernels without a GPU: compile them for real targets and read the binaries.

Every shipped configuration (kernel, dtype, head width, padded length; slopes and gate switched on, which is the largest
form of each) is compiled ahead of time. Reported are registers, spilled bytes, shared memory, instructions, tensor-core
instructions, and the bytes that its loads and stores move, counted in the compiler's own intermediate form and compared
with the least that any kernel must move. Needs Triton without its interpreter, so it runs in a process of its own.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tabulate import tabulate

LENGTHS = (15, 30, 59, 128)  # one for each padded size: 16, 32, 64, 128
TORCH = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
TARGETS = {  # name: (backend, architecture, warp size, shared memory a block may have)
    "sm_80": ("cuda", 80, 32, 163 * 1024),
    "sm_86": ("cuda", 86, 32, 99 * 1024),
    "sm_89": ("cuda", 89, 32, 99 * 1024),
    "sm_90": ("cuda", 90, 32, 227 * 1024),
    "sm_100": ("cuda", 100, 32, 227 * 1024),
    "sm_120": ("cuda", 120, 32, 99 * 1024),
    "gfx942": ("hip", "gfx942", 64, 64 * 1024),
}
TENSOR_CORES = ("mma.sync", "wgmma", "tcgen05.mma", "v_mfma")
MAX_INSTRUCTIONS = 16_000  # of any kernel on any CUDA target: a regression in code size shows here first


class Job(NamedTuple):
    target: str
    kernel: str
    dtype: str
    width: int
    length: int | None  # None: the long path and decoding take any


@dataclass(frozen=True)
class Compiled:
    target: str
    kernel: str
    dtype: str
    width: int
    length: int | None
    warps: int
    registers: int
    spilled: int
    shared: int
    instructions: int
    tensor_cores: bool
    bytes_moved: int | None  # by one program; None where loops have no constant length
    bytes_least: int | None

    def complaints(self) -> list[str]:
        """Every reason not to ship it."""
        limit = TARGETS[self.target][3]
        found = []
        if self.spilled:
            found.append(f"{self.spilled} bytes spilled")
        if self.shared > limit:
            found.append(f"{self.shared} bytes of shared memory, {self.target} has {limit}")
        if self.instructions > MAX_INSTRUCTIONS:
            found.append(f"{self.instructions} instructions, more than {MAX_INSTRUCTIONS}")
        if self.dtype != "fp32" and self.kernel != "decode" and not self.tensor_cores:
            found.append("no tensor-core instruction")
        if self.bytes_moved != self.bytes_least:
            found.append(f"moves {self.bytes_moved} bytes, {self.bytes_least} would do")
        return found


def jobs(targets: list[str]) -> list[Job]:
    from models.kernels.attention import SERVED_WIDTHS
    from models.kernels.attention_triton import is_short

    work = []
    for target in targets:
        for dtype in TORCH:
            for width in SERVED_WIDTHS:
                lengths = [n for n in LENGTHS if is_short(n, width, TORCH[dtype])]
                work += [
                    Job(target, f"short {way}", dtype, width, n) for way in ("forward", "backward") for n in lengths
                ]
                work += [
                    Job(target, f"long {way}", dtype, width, None) for way in ("forward", "backward kv", "backward q")
                ]
                work.append(Job(target, "decode", dtype, width, None))
    return work


def compile_job(job: Job) -> Compiled:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from models.kernels import attention_triton as source

    dtype = TORCH[job.dtype]
    backward = "backward" in job.kernel
    constants: dict[str, Any] = {"H": 4, "D": job.width, "DP": source.padded(job.width), "SLOPED": True, "GATED": True}
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
    halves = {"qkv", "out", "raw", "d_out", "d_qkv", "q", "cache"}
    singles = {"slopes", "gate", "d_slopes", "d_gate", "lse", "delta"}

    def kind(name: str) -> str:
        if name in constants:
            return "constexpr"
        pointer = f"*{job.dtype}" if name in halves else "*fp32" if name in singles else None
        return pointer or ("fp32" if name == "scale" else "i32")

    signature = {name: kind(name) for name in names}
    # what the launcher knows of real tensors: pointers are aligned to 16 bytes
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
        *job, warps=tile.warps, registers=registers, spilled=spilled, shared=compiled.metadata.shared,
        instructions=instructions, tensor_cores=any(name in assembly for name in TENSOR_CORES),
        bytes_moved=moved, bytes_least=least,
    )  # fmt: skip


def _read_cubin(asm: dict[str, Any]) -> tuple[int, int, int]:
    """Registers, spilled bytes and instructions, as the vendor's own tools read them from the binary."""
    import triton

    tools = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(asm["cubin"])
        file.flush()

        def tool(*words: str) -> str:
            return subprocess.run([*words, file.name], capture_output=True, text=True, check=True).stdout

        usage = re.search(r"REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)", tool(str(tools / "cuobjdump"), "-res-usage"))
        assert usage is not None
        code = tool(str(tools / "nvdisasm"), "-c")
    instructions = len(re.findall(r"^\s+/\*[0-9a-f]{4,}\*/", code, re.MULTILINE))
    return int(usage[1]), int(usage[2]) + int(usage[3]), instructions


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
    """Bytes that all loads and stores of one program ask for, loops counted out; masked lanes included."""
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
    """Each tensor once, at the padded sizes of the tile, and one number each for slope and gate."""
    from models.kernels.attention_triton import padded

    assert job.length is not None
    size = 4 if job.dtype == "fp32" else 2
    queries = -(-job.length // tile.rows) * tile.rows
    row = padded(job.width) * size
    if job.kernel == "short forward":
        return (2 * queries + 2 * tile.columns) * row + 2 * 4  # Q, O; K, V
    return (3 * queries + 4 * tile.columns) * row + 4 * 4  # Q, dO, dQ; K, V, dK, dV; slope, gate and their gradients


def compile_all(work: list[Job], processes: int) -> Iterator[Compiled]:
    """One after the other as they are done, from processes that never saw the interpreter's flag."""
    flag = os.environ.pop("TRITON_INTERPRET", None)
    try:
        with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn")) as pool:
            yield from pool.map(compile_job, work, chunksize=4)
    finally:
        if flag is not None:
            os.environ["TRITON_INTERPRET"] = flag


def render(results: list[Compiled]) -> str:
    """The table, in Markdown, with an estimate of what memory traffic alone would cost."""
    header = ["target", "kernel", "dtype", "head", "L", "warps", "registers", "spilled", "shared", "instructions"]
    header += ["tensor cores", "bytes moved", "least"]
    rows = [
        [
            c.target, c.kernel, c.dtype, c.width, c.length or "any", c.warps, c.registers, c.spilled, c.shared,
            c.instructions, "yes" if c.tensor_cores else "no",
            "" if c.bytes_moved is None else c.bytes_moved, "" if c.bytes_least is None else c.bytes_least,
        ]
        for c in results
    ]  # fmt: skip
    faulty = sum(bool(c.complaints()) for c in results)
    parts = [
        "# The kernels, compiled ahead of time",
        "<!-- Generated by `bench kernels --static --out FILE`. -->",
        f"**{faulty or 'None'} of {len(results):,} binaries** spill registers, need more shared memory than their GPU"
        " has, miss its tensor cores, or move more bytes than they must.",
        "No GPU took part. Registers are per thread; spilled, shared and moved are bytes per program (one sequence, one"
        " head), at padded sizes; bytes are counted in the compiler's intermediate form, loops counted out.",
        roofline(),
        tabulate(rows, headers=header, tablefmt="pipe"),
    ]
    return "\n\n".join(parts) + "\n"


BANDWIDTH = {"A100 80GB": 2.04e12, "H100 SXM": 3.35e12, "RTX 4090": 1.01e12, "B200": 8.0e12}  # bytes a second


def roofline(batch: int = 1024, heads: int = 6, length: int = 40, width: int = 32, size: int = 2) -> str:
    tensor = batch * heads * length * width * size
    rows = [[gpu, f"{4e6 * tensor / rate:.0f}", f"{7e6 * tensor / rate:.0f}"] for gpu, rate in BANDWIDTH.items()]
    note = (
        f"Estimate, not a measurement: microseconds for {batch} sequences, {heads} heads, L = {length}, width {width}, "
    )
    note += "bf16, if memory bandwidth were the only limit (forward moves 4 tensors, backward 7)."
    return f"{note}\n\n" + tabulate(rows, headers=["GPU", "forward", "backward"], tablefmt="pipe")
