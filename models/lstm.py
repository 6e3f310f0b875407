"""LSTM and GRU: torch's own cells in a residual stack with norms, so that depth does not kill them.

    x = embed(tokens, features)
    x = x + out(cell(norm(x)))      each layer; the cell runs over time
    x = x + ffn(norm(x))
    logits = head(norm(x))

A cell mixes over time and multiplies by its gates; the feed-forward layer works within a position. Forget gates start
at a bias of one (Jozefowicz et al. 2015). Larger ones, which keep a header for longer, help on `recall` and hurt on
`bijection-revisit` and `hmm-sticky`.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from models.base import (
    ARCHS,
    Embed,
    FeedForward,
    Geometry,
    count_built,
    residual_out,
    solve,
    solve_affine,
    usual_hidden,
)
from models.taps import Tap
from tasks.base import Shape

GATES = {nn.LSTM: 4, nn.GRU: 3}


class Layer(nn.Module):
    def __init__(self, kind: type[nn.LSTM] | type[nn.GRU], width: int, hidden: int, activation: str) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.cell = kind(width, width, batch_first=True)
        for name, p in self.cell.named_parameters():
            if p.ndim == 2:
                p.parts = GATES[kind]  # type: ignore[attr-defined]  # one map a gate, for Muon to tell apart
            else:
                nn.init.zeros_(p)
            if name == "bias_ih_l0":  # of torch's gates the second: forget in an LSTM, keep in a GRU
                with torch.no_grad():
                    p[width : 2 * width] = 1.0
        self.out = residual_out(nn.Linear(width, width))
        self.ffn = FeedForward(width, hidden, activation)
        self.h, self.mixed, self.resid = Tap(), Tap(), Tap()

    def forward(self, x_BTD: Tensor, state: list[Tensor] | None = None) -> Tensor:
        """All positions at once, or those after a state, which is then brought up to date."""
        if state is None:
            h_BTD, _ = self.cell(self.norm1(x_BTD))
        elif isinstance(self.cell, nn.LSTM):
            h_BTD, state[:] = self.cell(self.norm1(x_BTD), tuple(state))
        else:
            h_BTD, state[0] = self.cell(self.norm1(x_BTD), state[0])
        x_BTD = x_BTD + self.mixed(self.out(self.h(h_BTD)))
        return self.resid(x_BTD + self.ffn(self.norm2(x_BTD)))


class Recurrent(nn.Module):
    max_length = None

    def __init__(
        self, shape: Shape, kind: type[nn.LSTM] | type[nn.GRU], layers: int, width: int, hidden: int, activation: str
    ) -> None:
        super().__init__()
        self.width, self.vectors = width, 2 if kind is nn.LSTM else 1  # an LSTM carries its cell beside its output
        self.embed = Embed(shape, width)
        self.blocks = nn.ModuleList(Layer(kind, width, hidden, activation) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, shape.classes)

    def forward(self, tokens_BT: Tensor, features_BTF: Tensor) -> Tensor:
        x_BTD = self.embed(tokens_BT, features_BTF)
        for block in self.blocks:
            x_BTD = block(x_BTD)
        return self.head(self.norm(x_BTD))

    def state_bytes(self, length: int) -> int:
        return len(self.blocks) * self.vectors * self.width * 4

    def start(self, batch: int, length: int) -> list[list[Tensor]]:
        zeros = self.head.weight.new_zeros
        return [[zeros(1, batch, self.width) for _ in range(self.vectors)] for _ in self.blocks]

    def step(self, tokens_B: Tensor, features_BF: Tensor, state: list[list[Tensor]]) -> Tensor:
        x_B1D = self.embed(tokens_B, features_BF)[:, None]
        for block, of_block in zip(self.blocks, state, strict=True):
            x_B1D = block(x_B1D, of_block)
        return self.head(self.norm(x_B1D))[:, 0]


def build(shape: Shape, params: int, geometry: Geometry, *, kind: type[nn.LSTM] | type[nn.GRU]) -> nn.Module:
    """Half as many layers as the transformer has, each with a feed-forward of twice its width."""
    layers = -(-geometry.layers // 2)

    def make(width: int, hidden: int) -> Recurrent:
        return Recurrent(shape, kind, layers, width, hidden, geometry.activation)

    def count(width: int, hidden: int) -> int:
        return count_built(partial(make, width, hidden))

    width = solve(lambda n: count(n, usual_hidden(2 * n, geometry.activation)), params)
    return make(width, solve_affine(partial(count, width), params))


ARCHS.add("lstm", note="LSTM cells in a residual stack with norms")(partial(build, kind=nn.LSTM))
ARCHS.add("gru", note="GRU cells in a residual stack with norms")(partial(build, kind=nn.GRU))
