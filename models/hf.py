"""Causal models of the transformers library: `--arch hf:llama`, which records name hf-llama.

    x = embed(tokens, features)         of this suite
    h = base(inputs_embeds=x)           of the library, with its own positions, norms and initialisation
    logits = head(h)                    of this suite

The base is built from its own config. It has as many layers and heads as the reference transformer; models without
feed-forward layers have twice as many layers. The width and one further size meet the parameter budget, as near to the
proportions of the library's defaults as possible. Nothing is downloaded: there are no pretrained weights here.

Which types work was found out by trying all of them (tests/hf_types.py wrote hf_types.json). The library is an extra
and takes seconds to import, so only `build` imports it.

Muon trains the matrices of the base's linear layers, each as one map even if it packs several.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from bench.registry import BadInput, unknown
from models.base import ARCHS, TOLERANCE, Embed, Geometry, assign_to_muon, count_built, solve
from tasks.base import Shape

PREFIX = "hf:"
LONGEST = 4096  # positions that a base is built for, unless it learns a vector for each
SECOND = ("intermediate_size", "n_inner", "ffn_dim", "d_ff", "ffn_hidden_size", "state_size")  # the second size to vary

MARKS = ("pad_token_id", "bos_token_id", "eos_token_id")  # our tokens have no such meanings


@cache
def types() -> dict[str, Any]:
    """The library's types that work, and why others do not."""
    found: dict[str, Any] = json.loads((Path(__file__).parent / "hf_types.json").read_text())
    return found


class Size(NamedTuple):
    width: int
    second: int
    positions: int


@dataclass(frozen=True)
class Special:
    """What a type needs beyond the rule."""

    second: str = ""  # the size to vary
    settings: Mapping[str, Any] = field(default_factory=dict)
    no_heads: bool = False  # its width need not be a multiple of the heads
    depth: int = 1  # layers for each layer of the reference


SPECIAL = {
    "mamba": Special("state_size", depth=2, no_heads=True),
    "mamba2": Special("state_size", {"n_groups": 1, "chunk_size": 32}, no_heads=True, depth=2),
    "falcon_mamba": Special("state_size", depth=2, no_heads=True),
    "rwkv": Special(settings={"rescale_every": 0}, no_heads=True),  # else evaluation changes the weights
    "xlstm": Special("ffn_proj_factor", {"ffn_round_up_to_multiple_of": 1}),
}


def from_library(arch: str) -> bool:
    return arch in ARCHS and ARCHS.facts(arch).get("extra") == "hf"


def missing_library(arch: str) -> str | None:
    """What to install before this architecture can be built."""
    if from_library(arch) and find_spec("transformers") is None:
        return f"{arch} needs the transformers library: pip install 'tunnel-bench[hf]'"
    return None


@cache
def library() -> Any:
    """transformers, with no way to the network."""
    os.environ["HF_HUB_OFFLINE"] = "1"  # it reads both when it is imported
    os.environ["USE_HUB_KERNELS"] = "0"
    import transformers

    transformers.logging.set_verbosity_error()
    return transformers


def make_config(kind: str, shape: Shape, geometry: Geometry, size: Size) -> Any:
    """The library's config of this type; of the values below it gets those that it has."""
    known = library().CONFIG_MAPPING[kind]
    names = {f.name: f.default for f in fields(known)}
    special, heads = SPECIAL.get(kind, Special()), geometry.heads
    wanted = {
        "hidden_size": size.width,
        "num_hidden_layers": geometry.layers * special.depth,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "num_heads": heads,
        "head_dim": getattr(known(), "expand", 1) * size.width // heads,
        "rotary_dim": size.width // heads,
        "max_position_embeddings": size.positions,
        "vocab_size": shape.vocab,
        **{f.name: None if "None" in str(f.type) else 0 for f in fields(known) if f.name in MARKS},
        "use_cache": False,
        "is_decoder": True,
        **{name: 0.0 for name, default in names.items() if "drop" in name and isinstance(default, float)},
        **special.settings,
    }
    second = second_name(kind)
    if second:
        wanted[second] = size.second / size.width if isinstance(names[second], float) else size.second
    wanted = {known.attribute_map.get(name, name): value for name, value in wanted.items()}
    return known(**{name: value for name, value in wanted.items() if name in names})


def second_name(kind: str) -> str | None:
    """The config's name for the second size to vary."""
    if kind in SPECIAL and SPECIAL[kind].second:
        return SPECIAL[kind].second
    names = {f.name for f in fields(library().CONFIG_MAPPING[kind])}
    return next((name for name in SECOND if name in names), None)


