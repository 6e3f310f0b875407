"""The command `bench kernels`: check every attention kernel on this machine, then time it.

Without CUDA the kernels are compiled for real GPUs, and an interpreter executes their PTX (ptx/). That tests their
arithmetic, masks, addresses and barriers and says nothing about speed. Times are printed only if every check has
passed. With `--static` the kernels are compiled for all targets instead, and a table of their binaries is printed.
"""

from __future__ import annotations

import sys
from itertools import product
from pathlib import Path
from typing import NamedTuple

import torch
from rich.console import Console
from rich.progress import track
from tabulate import tabulate

from bench.check import binaries, recurrences
from bench.check.timing import time_all
from bench.device import cores, gpu_problem, pick_device, settle_arithmetic
from bench.records import prepare_folder, write_whole
from bench.registry import BadInput
from bench.run.nvml import peak_flops
from models.kernels.check import TOLERANCE, Case, cases, errors, failures

COLUMNS = ("out", "d_qkv", "decode")
EXECUTED = ("sm_80", "sm_90")  # sm_90 has instructions of its own for products; the others up to sm_89 are as sm_80
BANDWIDTH = {  # bytes per second, as published
    "NVIDIA A100-SXM4-80GB": 2.04e12,
    "NVIDIA H100 80GB HBM3": 3.35e12,
    "NVIDIA GeForce RTX 4090": 1.01e12,
    "NVIDIA B200": 8.0e12,
}
EXECUTION = (
    "`bench kernels` without a GPU executes the compiled kernels: it compiles them for sm_80 and sm_90, as a run on"
    " such a GPU would, interprets their PTX with numpy and compares the outputs with float64. Every access must be"
    " aligned and within a tensor; threads that meet in shared memory need a barrier between them, asynchronous copies"
    " and products included; no block may touch what another one writes. `tests/test_ptx.py` removes waits and changes"
    " constants in the PTX, and each of these mistakes is caught. Not covered: time, the rounding of approximate"
    " instructions and of tensor cores, and what the assembler makes of the PTX."
)


class Checked(NamedTuple):
    where: str  # the GPU, or the target that the kernels were compiled for
    case: Case
    errors: dict[str, float]
    fault: str | None = None  # what the interpreter of the compiled code refused

    def failures(self) -> list[str]:
        return [self.fault] if self.fault else failures(self.case, self.errors)


def check_all(device: str) -> list[Checked]:
    """All cases: on this GPU, or else as compiled for the EXECUTED targets and interpreted."""
    if device == "cuda":
        return [Checked("cuda", case, errors(case, device)) for case in track(cases(list(TOLERANCE)), "checking")]
    work = list(product(EXECUTED, cases(list(TOLERANCE))))
    stream = binaries.in_processes(execute, work, cores())
    return list(track(stream, "checking", total=len(work)))


def execute(job: tuple[str, Case]) -> Checked:
    """Compile a case's kernels for a target and execute them here."""
    from bench.check.ptx.driver import executing  # imports Triton
    from bench.check.ptx.program import Fault

    target, case = job
    torch.set_num_threads(1)
    try:
        with executing(target):
            return Checked(target, case, errors(case, "cpu"))
    except Fault as fault:
        return Checked(target, case, {}, str(fault))


def report(console: Console) -> int:
    problem = gpu_problem()
    device, why = ("cpu", problem) if problem else pick_device("auto")
    how = "on this GPU"
    if device != "cuda":
        how = f"compiled for {' and '.join(EXECUTED)} and executed by an interpreter of PTX ({why})"
    console.print(f"checking the attention kernels against their float64 reference, {how}", highlight=False)
    settle_arithmetic(device)  # as a run does: other algorithms would be timed
    checked = check_all(device)
    rows = []
    for one in checked:
        numbers = [f"{one.errors[name]:.1e}" if name in one.errors else "" for name in COLUMNS]
        verdict = "; ".join(one.failures()) or "ok"
        rows.append([one.where, str(one.case), *numbers, f"{TOLERANCE[one.case.dtype]:.0e}", verdict])
    print(tabulate(rows, headers=["target", "case", *COLUMNS, "allowed", "verdict"], disable_numparse=True))
    wrong = sum(bool(one.failures()) for one in checked)
    if wrong:
        print(f"{wrong} checks failed, so nothing was timed")
        return 1
    if device == "cuda":
        time_all(console)
    else:
        print("All checks passed: numbers, bounds, alignment, races.")
        print(f"Not measured: times, because {why.removeprefix('auto: ')}.")
    return 0


