"""The stack of layers around any mixer, and the decorator that makes an architecture of one.

    x = embed(tokens, features)
    x = x + mixer(norm(x))          each layer; the mixer may read a share of the previous position
    x = x + ffn(norm(x))
    logits = head(norm(x))

A mixer is a module that maps [B, T, D] to [B, T, D] without looking ahead; `make(width)` builds one. With `start` and
`step` it also reads one position at a time, and then the whole model does:

start(batch, length)  an empty state for B sequences of T positions: tensors and numbers, in lists, tuples or dicts
step(x_BD, state)     the next position's output [B, D]; it updates the state in place

Shape suffixes: B sequences, T positions, D width, F features.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from functools import partial, update_wrapper
from typing import Any, Protocol, cast

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
    assign_to_muon,
    count_built,
    solve,
    solve_affine,
    usual_hidden,
)
from models.taps import Tap
from tasks.base import Shape

Make = Callable[[int], nn.Module]
TRIED = 9  # positions on which a mixer is tried: blocks of 2, 3, 4 and 5 are cut
AGREE = 1e-4  # of the largest output: a parallel form adds in another order than a step


class Layer(nn.Module):
    def __init__(self, width: int, mixer: nn.Module, hidden: int, activation: str, shift: bool = False) -> None:
        super().__init__()
        self.norm1, self.shift = nn.LayerNorm(width), Shift(width) if shift else None
        self.mixer = mixer
        self.norm2, self.ffn = nn.LayerNorm(width), FeedForward(width, hidden, activation)
        self.mixed, self.resid = Tap(), Tap()

    def forward(self, x_BTD: Tensor) -> Tensor:
        y_BTD = self.norm1(x_BTD)
        if self.shift is not None:
            y_BTD = self.shift(y_BTD)
        x_BTD = x_BTD + self.mixed(self.mixer(y_BTD))
        return self.resid(x_BTD + self.ffn(self.norm2(x_BTD)))

    def start(self, batch: int, length: int) -> list[Any]:
        """The mixer's state, then the previous position if there is a shift."""
        state = [cast(Steps, self.mixer).start(batch, length)]
        return state if self.shift is None else [*state, self.shift.start(batch)]

    def step(self, x_BD: Tensor, state: list[Any]) -> Tensor:
        y_BD = self.norm1(x_BD)
        if self.shift is not None:
            y_BD = self.shift.step(y_BD, state[1])
        x_BD = x_BD + self.mixed(cast(Steps, self.mixer).step(y_BD, state[0]))
        return self.resid(x_BD + self.ffn(self.norm2(x_BD)))


class Steps(Protocol):
    """A mixer, or a layer, that can read one position at a time."""

    def start(self, batch: int, length: int) -> Any: ...
    def step(self, x_BD: Tensor, state: Any) -> Tensor: ...


class Stack(nn.Module):
    """Layers between an embedding and a head. An iterator makes its layers here, after the embedding."""

    max_length = None

    def __init__(self, shape: Shape, width: int, layers: Iterable[nn.Module]) -> None:
        super().__init__()
        self.embed = Embed(shape, width)
        self.blocks = nn.ModuleList(layers)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, shape.classes)

    def forward(self, tokens_BT: Tensor, features_BTF: Tensor) -> Tensor:
        x_BTD = self.embed(tokens_BT, features_BTF)
        for block in self.blocks:
            x_BTD = block(x_BTD)
        return self.head(self.norm(x_BTD))


class RecurrentStack(Stack):
    """A stack whose layers can all read one position at a time."""

    def _steps(self) -> list[Steps]:
        return cast(list[Steps], list(self.blocks))

    def start(self, batch: int, length: int) -> list[Any]:
        return [block.start(batch, length) for block in self._steps()]

    def step(self, tokens_B: Tensor, features_BF: Tensor, state: list[Any]) -> Tensor:
        x_BD = self.embed(tokens_B, features_BF)
        for block, of_block in zip(self._steps(), state, strict=True):
            x_BD = block.step(x_BD, of_block)
        return self.head(self.norm(x_BD))

    def state_bytes(self, length: int) -> int:
        return sum(x.nbytes for x in _tensors(self.start(1, length)))


def _tensors(state: Any) -> Iterator[Tensor]:
    """The tensors of a state, however they are nested."""
    match state:
        case Tensor():
            yield state
        case list() | tuple():
            for part in state:
                yield from _tensors(part)
        case dict():
            yield from _tensors(list(state.values()))
        case None | int() | float():
            pass
        case _:
            raise BadInput(f"a state holds tensors and numbers in lists, tuples or dicts, not a {type(state).__name__}")


