"""Linear recurrences: a transformer's blocks with attention replaced by a state of fixed size.

    x = embed(tokens, features)
    x = x + mixer(norm(x))          each layer
    x = x + ffn(norm(x))
    logits = head(norm(x))

linear-attention  phi(q) S / phi(q) z, phi = elu + 1, S and z plain sums (Katharopoulos et al. 2020, arXiv:2006.16236)
mamba2            decays and step sizes read from the input, keys and queries shared by all heads, a skip and a gate
                  (Dao and Gu 2024, arXiv:2405.21060)
gated-deltanet    unit keys whose stored value is replaced, with decay and a gate (Yang et al. 2024, arXiv:2412.06464)
hybrid            gated-deltanet with attention in its middle layer

Order is seen through a short causal convolution in front of each recurrence, not through positions. Heads are half as
many as the transformer's and twice as wide: the capacity of a state grows with the width of its keys.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import elu, normalize, pad, silu, softplus

from models.base import (
    ARCHS,
    TOLERANCE,
    Embed,
    FeedForward,
    Geometry,
    count_built,
    residual_out,
    solve_affine,
    usual_hidden,
)
from models.kernels.attention import SERVED_WIDTHS
from models.kernels.recurrence import decayed_sum, decayed_sum_step, delta_rule, delta_rule_step
from models.taps import Tap
from models.transformer import Attention
from tasks.base import Shape

TAPS = 4  # positions that a short convolution sees: the present and three before it
FORGOTTEN = (0.001, 0.1)  # shares of its state that a head forgets in a step, at the start: the least and the most


class _Convolve(torch.autograd.Function):
    """Each tap in turn, in one buffer: autograd's own way pads, multiplies and fills with zeros once a tap."""

    @staticmethod
    def forward(ctx: Any, x_BTC: Tensor, weight_4C: Tensor) -> Tensor:
        padded, T = pad(x_BTC, (0, 0, TAPS - 1, 0)), x_BTC.shape[1]
        ctx.save_for_backward(padded, weight_4C)
        out = weight_4C[0] * padded[:, :T]
        for i in range(1, TAPS):
            out += weight_4C[i] * padded[:, i : i + T]
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        (grad_BTC,), (padded, weight_4C) = grads, ctx.saved_tensors
        T = grad_BTC.shape[1]
        d_padded, d_weight = torch.zeros_like(padded), torch.empty_like(weight_4C)
        for i in reversed(range(TAPS)):
            d_weight[i] = (grad_BTC * padded[:, i : i + T]).sum((0, 1))
            d_padded[:, i : i + T] += weight_4C[i] * grad_BTC
        return d_padded[:, TAPS - 1 :], d_weight


