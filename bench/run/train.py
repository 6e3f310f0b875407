"""One training loop for every architecture.

The batch of step i is a function of the seed and i alone, drawn on the device in blocks of several steps, so that any
two architectures with one seed read the same data. Losses stay on the device between watch points: no step waits for
the host.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from math import inf
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import AdamW, Optimizer

from bench.config import RunConfig
from bench.device import Stopwatch, beside, capture, muon_dtype, products, release_memory, watch_waits
from bench.run.keeper import Keeper
from bench.run.muon import GRAM_ROWS, Muon
from bench.run.score import LN2, Exam, make_exam, predict, score
from bench.run.turns import Turns
from bench.seeds import generator
from tasks.base import Batch, Task, one_hot

BLOCK = 16  # steps whose data is drawn in one go: sampling is several times cheaper by the thousand
WATCH_POINTS = 20  # at least, and never further apart than so many steps:
WATCH_STEPS = 100
WATCH_SEQUENCES = 256
NOT_CAPTURED = "the step waits for the GPU (.item(), a boolean index), so it was not captured and is slower"


class Diverged(RuntimeError):
    """The loss is no longer a number."""


class BatchTooLarge(RuntimeError):
    """The device has no memory for a gradient of this many sequences at once."""


@dataclass(frozen=True)
class Progress:
    step: int
    steps: int
    loss_bits: float  # the mean since the last watch point
    eval_bits: float  # the same loss on the watched sequences, in expectation over their next draw
    entropy_mae: float
    seconds: float
    losses: tuple[float, ...] = ()  # one a step


def draw(task: Task, config: RunConfig, start: int = 0) -> Iterator[tuple[Batch, Tensor]]:
    """Batches from a step on, with what they are trained on: the exact posterior [B, Q, C], or one draw [B, Q].

    Cross-entropy is linear in its target, so a task's loss weights multiply the answer; a draw becomes one-hot.
    """
    for block in range(start // BLOCK, -(-config.steps // BLOCK)):
        rng = generator(config.device, config.seed, "training", block)
        batch = task.sample(config.batch * BLOCK, config.horizon, rng)
        answer = task.posterior(batch).float() if config.supervision == "posterior" else batch.targets
        if hasattr(task, "loss_weights"):
            weights_BQ = task.loss_weights(batch, rng)
            exact = config.supervision == "posterior"
            answer_BQC = answer if exact else one_hot(answer, task.shape.classes).float()
            answer = (weights_BQ / weights_BQ.mean()).float()[..., None] * answer_BQC
        for i in range(max(0, start - block * BLOCK), min(BLOCK, config.steps - block * BLOCK)):
            rows = slice(i * config.batch, (i + 1) * config.batch)
            yield Batch(batch.tokens[rows], batch.features[rows], batch.targets[rows], batch.queries), answer[rows]


def loss_nats(model: nn.Module, batch: Batch, answer: Tensor) -> Tensor:
    """Cross-entropy at the queries; torch's takes class probabilities as well as classes."""
    logits = model(batch.tokens, batch.features)[:, batch.queries]
    return cross_entropy(logits.flatten(0, 1), answer.flatten(0, 1))


def make_optimizers(model: nn.Module, config: RunConfig) -> list[Optimizer]:
    """Muon takes the matrices marked for it (models.base.assign_to_muon) and AdamW the rest; or AdamW takes all."""
    on_gpu = config.device == "cuda"
    adam: dict[str, Any] = {"betas": (0.9, 0.95), "weight_decay": config.weight_decay}
    adam |= {"fused": True, "capturable": True} if on_gpu else {"foreach": True}
    matrices: list[Tensor] = []
    rest: list[Tensor] = []
    for name, p in model.named_parameters():
        wanted = getattr(p, "optimizer", "adamw")
        if wanted not in ("adamw", "muon"):
            raise ValueError(f"{name} asks for the optimizer '{wanted}'. Known: adamw, muon")
        (matrices if wanted == "muon" else rest).append(p)
    optimizers: list[Optimizer]
    if config.optimizer == "adamw":
        optimizers = [AdamW(model.parameters(), lr=config.lr, **adam)]
    else:
        optimizers = [AdamW(rest, lr=config.adam_lr, **{**adam, "weight_decay": 0.0})]
        if matrices:
            rows = 0 if on_gpu else GRAM_ROWS if muon_dtype(config) == "bfloat16" else inf
            optimizers.append(Muon(matrices, lr=config.lr, weight_decay=config.weight_decay, bf16_rows=rows))
    if on_gpu:  # a captured step reads its rate from the device, where it can change between replays
        for group in (group for optimizer in optimizers for group in optimizer.param_groups):
            group["lr"] = torch.tensor(group["lr"], device="cuda")
    return scale_values(optimizers, config.value_lr)


