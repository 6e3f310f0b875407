"""The training loop: its optimizer, its streams, its honesty."""

import math
from dataclasses import asdict, replace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from bench.device import describe
from bench.registry import BadInput
from bench.run import run
from bench.run.muon import Muon, orthogonalise
from bench.run.run import make_model, run_one
from bench.run.train import Diverged, backward, draw, fit, make_optimizers, schedule
from bench.run.turns import finish
from models.base import ARCHS
from tasks.base import TASKS


@pytest.mark.parametrize("bf16_rows", [math.inf, 0])
def test_muon_takes_the_steps_of_torchs_own(bf16_rows):
    """torch iterates in bfloat16, so its steps agree with ours to bfloat16's precision."""
    torch.manual_seed(0)
    shapes = [(32, 16), (16, 32), (32, 16), (24, 24)]
    ours = [torch.nn.Parameter(torch.randn(s)) for s in shapes]
    theirs = [torch.nn.Parameter(p.detach().clone()) for p in ours]
    start = [p.detach().clone() for p in ours]
    a = Muon(ours, lr=0.02, weight_decay=0.1, bf16_rows=bf16_rows)
    b = torch.optim.Muon(theirs, lr=0.02, weight_decay=0.1, momentum=0.95, nesterov=True)
    for _ in range(5):
        for p, q in zip(ours, theirs, strict=True):
            p.grad = torch.randn_like(p)
            q.grad = p.grad.clone()
        a.step()
        b.step()
    for p, q, p0 in zip(ours, theirs, start, strict=True):
        assert (p - q).norm() < 0.02 * (p - p0).norm()


@pytest.mark.parametrize(
    ("width", "amx", "dtype"), [(128, True, "bfloat16"), (128, False, "float32"), (64, True, "float32")]
)
def test_muon_multiplies_the_large_matrices_of_wide_models_in_bfloat16(smoke, monkeypatch, width, amx, dtype):
    """With AMX only. Models of the presets quick and small are narrower, and keep their bits."""
    monkeypatch.setattr("bench.device.multiplies_bf16", lambda: amx)
    config = smoke(width=width, heads=2, layers=1)
    seen = set()
    monkeypatch.setattr("bench.run.muon.orthogonalise", lambda x: seen.add((min(x.shape[-2:]), x.dtype)) or x)
    model = make_model(config)
    _, muon = make_optimizers(model, config)
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    muon.step()
    assert seen == {(width, getattr(torch, dtype))}
    assert describe(config).muon == dtype


@pytest.mark.parametrize(("rows", "columns"), [(24, 8), (8, 24), (8, 8)])
def test_muon_steps_a_packed_matrix_as_it_steps_its_parts(rows, columns):
    torch.manual_seed(0)
    apart = [torch.nn.Parameter(torch.randn(rows, columns)) for _ in range(3)]
    packed = torch.nn.Parameter(torch.cat([p.detach() for p in apart]))
    packed.parts = 3
    a, b = Muon(apart, lr=0.02), Muon([packed], lr=0.02)
    for _ in range(3):
        for p in apart:
            p.grad = torch.randn_like(p)
        packed.grad = torch.cat([p.grad for p in apart])
        a.step()
        b.step()
    torch.testing.assert_close(packed, torch.cat(apart))


def test_orthogonalise_brings_singular_values_near_one():
    torch.manual_seed(0)
    for shape in [(3, 20, 50), (2, 50, 20), (1, 7, 7)]:
        s = torch.linalg.svdvals(orthogonalise(torch.randn(shape)))
        assert s.min() > 0.4
        assert s.max() < 1.4


@pytest.mark.parametrize("shape", [(2, 128, 512), (2, 512, 128), (1, 130, 200)])
def test_passes_on_the_gram_matrix_are_the_same_iteration(shape, monkeypatch):
    torch.manual_seed(0)
    # down to a ten-thousandth of the largest, where a Gram matrix in float32 has lost its digits
    stack = torch.randn(shape) @ torch.diag(torch.logspace(0, -4, shape[2]))
    short = orthogonalise(stack)
    assert torch.linalg.svdvals(orthogonalise(stack.bfloat16()).float()).max() < 1.4
    monkeypatch.setattr("bench.run.muon.GRAM_ROWS", 10**9)
    torch.testing.assert_close(short, orthogonalise(stack.double()).float(), atol=1e-4, rtol=1e-3)


