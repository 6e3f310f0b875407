"""Do values unfurl along a low-dimensional curve, and does posterior entropy run along it?

Vectors at the scored positions, heads side by side, centred: values (what attention would copy from there), outputs
(what it has gathered there) and the residual stream after the layer. With eigenvalues l_i of their covariance

PC share             l_1 / sum l, and l_2 / sum l
participation ratio  (sum l)^2 / sum l^2: the number of directions that matter, 1 for a line
Spearman             rank correlation of the first principal component with the exact posterior's entropy, in absolute
                     value, since a component has no sign; also within single positions, where the place in the sequence
                     cannot stand in for the entropy
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import spearmanr
from torch import Tensor

from bench.report.diagnostics.anatomy import layers, look, values_of
from bench.report.diagnostics.base import Picture, Run, Section, Table, canvas, section

VALUES, OUTPUTS, RESIDUAL = "values", "outputs", "residual stream"
SHOWN = 1_500  # marks in a picture
LEAST = 1e-6  # bits: entropy that varies less than so much is constant
LEAST_SPREAD = 1e-12  # of the mean square length: vectors that vary less are constant


class Manifold(NamedTuple):
    layer: int
    source: str  # values, outputs or the residual stream
    pc1: float | None  # shares of variance; None for vectors that do not vary
    pc2: float | None
    participation: float | None
    spearman: float | None  # None where the entropy does not vary
    within: float | None  # mean over positions at which it does
    plane: np.ndarray  # [N, 2] the first two components, the first turned to grow with entropy


def components(x_ND: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The variances of the principal components, largest first, and the vectors along the first two."""
    centred = x_ND - x_ND.mean(0)
    if x_ND.shape[1] == 1:
        centred = np.hstack([centred, np.zeros_like(centred)])
    spread, directions = np.linalg.eigh(centred.T @ centred / len(x_ND))
    return spread[::-1].clip(min=0), centred @ directions[:, ::-1][:, :2]


def rank_correlation(x: np.ndarray, h: np.ndarray) -> float | None:
    if np.ptp(h) < LEAST or np.ptp(x) == 0:
        return None
    return float(spearmanr(x, h.round(9)).statistic)  # equal entropies are summed in different orders


def describe(layer: int, source: str, x_BQD: np.ndarray, h_BQ: np.ndarray) -> Manifold:
    x_ND = x_BQD.reshape(-1, x_BQD.shape[2])
    spread, plane = components(x_ND)
    if spread.sum() <= LEAST_SPREAD * (x_ND**2).sum(1).mean():
        return Manifold(layer, source, None, None, None, None, None, np.zeros_like(plane))
    share = spread / spread.sum()
    rho = rank_correlation(plane[:, 0], h_BQ.ravel())
    if (rho or 0.0) < 0:
        plane[:, 0] *= -1
    first_BQ = plane[:, 0].reshape(h_BQ.shape)
    each = [rank_correlation(first_BQ[:, q], h_BQ[:, q]) for q in range(h_BQ.shape[1])]
    inside = [value for value in each if value is not None]
    within = abs(float(np.mean(inside))) if inside else None
    sizes = float(share[0]), float(share[1]), float(1 / (share**2).sum())
    return Manifold(layer, source, *sizes, None if rho is None else abs(rho), within, plane)


def flat(x: Tensor, queries: Tensor) -> np.ndarray:
    return np.asarray(x[:, queries].flatten(2).double().numpy())


@lru_cache(maxsize=1)
def measure(run: Run) -> list[Manifold]:
    seen = look(run)
    queries = seen.exam.batch.queries
    found = []
    for layer in layers(run.model):
        sources: dict[str, Tensor] = {RESIDUAL: seen.seen[layer.resid]}
        if layer.outputs is not None:
            sources = {OUTPUTS: seen.seen[layer.outputs], **sources}
        if layer.values is not None and values_of(seen.seen[layer.values]).ndim == 4:
            sources = {VALUES: values_of(seen.seen[layer.values]), **sources}
        found += [describe(layer.index, name, flat(x, queries), seen.h_BQ) for name, x in sources.items()]
    return found


@section("Is there a value manifold, and does entropy run along it?", taps="*resid")
def manifold(run: Run) -> Section:
    found = measure(run)
    h = look(run).h_BQ
    header = ["layer", "vectors", "PC1 share", "PC2 share", "participation ratio", "Spearman PC1, entropy"]
    rows: list[list[Any]] = [[m.layer, m.source, m.pc1, m.pc2, m.participation, m.spearman, m.within] for m in found]
    sources = [name for name in (VALUES, OUTPUTS, RESIDUAL) if any(m.source == name for m in found)]
    index = sorted({m.layer for m in found})
    place = {(m.source, m.layer): m for m in found}
    figure, axes = canvas(2.15 * len(index) + 1.1, 2.2 * len(sources) + 0.3, len(sources), len(index), squeeze=False)
    some = np.random.default_rng(0).permutation(h.size)[:SHOWN]
    for (y, x), axis in np.ndenumerate(axes):
        m = place.get((sources[y], index[x]))
        if m is None:
            axis.set_axis_off()
            continue
        marks = axis.scatter(*m.plane[some].T, c=h.ravel()[some], s=4, cmap="viridis", rasterized=True)
        rho = "" if m.spearman is None else f", |rho| {m.spearman:.2f}"
        axis.set_title("constant" if m.pc1 is None else f"PC1 {m.pc1:.0%}{rho}", fontsize=8)
        axis.set(xticks=[], yticks=[])
        if x == 0 or (sources[y], index[x - 1]) not in place:
            axis.set_ylabel(sources[y], fontsize=9)
        if y == len(sources) - 1:
            axis.set_xlabel(f"layer {index[x]}", fontsize=9)
    figure.colorbar(marks, ax=axes.ravel().tolist(), label="posterior entropy (bits)", shrink=0.8)
    text = (
        f"Principal components of vectors at {h.size:,} scored positions, heads side by side. Spearman is the rank "
        "correlation of PC1 with the entropy of the exact posterior, over all positions and within single ones."
    )
    if all(m.within is None for m in found):
        text += " Here the entropy follows from the position alone, so that a mere counter would correlate as well."
    picture = Picture("manifold", figure, "First two principal components, coloured by posterior entropy.")
    return Section(text, [Table("manifold", [*header, "within positions"], rows)], [picture])
