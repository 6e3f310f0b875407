"""Time the attention backends on CUDA, forward and backward, at sequence lengths of the suite.

A kernel is checked again at the very shape that is timed, so a wrong kernel never gets a time. What is timed is a
captured graph, as in training: launching from Python takes longer than these kernels run.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import partial

import torch
from rich.console import Console
from torch import Tensor

from bench.device import beside, capture, cuda_events
from models.kernels.attention import BACKENDS, attention
from models.kernels.check import Case, require_right, tensors


def time_on_cuda(work: Callable[[], Tensor], repeats: int = 50, passes: int = 20) -> tuple[float, float]:
    """Median and interquartile range in microseconds of one replay, measured with CUDA events around several."""
    for _ in range(3):  # compiles, and whatever else may not be captured
        beside(work)
    replay = capture(work)

    def replay_all() -> None:
        for _ in range(passes):
            replay()

    replay_all()
    micros = [cuda_events(replay_all) * 1e3 / passes for _ in range(repeats)]
    quarters = statistics.quantiles(micros, n=4)
    return quarters[1], quarters[2] - quarters[0]


def time_all(console: Console) -> None:
    for length, header in ((39, 0), (30, 10), (99, 0), (1024, 0)):
        case = Case(length, 32, "float32", header, batch=64, heads=8)
        require_right(case, "cuda")
        given = tensors(case, "cuda")
        for backend in BACKENDS:
            median, spread = time_on_cuda(partial(_forward_and_backward, given, header, backend))
            line = f"{case}: {backend} {median:.0f} us (interquartile range {spread:.0f} us)"
            console.print(line, highlight=False)


def _forward_and_backward(given: dict[str, Tensor | None], header: int, backend: str) -> Tensor:
    qkv = given["qkv"]
    assert qkv is not None
    qkv = qkv.detach().requires_grad_()
    return torch.autograd.grad(attention(qkv, given["slopes"], header, backend), qkv, given["d_out"])[0]
