"""Does the state of the model fall into one cluster for each hidden state of the chain?

Vectors at the scored positions, labelled by the most probable hidden state of the exact filter: the residual stream
after each layer, and what a recurrence carries where it is a vector.

silhouette   mean over points of (b - a) / max(a, b): a the mean distance to the points of its own state, b that to the
             nearest other state. 1 is one tight cluster a state, 0 is no structure
purity       k-means with as many clusters as states: the share of points whose cluster is mostly of their own state.
             What the labels in a random order would give stands beside it
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from scipy.cluster.vq import kmeans2
from scipy.spatial.distance import cdist

from bench.report.diagnostics.anatomy import layers, look
from bench.report.diagnostics.base import Picture, Run, Section, Table, canvas, section
from bench.report.diagnostics.manifold import components, flat

POINTS = 1_500
STARTS = 5  # of k-means: the tightest counts


class Clusters(NamedTuple):
    source: str
    silhouette: float
    purity: float
    chance: float
    plane: np.ndarray  # [N, 2]
    labels: np.ndarray


def silhouette(x_ND: np.ndarray, labels_N: np.ndarray) -> float:
    apart = cdist(x_ND, x_ND)
    kinds, count = np.unique(labels_N, return_counts=True)
    sums = np.stack([apart[:, labels_N == kind].sum(1) for kind in kinds], axis=1)
    own = labels_N[:, None] == kinds
    others = np.where(own, count - 1, count)
    mean = sums / np.maximum(others, 1)
    a, b = mean[own], np.where(own, np.inf, mean).min(1)
    alone = others[own] == 0
    return float(np.where(alone, 0.0, (b - a) / np.maximum(np.maximum(a, b), 1e-300)).mean())


def assign(x_ND: np.ndarray, clusters: int) -> np.ndarray:
    """k-means, the tightest of several starts."""
    best: tuple[float, np.ndarray] = (np.inf, np.zeros(len(x_ND), dtype=int))
    for seed in range(STARTS):
        centres, labels = kmeans2(x_ND, clusters, minit="++", rng=np.random.default_rng(seed))
        best = min(best, (float(((x_ND - centres[labels]) ** 2).sum()), labels), key=lambda pair: pair[0])
    return best[1]


def purity(found_N: np.ndarray, labels_N: np.ndarray) -> float:
    return sum(np.bincount(labels_N[found_N == c]).max() for c in np.unique(found_N)) / len(labels_N)


@lru_cache(maxsize=1)
def measure(run: Run) -> list[Clusters]:
    exam, _, seen = look(run)
    queries = exam.batch.queries
    labels = exam.posterior.argmax(-1).numpy().ravel()
    some = np.random.default_rng(0).permutation(len(labels))[:POINTS]
    shuffled = np.random.default_rng(1).permutation(labels[some])
    vectors: dict[str, np.ndarray] = {}
    for layer in layers(run.model):
        taps = {f"layer {layer.index}, residual stream": layer.resid}
        if layer.kind == "recurrence" and layer.outputs is not None:
            taps = {f"layer {layer.index}, recurrence": layer.outputs, **taps}
        vectors |= {name: flat(seen[tap], queries) for name, tap in taps.items()}
    vectors["the exact posterior"] = exam.posterior.numpy()
    found = []
    for name, x in vectors.items():
        x = x.reshape(-1, x.shape[-1])[some]
        cluster = assign(x, run.task.shape.classes)
        pure, chance = purity(cluster, labels[some]), purity(cluster, shuffled)
        found.append(Clusters(name, silhouette(x, labels[some]), pure, chance, components(x)[1], labels[some]))
    return found


@section("One cluster for each hidden state?", tasks=("hmm", "hmm-sticky"), taps="*resid")
def clusters(run: Run) -> Section:
    found = measure(run)
    rows = [[c.source, c.silhouette, c.purity, c.chance] for c in found]
    columns = min(4, len(found))
    lines = -(-len(found) // columns)
    figure, axes = canvas(2.6 * columns + 1.2, 2.6 * lines + 0.3, lines, columns, squeeze=False)
    for axis in axes.flat[len(found) :]:
        axis.set_axis_off()
    for axis, c in zip(axes.flat[: len(found)], found, strict=True):
        for state in range(run.task.shape.classes):
            axis.scatter(*c.plane[c.labels == state].T, s=4, color=f"C{state}", label=f"state {state}", rasterized=True)
        axis.set_title(f"{c.source}\nsilhouette {c.silhouette:.2f}, purity {c.purity:.2f}", fontsize=8)
        axis.set(xticks=[], yticks=[])
    figure.legend(*axes.flat[0].get_legend_handles_labels(), loc="outside right center", markerscale=2, fontsize=8)
    text = (
        f"{len(found[0].labels):,} scored positions, labelled by the most probable hidden state of the exact filter. "
        "Silhouette: 1 is one tight cluster a state, 0 no structure. Purity: the share of points that k-means puts "
        "into a cluster mostly of their own state; beside it, the same with labels in a random order. Last, the exact "
        "posterior itself: a belief that is seldom sure has no tight clusters."
    )
    picture = Picture("clusters", figure, "First two principal components, coloured by hidden state.")
    return Section(text, [Table("clusters", ["vectors", "silhouette", "purity", "purity by chance"], rows)], [picture])
