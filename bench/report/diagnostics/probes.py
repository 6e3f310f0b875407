"""Where does the model keep the sufficient statistics?

A linear probe (least squares with an intercept) reads H (ones so far), N (bits so far) and H/N from what passes a tap,
at every position. It is fitted on one half of the sequences; R2 = 1 - residual / total variance on the other half. The
bit just read, alone, is the floor that a residual stream starts from.
"""

from __future__ import annotations

from fnmatch import fnmatch

import numpy as np
import torch
from torch.nn.functional import one_hot

from bench.report.diagnostics.base import GREY, Picture, Run, Section, Table, canvas, section
from bench.report.diagnostics.predictive import coins, p_one
from models.taps import record, tap_names
from tasks.bernoulli import draw_bits

RIDGE = 1e-5  # on the weights of a softmax, whose inputs have unit variance
SEQUENCES, BITS = 256, 256
TARGETS = ("H", "N", "H/N")


def held_out_r2(x_BTD: np.ndarray, y: np.ndarray) -> float:
    """Fitted on the first half of the sequences, judged on the second; y is [B, T], or vectors [B, T, C] as one."""
    half = len(x_BTD) // 2
    ones = np.ones((*x_BTD.shape[:2], 1))
    x = np.concatenate([x_BTD, ones], axis=2)
    y_BTC = y.reshape(*x_BTD.shape[:2], -1)
    (train, test), (fitted, asked) = (
        (part[:half].reshape(-1, part.shape[2]), part[half:].reshape(-1, part.shape[2])) for part in (x, y_BTC)
    )
    weights = np.linalg.lstsq(train, fitted, rcond=None)[0]
    return float(1 - ((test @ weights - asked) ** 2).mean() / asked.var(0).mean())


def held_out_softmax_r2(x_BTD: np.ndarray, p_BTC: np.ndarray) -> float:
    """The same for a distribution, read as a model's head would: a linear map, then a softmax, fitted by likelihood."""
    half = len(x_BTD) // 2
    x, p = torch.from_numpy(x_BTD).float(), torch.from_numpy(p_BTC).float()
    x = (x - x[:half].mean((0, 1))) / x[:half].std((0, 1)).clamp(min=1e-6)
    weight = torch.zeros(x.shape[2], p.shape[2], requires_grad=True)
    bias = torch.zeros(p.shape[2], requires_grad=True)
    search = torch.optim.LBFGS([weight, bias], max_iter=200, history_size=20, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        search.zero_grad()
        likelihood = (p[:half] * torch.log_softmax(x[:half] @ weight + bias, -1)).sum(-1).mean()
        cost = RIDGE * weight.square().sum() - likelihood
        cost.backward()
        return cost

    search.step(loss)
    with torch.no_grad():
        missed = (torch.softmax(x[half:] @ weight + bias, -1) - p[half:]).square().mean()
    return float(1 - missed / p[half:].flatten(0, 1).var(0).mean())


@section("Where are the counts kept?", tasks=("bernoulli",), taps="*resid")
def statistics(run: Run) -> Section:
    task = coins(run)
    length = min(BITS, (getattr(run.model, "max_length", None) or BITS + task.bos) - task.bos)
    rng = run.rng("probes")
    bits = draw_bits(task.draw_p(SEQUENCES, rng), length, rng)
    patterns = [p for p in ("*resid", "*attn.z") if any(fnmatch(name, p) for name in tap_names(run.model))]
    seen: dict[str, list[torch.Tensor]] = {}
    for part in bits.split(128):
        with record(run.model, *patterns) as taps:
            p_one(run.model, task, part)
        for name in (name for name in tap_names(run.model) if name in taps):
            seen.setdefault(name, []).append(taps[name][:, -length:].flatten(2))
    heads, count = bits.cumsum(1).double(), torch.arange(1, length + 1).double().expand(SEQUENCES, -1)
    targets = {"H": heads.numpy(), "N": count.numpy(), "H/N": (heads / count).numpy()}
    sources = {"the bit just read": one_hot(bits, 2)[..., :1].double().numpy()}
    sources |= {name: torch.cat(parts).double().numpy() for name, parts in seen.items()}
    rows: list[list[object]] = [[name, *(held_out_r2(x, y) for y in targets.values())] for name, x in sources.items()]

    figure, axis = canvas(max(6, 1.1 * len(rows) + 2), 4.2)
    place = np.arange(len(rows))
    for i, target in enumerate(TARGETS):
        axis.bar(place + (i - 1) * 0.27, [max(0.0, float(str(row[i + 1]))) for row in rows], 0.25, label=target)
    axis.axhline(1, color=GREY, linewidth=0.8)
    axis.set(xticks=place, ylabel="held-out R²", ylim=(0, 1.08), title=f"Linear probes, contexts of 1..{length} bits")
    axis.set_xticklabels([str(row[0]) for row in rows], rotation=25, ha="right", fontsize=8)
    axis.legend(loc="upper left", bbox_to_anchor=(1, 1))
    text = (
        f"{SEQUENCES} sequences of {length} bits: half to fit the probe, half to judge it. A negative R² is drawn as 0."
    )
    return Section(text, [Table("probes", ["tap", *(f"R² of {t}" for t in TARGETS)], rows)],
                   [Picture("probes", figure, "Share of variance that a linear map recovers.")])  # fmt: skip
