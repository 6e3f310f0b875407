"""What lower precision would cost in accuracy: trains on a CPU with every product's inputs rounded, scores in fp32.

    python docs/precision/emulate.py --task bijection hmm --seeds 3

prints the table of docs/precision.md. Rounding is to the nearest, ties to even: tf32 keeps 10 bits of the fraction,
bf16 keeps 7. Sums are in float32, as on a GPU. Emulated are the products of training, forward and backward, outside of
Muon; what autocast stores in bfloat16 between products is not, so a GPU's bf16 may be worse than its line here.
"""

from __future__ import annotations

import argparse
from contextlib import nullcontext
from statistics import mean
from typing import Any

import torch
from tabulate import tabulate
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from bench.config import compose, parse_settings
from bench.run import train
from bench.run.run import evaluate, make_model
from bench.run.turns import finish
from bench.seeds import PUBLISHED_FROM
from bench.stats import interval
from bench.text import number

FRACTION = {"fp32": 23, "tf32": 10, "bf16": 7}  # bits
aten = torch.ops.aten
INPUTS = {
    aten.mm.default: (0, 1), aten.bmm.default: (0, 1), aten.addmm.default: (1, 2), aten.baddbmm.default: (1, 2),
}  # fmt: skip


def rounded(x: Tensor, bits: int) -> Tensor:
    """A float32 tensor with so many bits of its fraction."""
    drop = 23 - bits
    pattern = x.contiguous().view(torch.int32)
    half = (1 << (drop - 1)) - 1 + ((pattern >> drop) & 1)  # ties to even
    return ((pattern + half) & ~((1 << drop) - 1)).view(torch.float32)


class Rounding(TorchDispatchMode):
    def __init__(self, bits: int) -> None:
        super().__init__()
        self.bits = bits

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args = list(args)
        for i in INPUTS.get(op, ()):
            if args[i].dtype == torch.float32:
                args[i] = rounded(args[i], self.bits)
        return op(*args, **(kwargs or {}))


def error(preset: str, arch: str, task: str, seed: int, precision: str, settings: dict[str, Any]) -> float:
    """Entropy MAE in bits at the training horizon."""
    config = compose(preset, arch, task, seed, "cpu", {"attention": "math", **settings})  # sdpa is one opaque call
    model = make_model(config)
    exact = train.backward

    def backward(*arguments: Any) -> Tensor:
        with Rounding(FRACTION[precision]) if precision != "fp32" else nullcontext():
            return exact(*arguments)

    train.backward = backward
    try:
        finish(train.fit(model, config.make_task(), config, lambda _: None))
    finally:
        train.backward = exact
    found: float = evaluate(model, config.make_task(), config)["metrics"][str(config.horizon)]["all"]["entropy_mae"]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", nargs="+", default=["bijection", "hmm"])
    parser.add_argument("--arch", default="transformer")
    parser.add_argument("--preset", default="small")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--set", nargs="+", default=[], dest="settings")
    options = parser.parse_args()
    rows = []
    for task in options.task:
        for precision in FRACTION:
            seeds = range(PUBLISHED_FROM, PUBLISHED_FROM + options.seeds)
            settings = parse_settings(options.settings)
            errors = [error(options.preset, options.arch, task, seed, precision, settings) for seed in seeds]
            bounds = interval(errors)
            shown = f"{number(bounds[0])} to {number(bounds[1])}" if bounds else ""
            rows.append([task, precision, number(mean(errors)), shown, ", ".join(map(number, errors))])
    header = ["task", "products", "MAE, bits", "95 % interval", "by seed"]
    print(tabulate(rows, headers=header, tablefmt="pipe", disable_numparse=True))


if __name__ == "__main__":
    main()
