"""Laws that every architecture obeys, whatever its name."""

import math

import pytest
import torch

from bench.config import compose
from bench.presets import NEWER_BLOCK
from bench.registry import BadInput
from bench.report.rollout import refusal
from bench.run.train import loss_nats
from bench.seeds import generator
from models.base import (
    ACTIVATIONS,
    ARCHS,
    POSITIONS,
    Geometry,
    Shift,
    build,
    count_built,
    count_parameters,
    gated_silu,
    shift,
    solve,
    solve_affine,
    squared_relu,
    usual_hidden,
)
from models.kernels.attention import attention, attention_step
from models.taps import edit, record, tap_names
from models.transformer import Attention, reference
from tasks.base import TASKS
from tasks.hmm import HMM

PAPER = {"bijection": Geometry(6, 6, 192, 768), "hmm": Geometry(9, 8, 256, 1024)}
NEWER = Geometry(3, 2, 32, 80, **NEWER_BLOCK)
SIZES = [Geometry(3, 2, 32, 64), Geometry(6, 3, 48, 192), Geometry(4, 4, 64, 256, "learned"), NEWER]


def make(arch, task, geometry=None):
    """On hmm with the newer block, as the presets have it; elsewhere with the plain one."""
    geometry = geometry or (NEWER if isinstance(task, HMM) else SIZES[0])
    torch.manual_seed(0)
    model = build(arch, task.shape, count_built(lambda: reference(task.shape, geometry)), geometry)
    with torch.no_grad():  # branches start at zero: give them something to say
        for p in model.parameters():
            p.add_(0.1 * torch.randn_like(p))
    return model


@pytest.mark.parametrize("task_name", ["bijection", "hmm"])
@pytest.mark.parametrize("arch", ARCHS.names())
class TestEveryArchitecture:
    def test_parameters_land_within_one_percent_of_the_budget(self, arch, task_name):
        shape = TASKS[task_name]().shape
        for geometry in (*SIZES, PAPER[task_name]):
            budget = count_built(lambda g=geometry: reference(shape, g))
            count = count_built(lambda g=geometry, b=budget: build(arch, shape, b, g))
            assert abs(count - budget) <= 0.01 * budget

    def test_nobody_sees_the_future(self, arch, task_name):
        task = TASKS[task_name]()
        model = make(arch, task).eval()
        a = task.sample(4, task.horizon, generator("cpu", 0, "a"))
        b = task.sample(4, task.horizon, generator("cpu", 0, "b"))
        length = a.tokens.shape[1]
        for cut in (1, task.shape.header + 1, 15, length - 1):
            tokens = torch.cat([a.tokens[:, :cut], b.tokens[:, cut:]], dim=1)
            features = torch.cat([a.features[:, :cut], b.features[:, cut:]], dim=1)
            with torch.no_grad():
                before, after = model(a.tokens, a.features), model(tokens, features)
            assert torch.equal(before[:, :cut], after[:, :cut])
            assert not torch.equal(before[:, cut:], after[:, cut:])

    def test_one_step_trains_every_parameter(self, arch, task_name):
        task = TASKS[task_name]()
        model = make(arch, task)
        batch = task.sample(16, task.horizon, generator("cpu", 0, "t"))
        loss = loss_nats(model, batch, task.posterior(batch).float())
        loss.backward()
        for name, p in model.named_parameters():
            assert p.grad is not None, name
            assert p.grad.isfinite().all(), name
            if (arch, name) != ("mlp-pointwise", "embed.feature.weight"):  # rows stand where it is never asked
                assert p.grad.abs().sum() > 0, name

    def test_one_position_at_a_time_gives_the_same_logits(self, arch, task_name):
        task = TASKS[task_name]()
        model = make(arch, task).eval().double()
        if not hasattr(model, "step"):
            assert refusal(model, 1) == "the architecture has no step function"
            return
        batch = task.sample(3, task.horizon, generator("cpu", 0, "t"))
        length = batch.tokens.shape[1]
        with torch.no_grad():
            whole = model(batch.tokens, batch.features)
            state = model.start(3, length)
            steps = [model.step(batch.tokens[:, t], batch.features[:, t], state) for t in range(length)]
        torch.testing.assert_close(torch.stack(steps, dim=1), whole, rtol=1e-8, atol=1e-8)

    def test_taps_change_nothing_until_edited(self, arch, task_name):
        task = TASKS[task_name]()
        model = make(arch, task).eval()
        batch = task.sample(4, task.horizon, generator("cpu", 0, "t"))
        with torch.no_grad():
            plain = model(batch.tokens, batch.features)
            with record(model, "*") as seen:
                watched = model(batch.tokens, batch.features)
            name = tap_names(model)[0]
            with edit(model, {name: torch.zeros_like}):
                edited = model(batch.tokens, batch.features)
            again = model(batch.tokens, batch.features)
        assert set(seen) == set(tap_names(model))
        assert torch.equal(plain, watched)
        assert torch.equal(plain, again)
        assert not torch.equal(plain, edited)


