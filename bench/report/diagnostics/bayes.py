"""Is it Bayesian at all? Properties that the exact predictor of a task has, each tested on the model and on that one.

martingale       A predictor reads the opening h of a sequence and goes on by itself to the training length: it draws
                 each next token from its own prediction and reads it. Z(h) is its answer to a question about a fixed
                 unknown, Z(h x) its answer to the same question after the rollout x. By the tower property
                 E Z(h x) = Z(h) for a Bayesian predictor, under its own law. Reported: the mean over openings and
                 questions of |mean over rollouts of Z(h x) - Z(h)|. The questions:
                     bernoulli    P(next bit = 1)
                     markov       P(a symbol follows context c), for up to four c, each reached by the shortest way
                     recurrence   P(the next number is that of the only program left)
exchangeability  Where the law does not care about the order of the evidence, a prediction must not either. Reported:
                 the mean total variation between the last predictions after a sequence and after the same in another
                 order, as a share of that between unrelated sequences. Orders of a chain are those that keep how often
                 each symbol follows each context.
log probability  The same for the probability q of whole sequences, the product of the predictions along them. Reported:
                 mean |log2 q(x) - log2 q(reordered x)|, in bits a sequence.
calibration      Answers are drawn from the predictions on sequences of the task. Of those drawn with probability q, a
                 share q should be the answer that came. Reported: |share - mean q| in ten bins of q, weighed by the
                 number of answers in each.

The exact predictor is asked the same through the same code: its own rollouts, as many and as long, from the same
openings; fresh sequences of the same number. This is repeated NULLS times, and z is the distance of the model's number
from their mean, in their standard deviations. Order changes nothing for the exact predictor, so there the null is 0, up
to rounding, and has no spread.

The first two and the last are independent of each other. The exact answer under a wrong prior is a martingale and
exchangeable, but not calibrated. A predictor that forgets can be calibrated, but its rollouts drift. An urn with other
steps than the exact one is a martingale, but not exchangeable. What is not a martingale is not exchangeable as a whole,
and the log probability shows it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor, nn

from bench.report.diagnostics.base import (
    EXACT,
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
from bench.report.rollout import Exact, refusal, rollout
from bench.reports import BAYES
from bench.run.score import CHUNK, LN2, predict
from tasks.base import Batch, HasRollouts, Probe, Task, reorder

NULLS = 16  # repeats of the exact predictor
OPENINGS = 8
ORDERS = 4  # of each sequence
POSITIONS, SEQUENCES = 65_536, 1024  # in one exam, at most
BINS = 10
LEAST_SPREAD = 1e-9  # a null without chance has no z
DRIFT, ORDER, JOINT, CALIBRATION = "martingale", "exchangeability", "log probability", "calibration"
HEADER = ["test", "statistic", "this run", "exact predictor", "its spread", "z", "note"]
STATISTICS = {
    DRIFT: "mean drift of a prediction over rollouts",
    ORDER: "distance between orders, as a share of that between sequences",
    JOINT: "bits between two orders of a sequence",
    CALIBRATION: "calibration error of sampled answers",
}


class Finding(NamedTuple):
    """A test's number for the model, and for each repeat of the exact predictor."""

    test: str
    value: float
    nulls: list[float]

    def row(self) -> list[object]:
        mean = float(np.mean(self.nulls))
        spread = float(np.std(self.nulls, ddof=1)) if len(self.nulls) > 1 else 0.0
        z = (self.value - mean) / spread if spread > LEAST_SPREAD else None
        return [self.test, STATISTICS[self.test], self.value, mean, spread, z, None]


class Drift(NamedTuple):
    before: Tensor  # [C, J] the answers after the openings
    after: Tensor  # [C, R, J] means of the answers over the rollouts of each repeat

    def sizes(self) -> list[float]:
        return [float(x) for x in (self.after - self.before[:, None]).abs().mean((0, 2))]


@torch.no_grad()
def answer(model: nn.Module, tokens_BT: Tensor, probe: Probe) -> Tensor:
    """The probability that a model gives to each question after each history, [B, J]."""
    (B, J), T = probe.classes.shape, tokens_BT.shape[1]
    whole_XT = torch.cat([tokens_BT[:, None].expand(B, J, T), probe.suffix.clamp(min=0)], dim=2).flatten(0, 1)
    last_X = (T - 1 + (probe.suffix >= 0).sum(2)).flatten()
    found = []
    for part_XT, at_X in zip(whole_XT.split(CHUNK["cpu"]), last_X.split(CHUNK["cpu"]), strict=True):
        logits_XTC = model(part_XT, torch.empty(*part_XT.shape, 0))
        found.append(logits_XTC[torch.arange(len(part_XT)), at_X].double().softmax(-1))
    return torch.cat(found).gather(1, probe.classes.reshape(-1, 1)).view(B, J)


