"""Models of the transformers library: as architectures here, and as independent oracles of ours."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.func import functional_call

from bench.check import verify
from bench.cli import main
from bench.config import compose
from bench.device import describe
from bench.records import read
from bench.registry import BadInput
from bench.run.checkpoint import platform_name
from bench.run.run import step_flops
from bench.run.train import make_optimizers
from models import hf
from models.base import ARCHS, Geometry
from models.linear import Mamba2
from models.transformer import Transformer
from tasks.base import TASKS
from tests import hf_types

transformers = pytest.importorskip("transformers", reason="transformers is not installed: pip install '.[hf]'")

NAMED = ("llama", "gpt_neox", "gpt2", "mamba", "mamba2", "rwkv", "recurrent_gemma", "xlstm", "jamba")  # in the docs
HMM = TASKS["hmm"]()
SMALL = ("--preset", "smoke", "--device", "cpu", "--set", "steps=3", "sequences=16")


@pytest.fixture
def bench(monkeypatch, tmp_path, capfd):
    monkeypatch.chdir(tmp_path)

    def run(*words):
        code = main(words)
        return (code, *capfd.readouterr())

    return run


def randomise(model, scale=0.1):
    """Layers that start at zero get something to say."""
    with torch.no_grad():
        for p in model.parameters():
            p.add_(scale * torch.randn_like(p))
    return model


def assert_equal(ours, theirs, of_ours, mapped, call_ours, call_theirs):
    """The same answers and the same gradients of our parameters, through the map to theirs."""
    assert mapped.keys() == dict(theirs.named_parameters()).keys()
    y, z = call_ours(ours), call_theirs(theirs, mapped)
    assert y.shape == z.shape
    assert (y - z).abs().max() <= 1e-5 * y.abs().max()
    weight = torch.randn_like(y)
    one, two = (torch.autograd.grad((out * weight).sum(), list(of_ours.values())) for out in (y, z))
    for name, a, b in zip(of_ours, one, two, strict=True):
        assert a.abs().max() > 0, name
        assert (a - b).abs().max() <= 1e-5 * a.abs().max(), name


@pytest.mark.parametrize("attention", ["sdpa", "math"])
def test_our_transformer_is_llama(attention):
    """With centred writes to the residual stream a LayerNorm is an RMSNorm; its bias moves into the next layer's."""
    torch.manual_seed(0)
    layers, heads, d, hidden = 3, 4, 8, 40
    D, shape = heads * d, HMM.shape
    ours = randomise(
        Transformer(shape, layers=layers, heads=heads, head_width=d, width=D, hidden=hidden, positions="rope",
                    activation="swiglu", backend=attention)
    )  # fmt: skip
    config = hf.make_config("llama", shape, Geometry(layers, heads, D, 0), hf.Size(D, hidden, hf.LONGEST))
    config.attention_bias, config.mlp_bias, config.rms_norm_eps = True, True, 1e-5
    assert config.rope_parameters["rope_theta"] == 10_000
    theirs = hf.HuggingFace(shape, D, hf.make_base(config, attention), None)
    p = dict(ours.named_parameters())
    centre = torch.eye(D) - 1 / D
    mapped = {
        "embed.token.weight": p["embed.token.weight"] @ centre,
        "embed.feature.weight": centre @ p["embed.feature.weight"],
        "base.norm.weight": p["norm.weight"],
        "head.weight": p["head.weight"],
        "head.bias": p["head.bias"] + p["head.weight"] @ p["norm.bias"],
    }

    def put(name, parts, weight, bias):
        """One of our packed layers as several of theirs."""
        for part, w, b in zip(parts, weight.chunk(len(parts)), bias.chunk(len(parts)), strict=True):
            mapped[f"{name}.{part}_proj.weight"], mapped[f"{name}.{part}_proj.bias"] = w, b

    for i in range(layers):
        own, their = f"blocks.{i}", f"base.layers.{i}"
        w, b = p[f"{own}.attn.project.weight"], p[f"{own}.attn.project.bias"]
        put(f"{their}.self_attn", "qkv", w, b + w @ p[f"{own}.norm1.bias"])
        put(f"{their}.self_attn", "o", centre @ p[f"{own}.attn.out.weight"], centre @ p[f"{own}.attn.out.bias"])
        w, b = p[f"{own}.ffn.up.weight"], p[f"{own}.ffn.up.bias"]
        put(f"{their}.mlp", ("gate", "up"), w, b + w @ p[f"{own}.norm2.bias"])
        put(f"{their}.mlp", ("down",), centre @ p[f"{own}.ffn.down.weight"], centre @ p[f"{own}.ffn.down.bias"])
        mapped[f"{their}.input_layernorm.weight"] = p[f"{own}.norm1.weight"]
        mapped[f"{their}.post_attention_layernorm.weight"] = p[f"{own}.norm2.weight"]
    batch = HMM.sample(3, HMM.horizon, torch.Generator().manual_seed(1))
    read = (batch.tokens, batch.features.float())
    assert_equal(ours, theirs, p, mapped, lambda m: m(*read), lambda m, weights: functional_call(m, weights, read))


