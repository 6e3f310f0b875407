"""Brute force: every posterior again, by listing all that could have been."""

from __future__ import annotations

import math
from itertools import pairwise, permutations, product

import numpy as np
import torch
from scipy.integrate import quad
from scipy.stats import norm
from torch import Tensor

from tasks.base import Batch
from tasks.bernoulli import BOS, Bernoulli
from tasks.bijection import Bijection
from tasks.hmm import HMM
from tasks.recall import Recall
from tasks.regression import Regression


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
                for (before, now), symbol in zip(pairwise(path), symbols[: k + 1], strict=True):
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
                for j, ((before, now), symbol) in enumerate(zip(pairwise(path), symbols[: k + 1], strict=True)):
                    seen = float(emission[now, symbol]) if j > k - window else 1.0
                    weight = weight * float(transition[before, now]) * seen
                answer[b, k, path[-1]] += weight
            answer[b, k] /= answer[b, k].sum()
    return answer


def enumerate_tables(task: Recall, batch: Batch) -> Tensor:
    """At each query, count its value over all tables (a value for every key) that agree with the stored pairs."""
    every = torch.tensor(list(product(range(task.values), repeat=task.keys)))
    answer = torch.zeros(*batch.targets.shape, task.values, dtype=torch.float64)
    for b, tokens in enumerate(batch.tokens.tolist()):
        possible = torch.ones(len(every), dtype=torch.bool)
        for p in range(task.pairs):
            possible &= every[:, tokens[2 * p]] == tokens[2 * p + 1] - task.keys
        for k, key in enumerate(tokens[2 * task.pairs + task.gap :]):
            counts = torch.bincount(every[possible, key], minlength=task.values).double()
            answer[b, k] = counts / counts.sum()
    return answer


def condition_functions(task: Regression, batch: Batch) -> Tensor:
    """Without weights: all y are jointly normal with covariance X X^T + s^2 I; condition the last on those before."""
    answer = torch.zeros(*batch.targets.shape, task.bins, dtype=torch.float64)
    edges = np.concatenate([[-np.inf], task.edges(torch.device("cpu")).numpy(), [np.inf]])
    for b in range(len(batch.tokens)):
        x, y = batch.features[b, 0::2, :-1].numpy(), batch.features[b, 1::2, -1].numpy()
        covariance = x @ x.T + task.noise**2 * np.eye(len(x))
        for k in range(len(x)):
            weights = np.linalg.solve(covariance[:k, :k], covariance[:k, k])
            spread = (covariance[k, k] - weights @ covariance[:k, k]) ** 0.5
            answer[b, k] = torch.from_numpy(np.diff(norm.cdf(edges, weights @ y[:k], spread)))
    return answer


def sum_over_weights(task: Regression, batch: Batch) -> Tensor:
    """In one dimension: Bayes' rule on a fine grid of the weight itself."""
    grid = np.linspace(-8, 8, 20_001)
    answer = torch.zeros(*batch.targets.shape, task.bins, dtype=torch.float64)
    edges = np.concatenate([[-np.inf], task.edges(torch.device("cpu")).numpy(), [np.inf]])
    for b in range(len(batch.tokens)):
        x, y = batch.features[b, 0::2, 0].numpy(), batch.features[b, 1::2, -1].numpy()
        weight = norm.pdf(grid)
        for k in range(len(x)):
            masses = np.diff(norm.cdf(edges[:, None], grid * x[k], task.noise), axis=0)
            answer[b, k] = torch.from_numpy(masses @ weight / weight.sum())
            if k < len(y):
                weight = weight * norm.pdf(y[k], grid * x[k], task.noise)
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
