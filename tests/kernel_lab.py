"""Run with TRITON_INTERPRET=1: the kernels interpreted, between guard bands, whole or with a planted mistake.

Reads one JSON object from standard input and prints one. A mistake is a pair of strings to exchange in the source: the
module is loaded from the changed text under its own name, so everything above it is the real thing.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter

BAND, CANARY = 4096, 12345.0


def teach_bfloat16() -> None:
    """The stock interpreter multiplies bfloat16 bit patterns as integers: give its dot real numbers."""
    stock = interpreter.InterpreterBuilder.create_dot

    def widened(handle):
        if handle.dtype.scalar != tl.bfloat16:
            return handle
        bits = handle.data.astype(np.uint32) << 16
        return interpreter.TensorHandle(bits.view(np.float32), tl.float32)

    def create_dot(self, a, b, d, input_precision, max_num_imprecise_acc):
        return stock(self, widened(a), widened(b), d, input_precision, max_num_imprecise_acc)

    interpreter.InterpreterBuilder.create_dot = create_dot


def load_with_mistake(right: str, wrong: str) -> None:
    import models.kernels as package

    path = Path(package.__file__).parent / "attention_triton.py"
    source = path.read_text()
    assert right in source, f"the source no longer says {right!r}"
    changed = Path(tempfile.mkdtemp()) / "attention_triton.py"
    changed.write_text(source.replace(right, wrong))
    name = "models.kernels.attention_triton"
    spec = importlib.util.spec_from_file_location(name, changed)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = package.attention_triton = module
    spec.loader.exec_module(module)


def banded(tensor: torch.Tensor, value: float, bands: list[torch.Tensor]) -> torch.Tensor:
    """The same tensor with a band of `value` before and behind it in memory."""
    whole = torch.full((tensor.numel() + 2 * BAND,), value, dtype=tensor.dtype)
    inner = whole[BAND : BAND + tensor.numel()].view(tensor.shape)
    inner.copy_(tensor)
    bands += [whole[:BAND], whole[BAND + tensor.numel() :]]
    return inner


def main() -> None:
    order = json.load(sys.stdin)
    if order["bfloat16"]:
        teach_bfloat16()
    if order["mistake"]:
        load_with_mistake(*order["mistake"])
    from models.kernels import attention_triton, check

    outputs: list[torch.Tensor] = []
    empty_outputs, empty_gradient = attention_triton._empty_outputs, attention_triton._empty_gradient

    def guarded(tensor: torch.Tensor) -> torch.Tensor:
        return banded(torch.full_like(tensor, float("nan")), CANARY, outputs)

    attention_triton._empty_outputs = lambda qkv: tuple(guarded(t) for t in empty_outputs(qkv))
    attention_triton._empty_gradient = lambda qkv: guarded(empty_gradient(qkv))
    tensors = check.tensors

    def between_nans(case, device):
        given = tensors(case, device)
        return {k: None if t is None else banded(t, float("nan"), []) for k, t in given.items()}

    check.tensors = between_nans
    answers = []
    for wanted in order["cases"]:
        outputs.clear()
        case = check.Case(**wanted)
        found = check.errors(case, "cpu")
        canary = torch.tensor(CANARY)
        touched = sum(int((band != canary.to(band.dtype)).sum()) for band in outputs)
        answers.append({"errors": found, "failures": check.failures(case, found), "touched": touched})
    print(json.dumps(answers))


if __name__ == "__main__":
    main()