@pytest.mark.parametrize("length", [2, 15, 70])
def test_our_mamba2_is_theirs(length):
    """Theirs reads value, key, query; ours value, query, key. 70 positions are several of its chunks."""
    from transformers.models.mamba2.modeling_mamba2 import Mamba2Mixer

    torch.manual_seed(0)
    h, d = 2, 8
    D = h * d
    ours = randomise(Mamba2(D, h, d))
    config = transformers.Mamba2Config(
        hidden_size=D, num_heads=h, head_dim=2 * d, state_size=D, n_groups=1, use_bias=False, use_conv_bias=False,
        layer_norm_epsilon=1e-5, chunk_size=16,
    )  # fmt: skip
    theirs = Mamba2Mixer(config, layer_idx=0)
    p = dict(ours.named_parameters())
    query, key = p["address.weight"].chunk(2)
    value_taps, query_taps, key_taps = p["conv.weight"].split([2 * D, D, D])
    mapped = {
        "in_proj.weight": torch.cat([p["project.weight"], key, query, p["rate.weight"]]),
        "conv1d.weight": torch.cat([value_taps, key_taps, query_taps]),
        "A_log": p["log_a"],
        "dt_bias": p["rate_bias"],
        "D": p["skip"],
        "norm.weight": p["norm.weight"],
        "out_proj.weight": p["out.weight"],
    }
    x = torch.randn(3, length, D)
    assert_equal(ours, theirs, p, mapped, lambda m: m(x), lambda m, weights: functional_call(m, weights, (x,)))


@pytest.mark.parametrize("kind", NAMED)
def test_the_types_that_the_documentation_names_work(kind):
    assert hf_types.refusal(kind) is None


def test_types_were_tried_with_the_library_that_is_installed():
    known = hf.types()
    assert known["transformers"] == transformers.__version__, "python -m tests.hf_types tries them again"
    assert sorted([*known["works"], *known["larger"], *known["refused"]]) == hf_types.kinds()
    assert set(NAMED) <= set(known["works"])
    names = [hf.name_of(kind) for kind in hf_types.kinds()]
    assert len(set(names)) == len(names)


def test_a_trial_finds_what_is_wrong(monkeypatch):
    """Bidirectional attention, weights that change in evaluation, a part that nothing reads, a size that is fixed."""

    def refusal(kind, **settings):
        with monkeypatch.context() as patch:
            patch.setitem(hf.SPECIAL, kind, hf.Special(settings=settings))
            patch.setattr(hf, "solve_size", hf.solve_size.__wrapped__)  # it keeps what it has found
            return hf_types.refusal(kind)

    assert "sees the future" in refusal("bert-generation", is_decoder=False)
    assert "evaluation changes base.blocks" in refusal("rwkv", rescale_every=1)
    assert hf_types.refusal("bert") == "base.pooler.dense.weight gets no gradient"
    assert "its smallest size has" in refusal("llama", vocab_size=8, head_dim=4096)
    assert "AttributeError" in hf_types.refusal("nothing") or "KeyError" in hf_types.refusal("nothing")


def test_a_type_is_run_recorded_and_verified(bench, tmp_path):
    code, out, err = bench("run", "--arch", "hf:gpt_neox", "--task", "hmm", *SMALL, "--seeds", "2", "--jobs", "2")
    assert (code, err) == (0, "")
    assert "hf-gpt-neox" in out
    paths = sorted((tmp_path / "results/hmm/hf-gpt-neox").glob("*.json"))
    record = read(paths[0])
    assert len(paths) == 2
    assert (record.config.arch, record.config.attention) == ("hf-gpt-neox", "sdpa")
    assert record.platform["transformers"] == transformers.__version__
    assert abs(record.parameters - record.budget) <= 0.01 * record.budget
    assert f"transformers {transformers.__version__}" in platform_name(record.config)
    assert bench("verify", "results")[0] == 0
    text = json.loads(paths[0].read_text())
    text["platform"]["transformers"] = "4.0.0"
    paths[0].write_text(json.dumps(text))
    assert "another platform" in verify.verify(paths[0], rerun=False).how


