"""Fused causal attention in Triton: one pass forward, one pass backward. The only importer of Triton.

short   L up to 128 (64 for float32 heads wider than 32): one program holds a whole head. Forward reads Q, K and V once
        and writes O once; backward reads Q, K, V and dO once and writes dQ, dK and dV once. Nothing is saved for the
        backward: weights are made anew from tiles that are at hand. No online softmax, no second pass, no atomics.
long    L up to 2,048: online softmax over blocks of keys, which saves one number a row; backward in two kernels, one
        over blocks of keys and one over blocks of queries; each owns what it writes, so results repeat bit for bit.
decode  one new position against a cache of keys and values.

qkv is [B, L, 3, H, D], as one projection writes it; O and the gradients come in the layout in which they are next read.
Distance slopes and per-head gates are part of the kernels, their gradients included: a program leaves its own share,
and the shares are summed in a fixed order. Everything but the operands of a dot is float32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from models.kernels.attention import SERVED_LENGTH, SERVED_WIDTHS

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
SHORT = 128
LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def _distance(i, j, header):
    """How far it is query i back to key j, [I, J]; nothing to or from the header."""
    free = (i[:, None] < header) | (j[None, :] < header)
    return tl.where(free, 0.0, (i[:, None] - j[None, :]).to(tl.float32))


@triton.jit
def _scores(q, k, i, j, length, slope, header, scale, SLOPED: tl.constexpr):
    """Base-2 scores of queries i against keys j; minus infinity for the future and beyond the end."""
    s = tl.dot(q, tl.trans(k), input_precision="ieee") * (scale * LOG2E)
    if SLOPED:
        s -= slope * LOG2E * _distance(i, j, header)
    return tl.where((j[None, :] <= i[:, None]) & (j[None, :] < length), s, float("-inf"))


@triton.jit
def _short_forward(
    qkv, out, slopes, gate, header, scale,
    H: tl.constexpr, L: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    SLOPED: tl.constexpr, GATED: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0).to(tl.int64)
    b, h = program // H, program % H
    j, d = tl.arange(0, BN), tl.arange(0, DP)
    keys = (j[:, None] < L) & (d[None, :] < D)
    base = qkv + b * (L * 3 * H * D) + h * D
    at_key = base + j[:, None] * (3 * H * D) + d[None, :]
    k = tl.load(at_key + H * D, mask=keys, other=0.0)
    v = tl.load(at_key + 2 * H * D, mask=keys, other=0.0)
    slope = tl.load(slopes + h) if SLOPED else 0.0
    g = tl.load(gate + h) if GATED else 1.0
    for start in range(0, L, BM):
        i = start + tl.arange(0, BM)
        rows = (i[:, None] < L) & (d[None, :] < D)
        q = tl.load(base + i[:, None] * (3 * H * D) + d[None, :], mask=rows, other=0.0)
        s = _scores(q, k, i, j, L, slope, header, scale, SLOPED)
        p = tl.exp2(s - tl.max(s, 1)[:, None])
        o = tl.dot(p.to(v.dtype), v, input_precision="ieee") * (g / tl.sum(p, 1))[:, None]
        tl.store(out + ((b * L + i[:, None]) * H + h) * D + d[None, :], o.to(v.dtype), mask=rows)


@triton.jit
def _short_backward(
    qkv, d_out, d_qkv, slopes, gate, d_slopes, d_gate, header, scale,
    H: tl.constexpr, L: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    SLOPED: tl.constexpr, GATED: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0).to(tl.int64)
    b, h = program // H, program % H
    j, d = tl.arange(0, BN), tl.arange(0, DP)
    keys = (j[:, None] < L) & (d[None, :] < D)
    base = qkv + b * (L * 3 * H * D) + h * D
    at_key = base + j[:, None] * (3 * H * D) + d[None, :]
    k = tl.load(at_key + H * D, mask=keys, other=0.0)
    v = tl.load(at_key + 2 * H * D, mask=keys, other=0.0)
    slope = tl.load(slopes + h) if SLOPED else 0.0
    g = tl.load(gate + h) if GATED else 1.0
    grad = d_qkv + b * L * (3 * H * D) + h * D
    dk = tl.zeros([BN, DP], tl.float32)
    dv = tl.zeros([BN, DP], tl.float32)
    slope_share = tl.zeros([BM], tl.float32)
    gate_share = tl.zeros([BM], tl.float32)
    for start in range(0, L, BM):
        i = start + tl.arange(0, BM)
        rows = (i[:, None] < L) & (d[None, :] < D)
        q = tl.load(base + i[:, None] * (3 * H * D) + d[None, :], mask=rows, other=0.0)
        do = tl.load(d_out + ((b * L + i[:, None]) * H + h) * D + d[None, :], mask=rows, other=0.0)
        # transposed, [keys, queries]: each warp owns some keys, so K and V are held once and not by every warp
        s = tl.dot(k, tl.trans(q), input_precision="ieee") * (scale * LOG2E)
        if SLOPED:
            far = tl.trans(_distance(i, j, header))
            s -= slope * LOG2E * far
        s = tl.where((j[:, None] <= i[None, :]) & (j[:, None] < L), s, float("-inf"))
        p = tl.exp2(s - tl.max(s, 0)[None, :])
        p = p * (1.0 / tl.sum(p, 0))[None, :]
        dv += tl.dot(p.to(do.dtype), do, input_precision="ieee")
        dp = tl.dot(v, tl.trans(do), input_precision="ieee")
        delta = tl.sum(p * dp, 0)
        ds = p * (dp - delta[None, :])
        if GATED:
            gate_share += delta
        if SLOPED:
            slope_share -= tl.sum(ds * far, 0)
        ds = ds.to(q.dtype)
        dk += tl.dot(ds, q, input_precision="ieee")
        dq = tl.dot(tl.trans(ds), k, input_precision="ieee") * (scale * g)
        tl.store(grad + i[:, None] * (3 * H * D) + d[None, :], dq.to(q.dtype), mask=rows)
    at_grad = grad + j[:, None] * (3 * H * D) + d[None, :]
    tl.store(at_grad + H * D, (dk * (scale * g)).to(qkv.dtype.element_ty), mask=keys)
    tl.store(at_grad + 2 * H * D, (dv * g).to(qkv.dtype.element_ty), mask=keys)
    if GATED:
        tl.store(d_gate + program, tl.sum(gate_share, 0))
    if SLOPED:
        tl.store(d_slopes + program, tl.sum(slope_share, 0) * g)


@triton.jit
def _long_forward(
    qkv, out, raw, lse, slopes, gate, header, scale, L,
    H: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    SLOPED: tl.constexpr, GATED: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(1).to(tl.int64)
    b, h = program // H, program % H
    i, d = tl.program_id(0) * BM + tl.arange(0, BM), tl.arange(0, DP)
    rows = (i[:, None] < L) & (d[None, :] < D)
    base = qkv + b * L * (3 * H * D) + h * D
    q = tl.load(base + i[:, None] * (3 * H * D) + d[None, :], mask=rows, other=0.0)
    slope = tl.load(slopes + h) if SLOPED else 0.0
    peak = tl.full([BM], float("-inf"), tl.float32)
    total = tl.zeros([BM], tl.float32)
    o = tl.zeros([BM, DP], tl.float32)
    for start in range(0, tl.minimum((tl.program_id(0) + 1) * BM, L), BN):
        j = start + tl.arange(0, BN)
        columns = (j[:, None] < L) & (d[None, :] < D)
        at = base + j[:, None] * (3 * H * D) + d[None, :]
        k = tl.load(at + H * D, mask=columns, other=0.0)
        v = tl.load(at + 2 * H * D, mask=columns, other=0.0)
        s = _scores(q, k, i, j, L, slope, header, scale, SLOPED)
        higher = tl.maximum(peak, tl.max(s, 1))  # key 0 is in the first block: never minus infinity
        shrink = tl.exp2(peak - higher)
        p = tl.exp2(s - higher[:, None])
        total = total * shrink + tl.sum(p, 1)
        o = o * shrink[:, None] + tl.dot(p.to(v.dtype), v, input_precision="ieee")
        peak = higher
    o = o / total[:, None]
    tl.store(lse + program * L + i, peak + tl.log2(total), mask=i < L)
    at_out = ((b * L + i[:, None]) * H + h) * D + d[None, :]
    if GATED:
        tl.store(raw + at_out, o.to(q.dtype), mask=rows)  # a gate of zero must not hide what its gradient needs
        o *= tl.load(gate + h)
    tl.store(out + at_out, o.to(q.dtype), mask=rows)


@triton.jit
def _long_backward_kv(
    qkv, d_out, d_qkv, lse, delta, slopes, gate, header, scale, L,
    H: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    SLOPED: tl.constexpr, GATED: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(1).to(tl.int64)
    b, h = program // H, program % H
    j, d = tl.program_id(0) * BN + tl.arange(0, BN), tl.arange(0, DP)
    columns = (j[:, None] < L) & (d[None, :] < D)
    base = qkv + b * L * (3 * H * D) + h * D
    k = tl.load(base + H * D + j[:, None] * (3 * H * D) + d[None, :], mask=columns, other=0.0)
    v = tl.load(base + 2 * H * D + j[:, None] * (3 * H * D) + d[None, :], mask=columns, other=0.0)
    slope = tl.load(slopes + h) if SLOPED else 0.0
    g = tl.load(gate + h) if GATED else 1.0
    dk = tl.zeros([BN, DP], tl.float32)
    dv = tl.zeros([BN, DP], tl.float32)
    for start in range(tl.program_id(0) * BN // BM * BM, L, BM):
        i = start + tl.arange(0, BM)
        rows = (i[:, None] < L) & (d[None, :] < D)
        q = tl.load(base + i[:, None] * (3 * H * D) + d[None, :], mask=rows, other=0.0)
        do = tl.load(d_out + ((b * L + i[:, None]) * H + h) * D + d[None, :], mask=rows, other=0.0)
        row_lse = tl.load(lse + program * L + i, mask=i < L, other=0.0)
        row_delta = tl.load(delta + program * L + i, mask=i < L, other=0.0)
        p = tl.exp2(_scores(q, k, i, j, L, slope, header, scale, SLOPED) - row_lse[:, None])
        p = tl.where(i[:, None] < L, p, 0.0)
        dv += tl.dot(tl.trans(p.to(do.dtype)), do, input_precision="ieee")
        ds = p * (tl.dot(do, tl.trans(v), input_precision="ieee") - row_delta[:, None])
        dk += tl.dot(tl.trans(ds.to(q.dtype)), q, input_precision="ieee")
    at_grad = d_qkv + (b * L + j[:, None]) * (3 * H * D) + h * D + d[None, :]
    tl.store(at_grad + H * D, (dk * scale * g).to(k.dtype), mask=columns)
    tl.store(at_grad + 2 * H * D, (dv * g).to(v.dtype), mask=columns)


@triton.jit
def _long_backward_q(
    qkv, d_out, d_qkv, lse, delta, slopes, gate, d_slopes, header, scale, L,
    H: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    SLOPED: tl.constexpr, GATED: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(1).to(tl.int64)
    b, h = program // H, program % H
    i, d = tl.program_id(0) * BM + tl.arange(0, BM), tl.arange(0, DP)
    rows = (i[:, None] < L) & (d[None, :] < D)
    base = qkv + b * L * (3 * H * D) + h * D
    q = tl.load(base + i[:, None] * (3 * H * D) + d[None, :], mask=rows, other=0.0)
    do = tl.load(d_out + ((b * L + i[:, None]) * H + h) * D + d[None, :], mask=rows, other=0.0)
    row_lse = tl.load(lse + program * L + i, mask=i < L, other=0.0)
    row_delta = tl.load(delta + program * L + i, mask=i < L, other=0.0)
    slope = tl.load(slopes + h) if SLOPED else 0.0
    g = tl.load(gate + h) if GATED else 1.0
    dq = tl.zeros([BM, DP], tl.float32)
    d_slope = tl.zeros([BM], tl.float32)
    for start in range(0, tl.minimum((tl.program_id(0) + 1) * BM, L), BN):
        j = start + tl.arange(0, BN)
        columns = (j[:, None] < L) & (d[None, :] < D)
        k = tl.load(base + H * D + j[:, None] * (3 * H * D) + d[None, :], mask=columns, other=0.0)
        v = tl.load(base + 2 * H * D + j[:, None] * (3 * H * D) + d[None, :], mask=columns, other=0.0)
        p = tl.exp2(_scores(q, k, i, j, L, slope, header, scale, SLOPED) - row_lse[:, None])
        p = tl.where(i[:, None] < L, p, 0.0)
        ds = p * (tl.dot(do, tl.trans(v), input_precision="ieee") - row_delta[:, None])
        if SLOPED:
            d_slope -= tl.sum(ds * _distance(i, j, header), 1)
        dq += tl.dot(ds.to(k.dtype), k, input_precision="ieee")
    at_grad = d_qkv + (b * L + i[:, None]) * (3 * H * D) + h * D + d[None, :]
    tl.store(at_grad, (dq * scale * g).to(q.dtype), mask=rows)
    if SLOPED:
        tl.store(d_slopes + program * tl.num_programs(0) + tl.program_id(0), tl.sum(d_slope, 0) * g)


@triton.jit
def _decode(
    q, cache, out, slopes, gate, stride_b, stride_t, length, header, scale,
    H: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, BN: tl.constexpr, SLOPED: tl.constexpr, GATED: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0).to(tl.int64)
    b, h = program // H, program % H
    d = tl.arange(0, DP)
    query = tl.load(q + program * D + d, mask=d < D, other=0.0).to(tl.float32)
    slope = tl.load(slopes + h) if SLOPED else 0.0
    base = cache + b * stride_b + h * D
    peak = tl.full([1], float("-inf"), tl.float32)
    total = tl.zeros([1], tl.float32)
    o = tl.zeros([DP], tl.float32)
    for start in range(0, length, BN):
        j = start + tl.arange(0, BN)
        columns = (j[:, None] < length) & (d[None, :] < D)
        at = base + j[:, None] * stride_t + d[None, :]
        k = tl.load(at, mask=columns, other=0.0).to(tl.float32)
        v = tl.load(at + H * D, mask=columns, other=0.0).to(tl.float32)
        s = tl.sum(k * query[None, :], 1) * (scale * LOG2E)
        if SLOPED:
            free = (length - 1 < header) | (j < header)
            s -= slope * LOG2E * tl.where(free, 0.0, (length - 1 - j).to(tl.float32))
        s = tl.where(j < length, s, float("-inf"))
        higher = tl.maximum(peak, tl.max(s, 0))
        shrink = tl.exp2(peak - higher)
        p = tl.exp2(s - higher)
        total = total * shrink + tl.sum(p, 0)
        o = o * shrink + tl.sum(p[:, None] * v, 0)
        peak = higher
    o = o / total
    if GATED:
        o *= tl.load(gate + h)
    tl.store(out + program * D + d, o.to(out.dtype.element_ty), mask=d < D)


class Tile(NamedTuple):
    """How a kernel is cut and launched; chosen so that no target spills a register (`bench kernels --static`)."""

    rows: int
    columns: int
    warps: int
    stages: int = 1


def padded(n: int) -> int:
    """The tile that holds n: a power of two, and at least what a tensor core takes."""
    return max(16, triton.next_power_of_2(n))


def is_short(length: int, width: int, dtype: torch.dtype) -> bool:
    """Whether one program can hold a head; wide float32 heads fill the registers at half the length."""
    return length <= (SHORT // 2 if dtype == torch.float32 and width > 32 else SHORT)


def short_tile(
    length: int, width: int, dtype: torch.dtype, backward: bool, hip: bool = torch.version.hip is not None
) -> Tile:
    """Rows: queries at a time. Columns: all keys. float32 has no tensor cores, so it works in thinner slices."""
    keys = padded(length)
    if dtype == torch.float32:
        return Tile(16, keys, {16: 4, 32: 8 if backward and width > 16 else 4, 64: 8, 128: 8}[keys])
    if backward or keys == 128:
        thin = keys == 128 and (hip or (backward and width == 16))
        return Tile(16 if thin else min(keys, 32), keys, {16: 1, 32: 2, 64: 4, 128: 8}[keys])
    return Tile(keys, keys, {16: 1, 32: 2, 64: 4}[keys])


def long_tile(dtype: torch.dtype, kernel: str) -> Tile:
    if dtype == torch.float32:
        return {"forward": Tile(32, 32, 8), "backward kv": Tile(16, 32, 4), "backward q": Tile(16, 16, 4)}[kernel]
    return {"forward": Tile(64, 32, 4, 2), "backward kv": Tile(32, 32, 4), "backward q": Tile(32, 32, 8)}[kernel]


DECODE_TILE = Tile(1, 32, 4)


def refuse(qkv: Tensor, slopes: Tensor | None, gate: Tensor | None, header: int) -> None:
    """Say what is not supported, and what is."""
    if qkv.ndim != 5 or qkv.shape[2] != 3:
        raise ValueError(f"qkv must be [batch, length, 3, heads, width], not {list(qkv.shape)}")
    batch, length, _, heads, width = qkv.shape
    if width not in SERVED_WIDTHS:
        raise ValueError(f"no kernel for head width {width}: supported are {', '.join(map(str, SERVED_WIDTHS))}")
    if not 1 <= length <= SERVED_LENGTH:
        raise ValueError(f"no kernel for length {length}: supported are 1 to {SERVED_LENGTH}")
    if batch < 1 or heads < 1:
        raise ValueError(f"nothing to attend: batch {batch}, heads {heads}")
    if qkv.dtype not in DTYPES:
        raise ValueError(f"no kernel for {qkv.dtype}: supported are float32, float16, bfloat16")
    if not qkv.is_contiguous():
        raise ValueError(f"qkv must be contiguous, as its projection wrote it; its strides are {qkv.stride()}")
    if not 0 <= header <= length:
        raise ValueError(f"a header of {header} does not fit into a length of {length}")
    for name, tensor in (("slopes", slopes), ("gate", gate)):
        if tensor is None:
            continue
        if tensor.shape != (heads,) or not tensor.is_contiguous():
            raise ValueError(f"{name} must be {heads} numbers, one a head, not {list(tensor.shape)}")
        if tensor.dtype != torch.float32:
            raise ValueError(f"{name} must be float32 whatever qkv is, not {tensor.dtype}")
        if tensor.device != qkv.device:
            raise ValueError(f"{name} is on {tensor.device}, qkv on {qkv.device}")


@torch.library.custom_op("tunnel::attention", mutates_args=())
def attention_forward(
    qkv: Tensor, slopes: Tensor | None, gate: Tensor | None, header: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The output [B, L, H, D], and what the long path's backward needs: the ungated output and log2 of row sums."""
    refuse(qkv, slopes, gate, header)
    out, raw, lse = _empty_outputs(qkv, gate)
    B, L, _, H, D = qkv.shape
    sizes = {"H": H, "D": D, "DP": padded(D), "SLOPED": slopes is not None, "GATED": gate is not None}
    if is_short(L, D, qkv.dtype):
        tile = short_tile(L, D, qkv.dtype, backward=False)
        _short_forward[(B * H,)](
            qkv, out, slopes, gate, header, D**-0.5,
            L=L, BM=tile.rows, BN=tile.columns, **sizes, num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip
    else:
        tile = long_tile(qkv.dtype, "forward")
        _long_forward[(triton.cdiv(L, tile.rows), B * H)](
            qkv, out, raw, lse, slopes, gate, header, D**-0.5, L,
            BM=tile.rows, BN=tile.columns, **sizes, num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip
    return out, raw, lse


@torch.library.custom_op("tunnel::attention_backward", mutates_args=())
def attention_backward(
    d_out: Tensor, qkv: Tensor, raw: Tensor, lse: Tensor, slopes: Tensor | None, gate: Tensor | None, header: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of qkv [B, L, 3, H, D], slopes [H] and gate [H]; empty for what is not there."""
    d_out = d_out.contiguous()
    d_qkv, d_slopes, d_gate = _empty_gradients(qkv, slopes, gate)
    B, L, _, H, D = qkv.shape
    sizes = {"H": H, "D": D, "DP": padded(D), "SLOPED": slopes is not None, "GATED": gate is not None}
    if is_short(L, D, qkv.dtype):
        tile = short_tile(L, D, qkv.dtype, backward=True)
        slope_shares, gate_shares = (qkv.new_empty(B, H, dtype=torch.float32) for _ in range(2))
        _short_backward[(B * H,)](
            qkv, d_out, d_qkv, slopes, gate, slope_shares, gate_shares, header, D**-0.5,
            L=L, BM=tile.rows, BN=tile.columns, **sizes, num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip
        if slopes is not None:
            d_slopes = slope_shares.sum(0)
        if gate is not None:
            d_gate = gate_shares.sum(0)
    else:
        delta = (d_out.float() * raw.float()).sum(-1).transpose(1, 2).contiguous()  # [B, H, L]
        tile = long_tile(qkv.dtype, "backward kv")
        _long_backward_kv[(triton.cdiv(L, tile.columns), B * H)](
            qkv, d_out, d_qkv, lse, delta, slopes, gate, header, D**-0.5, L,
            BM=tile.rows, BN=tile.columns, **sizes, num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip
        tile = long_tile(qkv.dtype, "backward q")
        blocks = triton.cdiv(L, tile.rows)
        slope_shares = qkv.new_empty(B, H, blocks, dtype=torch.float32)
        _long_backward_q[(blocks, B * H)](
            qkv, d_out, d_qkv, lse, delta, slopes, gate, slope_shares, header, D**-0.5, L,
            BM=tile.rows, BN=tile.columns, **sizes, num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip
        if slopes is not None:
            d_slopes = slope_shares.sum((0, 2))
        if gate is not None:
            d_gate = delta.sum((0, 2))
    return d_qkv, d_slopes, d_gate


@attention_forward.register_fake
def _empty_outputs_fake(
    qkv: Tensor, slopes: Tensor | None, gate: Tensor | None, header: int
) -> tuple[Tensor, Tensor, Tensor]:
    return _empty_outputs(qkv, gate)


@attention_backward.register_fake
def _empty_gradients_fake(
    d_out: Tensor, qkv: Tensor, raw: Tensor, lse: Tensor, slopes: Tensor | None, gate: Tensor | None, header: int
) -> tuple[Tensor, Tensor, Tensor]:
    return _empty_gradients(qkv, slopes, gate)


def _empty_outputs(qkv: Tensor, gate: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    B, L, _, H, D = qkv.shape
    out = qkv.new_empty(B, L, H, D)
    if is_short(L, D, qkv.dtype):
        return out, qkv.new_empty(0), qkv.new_empty(0, dtype=torch.float32)
    raw = qkv.new_empty(0) if gate is None else torch.empty_like(out)
    return out, raw, qkv.new_empty(B, H, L, dtype=torch.float32)


def _empty_gradients(qkv: Tensor, slopes: Tensor | None, gate: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    none = qkv.new_empty(0, dtype=torch.float32)
    d_slopes = none if slopes is None else torch.empty_like(slopes)
    d_gate = none.clone() if gate is None else torch.empty_like(gate)
    return qkv.new_empty(qkv.shape), d_slopes, d_gate


def _remember(ctx, inputs, output) -> None:
    qkv, slopes, gate, header = inputs
    out, raw, lse = output
    ctx.header, ctx.long = header, not is_short(qkv.shape[1], qkv.shape[4], qkv.dtype)
    # ungated, the output is what the long backward needs; the short one needs neither
    ctx.save_for_backward(qkv, slopes, gate, out if ctx.long and gate is None else raw, lse)
    ctx.set_materialize_grads(False)


def _differentiate(ctx, d_out, _d_raw, _d_lse):
    qkv, slopes, gate, raw, lse = ctx.saved_tensors
    d_qkv, d_slopes, d_gate = torch.ops.tunnel.attention_backward(d_out, qkv, raw, lse, slopes, gate, ctx.header)
    return d_qkv, None if slopes is None else d_slopes, None if gate is None else d_gate, None


attention_forward.register_autograd(_differentiate, setup_context=_remember)


def attention(qkv: Tensor, slopes: Tensor | None, gate: Tensor | None, header: int) -> Tensor:
    out: Tensor = torch.ops.tunnel.attention(qkv, slopes, gate, header)[0]
    return out


def decode(q: Tensor, cache: Tensor, length: int, slopes: Tensor | None, gate: Tensor | None, header: int) -> Tensor:
    """One query a head, q [B, H, D], against the first `length` positions of a cache [B, T, 2, H, D]."""
    B, H, D = q.shape
    refuse(cache.new_empty(1, 1, 3, H, D), slopes, gate, 0)
    if cache.dtype != q.dtype:
        raise ValueError(f"q is {q.dtype} and its cache {cache.dtype}: they must be the same")
    if not 1 <= length <= cache.shape[1]:
        raise ValueError(f"a cache of {cache.shape[1]} positions has no {length} of them")
    q = q.contiguous()
    out = torch.empty_like(q)
    _decode[(B * H,)](
        q, cache, out, slopes, gate, cache.stride(0), cache.stride(1), length, header, D**-0.5,
        H=H, D=D, DP=padded(D), BN=DECODE_TILE.columns, SLOPED=slopes is not None, GATED=gate is not None,
        num_warps=DECODE_TILE.warps,
    )  # fmt: skip
    return out


KERNELS: dict[str, Callable[..., None]] = {
    "short forward": _short_forward,
    "short backward": _short_backward,
    "long forward": _long_forward,
    "long backward kv": _long_backward_kv,
    "long backward q": _long_backward_q,
    "decode": _decode,
}
