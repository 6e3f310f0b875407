"""Let a model go on by itself: read a context, draw the next token from its own prediction, read that, and so on.

All contexts and all their samples run side by side, one `step` of the model for a whole chunk of sequences. A chunk is
as large as the memory budget lets its states be; the draws are made sequence by sequence, so on a CPU the budget
changes no result. A prediction's classes must be the tokens that may follow, as in next-token prediction they are.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

BUDGET_BYTES = 32 * 2**20  # states of one chunk: on a CPU small enough to stay near the cores


def refusal(model: nn.Module, length: int) -> str | None:
    """Why this model cannot be rolled out to a length, or None if it can."""
    if not hasattr(model, "step"):
        return "the architecture has no step function"
    reach: int | None = getattr(model, "max_length", None)
    return f"the model reads at most {reach} positions, not {length}" if reach is not None and length > reach else None


@torch.inference_mode()
def rollout(
    model: nn.Module,
    contexts_CN: Tensor,
    samples: int,
    length: int,
    rng: torch.Generator,
    greedy: bool = False,
    budget_bytes: int = BUDGET_BYTES,
    report: Callable[[int, int], None] = lambda _done, _total: None,
) -> Tensor:
    """What the model writes after each context, [C, samples, length] uint8; `report` hears tokens done and to do."""
    C, N = contexts_CN.shape
    rows_R = torch.arange(C, device=contexts_CN.device).repeat_interleave(samples)
    written_RL = torch.empty(C * samples, length, dtype=torch.uint8, device=contexts_CN.device)
    bytes_each: int = model.state_bytes(N + length)  # type: ignore[operator]
    size = max(1, min(len(rows_R), budget_bytes // max(1, bytes_each)))
    done = 0
    for chunk_R, out_RL in zip(rows_R.split(size), written_RL.split(size), strict=True):
        _run_chunk(model, contexts_CN[chunk_R], out_RL, rng, greedy)
        done += out_RL.numel()
        report(done, written_RL.numel())
    return written_RL.view(C, samples, length)


def _run_chunk(model: nn.Module, context_BN: Tensor, out_BL: Tensor, rng: torch.Generator, greedy: bool) -> None:
    """Fill `out_BL`, one column a step."""
    (B, N), L = context_BN.shape, out_BL.shape[1]
    u_LB1 = torch.rand(B, L, generator=rng, device=rng.device).t()[..., None].contiguous()
    features_B0 = torch.empty(B, 0, device=context_BN.device)
    state = model.start(B, N + L - 1)  # type: ignore[operator]  # the last token written is never read
    tokens_TB = context_BN.t().contiguous()
    for t in range(N - 1):
        model.step(tokens_TB[t], features_B0, state)  # type: ignore[operator]
    token_B = tokens_TB[N - 1]
    for t in range(L):
        logits_BC = model.step(token_B, features_B0, state)  # type: ignore[operator]
        # the last class is left out of the ladder: rounding in a cumulative sum can never point behind it
        token_B = logits_BC.argmax(-1) if greedy else (u_LB1[t] > logits_BC.softmax(-1).cumsum(-1)[:, :-1]).sum(-1)
        out_BL[:, t] = token_B
