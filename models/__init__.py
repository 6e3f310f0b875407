"""Importing this package imports every module in its folder, and each registers its architectures."""

from bench.registry import load

load(__name__, __path__)
