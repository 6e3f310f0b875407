"""Linear recurrences: the stack of models/stack.py around mixers with a state of fixed size.

linear-attention  phi(q) S / phi(q) z, phi = elu + 1, S and z are sums (Katharopoulos et al. 2020, arXiv:2006.16236)
mamba2            decays and step sizes read from the input, keys and queries shared by all heads, a skip and a gate
                  (Dao and Gu 2024, arXiv:2405.21060)
gated-deltanet    keys of unit length; a new value replaces the stored one; decay and a gate
                  (Yang et al. 2024, arXiv:2412.06464)
gated-deltanet-signed
                  the same with transitions whose eigenvalues may be negative (Grazzi et al. 2024, arXiv:2411.12537)
hybrid            gated-deltanet with attention in its middle layer

A short causal convolution in front of each recurrence shows the order of the tokens; there are no position encodings.
There are half as many heads as in the transformer, each twice as wide, because the capacity of a state grows with the
width of its keys.

Shape suffixes: B sequences, T positions, D width, C channels, 3 and 4 positions of the convolution.
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
    Geometry,
    count_built,
    inner_linear,
    mark_values,
    residual_out,
    solve_affine,
    usual_hidden,
)
from models.kernels.attention import SERVED_WIDTHS
from models.kernels.recurrence import decayed_sum, decayed_sum_step, delta_rule, delta_rule_step
from models.stack import Layer, RecurrentStack
from models.taps import Tap
from models.transformer import Attention
from tasks.base import Shape

TAPS = 4  # width of the short convolution: the present position and the three before it
FORGOTTEN = (0.001, 0.1)  # share of its state that a head forgets per step at initialisation, from slowest to fastest


class _Convolve(torch.autograd.Function):
    """Adds one tap after another into one buffer; autograd would pad, multiply and fill with zeros for every tap."""

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
    """A causal depthwise convolution, initialised near the identity."""

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
    """Base class of the three recurrences. A subclass sets the sizes of its state and implements one step."""

    heads: int
    keys: int  # width of a key
    values: int  # width of a value, including the normaliser of linear attention
    recurrence: str  # the function of models/kernels/recurrence.py that it calls
    conv: ShortConv

    def step(self, x_BD: Tensor, state: list[Any]) -> Tensor:
        raise NotImplementedError

    def start(self, batch: int, length: int) -> list[Any]:
        return [self.conv.start(batch), self.conv.weight.new_zeros(batch, self.heads, self.keys, self.values)]


class LinearAttention(Mixer):
    recurrence = "decayed_sum"

    def __init__(self, width: int, heads: int, head_width: int) -> None:
        super().__init__()
        self.heads, self.keys, self.values = heads, head_width, head_width + 1
        self.project = inner_linear(width, 3 * heads * head_width, bias=False, parts=3)  # query, key, value
        mark_values(self.project, 2, 3)
        self.conv = ShortConv(3 * heads * head_width)
        self.out = residual_out(nn.Linear(heads * head_width, width, bias=False))
        self.qkv, self.z = Tap(), Tap()

    def _read(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        q, k, v = self.qkv(x.unflatten(-1, (3, self.heads, self.keys))).unbind(-3)
        q, k = elu(q) + 1, elu(k) + 1
        return q, k, pad(v, (0, 1), value=1.0), torch.zeros_like(q[..., 0])  # the appended 1 sums the weights

    def _write(self, sums: Tensor) -> Tensor:
        return self.out(self.z(sums[..., :-1] / sums[..., -1:].clamp(min=1e-6)).flatten(-2))

    def forward(self, x_BTD: Tensor) -> Tensor:
        return self._write(decayed_sum(*self._read(self.conv(self.project(x_BTD)))))

    def step(self, x_BD: Tensor, state: list[Any]) -> Tensor:
        x_BC, state[0] = self.conv.step(self.project(x_BD), state[0])
        sums, state[1] = decayed_sum_step(*self._read(x_BC), state[1])
        return self._write(sums)


class Mamba2(Mixer):
    """The state decays by exp(-a dt) per step and inputs are scaled by dt.

    dt starts ten times higher than in Mamba, because sequences are short here. a starts low enough for some heads to
    remember a whole sequence.
    """

    recurrence = "decayed_sum"

    def __init__(self, width: int, heads: int, head_width: int) -> None:
        super().__init__()
        inner = 2 * heads * head_width
        self.heads, self.keys, self.values = heads, heads * head_width, 2 * head_width
        self.project = inner_linear(width, 2 * inner, bias=False, parts=2)  # gate, value
        mark_values(self.project, 1, 2)
        self.address = inner_linear(width, 2 * self.keys, bias=False, parts=2)  # query, key
        self.rate = inner_linear(width, heads, bias=False)
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
    recurrence = "delta_rule"

    def __init__(self, width: int, heads: int, head_width: int) -> None:
        super().__init__()
        self.heads, self.keys, self.values = heads, head_width, head_width
        self.project = inner_linear(width, 3 * heads * head_width, bias=False, parts=3)  # query, key, value
        mark_values(self.project, 2, 3)
        self.gate = inner_linear(width, heads * head_width, bias=False)
        self.rate = inner_linear(width, 2 * heads, bias=False, parts=2)  # decay, strength
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


class SignedDeltaNet(GatedDeltaNet):
    """A write corrects up to twice the error, so that a transition's eigenvalues lie between -1 and 1.

    A permutation has eigenvalues other than 0 and 1: without the sign, one step cannot swap two entries of the state.
    """

    def _read(self, x: Tensor, rate: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        q, k, v, g, strength = super()._read(x, rate)
        return q, k, v, g, 2 * strength


class Attending(nn.Module):
    """Attention as a mixer. Its state is the number of positions read so far, with their keys and values."""

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


def _spread(heads: int, least: float, most: float) -> Tensor:
    """One number per head, evenly spaced in the logarithm."""
    middle = torch.tensor([(least * most) ** 0.5])
    return torch.logspace(math.log10(least), math.log10(most), heads) if heads > 1 else middle


def _before_softplus(x: Tensor) -> Tensor:
    """The inverse of softplus."""
    return x.expm1().log()


def build(shape: Shape, params: int, geometry: Geometry, *, mixer: type[Mixer], attend: bool = False) -> nn.Module:
    """The size in budget that is nearest to the transformer's proportions (a feed-forward four times the width)."""
    layers, heads = geometry.layers, -(-geometry.heads // 2)

    def make(head_width: int, hidden: int) -> nn.Module:
        width = geometry.heads * head_width
        mixers: list[Mixer | Attending] = [mixer(width, heads, width // heads) for _ in range(layers)]
        if attend:
            attention = Attention(
                width, geometry.heads, head_width, shape.header, geometry.positions, geometry.attention
            )
            mixers[layers // 2] = Attending(attention)
        # the mixers are made before the embedding: published runs began with random numbers in this order
        return RecurrentStack(shape, width, (Layer(width, m, hidden, geometry.activation) for m in mixers))

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
ARCHS.add("gated-deltanet-signed", triton=True, note="the same with eigenvalues from -1 to 1: it can swap entries")(
    partial(build, mixer=SignedDeltaNet)
)
ARCHS.add("hybrid", triton=True, note="gated-deltanet with attention in the middle layer")(
    partial(build, mixer=GatedDeltaNet, attend=True)
)
