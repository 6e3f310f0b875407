"""The decoder-only transformer and its trained ablations.

    x = embed(tokens, features) + positions
    x = x + attention(norm(x))          each layer
    x = x + ffn(norm(x))
    logits = head(norm(x))

Pre-norm, biases everywhere, an untied head. It reads a whole sequence at once, or step by step with a cache of keys and
values. Position encodings: learned or sinusoidal vectors, rotated queries and keys (rope), slopes over distance that
exempt the header (alibi), the same with a shift (alibi-shift), or none. The shift adds to each query, key and value a
share of the previous position's, with one learned weight per channel that starts at zero. It is a convolution of width
two; Primer's has width three (So et al. 2021, arXiv:2109.08668), the linear recurrences have width four.

`transformer-plain` is the model of the paper: it keeps the plain block where the settings give the others a shift or
another activation.

An ablation is a constructor argument and is trained from scratch. The parameters that it saves go into the feed-forward
width, so every variant has the same parameter budget.

transformer-looped applies one block as often as the reference has layers (Dehghani et al. 2018, arXiv:1807.03819): the
same depth of computation with one block's parameters, and therefore a wider block.

Shape suffixes: B sequences, T positions, D width, H heads, d head width, C = 3 H d, F features.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from bench.registry import BadInput
from models.base import (
    ARCHS,
    TOLERANCE,
    Embed,
    FeedForward,
    Geometry,
    Shift,
    count_built,
    inner_linear,
    mark_values,
    residual_out,
    solve_affine,
    usual_hidden,
)
from models.kernels.attention import SERVED_WIDTHS, attention, attention_step
from models.taps import Tap
from tasks.base import Shape


class Memory(NamedTuple):
    """The state of attention between two positions."""

    cache_BT2Hd: Tensor  # keys and values so far
    last_BC: Tensor  # the previous position's projection, for the shift; empty without a shift


class Sum(NamedTuple):
    """The state of uniform attention: a mean needs only the sum of the values so far."""

    sum_B1Hd: Tensor
    last_BC: Tensor  # the previous position's values, for the shift; empty without a shift


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, head_width: int, header: int, positions: str, backend: str) -> None:
        super().__init__()
        self.heads, self.head_width, self.header, self.backend = heads, head_width, header, backend
        self.rotate = positions == "rope"
        self.slopes: Tensor | None
        self.register_buffer("slopes", _slopes(heads) if positions.startswith("alibi") else None, persistent=False)
        self.project = mark_values(inner_linear(width, 3 * heads * head_width, parts=3), 2, 3)  # query, key, value
        self.shift = Shift(3 * heads * head_width) if positions == "alibi-shift" else None
        self.out = residual_out(nn.Linear(heads * head_width, width))
        self.qkv, self.z = Tap(), Tap()

    def forward(self, x_BTD: Tensor) -> Tensor:
        B, T, _ = x_BTD.shape
        y_BTC = self.project(x_BTD)
        if self.shift is not None:
            y_BTC = self.shift(y_BTC)
        qkv_BT3Hd = y_BTC.view(B, T, 3, self.heads, self.head_width)
        if self.rotate:
            q, k, v = qkv_BT3Hd.unbind(2)
            qkv_BT3Hd = torch.stack([_rotate(q), _rotate(k), v], dim=2)
        z_BTHd = self.z(attention(self.qkv(qkv_BT3Hd), self.slopes, self.header, self.backend))
        return self.out(z_BTHd.flatten(2))

    def start(self, batch: int, length: int) -> Memory:
        """Memory for the keys and values of `length` positions, and for the last projection if there is a shift."""
        new = self.project.weight.new_zeros
        last_BC = new(batch, 0) if self.shift is None else self.shift.start(batch)
        return Memory(new(batch, length, 2, self.heads, self.head_width), last_BC)

    def state_bytes(self, length: int) -> int:
        return sum(4 * x.numel() for x in self.start(1, length))

    def step(self, x_BD: Tensor, memory: Memory, position: int) -> Tensor:
        y_BC = self.project(x_BD)
        if self.shift is not None:
            y_BC = self.shift.step(y_BC, memory.last_BC)
        qkv_B13Hd = y_BC.view(len(x_BD), 1, 3, self.heads, self.head_width)
        if self.rotate:
            q, k, v = qkv_B13Hd.unbind(2)
            qkv_B13Hd = torch.stack([_rotate(q, position), _rotate(k, position), v], dim=2)
        qkv_B3Hd = self.qkv(qkv_B13Hd)[:, 0]  # a tap sees a step as a sequence of length one
        memory.cache_BT2Hd[:, position] = qkv_B3Hd[:, 1:]
        z_BHd = attention_step(qkv_B3Hd[:, 0], memory.cache_BT2Hd, position + 1, self.slopes, self.header, self.backend)
        return self.out(self.z(z_BHd[:, None])[:, 0].flatten(1))


def _slopes(heads: int) -> Tensor:
    """Slopes from 1, steep enough to find the previous token, towards zero, for tokens far away.

    A single head gets the middle of that range: with the steepest slope it could see only a few positions, and
    transformer-1-head would not measure what several heads are good for.
    """
    return 2.0 ** (-8.0 * (torch.arange(heads) / heads if heads > 1 else torch.tensor([0.5])))


class UniformAttention(nn.Module):
    """Attention with equal weights on all positions so far: it mixes positions but cannot select one."""

    def __init__(self, width: int, heads: int, head_width: int, shift: bool) -> None:
        super().__init__()
        self.heads = heads
        self.value = mark_values(inner_linear(width, heads * head_width))
        self.shift = Shift(heads * head_width) if shift else None
        self.out = residual_out(nn.Linear(heads * head_width, width))
        self.v, self.z = Tap(), Tap()

    def forward(self, x_BTD: Tensor) -> Tensor:
        v_BTC = self.value(x_BTD)
        if self.shift is not None:
            v_BTC = self.shift(v_BTC)
        v_BTHd = self.v(v_BTC.unflatten(2, (self.heads, -1)))
        count_T = torch.arange(1, x_BTD.shape[1] + 1, device=x_BTD.device)
        return self.out(self.z(v_BTHd.cumsum(1) / count_T[:, None, None]).flatten(2))

    def start(self, batch: int, length: int) -> Sum:
        new = self.value.weight.new_zeros
        last_BC = new(batch, 0) if self.shift is None else self.shift.start(batch)
        return Sum(new(batch, 1, self.heads, self.value.out_features // self.heads), last_BC)

    def state_bytes(self, length: int) -> int:
        return sum(4 * x.numel() for x in self.start(1, length))

    def step(self, x_BD: Tensor, memory: Sum, position: int) -> Tensor:
        sum_B1Hd, last_BC = memory
        v_BC = self.value(x_BD)
        if self.shift is not None:
            v_BC = self.shift.step(v_BC, last_BC)
        sum_B1Hd += self.v(v_BC.view_as(sum_B1Hd))
        return self.out(self.z(sum_B1Hd / (position + 1))[:, 0].flatten(1))


class Block(nn.Module):
    def __init__(self, width: int, attn: Attention | UniformAttention | None, ffn: FeedForward | None) -> None:
        super().__init__()
        self.attn, self.ffn = attn, ffn
        self.norm1 = _norm(width) if attn is not None else None
        self.norm2 = _norm(width) if ffn is not None else None
        self.mixed = Tap() if attn is not None else nn.Identity()
        self.resid = Tap()

    def forward(self, x_BTD: Tensor) -> Tensor:
        if self.attn is not None and self.norm1 is not None:
            x_BTD = x_BTD + self.mixed(self.attn(self.norm1(x_BTD)))
        if self.ffn is not None and self.norm2 is not None:
            x_BTD = x_BTD + self.ffn(self.norm2(x_BTD))
        return self.resid(x_BTD)

    def step(self, x_BD: Tensor, memory: Any, position: int) -> Tensor:
        if self.attn is not None and self.norm1 is not None:
            x_BD = x_BD + self.mixed(self.attn.step(self.norm1(x_BD), memory, position)[:, None])[:, 0]
        if self.ffn is not None and self.norm2 is not None:
            x_BD = x_BD + self.ffn(self.norm2(x_BD))
        return self.resid(x_BD[:, None])[:, 0]


def _norm(width: int) -> nn.Module:
    """LayerNorm, left out at widths 1 and 2: of two numbers it keeps only which one is larger."""
    return nn.LayerNorm(width) if width > 2 else nn.Identity()


@dataclass
class State:
    """The state between two positions."""

    position: int
    memory: list[Memory | Sum | None]  # one per block: keys and values, a running sum, or nothing


class Transformer(nn.Module):
    def __init__(
        self,
        shape: Shape,
        *,
        layers: int,
        heads: int,
        head_width: int,
        width: int,
        hidden: int,
        positions: str,
        activation: str,
        backend: str = "sdpa",
        uniform: bool = False,
        attention_off: int = 0,
        loops: int = 1,
    ) -> None:
        super().__init__()
        self.loops = loops
        self.max_length = shape.length(shape.horizon) if positions == "learned" else None
        self.embed = Embed(shape, width)
        self.place = _Places(positions, shape.length(shape.horizon), width)
        self.blocks = nn.ModuleList()
        for layer in range(layers):
            attn: Attention | UniformAttention | None = None
            if layer < layers - attention_off:
                attn = (
                    UniformAttention(width, heads, head_width, positions.endswith("-shift"))
                    if uniform
                    else Attention(width, heads, head_width, shape.header, positions, backend)
                )
            self.blocks.append(Block(width, attn, FeedForward(width, hidden, activation) if hidden else None))
        self.norm = _norm(width)
        self.head = nn.Linear(width, shape.classes)

    def forward(self, tokens_BT: Tensor, features_BTF: Tensor) -> Tensor:
        x_BTD = self.place(self.embed(tokens_BT, features_BTF))
        for block in self._passes():
            x_BTD = block(x_BTD)
        return self.head(self.norm(x_BTD))

    def _passes(self) -> list[Block]:
        """The blocks in the order of application; every pass of a loop has its own keys and values."""
        return [block for block in self.blocks if isinstance(block, Block)] * self.loops

    def start(self, batch: int, length: int) -> State:
        if self.max_length is not None and length > self.max_length:
            raise ValueError(f"{length} positions requested, but this model reads at most {self.max_length}")
        attns = [block.attn for block in self._passes()]
        return State(0, [attn.start(batch, length) if attn is not None else None for attn in attns])

    def step(self, tokens_B: Tensor, features_BF: Tensor, state: State) -> Tensor:
        x_BD = self.place(self.embed(tokens_B[:, None], features_BF[:, None]), state.position)[:, 0]
        for block, memory in zip(self._passes(), state.memory, strict=True):
            x_BD = block.step(x_BD, memory, state.position)
        state.position += 1
        return self.head(self.norm(x_BD))

    def state_bytes(self, length: int) -> int:
        """Keys and values of all layers, and the last projections if there is a shift; for a mean, its sum."""
        return sum(block.attn.state_bytes(length) for block in self._passes() if block.attn is not None)


class _Places(nn.Module):
    """Adds a position vector, if the encoding has one."""

    def __init__(self, positions: str, length: int, width: int) -> None:
        super().__init__()
        self.sinusoidal = positions == "sinusoidal"
        self.learned = nn.Parameter(torch.randn(length, width) * 0.02) if positions == "learned" else None

    def forward(self, x_BTD: Tensor, first: int = 0) -> Tensor:
        T, D = x_BTD.shape[1:]
        if self.learned is not None:
            return x_BTD + self.learned[first : first + T]
        if self.sinusoidal:
            angles = _angles(first, T, -(-D // 2), x_BTD.device)
            return x_BTD + torch.cat([angles.sin(), angles.cos()], dim=1)[:, :D].to(x_BTD.dtype)
        return x_BTD


def _angles(first: int, length: int, pairs: int, device: torch.device) -> Tensor:
    frequency = 10_000.0 ** (-torch.arange(pairs, device=device) / pairs)
    return torch.arange(first, first + length, device=device)[:, None] * frequency


def _rotate(x_BTHd: Tensor, first: int = 0) -> Tensor:
    """Rotary positions (Su et al. 2021): rotate each pair of coordinates by an angle proportional to the position."""
    half = x_BTHd.shape[-1] // 2
    angles_T1d = _angles(first, x_BTHd.shape[1], half, x_BTHd.device)[:, None, :]
    cos, sin = angles_T1d.cos().to(x_BTHd.dtype), angles_T1d.sin().to(x_BTHd.dtype)
    a, b = x_BTHd[..., :half], x_BTHd[..., half:]
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)


def reference(shape: Shape, geometry: Geometry) -> nn.Module:
    """The transformer exactly as the preset describes it; its number of parameters is the budget of all others."""
    return Transformer(
        shape,
        layers=geometry.layers,
        heads=geometry.heads,
        head_width=geometry.width // geometry.heads,
        width=geometry.width,
        hidden=usual_hidden(geometry.ffn, geometry.activation),
        positions=geometry.positions,
        activation=geometry.activation,
        backend=geometry.attention,
    )


def build(
    shape: Shape,
    params: int,
    geometry: Geometry,
    *,
    layers: int | None = None,
    heads: int | None = None,
    positions: str | None = None,
    ffn: bool = True,
    uniform: bool = False,
    attention_off: int = 0,
    looped: bool = False,
) -> nn.Module:
    """The transformer in budget that is nearest to the usual proportions (width = heads x head width)."""
    layers = geometry.layers if layers is None else layers
    heads = geometry.heads if heads is None else heads
    if attention_off >= layers:
        raise BadInput(f"attention off in the top {attention_off} layers needs more than {layers} layers")

    def make(head_width: int, width: int, hidden: int) -> nn.Module:
        return Transformer(
            shape, layers=layers, heads=heads, head_width=head_width, width=width, hidden=hidden,
            positions=geometry.positions if positions is None else positions,
            activation=geometry.activation, backend=geometry.attention, uniform=uniform, attention_off=attention_off,
            loops=geometry.layers if looped else 1,
        )  # fmt: skip

    def count(*size: int) -> int:
        return count_built(partial(make, *size))

    sizes = []
    for head_width in (*SERVED_WIDTHS, *(() if geometry.attention == "triton" else (4, 8))):
        inner = heads * head_width
        if ffn:
            width = geometry.width if heads == 1 else inner
            hidden = solve_affine(partial(count, head_width, width), params)
            strain = abs(math.log(hidden / usual_hidden(4 * width, geometry.activation))) + abs(math.log(width / inner))
        else:
            width, hidden = solve_affine(lambda w, h=head_width: count(h, w, 0), params), 0  # type: ignore[misc]
            strain = abs(math.log(width / inner))
        off_budget = abs(count(head_width, width, hidden) - params) > TOLERANCE * params
        sizes.append((off_budget, strain, (head_width, width, hidden)))
    return make(*min(sizes)[2])


@ARCHS.add("transformer", note="pre-norm transformer: the reference of every row")
def _transformer(shape: Shape, params: int, geometry: Geometry) -> nn.Module:
    return reference(shape, geometry)


@ARCHS.add("transformer-plain", fixed_block=True, note="the plain block whatever the settings: no shift, squared ReLU")
def _plain(shape: Shape, params: int, geometry: Geometry) -> nn.Module:
    positions = geometry.positions.removesuffix("-shift")
    return build(shape, params, replace(geometry, positions=positions, activation="relu2"))


ARCHS.add("transformer-no-attn-top2", note="attention off in the top two layers")(partial(build, attention_off=2))
ARCHS.add("transformer-uniform-attn", note="attention weights replaced by the causal mean; no slopes")(
    partial(build, uniform=True)
)
ARCHS.add("transformer-no-ffn", note="no feed-forward layers")(partial(build, ffn=False))
ARCHS.add("transformer-no-pos", note="no position information")(partial(build, positions="none"))
ARCHS.add("transformer-1-layer", note="one wide layer")(partial(build, layers=1))
ARCHS.add("transformer-1-head", note="one head a layer")(partial(build, heads=1))
ARCHS.add("transformer-looped", note="one block applied as often as the reference has layers")(
    partial(build, layers=1, looped=True)
)