def test_every_parameter_has_exactly_one_optimizer(smoke):
    for arch in ARCHS.names():
        model = smoke(arch=arch).make_model()
        owned = [id(p) for o in make_optimizers(model, smoke(arch=arch)) for g in o.param_groups for p in g["params"]]
        assert sorted(owned) == sorted(id(p) for p in model.parameters())


@pytest.mark.parametrize("positions", ["alibi-shift", "learned"])
@pytest.mark.parametrize("task", ["bijection", "hmm"])
def test_muon_takes_the_matrices_between_embedding_and_head(smoke, task, positions):
    """For every registered architecture: the published records were trained with this split."""
    for arch in ARCHS.names():
        config = smoke(arch=arch, task=task, positions=positions, optimizer="muon")
        model = config.make_model()
        names = {id(p): name for name, p in model.named_parameters()}
        taken = {}
        for optimizer in make_optimizers(model, config):
            taken[type(optimizer).__name__] = [names[id(p)] for p in optimizer.param_groups[0]["params"]]
        inner = [
            name
            for name, p in model.named_parameters()
            if p.ndim == 2 and not name.startswith(("embed.", "head.", "place."))
        ]
        assert inner
        assert taken["Muon"] == inner, arch
        assert taken["AdamW"] == [name for name in names.values() if name not in inner], arch


class Renamed(torch.nn.Module):
    """A transformer whose parts have other names."""

    def __init__(self, model):
        super().__init__()
        self.wte, self.trunk, self.ln_f, self.lm_head = model.embed, model.blocks, model.norm, model.head

    def forward(self, tokens, features):
        x = self.wte(tokens, features)
        for block in self.trunk:
            x = block(x)
        return self.lm_head(self.ln_f(x))


def test_training_does_not_depend_on_the_names_of_parameters(smoke):
    config = smoke(task="hmm", optimizer="muon", steps=20)
    trained = []
    for rename in (lambda model: model, Renamed):
        model = rename(make_model(config))
        curve, _ = finish(fit(model, config.make_task(), config, lambda _: None))
        trained.append(([point["losses"] for point in curve], [p.detach() for p in model.parameters()]))
    (losses, weights), (other_losses, other_weights) = trained
    assert losses == other_losses
    assert all(torch.equal(a, b) for a, b in zip(weights, other_weights, strict=True))


def test_a_plain_head_of_any_name_is_trained_by_adamw(smoke):
    """An unmarked matrix is never given to Muon, which would train a head or an embedding badly."""
    model = Renamed(make_model(smoke(optimizer="muon")))
    model.lm_head = torch.nn.Linear(model.lm_head.in_features, model.lm_head.out_features)
    model.extra = torch.nn.Embedding(3, 4)
    adam, muon = make_optimizers(model, smoke(optimizer="muon"))
    left_to_adam = {id(p) for p in adam.param_groups[0]["params"]}
    assert {id(model.lm_head.weight), id(model.extra.weight), id(model.wte.token.weight)} <= left_to_adam
    assert id(model.trunk[0].attn.project.weight) in {id(p) for p in muon.param_groups[0]["params"]}


def test_an_unknown_optimizer_on_a_parameter_is_refused(smoke):
    model = make_model(smoke(optimizer="muon"))
    model.head.weight.optimizer = "mune"
    with pytest.raises(ValueError, match=r"head.weight asks for the optimizer 'mune'. Known: adamw, muon"):
        make_optimizers(model, smoke(optimizer="muon"))


def test_schedule_warms_up_and_ends_at_nothing(smoke):
    config = smoke(steps=100, warmup=10)
    values = [schedule(step, config) for step in range(100)]
    assert values[0] == pytest.approx(0.1)
    assert max(values) == pytest.approx(values[9], abs=0.02)
    assert 0 < values[-1] <= 0.011
    level = replace(config, decay="none")
    assert [schedule(step, level) for step in (9, 50, 99)] == [1.0, 1.0, 1.0]
    assert config.id() == replace(level, decay="linear").id() != level.id()
    assert "decay" not in config.to_json()  # a record from before there was a choice keeps its id


def test_two_architectures_with_one_seed_read_the_same_data(smoke):
    for arch in ("transformer", "mlp"):
        config = smoke(arch=arch, steps=40)
        batches = [batch.tokens for batch, _ in draw(config.make_task(), config)]
        assert len(batches) == 40
        if arch == "transformer":
            first = batches
    assert all(torch.equal(a, b) for a, b in zip(first, batches, strict=True))
    assert len({tuple(batch.flatten().tolist()) for batch in batches}) == 40
    other = smoke(seed=1, steps=40)
    assert not torch.equal(next(draw(other.make_task(), other))[0].tokens, first[0])


