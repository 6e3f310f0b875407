"""How numbers and foreign text are written for people: on a terminal, in Markdown, on a page."""

from __future__ import annotations

from math import isinf


def number(value: float) -> str:
    """Four decimals, or two digits of what is smaller; a billionth of a bit is the rounding of float64."""
    if isinf(value):
        return "∞"
    if abs(value) < 1e-9:
        return "0"
    return f"{value:.4f}" if abs(value) >= 0.001 else f"{value:.1e}"


def plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def significant(value: float) -> str:
    """Four significant digits, or two of what is smaller than a thousandth."""
    return f"{value:.2g}" if abs(value) < 0.001 else f"{value:.4g}"


def printable(text: object, limit: int = 200) -> str:
    """Text from a record on one line, without invisible signs."""
    return "".join(sign for sign in " ".join(str(text).split())[:limit] if sign.isprintable())


def plain(text: object, limit: int = 200) -> str:
    """The same for Markdown: it can neither break a table nor carry markup or a link."""
    safe = printable(text, limit)
    for mark in "\\`*_{}[]<>#|!~&@":
        safe = safe.replace(mark, "\\" + mark)
    return safe.replace("://", "\\://").replace("www.", "www\\.")
