"""Where do queries look, and do the keys of the hypotheses form a frame?

Keys         layer-0 keys of tokens that are looked up (`anatomy.input_keys`, what the authors' code measures) and of
             positions that stand for hypotheses (`anatomy.stands_for`), per head: the mean of |cos| over pairs that
             stand for different ones. Random normal vectors, as many and as long, give the comparison; p is the share
             of random draws that are at least as orthogonal, (1 + count) / (1 + draws)
Feasible     a hypothesis whose exact posterior is at least half of the uniform share; else it is eliminated
Alignment    cos(q, k) between a scored position and what it can see, by layer: feasible, eliminated, other
Mass         the attention that these three receive, beside what equal attention to all visible positions would give.
             Lift is mass / that share: 1 means no preference
Focus        the share of feasible among the attention that hypotheses receive, over its share under equal attention
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from bench.report.diagnostics.anatomy import (
    Look,
    attention_layers,
    input_keys,
    layers,
    look,
    stands_for,
    watch,
    weights,
)
from bench.report.diagnostics.base import (
    GREY,
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
from tasks.base import Batch

DRAWS = 2_000  # of random vectors
FEASIBLE = 0.5  # of the uniform share
HYPOTHESES, INPUTS = "hypotheses", "input keys"


class Frame(NamedTuple):
    cosines: np.ndarray  # [H, n, n] absolute, mean over sequences
    heads: list[float]  # mean over pairs that stand for different hypotheses
    random: np.ndarray  # [draws] of one head's statistic under random vectors
    p: list[float]
    p_all: float  # of the mean over heads
    width: int


def off_diagonal(keys_Bnd: Tensor, different_nn: Tensor) -> tuple[float, np.ndarray]:
    unit = normalize(keys_Bnd.double(), dim=-1)
    cos_nn = (unit @ unit.transpose(-1, -2)).abs().mean(0)
    return cos_nn[different_nn].mean().item(), cos_nn.numpy()


def random_cosines(different_nn: Tensor, width: int, draws: int, rng: torch.Generator) -> np.ndarray:
    """The same statistic of random vectors, [draws]."""
    found = []
    for _ in range(draws):  # all at once are gigabytes where there are hundreds of tokens
        unit = normalize(torch.randn(len(different_nn), width, generator=rng, dtype=torch.float64), dim=-1)
        found.append((unit @ unit.T).abs()[different_nn].mean().item())
    return np.array(found)


@lru_cache(maxsize=1)
def key_frames(run: Run) -> dict[str, Frame]:
    """Layer-0 keys of what is looked up, of the hypotheses, and of all tokens.

    Of tokens each alone, of header rows where they stand.
    """
    first = next(iter(layers(run.model)), None)
    if first is None or first.values is None or first.kind == "none":
        raise NotAvailable("layer 0 has no keys")
    shape = run.task.shape
    if shape.header:
        role = stands_for(run.task, look(run).exam.batch.tokens)[0, : shape.header]
        sets = {HYPOTHESES: (role, look(run).seen[first.values][:, : shape.header])}
    else:
        tokens = torch.arange(shape.vocab)[:, None]
        alone = Batch(tokens, torch.zeros(shape.vocab, 1, shape.features), tokens, torch.zeros(1).long())
        tapped = watch(run.model, alone, first.values)[first.values].transpose(0, 1)
        sets = {"all tokens": (tokens[:, 0], tapped)}
        try:
            role = stands_for(run.task, tokens)[:, 0]
            sets = {HYPOTHESES: (role[role >= 0], tapped[:, role >= 0]), **sets}
        except NotAvailable:
            pass
        if size := input_keys(run.task):
            sets[INPUTS] = (tokens[:size, 0], tapped[:, :size])
    if any(tapped.ndim != 5 for _, tapped in sets.values()):
        raise NotAvailable("layer 0 has no keys of its own for each head")
    return {name: measure(role, tapped[:, :, 1], run) for name, (role, tapped) in sets.items()}


def measure(role_n: Tensor, keys_BnHd: Tensor, run: Run) -> Frame:
    different = role_n[:, None] != role_n[None, :]
    found = [off_diagonal(keys_BnHd[:, :, h], different) for h in range(keys_BnHd.shape[2])]
    heads, width = [value for value, _ in found], keys_BnHd.shape[-1]
    random = random_cosines(different, width, DRAWS, run.rng("random keys"))
    mixed = torch.randint(DRAWS, (DRAWS, len(heads)), generator=run.rng("random keys, all heads")).numpy()
    p_all = rank_p(float(np.mean(heads)), random[mixed].mean(1))
    cosines = np.stack([matrix for _, matrix in found])
    return Frame(cosines, heads, random, [rank_p(value, random) for value in heads], p_all, width)


def rank_p(value: float, random: np.ndarray) -> float:
    return float((1 + (random <= value).sum()) / (1 + len(random)))


class Depth(NamedTuple):
    """One layer's attention, means over scored positions and heads."""

    layer: int
    mass: dict[str, float | None]  # feasible, eliminated, other; None where no such position is ever visible
    equal: dict[str, float | None]  # the same under equal attention
    cosine: dict[str, float | None]
    focus: float | None
    entropy: list[float]  # bits, a head
    entropy_equal: float

    def lift(self, group: str) -> float | None:
        mass, equal = self.mass[group], self.equal[group]
        return mass / equal if mass is not None and equal else None