def test_supervision_decides_what_is_trained_on(smoke):
    batch, answer = next(draw(smoke().make_task(), smoke(supervision="sampled")))
    assert torch.equal(answer, batch.targets)
    batch, answer = next(draw(smoke().make_task(), smoke(supervision="posterior")))
    torch.testing.assert_close(answer, smoke().make_task().posterior(batch).float())


@pytest.mark.parametrize("optimizer", ["muon", "adamw"])
@pytest.mark.parametrize("supervision", ["posterior", "sampled"])
def test_training_lowers_the_error(smoke, optimizer, supervision):
    lr = 0.02 if optimizer == "muon" else 0.01
    config = smoke(steps=200, optimizer=optimizer, supervision=supervision, lr=lr)
    curve, _ = finish(fit(make_model(config), config.make_task(), config, lambda _: None))
    assert curve[-1]["entropy_mae"] < 0.85 * curve[0]["entropy_mae"]
    assert curve[-1]["step"] == 200


def test_the_same_seed_gives_the_same_record_twice(smoke):
    for arch, task in (("transformer", "hmm"), ("mlp", "bijection")):
        (a, weights_a), (b, weights_b) = (run_one(smoke(arch=arch, task=task)) for _ in range(2))
        ignored = {"seconds", "tokens_per_second", "memory_bytes", "loss_curve"}
        a_data, b_data = ({k: v for k, v in asdict(r).items() if k not in ignored} for r in (a, b))
        assert a_data == b_data
        assert weights_a == weights_b
        assert [look.loss for look in a.loss_curve] == [look.loss for look in b.loss_curve]


def test_the_curve_has_every_loss_and_a_look_at_least_every_hundred_steps(smoke):
    config = smoke(task="bernoulli", steps=2150, batch=1, horizon=2, layers=1, width=4, heads=1, ffn=4, sequences=8)
    curve, _ = finish(fit(make_model(config), config.make_task(), config, lambda _: None))
    assert [point["step"] for point in curve] == [*range(100, 2101, 100), 2150]
    assert [len(point["losses"]) for point in curve] == [100] * 21 + [50]
    for point in curve:
        assert sum(point["losses"]) / len(point["losses"]) == pytest.approx(point["loss"], rel=1e-4)
        assert 0 < point["eval_loss"] < 2


def test_another_seed_gives_other_numbers(smoke):
    (a, _), (b, _) = (run_one(smoke(seed=seed)) for seed in (0, 1))
    assert a.metrics != b.metrics
    assert a.weights != b.weights


def test_a_loss_that_is_no_number_ends_the_run_as_a_failed_record(smoke):
    config = smoke(lr=1e30, adam_lr=1e30, steps=40)
    with pytest.raises(Diverged, match="the loss is"):
        finish(fit(make_model(config), config.make_task(), config, lambda _: None))
    record, weights = run_one(config)
    assert record.status == "failed"
    assert "the loss is" in record.error
    assert record.metrics == {}
    assert weights is None


def test_weights_that_are_lost_in_the_last_update_end_the_run_too(smoke):
    """The loss of a step is taken before its update: the last one shows in the watched sequences alone."""
    record, weights = run_one(smoke(arch="mlp-pointwise", steps=1, lr=1e30, adam_lr=1e30, warmup=0))
    assert record.status == "failed"
    assert "watched sequences is nan after step 1" in record.error
    assert weights is None


def test_a_record_says_what_was_measured_and_null_for_the_rest(smoke):
    record, _ = run_one(smoke(arch="mlp", task="hmm"))
    assert record.metrics["20"]["all"]["entropy_mae"] > 0
    assert record.metrics["50"] is None  # an MLP cannot read beyond its prefix
    assert record.references["50"]["uniform"]["post"]["entropy_mae"] > 0
    assert record.memory_bytes.resident > 50e6
    assert record.memory_bytes.allocated is None
    assert record.energy_joules is None
    assert record.platform["triton"] is None
    assert record.train_flops > 6 * 0.5 * record.parameters * 12 * 16 * 20
    assert abs(record.parameters - record.budget) <= 0.01 * record.budget
    assert all(math.isfinite(x) for x in record.by_position["20"]["kl"])


def test_post_is_the_mean_of_the_new_positions(smoke):
    record, _ = run_one(smoke(task="hmm"))
    curve = record.by_position["50"]["entropy_mae"]
    assert record.metrics["50"]["post"]["entropy_mae"] == pytest.approx(sum(curve[20:]) / 30)
    assert record.metrics["50"]["all"]["entropy_mae"] == pytest.approx(sum(curve) / 50)
    assert "post" not in record.metrics["20"]


