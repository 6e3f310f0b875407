"""Let a model go on by itself: read a context, draw the next token from its own prediction, read that, and so on.

All contexts and all their samples run side by side, one `step` of the model for a whole chunk of sequences. A chunk is
as large as the memory budget lets its states be; the draws are made sequence by sequence, so on a CPU the budget
changes no result. A prediction's classes must be the tokens that may follow, as in next-token prediction they are;
`first_token` is the token of class 0.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from tasks.base import Batch, Task

BUDGET_BYTES = 32 * 2**20  # states of one chunk: on a CPU small enough to stay near the cores


def refusal(model: nn.Module, length: int) -> str | None:
    """Why this model cannot be rolled out to a length, or None if it can."""
    if not hasattr(model, "step"):
        return "the architecture has no step function"
    reach: int | None = getattr(model, "max_length", None)
    return f"the model reads at most {reach} positions, not {length}" if reach is not None and length > reach else None


class Exact(nn.Module):
    """Bayes behind a model's interface: a task's exact answers as logits, at once or step by step.

    A task that cannot predict step by step is asked anew at every step, about all tokens so far.
    """

    max_length = None

    def __init__(self, task: Task) -> None:
        super().__init__()
        self.task = task
        self.steps = hasattr(task, "step")

    def forward(self, tokens_BT: Tensor, features_BTF: Tensor) -> Tensor:
        shape = self.task.shape
        queries_Q = torch.arange(tokens_BT.shape[1])[shape.header + shape.lead :: shape.stride]
        logits_BTC = torch.zeros(*tokens_BT.shape, shape.classes, dtype=torch.float64)
        batch = Batch(tokens_BT, features_BTF.double(), tokens_BT[:, queries_Q], queries_Q)
        logits_BTC[:, queries_Q] = self.task.posterior(batch).log()
        return logits_BTC

    def start(self, batch: int, length: int) -> list[Tensor]:
        if self.steps:
            state: list[Tensor] = self.task.start(batch)  # type: ignore[attr-defined]
            return state
        return [torch.zeros(batch, length, dtype=torch.int64), torch.zeros((), dtype=torch.int64)]

    def step(self, tokens_B: Tensor, features_BF: Tensor, state: list[Tensor]) -> Tensor:
        if self.steps:
            p_BC: Tensor = self.task.step(tokens_B, state)  # type: ignore[attr-defined]
            return p_BC.log()
        read_BT, seen = state
        read_BT[:, seen] = tokens_B.long()
        seen += 1
        if seen <= self.task.shape.lead:
            return torch.zeros(len(tokens_B), self.task.shape.classes, dtype=torch.float64)
        so_far_BT = read_BT[:, : int(seen)]
        return self.forward(so_far_BT, torch.empty(*so_far_BT.shape, 0))[:, -1]

    def state_bytes(self, length: int) -> int:
        return sum(part.nbytes for part in self.start(1, length))


@torch.inference_mode()
def rollout(
    model: nn.Module,
    contexts_CN: Tensor,
    samples: int,
    length: int,
    rng: torch.Generator,
    greedy: bool = False,
    first_token: int = 0,
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
        _run_chunk(model, contexts_CN[chunk_R], out_RL, rng, greedy, first_token)
        done += out_RL.numel()
        report(done, written_RL.numel())
    return written_RL.view(C, samples, length)


def _run_chunk(
    model: nn.Module, context_BN: Tensor, out_BL: Tensor, rng: torch.Generator, greedy: bool, first_token: int
) -> None:
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
        class_B = logits_BC.argmax(-1) if greedy else (u_LB1[t] > logits_BC.softmax(-1).cumsum(-1)[:, :-1]).sum(-1)
        token_B = class_B + first_token
        out_BL[:, t] = token_B