GROUPS = ("feasible", "eliminated", "other")


def groups(run: Run, seen: Look) -> dict[str, Tensor]:
    """Which positions each query can see, by what they stand for, [B, Q, T] each; one group where nothing does."""
    batch, posterior = seen.exam
    T = batch.tokens.shape[1]
    visible_QT = torch.arange(T)[None, :] <= batch.queries[:, None]
    try:
        role_BT = stands_for(run.task, batch.tokens)
    except NotAvailable:
        role_BT = torch.full_like(batch.tokens, -1)
    p_BQT = posterior.gather(2, role_BT.clamp(min=0)[:, None].expand(-1, posterior.shape[1], -1))
    stands = (role_BT >= 0)[:, None] & visible_QT
    good = p_BQT >= FEASIBLE / posterior.shape[2]
    return {"feasible": stands & good, "eliminated": stands & ~good, "other": visible_QT & ~stands}


@lru_cache(maxsize=1)
def by_depth(run: Run) -> list[Depth]:
    found = attention_layers(run.model)
    if not found:
        raise NotAvailable("the architecture has no attention")
    seen = look(run)
    where = groups(run, seen)
    queries = seen.exam.batch.queries
    visible_BQT = sum((group.float() for group in where.values()), start=torch.zeros(()))
    equal_BQT = visible_BQT / visible_BQT.sum(-1, keepdim=True)
    there = {name: bool(group.any()) for name, group in where.items()}

    def total(weight_BQT: Tensor) -> dict[str, float | None]:
        return {name: (weight_BQT * where[name]).sum(-1).mean().item() if there[name] else None for name in GROUPS}

    def feasible_share(weight_BQT: Tensor) -> Tensor:
        among = (weight_BQT * (where["feasible"] | where["eliminated"])).sum(-1)
        return (weight_BQT * where["feasible"]).sum(-1)[mixed_BQ] / among[mixed_BQ].clamp(min=1e-12)

    mixed_BQ = where["feasible"].any(-1) & where["eliminated"].any(-1)  # only there is something to choose
    depth = []
    for layer in found:
        assert layer.values is not None
        tapped = seen.seen[layer.values]
        w_BHQT = weights(run.model, layer, tapped)[:, :, queries]
        mean_BQT = w_BHQT.mean(1)
        cosine: dict[str, float | None] = dict.fromkeys(GROUPS)
        if tapped.ndim == 5:
            q, k = (normalize(tapped[:, :, i].transpose(1, 2), dim=-1) for i in (0, 1))
            cos_BQT = (q[:, :, queries] @ k.transpose(-1, -2)).mean(1)
            cosine = {name: cos_BQT[where[name]].mean().item() if there[name] else None for name in GROUPS}
        focus = None
        if mixed_BQ.any():
            focus = (feasible_share(mean_BQT).mean() / feasible_share(equal_BQT).mean()).item()
        bits_BHQ = -torch.xlogy(w_BHQT, w_BHQT).sum(-1) / np.log(2)
        equal_bits = visible_BQT.sum(-1).log2().mean().item()
        depth.append(
            Depth(
                layer.index,
                total(mean_BQT),
                total(equal_BQT),
                cosine,
                focus,
                bits_BHQ.mean((0, 2)).tolist(),
                equal_bits,
            )
        )
    return depth