def scale_values(optimizers: list[Optimizer], factor: float) -> list[Optimizer]:
    """Let the marked rows (models.base.mark_values) learn at another rate, though their matrix packs other maps too.

    A step of AdamW or Muon, weight decay included, is proportional to the rate. So the rows go `factor` times as far.
    """
    if factor == 1:
        return optimizers
    for optimizer in optimizers:
        params = [p for group in optimizer.param_groups for p in group["params"] if hasattr(p, "value_rows")]
        before: list[Tensor] = []

        def remember(*_: Any, params: list[Any] = params, before: list[Tensor] = before) -> None:
            before[:] = [p.detach()[p.value_rows].clone() for p in params]

        def stretch(*_: Any, params: list[Any] = params, before: list[Tensor] = before) -> None:
            with torch.no_grad():
                for p, old in zip(params, before, strict=True):
                    p[p.value_rows] = torch.lerp(old, p[p.value_rows], factor)

        optimizer.register_step_pre_hook(remember)
        optimizer.register_step_post_hook(stretch)
    return optimizers


def schedule(step: int, config: RunConfig) -> float:
    """Linear warm-up; over all of it a linear decay to nothing, unless there is none."""
    decay = 1.0 - step / config.steps if config.decay == "linear" else 1.0
    return min(1.0, (step + 1) / max(1, config.warmup)) * decay


