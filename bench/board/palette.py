"""Colours and their order: the same architecture has the same sign in every chart."""

from __future__ import annotations

from collections.abc import Iterable

from models.base import ARCHS

# After Okabe and Ito: darker on white, brighter on black. Six hues and five shapes make thirty signs.
HUES = {
    "light": ("#0072b2", "#d55e00", "#008a64", "#aa4499", "#a97400", "#3a93c4"),
    "dark": ("#4ba3e3", "#ff8a3d", "#2fc79b", "#e58fc4", "#edb52f", "#8fd0f5"),
}
SHAPES = {  # matplotlib's marker, and the site's path within a square of side 2
    "o": "M-.9,0A.9,.9,0,1,1,.9,0A.9,.9,0,1,1,-.9,0Z",
    "s": "M-.8,-.8H.8V.8H-.8Z",
    "^": "M0,-1.05L1,.75H-1Z",
    "D": "M0,-1.15L1.15,0L0,1.15L-1.15,0Z",
    "v": "M0,1.05L1,-.75H-1Z",
}
INKS = {  # `back` is behind figures and cards, `page` behind those of the site
    "light": {"back": "#ffffff", "text": "#16191d", "muted": "#5a6470", "line": "#e1e5ea", "bayes": "#c9d1da",
              "page": "#fbfbfa", "accent": "#00619a", "bad": "#a8260f", "good": "#00694c", "soft": "#eef3f7"},
    "dark": {"back": "#0d1117", "text": "#e8ecf1", "muted": "#9aa5b1", "line": "#2a313a", "bayes": "#4a5563",
             "page": "#0b0e13", "accent": "#6cb8ee", "bad": "#ff9d85", "good": "#4fd3a9", "soft": "#1f262e"},
}  # fmt: skip
# The heat map: one hue from light to dark survives every kind of colour blindness and a grey print; dark is worse.
RAMP = {"light": ("#f2f7fb", "#7fb0d3", "#143d66"), "dark": ("#10202f", "#2f6690", "#b9dcf5")}
LOW, HIGH = 0.001, 1.0  # its ends, as shares of the error of the best predictor that reads nothing
FIRST = (
    "transformer",
    "mlp",
    "lstm",
    "mamba2",
    "gated-deltanet",
    "linear-attention",
)  # one hue each; others repeat them


def order_archs(used: Iterable[str]) -> list[str]:
    """Architectures in the order of their colours and shapes."""
    used = set(used)
    known = [*FIRST, *(arch for arch in ARCHS.names() if arch not in FIRST)]
    return [arch for arch in known if arch in used] + sorted(used - set(known))