class ShortConv(nn.Module):
    """A causal convolution of each channel by itself, starting as the identity."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        start = torch.zeros(channels, 1, TAPS)
        start[:, :, -1] = 1.0
        self.weight = nn.Parameter(start + 0.1 * torch.randn_like(start))

    def forward(self, x_BTC: Tensor) -> Tensor:
        out_BTC: Tensor = _Convolve.apply(x_BTC, self.weight[:, 0].T.contiguous())
        return out_BTC

    def start(self, batch: int) -> Tensor:
        return self.weight.new_zeros(batch, TAPS - 1, self.weight.shape[0])

    def step(self, x_BC: Tensor, past_B3C: Tensor) -> tuple[Tensor, Tensor]:
        seen_B4C = torch.cat([past_B3C, x_BC[:, None]], dim=1)
        return (seen_B4C * self.weight[:, 0].T).sum(1), seen_B4C[:, 1:]


class Mixer(nn.Module):
    """What the three recurrences share. A subclass says how much it carries and what it does at each position."""

    heads: int
    keys: int  # width of a key
    values: int  # width of a value, with the normaliser where there is one
    conv: ShortConv

    def step(self, x_BD: Tensor, state: list[Any]) -> Tensor:
        raise NotImplementedError

    def start(self, batch: int, length: int) -> list[Any]:
        return [self.conv.start(batch), self.conv.weight.new_zeros(batch, self.heads, self.keys, self.values)]

    def state_bytes(self, length: int) -> int:
        return 4 * ((TAPS - 1) * self.conv.weight.shape[0] + self.heads * self.keys * self.values)


class LinearAttention(Mixer):
    def __init__(self, width: int, heads: int, head_width: int) -> None:
        super().__init__()
        self.heads, self.keys, self.values = heads, head_width, head_width + 1
        self.project = nn.Linear(width, 3 * heads * head_width, bias=False)
        self.project.weight.parts = 3  # type: ignore[attr-defined]  # three maps in one matrix, for Muon to tell apart
        self.conv = ShortConv(3 * heads * head_width)
        self.out = residual_out(nn.Linear(heads * head_width, width, bias=False))
        self.qkv, self.z = Tap(), Tap()

    def _read(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        q, k, v = self.qkv(x.unflatten(-1, (3, self.heads, self.keys))).unbind(-3)
        q, k = elu(q) + 1, elu(k) + 1
        return q, k, pad(v, (0, 1), value=1.0), torch.zeros_like(q[..., 0])  # a last value of one sums the weights

    def _write(self, sums: Tensor) -> Tensor:
        return self.out(self.z(sums[..., :-1] / sums[..., -1:].clamp(min=1e-6)).flatten(-2))

    def forward(self, x_BTD: Tensor) -> Tensor:
        return self._write(decayed_sum(*self._read(self.conv(self.project(x_BTD)))))

    def step(self, x_BD: Tensor, state: list[Any]) -> Tensor:
        x_BC, state[0] = self.conv.step(self.project(x_BD), state[0])
        sums, state[1] = decayed_sum_step(*self._read(x_BC), state[1])
        return self._write(sums)


class Mamba2(Mixer):
    """What is written is scaled by dt, ten times higher than Mamba's at the start, since sequences here are short; what
    is forgotten by a dt, and a starts so low that some heads keep a whole sequence."""

    def __init__(self, width: int, heads: int, head_width: int) -> None:
        super().__init__()
        inner = 2 * heads * head_width
        self.heads, self.keys, self.values = heads, heads * head_width, 2 * head_width
        self.project = nn.Linear(width, 2 * inner, bias=False)
        self.project.weight.parts = 2  # type: ignore[attr-defined]  # gate, value
        self.address = nn.Linear(width, 2 * self.keys, bias=False)
        self.address.weight.parts = 2  # type: ignore[attr-defined]  # query, key
        self.rate = nn.Linear(width, heads, bias=False)
        self.conv = ShortConv(inner + 2 * self.keys)
        dt = _spread(heads, 0.05, 0.5)
        self.log_a = nn.Parameter((_spread(heads, *FORGOTTEN) / dt).log())
        self.rate_bias = nn.Parameter(_before_softplus(dt))
        self.skip = nn.Parameter(torch.ones(heads))
        self.norm = nn.RMSNorm(inner, eps=1e-5)
        self.out = residual_out(nn.Linear(inner, width, bias=False))
        self.qkv, self.z = Tap(), Tap()

    def _project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        gate, value = self.project(x).chunk(2, dim=-1)
        dt = softplus(self.rate(x) + self.rate_bias)
        return gate, torch.cat([value, self.address(x)], dim=-1), dt

    def _read(self, x: Tensor, dt: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        v, q, k = self.qkv(x).split([self.heads * self.values, self.keys, self.keys], dim=-1)
        q, k = (a.unsqueeze(-2).expand(*a.shape[:-1], self.heads, self.keys) for a in (q, k))
        v = v.unflatten(-1, (self.heads, self.values))
        return q, k, v * dt[..., None], -self.log_a.exp() * dt

    def _write(self, sums: Tensor, x: Tensor, gate: Tensor) -> Tensor:
        v = x[..., : self.heads * self.values].unflatten(-1, (self.heads, self.values))
        z = self.z(sums + self.skip[:, None] * v).flatten(-2)
        return self.out(self.norm(z * silu(gate)))

    def forward(self, x_BTD: Tensor) -> Tensor:
        gate, x, dt = self._project(x_BTD)
        x = silu(self.conv(x))
        return self._write(decayed_sum(*self._read(x, dt)), x, gate)

    def step(self, x_BD: Tensor, state: list[Any]) -> Tensor:
        gate, x, dt = self._project(x_BD)
        x, state[0] = self.conv.step(x, state[0])
        x = silu(x)
        sums, state[1] = decayed_sum_step(*self._read(x, dt), state[1])
        return self._write(sums, x, gate)


class GatedDeltaNet(Mixer):
    def __init__(self, width: int, heads: int, head_width: int) -> None:
        super().__init__()
        self.heads, self.keys, self.values = heads, head_width, head_width
        self.project = nn.Linear(width, 3 * heads * head_width, bias=False)
        self.project.weight.parts = 3  # type: ignore[attr-defined]
        self.gate = nn.Linear(width, heads * head_width, bias=False)
        self.rate = nn.Linear(width, 2 * heads, bias=False)
        self.rate.weight.parts = 2  # type: ignore[attr-defined]  # decay, strength
        self.conv = ShortConv(3 * heads * head_width)
        self.log_a = nn.Parameter(torch.zeros(heads))
        self.rate_bias = nn.Parameter(_before_softplus(_spread(heads, *FORGOTTEN)))
        self.norm = nn.RMSNorm(head_width, eps=1e-5)
        self.out = residual_out(nn.Linear(heads * head_width, width, bias=False))
        self.qkv, self.z = Tap(), Tap()

    def _read(self, x: Tensor, rate: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        q, k, v = self.qkv(x.unflatten(-1, (3, self.heads, self.keys))).unbind(-3)
        decay, strength = rate.chunk(2, dim=-1)
        g = -self.log_a.exp() * softplus(decay + self.rate_bias)
        return normalize(q, dim=-1), normalize(k, dim=-1), v, g, strength.sigmoid()

    def _write(self, sums: Tensor, gate: Tensor) -> Tensor:
        return self.out(self.norm(self.z(sums)).flatten(-2) * silu(gate))

    def forward(self, x_BTD: Tensor) -> Tensor:
        read = self._read(silu(self.conv(self.project(x_BTD))), self.rate(x_BTD))
        return self._write(delta_rule(*read), self.gate(x_BTD))

    def step(self, x_BD: Tensor, state: list[Any]) -> Tensor:
        x_BC, state[0] = self.conv.step(self.project(x_BD), state[0])
        sums, state[1] = delta_rule_step(*self._read(silu(x_BC), self.rate(x_BD)), state[1])
        return self._write(sums, self.gate(x_BD))


class Attending(nn.Module):
    """Attention as a mixer; its state is how many positions it has read, with their keys and values."""

    def __init__(self, attend: Attention) -> None:
        super().__init__()
        self.attend = attend

    def forward(self, x_BTD: Tensor) -> Tensor:
        return self.attend(x_BTD)

    def start(self, batch: int, length: int) -> list[Any]:
        return [0, self.attend.start(batch, length)]

    def step(self, x_BD: Tensor, state: list[Any]) -> Tensor:
        position, memory = state
        state[0] = position + 1
        return self.attend.step(x_BD, memory, position)

    def state_bytes(self, length: int) -> int:
        return self.attend.state_bytes(length)


class Layer(nn.Module):
    def __init__(self, width: int, mixer: Mixer | Attending, hidden: int, activation: str) -> None:
        super().__init__()
        self.norm1, self.mixer = nn.LayerNorm(width), mixer
        self.norm2, self.ffn = nn.LayerNorm(width), FeedForward(width, hidden, activation)
        self.mixed, self.resid = Tap(), Tap()

    def forward(self, x_BTD: Tensor) -> Tensor:
        x_BTD = x_BTD + self.mixed(self.mixer(self.norm1(x_BTD)))
        return self.resid(x_BTD + self.ffn(self.norm2(x_BTD)))

    def step(self, x_BD: Tensor, state: list[Any]) -> Tensor:
        x_BD = x_BD + self.mixed(self.mixer.step(self.norm1(x_BD), state))
        return self.resid(x_BD + self.ffn(self.norm2(x_BD)))


class Linear(nn.Module):
    max_length = None

    def __init__(self, shape: Shape, width: int, mixers: list[Mixer | Attending], hidden: int, activation: str) -> None:
        super().__init__()
        self.embed = Embed(shape, width)
        self.blocks = nn.ModuleList(Layer(width, mixer, hidden, activation) for mixer in mixers)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, shape.classes)

    def forward(self, tokens_BT: Tensor, features_BTF: Tensor) -> Tensor:
        x_BTD = self.embed(tokens_BT, features_BTF)
        for block in self.blocks:
            x_BTD = block(x_BTD)
        return self.head(self.norm(x_BTD))

    def _layers(self) -> list[Layer]:
        return [block for block in self.blocks if isinstance(block, Layer)]

    def state_bytes(self, length: int) -> int:
        """What the recurrences have stored, what their convolutions still see, and what attention remembers."""
        return sum(layer.mixer.state_bytes(length) for layer in self._layers())

    def start(self, batch: int, length: int) -> list[list[Any]]:
        return [layer.mixer.start(batch, length) for layer in self._layers()]

    def step(self, tokens_B: Tensor, features_BF: Tensor, state: list[list[Any]]) -> Tensor:
        x_BD = self.embed(tokens_B, features_BF)
        for layer, of_layer in zip(self._layers(), state, strict=True):
            x_BD = layer.step(x_BD, of_layer)
        return self.head(self.norm(x_BD))


def _spread(heads: int, least: float, most: float) -> Tensor:
    """One number a head, evenly in their logs."""
    middle = torch.tensor([(least * most) ** 0.5])
    return torch.logspace(math.log10(least), math.log10(most), heads) if heads > 1 else middle


def _before_softplus(x: Tensor) -> Tensor:
    return x.expm1().log()


def build(shape: Shape, params: int, geometry: Geometry, *, mixer: type[Mixer], attend: bool = False) -> nn.Module:
    """As near to the transformer's proportions (a feed-forward four times the width) as the budget allows."""
    layers, heads = geometry.layers, -(-geometry.heads // 2)

    def make(head_width: int, hidden: int) -> nn.Module:
        width = geometry.heads * head_width
        mixers: list[Mixer | Attending] = [mixer(width, heads, width // heads) for _ in range(layers)]
        if attend:
            attention = Attention(
                width, geometry.heads, head_width, shape.header, geometry.positions, geometry.attention
            )
            mixers[layers // 2] = Attending(attention)
        return Linear(shape, width, mixers, hidden, geometry.activation)

    def count(*size: int) -> int:
        return count_built(partial(make, *size))

    sizes = []
    for head_width in (*SERVED_WIDTHS, *(() if attend and geometry.attention == "triton" else (4, 8, 12, 20, 40))):
        hidden = solve_affine(partial(count, head_width), params)
        off_budget = abs(count(head_width, hidden) - params) > TOLERANCE * params
        strain = abs(math.log(hidden / usual_hidden(4 * geometry.heads * head_width, geometry.activation)))
        sizes.append((off_budget, strain, (head_width, hidden)))
    return make(*min(sizes)[2])


ARCHS.add("linear-attention", triton=True, note="sums instead of softmax: a state of fixed size")(
    partial(build, mixer=LinearAttention)
)
ARCHS.add("mamba2", triton=True, note="state-space duality: scalar decays read from the input")(
    partial(build, mixer=Mamba2)
)
ARCHS.add("gated-deltanet", triton=True, note="a state whose entries are replaced, with decay")(
    partial(build, mixer=GatedDeltaNet)
)
ARCHS.add("hybrid", triton=True, note="gated-deltanet with attention in the middle layer")(
    partial(build, mixer=GatedDeltaNet, attend=True)
)
