"""How fast this machine runs the bench, as ratios measured in one process on one core.

What is compared runs in turns (ours, theirs, ours, theirs ...), and a ratio is that of the medians, so other work on a
shared machine slows down both sides. A product of square matrices, measured in the same turns, is the peak that "share
of peak" refers to. Freed memory is kept by the process; otherwise each side would pay for pages that the other returned
to the system, which does not happen in a run that trains one model.

step          a whole training step: forward, backward, clipping, optimizer, with the blocks of the preset for hmm.
              "plain" is torch's nn.TransformerEncoder with the same layers, heads and width, as many parameters (to
              1 %) and AdamW, as in a first script. "stock" is the same with torch.optim.Muon for its matrices, our
              recipe from torch's own parts. "lens" is TransformerLens' HookedTransformer, if a version before 4.0 is
              installed; it reads only the tokens, not the numbers of the header
arithmetic    forward and backward only, on both sides
sampling      sequences with their exact posterior, against a Python loop over sequences and steps
data          sequences with their exact posterior, as a share of a training step at quick, for every task and for
              pools of laws. The step includes its data
evaluation    one forward pass for all positions, against one forward pass per prefix
exponents     slope of log(time) over log(size), with the other sizes of the preset
"""

from __future__ import annotations

import ctypes
import platform
import time
from collections.abc import Callable
from functools import partial
from statistics import median

import numpy as np
import torch
from rich.table import Table
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import AdamW, Muon, Optimizer

from bench.config import RunConfig, compose, task_parameters
from bench.run.meter import count_flops
from bench.run.run import make_model, step_flops
from bench.run.score import predict
from bench.run.train import BLOCK, backward, draw, make_optimizers, train_step
from bench.seeds import generator
from models.base import Embed
from tasks.base import TASKS, Batch, Shape
from tasks.hmm import HMM

ROUNDS = 5
ROUNDS_LARGE = 3
PEAK = 1024  # side of the square matrices whose product is the peak
POOL = 64  # laws
NOISE = 0.1
GROWTH = {"batch": (32, 64, 128), "horizon": (20, 40, 80), "width": (64, 128, 256)}
Work = Callable[[], object]


class Plain(nn.Module):
    """The model of a first script: torch's encoder with a causal mask, on the same embedding."""

    def __init__(self, shape: Shape, config: RunConfig) -> None:
        super().__init__()
        self.embed = Embed(shape, config.width)
        layer = nn.TransformerEncoderLayer(
            config.width, config.heads, config.ffn, dropout=0.0, batch_first=True, norm_first=True
        )
        self.stack = nn.TransformerEncoder(layer, config.layers, nn.LayerNorm(config.width), enable_nested_tensor=False)
        self.head = nn.Linear(config.width, shape.classes)

    def forward(self, tokens_BT: Tensor, features_BTF: Tensor) -> Tensor:
        mask_TT = nn.Transformer.generate_square_subsequent_mask(tokens_BT.shape[1])
        x_BTD = self.stack(self.embed(tokens_BT, features_BTF), mask=mask_TT, is_causal=True)
        logits: Tensor = self.head(x_BTD)
        return logits


def measure(progress: Callable[[str], None] = lambda _: None) -> dict[str, float]:
    """Ratios and rates by name. Measurements are comparable only if nothing else used the same cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    hold_memory()
    try:
        found: dict[str, float] = {}
        for preset, rounds in (("small", ROUNDS), ("paper", ROUNDS_LARGE)):
            progress(f"training step, hmm at {preset} shape")
            found |= {f"{preset}_{name}": value for name, value in step_ratios(preset, rounds).items()}
        progress("sampling")
        found |= sampling_ratio()
        for task in TASKS.names():
            progress(f"data of {task}")
            found |= data_shares(task)
        progress("evaluation")
        found |= evaluation_ratio()
        for name, sizes in GROWTH.items():
            progress(f"growth with {name}")
            found[f"exponent_{name}"] = exponent(name, sizes)
        return found
    finally:
        torch.set_num_threads(threads)


def hold_memory() -> None:
    """Keep glibc from returning memory: every page that it requests again has to be cleared first."""
    if platform.libc_ver()[0] == "glibc":
        trim_threshold, mmap_max = -1, -4
        glibc = ctypes.CDLL(None)
        glibc.mallopt(mmap_max, 0)
        glibc.mallopt(trim_threshold, -1)


def lens(shape: Shape, config: RunConfig) -> nn.Module | None:
    """TransformerLens' transformer of the same shape; None if it is not installed or too new to have one."""
    try:
        from transformer_lens import HookedTransformer, HookedTransformerConfig
    except ImportError:
        return None
    size = HookedTransformerConfig(
        n_layers=config.layers, n_heads=config.heads, d_model=config.width, d_head=config.width // config.heads,
        d_mlp=config.ffn, n_ctx=shape.length(config.horizon), d_vocab=shape.vocab, d_vocab_out=shape.classes,
        act_fn="relu", normalization_type="LN", device="cpu", seed=0,
    )  # fmt: skip
    model: nn.Module = HookedTransformer(size)
    return model


