"""What every architecture shares: its registry, its budget and its front door.

An architecture is a function `build(shape, params, geometry) -> nn.Module`. The module maps (tokens [B, T],
features [B, T, F]) to logits [B, T, classes], causally: logits at t depend on positions up to t. It never learns which
task it serves. `params` is a budget; `Geometry` is the reference transformer of the same row, from which other
architectures take what they understand. Three attributes say what it can do:

max_length      the longest sequence it can read, or None
state_bytes(T)  what it carries from position T to T+1 when run step by step
start, step     optional: one position at a time. `state = start(B, T)` makes room for B sequences of T positions;
                `step(tokens [B], features [B, F], state)` reads the next position, updates the state in place and
                returns its logits [B, classes], the same as the forward's. Whoever has them can be rolled out
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import relu, silu

from bench.registry import BadInput, Registry
from models.taps import Tap
from tasks.base import Shape

ARCHS = Registry("architecture")
TOLERANCE = 0.01  # of the parameter budget
POSITIONS = ("learned", "sinusoidal", "rope", "alibi", "alibi-shift", "none")


@dataclass(frozen=True)
class Geometry:
    layers: int
    heads: int
    width: int
    ffn: int
    positions: str = "alibi"
    attention: str = "sdpa"
    activation: str = "relu2"


def count_parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


def count_built(build: Callable[[], nn.Module]) -> int:
    """Parameters of a model that is never allocated."""
    with torch.device("meta"):
        return count_parameters(build())


def solve(count: Callable[[int], int], budget: int) -> int:
    """The whole number whose count, growing in it, lies nearest to the budget."""
    low, high = 1, 2
    while count(high) < budget:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if count(middle) < budget else (low, middle)
    return min((low, high), key=lambda n: abs(count(n) - budget))


def solve_affine(count: Callable[[int], int], budget: int) -> int:
    """The same for a count that is affine, as it is in any one layer size: two looks instead of twenty."""
    at_three = count(3)  # a width of 1 or 2 may go without norms
    return max(1, 3 + round((budget - at_three) / (count(4) - at_three)))


def build(arch: str, shape: Shape, params: int, geometry: Geometry) -> nn.Module:
    """The named architecture within 1 % of the budget, or a refusal."""
    model: nn.Module = ARCHS[arch](shape, params, geometry)
    count = count_parameters(model)
    if abs(count - params) > TOLERANCE * params:
        raise BadInput(
            f"no size of it is within 1 % of {params:,} parameters (nearest: {count:,}); give it a larger budget with "
            "--set width=..., or a second size to vary, as models/mlp.py has"
        )
    return model


class Embed(nn.Module):
    """A position as a vector: its token's row plus its features, mixed."""

    def __init__(self, shape: Shape, width: int) -> None:
        super().__init__()
        self.token = nn.Embedding(shape.vocab, width)
        nn.init.normal_(self.token.weight, std=width**-0.5)
        self.feature = nn.Linear(shape.features, width, bias=False) if shape.features else None

    def forward(self, tokens_BT: Tensor, features_BTF: Tensor) -> Tensor:
        x_BTD: Tensor = self.token(tokens_BT)
        if self.feature is not None:
            x_BTD = x_BTD + self.feature(features_BTF.to(x_BTD.dtype))
        return x_BTD


class _SquaredReLU(torch.autograd.Function):
    """relu(x)^2 in two passes over memory and its gradient 2 g relu(x) in one; autograd's own takes two and four."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        r = relu(x)
        ctx.save_for_backward(r)
        return r * r

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (r,) = ctx.saved_tensors
        return torch.addcmul(gradient.new_zeros(()), gradient, r, value=2)


class _Shift(torch.autograd.Function):
    """y_t + w y_{t-1}, channel by channel, with one copy each way; autograd's own pads, slices and copies again."""

    @staticmethod
    def forward(ctx: Any, y_BTC: Tensor, weight_C: Tensor) -> Tensor:
        ctx.save_for_backward(y_BTC, weight_C)
        out = y_BTC.clone()
        out[:, 1:].addcmul_(y_BTC[:, :-1], weight_C)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        y_BTC, weight_C = ctx.saved_tensors
        of_y = gradient.clone()
        of_y[:, :-1].addcmul_(gradient[:, 1:], weight_C)
        return of_y, (gradient[:, 1:] * y_BTC[:, :-1]).sum((0, 1))


def shift(y_BTC: Tensor, weight_C: Tensor) -> Tensor:
    """To each position a share of the one before it."""
    shifted: Tensor = _Shift.apply(y_BTC, weight_C)
    return shifted


def squared_relu(x: Tensor) -> Tensor:
    activated: Tensor = _SquaredReLU.apply(x)
    return activated


def gated_silu(x: Tensor) -> Tensor:
    gate, value = x.chunk(2, dim=-1)
    return silu(gate) * value


class Activation(NamedTuple):
    name: str
    function: Callable[[Tensor], Tensor]
    maps: int  # that it takes, side by side in one matrix


# So et al. 2021 (arXiv:2109.08668), and Shazeer 2020 (arXiv:2002.05202)
ACTIVATIONS = {
    "relu2": Activation("squared ReLU", squared_relu, 1),
    "swiglu": Activation("SwiGLU", gated_silu, 2),
}


def map_up(width: int, hidden: int, activation: str) -> nn.Linear:
    """What stands in front of an activation; Muon is to tell its maps apart."""
    maps = ACTIVATIONS[activation].maps
    layer = nn.Linear(width, maps * hidden)
    layer.weight.parts = maps  # type: ignore[attr-defined]
    return layer


class FeedForward(nn.Module):
    def __init__(self, width: int, hidden: int, activation: str) -> None:
        super().__init__()
        self.activate = ACTIVATIONS[activation].function
        self.up = map_up(width, hidden, activation)
        self.down = residual_out(nn.Linear(hidden, width))
        self.out = Tap()

    def forward(self, x_BTD: Tensor) -> Tensor:
        return self.out(self.down(self.activate(self.up(x_BTD))))


def usual_hidden(ffn: int, activation: str) -> int:
    """How wide a layer is that costs about as much as one with a single map, `ffn` wide.

    A third matrix leaves two thirds of the width, in whole eights: odd sizes are slow on every device.
    """
    return ffn if ACTIVATIONS[activation].maps == 1 or not ffn else 8 * max(1, round(ffn / 12))


def residual_out(layer: nn.Linear) -> nn.Linear:
    """Start a branch at zero, so that a deep stack begins as the identity."""
    nn.init.zeros_(layer.weight)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer
