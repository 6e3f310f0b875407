"""How they do it: every measurement on models whose answer is known, and on random ones where it is not there.

`eliminator` is a transformer set by hand that solves bijection by elimination. In layer 0 head 0 takes the mean of what
came before, as one-hot values, and the head of the model subtracts it: values that were shown get nothing. Layer 1 adds
nothing, but its outputs are the share of values among what came before, along one direction: a line that grows as the
posterior's entropy falls. Queries are zero, so attention is a mean and keys are free: orthogonal ones are planted.
"""

import json
import math
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from bench.config import compose
from bench.records import write
from bench.report import report
from bench.report.diagnostics import (
    ablation,
    anatomy,
    beliefs,
    claims,
    clusters,
    dynamics,
    geometry,
    length,
    manifold,
)
from bench.report.diagnostics.base import Literature, NotAvailable, Run
from bench.run.run import run_one
from bench.run.snapshots import pack
from bench.seeds import generator
from models.base import ARCHS, POSITIONS, Geometry
from models.taps import edit
from models.transformer import Transformer, reference
from tasks.base import TASKS
from tasks.bernoulli import Bernoulli
from tasks.bijection import Bijection

SIZE, HEADS = 8, 3
MECHANISM = (claims.table, length.beyond, ablation.parts, geometry.keys, geometry.attention, manifold.manifold,
             beliefs.beliefs, clusters.clusters, dynamics.course)  # fmt: skip
STRENGTH = 150.0  # of the subtraction: a shown value keeps a little, so that there is an error to compare with


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Smoke runs, to borrow records and configs from."""
    out = tmp_path_factory.mktemp("runs")
    changes = {"bijection": {"size": SIZE, "horizon": SIZE}, "hmm": {}}
    found = {}
    for task, change in changes.items():
        path = write(out, *run_one(compose("smoke", "transformer", task, 0, "cpu", {"steps": 6, **change})))
        found[task] = report.load(path)
    return found


def eliminator() -> Transformer:
    shape = Bijection(SIZE, SIZE).shape
    width = 2 * SIZE + 1  # one-hot values, what was shown, and one that is never used
    model = Transformer(
        shape, layers=2, heads=HEADS, head_width=SIZE, width=width, hidden=4,
        positions="none", activation="relu2", backend="math",
    )  # fmt: skip
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
        model.embed.token.weight[SIZE:, :SIZE] = torch.eye(SIZE)
        first, second = (block.attn for block in model.blocks)
        maps = first.project.weight.view(3, HEADS, SIZE, width)
        maps[1, :, :, :SIZE] = torch.eye(SIZE)  # keys
        maps[2, 0, :, :SIZE] = torch.eye(SIZE)  # values of head 0
        first.out.weight[SIZE : 2 * SIZE, :SIZE] = torch.eye(SIZE)
        second.project.weight.view(3, HEADS, SIZE, width)[2, 0, 0, :SIZE] = 1.0
        model.head.weight[:, SIZE : 2 * SIZE] = -STRENGTH * torch.eye(SIZE)
    for block in model.blocks:
        block.norm1 = block.norm2 = nn.Identity()
    model.norm = nn.Identity()
    return model.eval()


def random_model(task) -> Transformer:
    """Every weight drawn, none of them learned."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = reference(task.shape, Geometry(3, 3, 48, 64))
        for p in model.parameters():
            nn.init.normal_(p, std=0.2)
    return model.eval()


@pytest.fixture(scope="module")
def known(made):
    return replace(made["bijection"], model=eliminator())


@pytest.fixture(scope="module")
def unknown(made):
    return replace(made["bijection"], model=random_model(made["bijection"].task))


def verdicts(run: Run) -> dict:
    return {test.measure: claims.judge(test, run)[1] for test in claims.TESTS.values()}


