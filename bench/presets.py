"""Presets: the sizes and recipes that have names, and the rows of their tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

TASKS = ("bijection", "bijection-revisit", "hmm", "bernoulli")
CORE = ("transformer", "mlp", "mlp-pointwise", "transformer-no-attn-top2", "transformer-uniform-attn")


def contexts(settings: Mapping[str, Any]) -> int:
    """The number of a chain's contexts, alphabet^order; 2 for chains that the task will refuse."""
    order, alphabet = settings["order"], settings.get("alphabet", 2)
    return int(alphabet**order) if 1 <= order <= 8 and alphabet >= 2 else 2


def by_contexts(each: int, least: int = 1, less: int = 0) -> Callable[[Mapping[str, Any]], int]:
    """A horizon that grows with the number of a chain's contexts."""
    return lambda settings: max(least, each * contexts(settings) - less)


def by_order(values: Mapping[int, int]) -> Callable[[Mapping[str, Any]], int]:
    """A setting with a value for each order of a chain; higher orders have that of the highest."""
    return lambda settings: values.get(settings["order"], values[max(values)])


RECIPE = {
    "supervision": "posterior",
    "horizon": 20,
    "positions": "alibi",
    "batch": 64,
    "optimizer": "muon",
    "lr": 0.02,
    "adam_lr": 0.003,
    "weight_decay": 0.3,
    "warmup": 30,
    "clip": 1.0,
    "sequences": 2048,
}

NEWER_BLOCK = {"positions": "alibi-shift", "activation": "swiglu"}  # what docs/recipe.md found best for hmm
HMM_TOKENS = {"horizon": 15, "horizons": (15, 20, 30, 50), "positions": "sinusoidal"}  # the released code's K is 15

MARKOV = {**NEWER_BLOCK, "order": 2, "horizon": by_contexts(16, least=64)}
RECURRENCE = {**NEWER_BLOCK, "horizon": 15}  # predictions from a sequence of 16 symbols

LPE_REPORT = {
    "supervision": "sampled",
    "horizon": 1023,  # predictions from a sequence of 1,024 bits
    "horizons": (255, 1023),
    "positions": "none",
    "layers": 1,
    "heads": 1,
    "width": 16,
    "ffn": 16,
    "steps": 4000,
    "optimizer": "adamw",
    "lr": 3e-4,
    "weight_decay": 0.01,
    "warmup": 400,
    "decay": "none",  # the report names a warm-up and no decay
    "sequences": 512,
}


