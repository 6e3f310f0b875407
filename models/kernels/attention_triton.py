"""Fused causal attention in Triton: one pass forward, one pass backward. The only module that imports Triton.

short   L up to 128 (64 for float32 heads wider than 32): one program holds a whole head. The forward pass reads Q, K
        and V once and writes O once; the backward pass reads Q, K, V and dO once and writes dQ, dK and dV once. It
        recomputes the attention weights, so nothing is saved for it. No online softmax, no second pass, no atomics.
long    L up to 2,048: online softmax over blocks of keys, which saves one number per row. The backward pass takes two
        kernels, one over blocks of keys and one over blocks of queries; no two programs write to the same place, so
        results are bitwise reproducible.
decode  one new position against a cache of keys and values.

qkv is [B, L, 3, H, D], as one projection writes it; outputs and gradients have the layout in which they are next read.
The slopes are constants and get no gradient. Everything except the operands of a dot product is float32.

Every grid has one axis, because CUDA allows 2^31 - 1 programs on the first axis and only 65,535 on the others. Larger
batches are refused.
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
PROGRAMS = 2**31 - 1
LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def _distance(i, j, header):
    """Distance from query i back to key j, [I, J]; zero to and from the header."""
    free = (i[:, None] < header) | (j[None, :] < header)
    return tl.where(free, 0.0, (i[:, None] - j[None, :]).to(tl.float32))


@triton.jit
def _scores(q, k, i, j, length, slope, header, scale, SLOPED: tl.constexpr):
    """Base-2 scores of queries i against keys j; minus infinity for future keys and keys past the end."""
    s = tl.dot(q, tl.trans(k), input_precision="ieee") * (scale * LOG2E)
    if SLOPED:
        s -= slope * LOG2E * _distance(i, j, header)
    return tl.where((j[None, :] <= i[:, None]) & (j[None, :] < length), s, float("-inf"))


@triton.jit
def _short_forward(
    qkv, out, slopes, header, scale,
    H: tl.constexpr, L: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    SLOPED: tl.constexpr,
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
    for start in range(0, L, BM):
        i = start + tl.arange(0, BM)
        rows = (i[:, None] < L) & (d[None, :] < D)
        q = tl.load(base + i[:, None] * (3 * H * D) + d[None, :], mask=rows, other=0.0)
        s = _scores(q, k, i, j, L, slope, header, scale, SLOPED)
        p = tl.exp2(s - tl.max(s, 1)[:, None])
        o = tl.dot(p.to(v.dtype), v, input_precision="ieee") * (1.0 / tl.sum(p, 1))[:, None]
        tl.store(out + ((b * L + i[:, None]) * H + h) * D + d[None, :], o.to(v.dtype), mask=rows)


@triton.jit
def _short_backward(
    qkv, d_out, d_qkv, slopes, header, scale,
    H: tl.constexpr, L: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    SLOPED: tl.constexpr,
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
    grad = d_qkv + b * L * (3 * H * D) + h * D
    dk = tl.zeros([BN, DP], tl.float32)
    dv = tl.zeros([BN, DP], tl.float32)
    for start in range(0, L, BM):
        i = start + tl.arange(0, BM)
        rows = (i[:, None] < L) & (d[None, :] < D)
        q = tl.load(base + i[:, None] * (3 * H * D) + d[None, :], mask=rows, other=0.0)
        do = tl.load(d_out + ((b * L + i[:, None]) * H + h) * D + d[None, :], mask=rows, other=0.0)
        # transposed, [keys, queries]: each warp owns some keys, so K and V are held once and not by every warp
        s = tl.dot(k, tl.trans(q), input_precision="ieee") * (scale * LOG2E)
        if SLOPED:
            s -= slope * LOG2E * tl.trans(_distance(i, j, header))
        s = tl.where((j[:, None] <= i[None, :]) & (j[:, None] < L), s, float("-inf"))
        p = tl.exp2(s - tl.max(s, 0)[None, :])
        p = p * (1.0 / tl.sum(p, 0))[None, :]
        dv += tl.dot(p.to(do.dtype), do, input_precision="ieee")
        dp = tl.dot(v, tl.trans(do), input_precision="ieee")
        delta = tl.sum(p * dp, 0)
        ds = (p * (dp - delta[None, :])).to(q.dtype)
        dk += tl.dot(ds, q, input_precision="ieee")
        dq = tl.dot(tl.trans(ds), k, input_precision="ieee") * scale
        tl.store(grad + i[:, None] * (3 * H * D) + d[None, :], dq.to(q.dtype), mask=rows)
    at_grad = grad + j[:, None] * (3 * H * D) + d[None, :]
    tl.store(at_grad + H * D, (dk * scale).to(qkv.dtype.element_ty), mask=keys)
    tl.store(at_grad + 2 * H * D, dv.to(qkv.dtype.element_ty), mask=keys)


@triton.jit
def _head_and_block(L, SIZE: tl.constexpr):
    """The number of the head in the batch, and the block of its sequence: blocks of one head are neighbours."""
    blocks = tl.cdiv(L, SIZE)
    return (tl.program_id(0) // blocks).to(tl.int64), tl.program_id(0) % blocks


@triton.jit
def _long_forward(
    qkv, out, lse, slopes, header, scale, L,
    H: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    SLOPED: tl.constexpr,
):  # fmt: skip
    program, block = _head_and_block(L, BM)
    b, h = program // H, program % H
    i, d = block * BM + tl.arange(0, BM), tl.arange(0, DP)
    rows = (i[:, None] < L) & (d[None, :] < D)
    base = qkv + b * L * (3 * H * D) + h * D
    q = tl.load(base + i[:, None] * (3 * H * D) + d[None, :], mask=rows, other=0.0)
    slope = tl.load(slopes + h) if SLOPED else 0.0
    peak = tl.full([BM], float("-inf"), tl.float32)
    total = tl.zeros([BM], tl.float32)
    o = tl.zeros([BM, DP], tl.float32)
    for start in range(0, tl.minimum((block + 1) * BM, L), BN):
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
    tl.store(out + ((b * L + i[:, None]) * H + h) * D + d[None, :], o.to(q.dtype), mask=rows)


@triton.jit
def _long_backward_kv(
    qkv, d_out, d_qkv, lse, delta, slopes, header, scale, L,
    H: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    SLOPED: tl.constexpr,
):  # fmt: skip
    program, block = _head_and_block(L, BN)
    b, h = program // H, program % H
    j, d = block * BN + tl.arange(0, BN), tl.arange(0, DP)
    columns = (j[:, None] < L) & (d[None, :] < D)
    base = qkv + b * L * (3 * H * D) + h * D
    k = tl.load(base + H * D + j[:, None] * (3 * H * D) + d[None, :], mask=columns, other=0.0)
    v = tl.load(base + 2 * H * D + j[:, None] * (3 * H * D) + d[None, :], mask=columns, other=0.0)
    slope = tl.load(slopes + h) if SLOPED else 0.0
    dk = tl.zeros([BN, DP], tl.float32)
    dv = tl.zeros([BN, DP], tl.float32)
    for start in range(block * BN // BM * BM, L, BM):
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
    tl.store(at_grad + H * D, (dk * scale).to(k.dtype), mask=columns)
    tl.store(at_grad + 2 * H * D, dv.to(v.dtype), mask=columns)


@triton.jit
def _long_backward_q(
    qkv, d_out, d_qkv, lse, delta, slopes, header, scale, L,
    H: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    SLOPED: tl.constexpr,
):  # fmt: skip
    program, block = _head_and_block(L, BM)
    b, h = program // H, program % H
    i, d = block * BM + tl.arange(0, BM), tl.arange(0, DP)
    rows = (i[:, None] < L) & (d[None, :] < D)
    base = qkv + b * L * (3 * H * D) + h * D
    q = tl.load(base + i[:, None] * (3 * H * D) + d[None, :], mask=rows, other=0.0)
    do = tl.load(d_out + ((b * L + i[:, None]) * H + h) * D + d[None, :], mask=rows, other=0.0)
    row_lse = tl.load(lse + program * L + i, mask=i < L, other=0.0)
    row_delta = tl.load(delta + program * L + i, mask=i < L, other=0.0)
    slope = tl.load(slopes + h) if SLOPED else 0.0
    dq = tl.zeros([BM, DP], tl.float32)
    for start in range(0, tl.minimum((block + 1) * BM, L), BN):
        j = start + tl.arange(0, BN)
        columns = (j[:, None] < L) & (d[None, :] < D)
        k = tl.load(base + H * D + j[:, None] * (3 * H * D) + d[None, :], mask=columns, other=0.0)
        v = tl.load(base + 2 * H * D + j[:, None] * (3 * H * D) + d[None, :], mask=columns, other=0.0)
        p = tl.exp2(_scores(q, k, i, j, L, slope, header, scale, SLOPED) - row_lse[:, None])
        p = tl.where(i[:, None] < L, p, 0.0)
        ds = p * (tl.dot(do, tl.trans(v), input_precision="ieee") - row_delta[:, None])
        dq += tl.dot(ds.to(k.dtype), k, input_precision="ieee")
    at_grad = d_qkv + (b * L + i[:, None]) * (3 * H * D) + h * D + d[None, :]
    tl.store(at_grad, (dq * scale).to(q.dtype), mask=rows)


@triton.jit
def _decode(
    q, cache, out, slopes, stride_b, stride_t, length, header, scale,
    H: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, BN: tl.constexpr, SLOPED: tl.constexpr,
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
    tl.store(out + program * D + d, o.to(out.dtype.element_ty), mask=d < D)


class Tile(NamedTuple):
    """Block sizes and launch options of a kernel, chosen so that it spills at most two registers on any target.

    `bench kernels --static` checks that.
    """

    rows: int
    columns: int
    warps: int
    stages: int = 1

    def options(self) -> dict[str, int]:
        return {"BM": self.rows, "BN": self.columns, "num_warps": self.warps, "num_stages": self.stages}


def padded(n: int) -> int:
    """The tile size for n elements: a power of two, at least 16, which is what a tensor core takes."""
    return max(16, triton.next_power_of_2(n))


def is_short(length: int, width: int, dtype: torch.dtype) -> bool:
    """Whether one program can hold a head; wide float32 heads fill the registers at half the length."""
    return length <= (SHORT // 2 if dtype == torch.float32 and width > 32 else SHORT)


def short_tile(
    length: int, width: int, dtype: torch.dtype, backward: bool, hip: bool = torch.version.hip is not None
) -> Tile:
    """Rows: queries at a time. Columns: all keys. float32 does not use tensor cores, so its slices are thinner."""
    keys = padded(length)
    if dtype == torch.float32:
        return Tile(16, keys, {16: 4, 32: 8 if backward and width > 16 else 4, 64: 8, 128: 8}[keys])
    if backward or keys == 128:
        thin = keys == 128 and (hip or (backward and width == 16))
        return Tile(16 if thin else min(keys, 32), keys, {16: 1, 32: 2, 64: 4, 128: 8}[keys])
    return Tile(keys, keys, {16: 1, 32: 2, 64: 4}[keys])


def long_tile(dtype: torch.dtype, kernel: str) -> Tile:
    if dtype == torch.float32:
        return {"forward": Tile(32, 32, 8), "backward kv": Tile(16, 32, 8), "backward q": Tile(16, 16, 4)}[kernel]
    return {"forward": Tile(64, 32, 4, 2), "backward kv": Tile(32, 32, 4), "backward q": Tile(32, 32, 8)}[kernel]


DECODE_TILE = Tile(1, 32, 4)


def long_grid(batch: int, heads: int, length: int, block: int) -> tuple[int]:
    """One program for each block of each head, all on the first axis."""
    return (batch * heads * triton.cdiv(length, block),)


def refuse(qkv: Tensor, slopes: Tensor | None, header: int) -> None:
    """Raise an error for unsupported input that says what is supported."""
    if qkv.ndim != 5 or qkv.shape[2] != 3:
        raise ValueError(f"qkv must be [batch, length, 3, heads, width], not {list(qkv.shape)}")
    batch, length, _, heads, width = qkv.shape
    if width not in SERVED_WIDTHS:
        raise ValueError(f"no kernel for head width {width}: supported are {', '.join(map(str, SERVED_WIDTHS))}")
    if not 1 <= length <= SERVED_LENGTH:
        raise ValueError(f"no kernel for length {length}: supported are 1 to {SERVED_LENGTH}")
    if batch < 1 or heads < 1:
        raise ValueError(f"qkv is empty: batch {batch}, heads {heads}")
    if batch * heads * triton.cdiv(length, 16) > PROGRAMS:  # no tile is shorter than 16
        raise ValueError(
            f"{batch} sequences with {heads} heads of length {length} are more programs than CUDA launches"
        )
    if qkv.dtype not in DTYPES:
        raise ValueError(f"no kernel for {qkv.dtype}: supported are float32, float16, bfloat16")
    if not qkv.is_contiguous():
        raise ValueError(f"qkv must be contiguous, as its projection wrote it; its strides are {qkv.stride()}")
    if not 0 <= header <= length:
        raise ValueError(f"a header of {header} does not fit into a length of {length}")
    if slopes is None:
        return
    if slopes.shape != (heads,) or not slopes.is_contiguous():
        raise ValueError(f"slopes must be {heads} numbers, one per head, not {list(slopes.shape)}")
    if slopes.dtype != torch.float32:
        raise ValueError(f"slopes must be float32 for every dtype of qkv, not {slopes.dtype}")
    if slopes.device != qkv.device:
        raise ValueError(f"slopes are on {slopes.device}, qkv on {qkv.device}")


@torch.library.custom_op("tunnel::attention", mutates_args=())
def attention_forward(qkv: Tensor, slopes: Tensor | None, header: int) -> tuple[Tensor, Tensor]:
    """The output [B, L, H, D], and log2 of the row sums [B, H, L] for the long backward pass (empty if short)."""
    refuse(qkv, slopes, header)
    out, lse = _empty_outputs(qkv)
    B, L, _, H, D = qkv.shape
    sizes = {"H": H, "D": D, "DP": padded(D), "SLOPED": slopes is not None}
    if is_short(L, D, qkv.dtype):
        tile = short_tile(L, D, qkv.dtype, backward=False)
        _short_forward[(B * H,)](qkv, out, slopes, header, D**-0.5, L=L, **sizes, **tile.options())
    else:
        tile = long_tile(qkv.dtype, "forward")
        grid = long_grid(B, H, L, tile.rows)
        _long_forward[grid](qkv, out, lse, slopes, header, D**-0.5, L, **sizes, **tile.options())
    return out, lse


@torch.library.custom_op("tunnel::attention_backward", mutates_args=())
def attention_backward(
    d_out: Tensor, qkv: Tensor, out: Tensor, lse: Tensor, slopes: Tensor | None, header: int
) -> Tensor:
    """The gradient of qkv, [B, L, 3, H, D]. Only the long path reads out and lse."""
    d_out = d_out.contiguous()
    d_qkv = _empty_gradient(qkv)
    B, L, _, H, D = qkv.shape
    sizes = {"H": H, "D": D, "DP": padded(D), "SLOPED": slopes is not None}
    if is_short(L, D, qkv.dtype):
        tile = short_tile(L, D, qkv.dtype, backward=True)
        _short_backward[(B * H,)](qkv, d_out, d_qkv, slopes, header, D**-0.5, L=L, **sizes, **tile.options())
    else:
        delta = (d_out.float() * out.float()).sum(-1).transpose(1, 2).contiguous()  # [B, H, L]
        given = (qkv, d_out, d_qkv, lse, delta, slopes, header, D**-0.5, L)
        tile = long_tile(qkv.dtype, "backward kv")
        _long_backward_kv[long_grid(B, H, L, tile.columns)](*given, **sizes, **tile.options())
        tile = long_tile(qkv.dtype, "backward q")
        _long_backward_q[long_grid(B, H, L, tile.rows)](*given, **sizes, **tile.options())
    return d_qkv


@attention_forward.register_fake
def _fake_forward(qkv: Tensor, slopes: Tensor | None, header: int) -> tuple[Tensor, Tensor]:
    return _empty_outputs(qkv)


@attention_backward.register_fake
def _fake_backward(d_out: Tensor, qkv: Tensor, out: Tensor, lse: Tensor, slopes: Tensor | None, header: int) -> Tensor:
    return _empty_gradient(qkv)


def _empty_outputs(qkv: Tensor) -> tuple[Tensor, Tensor]:
    B, L, _, H, D = qkv.shape
    rows = 0 if is_short(L, D, qkv.dtype) else L
    return qkv.new_empty(B, L, H, D), qkv.new_empty(B, H, rows, dtype=torch.float32)


def _empty_gradient(qkv: Tensor) -> Tensor:
    return qkv.new_empty(qkv.shape)


def _save(ctx, inputs, output) -> None:
    qkv, slopes, header = inputs
    if ctx.needs_input_grad[1]:  # so whenever the backward pass runs, it is the gradient of qkv that is wanted
        raise ValueError("slopes have no gradient in these kernels; to train them, use the sdpa backend")
    out, lse = output
    ctx.header = header
    if is_short(qkv.shape[1], qkv.shape[4], qkv.dtype):
        out = lse  # empty: the short backward pass does not read the output, so it is not kept alive
    ctx.save_for_backward(qkv, slopes, out, lse)
    ctx.set_materialize_grads(False)


def _differentiate(ctx, d_out, _d_lse):
    qkv, slopes, out, lse = ctx.saved_tensors
    return torch.ops.tunnel.attention_backward(d_out, qkv, out, lse, slopes, ctx.header), None, None


attention_forward.register_autograd(_differentiate, setup_context=_save)


def attention(qkv: Tensor, slopes: Tensor | None, header: int) -> Tensor:
    out: Tensor = torch.ops.tunnel.attention(qkv, slopes, header)[0]
    return out


def decode(q: Tensor, cache: Tensor, length: int, slopes: Tensor | None, header: int) -> Tensor:
    """One query per head, q [B, H, D], against the first `length` positions of a cache [B, T, 2, H, D]."""
    B, H, D = q.shape
    refuse(cache.new_empty(1, 1, 3, H, D), slopes, 0)
    if cache.dtype != q.dtype:
        raise ValueError(f"q is {q.dtype} and its cache {cache.dtype}: they must be the same")
    if not 1 <= length <= cache.shape[1]:
        raise ValueError(f"length {length} is not within the cache of {cache.shape[1]} positions")
    q = q.contiguous()
    out = torch.empty_like(q)
    sizes = {"H": H, "D": D, "DP": padded(D), "BN": DECODE_TILE.columns, "SLOPED": slopes is not None}
    strides = (cache.stride(0), cache.stride(1))
    _decode[(B * H,)](q, cache, out, slopes, *strides, length, header, D**-0.5, **sizes, num_warps=DECODE_TILE.warps)
    return out


KERNELS: dict[str, Callable[..., None]] = {
    "short forward": _short_forward,
    "short backward": _short_backward,
    "long forward": _long_forward,
    "long backward kv": _long_backward_kv,
    "long backward q": _long_backward_q,
    "decode": _decode,
}
