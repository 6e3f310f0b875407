"""Ctrl-C and SIGTERM: finish the step, keep it, leave. A second Ctrl-C leaves at once.

The first signal only leaves a mark; the training loop reads it between two steps, where the state is whole. A process
that ends this way has exit code 128 + the signal's number: 130 for Ctrl-C, 143 for SIGTERM.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_asked: int | None = None


class Stopped(KeyboardInterrupt):
    """A run that was told to stop, and did so between two steps."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def asked() -> int | None:
    """The signal that asked for an end, if one did."""
    return _asked


def ask(number: int) -> None:
    global _asked
    _asked = number


def check() -> None:
    """Leave here if an end was asked for."""
    if _asked is not None:
        raise Stopped(_asked)


@contextmanager
def watched(aloud: bool = True) -> Iterator[None]:
    """Inside, a first signal leaves its mark; outside, signals do what they did before."""
    global _asked

    def mark(number: int, frame: FrameType | None) -> None:
        again = _asked == signal.SIGINT == number
        if again:
            raise KeyboardInterrupt
        ask(number)
        if aloud:
            sys.stderr.write("bench: stopping after this step; Ctrl-C again leaves at once\n")

    before = {number: signal.signal(number, mark) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        _asked = None
