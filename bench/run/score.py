"""How far a prediction lies from the exact posterior, in bits, per position.

entropy_mae         mean over sequences and positions of |H_model - H_Bayes|: absolute value first. It ranks
entropy_curve_mae   |mean H_model - mean H_Bayes| per position, then the mean over positions: the paper's formula read
                    literally. Opposite errors cancel, so it never ranks
kl                  KL(Bayes || model): entropy can be right for a wrong distribution, KL cannot
tv                  total variation
nll_gap             the model's negative log likelihood minus Bayes', on the same draws
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from bench.seeds import generator
from tasks.base import Batch, Task

METRICS = ("entropy_mae", "entropy_curve_mae", "kl", "tv", "nll_gap")
CHUNK = {"cpu": 64, "cuda": 256}  # sequences in one forward: as much as caches like, as much as fills a device
LN2 = math.log(2.0)


class Exam(NamedTuple):
    """A fixed set of sequences with their exact answers."""

    batch: Batch
    posterior: Tensor  # [N, Q, C] float64


class Score(NamedTuple):
    """Means over sequences, one number a position, [Q] each."""

    h_bayes: Tensor
    h_model: Tensor
    entropy_mae: Tensor
    kl: Tensor
    tv: Tensor
    nll_gap: Tensor

    def summary(self, start: int = 0) -> dict[str, float]:
        """The mean over positions from `start` on."""
        curve = (self.h_model - self.h_bayes).abs()
        columns = (self.entropy_mae, curve, self.kl, self.tv, self.nll_gap)
        return {name: column[start:].mean().item() for name, column in zip(METRICS, columns, strict=True)}


def make_exam(task: Task, horizon: int, sequences: int, seed: int, device: str) -> Exam:
    """The evaluation stream of a seed at a horizon: the same for every architecture."""
    batch = task.sample(sequences, horizon, generator(device, seed, "evaluation", horizon))
    return Exam(batch, task.posterior(batch))


@torch.no_grad()
def predict(model: nn.Module, batch: Batch) -> Tensor:
    """Log probabilities at every query, [N, Q, C] float64: one forward scores all positions."""
    size = CHUNK[batch.tokens.device.type]
    logits = [
        model(tokens, features)[:, batch.queries]
        for tokens, features in zip(batch.tokens.split(size), batch.features.split(size), strict=True)
    ]
    return torch.cat(logits).to(torch.float64).log_softmax(-1)


def entropy_bits(p: Tensor) -> Tensor:
    return -torch.xlogy(p, p).sum(-1) / LN2


def score(exam: Exam, log_q: Tensor) -> Score:
    p, q = exam.posterior, log_q.exp()
    h_bayes, h_model = entropy_bits(p), entropy_bits(q)
    crossed = torch.where(p > 0, p * log_q, 0.0).sum(-1)  # 0 log 0 = 0
    kl = -crossed / LN2 - h_bayes
    draws = exam.batch.targets[..., None]
    nll_gap = (p.log().gather(-1, draws) - log_q.gather(-1, draws)).squeeze(-1) / LN2
    columns = (h_bayes, h_model, (h_model - h_bayes).abs(), kl, (p - q).abs().sum(-1) / 2, nll_gap)
    return Score(*(column.mean(0) for column in columns))