def follow(model: nn.Module, task: HasRollouts, openings_CN: Tensor, length: int, samples: int, repeats: int,
           rng: torch.Generator, report: Callable[[int, int], None] = lambda _done, _total: None) -> Drift:  # fmt: skip
    """The model's answers before and after its own rollouts."""
    written_CML = rollout(
        model, openings_CN, samples * repeats, length, rng, first_token=task.answer_token, report=report
    )
    opened_CMN = openings_CN[:, None].expand(-1, written_CML.shape[1], -1)
    whole_XT = torch.cat([opened_CMN, written_CML.long()], dim=2).flatten(0, 1)
    before_CJ, after_XJ = (answer(model, tokens, _probe(task, tokens)) for tokens in (openings_CN, whole_XT))
    return Drift(before_CJ, after_XJ.view(len(openings_CN), repeats, samples, -1).mean(2))


def _probe(task: HasRollouts, tokens_BT: Tensor) -> Probe:
    found = task.probe(tokens_BT)
    if found is None:
        raise NotAvailable("no question that can be asked after every history has an answer that is a martingale")
    return found


def drifts(run: Run) -> tuple[Drift, Drift]:
    """The model's, and the exact predictor's."""
    task = run.task
    if not isinstance(task, HasRollouts):
        raise NotAvailable("the answers are not what is read next, so the model cannot go on by itself")
    openings_CN = task.sample(OPENINGS, task.opening, run.rng("bayes openings")).tokens
    suffix = _probe(task, openings_CN).suffix.shape[2]
    longest = task.shape.length(run.config.horizon)
    if (length := longest - openings_CN.shape[1] - suffix) < 1:
        raise NotAvailable(f"{longest} positions, the training length, leave no room for a rollout")
    if reason := refusal(run.model, longest):
        raise NotAvailable(reason)
    given = (task, openings_CN, length, run.samples)
    ours = follow(run.model, *given, 1, run.rng("bayes rollouts"), lambda *done: run.progress("rollouts", *done))
    return ours, follow(Exact(task), *given, NULLS, run.rng("bayes null"))