def test_other_records_do_not_name_the_library(smoke):
    assert "transformers" not in describe(smoke("mlp")).to_json()
    assert "transformers" not in platform_name(smoke("mlp"))


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ("hf:lama", "no causal type of the transformers library 'lama'. Did you mean 'llama'?"),
        ("hf:bert", "hf:bert does not work here: base.pooler.dense.weight gets no gradient"),
        ("hf:ctrl", "hf:ctrl does not work here: too large: at least 1,611,621 parameters with three layers"),
        ("hf:gpt_oss", "hf-gpt-oss on hmm: its smallest size has 170,139 parameters, and the budget is 30,933"),
        ("hf:", "no causal type of the transformers library ''."),
    ],
)
def test_other_types_are_refused_in_one_line(bench, word, reason):
    code, _, err = bench("run", "--arch", word, "--task", "hmm", *SMALL)
    assert (code, err.count("\n")) == (2, 1)
    assert reason in err
    assert not Path("results").exists()


def test_without_the_library_one_line_says_what_to_install(bench, monkeypatch, smoke):
    config = smoke("hf-llama", "hmm")
    monkeypatch.setattr(hf, "find_spec", lambda name: None)
    code, _, err = bench("run", "--arch", "hf:llama", "--task", "hmm", *SMALL)
    assert (code, err.count("\n")) == (2, 1)
    assert "hf-llama needs the transformers library: pip install 'tunnel-bench[hf]'" in err
    assert config.missing_code() == "hf-llama needs the transformers library: pip install 'tunnel-bench[hf]'"
    assert smoke("mlp").missing_code() is None


def test_triton_attention_is_refused(smoke, monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    with pytest.raises(BadInput, match="hf-llama has its library's attention: sdpa or math, not triton"):
        smoke("hf-llama", "hmm", attention="triton", width=64, heads=2)


def test_all_does_not_mean_the_library_and_list_says_which_types_work(bench):
    assert not [name for name in ARCHS.names() if name.startswith("hf-")]
    assert {"hf-llama", "hf-gpt-neox"} <= set(ARCHS._entries)
    code, out, _ = bench("list", "--arch", "hf")
    listed = " ".join(out.split())
    assert code == 0
    assert all(hf.PREFIX + kind in listed for kind in hf_types.kinds())
    count = len(hf.types()["works"]) + len(hf.types()["larger"])
    assert f"transformers {transformers.__version__}: {count} types work" in listed
    assert bench("list", "--arch", "mlp")[::2] == (
        2,
        "bench: bench list --arch takes hf, the models of the transformers library, not 'mlp'\n",
    )
    assert "hf:TYPE" in bench("list")[1]


def test_the_library_is_imported_only_to_build_and_never_reaches_the_network():
    script = (
        "import os, sys, bench.commands.run; from models import hf; assert 'transformers' not in sys.modules\n"
        "hf.library(); from huggingface_hub import constants; print(constants.HF_HUB_OFFLINE)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"


def test_learned_positions_end_at_the_training_horizon(smoke):
    assert [smoke(arch, "hmm").make_model().max_length for arch in ("hf-gpt2", "hf-llama")] == [30, None]


@pytest.mark.parametrize("arch", ["hf-gpt2", "hf-mamba"])
def test_muon_trains_the_matrices_of_linear_layers_and_no_others(smoke, arch):
    config = smoke(arch, "hmm")
    model = config.make_model()
    linear = (torch.nn.Linear, transformers.pytorch_utils.Conv1D)
    wanted = {id(module.weight) for module in model.base.modules() if isinstance(module, linear)}
    _, muon = make_optimizers(model, config)
    assert {id(p) for group in muon.param_groups for p in group["params"]} == wanted
    left = {name for name, p in model.named_parameters() if p.ndim == 2 and id(p) not in wanted}
    assert {"embed.token.weight", "head.weight"} < left  # and learned positions, or a matrix of decays


def test_operations_are_counted_with_attention_written_out(smoke):
    """A layer's attention costs 12 T^2 D: two products, forward and twice backward, multiply and add."""
    one, four = (step_flops(smoke("hf-llama", "hmm", batch=batch)) for batch in (1, 4))
    assert four == 4 * one
    config = smoke("hf-llama", "hmm", batch=1)
    model, T = config.make_model(), 30
    D, layers = model.head.in_features, config.layers
    matrices = sum(p.numel() for name, p in model.named_parameters() if p.ndim == 2 and name != "embed.token.weight")
    feature = model.embed.feature.weight.numel()  # what it reads needs no gradient
    assert one == 6 * T * matrices - 2 * T * feature + 12 * T * T * D * layers


@pytest.mark.parametrize("preset", ["quick", "paper"])
@pytest.mark.parametrize("arch", ["hf-llama", "hf-mamba2"])
def test_sizes_meet_the_budget_of_presets(preset, arch):
    for task in ("hmm", "bijection"):
        config = compose(preset, arch, task, 10, "cpu", {})  # refuses a model that misses its budget
        geometry = config.geometry()
        size = hf.solve_size(arch.removeprefix("hf-"), config.make_task().shape, config.budget(), geometry)
        assert geometry.width / 2 <= size.width <= 2 * geometry.width
