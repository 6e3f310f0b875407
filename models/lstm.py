"""LSTM and GRU: torch's cells in a residual stack with norms, so that deep stacks train.

    x = embed(tokens, features)
    x = x + out(cell(norm(x)))      each layer; the cell runs over time, and may read a share of the previous position
    x = x + ffn(norm(x))
    logits = head(norm(x))

A cell mixes positions; the feed-forward layer works within a position. Forget gates start with a bias of one
(Jozefowicz et al. 2015). Larger biases remember a header for longer; they help on `recall` and hurt on
`bijection-revisit` and `hmm-sticky`.

Shape suffixes: B sequences, T positions, D width, F features.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from models.base import (
    ARCHS,
    FeedForward,
    Geometry,
    Shift,
    assign_to_muon,
    count_built,
    residual_out,
    solve,
    solve_affine,
    usual_hidden,
)
from models.stack import RecurrentStack
from models.taps import Tap
from tasks.base import Shape

GATES = {nn.LSTM: 4, nn.GRU: 3}


class Layer(nn.Module):
    def __init__(
        self, kind: type[nn.LSTM] | type[nn.GRU], width: int, hidden: int, activation: str, shift: bool
    ) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.shift = Shift(width) if shift else None
        self.cell = kind(width, width, batch_first=True)
        for name, p in self.cell.named_parameters():
            if p.ndim == 2:
                assign_to_muon(p, parts=GATES[kind])
            else:
                nn.init.zeros_(p)
            if name == "bias_ih_l0":  # torch's second gate: the forget gate of an LSTM, the update gate of a GRU
                with torch.no_grad():
                    p[width : 2 * width] = 1.0
        self.out = residual_out(nn.Linear(width, width))
        self.ffn = FeedForward(width, hidden, activation)
        self.h, self.mixed, self.resid = Tap(), Tap(), Tap()

    def forward(self, x_BTD: Tensor, state: list[Tensor] | None = None) -> Tensor:
        """All positions of a sequence, or its next one given a state, which is updated in place.

        The state is the cell's, then the previous position if there is a shift.
        """
        y_BTD = self.norm1(x_BTD)
        if self.shift is not None:
            y_BTD = self.shift(y_BTD) if state is None else self.shift.step(y_BTD[:, 0], state[-1])[:, None]
        if state is None:
            h_BTD, _ = self.cell(y_BTD)
        elif isinstance(self.cell, nn.LSTM):
            h_BTD, state[:2] = self.cell(y_BTD, tuple(state[:2]))
        else:
            h_BTD, state[0] = self.cell(y_BTD, state[0])
        x_BTD = x_BTD + self.mixed(self.out(self.h(h_BTD)))
        return self.resid(x_BTD + self.ffn(self.norm2(x_BTD)))

    def start(self, batch: int, length: int) -> list[Tensor]:
        vectors = 2 if isinstance(self.cell, nn.LSTM) else 1  # an LSTM has a cell state too
        zeros = [self.out.weight.new_zeros(1, batch, self.out.in_features) for _ in range(vectors)]
        return zeros if self.shift is None else [*zeros, self.shift.start(batch)]

    def step(self, x_BD: Tensor, state: list[Tensor]) -> Tensor:
        return self(x_BD[:, None], state)[:, 0]


def build(shape: Shape, params: int, geometry: Geometry, *, kind: type[nn.LSTM] | type[nn.GRU]) -> nn.Module:
    """Half as many layers as the transformer, each with a feed-forward layer of about twice the width."""
    layers = -(-geometry.layers // 2)

    def make(width: int, hidden: int) -> nn.Module:
        blocks = (Layer(kind, width, hidden, geometry.activation, geometry.shift) for _ in range(layers))
        return RecurrentStack(shape, width, blocks)

    def count(width: int, hidden: int) -> int:
        return count_built(partial(make, width, hidden))

    width = solve(lambda n: count(n, usual_hidden(2 * n, geometry.activation)), params)
    return make(width, solve_affine(partial(count, width), params))


ARCHS.add("lstm", note="LSTM cells in a residual stack with norms")(partial(build, kind=nn.LSTM))
ARCHS.add("gru", note="GRU cells in a residual stack with norms")(partial(build, kind=nn.GRU))