def test_a_sequence_longer_than_training_is_read_or_declared_unreadable():
    task = TASKS["hmm"]()
    batch = task.sample(2, 50, generator("cpu", 0, "t"))
    for arch in ARCHS.names():
        model = make(arch, task)
        if model.max_length is None:
            assert model(batch.tokens, batch.features).shape == (2, 60, 5)
        else:
            assert model.max_length < 60


@pytest.mark.parametrize("arch", ["transformer", "transformer-uniform-attn", "lstm", "gru", "hybrid"])
def test_every_mixer_without_a_convolution_is_offered_the_shift(arch):
    def shifts(positions):
        model = make(arch, TASKS["hmm"](), Geometry(3, 2, 32, 64, positions))
        return sum(isinstance(module, Shift) for module in model.modules())

    layers = {"lstm": 2, "gru": 2, "hybrid": 1}  # of its mixers, hybrid's attention alone has no convolution
    assert (shifts("alibi"), shifts("alibi-shift")) == (0, layers.get(arch, 3))


def test_the_plain_transformer_keeps_its_block():
    newer, plain = Geometry(3, 2, 32, 64, "alibi-shift", activation="swiglu"), Geometry(3, 2, 32, 64, "alibi")
    task = TASKS["hmm"]()
    kept = {name: p.shape for name, p in make("transformer-plain", task, newer).named_parameters()}
    assert kept.keys() == dict(make("transformer", task, plain).named_parameters()).keys()
    assert kept["blocks.0.attn.project.weight"] == (96, 32)


@pytest.mark.parametrize("positions", POSITIONS)
def test_only_positions_tell_the_order_of_values_apart(positions):
    """Swap two earlier pairs: a transformer without positions answers the same, one with positions does not."""
    task = TASKS["bijection"]()
    model = make("transformer", task, Geometry(1, 2, 32, 64, positions)).eval().double()
    batch = task.sample(3, 20, generator("cpu", 0, "t"))
    order = torch.arange(39)
    order[[0, 1, 6, 7]] = order[[6, 7, 0, 1]]
    with torch.no_grad():
        one = model(batch.tokens, batch.features)[:, -1]
        two = model(batch.tokens[:, order], batch.features)[:, -1]
    assert torch.allclose(one, two, atol=1e-9) == (positions == "none")


@pytest.mark.parametrize("length", [1, 15, 39, 63])
@pytest.mark.parametrize("header", [0, 10])
@pytest.mark.parametrize("with_slopes", [False, True])
def test_attention_backends_agree_with_a_loop(length, header, with_slopes):
    torch.manual_seed(0)
    qkv = torch.randn(2, length, 3, 3, 8, dtype=torch.float64)
    q, k, v = qkv.unbind(2)
    slopes = torch.tensor([1.0, 0.25, 0.0], dtype=torch.float64) if with_slopes else None
    expected = torch.zeros_like(q)
    for i in range(length):
        scores = torch.einsum("bhd,bjhd->bhj", q[:, i], k[:, : i + 1]) / 8**0.5
        if slopes is not None:
            far = torch.tensor([i - j if j >= header and i >= header else 0 for j in range(i + 1)])
            scores = scores - slopes[:, None] * far
        expected[:, i] = torch.einsum("bhj,bjhd->bhd", scores.softmax(-1), v[:, : i + 1])
    for backend in ("sdpa", "math"):
        torch.testing.assert_close(attention(qkv, slopes, header, backend=backend), expected)
    cache = torch.nn.functional.pad(qkv[:, :, 1:], (0, 0, 0, 0, 0, 0, 0, 7), value=math.nan)  # room for later positions
    for t in range(length):
        torch.testing.assert_close(attention_step(q[:, t], cache, t + 1, slopes, header), expected[:, t])


