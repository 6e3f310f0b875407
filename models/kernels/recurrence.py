"""Linear recurrences over a matrix-valued state S [K, V], one a head, behind one call each.

decayed_sum   S_t = exp(g_t) S_{t-1} + k_t v_t^T                              o_t = q_t S_t
delta_rule    S_t = exp(g_t) S_{t-1} + b_t k_t (v_t - exp(g_t) k_t S_{t-1})^T   o_t = q_t S_t

The first is linear attention with a scalar decay: state-space duality (Dao and Gu 2024, arXiv:2405.21060). The second
is the gated delta rule (Yang et al. 2024, arXiv:2412.06464): what is stored under a key is replaced, not added to.

q, k [B, T, H, K], v [B, T, H, V], log decays g and strengths b [B, T, H] -> [B, T, H, V]. On CUDA the sums are
fla-core's Triton kernels; elsewhere the chunked forms below, matrix products within a chunk and a loop over chunks.
The `_step` functions are the definitions above, read aloud: one position and its state.
"""

from __future__ import annotations

import os

import torch
from torch import Tensor

CHUNK = 64  # positions that meet in one matrix: the tasks at their training horizons fit into one


def decayed_sum(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> Tensor:
    if q.is_cuda:
        from fla.ops.simple_gla import chunk_simple_gla  # Triton is imported only where it is used

        _ask_for_float32()

        out: Tensor = chunk_simple_gla(q, k, v, g, scale=1.0)[0]
        return out
    return _chunked(q, k, v, g, None)


def delta_rule(q: Tensor, k: Tensor, v: Tensor, g: Tensor, b: Tensor) -> Tensor:
    if q.is_cuda:
        from fla.ops.gated_delta_rule import chunk_gated_delta_rule

        _ask_for_float32()
        out: Tensor = chunk_gated_delta_rule(q, k, v, g, b, scale=1.0)[0]
        return out
    return _chunked(q, k, v, g, b)


def _ask_for_float32() -> None:
    """Triton multiplies float32 in TF32 where a kernel does not say; fla's mostly do not, and ours say float32.

    What is left in TF32 is fla's inversion of a triangle in the delta rule, which does say.
    """
    os.environ.setdefault("TRITON_F32_DEFAULT", "ieee")


def decayed_sum_step(q: Tensor, k: Tensor, v: Tensor, g: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """One position: q, k [B, H, K], v [B, H, V], g [B, H] and the state [B, H, K, V] before it."""
    state = g.exp()[..., None, None] * state + k[..., :, None] * v[..., None, :]
    return (q[..., :, None] * state).sum(-2), state


def delta_rule_step(q: Tensor, k: Tensor, v: Tensor, g: Tensor, b: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    state = g.exp()[..., None, None] * state
    stored = (k[..., :, None] * state).sum(-2)
    state = state + k[..., :, None] * (b[..., None] * (v - stored))[..., None, :]
    return (q[..., :, None] * state).sum(-2), state


def _chunked(q: Tensor, k: Tensor, v: Tensor, g: Tensor, b: Tensor | None) -> Tensor:
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))  # [B, H, T, .]
    g, b = g.transpose(1, 2), None if b is None else b.transpose(1, 2)
    length = q.shape[2]
    state = None
    outs = []
    for start in range(0, length, CHUNK):
        now = slice(start, start + CHUNK)
        qc, kc, vc = q[:, :, now], k[:, :, now], v[:, :, now]
        total = g[:, :, now].cumsum(-1)  # log of all that has decayed since the chunk began
        future = torch.ones(qc.shape[2], qc.shape[2], dtype=torch.bool, device=q.device).triu(1)
        # masked before exp: a decay run backwards in time would overflow
        kept = (total[..., :, None] - total[..., None, :]).masked_fill(future, -torch.inf).exp()
        old = total.exp()[..., None]
        if b is not None:
            strength = b[:, :, now, None]
            if state is not None:
                vc = vc - (kc * old) @ state
            # the WY form: what each position really writes, given what those before it in the chunk have written
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
