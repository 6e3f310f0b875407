"""Linear recurrences over a matrix-valued state S [K, V] per head, each behind one call.

decayed_sum   S_t = exp(g_t) S_{t-1} + k_t v_t^T                              o_t = q_t S_t
delta_rule    S_t = exp(g_t) S_{t-1} + b_t k_t (v_t - exp(g_t) k_t S_{t-1})^T   o_t = q_t S_t

The first is linear attention with a scalar decay: state-space duality (Dao and Gu 2024, arXiv:2405.21060). The second
is the gated delta rule (Yang et al. 2024, arXiv:2412.06464): a new value replaces the one stored under its key.

q, k [B, T, H, K], v [B, T, H, V], log decays g and strengths b [B, T, H] -> [B, T, H, V]. On CUDA, fla-core's Triton
kernels compute them; elsewhere the chunked form below, with matrix products within a chunk and a loop over chunks.
The `_step` functions are the definitions above for a single position.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.functional import pad

CHUNK = 64  # positions per matrix; at their training horizons most tasks fit into one
FUSED_CHUNK = 16  # with float32 products fla's default of 64 spills more, takes longer to compile, and inverts in TF32
TILE, WARPS = 32, 4  # keys or values of a block of fla's kernels, and its warps
FEWER_WARPS = {"prepare_wy_repr_bwd_kernel": 2}  # with four, its code for 32 keys has a race in shared memory
GRID = 65535  # CUDA's limit for the second axis of a grid, where fla has sequences times heads


def decayed_sum(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> Tensor:
    return fused("decayed_sum", q, k, v, g) if q.is_cuda else chunked(q, k, v, g)


def delta_rule(q: Tensor, k: Tensor, v: Tensor, g: Tensor, b: Tensor) -> Tensor:
    return fused("delta_rule", q, k, v, g, b) if q.is_cuda else chunked(q, k, v, g, b)


def fused(name: str, *tensors: Tensor) -> Tensor:
    """fla's kernels, on as many sequences at a time as their grids can hold."""
    kernel = _kernels()[name]
    values = tensors[2].shape[-1]
    tensors = tuple(x.float() for x in tensors)  # autocast mixes dtypes
    tensors = (*map(widen, tensors[:3]), *tensors[3:])
    sequences = max(1, GRID // tensors[0].shape[2])
    if len(tensors[0]) <= sequences:  # a split into one part would still be copied together in the backward pass
        return cast(Tensor, kernel(*tensors, scale=1.0, chunk_size=FUSED_CHUNK)[0])[..., :values]
    parts = zip(*(x.split(sequences) for x in tensors), strict=True)
    return torch.cat([kernel(*part, scale=1.0, chunk_size=FUSED_CHUNK)[0] for part in parts])[..., :values]


def widen(x: Tensor) -> Tensor:
    """Zeros beside keys and values of 16 or less: on tiles so narrow, Triton's code for four warps has a race."""
    return x if x.shape[-1] > TILE // 2 else pad(x, (0, TILE - x.shape[-1]))


@cache
def _kernels() -> dict[str, Callable[..., Any]]:
    """fla's two recurrences, with one configuration for each of their kernels.

    fla's tuner would take the fastest of dozens, another one on another day: other bits, and minutes of compiling.
    This one fits every GPU and hardly spills (docs/kernels.md), in float32.
    """
    # Triton's default for products is TF32. This changes it for kernels that set no precision, which are all that run
    # with chunks of 16; longer chunks of the delta rule invert their matrices in TF32 whatever is asked for.
    os.environ.setdefault("TRITON_F32_DEFAULT", "ieee")
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule  # Triton is imported only where it is used
    from fla.ops.simple_gla import chunk_simple_gla
    from triton.runtime.autotuner import Config

    for tuner in _tuners():
        usual = tuner.configs[0].kwargs
        tiles = {size: TILE for size in ("BK", "BV") if size in usual}
        warps = FEWER_WARPS.get(tuner.base_fn.__name__, WARPS)
        tuner.configs = [Config({**usual, **tiles}, num_warps=warps, num_stages=1)]
    return {"decayed_sum": chunk_simple_gla, "delta_rule": chunk_gated_delta_rule}


def _tuners() -> Iterator[Any]:
    """The tuners of all of fla's kernels that are imported."""
    from triton.runtime.autotuner import Autotuner
    from triton.runtime.jit import KernelInterface

    for name, module in list(sys.modules.items()):
        for kernel in vars(module).values() if name.startswith("fla.ops.") else ():
            while isinstance(kernel, KernelInterface):
                if isinstance(kernel, Autotuner):
                    yield kernel
                kernel = getattr(kernel, "fn", None)  # each decorator holds what it decorates


def decayed_sum_step(q: Tensor, k: Tensor, v: Tensor, g: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """One position: q, k [B, H, K], v [B, H, V], g [B, H] and the state [B, H, K, V] before it."""
    state = g.exp()[..., None, None] * state + k[..., :, None] * v[..., None, :]
    return (q[..., :, None] * state).sum(-2), state


def delta_rule_step(q: Tensor, k: Tensor, v: Tensor, g: Tensor, b: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    state = g.exp()[..., None, None] * state
    stored = (k[..., :, None] * state).sum(-2)
    state = state + k[..., :, None] * (b[..., None] * (v - stored))[..., None, :]
    return (q[..., :, None] * state).sum(-2), state


def chunked(q: Tensor, k: Tensor, v: Tensor, g: Tensor, b: Tensor | None = None) -> Tensor:
    """Both in plain torch, in any precision: the decayed sum, or with strengths b the delta rule."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))  # [B, H, T, .]
    g, b = g.transpose(1, 2), None if b is None else b.transpose(1, 2)
    length = q.shape[2]
    state = None
    outs = []
    for start in range(0, length, CHUNK):
        now = slice(start, start + CHUNK)
        qc, kc, vc = q[:, :, now], k[:, :, now], v[:, :, now]
        total = g[:, :, now].cumsum(-1)  # log of the total decay since the start of the chunk
        future = torch.ones(qc.shape[2], qc.shape[2], dtype=torch.bool, device=q.device).triu(1)
        # masked before exp, because a negative decay of future positions would overflow
        kept = (total[..., :, None] - total[..., None, :]).masked_fill(future, -torch.inf).exp()
        old = total.exp()[..., None]
        if b is not None:
            strength = b[:, :, now, None]
            if state is not None:
                vc = vc - (kc * old) @ state
            # WY form: the value that each position writes, given what earlier positions of the chunk have written
            overlap = (strength * (kc @ kc.mT) * kept).tril(-1)
            identity = torch.eye(qc.shape[2], dtype=q.dtype, device=q.device)
            vc = torch.linalg.solve_triangular(overlap + identity, strength * vc, upper=False, unitriangular=True)
        out = (qc @ kc.mT * kept) @ vc
        if state is not None:
            out = out + (qc * old) @ state
        outs.append(out)
        if start + CHUNK < length:
            written = (kc * (total[..., -1:] - total).exp()[..., None]).mT @ vc
            state = written if state is None else written + total[..., -1, None, None].exp() * state
    return torch.cat(outs, dim=2).transpose(1, 2)