@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("task_name", ["hmm", "bijection"])  # with a header and without
def test_recomputed_weights_times_values_are_the_tapped_output(positions, task_name):
    task = TASKS[task_name]()
    for arch in ("transformer", "transformer-uniform-attn", "hybrid"):
        geometry = Geometry(3, 4, 64, 64, positions)
        model = ARCHS[arch](task.shape, 150_000, geometry).eval()
        for name, p in model.named_parameters():  # it starts at zero
            if name.endswith(".shift.weight"):
                torch.nn.init.normal_(p)
        batch = task.sample(4, task.horizon, generator("cpu", 0, "weights"))
        found = anatomy.attention_layers(model)
        assert len(found) == (1 if arch == "hybrid" else 3)
        for layer in found:
            seen = anatomy.watch(model, batch, layer.values, layer.outputs)
            weights = anatomy.weights(model, layer, seen[layer.values])
            values = anatomy.values_of(seen[layer.values]).transpose(1, 2)
            torch.testing.assert_close((weights @ values).transpose(1, 2), seen[layer.outputs], rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]))
            assert (weights.triu(1) == 0).all()


@pytest.mark.parametrize("arch", ["transformer", "transformer-no-attn-top2", "lstm", "gru", "mamba2", "hybrid", "mlp"])
def test_a_layer_without_its_branches_is_the_identity(arch):
    task = TASKS["hmm"]()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = ARCHS[arch](task.shape, 60_000, Geometry(3, 2, 32, 64)).eval()
        for p in model.parameters():
            nn.init.normal_(p, std=0.1)
    batch = task.sample(4, 20, generator("cpu", 0, "identity"))
    found = anatomy.layers(model)
    for before, layer in pairwise(found):
        assert layer.branches
        with edit(model, dict.fromkeys(layer.branches.values(), torch.zeros_like)):
            seen = anatomy.watch(model, batch, before.resid, layer.resid)
        assert torch.equal(seen[before.resid], seen[layer.resid])
        assert not torch.equal(*anatomy.watch(model, batch, before.resid, layer.resid).values())


def test_ablation_finds_the_one_head_that_carries_the_answer(known):
    found = ablation.measure(known)
    k = torch.arange(1, SIZE + 1)
    uniform = (math.log2(SIZE) - (SIZE - k + 1).double().log2()).mean().item()  # what is left without the head
    intact = found.intact.entropy_mae.mean().item()
    assert 1e-4 < intact < 0.05
    for of in (found.layers[0]["whole"], found.layers[0]["attention"], found.heads[0, 0], found.pairs[0, 2]):
        assert of.entropy_mae.mean().item() == pytest.approx(uniform, rel=1e-6)
        assert found.factor(of) == pytest.approx(uniform / intact, rel=1e-6)
    inert = [*found.layers[1].values(), found.layers[0]["feed-forward"], found.pairs[1, 2]]
    inert += [of for (layer, head), of in found.heads.items() if (layer, head) != (0, 0)]
    assert all(found.factor(of) == 1.0 for of in inert)
    assert ablation.frame_head(found).head == 0
    assert "**head 0 of layer 0**" in ablation.say_frame(found)


def test_no_head_stands_out_in_a_random_model(unknown):
    found = ablation.measure(unknown)
    assert ablation.frame_head(found).head is None
    assert "none stands out in layer 0" in ablation.say_frame(found)


def test_planted_keys_are_orthogonal_and_random_ones_are_not(known, unknown):
    frame = geometry.key_frames(known)[geometry.HYPOTHESES]
    assert frame.heads == pytest.approx([0.0] * HEADS, abs=1e-9)
    assert frame.p == pytest.approx([1 / (1 + geometry.DRAWS)] * HEADS)
    other = geometry.key_frames(unknown)[geometry.HYPOTHESES]
    assert other.p_all > 0.05
    assert min(other.heads) > 0.1
    size = unknown.task.size
    assert geometry.key_frames(unknown)[geometry.INPUTS].cosines.shape == (HEADS, size, size)
    told, holds = claims.orthogonal_keys(unknown)  # by what is looked up, with the hypotheses beside
    assert (told.startswith("input keys: "), "; hypotheses: " in told, holds) == (True, True, False)


def test_equal_keys_have_a_cosine_of_one():
    keys = torch.ones(1, 5, 1, 4)
    run_free = geometry.off_diagonal(keys[:, :, 0], ~torch.eye(5, dtype=torch.bool))
    assert run_free[0] == pytest.approx(1.0)


@pytest.mark.parametrize("width", [4, 16, 64])
def test_random_vectors_have_the_cosine_that_theory_says(width):
    """E|cos| of two random directions is Gamma(d/2) / (sqrt(pi) Gamma((d+1)/2))."""
    expected = math.exp(math.lgamma(width / 2) - math.lgamma((width + 1) / 2)) / math.sqrt(math.pi)
    drawn = geometry.random_cosines(~torch.eye(10, dtype=torch.bool), width, 2_000, generator("cpu", 0, "r"))
    assert drawn.mean() == pytest.approx(expected, abs=4 * drawn.std() / 2_000**0.5)


def test_p_values_of_random_keys_are_uniform():
    different = ~torch.eye(8, dtype=torch.bool)
    random = geometry.random_cosines(different, 16, 2_000, generator("cpu", 0, "null"))
    p = [geometry.rank_p(float(v), random) for v in geometry.random_cosines(different, 16, 400, generator("cpu", 1))]
    assert np.mean(np.array(p) < 0.05) == pytest.approx(0.05, abs=0.035)
    assert np.mean(p) == pytest.approx(0.5, abs=0.06)


def test_equal_attention_has_no_preference(known):
    """Queries of zero: all that is visible counts alike, in every layer."""
    for d in geometry.by_depth(known):
        assert d.mass["feasible"] is None  # a value that is possible has not been shown
        assert d.lift("eliminated") == pytest.approx(1.0, rel=1e-5)
        assert d.entropy == pytest.approx([d.entropy_equal] * HEADS, rel=1e-5)


def test_attention_planted_on_feasible_states_is_found_there(made):
    """In layer 1 queries point at the states that are feasible, and keys are the states; layers 0 and 2 look at all."""
    run = replace(made["hmm"], model=random_model(made["hmm"].task))
    exam = anatomy.make_exam(run, run.config.horizon, "anatomy")
    good_BQS = exam.posterior >= geometry.FEASIBLE / 5
    role_T = anatomy.stands_for(run.task, exam.batch.tokens)[0]

    def plant(qkv_BT3Hd):
        planted = torch.zeros_like(qkv_BT3Hd)
        planted[:, exam.batch.queries, 0, :, :5] = 400.0 * good_BQS[:, :, None].float()
        planted[:, :10, 1, :, :5] = torch.nn.functional.one_hot(role_T[:10], 5).float()[:, None]
        planted[:, :, 2] = qkv_BT3Hd[:, :, 2]
        return planted

    def equal(qkv_BT3Hd):
        return torch.zeros_like(qkv_BT3Hd)

    taps = {f"blocks.{i}.attn.qkv": plant if i == 1 else equal for i in range(3)}
    with edit(run.model, taps):
        depth = geometry.by_depth(run)
    assert depth[1].mass["feasible"] == pytest.approx(1.0, abs=1e-3)
    assert depth[1].mass["eliminated"] == pytest.approx(0.0, abs=1e-3)
    share = (role_T[None, :10, None] >= 0) & good_BQS[:, :, role_T[:10]].transpose(1, 2)
    mixed = ~good_BQS.all(-1)
    assert depth[1].focus == pytest.approx(1 / share.float().mean(1)[mixed].mean().item(), rel=1e-3)
    assert depth[1].cosine["feasible"] > 0.3 > depth[1].cosine["eliminated"] == pytest.approx(0.0, abs=1e-6)


def test_outputs_on_a_planted_line_are_one_dimensional_and_ordered_by_entropy(known, unknown):
    found = {(m.layer, m.source): m for m in manifold.measure(known)}
    line = found[1, manifold.OUTPUTS]
    assert line.pc1 == pytest.approx(1.0)
    assert line.participation == pytest.approx(1.0)
    assert line.spearman == pytest.approx(1.0)
    assert line.within is None  # in bijection the position decides the entropy
    assert found[1, manifold.VALUES].pc1 is None  # at keys, the scored positions, they are zero
    other = {(m.layer, m.source): m for m in manifold.measure(unknown)}[2, manifold.OUTPUTS]
    assert other.pc1 < 0.8
    assert other.participation > 1.5
    assert other.spearman < 0.9