class HostReads(TorchDispatchMode):
    """Counts what would make the host wait for a GPU: reading a number, or a size that depends on data."""

    WAITS = ("_local_scalar_dense", "nonzero", "masked_select", "is_nonzero", "equal", "unique", "_linalg_check_errors")

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.name().split("::")[1].split(".")[0]
        if name.lstrip("_").startswith(tuple(wait.lstrip("_") for wait in self.WAITS)):
            self.found.append(name)
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("arch", "task", "params"),
    [
        *((arch, "hmm", {}) for arch in ("mlp", "gru", "gated-deltanet")),
        *(("transformer", task, {}) for task in TASKS.names()),
        ("transformer", "bernoulli", {"pool": 7}),
        ("transformer", "markov", {"pool": 5}),
        ("transformer", "hmm-pool", {"pool": 3}),
        ("transformer", "group", {"noise": 0.1}),
        ("transformer", "recurrence", {"opaque": True}),
        ("transformer", "recurrence", {"modulus": 5, "holdout": 0.3}),
        ("transformer", "recurrence", {"loss_horizon": 5, "loss_density": 0.1}),
        ("transformer", "bernoulli", {"eval_prior": 2.0}),
    ],
)
def test_no_step_waits_for_the_host(smoke, arch, task, params):
    """Drawing, forward, backward, clipping and Muon. AdamW's own step counter lives on the device with CUDA alone."""
    config = smoke(arch=arch, task=task, steps=1, **params)
    task, model = config.make_task(), make_model(config)
    _, muon = make_optimizers(model, config)
    with HostReads() as reads:
        loss = backward(model, *next(draw(task, config)), 1)
        torch.nn.utils.clip_grad_norm_(model.parameters(), config.clip, foreach=True)
        muon.step()
    assert reads.found == []
    with HostReads() as reads:
        loss.item()
        torch.ones(3).nonzero()
        torch.linalg.solve(torch.eye(3), torch.ones(3))
    assert len(reads.found) == 3  # it does see them


def test_a_model_that_overflows_beyond_its_training_length_has_failed(monkeypatch, smoke):
    """A record has finite numbers: what has none is that run's failure, not the command's."""
    whole = run.predict

    def overflow(model, batch):
        log_q = whole(model, batch)
        return log_q if log_q.shape[1] <= 20 else log_q * float("nan")

    monkeypatch.setattr("bench.run.run.predict", overflow)
    record, weights = run.run_one(smoke(task="hmm", steps=2))
    assert (record.status, record.error) == ("failed", "its predictions are not finite at K = 30")
    assert weights is None


@pytest.mark.parametrize("arch", ["transformer", "transformer-uniform-attn", "mamba2", "gated-deltanet", "hybrid"])
@pytest.mark.parametrize("optimizer", ["muon", "adamw"])
def test_values_learn_at_their_own_rate_and_nothing_else_does(smoke, arch, optimizer):
    """A step with value_lr=10 is, in the rows of values, ten times that of value_lr=1; weight decay included."""
    moved = {}
    for factor in (1.0, 10.0):
        config = smoke(arch=arch, optimizer=optimizer, value_lr=factor, weight_decay=0.1)
        model = make_model(config)
        before = {name: p.detach().clone() for name, p in model.named_parameters()}
        generator = torch.Generator().manual_seed(0)
        for p in model.parameters():
            p.grad = torch.randn(p.shape, generator=generator)
        for each in make_optimizers(model, config):
            each.step()
        moved[factor] = {name: p.detach() - before[name] for name, p in model.named_parameters()}
    rows = {name: p.value_rows for name, p in model.named_parameters() if hasattr(p, "value_rows")}
    assert rows
    for name, step in moved[1.0].items():
        expected = step.clone()
        if name in rows:
            expected[rows[name]] *= 10
            assert step[rows[name]].any()
        torch.testing.assert_close(moved[10.0][name], expected, rtol=1e-3, atol=1e-5)


def test_a_default_value_rate_changes_no_id_and_an_architecture_without_values_refuses_another(smoke):
    assert smoke(value_lr=1.0).id() == smoke().id() != smoke(value_lr=10.0).id()
    with pytest.raises(BadInput, match="lstm on bijection: it has no values, so value_lr changes nothing"):
        smoke(arch="lstm", value_lr=10.0)
    with pytest.raises(BadInput, match="value_lr must be a positive number"):
        smoke(value_lr=0.0)
