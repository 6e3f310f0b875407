"""Shared by all architectures: the registry, the parameter budget and common layers.

An architecture is a function `build(shape, params, geometry) -> nn.Module`. The module maps (tokens [B, T],
features [B, T, F]) to logits [B, T, classes], causally: logits at t depend on positions up to t. It is not told which
task it is trained on. `params` is a budget. `Geometry` describes the reference transformer with that budget; other
architectures use those of its fields that apply to them. `models/stack.py` builds one around a mixer of positions.
Attributes of the module say what it can do:

max_length      the longest sequence it can read, or None
state_bytes(T)  bytes carried from position T to T+1 when run step by step
start, step     optional: one position at a time. `state = start(B, T)` allocates memory for B sequences of T positions;
                `step(tokens [B], features [B, F], state)` reads the next position, updates the state in place and
                returns the same logits [B, classes] as the forward pass. A model that has them can be rolled out

Attributes of a parameter say how it is trained: Muon takes the matrices marked by `assign_to_muon`, which are those
between the embedding and the head. AdamW takes every other parameter. `mark_values` marks the rows that make values,
which may have a learning rate of their own. Names of parameters mean nothing.

Shape suffixes: B sequences, T positions, D width, C channels, F features.
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
TOLERANCE = 0.01  # relative to the parameter budget
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

    @property
    def shift(self) -> bool:
        """Every mixer that has no convolution of its own also sees a share of the previous position."""
        return self.positions.endswith("-shift")


def count_parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


def count_built(build: Callable[[], nn.Module]) -> int:
    """The number of parameters, without allocating them."""
    with torch.device("meta"):
        return count_parameters(build())


def solve(count: Callable[[int], int], budget: int) -> int:
    """The integer whose count is nearest to the budget; the count must grow with it."""
    low, high = 1, 2
    while (found := count(high)) < budget:
        if found <= count(low):
            raise BadInput("its number of parameters does not grow with its size")
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if count(middle) < budget else (low, middle)
    return min((low, high), key=lambda n: abs(count(n) - budget))


def solve_affine(count: Callable[[int], int], budget: int) -> int:
    """The same for a count that is affine, as it is in any one layer size: two counts instead of twenty."""
    at_three = count(3)  # models with a width of 1 or 2 may have no norms
    return max(1, 3 + round((budget - at_three) / (count(4) - at_three)))


def build(arch: str, shape: Shape, params: int, geometry: Geometry) -> nn.Module:
    """The named architecture within 1 % of the budget, or an error."""
    model: nn.Module = ARCHS[arch](shape, params, geometry)
    count = count_parameters(model)
    if abs(count - params) > TOLERANCE * params:
        raise BadInput(
            f"no size of it is within 1 % of {params:,} parameters (nearest: {count:,}); give it a larger budget with "
            "--set width=..., or a second size to vary, as models/mlp.py has"
        )
    return model


class Embed(nn.Module):
    """A position as a vector: the embedding of its token plus a linear map of its features."""

    def __init__(self, shape: Shape, width: int) -> None:
        super().__init__()
        self.token = nn.Embedding(shape.vocab, width)
        nn.init.normal_(self.token.weight, std=width**-0.5)
        self.feature = nn.Linear(shape.features, width, bias=False) if shape.features else None
        self.out = Tap()

    def forward(self, tokens_BT: Tensor, features_BTF: Tensor) -> Tensor:
        x_BTD: Tensor = self.token(tokens_BT)
        if self.feature is not None:
            x_BTD = x_BTD + self.feature(features_BTF.to(x_BTD.dtype))
        return self.out(x_BTD)


class _SquaredReLU(torch.autograd.Function):
    """relu(x)^2 in two passes over memory, its gradient 2 g relu(x) in one; autograd needs two and four."""

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
    """y_t + w y_{t-1} per channel, with one copy forward and one backward; autograd would pad, slice and copy again."""

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
    """Add to each position a learned share of the previous one."""
    shifted: Tensor = _Shift.apply(y_BTC, weight_C)
    return shifted


class Shift(nn.Module):
    """The same as a layer, with one weight per channel that starts at zero."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(channels))

    def forward(self, y_BTC: Tensor) -> Tensor:
        return shift(y_BTC, self.weight)

    def start(self, batch: int) -> Tensor:
        """What the first position has before it."""
        return self.weight.new_zeros(batch, len(self.weight))

    def step(self, y_BC: Tensor, last_BC: Tensor) -> Tensor:
        """The next position; `last_BC` is replaced by it."""
        shifted_BC = y_BC + self.weight * last_BC
        last_BC.copy_(y_BC)
        return shifted_BC


def squared_relu(x: Tensor) -> Tensor:
    activated: Tensor = _SquaredReLU.apply(x)
    return activated


def gated_silu(x: Tensor) -> Tensor:
    gate, value = x.chunk(2, dim=-1)
    return silu(gate) * value


def assign_to_muon(weight: Tensor, parts: int = 1) -> None:
    """Let Muon train this matrix. If it packs several maps, `parts` of them, each is orthogonalised separately."""
    weight.optimizer, weight.parts = "muon", parts  # type: ignore[attr-defined]


def inner_linear(inputs: int, outputs: int, bias: bool = True, parts: int = 1) -> nn.Linear:
    """A linear layer between the embedding and the head, whose matrix Muon trains."""
    layer = nn.Linear(inputs, outputs, bias=bias)
    assign_to_muon(layer.weight, parts)
    return layer


def mark_values(layer: nn.Linear, part: int = 0, parts: int = 1) -> nn.Linear:
    """Say which rows of a layer make values, what attention or a memory carries: `value_lr` changes their rate."""
    rows = layer.out_features // parts
    for p in layer.parameters():
        p.value_rows = slice(part * rows, (part + 1) * rows)  # type: ignore[attr-defined]
    return layer


class Activation(NamedTuple):
    name: str
    function: Callable[[Tensor], Tensor]
    maps: int  # linear maps in front of it, packed into one matrix


# So et al. 2021 (arXiv:2109.08668), and Shazeer 2020 (arXiv:2002.05202)
ACTIVATIONS = {
    "relu2": Activation("squared ReLU", squared_relu, 1),
    "swiglu": Activation("SwiGLU", gated_silu, 2),
}


def map_up(width: int, hidden: int, activation: str) -> nn.Linear:
    """The linear layer in front of an activation."""
    maps = ACTIVATIONS[activation].maps
    return inner_linear(width, maps * hidden, parts=maps)


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
    """The hidden width that costs about as much as a width of `ffn` with a single map.

    A third matrix leaves two thirds of the width, rounded to a multiple of 8: odd sizes are slow on every device.
    """
    return ffn if ACTIVATIONS[activation].maps == 1 or not ffn else 8 * max(1, round(ffn / 12))


def residual_out(layer: nn.Linear) -> nn.Linear:
    """Initialise the last layer of a residual branch at zero, so that a deep stack starts as the identity.

    Its matrix is trained by Muon.
    """
    nn.init.zeros_(layer.weight)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    assign_to_muon(layer.weight)
    return layer