def usual_second(kind: str, width: int) -> int:
    """The second size in the proportion of the library's default: a state has always the same, others grow with D."""
    default = library().CONFIG_MAPPING[kind]()
    name = second_name(kind)
    value = getattr(default, name) if name else None
    if name == "state_size" and value:
        return int(value)
    if isinstance(value, float):
        return round(value * width)
    return round(value / default.hidden_size * width) if value else 4 * width


def make_base(config: Any, attention: str) -> nn.Module:
    known = library().AutoModel
    kind = known._model_mapping[type(config)]
    backend = "sdpa" if attention != "math" and kind._supports_sdpa else "eager"
    base: Any = known.from_config(
        config, dtype=torch.float32, attn_implementation=backend, experts_implementation="eager"
    )
    base.set_input_embeddings(None)  # this suite's take its place
    for module in base.modules():
        if isinstance(module, nn.Linear | library().pytorch_utils.Conv1D):
            assign_to_muon(module.weight)
    return base


class HuggingFace(nn.Module):
    def __init__(self, shape: Shape, width: int, base: nn.Module, max_length: int | None) -> None:
        super().__init__()
        self.max_length = max_length
        self.embed = Embed(shape, width)
        self.base = base
        self.head = nn.Linear(width, shape.classes)

    def forward(self, tokens_BT: Tensor, features_BTF: Tensor) -> Tensor:
        return self.head(self.base(inputs_embeds=self.embed(tokens_BT, features_BTF)).last_hidden_state)


def assemble(kind: str, shape: Shape, geometry: Geometry, size: Size) -> nn.Module:
    base = make_base(make_config(kind, shape, geometry, size), geometry.attention)
    return HuggingFace(shape, size.width, base, size.positions if size.positions != LONGEST else None)


@cache
def solve_size(kind: str, shape: Shape, params: int, geometry: Geometry) -> Size:
    """The size in budget that is nearest to the usual proportions."""

    def count(width: int, second: int, positions: int) -> int:
        return count_built(partial(assemble, kind, shape, geometry, Size(width, second, positions)))

    heads = geometry.heads
    special = SPECIAL.get(kind, Special())
    multiple = math.lcm(8, heads) if special.no_heads else 8 * heads  # rotations need head widths that can be halved
    first = usual_second(kind, multiple)
    length = shape.length(shape.horizon)
    smallest = count(multiple, min(8, first), length)
    if smallest > (1 + TOLERANCE) * params:
        raise BadInput(f"its smallest size has {smallest:,} parameters, and the budget is {params:,}")
    learned = count(multiple, min(8, first), LONGEST) != smallest
    positions = length if learned else LONGEST
    nearest = solve(lambda n: count(n * multiple, usual_second(kind, n * multiple), positions), params)
    sizes = []
    for width in (n * multiple for n in range(max(1, nearest - 1), nearest + 2)):
        usual = usual_second(kind, width)
        at_usual, next_to_it = (count(width, second, positions) for second in (usual, usual + 8))
        second = usual
        if next_to_it != at_usual:
            second = max(1, usual + round(8 * (params - at_usual) / (next_to_it - at_usual)))
        off_budget = abs(count(width, second, positions) - params) > TOLERANCE * params
        sizes.append((off_budget, abs(math.log(second / usual)), Size(width, second, positions)))
    return min(sizes)[2]


def find(kind: str) -> str:
    """The registered name of hf:KIND, or why there is none."""
    known = types()
    if kind in known["refused"]:
        raise BadInput(f"{PREFIX}{kind} does not work here: {known['refused'][kind]}")
    if kind not in (works := [*known["works"], *known["larger"]]):
        raise unknown("causal type of the transformers library", kind, works)
    return name_of(kind)


def build(shape: Shape, params: int, geometry: Geometry, *, kind: str) -> nn.Module:
    if reason := missing_library(name_of(kind)):
        raise BadInput(reason)
    return assemble(kind, shape, geometry, solve_size(kind, shape, params, geometry))


def name_of(kind: str) -> str:
    """The name of a type in records and tables."""
    return f"hf-{kind.replace('_', '-')}"


for each in (*types()["works"], *types()["larger"]):
    ARCHS.add(name_of(each), extra="hf", fixed_block=True, note=f"{each} of the transformers library")(
        partial(build, kind=each)
    )
