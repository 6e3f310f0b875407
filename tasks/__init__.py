"""Every module in this folder registers its tasks when imported; a new file needs no other line."""

from bench.registry import load

load(__name__, __path__)
