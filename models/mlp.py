"""Deep residual MLPs: no attention and no recurrence, with the same number of parameters.

    prefix = embeddings of all positions so far, flattened: header, lead, then the steps, oldest first
    x = linear(prefix)
    x = x + down(activate(up(norm(x))))     each block: two layers
    logits = head(norm(x))

`mlp` reads the whole causal prefix, so in principle it can compute the posterior of every task. Slots before the first
step are zero, so the present position is always in the last slot. It cannot read sequences longer than those it was
built for. `mlp-pointwise` reads only the present position: the context-free control that published MLP numbers
correspond to.

Shape suffixes: B sequences, T positions, E embedding width, W width of the residual stream, F features.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from models.base import (
    ACTIVATIONS,
    ARCHS,
    Embed,
    Geometry,
    count_built,
    inner_linear,
    map_up,
    residual_out,
    solve,
    solve_affine,
    usual_hidden,
)
from models.taps import Tap
from tasks.base import Shape

EMBED_WIDTH = 16


class Prefix(nn.Module):
    """The first layer: one linear map of all positions so far, flattened."""

    def __init__(self, header: int, steps: int, width: int) -> None:
        super().__init__()
        self.header, self.steps = header, steps
        self.fixed = inner_linear(header * EMBED_WIDTH, width, bias=False) if header else None
        self.recent = inner_linear(steps * EMBED_WIDTH, width)

    def forward(self, x_BTE: Tensor) -> Tensor:
        B, T, E = x_BTE.shape
        body = x_BTE[:, self.header :]
        slots = pad(body, (0, 0, self.steps - 1, 0)).unfold(1, self.steps, 1).transpose(2, 3)  # oldest slot first
        out_BTW = self.recent(slots.reshape(B, T - self.header, self.steps * E))
        if self.fixed is None:
            return out_BTW
        rows = self.fixed.weight.unflatten(1, (self.header, E))
        # the cumulative sum keeps header positions causal
        seen = torch.einsum("bhe,whe->bhw", x_BTE[:, : self.header], rows).cumsum(1)
        return torch.cat([seen + self.recent.bias, out_BTW + seen[:, -1:]], dim=1)


class Block(nn.Module):
    def __init__(self, width: int, hidden: int, activation: str) -> None:
        super().__init__()
        self.activate = ACTIVATIONS[activation].function
        self.norm = nn.LayerNorm(width)
        self.up = map_up(width, hidden, activation)
        self.down = residual_out(nn.Linear(hidden, width))
        self.out, self.resid = Tap(), Tap()

    def forward(self, x: Tensor) -> Tensor:
        return self.resid(x + self.out(self.down(self.activate(self.up(self.norm(x))))))


class MLP(nn.Module):
    def __init__(self, shape: Shape, blocks: int, width: int, hidden: int, activation: str, pointwise: bool) -> None:
        super().__init__()
        length, fixed = shape.length(shape.horizon), shape.header + shape.lead
        self.max_length = None if pointwise else length
        self.embed = Embed(shape, EMBED_WIDTH)
        self.read = inner_linear(EMBED_WIDTH, width) if pointwise else Prefix(fixed, length - fixed, width)
        self.blocks = nn.ModuleList(Block(width, hidden, activation) for _ in range(blocks))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, shape.classes)

    def forward(self, tokens_BT: Tensor, features_BTF: Tensor) -> Tensor:
        x_BTW = self.read(self.embed(tokens_BT, features_BTF))
        for block in self.blocks:
            x_BTW = block(x_BTW)
        return self.head(self.norm(x_BTW))

    def state_bytes(self, length: int) -> int:
        """The embedded prefix; nothing for the pointwise MLP."""
        return 0 if self.max_length is None else length * EMBED_WIDTH * 4


def build(shape: Shape, params: int, geometry: Geometry, *, pointwise: bool) -> nn.Module:
    """Three layers for each layer of the transformer, at most 20: 18 and 20 at the sizes of the paper."""
    blocks = max(1, min(20, 3 * geometry.layers) // 2)

    def count(width: int, hidden: int) -> int:
        return count_built(partial(MLP, shape, blocks, width, hidden, geometry.activation, pointwise))

    square = solve(lambda n: count(n, usual_hidden(n, geometry.activation)), params)
    sizes = [(w, solve_affine(partial(count, w), params)) for w in range(max(1, square - 2), square + 3)]
    width, hidden = min(sizes, key=lambda size: abs(count(*size) - params))
    return MLP(shape, blocks, width, hidden, geometry.activation, pointwise)


ARCHS.add("mlp", note="deep residual MLP over the whole flattened prefix")(partial(build, pointwise=False))
ARCHS.add("mlp-pointwise", note="the same, reading one position: the context-free control")(
    partial(build, pointwise=True)
)
