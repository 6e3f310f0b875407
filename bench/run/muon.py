"""Muon: momentum, orthogonalised (Jordan et al. 2024), for all matrices of one shape at a time.

The update rule is torch.optim.Muon's, coefficients included. What differs is the arithmetic: matrices of equal shape
are stacked and iterated together, and in float32 where a CPU has no instructions for bfloat16. At the sizes of this
bench torch's version, one matrix at a time in bfloat16, takes longer than a model's forward and backward pass. A matrix
that packs several maps (the queries, keys and values of attention) has their number as its attribute `parts`, and each
is orthogonalised separately.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from math import inf

import torch
from torch import Tensor
from torch.optim import Optimizer

COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # a quintic that drives singular values towards one
STEPS = 5
GRAM_ASPECT = 1.5  # columns to rows from which the passes on the Gram matrix are the cheaper ones
GRAM_ROWS = 128  # for less they save under 3 % of a training step, and would change its rounding


def orthogonalise(stack: Tensor) -> Tensor:
    """Newton-Schulz iteration on [N, rows, columns]: each matrix with its singular values brought near one.

    Each pass multiplies x by a polynomial of its Gram matrix x x'. Those polynomials commute, so for a matrix much
    wider than high the passes can run on the small Gram matrix alone and meet x once, at the end: the same result in
    0.6 of the time at four times as wide. Not in bfloat16, where a small eigenvalue rounds below zero and grows.
    """
    a, b, c = COEFFICIENTS
    tall = stack.shape[-2] > stack.shape[-1]
    x = stack.mT if tall else stack
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)
    if x.dtype != torch.bfloat16 and GRAM_ROWS <= x.shape[-2] < x.shape[-1] / GRAM_ASPECT:
        gram = x @ x.mT
        total = gram  # of the factors so far
        for i in range(STEPS):
            factor = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
            factor.diagonal(dim1=-2, dim2=-1).add_(a)
            total = factor @ total if i else factor
            if i < STEPS - 1:
                gram = factor @ (gram @ factor)
        x = total @ x
    else:
        for _ in range(STEPS):
            gram = x @ x.mT
            x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x


class Muon(Optimizer):
    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float | Tensor,
        weight_decay: float = 0.0,
        momentum: float = 0.95,
        bf16_rows: float = inf,  # from this length of the shorter side on, matrices are multiplied in bfloat16
    ) -> None:
        self.bf16_rows = bf16_rows
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})
        for group in self.param_groups:
            for p in group["params"]:
                if p.ndim != 2:
                    raise ValueError(f"Muon takes matrices only, not a tensor of shape {tuple(p.shape)}")

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            alike: dict[tuple[int, int, int], list[Tensor]] = defaultdict(list)
            for p in group["params"]:
                if p.grad is not None:
                    alike[(*p.shape, getattr(p, "parts", 1))].append(p)
            for (rows, columns, parts), matrices in alike.items():
                gradient = torch.stack([p.grad for p in matrices if p.grad is not None])
                state = self.state[matrices[0]]  # one momentum for the stack, kept with its first matrix
                if "momentum" not in state:
                    state["momentum"] = torch.zeros_like(gradient)
                momentum: Tensor = state["momentum"]
                momentum.lerp_(gradient, 1 - group["momentum"])
                update = gradient.lerp_(momentum, group["momentum"])  # Nesterov
                update = update.view(-1, rows // parts, columns)
                is_large = min(rows // parts, columns) >= self.bf16_rows
                update = orthogonalise(update.bfloat16() if is_large else update)
                update = update.to(momentum.dtype).reshape(momentum.shape)  # tall ones come back transposed
                torch._foreach_mul_(matrices, 1 - group["lr"] * group["weight_decay"])
                scale = max(1.0, rows / parts / columns) ** 0.5
                torch._foreach_sub_(matrices, list((update * (group["lr"] * scale)).unbind()))
