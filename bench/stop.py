"""Ctrl-C and SIGTERM: finish the current step, save it, exit. A second Ctrl-C exits at once.

The first signal is only noted. The training loop checks for it between two steps, where the state is complete. A
process that ends this way has exit code 128 + the signal's number: 130 for Ctrl-C, 143 for SIGTERM.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_requested: int | None = None


class Stopped(KeyboardInterrupt):
    """A run was asked to stop and did so between two steps."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def requested() -> int | None:
    """The number of the signal that asked this process to stop, if one did."""
    return _requested


def request(number: int) -> None:
    """Ask this process to stop, as the signal with this number would."""
    global _requested
    _requested = number


def check() -> None:
    """Raise Stopped if a stop was requested."""
    if _requested is not None:
        raise Stopped(_requested)


@contextmanager
def catch_signals(announce: bool = True) -> Iterator[None]:
    """Inside this block a first signal is noted; afterwards signals are handled as before."""
    global _requested

    def handle(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and _requested == signal.SIGINT:
            raise KeyboardInterrupt
        request(number)
        if announce:
            sys.stderr.write("bench: stopping after this step; press Ctrl-C again to exit at once\n")

    previous = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        _requested = None