def draw(run: Run, *names: str | int) -> Batch:
    """Sequences of the training length."""
    length = run.task.shape.length(run.config.horizon)
    run.require_length(length)
    return run.task.sample(min(SEQUENCES, max(1, POSITIONS // length)), run.config.horizon, run.rng("bayes", *names))


def distances(task: Task, model: nn.Module, batches: list[Batch]) -> tuple[float, float | None]:
    """How much an order matters: as a share, and in bits where answers are read next."""
    first, *others = (predict(model, batch) for batch in batches)
    last_BC = first[:, -1].exp()
    unrelated = _variation(last_BC, last_BC.roll(1, 0))
    if not unrelated:
        raise NotAvailable("all its predictions are alike")
    share = float(np.mean([_variation(last_BC, log_q[:, -1].exp()) for log_q in others])) / unrelated
    if not isinstance(task, HasRollouts):
        return share, None
    joint, *reordered = (
        log_q.gather(-1, batch.targets[..., None]).sum((1, 2)) / LN2
        for log_q, batch in zip([first, *others], batches, strict=True)
    )
    return share, float(np.mean([(joint - other).abs().mean().item() for other in reordered]))


def _variation(p_BC: Tensor, q_BC: Tensor) -> float:
    return (p_BC - q_BC).abs().sum(-1).mean().item() / 2


def orders(run: Run) -> list[Finding]:
    batch, rng = draw(run, "orders"), run.rng("bayes reorder")
    found = [reorder(run.task, batch, rng) for _ in range(ORDERS)]
    others = [other for other in found if other is not None]
    if not others:
        raise NotAvailable("the exact answer depends on the order")
    ours, exact = (distances(run.task, model, [batch, *others]) for model in (run.model, Exact(run.task)))
    pairs = zip((ORDER, JOINT), ours, exact, strict=True)
    return [Finding(test, value, [null]) for test, value, null in pairs if value is not None and null is not None]


class Reliability(NamedTuple):
    """Answers drawn from predictions, by the probability that they were drawn with, [BINS] each."""

    answers: np.ndarray  # how many
    said: np.ndarray  # mean probability
    came: np.ndarray  # share that was the answer that came

    def error(self) -> float:
        return float((self.answers * np.abs(self.said - self.came)).sum() / self.answers.sum())


def rate(p_BQC: Tensor, targets_BQ: Tensor, rng: torch.Generator) -> Reliability:
    drawn_X1 = torch.multinomial(p_BQC.flatten(0, 1), 1, generator=rng)
    said = p_BQC.flatten(0, 1).gather(1, drawn_X1)[:, 0].numpy()
    came = (drawn_X1[:, 0] == targets_BQ.flatten()).numpy()
    bins = np.minimum((said * BINS).astype(int), BINS - 1)
    answers, *sums = (np.bincount(bins, weights, BINS) for weights in (None, said, came))
    return Reliability(answers, *(total / np.maximum(answers, 1) for total in sums))


def calibrations(run: Run) -> tuple[Reliability, list[Reliability]]:
    """The model's, and the exact predictor's on sequences of its own."""
    batch, rng = draw(run, "calibration"), run.rng("bayes answers")
    ours = rate(predict(run.model, batch).exp(), batch.targets, rng)
    fresh = (draw(run, "calibration null", i) for i in range(NULLS))
    return ours, [rate(run.task.posterior(other), other.targets, rng) for other in fresh]


@section("Is it Bayesian at all?")
def coherence(run: Run) -> Section:
    panels: list[Callable[[Axes], None]] = []

    def of_drift() -> Iterator[Finding]:
        ours, exact = drifts(run)
        panels.append(lambda axis: _draw_drift(axis, ours, exact))
        yield Finding(DRIFT, ours.sizes()[0], exact.sizes())

    def of_calibration() -> Iterator[Finding]:
        ours, exact = calibrations(run)
        panels.append(lambda axis: _draw_reliability(axis, ours, exact[0]))
        yield Finding(CALIBRATION, ours.error(), [other.error() for other in exact])

    rows: list[list[object]] = []
    for test, ask in ((DRIFT, of_drift), (ORDER, lambda: orders(run)), (CALIBRATION, of_calibration)):
        try:
            rows += [finding.row() for finding in ask()]
        except NotAvailable as reason:
            rows.append([test, STATISTICS[test], None, None, None, None, f"n/a: {reason}"])
    text = (
        "Each number is beside that of the exact predictor, asked the same through the same code. z is the distance "
        f"from its mean over {NULLS} repeats, in their standard deviations; where chance plays no part there is none. "
        f"Martingale: {OPENINGS} openings, {run.samples} rollouts of each to the training length. Exchangeability: "
        f"{ORDERS} orders of each sequence. Calibration: one answer drawn at every question, {BINS} bins."
    )
    pictures = [Picture("bayes", _figure(panels), "The model against the exact predictor.")] if panels else []
    return Section(text, [Table(BAYES, HEADER, rows)], pictures)


def _figure(panels: list[Callable[[Axes], None]]) -> Figure:
    figure, axes = canvas(5.2 * len(panels), 4.8, 1, len(panels), squeeze=False)
    for axis, draw_panel in zip(axes[0], panels, strict=True):
        axis.plot([0, 1], [0, 1], color=EXACT, linewidth=1, label="equal")
        draw_panel(axis)
        axis.set(aspect="equal")
        axis.legend()
    return figure


def _draw_drift(axis: Axes, ours: Drift, exact: Drift) -> None:
    axis.scatter(exact.before.flatten(), exact.after[:, 0].flatten(), s=16, color=OTHER, label="exact predictor")
    axis.scatter(ours.before.flatten(), ours.after[:, 0].flatten(), s=16, color=MODEL, label="model")
    axis.set(xlabel="answer before the rollouts", ylabel="mean answer after them", title="Martingale")


def _draw_reliability(axis: Axes, ours: Reliability, exact: Reliability) -> None:
    for found, colour, name in ((exact, OTHER, "exact predictor"), (ours, MODEL, "model")):
        some = found.answers > 0
        axis.plot(found.said[some], found.came[some], "o-", color=colour, markersize=4, linewidth=1, label=name)
    axis.set(xlabel="probability of the answer drawn", ylabel="share that came true", title="Calibration")