def test_participation_counts_directions():
    rng = np.random.default_rng(0)
    for n in (1, 3, 6):
        x = np.zeros((50, 40, 8))
        x[..., :n] = rng.normal(size=(50, 40, n))
        found = manifold.describe(0, "x", x, rng.normal(size=(50, 40)))
        assert found.participation == pytest.approx(n, rel=0.02)
        assert found.pc1 == pytest.approx(1 / n, rel=0.15)
        assert found.spearman < 0.1


def test_a_belief_written_into_the_stream_is_read_and_noise_is_not(made):
    run = replace(made["hmm"], model=random_model(made["hmm"].task))
    exam = anatomy.make_exam(run, run.config.horizon, "anatomy")
    h = anatomy.entropy_bits(exam.posterior)

    def belief(x_BTD):
        written = torch.zeros_like(x_BTD)
        written[:, exam.batch.queries, :5] = exam.posterior.log().float()  # as a head reads it, before its softmax
        written[:, exam.batch.queries, 5] = h.float()
        written[..., 6], written[..., 7] = 300.0, -300.0  # so long a vector that its norm hardly varies
        return written

    def noise(x_BTD):
        return torch.randn(x_BTD.shape, generator=generator("cpu", 0, "noise"))

    with edit(run.model, {"blocks.0.resid": belief, "blocks.1.resid": noise}):
        floor, first, second, _ = beliefs.measure(run)
    assert first.posterior == pytest.approx(1.0, abs=1e-3)
    assert first.entropy == pytest.approx(1.0, abs=1e-3)
    assert max(second.posterior, second.entropy, floor.posterior, floor.entropy) < 0.05


def test_clusters_are_found_where_they_are(made):
    run = replace(made["hmm"], model=random_model(made["hmm"].task))
    exam = anatomy.make_exam(run, run.config.horizon, "anatomy")

    def clustered(x_BTD):
        written = 0.01 * torch.randn(x_BTD.shape, generator=generator("cpu", 0, "noise"))
        written[:, exam.batch.queries, :5] += torch.nn.functional.one_hot(exam.posterior.argmax(-1), 5).float()
        return written

    def shapeless(x_BTD):
        return torch.randn(x_BTD.shape, generator=generator("cpu", 0, "noise"))

    with edit(run.model, {"blocks.2.resid": clustered, "blocks.1.resid": shapeless}):
        *_, none, last, _ = clusters.measure(run)
    assert last.silhouette > 0.9
    assert last.purity == 1.0
    assert none.silhouette < 0.05
    assert none.purity < last.chance + 0.1


def test_silhouette_by_hand():
    """Two pairs on a line, 0, 1 and 10, 11: a = 1, b = 10.5 or 9.5."""
    x, labels = np.array([[0.0], [1.0], [10.0], [11.0]]), np.array([0, 0, 1, 1])
    assert clusters.silhouette(x, labels) == pytest.approx(np.mean([9.5 / 10.5, 8.5 / 9.5]))


def test_settling_by_hand():
    steps = [1, 10, 100, 1000]
    assert dynamics.settled_at(steps, np.array([1.0, 0.05, 0.02, 0.0])) == pytest.approx(10 ** (0.9 / 0.95))
    assert dynamics.settled_at(steps, np.array([1.0, 0.05, 0.5, 0.0])) == pytest.approx(100 * 10**0.8)
    assert dynamics.settled_at(steps, np.zeros(4)) == 1


def test_the_angle_of_geometries_ignores_rotation_and_scale():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(500, 6))
    turn = np.linalg.qr(rng.normal(size=(6, 6)))[0]
    assert dynamics.angle(x, 3 * x @ turn + 5) == pytest.approx(0.0, abs=1e-6)
    assert dynamics.angle(x, rng.normal(size=(500, 6))) > 0.8
    small, smaller = (dynamics.angle(x, x + size * rng.normal(size=x.shape)) for size in (0.02, 0.01))
    assert small / smaller == pytest.approx(2.0, rel=0.15)  # in proportion to a small change


