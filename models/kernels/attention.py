"""Causal attention behind one call.

q, k, v [B, T, H, D] -> [B, T, H, D]: the layout in which a packed projection writes and the next projection reads.

slopes [H] pull a head towards recent positions: score(i, j) = q_i . k_j / sqrt(D) - slope * (i - j) (ALiBi, Press et
al. 2022). The first `header` positions are exempt on either side: a fact that stands in the header is equally near
from everywhere.

backend  sdpa   torch's scaled_dot_product_attention
         math   the same in plain operations: the twin that everything else is checked against
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

BACKENDS = ("sdpa", "math")


@lru_cache(maxsize=64)
def _distances(length: int, header: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """How far back key j stands from query i, [T, T]: 0 for a header key or query, infinite for the future."""
    position = torch.arange(length, device=device)
    distance = (position[:, None] - position[None, :]).to(dtype)
    distance[:, :header] = 0
    distance[:header, :] = 0
    return distance.masked_fill(position[:, None] < position[None, :], math.inf)


def _bias(slopes: Tensor, length: int, header: int) -> Tensor:
    """What is added to the scores, [H, T, T]: minus infinity for the future."""
    distance = _distances(length, header, slopes.device, slopes.dtype)
    future = distance.isinf()
    return torch.where(future, -math.inf, -slopes[:, None, None] * distance.masked_fill(future, 0.0))


def attention(
    q: Tensor, k: Tensor, v: Tensor, slopes: Tensor | None = None, header: int = 0, backend: str = "sdpa"
) -> Tensor:
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))  # [B, H, T, D]: views, not copies
    length = q.shape[2]
    if backend == "sdpa":
        bias = None if slopes is None else _bias(slopes, length, header)[None]  # 3-D masks miss the fused path
        out = scaled_dot_product_attention(q, k, v, attn_mask=bias, is_causal=bias is None)
    elif backend == "math":
        bias = _bias(q.new_zeros(1) if slopes is None else slopes, length, header)
        out = (q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]) + bias).softmax(-1) @ v
    else:
        raise ValueError(f"no attention backend '{backend}'. Known: {', '.join(BACKENDS)}")
    return out.transpose(1, 2)