def stock_recipe(model: Plain) -> list[Optimizer]:
    """Our recipe with torch's own optimizers: Muon for the matrices of the stack, AdamW for the rest."""
    matrices = [p for p in model.stack.parameters() if p.ndim == 2]
    taken = {id(p) for p in matrices}
    rest = [p for p in model.parameters() if id(p) not in taken]
    return [Muon(matrices, lr=1e-4), AdamW(rest, lr=1e-4)]


def first_script(
    model: nn.Module, optimizers: list[Optimizer], inputs: tuple[Tensor, ...], data: tuple[Batch, Tensor]
) -> tuple[Work, Work]:
    """A whole training step, and only its forward and backward pass."""

    def arithmetic() -> None:
        logits = model(*inputs)[:, data[0].queries]
        cross_entropy(logits.flatten(0, 1), data[1].flatten(0, 1)).backward()

    def step() -> None:
        arithmetic()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()

    return step, arithmetic


def step_ratios(preset: str, rounds: int) -> dict[str, float]:
    config = compose(preset, "transformer", "hmm", 0, "cpu", {"steps": 1, "batch": 64})
    task = config.make_task()
    model = make_model(config)
    optimizers = make_optimizers(model, config)
    data = next(draw(task, config))
    batch = data[0]
    square = torch.randn(PEAK, PEAK)

    inputs = (batch.tokens, batch.features)
    plain, stock = Plain(task.shape, config), Plain(task.shape, config)
    others = {"plain": first_script(plain, [AdamW(plain.parameters(), lr=1e-4)], inputs, data)}
    hooked = lens(task.shape, config)
    if hooked is not None:
        others["lens"] = first_script(hooked, [AdamW(hooked.parameters(), lr=1e-4)], (batch.tokens,), data)
    stock_step, _ = first_script(stock, stock_recipe(stock), inputs, data)

    backward(model, *data, 1)
    with count_flops() as counted:
        for optimizer in optimizers:
            optimizer.step()
    flops = step_flops(config)
    works: dict[str, Work] = {
        "peak": lambda: square @ square,
        "step": lambda: train_step(model, optimizers, *data, config.clip),
        "arithmetic": lambda: backward(model, *data, 1),
        "muon": lambda: optimizers[1].step(),  # on the gradients that arithmetic leaves
        "stock step": stock_step,
    }
    for name, (step, arithmetic) in others.items():
        works |= {f"{name} step": step, f"{name} arithmetic": arithmetic}
    t = turns(works, rounds)
    peak = 2 * PEAK**3 / t["peak"]
    found = {"step_over_stock": t["step"] / t["stock step"]}
    for name in others:
        found[f"step_over_{name}"] = t["step"] / t[f"{name} step"]
        found[f"arithmetic_over_{name}"] = t["arithmetic"] / t[f"{name} arithmetic"]
    return found | {
        "step_share_of_peak": (flops + counted["flops"]) / t["step"] / peak,
        "arithmetic_share_of_peak": flops / t["arithmetic"] / peak,
        "optimizer_share_of_step": 1 - t["arithmetic"] / t["step"],
        "muon_share_of_step": t["muon"] / t["step"],
    }


def turns(works: dict[str, Work], rounds: int = ROUNDS) -> dict[str, float]:
    """Median seconds of each, measured in turns after one round of warm-up."""
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for i in range(rounds + 1):
        for name, work in works.items():
            start = time.perf_counter()
            work()
            if i:
                seconds[name].append(time.perf_counter() - start)
    return {name: median(values) for name, values in seconds.items()}


def sampling_ratio() -> dict[str, float]:
    task, rng = HMM(), generator("cpu", 0, "perf")
    t = turns({"ours": lambda: task.posterior(task.sample(1024, 20, rng)), "plain": lambda: one_by_one(task, 16, rng)})
    return {"sampling_over_plain": (1024 / t["ours"]) / (16 / t["plain"]), "sequences_per_second": 1024 / t["ours"]}


def data_shares(task: str) -> dict[str, float]:
    """Of one task: by its own setting, with a pool of laws, and with noise, if it has them."""
    cases: dict[str, dict[str, float]] = {task: {}}
    for name, value in (("pool", POOL), ("noise", NOISE)):
        if task_parameters(task).get(name, value) in (None, 0):
            cases[f"{task} {name}={value}"] = {name: value}
    return {f"{name}_data_share": data_share(task, params) for name, params in cases.items()}


