"""How fast this machine runs the bench, as ratios measured in one process on one core."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from rich.table import Table

from bench.seeds import generator
from tasks.hmm import HMM


def report() -> Table:
    table = Table("what", "sequences a second", "times the plain version", box=None, header_style="bold")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        task, rng = HMM(), generator("cpu", 0, "perf")
        batched = rate(lambda n: task.posterior(task.sample(n, 20, rng)), 1024)
        plain = rate(lambda n: one_by_one(task, n, rng), 16)
    finally:
        torch.set_num_threads(threads)
    table.add_row("hmm, K = 20, sampled with posterior, one core", f"{batched:,.0f}", f"{batched / plain:,.0f}")
    table.add_row("the same, sequence by sequence", f"{plain:,.0f}", "1")
    return table


def rate(work: Callable[[int], object], n: int, seconds: float = 1.0) -> float:
    """Items a second, after a warm-up."""
    work(n)
    start, done = time.perf_counter(), 0
    while time.perf_counter() - start < seconds:
        work(n)
        done += n
    return done / (time.perf_counter() - start)


def one_by_one(task: HMM, n: int, rng: torch.Generator) -> None:
    """The straightforward way: a Python loop over sequences and steps."""
    for _ in range(n):
        law = torch.distributions.Dirichlet(torch.ones(task.states, task.states, dtype=torch.float64))
        transition, emission = law.sample(), law.sample()
        state = int(torch.randint(task.states, (), generator=rng))
        belief = torch.full((task.states,), 1.0 / task.states, dtype=torch.float64)
        for _ in range(task.horizon):
            state = int(torch.multinomial(transition[state], 1, generator=rng))
            symbol = int(torch.multinomial(emission[state], 1, generator=rng))
            belief = (belief @ transition) * emission[:, symbol]
            belief = belief / belief.sum()