@pytest.mark.parametrize("first", ["attention", "values"])
def test_what_is_planted_to_settle_first_does(made, tmp_path, first):
    """Branches add nothing, so that layers do not disturb each other: one map is final at step 10, the other drifts."""
    run = made["bijection"]
    model = run.config.make_model().eval()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        drift = [torch.randn_like(block.attn.project.weight) for block in model.blocks]
    snapshots, start = [], [block.attn.project.weight.detach().clone() for block in model.blocks]
    for step, far in ((1, 1.0), (3, 1.0), (10, 0.8), (30, 0.6), (100, 0.4), (300, 0.2), (1000, 0.0)):
        early = far if step < 10 else 0.0
        with torch.no_grad():
            for block, begin, away in zip(model.blocks, start, drift, strict=True):
                rows = len(begin) // 3
                qk, v = (early, far) if first == "attention" else (far, early)
                scale = torch.tensor([qk, qk, v]).repeat_interleave(rows)[:, None]
                block.attn.project.weight.copy_(begin + scale * away)
        path = tmp_path / f"{step}.safetensors"
        path.write_bytes(pack(model))
        snapshots.append((step, path))
    weights = f"sha256:{report.hashlib.sha256(path.read_bytes()).hexdigest()}"
    planted = replace(run, model=model, snapshots=tuple(snapshots), record=replace(run.record, weights=weights))
    course = dynamics.measure(planted)
    assert course.settled[first] < 10
    assert course.settled["values" if first == "attention" else "attention"] > 100
    assert dynamics.settles_first(course) == (first == "attention")
    assert ("Attention settles first" in dynamics.say(course)) == (first == "attention")


def test_what_settles_after_the_last_snapshot_but_one_is_not_told_apart(made, monkeypatch):
    def settled(attention):
        at = {"attention": attention, "values": 900.0}
        return dynamics.Course([1, 100, 1000], np.zeros(3), np.zeros(3), np.zeros(3), [], at)

    monkeypatch.setattr(dynamics, "measure", lambda _: settled(500.0))
    with pytest.raises(NotAvailable, match="both settle after step 100, the last snapshot but one"):
        claims.dissociation(made["hmm"])
    monkeypatch.setattr(dynamics, "measure", lambda _: settled(50.0))
    assert claims.dissociation(made["hmm"])[1]


@pytest.mark.parametrize(("silhouette", "holds"), [(0.29, True), (0.26, False)])
def test_clusters_are_held_against_those_of_the_exact_posterior(made, monkeypatch, silhouette, holds):
    nothing = np.zeros((1, 2)), np.zeros(1)
    rows = (("layer", silhouette, 0.9, 0.2), ("exact", 0.3, 0.97, 0.2))
    found = [clusters.Clusters(*row, *nothing) for row in rows]
    monkeypatch.setattr(clusters, "measure", lambda _: found)
    monkeypatch.setattr(claims, "layers", lambda _: [SimpleNamespace(kind="recurrence")])
    text, held = claims.one_cluster_a_state(made["hmm"])
    assert held is holds
    assert text == f"silhouette {silhouette:.2f}, purity 0.90; of the exact posterior 0.30, 0.97"


def test_snapshots_of_another_run_are_refused(made, tmp_path):
    run = made["bijection"]
    paths = [(step, tmp_path / f"{step}.safetensors") for step in range(1, 6)]
    for _, path in paths:
        path.write_bytes(pack(random_model(run.task)))
    with pytest.raises(NotAvailable, match="step 5, is not the finished model"):
        dynamics.measure(replace(run, snapshots=tuple(paths)))
    with pytest.raises(NotAvailable, match="no snapshots were kept"):
        dynamics.measure(run)


