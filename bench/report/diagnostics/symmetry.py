"""Is a head treated like a tail? With a = b the exact P(1 | x) + P(1 | not x) is 1: by how much is the model's not?

The Study of Beta-Bernoulli Transformers notes a construction: read the negated residual stream for the flipped
sequence. Its logits are the negated ones, so the two probabilities add up to 1 exactly, unless the norm or the head
adds a bias of its own.
"""

from __future__ import annotations

from copy import deepcopy

import numpy as np
import torch
from torch import Tensor, nn

from bench.report.diagnostics.base import EXACT, MODEL, NotAvailable, Picture, Run, Section, Table, canvas, section
from bench.report.diagnostics.predictive import coins, p_one
from bench.report.interventions import places
from bench.text import plural
from models.taps import edit
from tasks.bernoulli import Bernoulli, draw_bits

SEQUENCES, LENGTHS = 500, (1, 4, 16, 32)


@section("Are the two bits treated alike?", tasks=("bernoulli",))
def flips(run: Run) -> Section:
    task = coins(run)
    if task.a != task.b:
        raise NotAvailable(f"the prior Beta({task.a:g}, {task.b:g}) itself is not symmetric")
    run.require_length(max(LENGTHS) + task.bos)
    rng = run.rng("symmetry")
    bits = draw_bits(task.draw_p(SEQUENCES, rng), max(LENGTHS), rng)
    excess = (p_one(run.model, task, bits) + p_one(run.model, task, 1 - bits) - 1).numpy()
    share = bits.cumsum(1).numpy() / np.arange(1, bits.shape[1] + 1)

    figure, axes = canvas(11, 3.4, 1, len(LENGTHS), sharey=True)
    rows = []
    for axis, n in zip(axes, LENGTHS, strict=True):
        e = excess[:, n - 1]
        rows.append([n, float(e.mean()), float(np.abs(e).mean()), float(np.abs(e).max())])
        axis.scatter(share[:, n - 1], e, s=6, color=MODEL, alpha=0.5)
        axis.axhline(0, color=EXACT, linewidth=1)
        axis.set(xlabel="share of ones, H/N", title=plural(n, "bit"))
    axes[0].set_ylabel("P(1 | x) + P(1 | not x) - 1")
    header = ["bits", "mean", "mean absolute", "largest"]
    tables = [Table("symmetry", header, rows)]
    text = f"P(1 | x) + P(1 | not x) - 1 on {SEQUENCES} sequences; 0 is exact symmetry (the red line)."
    if places(run.model) and isinstance(run.model.head, nn.Linear):
        built = []
        for name, model in (("as trained", run.model), ("without their biases", _without_biases(run.model))):
            e = np.abs(negated_excess(model, task, bits).numpy())
            built.append([name, float(e.mean()), float(e.max())])
        tables.append(Table("symmetry_construction", ["norm and head", "mean absolute", "largest"], built))
        text += (
            " The second table reads the negated residual stream instead of a flipped sequence. That is symmetric by "
            "construction, up to the biases of the last norm and of the head."
        )
    return Section(text, tables, [Picture("symmetry", figure, "Each mark is a context.")])


def negated_excess(model: nn.Module, task: Bernoulli, bits_BN: Tensor) -> Tensor:
    """P(1 | r) + P(1 | -r) - 1 for the residual stream r after the last layer, [B, N]."""
    p_BN = p_one(model, task, bits_BN)
    with edit(model, {places(model)[-1]: torch.neg}):
        return p_BN + p_one(model, task, bits_BN) - 1


def _without_biases(model: nn.Module) -> nn.Module:
    """A copy whose last norm and head add nothing."""
    copy = deepcopy(model)
    for name, parameter in copy.named_parameters():
        if name in ("norm.bias", "head.bias"):  # a narrow model has no norm
            nn.init.zeros_(parameter)
    return copy