@section("Do the keys of the hypotheses form an orthogonal frame?", taps="*qkv")
def keys(run: Run) -> Section:
    frames = key_frames(run)
    rows: list[list[Any]] = []
    for name, frame in frames.items():
        chance, n = float(frame.random.mean()), len(frame.cosines[0])
        for h, (value, p) in enumerate(zip(frame.heads, frame.p, strict=True)):
            rows.append([name, n, f"head {h}", value, chance, p])
        rows.append([name, n, "all heads", float(np.mean(frame.heads)), chance, frame.p_all])
    name, frame = next(iter(frames.items()))
    chance, n, count = float(frame.random.mean()), len(frame.cosines[0]), len(frame.heads)
    columns = min(4, count)
    figure, axes = canvas(2.7 * columns + 1, 2.75 * -(-count // columns), -(-count // columns), columns, squeeze=False)
    for axis in axes.flat[count:]:
        axis.set_axis_off()
    for h, axis in enumerate(axes.flat[:count]):
        image = axis.imshow(frame.cosines[h], vmin=0, vmax=1, cmap="Blues")
        axis.set_title(f"head {h}: {frame.heads[h]:.3f} (random {chance:.3f}), p = {frame.p[h]:.2g}", fontsize=8)
        axis.set(xticks=[0, n - 1], yticks=[0, n - 1])
        axis.tick_params(labelsize=7)
    figure.colorbar(image, ax=axes.ravel().tolist(), label="|cos| of two layer-0 keys", shrink=0.8)
    where = "The hypotheses are the rows of the header, T above E: two a state, means over sequences. "
    text = (
        "Layer-0 keys: the mean absolute cosine over pairs that stand for different hypotheses, against that of "
        f"{DRAWS:,} draws of as many random vectors of width {frame.width}. {where if run.task.shape.header else ''}"
        "p is the share of draws that are at least as orthogonal."
    )
    header = ["keys of", "vectors", "head", "mean abs cos", "random", "p"]
    return Section(text, [Table("keys", header, rows)],
                   [Picture("keys", figure, f"Absolute cosines between the layer-0 keys of {name}.")])  # fmt: skip


@section("Where does attention look, layer by layer?", taps="*att*.z")
def attention(run: Run) -> Section:
    depth = by_depth(run)
    shown = [g for g in GROUPS if depth[0].mass[g] is not None]
    mass = [[d.layer, *(d.mass[g] for g in shown), *(d.equal[g] for g in shown), d.focus] for d in depth]
    mass_header = ["layer", *(f"mass on {g}" for g in shown), *(f"equal share, {g}" for g in shown), "focus"]
    align = [[d.layer, *(d.cosine[g] for g in shown), float(np.mean(d.entropy)), d.entropy_equal] for d in depth]
    align_header = ["layer", *(f"cos(q, k) {g}" for g in shown), "entropy of attention (bits)", "of equal attention"]
    figure, (left, middle, right) = canvas(12, 3.6, 1, 3)
    x = [d.layer for d in depth]
    colours = {"feasible": MODEL, "eliminated": OTHER, "other": GREY}
    for g in shown:
        left.plot(x, [d.mass[g] for d in depth], "o-", color=colours[g], label=g)
        left.axhline(depth[0].equal[g], color=colours[g], linestyle=":", linewidth=1)
        if depth[0].cosine[g] is not None:
            middle.plot(x, [d.cosine[g] for d in depth], "o-", color=colours[g], label=g)
    left.set(xlabel="layer", ylabel="attention mass", title="Mass (dotted: equal attention)", ylim=(0, 1.02), xticks=x)
    left.legend(fontsize=8)
    middle.axhline(0, color=GREY, linewidth=0.6)
    middle.set(xlabel="layer", ylabel="mean cos(q, k)", title="Query-key alignment", xticks=x)
    for d in depth:
        right.scatter([d.layer] * len(d.entropy), d.entropy, s=16, color=MODEL, zorder=3)
    right.plot(x, [float(np.mean(d.entropy)) for d in depth], color=MODEL, label="mean of the heads")
    right.axhline(depth[0].entropy_equal, color=GREY, linestyle=":", label="equal attention")
    right.set(xlabel="layer", ylabel="bits", title="Entropy of attention", xticks=x, ylim=(0, None))
    right.legend(fontsize=8)
    tables = [Table("attention", mass_header, mass), Table("alignment", align_header, align)]
    picture = Picture("attention", figure, "Mean over scored positions and heads; marks on the right are heads.")
    return Section(explain(run, depth), tables, [picture])


def explain(run: Run, depth: list[Depth]) -> str:
    text = (
        "Attention of scored positions. A position is feasible if it stands for a hypothesis whose exact posterior is "
        f"at least {FEASIBLE:g} of the uniform share, eliminated if it stands for another one, else other. Focus is "
        "the share of feasible ones in what hypotheses receive, over that under equal attention; 1 is no preference."
    )
    if all(value is None for value in (depth[0].mass["feasible"], depth[0].mass["eliminated"])):
        return text + " In this task no token stands for a hypothesis, so that everything is other."
    if depth[0].mass["feasible"] is None:
        text += (
            " Here a value that is still possible has not been shown, so that no position can stand for it: attention "
            "cannot go to a feasible hypothesis, only to eliminated ones."
        )
    return text
