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
from tasks.hmm_pool import HMMPool
from tasks.markov import Markov
from tasks.recall import Recall
from tasks.recurrence import Recurrence
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


def follow_chain(task: Markov, symbols: list[int]) -> dict[tuple[int, ...], list[int]]:
    """How often each symbol followed each context, by walking along the sequence."""
    counts: dict[tuple[int, ...], list[int]] = {}
    for t in range(task.order, len(symbols)):
        row = counts.setdefault(tuple(symbols[t - task.order : t]), [0] * task.alphabet)
        row[symbols[t]] += 1
    return counts


def enumerate_pool_chains(task: Markov, batch: Batch) -> Tensor:
    """Bayes' rule over the chains of the pool, one at a time."""
    chains = task.pooled(torch.device("cpu"))
    answer = torch.zeros(*batch.targets.shape, task.alphabet, dtype=torch.float64)
    for b, tokens in enumerate(batch.tokens.tolist()):
        for t in range(len(tokens)):
            if t + 1 < task.order:
                answer[b, t] = 1 / task.alphabet
                continue
            total = 0.0
            for chain in chains:
                weight = 1.0
                for s in range(task.order, t + 1):
                    weight *= float(chain[_number(tokens[s - task.order : s], task.alphabet), tokens[s]])
                answer[b, t] += weight * chain[_number(tokens[t + 1 - task.order : t + 1], task.alphabet)]
                total += weight
            answer[b, t] /= total
    return answer


def _number(symbols: list[int], alphabet: int) -> int:
    return sum(symbol * alphabet**i for i, symbol in enumerate(reversed(symbols)))


def enumerate_programs(task: Recurrence, batch: Batch) -> Tensor:
    """Bayes' rule over every program (x_1, a, b) and over noise, in fractions of probability."""
    p = task.modulus
    answer = torch.zeros(*batch.targets.shape, p, dtype=torch.float64)
    for row, tokens in enumerate(batch.tokens.tolist()):
        symbol = tokens[:p] if task.opaque else list(range(p))
        numbers = [symbol.index(token - p) for token in tokens[p:]] if task.opaque else tokens
        for k in range(len(numbers)):
            seen = numbers[: k + 1]
            chance = [0.5 / p ** len(seen) / p] * p
            for first, a, b in product(range(p), repeat=3):
                path = [first]
                for _ in seen:
                    path.append((a * path[-1] + b) % p)
                if path[:-1] == seen:
                    chance[path[-1]] += 0.5 / p**3
            for number, mass in enumerate(chance):
                answer[row, k, symbol[number]] = mass / sum(chance)
    return answer


def enumerate_pool_weights(task: Regression, batch: Batch) -> Tensor:
    """Bayes' rule over the weights of the pool, with scipy's normal distribution."""
    weights = task.pooled(torch.device("cpu")).numpy()
    answer = torch.zeros(*batch.targets.shape, task.bins, dtype=torch.float64)
    edges = np.concatenate([[-np.inf], task.edges(torch.device("cpu")).numpy(), [np.inf]])
    for b in range(len(batch.tokens)):
        x, y = batch.features[b, 0::2, :-1].numpy(), batch.features[b, 1::2, -1].numpy()
        for k in range(len(x)):
            fit = np.array([norm.logpdf(y[:k], x[:k] @ w, task.noise).sum() for w in weights])
            share = np.exp(fit - fit.max())
            masses = np.array([np.diff(norm.cdf(edges, x[k] @ w, task.noise)) for w in weights])
            answer[b, k] = torch.from_numpy(share @ masses / share.sum())
    return answer


def enumerate_pool_coins(task: Bernoulli, batch: Batch) -> Tensor:
    """Bayes' rule over the coins of the pool, toss by toss."""
    coins = task.pooled(torch.device("cpu")).tolist()
    answer = torch.zeros(*batch.targets.shape, 2, dtype=torch.float64)
    for b, tokens in enumerate(batch.tokens.tolist()):
        for t in range(len(tokens)):
            bits = [token for token in tokens[: t + 1] if token != BOS]
            fit = [math.prod(p if bit else 1 - p for bit in bits) for p in coins]
            answer[b, t, 1] = sum(w * p for w, p in zip(fit, coins, strict=True)) / sum(fit)
    answer[..., 0] = 1 - answer[..., 1]
    return answer


def enumerate_pool_paths(task: HMMPool, batch: Batch) -> Tensor:
    """Sum the probability of every chain of the pool and every hidden path."""
    S = task.states
    answer = torch.zeros(*batch.targets.shape, S, dtype=torch.float64)
    for b, symbols in enumerate(batch.tokens.tolist()):
        for k in range(len(symbols)):
            for transition, emission in zip(*task.chains(torch.device("cpu")), strict=True):
                for path in product(range(S), repeat=k + 2):
                    weight = 1.0
                    for (before, now), symbol in zip(pairwise(path), symbols[: k + 1], strict=True):
                        weight = weight * float(transition[before, now] * emission[now, symbol])
                    answer[b, k, path[-1]] += weight
            answer[b, k] /= answer[b, k].sum()
    return answer