def test_the_jump_at_the_horizon_is_read_from_the_record(made):
    run = made["hmm"]
    curve = [0.1] * 20 + [0.3] * 30
    planted = {**run.record.by_position, "50": dict.fromkeys(("entropy_mae", "kl", "h_model", "h_bayes"), curve)}
    jumping = replace(run, record=replace(run.record, by_position=planted))
    assert length.measure(jumping).jump == pytest.approx(3.0)
    row = length.beyond.ask(jumping).tables[0].rows[0]
    assert row[1:] == pytest.approx([0.1, 0.3, 3.0, 0.1, 0.3, 3.0, 0.3, 3.0])
    assert verdicts(jumping)[claims.no_discontinuity] == claims.FAILS
    with pytest.raises(NotAvailable, match="the task ends at K = 8"):
        length.measure(made["bijection"])


def test_claims_hold_where_they_were_planted_and_not_in_a_random_model(known, unknown):
    planted, random = verdicts(known), verdicts(unknown)
    for measure in (claims.frame_head, claims.orthogonal_keys, claims.low_dimensional, claims.entropy_along):
        assert planted[measure] == claims.HOLDS, measure
        assert random[measure] == claims.FAILS, measure
    assert planted[claims.every_layer_needed] == claims.FAILS  # layer 1 does nothing
    assert planted[claims.eliminated_ignored] == claims.FAILS  # attention is equal
    for measure in (claims.dissociation, claims.no_discontinuity, claims.collapse_without_top):
        assert planted[measure] == claims.UNTESTED, measure


def test_an_error_is_judged_by_the_published_one_that_the_caller_knows(made):
    run = made["hmm"]
    ours = run.record.at()["all"]["entropy_curve_mae"]
    for published, verdict in ((1.01 * ours, claims.HOLDS), (0.99 * ours, claims.FAILS)):
        literature = Literature(numbers={"error": {"hmm": (published,)}})
        assert claims.judge(claims.TESTS["calibrated"], replace(run, literature=literature))[1] == verdict
    assert claims.judge(claims.TESTS["calibrated"], run)[1] == claims.UNTESTED


def test_the_table_of_claims_has_ids_and_the_sentences_that_the_caller_knows(known):
    known = replace(known, literature=Literature(statements={"belief": ("It believes", "abstract")}))
    (table,) = claims.table.ask(known).tables
    assert table.header[:3] == ["id", "claim", "source"]
    assert [row[0] for row in table.rows] == list(claims.TESTS)
    assert [row[1:3] for row in table.rows if row[0] in ("belief", "manifold")] == [
        ["manifold", ""],
        ["It believes", "abstract"],
    ]


def test_a_measurement_that_breaks_leaves_its_claim_untested(known):
    def broken(run):
        raise ZeroDivisionError("no luck")

    assert claims.judge(claims.Test("r", broken), known) == (
        "the measurement failed: ZeroDivisionError: no luck",
        claims.UNTESTED,
    )


def test_a_collapse_is_called_one(made):
    run = made["hmm"]
    config = replace(run.config, arch="transformer-no-attn-top2")
    test = claims.TESTS["top-attention"]
    for at_50, verdict in ((1.79, claims.HOLDS), (0.003, claims.FAILS)):
        metrics = {"20": {"all": {"entropy_mae": 0.00157}}, "50": {"all": {"entropy_mae": at_50}}}
        ablated = replace(run, config=config, record=replace(run.record, metrics={**run.record.metrics, **metrics}))
        assert claims.judge(test, ablated)[1] == verdict


def test_what_positions_stand_for():
    bijection, hmm, recall = Bijection(3, 3), TASKS["hmm"](), TASKS["recall"](keys=3, values=2, pairs=2, gap=1)
    assert anatomy.stands_for(bijection, torch.tensor([[0, 4, 2, 3, 1]])).tolist() == [[-1, 1, -1, 0, -1]]
    rows = anatomy.stands_for(hmm, hmm.sample(1, 2, generator("cpu", 0)).tokens)[0]
    assert rows.tolist() == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, -1, -1]
    assert anatomy.stands_for(recall, torch.tensor([[1, 4, 0, 3, 5, 1]])).tolist() == [[-1, 1, -1, 0, -1, -1]]
    with pytest.raises(NotAvailable, match="no token of this task stands for a hypothesis"):
        anatomy.stands_for(Bernoulli(), torch.tensor([[0, 1]]))
    assert [anatomy.input_keys(task) for task in (bijection, hmm, recall, Bernoulli())] == [3, 0, 3, 0]