def data_share(task: str, params: dict[str, float]) -> float:
    """Of a training step, drawing its sequences included, the time that sequences and exact posterior take."""
    config = compose("quick", "transformer", task, 0, "cpu", {"steps": BLOCK, **params})
    law, model = config.make_task(), make_model(config)
    batch, optimizers = next(draw(law, config)), make_optimizers(model, config)
    works: dict[str, Work] = {
        "data": lambda: next(draw(law, config)),  # of so many steps at once
        "step": lambda: train_step(model, optimizers, *batch, config.clip),
    }
    t = turns(works, ROUNDS_LARGE)
    data_seconds = t["data"] / BLOCK
    return data_seconds / (data_seconds + t["step"])


def evaluation_ratio() -> dict[str, float]:
    config = compose("small", "transformer", "hmm", 0, "cpu", {"steps": 1})
    task = config.make_task()
    model = make_model(config).eval()
    batch = task.sample(64, 50, generator("cpu", 0, "perf"))
    t = turns({"ours": lambda: predict(model, batch), "plain": lambda: prefix_by_prefix(model, batch)})
    return {"evaluation_over_plain": t["plain"] / t["ours"]}


@torch.no_grad()
def prefix_by_prefix(model: nn.Module, batch: Batch) -> Tensor:
    """The straightforward way: for every position, read the sequence up to it."""
    logits = [model(batch.tokens[:, : q + 1], batch.features[:, : q + 1])[:, -1] for q in batch.queries.tolist()]
    return torch.stack(logits, dim=1).to(torch.float64).log_softmax(-1)


def exponent(name: str, sizes: tuple[int, ...]) -> float:
    """The exponent with which a step's time grows with one size, by least squares on log-log axes."""
    steps: dict[str, Work] = {}
    for size in sizes:
        config = compose("small", "transformer", "hmm", 0, "cpu", {"steps": 1, "layers": 2, name: size})
        model, data = make_model(config), next(draw(config.make_task(), config))
        optimizers = make_optimizers(model, config)
        steps[str(size)] = partial(train_step, model, optimizers, *data, config.clip)
    t = turns(steps)
    return float(np.polyfit(np.log(sizes), np.log([t[str(size)] for size in sizes]), 1)[0])


MEANING = {
    "step_over_stock": "training step, time over the same recipe by nn.TransformerEncoder and torch.optim.Muon",
    "step_over_plain": "training step, time over nn.TransformerEncoder's with AdamW",
    "arithmetic_over_plain": "forward and backward only, the same",
    "step_over_lens": "training step, time over TransformerLens' HookedTransformer with AdamW",
    "arithmetic_over_lens": "forward and backward only, the same",
    "step_share_of_peak": "training step, share of the GEMM peak (including the optimizer's products)",
    "arithmetic_share_of_peak": "forward and backward only, the same",
    "optimizer_share_of_step": "share of a step that is not forward and backward",
    "muon_share_of_step": "share of a step that is Muon",
    "sampling_over_plain": "sampling with posterior, speed over a loop over sequences",
    "sequences_per_second": "sequences sampled per second, hmm, K = 20",
    "data_share": "share of a training step at quick that sampling with posterior takes",
    "evaluation_over_plain": "evaluation, speed over prefix by prefix, K = 50",
    "exponent_batch": "growth of a step with the batch, exponent",
    "exponent_horizon": "growth with the horizon",
    "exponent_width": "growth with the width",
}


def report(found: dict[str, float]) -> Table:
    table = Table("what", "shape", "value", box=None, header_style="bold")
    for name, value in found.items():
        preset, _, rest = name.partition("_")
        shape, key = (preset, rest) if rest in MEANING else ("", name)
        table.add_row(MEANING[key], shape, f"{value:,.0f}" if value >= 10 else f"{value:.2f}")
    return table


def one_by_one(task: HMM, n: int, rng: torch.Generator) -> None:
    """The straightforward way: a Python loop over sequences and steps."""
    for _ in range(n):
        law = torch.distributions.Dirichlet(torch.ones(task.states, task.states, dtype=torch.float64))
        transition, emission = law.sample(), law.sample()
        state = int(torch.randint(task.states, (), generator=rng))
        belief = torch.full((task.states,), 1.0 / task.states, dtype=torch.float64)
        for _ in range(task.horizon):
            state = int(torch.multinomial(transition[state], 1, generator=rng))
            symbol = int(torch.multinomial(emission[state], 1, generator=rng))
            belief = (belief @ transition) * emission[:, symbol]
            belief = belief / belief.sum()
