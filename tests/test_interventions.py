"""Interventions on models whose answer is known, and on random ones, where it is the null.

`planted` solves bijection by elimination. Value tokens are one-hot in the first directions of its stream: the frame.
Head 0 of layer 0 writes the mean of what came before into the frame of a key, and the head of the model subtracts it.
Head 1 writes the same into directions that nothing reads. Positions add the exact entropy along one direction that
nothing reads, and two constants that keep the length of a vector nearly the same. Layer 1 does nothing.
"""

import csv
import re
from dataclasses import replace

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import nn

from bench import reports
from bench.config import compose
from bench.records import write
from bench.registry import BadInput
from bench.report import report, seeds
from bench.report.diagnostics import ablation, dynamics, formation, frame, horizon, summary, swap, used, writers
from bench.report.diagnostics.base import NotAvailable, initial_model
from bench.report.interventions import (
    EMBEDDING,
    Answers,
    ablate,
    normalise,
    patch,
    places,
    rotate,
    swap_state,
    without,
)
from bench.report.interventions import swap as swap_in
from bench.report.subspaces import (
    Probe,
    centred_span,
    covarying_subspace,
    key_subspace,
    overlap,
    random_subspace,
    readout_subspaces,
    span,
)
from bench.run import run as running
from bench.run.run import run_one
from bench.run.snapshots import pack
from bench.seeds import generator
from bench.statements import LEAST_DRAWS, STATEMENTS
from models.base import ARCHS, Geometry
from models.taps import Tap, edit, tap_names
from models.transformer import Transformer
from tasks.base import TASKS, Batch, CanRename, HasHypotheses, permutations
from tasks.bijection import Bijection
from tests.fixtures import make_records

SIZE, HEADS, WIDTH, STRENGTH = 8, 3, 256, 100.0  # so wide that a random subspace hardly meets the frame
FRAME, ENTROPY, CONSTANTS, UNREAD = slice(0, SIZE), SIZE, (SIZE + 1, SIZE + 2), slice(2 * SIZE, 3 * SIZE)


def planted() -> Transformer:
    shape = Bijection(SIZE, SIZE).shape
    model = Transformer(
        shape, layers=2, heads=HEADS, head_width=SIZE, width=WIDTH, hidden=4,
        positions="learned", activation="relu2", backend="math",
    )  # fmt: skip
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
        model.embed.token.weight[SIZE:, FRAME] = torch.eye(SIZE)
        left = SIZE - torch.arange(shape.length(SIZE)) // 2
        model.place.learned[:, ENTROPY] = 0.3 * left.float().log2()
        model.place.learned[:, CONSTANTS] = torch.tensor([10.0, -10.0])
        first = model.blocks[0].attn
        maps = first.project.weight.view(3, HEADS, SIZE, WIDTH)
        maps[1, :, :, FRAME] = torch.eye(SIZE)  # keys; queries are zero, so attention is the mean
        maps[2, :2, :, FRAME] = torch.eye(SIZE)  # what heads 0 and 1 carry
        first.out.weight[FRAME, :SIZE] = torch.eye(SIZE)
        first.out.weight[UNREAD, SIZE : 2 * SIZE] = 2 * torch.eye(SIZE)
        model.head.weight[:, FRAME] = -STRENGTH * torch.eye(SIZE)
    for block in model.blocks:
        block.norm1 = block.norm2 = nn.Identity()
    model.norm = nn.Identity()
    return model.eval()


def randomise(model: nn.Module) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for p in model.parameters():
            nn.init.normal_(p, std=0.1)
    return model.eval()


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs")
    config = compose("smoke", "transformer", "bijection", 0, "cpu", {"steps": 2, "size": SIZE, "horizon": SIZE})
    return report.load(write(out, *run_one(config)))


@pytest.fixture(scope="module")
def known(made):
    return replace(made, model=planted())


@pytest.fixture(scope="module")
def unknown(made):
    return replace(made, model=randomise(made.config.make_model()))


@pytest.mark.parametrize("name", sorted(TASKS.names()))
def test_renamed_hypotheses_have_a_renamed_posterior(name):
    task = TASKS[name]()
    if not isinstance(task, CanRename):
        pytest.skip("it cannot rename")
    batch = task.sample(6, task.horizon, generator("cpu", 0, "rename"))
    order_BC = permutations(6, task.shape.classes, generator("cpu", 1, "rename"))
    renamed = task.rename(batch, order_BC)
    moved = task.posterior(renamed).gather(2, order_BC[:, None].expand(-1, len(batch.queries), -1))
    torch.testing.assert_close(moved, task.posterior(batch))
    assert torch.equal(renamed.targets, order_BC.gather(1, batch.targets))
    assert isinstance(task, HasHypotheses)
    changed_BT = (renamed.tokens != batch.tokens) | (renamed.features != batch.features).any(-1)
    assert changed_BT.any()
    assert not changed_BT[task.hypotheses(batch.tokens) < 0].any()


@pytest.mark.parametrize("arch", ["transformer", "transformer-looped", "lstm", "mamba2", "hybrid", "mlp"])
def test_a_forward_that_starts_at_the_edited_layer_is_the_whole_forward(arch):
    task = Bijection(SIZE, SIZE)
    model = randomise(ARCHS[arch](task.shape, 40_000, Geometry(3, 2, 32, 64)))
    batch = task.sample(70, SIZE, generator("cpu", 0, "resume"))  # more than a chunk
    answers = Answers(model, batch)

    def forward():
        with torch.no_grad():
            return model(batch.tokens, batch.features)[:, batch.queries].double().log_softmax(-1)

    torch.testing.assert_close(answers.intact, forward())
    for name in (name for name in tap_names(model) if name.endswith((".resid", ".mixed", ".out"))):
        edits = {name: lambda x: 0.5 * x}
        with edit(model, edits):
            whole = forward()
        torch.testing.assert_close(answers.edited(edits), whole)
        assert not torch.equal(whole, answers.intact)
    torch.testing.assert_close(forward(), answers.intact)  # the model is as it was


