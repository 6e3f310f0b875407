"""Brute force: every posterior again, by listing all that could have been."""

from __future__ import annotations

import math
from itertools import permutations, product

import torch
from scipy.integrate import quad
from torch import Tensor

from tasks.base import Batch
from tasks.bernoulli import BOS, Bernoulli
from tasks.bijection import Bijection
from tasks.hmm import HMM


def enumerate_bijections(task: Bijection, batch: Batch) -> Tensor:
    """At each key, count its value over all permutations that agree with the pairs shown so far."""
    every = torch.tensor(list(permutations(range(task.size))))
    answer = torch.zeros(*batch.targets.shape, task.size, dtype=torch.float64)
    for b, tokens in enumerate(batch.tokens.tolist()):
        possible = torch.ones(len(every), dtype=torch.bool)
        for k in range(batch.targets.shape[1]):
            key = tokens[2 * k]
            counts = torch.bincount(every[possible, key], minlength=task.size).double()
            answer[b, k] = counts / counts.sum()
            if 2 * k + 1 < len(tokens):
                possible &= every[:, key] == tokens[2 * k + 1] - task.size
    return answer


def enumerate_paths(task: HMM, batch: Batch) -> Tensor:
    """Sum the probability of every hidden path, the state before the first transition included."""
    S, V = task.states, task.symbols
    answer = torch.zeros(*batch.targets.shape, S, dtype=torch.float64)
    for b in range(len(batch.tokens)):
        transition, emission = batch.features[b, :S, :S], batch.features[b, S : 2 * S, :V]
        symbols = batch.tokens[b, 2 * S :].tolist()
        for k in range(len(symbols)):
            for path in product(range(S), repeat=k + 2):
                weight = 1.0 / S
                for before, now, symbol in zip(path, path[1:], symbols, strict=False):
                    weight = weight * float(transition[before, now] * emission[now, symbol])
                answer[b, k, path[-1]] += weight
            answer[b, k] /= answer[b, k].sum()
    return answer


def enumerate_window(task: HMM, batch: Batch, window: int) -> Tensor:
    """The same, forgetting all but the last `window` observations: forgotten ones weigh nothing."""
    S, V = task.states, task.symbols
    answer = torch.zeros(*batch.targets.shape, S, dtype=torch.float64)
    for b in range(len(batch.tokens)):
        transition, emission = batch.features[b, :S, :S], batch.features[b, S : 2 * S, :V]
        symbols = batch.tokens[b, 2 * S :].tolist()
        for k in range(len(symbols)):
            for path in product(range(S), repeat=k + 2):
                weight = 1.0 / S
                for j, (before, now, symbol) in enumerate(zip(path, path[1:], symbols, strict=False)):
                    seen = float(emission[now, symbol]) if j > k - window else 1.0
                    weight = weight * float(transition[before, now]) * seen
                answer[b, k, path[-1]] += weight
            answer[b, k] /= answer[b, k].sum()
    return answer


def integrate_coins(task: Bernoulli, batch: Batch) -> Tensor:
    """The mean of p under prior times likelihood, by adaptive quadrature over every p there is."""
    answer = torch.zeros(*batch.targets.shape, 2, dtype=torch.float64)
    for b, tokens in enumerate(batch.tokens.tolist()):
        for t in range(len(tokens)):
            bits = [token for token in tokens[: t + 1] if token != BOS]

            def weight(p: float, bits: list[int] = bits) -> float:
                likelihood = math.prod(p if bit else 1 - p for bit in bits)
                return p ** (task.a - 1) * (1 - p) ** (task.b - 1) * likelihood

            total = quad(weight, 0, 1, epsabs=0, epsrel=1e-11)[0]
            answer[b, t, 1] = quad(lambda p, w=weight: p * w(p), 0, 1, epsabs=0, epsrel=1e-11)[0] / total
    answer[..., 0] = 1 - answer[..., 1]
    return answer
