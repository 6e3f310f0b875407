"""How near is the next-bit prediction to the exact one?

With n bits seen, s of them ones, q = (s + a) / (n + a + b) is exact, and its expected loss is h(q) = -q ln q - (1 - q)
ln (1 - q). Before any bit is seen S_n is beta-binomial, so the expected loss over predictions of bits 2..T is

    E NLL = mean over n = 1..T-1 of sum_s P(S_n = s) h((s + a) / (n + a + b))        0.50850 nats for a = b = 1, T = 256

The gap is (model - Bayes) / Bayes on the same bits. A context is pure if all its bits are alike.
"""

from __future__ import annotations

from typing import cast

import numpy as np
import torch
from scipy.stats import betabinom, pearsonr
from torch import Tensor, nn

from bench.report.diagnostics.base import (
    EXACT,
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
from tasks.bernoulli import Bernoulli, draw_bits

SEQUENCES, BITS, CONTEXTS = 512, 256, 3000
SEEDS, MODEL_SEEDS = 100, 5


@torch.no_grad()
def p_one(model: nn.Module, task: Bernoulli, bits_BN: Tensor) -> Tensor:
    """The model's P(next bit = 1) after each of the bits, [B, N] float64."""
    tokens_BT = task.write(bits_BN)
    logits = [model(part, torch.empty(*part.shape, 0))[:, -bits_BN.shape[1] :] for part in tokens_BT.split(256)]
    return torch.cat(logits).double().softmax(-1)[..., 1]


def coins(run: Run) -> Bernoulli:
    task = cast(Bernoulli, run.task)
    if task.pool:
        raise NotAvailable("the coin is one of a pool, and this asks about a Beta prior")
    return task


def expected_nll(task: Bernoulli, bits: int) -> float:
    """Nats a prediction, exactly."""
    losses = []
    for n in range(1, bits):
        s = np.arange(n + 1)
        q = (s + task.a) / (n + task.a + task.b)
        h = -q * np.log(q) - (1 - q) * np.log1p(-q)
        losses.append(float(betabinom.pmf(s, n, task.a, task.b) @ h))
    return float(np.mean(losses))


def nll(p_BN: Tensor, next_BN: Tensor) -> float:
    return -torch.where(next_BN == 1, p_BN.log(), (-p_BN).log1p()).mean().item()


def draw_exam(task: Bernoulli, rng: torch.Generator) -> tuple[Tensor, Tensor, float]:
    """What is read, what is asked, and Bayes' loss."""
    bits_BN = draw_bits(task.draw_p(SEQUENCES, rng), BITS, rng)
    read, asked = bits_BN[:, :-1], bits_BN[:, 1:]
    bayes = task.predict(read.cumsum(1), torch.arange(1, BITS))
    return read, asked, nll(bayes, asked)


@section("Final loss against the Bayes predictive", tasks=("bernoulli",))
def loss(run: Run) -> Section:
    task = coins(run)
    run.require_length(BITS - 1 + task.bos)
    spread = [draw_exam(task, run.rng("loss", seed))[2] for seed in range(SEEDS)]
    pairs = []
    for seed in range(MODEL_SEEDS):
        read, asked, bayes = draw_exam(task, run.rng("loss", seed))
        pairs.append((nll(p_one(run.model, task, read), asked), bayes))
    gaps = [100 * (ours - bayes) / bayes for ours, bayes in pairs]
    values = {
        "model NLL (nats)": pairs[0][0],
        "Bayes NLL (nats)": pairs[0][1],
        "gap (%)": gaps[0],
        "exact expected Bayes NLL (nats)": expected_nll(task, BITS),
        "Bayes NLL over seeds, mean": float(np.mean(spread)),
        "Bayes NLL over seeds, standard deviation": float(np.std(spread, ddof=1)),
        "gap over seeds, mean (%)": float(np.mean(gaps)),
        "gap over seeds, standard deviation (%)": float(np.std(gaps, ddof=1)),
    }
    rows = [[name, value, *(run.published("loss", name) or [None])] for name, value in values.items()]
    text = (
        f"{SEQUENCES} held-out sequences of {BITS} bits, {SEQUENCES * (BITS - 1):,} predictions. The Bayes loss of one "
        f"such draw is itself random: its spread is over {SEEDS} evaluation seeds, that of the gap over {MODEL_SEEDS}."
    )
    return Section(text, [Table("loss", ["metric", "this run", "LPE report"], rows)])


@section("Model against Bayes, context by context", tasks=("bernoulli",))
def agreement(run: Run) -> Section:
    task = coins(run)
    run.require_length(BITS + task.bos)
    rng = run.rng("contexts")
    n_B = torch.randint(1, BITS + 1, (CONTEXTS,), generator=rng)
    bits_BN = draw_bits(task.draw_p(CONTEXTS, rng), BITS, rng)
    last = n_B[:, None] - 1
    ones_B = bits_BN.cumsum(1).gather(1, last)[:, 0]
    model = p_one(run.model, task, bits_BN).gather(1, last)[:, 0].numpy()
    exact = task.predict(ones_B, n_B).numpy()
    n, zero, one = n_B.numpy(), (ones_B == 0).numpy(), (ones_B == n_B).numpy()
    r, mae = pearsonr(exact, model).statistic, float(np.abs(model - exact).mean())

    figure, (left, right) = canvas(10, 4.6, 1, 2)
    groups = [("mixed", ~(zero | one), GREY), ("all zeros", zero, MODEL), ("all ones", one, OTHER)]
    for name, chosen, colour in groups:
        left.scatter(exact[chosen], model[chosen], s=6, color=colour, alpha=0.6, label=f"{name} ({chosen.sum():,})")
    left.plot([0, 1], [0, 1], color=EXACT, linewidth=1, label="equal")
    left.set(
        xlabel="Bayes P(next = 1)", ylabel="model P(next = 1)", title=f"r = {r:.5f}, MAE = {mae:.5f}", aspect="equal"
    )
    left.legend(loc="upper left")
    length = np.arange(1, BITS + 1)
    for prior in sorted({task.a, task.b}):  # of the bit that has not come yet
        right.plot(length, prior / (length + task.a + task.b), color=EXACT, linewidth=1, label="Bayes")
    for name, chosen, surprise, colour in (("all zeros", zero, model, MODEL), ("all ones", one, 1 - model, OTHER)):
        right.scatter(n[chosen], surprise[chosen], s=10, color=colour, label=f"{name}, model")
    right.set(
        xlabel="bits in the context",
        ylabel="P(the other bit comes next)",
        title="Pure contexts",
        xscale="log",
        yscale="log",
    )
    right.legend()

    def mean(values: np.ndarray) -> float | None:
        return float(values.mean()) if len(values) else None

    values = {
        "Pearson r": r,
        "MAE": mae,
        "pure contexts (%)": 100 * float((zero | one).mean()),
        "model's P(1) after zeros alone, mean": mean(model[zero]),
        "model's P(1) after ones alone, mean": mean(model[one]),
        "MAE on pure contexts": mean(np.abs(model - exact)[zero | one]),
    }
    rows = [[name, value, *(run.published("agreement", name) or [None])] for name, value in values.items()]
    text = (
        f"{CONTEXTS:,} contexts, lengths uniform on 1..{BITS}. A model that knows the share of ones but not how many "
        "bits it has seen answers all pure contexts alike: a horizontal band on the left, a level line on the right."
    )
    picture = Picture("model_vs_bayes", figure, "Left: every context. Right: pure contexts by length.")
    return Section(text, [Table("agreement", ["metric", "this run", "LPE report"], rows)], [picture])
