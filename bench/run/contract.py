"""What an architecture must do to be scored: answer in the right shape, and see neither the future nor its neighbours.

Looked at on two sequences, before training and on the trained weights: a branch that starts at zero hides what it does.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from bench.config import RunConfig
from bench.seeds import generator
from tasks.base import Task

TOLERANCE = 1e-4  # of the largest logit: sums are ordered otherwise in a batch of another size


class Unlawful(RuntimeError):
    """The architecture's own fault, told in one line."""


def require_lawful(model: nn.Module, task: Task, config: RunConfig) -> None:
    batch = task.sample(2, config.horizon, generator(config.device, config.seed, "laws"))
    tokens_BT, features_BTF = batch.tokens, batch.features
    length = tokens_BT.shape[1]
    cut = length // 2

    def exchanged(x: Tensor) -> Tensor:
        """Each with the other's second half."""
        return torch.cat([x[:, :cut], x.flip(0)[:, cut:]], dim=1)

    model.eval()
    with torch.no_grad():
        logits = model(tokens_BT, features_BTF)
        expected = [2, length, task.shape.classes]
        if not isinstance(logits, Tensor) or list(logits.shape) != expected:
            found = list(logits.shape) if isinstance(logits, Tensor) else f"a {type(logits).__name__}"
            raise Unlawful(f"{config.arch} returns {found}, where [sequences, positions, classes] are {expected}")
        later, alone = model(exchanged(tokens_BT), exchanged(features_BTF)), model(tokens_BT[:1], features_BTF[:1])
    model.train()
    bound = TOLERANCE * (1.0 + logits.abs().max())
    if ((later - logits)[:, :cut].abs() > bound).any():
        raise Unlawful(f"{config.arch} sees the future: what follows position {cut} changes its answers before")
    if ((alone - logits[:1]).abs() > bound).any():
        raise Unlawful(f"{config.arch} mixes sequences: the others of a batch change its answers")
