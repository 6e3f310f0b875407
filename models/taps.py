"""Named places in a model where activations can be read or replaced.

A Tap is the identity and has no effect outside `record` and `edit`. Its name is its path in the model, for example
`blocks.0.attn.qkv`.

    with record(model, "blocks.*.resid") as seen:
        model(tokens, features)
    seen["blocks.0.resid"]                                  # [B, T, D]

    with edit(model, {"blocks.0.attn.z": torch.zeros_like}):
        model(tokens, features)                             # without layer 0's attention
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import Any

from torch import Tensor, nn

from bench.registry import unknown


class Tap(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x


def tap_names(model: nn.Module) -> list[str]:
    return [name for name, module in model.named_modules() if isinstance(module, Tap)]


def _select(model: nn.Module, pattern: str) -> dict[str, Tap]:
    taps = {name: module for name, module in model.named_modules() if isinstance(module, Tap)}
    chosen = {name: tap for name, tap in taps.items() if fnmatchcase(name, pattern)}
    if not chosen:
        raise unknown("tap", pattern, taps)
    return chosen


@contextmanager
def record(model: nn.Module, *patterns: str) -> Iterator[dict[str, Tensor]]:
    """Collect the activations at the matching taps; a later forward pass overwrites an earlier one."""
    seen: dict[str, Tensor] = {}

    def keep(name: str) -> Callable[..., None]:
        def hook(_module: nn.Module, _inputs: Any, output: Tensor) -> None:
            seen[name] = output

        return hook

    chosen = {name: tap for pattern in patterns for name, tap in _select(model, pattern).items()}
    handles = [tap.register_forward_hook(keep(name)) for name, tap in chosen.items()]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def edit(model: nn.Module, changes: Mapping[str, Callable[[Tensor], Tensor]]) -> Iterator[None]:
    """Replace the activations at the matching taps by a function of them."""

    def replace(change: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
        return lambda _module, _inputs, output: change(output)

    pairs = [(tap, change) for pattern, change in changes.items() for tap in _select(model, pattern).values()]
    handles = [tap.register_forward_hook(replace(change)) for tap, change in pairs]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
