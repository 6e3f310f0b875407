"""The training loop: its optimizer, its streams, its honesty."""

import math
from dataclasses import asdict, replace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from bench import run
from bench.muon import Muon, orthogonalise
from bench.run import make_model, run_one
from bench.train import Diverged, backward, draw, fit, make_optimizers, schedule
from models.base import ARCHS
from tasks.base import TASKS


def test_muon_takes_the_steps_of_torchs_own():
    """torch iterates in bfloat16, so its steps agree with ours to bfloat16's precision."""
    torch.manual_seed(0)
    shapes = [(32, 16), (16, 32), (32, 16), (24, 24)]
    ours = [torch.nn.Parameter(torch.randn(s)) for s in shapes]
    theirs = [torch.nn.Parameter(p.detach().clone()) for p in ours]
    start = [p.detach().clone() for p in ours]
    a = Muon(ours, lr=0.02, weight_decay=0.1)
    b = torch.optim.Muon(theirs, lr=0.02, weight_decay=0.1, momentum=0.95, nesterov=True)
    for _ in range(5):
        for p, q in zip(ours, theirs, strict=True):
            p.grad = torch.randn_like(p)
            q.grad = p.grad.clone()
        a.step()
        b.step()
    for p, q, p0 in zip(ours, theirs, start, strict=True):
        assert (p - q).norm() < 0.02 * (p - p0).norm()


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
    monkeypatch.setattr("bench.muon.GRAM_ROWS", 10**9)
    torch.testing.assert_close(short, orthogonalise(stack.double()).float(), atol=1e-4, rtol=1e-3)


def test_every_parameter_has_exactly_one_optimizer(smoke):
    for arch in ARCHS.names():
        model = smoke(arch=arch).make_model()
        owned = [id(p) for o in make_optimizers(model, smoke(arch=arch)) for g in o.param_groups for p in g["params"]]
        assert sorted(owned) == sorted(id(p) for p in model.parameters())


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
    curve, _ = fit(make_model(config), config.make_task(), config, lambda _: None)
    assert curve[-1]["entropy_mae"] < 0.85 * curve[0]["entropy_mae"]
    assert curve[-1]["step"] == 200


def test_the_same_seed_gives_the_same_record_twice(smoke):
    for arch, task in (("transformer", "hmm"), ("mlp", "bijection")):
        (a, weights_a), (b, weights_b) = (run_one(smoke(arch=arch, task=task)) for _ in range(2))
        ignored = {"seconds", "tokens_per_second", "memory_bytes", "loss_curve"}
        a_data, b_data = ({k: v for k, v in asdict(r).items() if k not in ignored} for r in (a, b))
        assert a_data == b_data
        assert weights_a == weights_b
        assert [p["loss"] for p in a.loss_curve] == [p["loss"] for p in b.loss_curve]


def test_the_curve_has_every_loss_and_a_look_at_least_every_hundred_steps(smoke):
    config = smoke(task="bernoulli", steps=2150, batch=1, horizon=2, layers=1, width=4, heads=1, ffn=4, sequences=8)
    curve, _ = fit(make_model(config), config.make_task(), config, lambda _: None)
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
        fit(make_model(config), config.make_task(), config, lambda _: None)
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
    assert record.memory_bytes["resident"] > 50e6
    assert record.memory_bytes["allocated"] is None
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
    ("arch", "task"),
    [*((arch, "hmm") for arch in ("mlp", "gru", "gated-deltanet")), *(("transformer", task) for task in TASKS.names())],
)
def test_no_step_waits_for_the_host(smoke, arch, task):
    """Drawing, forward, backward, clipping and Muon. AdamW's own step counter lives on the device with CUDA alone."""
    config = smoke(arch=arch, task=task, steps=1)
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

    monkeypatch.setattr("bench.run.predict", overflow)
    record, weights = run.run_one(smoke(task="hmm", steps=2))
    assert (record.status, record.error) == ("failed", "its predictions are not finite at K = 30")
    assert weights is None
