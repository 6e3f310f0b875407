"""What lower precision would cost in accuracy: trains on a CPU with numbers rounded as a GPU would, scores in float32.

    python docs/precision/emulate.py --preset quick --out results/precision      # may be stopped, and continues
    python docs/precision/emulate.py --table results/precision                   # the table of docs/precision.md

Rounding is to the nearest, ties to even: tf32 keeps 10 bits of the fraction, bf16 keeps 7. Sums are in float32, as on a
GPU. In every row the products of Muon are those of a GPU: inputs and results in bfloat16. The inputs of the other
products of training, forward and backward, are rounded to the row's precision; what autocast stores in bfloat16 between
products is not, so a GPU's bf16 may be worse than its row here.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from tabulate import tabulate
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from bench.config import RunConfig, compose, parse_settings
from bench.presets import PRESETS
from bench.records import write_whole
from bench.run import muon, train
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


def orthogonalise(stack: Tensor) -> Tensor:
    """bench.run.muon.orthogonalise in bfloat16, without the slow products of a CPU: each result is rounded."""
    bits = FRACTION["bf16"]
    a, b, c = muon.COEFFICIENTS
    stack = rounded(stack.float(), bits)
    tall = stack.shape[-2] > stack.shape[-1]
    x = stack.mT if tall else stack
    x = rounded(x / rounded(x.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7), bits), bits)
    for _ in range(muon.STEPS):
        gram = rounded(x @ x.mT, bits)
        x = rounded(torch.baddbmm(x, rounded(torch.baddbmm(gram, gram, gram, beta=b, alpha=c), bits), x, beta=a), bits)
    return x.mT if tall else x


@contextmanager
def gpu_arithmetic(precision: str) -> Iterator[None]:
    """Training as a GPU would compute it; scoring is not touched."""
    exact = train.backward, muon.orthogonalise

    def backward(*arguments: Any) -> Tensor:
        with Rounding(FRACTION[precision]) if precision != "fp32" else nullcontext():
            return exact[0](*arguments)

    train.backward, muon.orthogonalise = backward, orthogonalise
    try:
        yield
    finally:
        train.backward, muon.orthogonalise = exact


def error(config: RunConfig, precision: str) -> float:
    """Entropy MAE in bits at the training horizon."""
    model = make_model(config)
    with gpu_arithmetic(precision):
        finish(train.fit(model, config.make_task(), config, lambda _: None))
    found: float = evaluate(model, config.make_task(), config)["metrics"][str(config.horizon)]["all"]["entropy_mae"]
    return found


def run(options: argparse.Namespace) -> None:
    """One file for each task, precision and seed; those that are there are not repeated."""
    settings = {"attention": "math", **parse_settings(options.settings)}  # sdpa is one opaque call
    for seed in range(PUBLISHED_FROM, PUBLISHED_FROM + options.seeds):
        for task in options.task:
            config = compose(options.preset, options.arch, task, seed, "cpu", settings)
            for precision in FRACTION:
                path = options.out / f"{config.id()}-{precision}.json"
                if not path.exists():
                    facts = {"task": task, "arch": options.arch, "preset": options.preset, "steps": config.steps}
                    facts |= {"precision": precision, "seed": seed, "entropy_mae": error(config, precision)}
                    options.out.mkdir(parents=True, exist_ok=True)
                    write_whole(path, (json.dumps(facts, indent=1) + "\n").encode())
                print(path.read_text(), flush=True)


def table(folder: Path) -> str:
    """Means over seeds, and 95 % intervals."""
    found: dict[tuple[str, ...], dict[str, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
    for path in sorted(folder.glob("*.json")):
        facts = json.loads(path.read_text())
        row = (facts["task"], facts["arch"], facts["preset"], f"{facts['steps']:,}")
        found[row][facts["precision"]][facts["seed"]] = facts["entropy_mae"]
    rows = []
    for row, by_precision in sorted(found.items()):
        for precision in FRACTION:
            if errors := [value for _, value in sorted(by_precision[precision].items())]:
                bounds = interval(errors)
                shown = f"{number(bounds[0])} to {number(bounds[1])}" if bounds else ""
                rows.append([*row, precision, number(mean(errors)), shown, ", ".join(map(number, errors))])
    header = ["task", "architecture", "preset", "steps", "precision", "MAE, bits", "95 % interval", "by seed"]
    return tabulate(rows, headers=header, tablefmt="pipe", disable_numparse=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", nargs="+", default=["bijection", "hmm"])
    parser.add_argument("--arch", default="transformer")
    parser.add_argument("--preset", default="small", choices=list(PRESETS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--set", nargs="+", default=[], dest="settings")
    parser.add_argument("--out", type=Path, default=Path("results/precision"))
    parser.add_argument("--table", type=Path, metavar="FOLDER", help="print the table of a folder, train nothing")
    options = parser.parse_args()
    if options.table is None:
        run(options)
    print(table(options.table or options.out))


if __name__ == "__main__":
    main()