def mixer(name: str, *, note: str, multiple: int = 8, cuda: bool = False) -> Callable[[Make], Make]:
    """Register an architecture: the stack around what `make(width)` returns, a class or a function.

    Widths are multiples of `multiple`. A mixer that runs on CUDA only says so with `cuda`.
    """

    def register(make: Make) -> Make:
        entry = update_wrapper(partial(build, make=make, multiple=multiple, cuda=cuda), make)
        ARCHS.add(name, note=note, cuda=cuda)(entry)
        return make

    return register


def build(
    shape: Shape, params: int, geometry: Geometry, *, make: Make, multiple: int = 8, cuda: bool = False
) -> nn.Module:
    """As many layers as the transformer, at the width whose feed-forward layer is nearest to four times as wide."""

    def assemble(width: int, hidden: int) -> nn.Module:
        mixers = [_make_mixer(make, width) for _ in range(geometry.layers)]
        kind = RecurrentStack if all(hasattr(m, "step") for m in mixers) else Stack
        return kind(shape, width, (Layer(width, m, hidden, geometry.activation, geometry.shift) for m in mixers))

    def count(width: int, hidden: int) -> int:
        return count_built(partial(assemble, width, hidden))

    def usual(width: int) -> int:
        return usual_hidden(4 * width, geometry.activation)

    nearest = solve(lambda n: count(n * multiple, usual(n * multiple)), params)
    sizes = []
    for width in (n * multiple for n in range(max(1, nearest - 1), nearest + 2)):
        hidden = solve_affine(partial(count, width), params)
        off_budget = abs(count(width, hidden) - params) > TOLERANCE * params
        sizes.append((off_budget, abs(math.log(hidden / usual(width))), (width, hidden)))
    width, hidden = min(sizes)[2]
    if not cuda:
        require_mixer(make, width)
    return assemble(width, hidden)


def _make_mixer(make: Make, width: int) -> nn.Module:
    """One mixer. It lies between embedding and head, so Muon trains every matrix that does not say otherwise."""
    made = make(width)
    if not isinstance(made, nn.Module):
        raise BadInput(f"its mixer is a {type(made).__name__}, not a torch module")
    if hasattr(made, "step") != hasattr(made, "start"):
        raise BadInput("its mixer has one of start and step: it needs both, or neither")
    for p in made.parameters():
        if p.ndim == 2 and not hasattr(p, "optimizer"):
            assign_to_muon(p)
    return made


@torch.no_grad()
def require_mixer(make: Make, width: int) -> None:
    """Refuse a mixer that returns another shape, sees the future, or whose steps differ from its forward pass.

    It is tried with random weights: branches that start at zero hide what they do.
    """
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.manual_seed(0)
        tried = _make_mixer(make, width).eval()
        for p in tried.parameters():
            p.add_(0.1 * torch.randn_like(p))
        x_BTD = torch.randn(2, TRIED, width)
        y_BTD = tried(x_BTD)
        if not isinstance(y_BTD, Tensor) or y_BTD.shape != x_BTD.shape:
            found = list(y_BTD.shape) if isinstance(y_BTD, Tensor) else f"a {type(y_BTD).__name__}"
            raise BadInput(f"its mixer returns {found} for [2, {TRIED}, {width}], where the same shape is expected")
        bound = AGREE * (1.0 + y_BTD.abs().max())
        # one row for each position after which the input changes
        before_TT = torch.ones(TRIED, TRIED).tril().bool()[:, :, None]
        changed_TTD = tried(torch.where(before_TT, x_BTD[0], x_BTD[1]))
        if not ((changed_TTD - y_BTD[0]).abs() <= bound)[before_TT.squeeze(2)].all():
            raise BadInput("its mixer sees the future: what follows a position changes its output")
        if hasattr(tried, "step"):
            stepping = cast(Steps, tried)
            state = stepping.start(2, TRIED)
            list(_tensors(state))  # raises for one whose size cannot be told
            steps_BTD = torch.stack([stepping.step(x_BD, state) for x_BD in x_BTD.unbind(1)], dim=1)
            if steps_BTD.shape != y_BTD.shape or ((steps_BTD - y_BTD).abs() > bound).any():
                raise BadInput("its mixer's steps differ from its forward pass")
