"""Runs that take turns in one process: each goes on by one training step, then it is the next one's turn.

A run is a generator that yields after every step and returns its result. Alone or among others it does the same
operations in the same order, so its bits are the same. On a GPU each has a stream of its own, and what one launches
runs beside what the others have launched.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")
Turns = Generator[None, None, T]


def finish(run: Turns[T]) -> T:
    """All its turns, one after the other."""
    while True:
        try:
            next(run)
        except StopIteration as end:
            result: T = end.value
            return result
