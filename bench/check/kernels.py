"""Are the attention kernels right on this machine, and how fast? First the one, then the other.

Every kernel is compared, forward and backward, with its float64 twin; a time is printed only after that, and never for
a kernel that failed. Without CUDA the kernels run in Triton's interpreter, in a process of their own: that proves their
arithmetic and their masks, and says nothing about speed. The interpreter is silently wrong about bfloat16, so without
CUDA bfloat16 is not checked here.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import track
from tabulate import tabulate
from torch import Tensor

from bench.device import cores, cuda_events, pick_device
from bench.registry import BadInput
from bench.seeds import generator
from models.kernels.attention import SERVED_WIDTHS, attention, attention_step

TOLERANCE = {"float32": 1e-5, "float16": 2e-3, "bfloat16": 2e-2}  # relative, in the Euclidean norm of a whole tensor
LENGTHS = (1, 2, 15, 39, 64, 99, 128, 153)
PARTLY = ((False, False), (True, False), (False, True))  # slopes and gate


@dataclass(frozen=True)
class Case:
    length: int
    width: int
    dtype: str = "float32"
    header: int = 0
    sloped: bool = True
    gated: bool = True
    batch: int = 2
    heads: int = 3

    def __str__(self) -> str:
        extras = [name for name, there in (("slopes", self.sloped), ("gate", self.gated)) if there]
        return f"L {self.length}, width {self.width}, {self.dtype}{''.join(', ' + e for e in extras)}"


def cases(dtypes: list[str]) -> list[Case]:
    """Every length at one width, every width at one length, with the extras and without."""
    found = [Case(n, 32, dtype, min(n, 10)) for dtype in dtypes for n in LENGTHS]
    found += [Case(39, width, dtype, 10) for dtype in dtypes for width in SERVED_WIDTHS]
    found += [Case(39, 32, dtype, 0, sloped, gated) for dtype in dtypes for sloped, gated in PARTLY]
    return found


def tensors(case: Case, device: str) -> dict[str, Tensor | None]:
    rng = generator(device, 0, "kernels", str(case))
    dtype = getattr(torch, case.dtype)

    def draw(*size: int) -> Tensor:
        return torch.randn(size, generator=rng, device=device)

    B, L, H, D = case.batch, case.length, case.heads, case.width
    return {
        "qkv": draw(B, L, 3, H, D).to(dtype),
        "d_out": draw(B, L, H, D).to(dtype),
        "slopes": 2.0 ** -torch.arange(H, device=device, dtype=torch.float32) if case.sloped else None,
        "gate": draw(H) if case.gated else None,
    }


def outputs(case: Case, given: dict[str, Tensor | None], backend: str) -> dict[str, Tensor]:
    """The output, every gradient, and the last position once more by the decoding path."""

    def leaf(name: str) -> Tensor | None:
        tensor = given[name]
        if tensor is None:
            return None
        copy = tensor.double() if backend == "math" else tensor
        return copy.detach().requires_grad_(name != "d_out")

    qkv, d_out, slopes, gate = (leaf(name) for name in ("qkv", "d_out", "slopes", "gate"))
    assert qkv is not None
    out = attention(qkv, slopes, case.header, gate, backend)
    out.backward(d_out)
    last = out[:, -1]
    if backend == "triton":
        with torch.no_grad():
            cache = qkv[:, :, 1:].contiguous()
            last = attention_step(qkv[:, -1, 0], cache, case.length, slopes, case.header, gate, backend)
    found = {"out": out, "d_qkv": qkv.grad, "decode": last}
    found |= {f"d_{name}": t.grad for name, t in (("slopes", slopes), ("gate", gate)) if t is not None}
    return {name: tensor.detach() for name, tensor in found.items() if tensor is not None}


def errors(case: Case, device: str) -> dict[str, float]:
    """Relative distance to the float64 twin for every output."""
    given = tensors(case, device)
    ours, twin = outputs(case, given, "triton"), outputs(case, given, "math")
    assert ours.keys() == twin.keys()
    return {name: relative(ours[name], twin[name]) for name in twin}


def relative(ours: Tensor, twin: Tensor) -> float:
    """A gradient that is exactly zero has no relative error: then the distance itself counts."""
    scale = twin.norm().item()
    return (ours.double() - twin).norm().item() / (scale if scale > 1e-6 else 1.0)


def failures(case: Case, found: dict[str, float]) -> list[str]:
    limit = TOLERANCE[case.dtype]
    return [f"{name} is off by {error:.1e}" for name, error in found.items() if not error <= limit]


def require_right(case: Case, device: str) -> None:
    """Refuse to train on a kernel that is wrong here."""
    if wrong := failures(case, errors(case, device)):
        raise RuntimeError(f"the attention kernel fails its check at {case}: {'; '.join(wrong)}")


def check_all(device: str) -> list[tuple[Case, dict[str, float]]]:
    """All cases: here on CUDA, else interpreted in a process of its own."""
    if device == "cuda":
        return [(case, errors(case, device)) for case in track(cases(list(TOLERANCE)), "checking")]
    work = cases(["float32", "float16"])
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    code = "from bench.kernels import serve; serve()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(json.dumps([asdict(case) for case in work]))
        child.stdin.close()
        answers = [json.loads(line) for line in track(child.stdout, "checking", total=len(work))]
    if child.returncode != 0 or len(answers) != len(work):
        raise RuntimeError(f"the interpreting process ended with {child.returncode}")
    return list(zip(work, answers, strict=True))


def serve() -> None:
    """The interpreting process: cases in, errors out."""
    for case in json.load(sys.stdin):
        print(json.dumps(errors(Case(**case), "cpu")), flush=True)


def time_on_cuda(work: Callable[[], object], repeats: int = 50) -> tuple[float, float]:
    """Median and spread (middle half) in microseconds, by CUDA events, after a warm-up."""
    for _ in range(10):
        work()
    micros = sorted(cuda_events(work) * 1e3 for _ in range(repeats))
    quarters = statistics.quantiles(micros, n=4)
    return quarters[1], quarters[2] - quarters[0]


def time_all(console: Console) -> None:
    """Forward and backward of each backend at the sizes of the suite, on CUDA."""
    for length, header in ((39, 0), (30, 10), (99, 0), (1024, 0)):
        case = Case(length, 32, "float32", header, gated=False, batch=64, heads=8)
        require_right(case, "cuda")
        given = tensors(case, "cuda")
        for backend in ("triton", "sdpa", "math"):
            median, spread = time_on_cuda(partial(_there_and_back, given, header, backend))
            console.print(f"{case}: {backend} {median:.0f} us (middle half {spread:.0f} us)", highlight=False)


def _there_and_back(given: dict[str, Tensor | None], header: int, backend: str) -> None:
    qkv = given["qkv"]
    assert qkv is not None
    qkv = qkv.detach().requires_grad_()
    torch.autograd.grad(attention(qkv, given["slopes"], header, None, backend), qkv, given["d_out"])


def report(console: Console) -> int:
    device, why = pick_device("auto")
    how = "on this GPU" if device == "cuda" else f"in Triton's interpreter ({why})"
    console.print(f"checking the attention kernels against their float64 twin, {how}", highlight=False)
    checked = check_all(device)
    columns = ("out", "d_qkv", "d_slopes", "d_gate", "decode")
    rows = []
    for case, found in checked:
        numbers = [f"{found[name]:.1e}" if name in found else "" for name in columns]
        rows.append([str(case), *numbers, f"{TOLERANCE[case.dtype]:.0e}", "; ".join(failures(case, found)) or "ok"])
    print(tabulate(rows, headers=["case", *columns, "allowed", "verdict"], disable_numparse=True))
    wrong = sum(bool(failures(case, found)) for case, found in checked)
    if wrong:
        print(f"{wrong} checks failed: no times are given")
        return 1
    if device == "cuda":
        time_all(console)
    else:
        print("All right. bfloat16: not checked here. Triton times: not measured, there is no CUDA device.")
    return 0


def report_static(out: Path | None, console: Console) -> int:
    from bench import kernels_static
    from bench.records import prepare_folder, write_whole

    if out is not None:
        if out.is_dir():
            raise BadInput(f"--out takes a file, and {out} is a folder")
        prepare_folder(out.parent)
    work = kernels_static.jobs(list(kernels_static.TARGETS))
    stream = kernels_static.compile_all(work, cores())
    results = list(track(stream, "compiling", total=len(work)))
    complaints = [f"{r.target} {r.kernel} {r.dtype} width {r.width}: {c}" for r in results for c in r.complaints()]
    if out is None:
        print(kernels_static.render(results))
    else:
        write_whole(out, kernels_static.render(results).encode())
        console.print(f"wrote {out}: {len(results)} configurations", highlight=False)
    for complaint in complaints:
        print(f"bench: {complaint}", file=sys.stderr)
    return 1 if complaints else 0
