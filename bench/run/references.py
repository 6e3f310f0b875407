"""Reference predictors: what an error in bits means.

exact          the posterior itself: zero by definition, and checked
uniform        every class equally likely, always
best constant  the one distribution that scores best without reading anything: its entropy is the median of H_Bayes
window W       for tasks that have it: the exact filter that only saw the last W observations
               and what a task adds itself: lower orders, other priors

A window turns a KL into a memory. Of all who saw no more than the last W observations that filter has the least
expected KL, so a model with less has used more of them. MAE does not show that: a wrong distribution can have it.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from bench.run.score import TINY, Exam, Score, entropy_bits, score
from bench.seeds import generator
from tasks.base import TASKS, Task, references


def reference_names(task_name: str, task: Task) -> list[str]:
    windows = TASKS.facts(task_name).get("windows", ())
    own = references(task, task.sample(1, task.horizon, generator("cpu", 0, "names")))
    return ["exact", "uniform", "best constant", *(f"window {window}" for window in windows), *own]


def reference_scores(task_name: str, task: Task, exam: Exam) -> dict[str, Score]:
    p = exam.posterior
    classes = p.shape[-1]
    uniform = torch.full_like(p, 1.0 / classes)
    constant = _with_entropy(entropy_bits(p).median().item(), classes).to(p).expand_as(p)
    predictions: dict[str, Tensor] = {"exact": p, "uniform": uniform, "best constant": constant}
    for window in TASKS.facts(task_name).get("windows", ()):
        predictions[f"window {window}"] = task.window_posterior(exam.batch, window)  # type: ignore[attr-defined]
    scores = {name: score(exam, q.log()) for name, q in predictions.items()}
    # another prior may call possible outcomes impossible
    return scores | {name: score(exam, q.clamp(min=TINY).log()) for name, q in references(task, exam.batch).items()}


def _with_entropy(bits: float, classes: int) -> Tensor:
    """One likely class and the rest alike, mixed so that the entropy is as asked."""
    point, flat = torch.eye(classes, dtype=torch.float64)[0], torch.full((classes,), 1.0 / classes, dtype=torch.float64)
    low, high = 0.0, 1.0  # share of the flat part: entropy grows with it
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if entropy_bits(torch.lerp(point, flat, middle)) < bits else (low, middle)
    return torch.lerp(point, flat, (low + high) / 2)


class EffectiveMemory(NamedTuple):
    """The window whose exact filter has the same KL."""

    observations: float
    bound: str = ""  # < or >, where no window that was scored has this KL

    def __str__(self) -> str:
        return f"{self.bound} {self.observations:g}" if self.bound else f"{self.observations:.1f}"


def effective_memory(kl: float, references: dict[str, float]) -> EffectiveMemory | None:
    """Log-linear between neighbouring windows; None if there are none."""
    windows = sorted(
        (int(name.split()[1]), of_window)
        for name, of_window in references.items()
        if name.startswith("window ") and of_window > 1e-9  # else it has seen everything
    )
    if not windows:
        return None
    if kl > windows[0][1]:
        return EffectiveMemory(windows[0][0], "<")
    for (w0, e0), (w1, e1) in pairwise(windows):
        if e0 >= kl > e1:
            return EffectiveMemory(w0 + math.log(e0 / kl) / math.log(e0 / e1) * (w1 - w0))
    return EffectiveMemory(windows[-1][0], ">")
