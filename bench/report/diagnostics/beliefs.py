"""Does the residual stream hold the belief, and from which layer on?

Probes read the exact posterior and its entropy from the residual stream after each layer, at the scored positions:
normalised, as the next layer and the head read it. That of the posterior is a linear map and a softmax, as the head is
(a map without softmax would miss a belief that is kept as logarithms, even where the head reads it without error); that
of the entropy is a linear map. They are fitted on one half of the sequences and judged on the other: R2 is one less the
share of the variance that is missed. The floor reads the position and the token there, nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch.nn.functional import layer_norm, one_hot

from bench.report.diagnostics.anatomy import layers, look
from bench.report.diagnostics.base import (
    GREY,
    MODEL,
    OTHER,
    NotAvailable,
    Picture,
    Run,
    Section,
    Table,
    canvas,
    section,
)
from bench.report.diagnostics.manifold import LEAST, flat
from bench.report.diagnostics.probes import held_out_r2, held_out_softmax_r2


class Probe(NamedTuple):
    source: str
    posterior: float | None  # None where it is constant
    entropy: float | None


@lru_cache(maxsize=1)
def measure(run: Run) -> list[Probe]:
    """The floor, then one a layer."""
    exam, h_BQ, seen = look(run)
    batch, posterior = exam.batch, exam.posterior.numpy()
    B, Q = h_BQ.shape
    token = one_hot(batch.tokens[:, batch.queries], run.task.shape.vocab)
    place = torch.eye(Q).expand(B, -1, -1)
    if not layers(run.model):
        raise NotAvailable("the architecture has no tap on a residual stream")
    sources = {"position and token": torch.cat([place, token], dim=2).double().numpy()}
    for layer in layers(run.model):
        x = seen[layer.resid]
        x = layer_norm(x, x.shape[-1:]) if x.shape[-1] > 2 else x  # of two numbers a norm would keep one bit
        sources[f"layer {layer.index}"] = flat(x, batch.queries)

    def r2(probe: Callable[[np.ndarray, np.ndarray], float], x: np.ndarray, y: np.ndarray) -> float | None:
        return probe(x, y) if np.ptp(y, axis=(0, 1)).max() > LEAST else None

    return [Probe(name, r2(held_out_softmax_r2, x, posterior), r2(held_out_r2, x, h_BQ)) for name, x in sources.items()]


@section("Does the residual stream hold the belief?", taps="*resid")
def beliefs(run: Run) -> Section:
    found = measure(run)
    floor, rest = found[0], found[1:]
    figure, axis = canvas(max(5.5, 0.7 * len(rest) + 3.5), 3.6)
    names = [probe.source.removeprefix("layer ") for probe in rest]
    for label, colour, of in (("posterior", MODEL, "posterior"), ("its entropy", OTHER, "entropy")):
        heights = [max(0.0, getattr(probe, of) or 0.0) for probe in rest]
        axis.plot(names, heights, "o-", color=colour, label=label)
        axis.axhline(max(0.0, getattr(floor, of) or 0.0), color=colour, linestyle=":", linewidth=1)
    axis.axhline(1, color=GREY, linewidth=0.6)
    axis.set(xlabel="residual stream after layer", ylabel="held-out R²", ylim=(0, 1.05), title="Belief probes")
    axis.legend(title="dotted: floor", loc="upper left", bbox_to_anchor=(1, 1))
    rows = [[probe.source, probe.posterior, probe.entropy] for probe in found]
    text = (
        "How much of the exact posterior a linear map and a softmax recover from the normalised residual stream at the "
        "scored positions, and how much of its entropy a linear map; fitted on half of the sequences, judged on the "
        "other half. The floor knows only the position and the token that stands there. A negative R² is drawn as 0."
    )
    return Section(text, [Table("beliefs", ["read from", "R² of the posterior", "R² of its entropy"], rows)],
                   [Picture("beliefs", figure, "Share of variance that the probes recover, by layer.")])  # fmt: skip