def backward(model: nn.Module, batch: Batch, answer: Tensor, parts: int, precision: str = "fp32") -> Tensor:
    """The gradient of the whole batch, taken in so many parts: the same mean, in less memory."""
    rows = len(batch.tokens)
    size = -(-rows // parts)
    losses = []
    for i in range(0, rows, size):
        cut = slice(i, i + size)
        part = Batch(batch.tokens[cut], batch.features[cut], batch.targets[cut], batch.queries)
        with products(precision, is_forward=True):
            loss = loss_nats(model, part, answer[cut])
        if parts > 1:
            loss = loss * (len(part.tokens) / rows)
        with products(precision, is_forward=False):
            loss.backward()
        losses.append(loss.detach())
    return losses[0] if parts == 1 else torch.stack(losses).sum()


@contextmanager
def memory_is_the_batchs() -> Iterator[None]:
    """Around what can be done again with a smaller batch, because it has changed no weight."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise BatchTooLarge(str(error).split(". ")[0]) from None


def train_step(
    model: nn.Module,
    optimizers: list[Optimizer],
    batch: Batch,
    answer: Tensor,
    clip: float,
    parts: int = 1,
    precision: str = "fp32",
) -> Tensor:
    with memory_is_the_batchs():
        loss = backward(model, batch, answer, parts, precision)
        nn.utils.clip_grad_norm_(model.parameters(), clip, foreach=True)
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return loss


def set_rate(optimizer: Optimizer, lr: float) -> None:
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(lr)
        else:
            group["lr"] = lr


def wants_capture(config: RunConfig) -> bool:
    return config.device == "cuda"


class CapturedStep:
    """A training step as one CUDA graph: at these sizes launching its kernels costs more than running them.

    The first calls train as usual, which also warms up what a capture must not start; then the step is captured once,
    on buffers of its own, and replayed. Only whole steps are captured: data is drawn outside, on the same device.
    A model that waits for the GPU cannot be captured: its steps stay as the first ones, and a note says so.
    """

    WARM_UP = 3

    def __init__(self, step: Callable[[Batch, Tensor], Tensor], notes: list[str]) -> None:
        self.step, self.notes, self.calls, self.waits = step, notes, 0, False
        self.replay: Callable[[], Tensor] | None = None

    def __call__(self, batch: Batch, answer: Tensor) -> Tensor:
        self.calls += 1
        if self.calls < self.WARM_UP or self.waits:
            return beside(lambda: self.step(batch, answer))
        if self.calls == self.WARM_UP:
            loss, self.waits = watch_waits(lambda: beside(lambda: self.step(batch, answer)))
            if self.waits and NOT_CAPTURED not in self.notes:
                self.notes.append(NOT_CAPTURED)
            return loss
        if self.replay is None:
            self.buffers = [tensor.clone() for tensor in (*batch, answer)]
            mine, my_answer = Batch(*self.buffers[:-1]), self.buffers[-1]
            with memory_is_the_batchs():  # the optimizers' too: nothing is computed yet
                self.replay = capture(lambda: self.step(mine, my_answer))
        for buffer, tensor in zip(self.buffers, (*batch, answer), strict=True):
            buffer.copy_(tensor)
        return self.replay().clone()  # the next replay writes into the same place


def fit(
    model: nn.Module, task: Task, config: RunConfig, report: Callable[[Progress], None], keeper: Keeper | None = None
) -> Turns[tuple[list[dict[str, Any]], float]]:
    """Train, from where the keeper says; returns the loss curve (one entry a watch point) and the seconds of drawing.

    Every step is a turn. A batch that does not fit into the device's memory is cut into halves until it does, with the
    same gradient.
    """
    optimizers = make_optimizers(model, config)
    base_lrs = [float(optimizer.param_groups[0]["lr"]) for optimizer in optimizers]
    watch = watch_exam(task, config)
    every = max(1, min(config.steps // WATCH_POINTS, WATCH_STEPS))
    keeper = keeper or Keeper(config)
    at = keeper.restore(model, optimizers)

    def plain_step(batch: Batch, answer: Tensor) -> Tensor:
        return train_step(model, optimizers, batch, answer, config.clip, at.parts, config.precision)

    def fresh_step() -> Callable[[Batch, Tensor], Tensor]:
        return CapturedStep(plain_step, at.notes) if wants_capture(config) else plain_step

    def count_drawing() -> None:
        at.data_seconds += drawing.read()

    take_step = fresh_step()
    start = time.perf_counter() - at.seconds
    drawing, first = Stopwatch(config.device), at.step
    stream = draw(task, config, at.step)
    while at.step < config.steps:
        draws = at.step % BLOCK == 0 or at.step == first
        with drawing.running() if draws else nullcontext():
            batch, answer = next(stream)
        for optimizer, lr in zip(optimizers, base_lrs, strict=True):
            set_rate(optimizer, lr * schedule(at.step, config))
        while True:
            try:
                at.losses.append(take_step(batch, answer))
                break
            except BatchTooLarge as error:
                if at.parts >= config.batch:
                    raise
                why = str(error)
            # out of the handler: the error holds the frames of the failed pass, and they its memory
            model.zero_grad(set_to_none=True)
            release_memory(config.device)
            at.parts = min(2 * at.parts, config.batch)
            take_step = fresh_step()
            at.notes.append(f"out of memory at step {at.step + 1} ({why}): the batch goes in {at.parts} parts")
        at.step += 1
        at.seconds = time.perf_counter() - start
        if at.step % every == 0 or at.step == config.steps:
            progress = _look(model, watch, at.losses, at.step, config.steps, start)
            count_drawing()
            at.curve.append(
                {
                    "step": progress.step,
                    "seconds": round(progress.seconds, 3),
                    "loss": progress.loss_bits,
                    "eval_loss": progress.eval_bits,
                    "entropy_mae": progress.entropy_mae,
                    "losses": [float(f"{loss:.5g}") for loss in progress.losses],
                }
            )
            at.losses.clear()
            report(progress)
        keeper.stepped(model, optimizers, count_drawing)
        yield
    return at.curve, at.data_seconds


def watch_exam(task: Task, config: RunConfig) -> Exam:
    """The sequences on which a run is evaluated while it trains."""
    return make_exam(task, config.horizon, min(WATCH_SEQUENCES, config.sequences), config.seed, config.device)


def _look(model: nn.Module, watch: Exam, losses: list[Tensor], step: int, steps: int, start: float) -> Progress:
    """The one place where training waits for the device."""
    each = torch.stack(losses) / LN2
    loss_bits = each.mean().item()
    if not math.isfinite(loss_bits):
        raise Diverged(f"the loss is {loss_bits} by step {step}")
    model.eval()
    result = score(watch, predict(model, watch.batch))
    model.train()
    eval_bits, error = (result.h_bayes + result.kl).mean().item(), result.entropy_mae.mean().item()
    if not math.isfinite(eval_bits):  # the last update is in no training loss
        raise Diverged(f"the loss on the watched sequences is {eval_bits} after step {step}")
    return Progress(step, steps, loss_bits, eval_bits, error, time.perf_counter() - start, tuple(each.tolist()))