@dataclass(frozen=True)
class Preset:
    name: str
    note: str
    seeds: int
    values: Mapping[str, Any]
    by_task: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    archs: tuple[str, ...] = CORE
    tasks: tuple[str, ...] = TASKS

    def values_for(self, task: str, params: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The settings of a task. One that follows from others is a function of them, and `params` replace ours."""
        values = {**RECIPE, **self.values, **self.by_task.get(task, {})}
        known = {**values, **(params or {})}
        return {name: value(known) if callable(value) else value for name, value in values.items()}


_ALL = (
    Preset(
        "smoke",
        "seconds; for tests, its numbers mean nothing",
        seeds=1,
        values={
            "layers": 3,
            "heads": 2,
            "width": 32,
            "ffn": 64,
            "steps": 12,
            "batch": 16,
            "warmup": 2,
            "sequences": 64,
        },
        by_task={
            "bernoulli": {"positions": "none", "bos": True},
            "hmm": {**NEWER_BLOCK, "ffn": 80},
            "markov": MARKOV,
            "recurrence": RECURRENCE,
            "hmm-pool": NEWER_BLOCK,
            "hmm-tokens": HMM_TOKENS,
            "recall-64": {"horizon": 3},
            "revision": {"horizon": 5},
            "revision-cue": {"horizon": 1},
        },
    ),
    Preset(
        "quick",
        "minutes on two CPU cores; the default",
        seeds=1,
        values={"layers": 3, "heads": 4, "width": 64, "ffn": 256, "steps": 1000},
        by_task={
            "bijection": {"steps": 1080, "batch": 32, "weight_decay": 0.0},
            "hmm": {"layers": 6, "heads": 3, "width": 48, "ffn": 192, "steps": 700},
            "hmm-sticky": {"layers": 6, "heads": 3, "width": 48, "ffn": 192, "steps": 500, "horizon": 40},
            "hmm-tokens": {**HMM_TOKENS, "layers": 6, "heads": 3, "width": 48, "ffn": 192, "steps": 700},
            "recall-64": {"horizon": 3},
            "revision": {"horizon": 5},
            "revision-cue": {"horizon": 1},
            "regression": {"steps": 600},
            "markov": {**MARKOV, "layers": 4, "steps": 700, "batch": 32},
            "recurrence": RECURRENCE,
            "hmm-pool": {**NEWER_BLOCK, "layers": 6, "heads": 3, "width": 48, "ffn": 192, "steps": 700},
            "group": {"layers": 6, "heads": 3, "width": 48, "ffn": 192, "steps": 700},
            "bernoulli": {
                "horizon": 64,
                "horizons": (64, 128, 256),
                "positions": "none",
                "bos": True,
                "heads": 2,
                "width": 32,
                "ffn": 128,
                "steps": 600,
            },
        },
    ),
    Preset(
        "small",
        "half an hour on one CPU core for the transformer on hmm",
        seeds=3,
        values={"layers": 4, "heads": 4, "width": 64, "ffn": 256, "steps": 3000, "warmup": 100},
        by_task={
            "bijection": {"steps": 8000, "batch": 32, "weight_decay": 0.0},
            "hmm": {
                **NEWER_BLOCK,
                "layers": 8,
                "lr": 0.015,
                "weight_decay": 0.03,
                "batch": 32,
                "steps": 12_000,
            },
            "hmm-sticky": {"layers": 8, "lr": 0.015, "horizon": 40},
            "markov": MARKOV,
            "recurrence": {**RECURRENCE, "width": 128, "ffn": 512, "steps": 6000},
            "hmm-pool": {**NEWER_BLOCK, "layers": 8, "lr": 0.015},
            "hmm-tokens": {**HMM_TOKENS, "layers": 8, "lr": 0.015, "steps": 12_000},
            "recall-64": {"horizon": 3},
            "revision": {"horizon": 5},
            "revision-cue": {"horizon": 1},
            "group": {**NEWER_BLOCK, "layers": 8, "lr": 0.015},
            "bernoulli": {
                "horizon": 128,
                "horizons": (128, 256, 512),
                "positions": "none",
                "bos": True,
                "heads": 2,
                "width": 32,
                "ffn": 128,
            },
        },
    ),
    Preset(
        "paper",
        "the shapes of arXiv:2512.22471; hours on a GPU",
        seeds=5,
        values={"layers": 6, "heads": 6, "width": 192, "ffn": 768, "steps": 20_000, "batch": 256, "warmup": 500},
        by_task={
            "bijection": {"weight_decay": 0.0},
            "hmm": {
                **NEWER_BLOCK,
                "layers": 9,
                "heads": 8,
                "width": 256,
                "ffn": 1024,
                "lr": 0.015,
                "weight_decay": 0.1,
            },
            "hmm-sticky": {"layers": 9, "heads": 8, "width": 256, "ffn": 1024, "lr": 0.015, "horizon": 40},
            "markov": MARKOV,
            "recurrence": RECURRENCE,
            "hmm-pool": {**NEWER_BLOCK, "layers": 9, "heads": 8, "width": 256, "ffn": 1024, "lr": 0.015},
            "hmm-tokens": {**HMM_TOKENS, "layers": 9, "heads": 8, "width": 256, "ffn": 1024, "lr": 0.015},
            "recall-64": {"horizon": 3},
            "revision": {"horizon": 5},
            "revision-cue": {"horizon": 1},
            "group": {**NEWER_BLOCK, "layers": 9, "heads": 8, "width": 256, "ffn": 1024, "lr": 0.015},
        },
        tasks=("bijection", "bijection-revisit", "hmm"),
    ),
    Preset(
        "bernoulli-report",
        "coin flips as in the Bernoulli Transformer LPE Report: 1,794 parameters, AdamW, 1,024 bits a sequence",
        seeds=1,
        values=LPE_REPORT,
        archs=("transformer",),
        tasks=("bernoulli",),
    ),
    Preset(
        "bernoulli-bos",
        "the same task within the same 1,794 parameters: a BOS token to count against, exact targets, Muon, 256 bits",
        seeds=1,
        values={
            **LPE_REPORT,
            "supervision": "posterior",
            "horizon": 255,
            "ffn": 15,  # one less, for the row of BOS
            "steps": 3000,
            "optimizer": "muon",
            "lr": 0.02,
            "weight_decay": 0.0,
            "warmup": 100,
            "decay": "linear",
        },
        by_task={"bernoulli": {"bos": True}},
        archs=("transformer",),
        tasks=("bernoulli",),
    ),
    Preset(
        "markov-report",
        "order-k chains as in the order-k study: its shapes and steps for k = 1, 2, 3 (--set order=2), 100 * 2^k bits",
        seeds=1,
        values={
            "supervision": "sampled",
            "order": 1,
            "horizon": by_contexts(100, less=1),  # predictions from a sequence of 100 * 2^k bits
            "positions": "sinusoidal",  # its learned ones end where a rollout goes on
            "layers": by_order({1: 2, 2: 4, 3: 6}),
            "heads": by_order({1: 4, 2: 8, 3: 8}),
            "width": by_order({1: 64, 2: 128, 3: 128}),
            "ffn": by_order({1: 256, 2: 512, 3: 512}),
            "steps": by_order({1: 2000, 2: 2000, 3: 3600}),
            "batch": lambda settings: max(1, 128 // contexts(settings)),  # as many symbols a step at every order
            "optimizer": "adamw",
            "lr": 3e-4,
            "weight_decay": 0.01,
            "warmup": 2000,
            "decay": "none",
            "sequences": 512,
        },
        archs=("transformer",),
        tasks=("markov",),
    ),
    Preset(
        "bernoulli-bottleneck",
        "coin flips through residual width 2, head width 1, MLP 16; learned positions, or --set positions=sinusoidal",
        seeds=1,
        values={
            **LPE_REPORT,
            "supervision": "posterior",
            "horizon": 64,
            "horizons": (64,),
            "positions": "learned",
            "heads": 2,
            "width": 2,
            "lr": 0.01,
            "warmup": 100,
            "decay": "linear",
        },
        by_task={"bernoulli": {"bos": True}},
        archs=("transformer",),
        tasks=("bernoulli",),
    ),
)
PRESETS = {preset.name: preset for preset in _ALL}
SIZES = ("paper", "small", "quick", "smoke")  # the presets of all tasks, the largest first