def test_a_shift_adds_a_share_of_the_previous_position():
    model = make("transformer", TASKS["hmm"](), Geometry(2, 2, 32, 64, "alibi-shift")).double()
    attend = model.blocks[1].attn
    torch.nn.init.normal_(attend.shift.weight)
    x = torch.randn(3, 15, 32, dtype=torch.float64)
    with record(attend, "qkv") as seen:
        attend(x)
    y = attend.project(x)
    expected = y + torch.nn.functional.pad(y, (0, 0, 1, 0))[:, :-1] * attend.shift.weight
    torch.testing.assert_close(seen["qkv"].flatten(2), expected)
    y = torch.randn(2, 5, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(shift, (y, torch.randn(4, dtype=torch.float64, requires_grad=True)))


@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("task_name", ["hmm", "bernoulli"])
@pytest.mark.parametrize("arch", [a for a in ARCHS.names() if a.startswith("transformer")])
def test_step_by_step_is_the_forward(arch, task_name, positions):
    task = TASKS[task_name]()
    model = make(arch, task, Geometry(3, 2, 32, 64, positions)).eval().double()
    batch = task.sample(3, 15, generator("cpu", 0, "t"))
    length = batch.tokens.shape[1]
    with torch.no_grad():
        whole = model(batch.tokens, batch.features)
        state = model.start(3, length)
        steps = [model.step(batch.tokens[:, t], batch.features[:, t], state) for t in range(length)]
    torch.testing.assert_close(torch.stack(steps, dim=1), whole)


def test_an_edit_reaches_the_steps_too():
    task = TASKS["bernoulli"]()
    batch = task.sample(3, 9, generator("cpu", 0, "t"))
    for arch in ("transformer", "transformer-uniform-attn"):
        model = make(arch, task).eval().double()
        with torch.no_grad(), edit(model, {"blocks.*.attn.z": torch.zeros_like, "blocks.1.resid": lambda x: 2 * x}):
            whole = model(batch.tokens, batch.features)
            state = model.start(3, 9)
            steps = [model.step(batch.tokens[:, t], batch.features[:, t], state) for t in range(9)]
        torch.testing.assert_close(torch.stack(steps, dim=1), whole)


def test_learned_positions_refuse_steps_beyond_their_length():
    model = make("transformer", TASKS["bernoulli"](horizon=15), Geometry(1, 1, 8, 8, "learned"))
    with pytest.raises(ValueError, match="16 positions requested, but this model reads at most 15"):
        model.start(1, 16)


def test_a_width_of_two_goes_without_norms():
    """LayerNorm of two numbers is a sign: with it, nothing else could pass from layer to layer."""
    x = torch.randn(50, 2, dtype=torch.float64)
    assert (torch.nn.functional.layer_norm(x, (2,), eps=0.0).abs() - 1).abs().max() < 1e-9
    model = reference(TASKS["bernoulli"]().shape, Geometry(1, 2, 2, 16, "none"))
    assert not any(isinstance(m, torch.nn.LayerNorm) for m in model.modules())
    assert count_parameters(model) == 4 + 18 + 6 + 48 + 34 + 6


def test_uniform_attention_is_the_causal_mean():
    task = TASKS["bijection"]()
    model = make("transformer-uniform-attn", task)
    batch = task.sample(2, 20, generator("cpu", 0, "t"))
    with record(model, "blocks.0.attn.*") as seen:
        model(batch.tokens, batch.features)
    v, z = seen["blocks.0.attn.v"], seen["blocks.0.attn.z"]
    torch.testing.assert_close(z[:, 7], v[:, :8].mean(1))


def test_the_paper_shapes_have_the_counts_we_state():
    assert count_built(lambda: reference(TASKS["bijection"]().shape, PAPER["bijection"])) == 2_681_108
    assert count_built(lambda: reference(TASKS["hmm"]().shape, PAPER["hmm"])) == 7_116_037


def test_the_coin_report_has_the_published_count():
    assert compose("bernoulli-report", "transformer", "bernoulli", 0, "cpu", {}).budget() == 1_794
    assert compose("bernoulli-bos", "transformer", "bernoulli", 0, "cpu", {}).budget() <= 1_794
    narrow = compose("bernoulli-bottleneck", "transformer", "bernoulli", 0, "cpu", {}).make_model()
    assert (narrow.head.in_features, narrow.blocks[0].attn.head_width, narrow.blocks[0].ffn.up.out_features) == (
        2,
        1,
        16,
    )


def test_published_mlp_depths_at_paper_size():
    for name, layers in (("bijection", 18), ("hmm", 20)):
        model = make("mlp", TASKS[name](), PAPER[name])
        assert 2 * len(model.blocks) == layers


def test_solvers_find_the_nearest_whole_number():
    assert solve(lambda n: n * n, 50) == 7
    assert solve(lambda n: n * n, 1) == 1
    assert solve_affine(lambda n: 5 + 3 * n, 100) == 32


def test_impossible_budgets_and_ablations_are_refused():
    shape = TASKS["hmm"]().shape
    with pytest.raises(BadInput, match="within 1 %"):
        build("mlp", shape, 50, Geometry(3, 2, 8, 8))
    with pytest.raises(BadInput, match="needs more than 2 layers"):
        build("transformer-no-attn-top2", shape, 9000, Geometry(2, 2, 32, 64))
    with pytest.raises(BadInput, match="Did you mean 'mlp'"):
        build("mpl", shape, 9000, Geometry(2, 2, 32, 64))


def test_unknown_tap_is_named():
    model = make("mlp", TASKS["bijection"]())
    with pytest.raises(BadInput, match=r"no tap 'blocks\.0\.attn\.qkv'"), record(model, "blocks.0.attn.qkv"):
        pass


def test_state_bytes_follow_from_the_architecture():
    task = TASKS["bijection"]()
    transformer = make("transformer", task)
    assert transformer.state_bytes(39) == 3 * 2 * 39 * 32 * 4
    shifted = make("transformer", TASKS["hmm"]())
    assert shifted.state_bytes(30) == 3 * (2 * 30 + 3) * 32 * 4  # the last q, k and v too
    assert make("transformer-uniform-attn", task).state_bytes(39) == 3 * 32 * 4
    assert make("mlp-pointwise", task).state_bytes(39) == 0


def test_slopes_fall_from_one_and_a_head_that_is_alone_has_the_middle_of_them():
    assert Attention(32, 4, 8, 0, "alibi", "sdpa").slopes.tolist() == [1, 1 / 4, 1 / 16, 1 / 64]
    alone = make("transformer-1-head", TASKS["bijection"]())
    assert all(block.attn.slopes.tolist() == [1 / 16] for block in alone.blocks)


def test_the_activation_is_a_squared_relu_to_the_last_bit():
    x = torch.randn(50, 40, generator=torch.Generator().manual_seed(0), requires_grad=True)
    plain = x.detach().clone().requires_grad_()
    gradient = torch.randn(50, 40, generator=torch.Generator().manual_seed(1))
    ours, known = squared_relu(x), plain.relu().square()
    ours.backward(gradient)
    known.backward(gradient)
    assert torch.equal(ours, known)
    assert torch.equal(x.grad, plain.grad)
    assert (x.grad != 0).any()


def test_swiglu_multiplies_two_maps_and_costs_about_the_same():
    x = torch.randn(5, 8)
    torch.testing.assert_close(gated_silu(x), x[:, :4] * x[:, :4].sigmoid() * x[:, 4:])
    assert [usual_hidden(ffn, "swiglu") for ffn in (0, 4, 256, 768, 1024)] == [0, 8, 168, 512, 680]
    shape = TASKS["hmm"]().shape
    for size in ((8, 4, 64, 256), (9, 8, 256, 1024)):  # of the small and the paper preset
        plain, gated = (
            count_built(lambda a=a, size=size: reference(shape, Geometry(*size, activation=a))) for a in ACTIVATIONS
        )
        assert abs(gated - plain) < 0.01 * plain
    assert reference(shape, NEWER).blocks[0].ffn.up.weight.parts == 2  # Muon takes each map for itself


def test_an_activation_is_known_or_refused():
    with pytest.raises(BadInput, match="activation must be one of relu2, swiglu, not 'gelu'"):
        compose("smoke", "mlp", "hmm", 0, "cpu", {"activation": "gelu"})