def report_static(out: Path | None, console: Console) -> int:
    if out is not None:
        if out.is_dir():
            raise BadInput(f"--out takes a file, and {out} is a folder")
        prepare_folder(out.parent)
    work = binaries.jobs(list(binaries.TARGETS))
    stream = binaries.in_processes(binaries.compile_job, work, cores())
    results = list(track(stream, "compiling", total=len(work)))
    targets = list(recurrences.DEVICES)
    lists = recurrences.compile_all(targets, recurrences.sizes_of_runs(), cores())
    others = [one for some in track(lists, "compiling fla's kernels", total=len(targets)) for one in some]
    page = f"{render(results)}\n{recurrences.render(others)}"
    if out is None:
        print(page)
    else:
        write_whole(out, page.encode())
        console.print(f"wrote {out}: {len(results)} configurations", highlight=False)
    complaints = [f"{result.name()}: {complaint}" for result in results for complaint in result.complaints()]
    complaints += recurrences.complaints(others)
    for complaint in complaints:
        print(f"bench: {complaint}", file=sys.stderr)
    return 1 if complaints else 0


def render(results: list[binaries.Compiled]) -> str:
    """The table in Markdown, with an estimate of the time that memory traffic alone would take."""
    header = ["target", "kernel", "dtype", "head", "L", "warps", "registers", "spilled", "shared"]
    header += ["instructions", "tensor cores", "bytes moved", "least"]
    faulty = sum(bool(result.complaints()) for result in results)
    small = sum(0 < result.spilled <= binaries.SMALL_SPILL for result in results)
    forms: dict[tuple[object, ...], list[binaries.Compiled]] = {}  # with slopes and without
    for c in results:
        forms.setdefault((c.target, c.kernel, c.dtype, c.width, c.length or "any"), []).append(c)
    parts = [
        "# The kernels, compiled ahead of time",
        "<!-- Generated by `bench kernels --static --out FILE`. -->",
        f"**Binaries with a fault: {faulty} of {len(results):,}.** A fault is: more than {binaries.SMALL_SPILL} bytes"
        " spilled per thread, more shared memory than the GPU has, tensor cores idle in a 16-bit forward or backward"
        " pass, or (short sequences only) more bytes moved than necessary."
        f" {small} binaries spill {binaries.SMALL_SPILL} bytes or less.",
        "No GPU was used. Every kernel has two forms, with slopes and without; a row shows the larger of the two"
        " numbers. Registers and spilled bytes are per thread. Shared and moved are bytes per program (one head of one"
        " sequence), at padded sizes. Bytes moved are counted in the compiler's intermediate code, every pass of a"
        " loop included. [cuda.md](cuda.md) says what is tested of the host code without a GPU.",
        EXECUTION,
        roofline(),
        tabulate([[*name, *_largest(both)] for name, both in forms.items()], headers=header, tablefmt="pipe"),
    ]
    return "\n\n".join(parts) + "\n"


def _largest(forms: list[binaries.Compiled]) -> list[object]:
    """The cells of a row after its name: the largest number of any form, and whether all forms use tensor cores."""
    numbers = [(c.warps, c.registers, c.spilled, c.shared, c.instructions) for c in forms]
    tensor_cores = "yes" if all(c.tensor_cores for c in forms) else "no"
    moved = max((c.bytes_moved for c in forms if c.bytes_moved is not None), default="")
    least = max((c.bytes_least for c in forms if c.bytes_least is not None), default="")
    return [*map(max, zip(*numbers, strict=True)), tensor_cores, moved, least]


def roofline(batch: int = 64, heads: int = 6, length: int = 39, width: int = 32) -> str:
    """The time that memory or arithmetic alone would take, in the precision that runs use."""
    tensor = batch * heads * length * width * 4
    product = 2 * batch * heads * length**2 * width  # operations of one of the products; forward has 2, backward 5
    rows = []
    for gpu, bandwidth in BANDWIDTH.items():
        flops = peak_flops(gpu, "fp32")
        assert flops is not None, gpu
        cells = [f"{1e6 * tensors * tensor / bandwidth:.1f}" for tensors in (4, 7)]
        cells += [f"{1e6 * products * product / flops:.1f}" for products in (2, 5)]
        rows.append([gpu, cells[0], cells[2], cells[1], cells[3]])
    note = (
        f"Estimate, not a measurement: microseconds for {batch} sequences, {heads} heads, L = {length}, width {width},"
        " float32 as runs use it, if memory bandwidth or arithmetic without tensor cores were the only limit. Forward"
        " moves 4 tensors and has 2 products, backward 7 and 5. Masked scores are counted, padding is not."
    )
    header = ["GPU", "forward: memory", "arithmetic", "backward: memory", "arithmetic"]
    return f"{note}\n\n" + tabulate(rows, headers=header, tablefmt="pipe", disable_numparse=True)