@pytest.mark.parametrize("task", ["bijection", "hmm"])
def test_a_report_leaves_the_model_as_it_was(made, task, tmp_path):
    run = made[task]
    batch = run.task.sample(8, run.config.horizon, generator("cpu", 0, "before and after"))
    with torch.no_grad():
        before = run.model(batch.tokens, batch.features)
    weights = pack(run.model)
    assert report.write(run, tmp_path) == []
    with torch.no_grad():
        assert torch.equal(run.model(batch.tokens, batch.features), before)
    assert pack(run.model) == weights
    assert all(not module._forward_hooks for module in run.model.modules())


def ask_all(config, monkeypatch, tmp_path) -> dict[str, str]:
    """Every question for any task, of a model that is barely trained; an error is an error."""
    monkeypatch.setattr(anatomy, "SEQUENCES", 24)
    run = report.load(write(tmp_path, *run_one(config)))
    answers = {}
    for question in (q for q in MECHANISM if q.applies(run)):
        try:
            question.ask(run)
            answers[question.title] = "ok"
        except NotAvailable as reason:
            answers[question.title] = str(reason)
    return answers


@pytest.mark.parametrize("arch", sorted(ARCHS.names()))
def test_every_architecture_can_be_asked(arch, monkeypatch, tmp_path):
    config = compose("smoke", arch, "hmm", 0, "cpu", {"steps": 1, "sequences": 16})
    answers = ask_all(config, monkeypatch, tmp_path)
    for question in (claims.table, ablation.parts, manifold.manifold, beliefs.beliefs, clusters.clusters):
        assert answers[question.title] == "ok"
    attends = arch.startswith("transformer") or arch == "hybrid"
    assert answers[geometry.attention.title] == ("ok" if attends else "the architecture has no attention")
    assert (answers[length.beyond.title] == "ok") == (arch != "mlp")
    assert answers[dynamics.course.title].startswith("no snapshots were kept")


@pytest.mark.parametrize("task", ["recall", "regression", "bernoulli", "bijection-revisit", "hmm-sticky"])
def test_every_task_can_be_asked(task, monkeypatch, tmp_path):
    config = compose("smoke", "transformer", task, 0, "cpu", {"steps": 1, "sequences": 16})
    answers = ask_all(config, monkeypatch, tmp_path)
    for question in (claims.table, ablation.parts, geometry.attention, manifold.manifold, beliefs.beliefs):
        assert answers[question.title] == "ok"


def test_a_report_is_json_too(made, tmp_path):
    run = made["bijection"]
    questions = [ablation.parts, dynamics.course, manifold.manifold]
    report.write(run, tmp_path, questions)
    content = json.loads((tmp_path / "report.json").read_text())
    assert content.keys() == {"run", "title", "samples", "sections"}
    assert content["run"] == run.record.id
    assert content["title"] == "bijection, transformer, seed 0"
    assert [s["status"] for s in content["sections"]] == ["ok", "n/a", "ok", "ok"]  # the last has the cost
    assert all(s.keys() == {"title", "status", "text", "tables", "figures"} for s in content["sections"])
    heads = content["sections"][0]["tables"][1]
    assert heads.keys() == {"name", "header", "rows"}
    assert len(heads["rows"]) == run.config.layers * run.config.heads
    assert all(len(row) == len(heads["header"]) for row in heads["rows"])
    assert content["sections"][1]["text"].startswith("no snapshots were kept")
    for section in content["sections"]:
        for figure in section["figures"]:
            assert figure.keys() == {"name", "caption"}
            assert (tmp_path / f"{figure['name']}.svg").exists()
            assert (tmp_path / f"{figure['name']}.png").exists()
