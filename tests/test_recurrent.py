"""Recurrences: their parallel forms against fla's naive twins and against themselves, one position at a time."""

import inspect
import os
import sys
from types import SimpleNamespace

import pytest
import torch
from fla.ops.gated_delta_rule.naive import naive_recurrent_gated_delta_rule
from fla.ops.simple_gla.naive import naive_recurrent_simple_gla

from bench.config import compose
from bench.run.run import check_recurrences, step_flops
from bench.seeds import generator
from models.base import POSITIONS, Geometry, Shift, count_parameters
from models.kernels import check, recurrence
from models.kernels.recurrence import CHUNK, chunked, decayed_sum, decayed_sum_step, delta_rule, delta_rule_step, fused
from models.linear import TAPS, ShortConv
from models.taps import record
from tasks.base import TASKS
from tests.test_models import make

ARCHS = [
    "lstm",
    "gru",
    "linear-attention",
    "mamba2",
    "gated-deltanet",
    "gated-deltanet-signed",
    "hybrid",
    "transformer-looped",
]
LENGTHS = [1, 15, 39, CHUNK - 1, CHUNK, 3 * CHUNK + 1]


def inputs(length, dtype=torch.float32):
    """Unit keys, decays from none to nearly all, strengths of the whole range: what a trained model may ask for."""
    torch.manual_seed(length)
    q, k = (torch.nn.functional.normalize(torch.randn(2, length, 3, 8, dtype=dtype), dim=-1) for _ in range(2))
    v = torch.randn(2, length, 3, 5, dtype=dtype)
    g = -torch.tensor([0.0, 0.1, 5.0], dtype=dtype) * torch.rand(2, length, 3, dtype=dtype)
    b = 2 * torch.rand(2, length, 3, dtype=dtype)
    return [x.requires_grad_() for x in (q, k, v, g, b)]


def value_and_gradients(function, tensors):
    out = function(*tensors)
    torch.manual_seed(0)
    return out, *torch.autograd.grad((out * torch.randn(out.shape)).sum(), tensors)


