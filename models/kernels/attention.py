"""Causal attention behind one call.

qkv [B, T, 3, H, D], as one projection writes it -> [B, T, H, D], as the next one reads it.

slopes [H] favour recent positions: score(i, j) = q_i . k_j / sqrt(D) - slope * (i - j) (ALiBi, Press et al. 2022). The
first `header` positions get no penalty, neither as keys nor as queries: every position is equally near to the header.

backend  triton   the fused kernels, for CUDA (attention_triton.py)
         sdpa     torch's scaled_dot_product_attention
         math     the same in plain operations: the reference that the others are checked against
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

BACKENDS = ("triton", "sdpa", "math")
SERVED_WIDTHS = (16, 24, 32, 48, 64)  # head widths that the kernels support
SERVED_LENGTH = 2048  # the longest sequence that they support


def attention(
    qkv: Tensor,
    slopes: Tensor | None = None,
    header: int = 0,
    backend: str = "sdpa",
) -> Tensor:
    if backend == "triton":
        from models.kernels import attention_triton  # Triton is imported only where it is used

        return attention_triton.attention(qkv, slopes, header)
    q, k, v = (x.transpose(1, 2) for x in qkv.unbind(2))  # [B, H, T, D]: views, not copies
    length = q.shape[2]
    if backend == "sdpa":
        bias = None if slopes is None else _bias(slopes, length, header)[None]  # a 3-D mask would miss the fused path
        out = scaled_dot_product_attention(q, k, v, attn_mask=bias, is_causal=bias is None)
    elif backend == "math":
        out = attention_weights(qkv, slopes, header) @ v
    else:
        raise ValueError(f"no attention backend '{backend}'. Known: {', '.join(BACKENDS)}")
    return out.transpose(1, 2)


def attention_weights(qkv: Tensor, slopes: Tensor | None = None, header: int = 0) -> Tensor:
    """The weight of position j in the output at i, [B, H, T, T]; the fused kernels never store it."""
    q, k, _ = (x.transpose(1, 2) for x in qkv.unbind(2))
    bias = _bias(q.new_zeros(1) if slopes is None else slopes, q.shape[2], header)
    return (q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]) + bias).softmax(-1)


def attention_step(
    q: Tensor,
    cache: Tensor,
    length: int,
    slopes: Tensor | None = None,
    header: int = 0,
    backend: str = "sdpa",
) -> Tensor:
    """The last position alone: q [B, H, D] against the first `length` positions, its own included, of a cache
    [B, T, 2, H, D] of keys and values."""
    if backend == "triton":
        from models.kernels import attention_triton

        return attention_triton.decode(q, cache, length, slopes, header)
    k, v = (x.transpose(1, 2) for x in cache[:, :length].unbind(2))
    bias = None if slopes is None else _bias_row(slopes, length, header)[None, :, None]
    return scaled_dot_product_attention(q[:, :, None], k, v, attn_mask=bias)[:, :, 0]


@lru_cache(maxsize=64)
def _distances(length: int, header: int, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Distance from query i back to key j, [T, T], zero for a header key or query; and which keys are in the future."""
    position = torch.arange(length, device=device)
    distance = (position[:, None] - position[None, :]).to(dtype)
    distance[:, :header] = 0
    distance[:header, :] = 0
    future = position[:, None] < position[None, :]
    return distance.masked_fill(future, 0), future


def _bias(slopes: Tensor, length: int, header: int) -> Tensor:
    """The bias added to the scores, [H, T, T]; minus infinity for future keys."""
    distance, future = _distances(length, header, slopes.device, slopes.dtype)
    return torch.where(future, -math.inf, -slopes[:, None, None] * distance)


def _bias_row(slopes: Tensor, length: int, header: int) -> Tensor:
    """The last row of that bias, [H, T], without computing the others."""
    distance = torch.arange(length - 1, -1, -1, device=slopes.device, dtype=slopes.dtype)
    distance[: length if length <= header else header] = 0
    return -slopes[:, None] * distance
