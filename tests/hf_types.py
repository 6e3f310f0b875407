"""models/hf_types.json: which causal models of the transformers library work here, and why others do not.

    python -m tests.hf_types

tries every type at a small budget, and at our largest if it has no size that is so small: it is built, answers in the
right shape, sees neither the future nor the other sequences of a batch, gives every parameter a gradient, and keeps its
weights when it is evaluated. tests/test_hf.py
tries the types again that the documentation names.
"""

import json
import re
import warnings
from dataclasses import replace
from pathlib import Path

import torch

from bench.config import draft
from bench.registry import BadInput
from bench.run.contract import Unlawful, require_lawful
from bench.seeds import generator
from models import hf
from models.base import TOLERANCE, Geometry, count_built
from models.transformer import reference
from tasks.base import TASKS

FILE = Path(hf.__file__).parent / "hf_types.json"
GEOMETRY, LARGER = Geometry(3, 4, 64, 256), Geometry(9, 8, 256, 1024)  # about 150,000 and 7 million parameters
LENGTH = 160  # of a reason


def kinds() -> list[str]:
    """All causal types of the library."""
    hf.library()
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def refusal(kind: str, geometry: Geometry = GEOMETRY) -> str | None:
    """Why this type cannot be used; None if it can."""
    try:
        attempt(kind, geometry)
    except (BadInput, Unlawful) as reason:
        return str(reason)
    except Exception as error:
        words = " ".join(f"{type(error).__name__}: {error}".split())
        return words if len(words) <= LENGTH else words[: LENGTH - 3] + "..."
    return None


def attempt(kind: str, geometry: Geometry) -> None:
    task = TASKS["hmm"]()
    config = replace(draft("smoke", "transformer", "hmm", 0, "cpu", {}), arch=hf.name_of(kind))
    torch.manual_seed(0)
    budget = count_built(lambda: reference(task.shape, geometry))
    size = hf.solve_size(kind, task.shape, budget, geometry)
    count = count_built(lambda: hf.assemble(kind, task.shape, geometry, size))  # a model can be too large to be built
    if abs(count - budget) > TOLERANCE * budget:
        raise BadInput(f"no size of it is within 1 % of {budget:,} parameters (nearest: {count:,})")
    model = hf.assemble(kind, task.shape, geometry, size)
    with torch.no_grad():  # some layers start at zero
        for p in model.parameters():
            p.add_(0.02 * torch.randn_like(p))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    require_lawful(model, task, config)
    for name, tensor in model.state_dict().items():
        if not torch.equal(tensor, before[name]):
            raise BadInput(f"evaluation changes {name}")
    batch = task.sample(16, task.horizon, generator("cpu", 0, "types"))
    model(batch.tokens, batch.features).logsumexp(-1).square().mean().backward()
    for name, p in model.named_parameters():
        if p.grad is None or not p.grad.isfinite().all() or not p.grad.any():
            raise BadInput(f"{name} gets no gradient")


def try_both(kind: str) -> str | int | None:
    """None if it works at the small budget, its least size if it works at the large one, else why not."""
    reason = refusal(kind)
    least = re.match(r"its smallest size has ([\d,]+)", reason or "")
    if not least:
        return reason
    if refusal(kind, LARGER):
        return f"too large: at least {least[1]} parameters with three layers"
    return int(least[1].replace(",", ""))


def write() -> None:
    warnings.simplefilter("ignore")
    names = [hf.name_of(kind) for kind in kinds()]
    assert len(set(names)) == len(names), "two types have one name"
    found = {kind: try_both(kind) for kind in kinds()}
    known = {
        "transformers": hf.library().__version__,
        "works": [kind for kind, reason in found.items() if reason is None],
        "larger": {kind: least for kind, least in found.items() if isinstance(least, int)},
        "refused": {kind: reason for kind, reason in found.items() if isinstance(reason, str)},
    }
    FILE.write_text(json.dumps(known, indent=1) + "\n")


if __name__ == "__main__":
    write()
