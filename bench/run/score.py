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
from bench.stats import mean_interval
from tasks.base import Batch, Task, Variant

CURVES = ("h_bayes", "h_model", "entropy_mae", "kl")  # kept for every position
METRICS = ("entropy_mae", "entropy_curve_mae", "kl", "tv", "nll_gap")
CHUNK = {"cpu": 64, "cuda": 256}  # sequences in one forward: as much as caches like, as much as fills a device
LN2 = math.log(2.0)
TINY = 1e-300  # a draw that the wrong prior calls impossible costs 997 bits, not infinitely many


class Exam(NamedTuple):
    """A fixed set of sequences with their exact answers."""

    batch: Batch
    posterior: Tensor  # [N, Q, C] float64


class Score(NamedTuple):
    """Means over sequences, one number a position, [Q] each; from `by_sequence`, before the mean, [N, Q] each."""

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


def make_exam(task: Task | Variant, horizon: int, sequences: int, seed: int, device: str) -> Exam:
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
    return average(by_sequence(exam, log_q))


def average(columns: Score) -> Score:
    return Score(*(column.mean(0) for column in columns))


def by_sequence(exam: Exam, log_q: Tensor) -> Score:
    p, q = exam.posterior, log_q.exp()
    h_bayes, h_model = entropy_bits(p), entropy_bits(q)
    crossed = torch.where(p > 0, p * log_q, 0.0).sum(-1)  # 0 log 0 = 0
    kl = -crossed / LN2 - h_bayes
    draws = exam.batch.targets[..., None]
    told, guessed = p.gather(-1, draws).clamp(min=TINY).log(), log_q.gather(-1, draws).clamp(min=math.log(TINY))
    nll_gap = (told - guessed).squeeze(-1) / LN2
    return Score(h_bayes, h_model, (h_model - h_bayes).abs(), kl, (p - q).abs().sum(-1) / 2, nll_gap)


def intervals(columns: Score, start: int = 0) -> dict[str, tuple[float, float]]:
    """95 % intervals of the means over sequences, by Student's t, from position `start` on.

    The curve's error has none: it is no mean over sequences. Nor has anything measured on a single sequence.
    """
    if len(columns.kl) < 2:
        return {}
    found = (name for name in METRICS if name != "entropy_curve_mae")
    return {name: mean_interval(getattr(columns, name)[:, start:].mean(1).tolist()) for name in found}
