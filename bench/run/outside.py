"""Any callable as a model: from tokens [B, T] and features [B, T, F] to probabilities [B, T, classes].

The callable is given torch tensors and may return a torch tensor or a numpy array. Features are in float64, or in the
type of the parameters if the callable is a torch module.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bench.registry import BadInput
from bench.run.score import TINY

Predictor = Callable[[Tensor, Tensor], Any]  # a tensor, or a numpy array
SUM_TOLERANCE = 1e-3  # of a row's sum: a softmax in bfloat16 is within it, logits are not


class Probabilities(nn.Module):
    """The callable's answers in float64, of the right shape and otherwise as they are."""

    def __init__(self, model: Predictor, classes: int) -> None:
        super().__init__()
        self.model, self.classes = model, classes
        self.max_length: int | None = getattr(model, "max_length", None)  # None: it reads any length
        if self.max_length is not None and not isinstance(self.max_length, int):
            raise BadInput(f"the model's max_length must be a whole number, not {self.max_length!r}")
        weights = model.parameters() if isinstance(model, nn.Module) else iter(())
        self.dtype = next((p.dtype for p in weights if p.is_floating_point()), None)

    def forward(self, tokens_BT: Tensor, features_BTF: Tensor) -> Tensor:
        answer = self.model(tokens_BT, features_BTF.to(self.dtype))
        if not isinstance(answer, Tensor | np.ndarray):
            raise BadInput(f"the model returns a {type(answer).__name__}, not a tensor or an array")
        q_BTC = torch.as_tensor(answer)
        expected = [*tokens_BT.shape, self.classes]
        if list(q_BTC.shape) != expected:
            raise BadInput(
                f"the model returns {list(q_BTC.shape)}, where [sequences, positions, classes] are {expected}"
            )
        return q_BTC.to(tokens_BT.device, torch.float64)


class LogProbabilities(Probabilities):
    """Their logarithms, as evaluation wants them; anything but a distribution at each position is refused."""

    def forward(self, tokens_BT: Tensor, features_BTF: Tensor) -> Tensor:
        q_BTC = super().forward(tokens_BT, features_BTF)
        if not q_BTC.isfinite().all():
            raise BadInput("the model returns probabilities that are not finite")
        if q_BTC.min() < 0:
            raise BadInput(f"the model returns a probability of {q_BTC.min():.4g}: logits need a softmax first")
        sums_BT = q_BTC.sum(-1)
        worst = sums_BT.flatten()[(sums_BT - 1).abs().argmax()]
        if abs(worst - 1) > SUM_TOLERANCE:
            raise BadInput(f"the model's probabilities sum to {worst:.4g}, not to 1: logits need a softmax first")
        return q_BTC.clamp(min=TINY).log()  # as for references: calling a possible outcome impossible costs 997 bits