def test_edits_do_what_they_say():
    rng = generator("cpu", 0, "edits")
    x, donor = torch.randn(2, 4, 5, 6, generator=rng)
    basis = random_subspace(6, 2, rng)
    whole, part = swap_in(donor, [1, 3])(x), swap_in(donor, [1, 3], basis)(x)
    assert torch.equal(whole[:, [0, 2, 4]], x[:, [0, 2, 4]])
    torch.testing.assert_close(whole[:, [1, 3]], donor[:, [1, 3]])
    torch.testing.assert_close(part[:, [1, 3]] @ basis, donor[:, [1, 3]] @ basis)
    rest = torch.eye(6) - basis @ basis.T
    torch.testing.assert_close(part @ rest, x @ rest)
    x = x * torch.tensor([1.0, 20.0, 3.0, 1.0, 0.1])[:, None]  # positions of other lengths
    mean, length = normalise(x).mean((0, 1)), x.std(-1, correction=0)[..., None]
    removed = ablate(basis, mean, [0, 1, 2])(x)
    changed = (removed - x)[:, :3] / length[:, :3]
    expected = (mean - normalise(x)[:, :3]) @ basis
    torch.testing.assert_close(changed @ basis, expected, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(removed @ rest, x @ rest)
    assert torch.equal(removed[:, 3:], x[:, 3:])
    turned = rotate(basis, random_subspace(2, 2, rng))(x)
    torch.testing.assert_close(turned.norm(dim=-1), x.norm(dim=-1))
    assert not torch.allclose(turned, x)
    z, other = torch.randn(2, 4, 5, 3, 2, generator=rng)
    assert not without(1)(z)[:, :, 1].any()
    assert torch.equal(patch(other, 2, [0])(z)[:, 0, 2], other[:, 0, 2])
    assert torch.equal(patch(other, 2, [0])(z)[:, 1:], z[:, 1:])


def test_a_subspace_that_is_not_orthonormal_is_refused():
    """Else a null would remove more than its rank."""
    skewed = torch.randn(6, 2, generator=generator("cpu", 0, "skewed"))
    for use in (lambda: ablate(skewed, torch.zeros(6)), lambda: swap_in(torch.zeros(1, 1, 6), [0], skewed),
                lambda: rotate(skewed, torch.eye(2))):  # fmt: skip
        with pytest.raises(ValueError, match="must be orthonormal"):
            use()


def test_random_subspaces_overlap_by_rank_over_width():
    rng = generator("cpu", 0, "null")
    found = [overlap(random_subspace(24, 4, rng), random_subspace(24, 6, rng)) for _ in range(300)]
    assert np.mean(found) == pytest.approx(6 / 24, abs=4 * np.std(found) / 300**0.5)
    basis = random_subspace(24, 4, rng)
    assert overlap(basis, basis) == pytest.approx(1.0)


def test_spans_have_the_rank_of_their_vectors():
    rng = generator("cpu", 0, "span")
    inside = random_subspace(10, 3, rng)
    vectors = torch.randn(40, 3, generator=rng) @ inside.T
    assert span(vectors).shape == (10, 3)
    assert overlap(span(vectors), inside) == pytest.approx(1.0, abs=1e-5)
    assert centred_span(vectors + torch.ones(10)).shape == (10, 3)
    assert span(vectors, 2).shape == (10, 2)


def test_a_probe_is_scored_on_sequences_that_it_has_not_seen():
    """With as many directions as rows any target can be fitted, and noise still has nothing to read."""
    rng = generator("cpu", 0, "probe")
    x, noise = torch.randn(40, 5, 120, generator=rng), torch.randn(40, 5, 2, generator=rng)
    fitted = Probe(x[:20].flatten(0, 1), noise[:20].flatten(0, 1)).read(x[:20].flatten(0, 1))
    assert used.grade("entropy", fitted, noise[:20].flatten(0, 1).double()) > 0.9
    assert used.fit("entropy", x, noise.double()).score < 0.1
    assert used.fit("entropy", x[..., :8], x[..., :1].double()).score > 0.5


def test_without_what_covaries_nothing_linear_is_left():
    rng = generator("cpu", 0, "erase")
    y = torch.randn(500, 2, generator=rng)
    x = torch.cat([y, y + torch.randn(500, 2, generator=rng), torch.randn(500, 2, generator=rng)], 1)
    basis = covarying_subspace(x, y)
    centre = torch.eye(6) - basis @ basis.T
    left = x @ centre
    assert used.grade("entropy", Probe(left, y).read(left), y.double()) == pytest.approx(0.0, abs=1e-6)
    axis = Probe(x, y).subspace()  # weighs the clean copy, and leaves the noisy one
    noisy = x - x @ axis @ axis.T
    assert used.grade("entropy", Probe(noisy, y).read(noisy), y.double()) > 0.3


def test_the_planted_frame_is_found_and_a_random_model_has_the_null(known, unknown):
    basis = frame.frame(known)
    assert basis.shape == (WIDTH, SIZE - 1)
    assert basis[SIZE:].abs().max() < 1e-6
    attention = known.model.blocks[0].attn
    keys = key_subspace(attention, known.model.embed.token.weight.detach()[SIZE:], SIZE)
    assert overlap(keys, basis) == pytest.approx(1.0, abs=1e-5)
    found = swap.measure(known)
    assert found.overlaps[0] is not None
    at_embedding = found.overlaps[0]
    assert at_embedding.share == pytest.approx(1.0, abs=1e-3)  # answers are sensitive to shown values and nothing else
    assert at_embedding.null == pytest.approx((SIZE - 1) / WIDTH)
    other = swap.measure(unknown).overlaps[0]
    assert 0.4 < other.share / other.null < 1.8
    assert len(at_embedding.twins) == frame.TWINS
    width = len(frame.make_frame(frame.twin(known), *frame.setting(known).others))
    null = (SIZE - 1) / width
    excess = [(share - null) / (1 - null) for share in at_embedding.twins]
    assert np.mean(excess) == pytest.approx(0, abs=0.15)
    assert len(set(excess)) == frame.TWINS


def test_swapping_the_planted_frame_moves_the_answer_to_the_donor(known, unknown):
    found = swap.measure(known)
    rows = {(row.place, row.positions): row for row in found.rows}
    assert found.donor == pytest.approx(-found.intact, rel=0.05)
    assert found.intact < -1
    at_embedding = rows[0, swap.EVIDENCE]
    assert at_embedding.frame == pytest.approx(found.donor)
    assert at_embedding.whole == pytest.approx(found.donor)
    assert max(at_embedding.random) < found.donor / 2
    assert rows[0, swap.ANSWER].whole == pytest.approx(found.intact)  # keys are the same
    for place in (1, 2):  # layer 0 has moved it on: evidence is no longer read
        assert rows[place, swap.EVIDENCE].whole == pytest.approx(found.intact)
        assert rows[place, swap.ANSWER].whole == pytest.approx(found.donor)
        assert rows[place, swap.ANSWER].frame == pytest.approx(found.donor, rel=1e-3)
        assert found.share(rows[place, swap.ANSWER], rows[place, swap.ANSWER].frame) == pytest.approx(1, abs=1e-3)
        assert found.share(rows[place, swap.EVIDENCE], 0.0) is None  # no ceiling to compare with
        assert max(rows[place, swap.ANSWER].random) < found.donor / 2
        assert rows[place, swap.ANSWER].readout is None
    assert found.states["layer 0"] == pytest.approx(found.states["all layers"])
    assert found.states["layer 1"] == pytest.approx(found.states["none"])
    other = swap.measure(unknown)
    assert max(abs(row.whole) for row in other.rows) < 1  # an answer that does not depend on evidence cannot follow it


def test_a_swap_at_the_wrong_position_moves_nothing(known, monkeypatch):
    setting = frame.setting(known)
    wrong = setting._replace(evidence=[position - 1 for position in setting.evidence])
    monkeypatch.setattr(swap, "setting", lambda _: wrong)
    found = swap.measure.__wrapped__(known)
    assert found.rows[0].whole == pytest.approx(found.intact)


def test_the_planted_entropy_is_readable_and_not_used(known, unknown):
    found = {(f.quantity, f.subspace): f for f in used.measure(known)}
    k = torch.arange(1, SIZE + 1)
    uniform = (SIZE / (SIZE - k + 1)).log2().mean().item()  # bits of KL once nothing is known
    for kind in ("axis", "covarying"):
        entropy = found["entropy", kind]
        assert entropy.reading.trained[entropy.place] > 0.95
        assert max(entropy.reading.permuted) < 0.1
        assert entropy.removed.kl < 0.01 * uniform
        assert (entropy.rank, len(entropy.random)) == (1, LEAST_DRAWS)
        assert not entropy.used
        for name in ("eliminated", "identity"):
            assert found[name, kind].used, (name, kind)
            assert uniform < found[name, kind].removed.kl < 1.6 * uniform  # the mean of a sample favours some values
    assert found["identity", "axis"].readable == "as in a random twin"
    assert not any(f.readable == "yes" and f.used for f in used.measure(unknown))


@pytest.fixture(scope="module")
def uneven(known):
    """Entropy can be read only after normalisation, as keys differ in length up to 20 times."""
    model, lengths = planted(), torch.linspace(1, 20, SIZE)[torch.randperm(SIZE, generator=generator("cpu", 0, "long"))]
    with torch.no_grad():
        model.place.learned[: 2 * SIZE : 2] *= lengths[: len(model.place.learned[: 2 * SIZE : 2]), None]
    return replace(known, model=model)


def test_what_is_removed_is_what_was_scored_at_positions_of_any_length(uneven):
    found = {(f.quantity, f.subspace): f for f in used.measure.__wrapped__(uneven)}
    for kind in ("axis", "covarying"):
        entropy = found["entropy", kind]
        assert entropy.reading.trained[entropy.place] > 0.95
        assert not entropy.used
    axis = found["entropy", "axis"]
    assert axis.removed.kl < 1.1 * axis.intact.kl
    assert axis.removed.kl < min(each.kl for each in axis.random)  # the answers are not normalised, and these hurt
    assert found["identity", "covarying"].used


def test_a_fault_in_the_removal_is_seen():
    """The probe that was scored reads nothing after its own axis is gone, and goes on reading after any other fault."""
    rng = generator("cpu", 0, "fault")
    y = torch.randn(60, 10, 1, generator=rng).double()
    lengths = torch.linspace(1, 20, 10)[:, None]
    x = torch.randn(60, 10, 32, generator=rng)
    x[..., :1] += 3 * y.float()
    x = x * lengths
    fit = used.fit("entropy", x, y)
    axis, raw = fit.subspaces()["axis"], Probe(x.flatten(0, 1), y.flatten(0, 1)).subspace()

    def left(edited):
        said = fit.probe.read(normalise(edited).flatten(0, 1))
        return (said.std() / fit.probe.read(fit.x_ND).std()).item()

    assert fit.score > 0.8
    assert left(ablate(axis, fit.mean_D)(x)) < 0.05
    other = random_subspace(32, 1, rng)
    assert left(ablate(other, fit.mean_D)(x)) > 0.5  # the axis of another probe
    shifted = x + 5 * lengths * axis.T  # the mean of other positions, not normalised: long ones stand out
    assert left(shifted - (shifted - shifted.mean((0, 1))) @ axis @ axis.T) > 0.2
    assert overlap(axis, raw) < 1


def test_a_null_of_less_variance_is_seen():
    """Along the directions of the stream's variance a random direction removes little, and a matched one as much."""
    rng = generator("cpu", 0, "variance")
    x = torch.randn(400, 10, 64, generator=rng) * torch.cat([torch.full((2,), 20.0), torch.ones(62)])
    found = used.fit("entropy", x, torch.randn(400, 10, 1, generator=rng).double())
    values = found.x_ND - found.x_ND.mean(0)

    def share(basis):
        return ((values @ basis).square().sum() / values.square().sum()).item()

    matched = np.mean([share(each) for each in found.matched(rng)["covarying"]])
    assert share(found.subspaces()["covarying"]) < 3 * matched
    assert np.mean([share(random_subspace(64, 1, rng)) for _ in range(20)]) < matched / 5


def test_the_planted_writer_is_found(known, unknown):
    """Head 1 writes twice as much, but not into the frame."""
    found = ablation.measure(known)
    assert found.writes[0, 0].in_frame > 0.01
    assert found.writes[0, 1].size == pytest.approx(2 * found.writes[0, 0].size, rel=1e-5)
    silent = [
        write.in_frame
        for (layer, part), write in found.writes.items()
        if (layer, part) not in {(0, 0), (0, "attention")}
    ]
    assert silent == pytest.approx([0.0] * len(silent), abs=1e-6)
    parts = writers.measure(known)
    assert max(parts.parts, key=lambda part: part.cost).name == "layer 0, head 0"
    assert parts.frame.rho == pytest.approx(1.0)
    assert parts.whole.rho < 0.9
    assert parts.partial.rho > 0.9
    assert parts.half == 1
    assert parts.concentration > 100
    table = next(t for t in writers.writers.ask(known).tables if t.name == "writers_heads")
    assert table.rows == [["heads", 2 * HEADS, parts.concentration, 1]]
    assert writers.measure(unknown).frame.p > 0.01


def test_rank_correlation_by_hand():
    rng, x = np.random.default_rng(0), np.arange(12.0)
    perfect = writers.correlate(x, x**3, rng)
    assert (perfect.rho, perfect.low, perfect.high) == pytest.approx((1, 1, 1))
    assert perfect.p < 0.01
    noise = [writers.correlate(rng.normal(size=12), rng.normal(size=12), rng) for _ in range(5)]
    assert sum(c.low <= 0 <= c.high for c in noise) >= 4


def test_what_forms_is_dated_by_the_snapshots(made, tmp_path, monkeypatch):
    """The head grows from nothing at step 30; the embedding, and so the frame, is there from the start."""
    model, snapshots = planted(), []
    head = model.head.weight.detach().clone()
    for step, strength in ((1, 1e-3), (10, 1e-3), (30, 0.3), (100, 0.7), (300, 1.0)):
        with torch.no_grad():
            model.head.weight.copy_(strength * head)
        (tmp_path / f"{step}.safetensors").write_bytes(pack(model))
        snapshots.append((step, tmp_path / f"{step}.safetensors"))
    run = replace(made, model=model, snapshots=tuple(snapshots))

    def load(_config, weights):
        loaded = planted()
        loaded.load_state_dict(safetensors.torch.load(weights))
        return loaded

    monkeypatch.setattr(formation, "load_model", load)
    found = formation.measure(run)
    assert found.steps == [0, 1, 10, 30, 100, 300]
    assert found.overlap[1:] == pytest.approx([WIDTH / (SIZE - 1)] * 5, rel=1e-2)
    assert found.excess[0] < 0.2 < 0.99 < found.excess[1]  # as initialised it is a random model
    assert found.forms["overlap"] == 1
    assert found.forms["margin"] > 10
    margins = [each.readout for each in found.margins]
    assert abs(margins[1]) < 0.1 < 1 < margins[-1]
    last = found.margins[-1]
    assert last.whole == pytest.approx(last.readout, rel=0.1)
    assert last.intact < -1
    assert last.random < last.readout / 2
    assert formation.frame_first(found)
    with pytest.raises(NotAvailable, match="no snapshots were kept"):
        formation.measure(made)


@pytest.mark.parametrize(("values", "step"), [
    ([0.0, 0.5, 1.0, 0.9, 0.8, 0.7], 10 * 3**0.8),  # it drifts, and has formed long before it settles
    ([0.0, 1.0, 1.0, 0.2, 1.0, 1.0], 100 * 3**0.875),  # what is lost again has not formed
    ([1.0, 1.0, 1.0, 1.0, 1.0, 1.0], 0),  # there from the start
    ([-0.1, -0.1, -0.2, -0.1, -0.1, -0.1], None),
    ([0.0, 0.0, 1.0, 0.0, 0.0, 0.0], None),
])  # fmt: skip
def test_what_forms_may_drift_afterwards(values, step):
    steps = [0, 10, 30, 100, 300, 1000]
    found = formation.formed_at(steps, values)
    assert found == (None if step is None else pytest.approx(step))


def test_precision_is_dated_by_half_of_its_fall():
    assert formation.half_fallen([0, 1, 10, 100, 1000], [1.0, 1.0, 1.0, 0.01, 0.01]) == pytest.approx(10**1.5)
    assert formation.half_fallen([0, 1, 10], [1.0, 1.0, 1.0]) is None


def test_step_0_is_the_model_as_it_was_initialised(monkeypatch):
    started = {}

    def fit(model, *_rest):
        started.update({name: tensor.clone() for name, tensor in model.state_dict().items()})
        raise RuntimeError("seen enough")

    monkeypatch.setattr(running, "fit", fit)
    config = compose("smoke", "transformer", "bijection", 3, "cpu", {"steps": 2, "size": SIZE, "horizon": SIZE})
    run_one(config)
    found = initial_model(config).state_dict()
    assert started.keys() == found.keys()
    assert all(torch.equal(started[name], found[name]) for name in found)


def test_in_random_snapshots_nothing_forms(made, tmp_path):
    snapshots = []
    with torch.random.fork_rng():
        torch.manual_seed(1)
        for step in (1, 10, 30, 100, 300):
            model = made.config.make_model()
            for p in model.parameters():
                nn.init.normal_(p, std=0.1)
            (tmp_path / f"{step}.safetensors").write_bytes(pack(model))
            snapshots.append((step, tmp_path / f"{step}.safetensors"))
    found = formation.measure(replace(made, model=model.eval(), snapshots=tuple(snapshots)))
    assert np.mean(found.excess) == pytest.approx(0, abs=0.15)
    assert max(abs(each.readout) for each in found.margins) < 1
    assert not formation.frame_first(found)


UNDECIDED = ("entropy-inert", "geometry-outlives", "rescue")


def test_a_report_has_every_number_that_statements_read(known, cut, tmp_path, monkeypatch):
    snapshots = [(step, tmp_path / f"{step}") for step in (10, 30, 100, 300)]
    for step, path in snapshots:
        path.write_bytes(b"%d" % step)

    def load(_config, weights):  # the frame is there from step 10 on, and the answers from step 300 on
        model = planted()
        with torch.no_grad():
            model.head.weight *= 1.0 if weights == b"300" else 1e-3
        return model

    monkeypatch.setattr(formation, "load_model", load)
    monkeypatch.setattr(dynamics, "load_model", load)
    for run, sections in ((replace(known, snapshots=tuple(snapshots)), SECTIONS), (cut, (horizon.beyond,))):
        assert report.write(run, tmp_path / run.config.task, sections) == []
    of_bijection, of_recurrence = (
        reports.read(tmp_path / run.config.task / "report.json", run.record.id) for run in (known, cut)
    )
    for id, statement in STATEMENTS.items():
        written = of_recurrence if id in ("geometry-outlives", "rescue") else of_bijection
        assert {n.name: n.read(written) for n in statement.shown if n.read(written) is None} == {}, id
        # neither an axis that costs less than a random direction nor a model that has learned nothing decides
        assert (statement.holds(written) is None) == (id in UNDECIDED), id
    for headline in seeds.HEADLINES:
        assert headline.read(of_bijection) is not None, headline.name


def test_a_state_that_is_swapped_whole_is_that_of_the_donor():
    task = Bijection(SIZE, SIZE)
    for arch in ("transformer", "lstm", "mamba2"):
        model = randomise(ARCHS[arch](task.shape, 40_000, Geometry(2, 2, 32, 64)))
        batch = task.sample(5, SIZE, generator("cpu", 0, "state"))
        order = permutations(5, SIZE, generator("cpu", 1, "state"))
        donor, at = task.rename(batch, order), 6
        whole = torch.cat([donor.tokens[:, :at], batch.tokens[:, at:]], dim=1)
        with torch.no_grad():
            expected = model(whole, batch.features)[:, at].double().log_softmax(-1)
            own = model(batch.tokens, batch.features)[:, at].double().log_softmax(-1)
        torch.testing.assert_close(swap_state(model, batch, donor, at), expected, rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(swap_state(model, batch, donor, at, []), own, rtol=1e-3, atol=1e-4)
        assert not torch.allclose(swap_state(model, batch, donor, at, [0]), own, atol=1e-4)


def test_the_readout_is_the_jacobian_of_later_answers(known):
    batch = known.task.sample(16, SIZE, generator("cpu", 0, "readout"))
    found = readout_subspaces(known.model, batch, places(known.model), SIZE - 1, generator("cpu", 0, "j"))
    assert found.keys() == {EMBEDDING}  # nothing mixes positions after layer 0
    expected = centred_span(torch.eye(WIDTH)[FRAME])  # differences of values: a shift of all logits is no answer
    assert overlap(found[EMBEDDING], expected) == pytest.approx(1.0, abs=1e-4)


class Computes(nn.Module):
    """Writes the exact answer at the positions that were trained on, and nothing beyond; all of them read the frame."""

    def __init__(self, task):
        super().__init__()
        self.task, self.resid = task, Tap()

    def forward(self, x_BTD):
        p, last = self.task.modulus, self.task.loss_horizon
        frame_BTp = x_BTD[..., :p]
        tokens = frame_BTp.detach().argmax(-1)
        queries = torch.arange(tokens.shape[1])
        exact = self.task.posterior(Batch(tokens, x_BTD.new_empty(*tokens.shape, 0), tokens, queries))
        logits = exact.clamp(min=1e-3).log().float()
        computed = (logits - logits.mean(-1, keepdim=True)) * (queries < last)[:, None]
        means = frame_BTp.cumsum(1) / (1 + queries)[:, None]
        written = nn.functional.pad(computed + 1e-3 * means, (p, x_BTD.shape[-1] - 2 * p))
        return self.resid(x_BTD + written)


class Horizoned(nn.Module):
    """One-hot numbers in a wide stream, with two constants that keep the length of a vector nearly the same."""

    def __init__(self, task, width=160):
        super().__init__()
        p = task.modulus
        self.embed = nn.ModuleDict({"token": nn.Embedding(p, width), "out": Tap()})
        self.blocks = nn.ModuleList([Computes(task)])
        self.head = nn.Linear(width, p, bias=False)
        with torch.no_grad():
            self.embed["token"].weight.zero_()
            self.embed["token"].weight[:, :p] = torch.eye(p)
            self.embed["token"].weight[:, -2:] = torch.tensor([100.0, -100.0])
            self.head.weight.zero_()
            self.head.weight[:, p : 2 * p] = torch.eye(p)

    def forward(self, tokens, features):
        return self.head(self.blocks[0](self.embed["out"](self.embed["token"](tokens))))


@pytest.fixture(scope="module")
def cut(tmp_path_factory):
    """A run whose loss ends after five numbers."""
    settings = {"steps": 1, "sequences": 16, "loss_horizon": 5}
    config = compose("smoke", "transformer", "recurrence", 0, "cpu", settings)
    return report.load(write(tmp_path_factory.mktemp("cut"), *run_one(config)))


def test_beyond_a_planted_horizon_the_geometry_stays_and_a_transplant_rescues(cut):
    run = replace(cut, model=Horizoned(cut.task).eval())
    found = horizon.measure(run)
    p, width = cut.task.modulus, 160
    assert found.last == 5
    assert found.inside.kl < 0.03
    assert found.beyond.kl == pytest.approx(np.log2(p) / 2, rel=0.3)  # half of the sequences are programs
    for part in (found.inside, found.beyond):
        assert part.overlap.share == pytest.approx(1.0, abs=1e-3)
        assert part.overlap.null == pytest.approx((p - 1) / width)
        assert max(part.overlap.twins) < 0.8
    assert found.inside.decode > 0.95
    assert found.beyond.decode < 0.2
    embedding, after = found.rescues
    assert embedding.own == pytest.approx(found.beyond.kl, rel=0.01)  # the same number, and no computation
    assert after.own < 0.1
    assert after.own == pytest.approx(found.ceiling, abs=1e-3)  # after the last layer it is the answer
    assert after.other > 1.2 * found.beyond.kl  # sure of another sequence's answer
    told = reports.Section("s", "ok", "", [reports.Table(*table) for table in horizon.beyond.ask(run).tables], [])
    assert STATEMENTS["geometry-outlives"].holds(reports.Report("r", "", [told]))
    assert STATEMENTS["rescue"].holds(reports.Report("r", "", [told])) is False  # nothing is computed before the end


class Forgetful(nn.Module):
    """Counts its steps beside a memory of the two last numbers, and knows the answer while it counts up to five."""

    def __init__(self, task):
        super().__init__()
        self.task = task
        self.embed = nn.ModuleDict({"token": nn.Embedding(task.modulus, 8), "out": Tap()})
        self.blocks = nn.ModuleList([Tap()])

    def forward(self, tokens, features):
        self.blocks[0](self.embed["out"](self.embed["token"](tokens)))
        state = self.start(len(tokens), tokens.shape[1])
        return torch.stack([self.step(tokens[:, t], features[:, t], state) for t in range(tokens.shape[1])], dim=1)

    def start(self, batch, length):
        return [torch.zeros(batch, 0, dtype=torch.int64), torch.zeros(batch, dtype=torch.int64)]

    def step(self, token_B, features, state):
        state[0], state[1] = torch.cat([state[0], token_B[:, None]], dim=1)[:, -5:], state[1] + 1
        window = Batch(state[0], features, state[0], torch.arange(state[0].shape[1]))
        known = self.task.posterior(window)[:, -1].clamp(min=1e-12).log()
        return torch.where((state[1] <= 5)[:, None], known, torch.zeros_like(known)).float()


def test_a_transplanted_memory_rescues_a_model_that_has_counted_too_far(cut):
    """Its numbers alone do not help, since they are right; its counter does."""
    run = replace(cut, model=Forgetful(cut.task).eval())
    exam = frame.setting(run).exam
    found = {each.place: each for each in horizon.transplant_memory(run, exam, horizon.windows(run, exam.batch, 5))}
    assert found["none"].own == pytest.approx(np.log2(cut.task.modulus) / 2, rel=0.3)
    assert found["all layers"].own < 0.1
    assert found["layer 1"].own < 0.1
    assert found["layer 0"].own == found["none"].own == found["none"].other
    assert found["all layers"].other > 1  # numbers that do not fit the last one look like noise


def test_a_random_model_has_no_horizon(cut):
    found = horizon.measure(replace(cut, model=randomise(cut.config.make_model())))
    assert found.beyond.kl < 3 * found.inside.kl
    for part in (found.inside, found.beyond):
        assert abs(part.overlap.share - part.overlap.null) < 0.2 * (1 - part.overlap.null)
    for rescue in found.rescues:
        assert rescue.own == pytest.approx(found.beyond.kl, rel=0.2)
    table = horizon.beyond.ask(replace(cut, model=randomise(cut.config.make_model()))).tables[0]
    told = reports.Section("s", "ok", "", [reports.Table(*table)], [])
    assert STATEMENTS["geometry-outlives"].holds(reports.Report("r", "", [told])) is None  # nothing was learned


SECTIONS = (used.used, swap.swaps, writers.writers, formation.forms, summary.picture, horizon.beyond)


@pytest.mark.parametrize(("arch", "task"), [("lstm", "bijection"), ("mamba2", "hmm"), ("mlp", "bijection"),
                                            ("transformer", "bernoulli"), ("transformer", "recurrence"),
                                            ("transformer-looped", "bijection")])  # fmt: skip
def test_every_section_is_asked_or_says_why_not(arch, task, tmp_path, monkeypatch):
    monkeypatch.setattr(frame, "SEQUENCES", 24)
    params = {"loss_horizon": 5} if task == "recurrence" else {}
    config = compose("smoke", arch, task, 0, "cpu", {"steps": 1, "sequences": 16, **params})
    run = report.load(write(tmp_path, *run_one(config)))
    assert report.write(run, tmp_path / "report", SECTIONS) == []
    found = {s.title: s for s in report.reports.read(tmp_path / "report/report.json", run.record.id).sections}
    once = arch != "transformer-looped"
    assert (found[used.used.title].status == "ok") == once
    assert once or "its blocks are applied several times" in found[used.used.title].text
    assert found[formation.forms.title].status == "n/a"
    assert (found[swap.swaps.title].status == "ok") == (once and task in ("bijection", "hmm"))
    assert (found[writers.writers.title].status == "n/a") == (arch == "mlp" or not once)
    assert (horizon.beyond.title in found) == (task == "recurrence")
    if arch == "mlp":
        assert "cannot read step by step" in found[swap.swaps.title].text
        assert "another space" in found[writers.writers.title].text
    cost = {row[0]: row[1] for row in found[report.COST].tables[0].rows}
    assert cost["all"] == pytest.approx(sum(seconds for name, seconds in cost.items() if name != "all"))
    assert (tmp_path / "report/summary.png").exists()


def told(
    share,
    null=0.1,
    axis_used="no",
    draws=20,
    settled=100.0,
    heads=(1.1, 9),
    dying=0.5,
    rescued=(0.8, 0.1),
    way=(0.7, 0.3),
    partial=0.1,
    twins=0.1,
    early=0.5,
    twin=0.5,
    without=0.1,
    inside=0.01,
):
    """A report with a few cells."""
    ratio, ceiling = share / null, 1 / null
    swaps = [["embedding", "evidence", 3.0, 2.0, -4.0, 1.0, 0.3],
             ["after layer 0", "evidence", 0.1, 0.1, -4.0, 1.0, 0.0],
             ["after layer 0", "answer", 3.0, 2.5, -4.0, *way]]  # fmt: skip
    tables = [
        reports.Table("overlap", ["place", "overlap of readout and frame", "at random", "ratio", "ceiling",
                                  "largest of the twins"], [["embedding", share, null, ratio, ceiling, twins]]),
        reports.Table("used", ["quantity", "removed", "probe", "random twin", "MAE intact", "MAE once removed",
                               "KL intact", "KL once removed", "random: mean", "draws", "used"],
                      [["entropy", "axis", 0.95, 0.2, 0.01, 0.011, 0.1, without, 0.1, draws, axis_used]]),
        reports.Table("swap", ["place", "positions", "whole", "frame", "random", "share of the way: frame",
                               "share: largest random"], swaps),
        reports.Table("formation_dates", ["what", "forms at step"], [["overlap", settled], ["log error", 400.0]]),
        reports.Table("formation", ["step", "excess over null", "entropy MAE (bits)"],
                      [[0, 0.0, 3.0], [10, early, 2.0], [100, 0.9, 0.8], [1000, 1.0, 0.02]]),
        reports.Table("writers_heads", ["parts", "number", "largest over next", "above half"],
                      [["heads", 12, *heads]]),
        reports.Table("writers_rank", ["write", "Spearman with cost", "p", "low"],
                      [["in the frame", 0.5, 0.01, 0.3], ["whole", 0.2, 0.3, 0.1],
                       ["in the frame, given the whole", 0.3, 0.2, partial]]),
        reports.Table("readable", ["quantity", "place", "probe", "random twin"],
                      [["belief", "embedding", 0.2, 0.2], ["belief", "after layer 0", 0.95, twin],
                       ["belief", "after layer 1", 0.99, 0.1]]),
        reports.Table("horizon", ["positions", "KL (bits)", "overlap", "at random", "overlap over null",
                                  "largest of the twins"],
                      [["inside", inside, 0.9, 0.2, 4.5, twins], ["beyond", dying, 0.8, 0.2, 4.0, twins]]),
        reports.Table("transplants", ["place", "share rescued", "by another's"],
                      [["embedding", 0.0, 0.0], ["after layer 0", *rescued], ["after layer 1", 1.0, -1.0]]),
    ]  # fmt: skip
    return reports.Section("s", "ok", "", tables, [])


def decide(id, **cells):
    return STATEMENTS[id].holds(reports.Report("r", "", [told(**{"share": 0.5, **cells})]))


@pytest.mark.parametrize("width", [48, 64, 192])
def test_an_overlap_is_judged_by_its_excess_which_has_the_same_range_in_every_width(width):
    """Three times the null of 16 directions is more than all of a width of 48."""
    null = 16 / width
    assert decide("frame-overlap", share=1.0, null=null)
    assert not decide("frame-overlap", share=null + 0.2 * (1 - null), null=null)
    assert decide("frame-overlap", share=null + 0.25 * (1 - null), null=null)
    assert decide("frame-overlap", share=3 * 19 / 192 + 1e-9, null=19 / 192, twins=0.05)  # three times, as published
    assert not decide("frame-overlap", share=0.7, null=null, twins=0.65)  # a random twin has it as well
    assert not decide("frame-overlap", share=1.0, null=null, early=0.95)  # one step of training gives it


def test_an_axis_is_inert_only_beside_many_random_directions():
    assert decide("entropy-axis-inert") is True
    assert decide("entropy-axis-inert", without=0.2) is None  # it costs, and so does any other direction
    assert decide("entropy-axis-inert", without=0.2, axis_used="yes") is False
    assert decide("entropy-axis-inert", axis_used="yes") is False
    assert decide("entropy-axis-inert", draws=5) is None
    assert decide("entropy-inert") is None  # not measured


def test_statements_read_the_tables_of_a_report():
    assert decide("frame-swap")  # at the answers, where the whole swap moves more
    assert decide("frame-swap", way=(0.4, 0.3)) is False
    assert decide("frame-swap", way=(0.6, 0.7)) is False
    assert decide("rescue")  # not after the last layer, where the transplant is the answer
    assert decide("rescue", rescued=(0.3, 0.1)) is False
    assert decide("rescue", rescued=(0.8, 0.6)) is False
    assert decide("rescue", inside=0.5) is None
    assert decide("writers", partial=-0.1) is False
    assert decide("no-single-head")
    assert not decide("no-single-head", heads=(2.0, 1))
    assert decide("writers")
    assert decide("belief-readable")
    assert not decide("belief-readable", twin=0.9)  # before the last layer, though less afterwards
    assert decide("geometry-outlives")
    assert decide("geometry-outlives", dying=0.05) is False
    assert decide("geometry-outlives", inside=0.5) is None
    assert decide("frame-before-precision")
    assert decide("frame-before-precision", settled=300.0) is False
    assert decide("frame-before-precision", share=0.1, settled=1.0) is None  # at the null: no frame has formed
    shown = {n.name: n.read(reports.Report("r", "", [told(0.5)])) for s in STATEMENTS.values() for n in s.shown}
    assert shown["MAE added without the axis"] == pytest.approx(0.001)
    assert shown["then the error falls by"] == pytest.approx(40)
    assert shown["excess"] == pytest.approx(4 / 9)


@pytest.mark.parametrize(("errors", "shares", "verdict", "reason"), [
    ((0.01, 0.012, 0.011), (0.4, 0.5, 0.6), "holds", "3 of 3 seeds"),
    ((0.01, 0.012, 0.011), (0.1, 0.11, 0.09), "does not hold", "0 of 3 seeds"),
    ((0.01, 0.012, 0.011), (0.4, 0.1, 0.6), "undecided", "2 of 3 seeds: they disagree"),
    ((0.01, 0.012), (0.4, 0.5), "undecided", "2 of 2 seeds; it takes at least 3"),
    ((0.01, 0.012, 0.03), (0.4, 0.5, 0.6), "undecided",
     "3 of 3 seeds; an error of 0.03 bits is more than 2 times the best, 0.01"),
])  # fmt: skip
def test_a_statement_is_decided_by_three_good_seeds_that_agree(errors, shares, verdict, reason, tmp_path):
    runs = make_records("transformer", errors)
    written = {
        r.id: reports.Report(r.id, "", [told(x, settled=10.0 ** (1 + 2 * i))])
        for i, (r, x) in enumerate(zip(runs, shares, strict=True))
    }
    known = [*runs, *make_records("lstm", (0.0001,), horizon=5, size=8)]  # an easier question
    seeds.write(runs, written, tmp_path, False, known)
    with (tmp_path / "statements.csv").open() as file:
        found = {row["id"]: (row["verdict"], row["seeds"]) for row in csv.DictReader(file)}
    assert found["frame-overlap"] == (verdict, reason)
    assert found["identity-random"] == ("undecided", "no seed decides it")
    with (tmp_path / "headlines.csv").open() as file:
        numbers = {row["number"]: row["transformer"] for row in csv.DictReader(file)}
    mean, low, high = (float(x) for x in re.findall(r"[\d.e+-]+", numbers["overlap of readout and frame, over null"]))
    assert mean == pytest.approx(10 * np.mean(shares), rel=0.01)
    assert low < mean < high
    steps = [float(x) for x in re.findall(r"-?[\d.]+(?:e[+-]\d+)?", numbers["forms at step: overlap"])]
    assert min(steps) > 0  # of 10, 1,000 and 100,000 a symmetric interval would reach zero


def test_runs_that_do_not_belong_together_are_refused():
    runs = make_records("transformer", (0.1, 0.2))
    for others, compare, reason in (
        (make_records("lstm", (0.1,)), False, "several architectures: transformer, lstm"),
        (make_records("transformer", (0.1,), task="hmm"), False, "several tasks: bijection, hmm"),
        (make_records("lstm", (0.1,), preset="small"), True, "differ in preset, supervision, horizon or task"),
        (make_records("lstm", (0.1,), supervision="sampled"), True, "differ in preset, supervision, horizon or task"),
        (make_records("transformer", (0.1,), lr=0.5), False, "differ in more than their seed"),
        (runs[:1], False, "is given twice"),
        ([], True, "takes runs of several architectures"),
    ):
        with pytest.raises(BadInput, match=reason):
            seeds.group([*runs, *others], compare)
    assert list(seeds.group([*runs, *make_records("lstm", (0.1,))], True)) == ["transformer", "lstm"]