@pytest.mark.parametrize("length", LENGTHS)
def test_decayed_sum_equals_flas_twin_in_value_and_gradient(length):
    tensors = inputs(length)[:4]
    ours = value_and_gradients(decayed_sum, tensors)
    twin = value_and_gradients(lambda *x: naive_recurrent_simple_gla(*x, scale=1.0)[0], tensors)
    torch.testing.assert_close(ours, twin, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("length", LENGTHS)
def test_delta_rule_equals_flas_twin_in_value_and_gradient(length):
    tensors = inputs(length)
    ours = value_and_gradients(delta_rule, tensors)
    twin = value_and_gradients(
        lambda q, k, v, g, b: naive_recurrent_gated_delta_rule(q, k, v, b, g, scale=1.0)[0], tensors
    )
    torch.testing.assert_close(ours, twin, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize(
    ("whole", "step", "count"), [(decayed_sum, decayed_sum_step, 4), (delta_rule, delta_rule_step, 5)]
)
def test_chunks_equal_the_definition_step_by_step(length, whole, step, count):
    tensors = [x.detach() for x in inputs(length, torch.float64)[:count]]
    state, outs = torch.zeros(2, 3, 8, 5, dtype=torch.float64), []
    for t in range(length):
        out, state = step(*(x[:, t] for x in tensors), state)
        outs.append(out)
    torch.testing.assert_close(whole(*tensors), torch.stack(outs, dim=1), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("positions", ["alibi", "alibi-shift"])
@pytest.mark.parametrize("task_name", ["bijection", "hmm"])
@pytest.mark.parametrize("arch", [*ARCHS, "transformer-uniform-attn"])
def test_step_by_step_equals_the_parallel_form(arch, task_name, positions):
    task = TASKS[task_name]()
    model = make(arch, task, Geometry(3, 2, 32, 64, positions)).eval().double()
    for shift in (module for module in model.modules() if isinstance(module, Shift)):
        torch.nn.init.normal_(shift.weight)  # it starts at zero
    batch = task.sample(3, task.horizon, generator("cpu", 0, "t"))
    length = batch.tokens.shape[1]
    with torch.no_grad():
        whole = model(batch.tokens, batch.features)
        state = model.start(3, length)
        steps = [model.step(batch.tokens[:, t], batch.features[:, t], state) for t in range(length)]
    torch.testing.assert_close(torch.stack(steps, dim=1), whole, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("arch", ["hybrid", "transformer-looped"])
def test_attention_knows_its_position_step_by_step(arch, positions):
    task = TASKS["bijection"]()
    model = make(arch, task, Geometry(2, 2, 32, 64, positions)).eval().double()
    batch = task.sample(2, 5, generator("cpu", 0, "t"))
    with torch.no_grad():
        state = model.start(2, 9)
        steps = [model.step(batch.tokens[:, t], batch.features[:, t], state) for t in range(9)]
        torch.testing.assert_close(torch.stack(steps, dim=1), model(batch.tokens, batch.features), rtol=1e-8, atol=1e-8)


def held(state):
    """The tensors of a state, however they are nested."""
    if isinstance(state, torch.Tensor):
        yield state
    elif not isinstance(state, int):
        for part in getattr(state, "memory", state):
            yield from held(part)


@pytest.mark.parametrize("positions", ["alibi", "alibi-shift"])
@pytest.mark.parametrize("arch", ARCHS)
def test_state_bytes_are_those_of_the_state(arch, positions):
    """In float32, counted from what `start` really allocates."""
    task = TASKS["hmm"]()
    model = make(arch, task, Geometry(2, 2, 32, 64, positions))
    assert model.state_bytes(30) == sum(x.numel() * 4 for x in held(model.start(1, 30)))
    fixed = arch not in ("hybrid", "transformer-looped")
    assert (model.state_bytes(60) == model.state_bytes(30)) == fixed


def test_a_looped_transformer_applies_one_block_many_times():
    task = TASKS["bijection"]()
    model = make("transformer-looped", task, Geometry(4, 2, 32, 64)).eval()
    assert len(model.blocks) == 1
    batch = task.sample(3, 20, generator("cpu", 0, "t"))
    with torch.no_grad(), record(model, "blocks.0.resid") as seen:
        model(batch.tokens, batch.features)
        x = model.place(model.embed(batch.tokens, batch.features))
        last = seen["blocks.0.resid"]
        for _ in range(4):
            x = model.blocks[0](x)
    torch.testing.assert_close(x, last)


@pytest.mark.parametrize("arch", ["lstm", "gru", "mamba2", "gated-deltanet", "linear-attention"])
def test_the_arithmetic_of_a_recurrence_is_counted(arch):
    """Every weight but the embedding's is used once a position: six operations each, and the state's own on top."""
    config = compose("quick", arch, "hmm", 0, "cpu", {})
    model = config.make_model()
    used = count_parameters(model) - count_parameters(model.embed)
    matrices = 6 * used * config.batch * 30
    assert 0.95 * matrices < step_flops(config) < 1.5 * matrices


@pytest.mark.parametrize(
    ("preset", "task"), [("quick", "hmm"), ("quick", "bernoulli"), ("bernoulli-report", "bernoulli")]
)
def test_the_arithmetic_of_attention_is_counted(preset, task):
    """Scores and their mean of values, two operations a number; every product once forward and twice backward."""
    config = compose(preset, "transformer", task, 0, "cpu", {})
    length = config.make_task().shape.length(config.horizon)
    weights = sum(
        p.numel() for name, p in config.make_model().named_parameters() if p.ndim == 2 and "token" not in name
    )
    attention = 2 * 2 * length**2 * config.width * config.layers
    expected = 3 * (2 * length * weights + attention) * config.batch
    assert step_flops(config) == pytest.approx(expected, rel=2e-3)  # nobody asks for the gradient of the features


def test_on_cuda_flas_kernels_are_asked_for_float32(monkeypatch):
    asked = []
    monkeypatch.delenv("TRITON_F32_DEFAULT", raising=False)

    def kernel(q, *_, scale, chunk_size):
        asked.append((os.environ.get("TRITON_F32_DEFAULT"), scale, chunk_size))
        return (q,)

    monkeypatch.setitem(sys.modules, "fla.ops.simple_gla", SimpleNamespace(chunk_simple_gla=kernel))
    monkeypatch.setitem(sys.modules, "fla.ops.gated_delta_rule", SimpleNamespace(chunk_gated_delta_rule=kernel))
    monkeypatch.setattr(recurrence, "_kernels", recurrence._kernels.__wrapped__)
    fused("decayed_sum", *inputs(3)[:4])
    fused("delta_rule", *inputs(3))
    assert asked == [("ieee", 1.0, 16), ("ieee", 1.0, 16)]


def test_a_run_checks_flas_kernels_at_the_shapes_that_it_will_use(monkeypatch):
    checked, warm = [], []
    monkeypatch.setattr("bench.run.run.require_right_recurrence", lambda case, device: checked.append(case))
    monkeypatch.setattr("bench.run.run.warm_up", lambda case, device: warm.append(case))
    for arch, name in (("mamba2", "decayed_sum"), ("hybrid", "delta_rule")):
        config = compose("quick", arch, "hmm", 0, "cpu", {"horizons": (20, 50)})
        check_recurrences(config.make_model(), config)
        assert [(c.name, c.length) for c in checked] == [(name, 30), (name, 60)]
        assert checked[0].heads == 2
        assert {(c.name, c.length, c.batch) for c in warm} == {(name, 30, config.batch), (name, 30, 64)}
        checked.clear()
        warm.clear()


def test_nothing_is_trained_on_a_recurrence_that_fails(monkeypatch):
    case = check.Recurrence("delta_rule", 39, 2, 16, 16)
    monkeypatch.setattr(check, "fused", lambda name, *x: 1.001 * chunked(*x))
    with pytest.raises(RuntimeError, match=r"fla's kernel fails its check at .*delta_rule.*out is off by 1.0e-03"):
        check.require_right_recurrence(case, "cpu")
    monkeypatch.setattr(check, "fused", lambda name, *x: chunked(*x))
    check.require_right_recurrence(case, "cpu")


def test_no_grid_of_flas_kernels_is_larger_than_cuda_allows(monkeypatch):
    """Sequences times heads are on an axis of 65,535: more are computed in parts, with the same answer."""
    sizes = []

    def kernel(q, k, v, g, **_):
        sizes.append(q.shape[0] * q.shape[2])
        return (chunked(q, k, v, g),)

    monkeypatch.setattr("models.kernels.recurrence._kernels", lambda: {"decayed_sum": kernel})
    tensors = [torch.rand(40_000, 1, 2, 1) for _ in range(3)] + [-torch.rand(40_000, 1, 2)]
    torch.testing.assert_close(fused("decayed_sum", *tensors), chunked(*tensors), rtol=0, atol=0)
    assert sizes == [65_534, 80_000 - 65_534]


def test_flas_kernels_take_the_arguments_that_they_are_given():
    """They run on CUDA only; their names and order can be checked anywhere."""
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule
    from fla.ops.simple_gla import chunk_simple_gla

    for kernel, names in ((chunk_simple_gla, "q k v g"), (chunk_gated_delta_rule, "q k v g beta")):
        parameters = list(inspect.signature(kernel).parameters)
        assert parameters[: len(names.split())] == names.split()
        assert "scale" in parameters


@pytest.mark.parametrize("length", [1, 3, 15])
def test_the_short_convolution_is_torchs_of_each_channel(length):
    conv = ShortConv(6).double()
    x = torch.randn(2, length, 6, dtype=torch.float64, requires_grad=True)
    padded = torch.nn.functional.pad(x.mT, (TAPS - 1, 0))
    expected = torch.nn.functional.conv1d(padded, conv.weight, groups=6).mT
    torch.testing.assert_close(conv(x), expected)
    assert torch.autograd.gradcheck(conv, (x,))
    (grad,) = torch.autograd.grad(conv(x).square().sum(), conv.weight)
    (known,) = torch.autograd.grad(expected.square().sum(), conv.weight)
    torch.testing.assert_close(grad, known)


def test_arithmetic_is_counted_on_the_model_that_is_trained(monkeypatch):
    """On CUDA a hybrid's heads have widths that the kernels serve, and so another number of operations."""
    config = compose("smoke", "hybrid", "hmm", 0, "cuda", {})
    trained = count_parameters(config.make_model())
    counted = []

    def loss(model, *_):
        counted.append(count_parameters(model))
        return next(model.parameters()).sum()

    monkeypatch.setattr("bench.run.run.loss_nats", loss)
    step_flops(config)
    assert counted == [trained]
