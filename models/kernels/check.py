"""Compare the kernels of attention and of the recurrences with their float64 references, forward and backward.

A run checks the shapes that it will use before it trains; `bench kernels` checks a grid of them.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from models.kernels.attention import SERVED_WIDTHS, attention, attention_step
from models.kernels.recurrence import chunked, fused

TOLERANCE = {"float32": 1e-5, "float16": 2e-3, "bfloat16": 2e-2}  # relative, in the Euclidean norm of a whole tensor
LENGTHS = (1, 2, 15, 39, 64, 99, 128, 153)


@dataclass(frozen=True)
class Case:
    length: int
    width: int
    dtype: str = "float32"
    header: int = 0
    sloped: bool = True
    batch: int = 2
    heads: int = 3

    def __str__(self) -> str:
        return f"L {self.length}, width {self.width}, {self.dtype}, {'slopes' if self.sloped else 'no slopes'}"


def cases(dtypes: list[str]) -> list[Case]:
    """Every length at one width and every width at one length, with slopes; a short and a long case without."""
    found = [Case(n, 32, dtype, min(n, 10)) for dtype in dtypes for n in LENGTHS]
    found += [Case(39, width, dtype, 10) for dtype in dtypes for width in SERVED_WIDTHS]
    found += [Case(n, 32, dtype, sloped=False) for dtype in dtypes for n in (39, 153)]
    return found


def tensors(case: Case, device: str) -> dict[str, Tensor | None]:
    """Random inputs; the same case always draws the same ones on the same kind of device."""
    rng = torch.Generator(device).manual_seed(zlib.crc32(str(case).encode()))
    dtype = getattr(torch, case.dtype)
    B, L, H, D = case.batch, case.length, case.heads, case.width
    return {
        "qkv": torch.randn(B, L, 3, H, D, generator=rng, device=device).to(dtype),
        "d_out": torch.randn(B, L, H, D, generator=rng, device=device).to(dtype),
        "slopes": 2.0 ** -torch.arange(H, device=device, dtype=torch.float32) if case.sloped else None,
    }


def outputs(case: Case, given: dict[str, Tensor | None], backend: str) -> dict[str, Tensor]:
    """The output, the gradient of qkv, and the last position again as decoding computes it."""
    if backend == "math":
        given = {name: None if tensor is None else tensor.double() for name, tensor in given.items()}
    qkv, d_out, slopes = given["qkv"], given["d_out"], given["slopes"]
    assert qkv is not None
    qkv = qkv.detach().requires_grad_()
    out = attention(qkv, slopes, case.header, backend)
    (d_qkv,) = torch.autograd.grad(out, qkv, d_out)
    last = out[:, -1]
    if backend == "triton":
        with torch.no_grad():
            cache = qkv[:, :, 1:].contiguous()
            last = attention_step(qkv[:, -1, 0], cache, case.length, slopes, case.header, backend)
    return {"out": out.detach(), "d_qkv": d_qkv, "decode": last.detach()}


def errors(case: Case, device: str) -> dict[str, float]:
    """The relative distance of every output to its float64 reference."""
    given = tensors(case, device)
    ours, exact = outputs(case, given, "triton"), outputs(case, given, "math")
    return {name: relative(ours[name], exact[name]) for name in exact}


def relative(ours: Tensor, exact: Tensor) -> float:
    """The relative error; the absolute one where the exact tensor is zero."""
    scale = exact.norm().item()
    return (ours.double() - exact).norm().item() / (scale if scale > 1e-6 else 1.0)


def failures(case: Case | Recurrence, found: dict[str, float]) -> list[str]:
    limit = TOLERANCE[case.dtype]
    return [f"{name} is off by {error:.1e}" for name, error in found.items() if not error <= limit]  # NaN fails too


def require_right(case: Case, device: str) -> None:
    """Raise if the kernel is wrong on this device, so that nothing is trained with it."""
    if wrong := failures(case, errors(case, device)):
        raise RuntimeError(f"the attention kernel fails its check at {case}: {'; '.join(wrong)}")


@dataclass(frozen=True)
class Recurrence:
    """A case of fla's kernels, in float32."""

    name: str  # decayed_sum or delta_rule
    length: int
    heads: int
    keys: int
    values: int
    batch: int = 2
    dtype: str = "float32"


def recurrence_errors(case: Recurrence, device: str) -> dict[str, float]:
    """The relative distance of the output and of every gradient to the float64 reference."""
    rng = torch.Generator().manual_seed(zlib.crc32(str(case).encode()))
    shape = (case.batch, case.length, case.heads)
    given = {name: torch.randn(*shape, case.keys, generator=rng) for name in "qk"}
    given = {name: x / x.norm(dim=-1, keepdim=True) for name, x in given.items()}  # a long key makes the rule diverge
    given["v"] = torch.randn(*shape, case.values, generator=rng)
    given["g"] = -torch.rand(*shape, generator=rng)
    if case.name == "delta_rule":
        given["b"] = torch.rand(*shape, generator=rng)
    d_out = torch.randn(*shape, case.values, generator=rng)

    def outputs_of(function: Callable[..., Tensor], dtype: torch.dtype) -> list[Tensor]:
        tensors = [x.to(device, dtype).requires_grad_() for x in given.values()]
        out = function(*tensors)
        return [out.detach(), *torch.autograd.grad(out, tensors, d_out.to(device, dtype))]

    ours, exact = outputs_of(partial(fused, case.name), torch.float32), outputs_of(chunked, torch.float64)
    names = ["out", *(f"d_{name}" for name in given)]
    return {name: relative(mine, true) for name, mine, true in zip(names, ours, exact, strict=True)}


def require_right_recurrence(case: Recurrence, device: str) -> None:
    if wrong := failures(case, recurrence_errors(case, device)):
        raise RuntimeError(f"fla's kernel fails its check at {case}: {'; '.join(wrong)}")


def warm_up(case: Recurrence, device: str) -> None:
    """A forward and a backward pass on zeros, because some of fla's kernels are compiled for each batch size."""
    shape = (case.batch, case.length, case.heads)
    tensors = [torch.zeros(*shape, n, device=device, requires_grad=True) for n in (case.keys, case.keys, case.values)]
    scalars = 2 if case.name == "delta_rule" else 1
    tensors += [torch.zeros(*shape, device=device, requires_grad=True) for _ in range(scalars)]
    fused(case.name, *tensors).sum().backward()
