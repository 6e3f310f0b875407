"""The fused kernels without a GPU: interpreted against float64, and compiled for real ones."""

import json
import os
import re
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from bench import kernels, kernels_static
from bench.config import compose
from bench.kernels import Case
from bench.registry import BadInput
from bench.run import check_kernels
from bench.train import CapturedStep, fit
from models.kernels import attention_triton

ROOT = Path(__file__).resolve().parent.parent
LENGTHS = (1, 2, 15, 16, 39, 59, 63, 64, 93, 128, 153)


def interpreted(*words, **order):
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, *words]
    done = subprocess.run(
        command, input=json.dumps(order), capture_output=True, text=True, env=environment, cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def lab(cases, bfloat16=False, mistake=None):
    out = interpreted("tests/kernel_lab.py", cases=[asdict(c) for c in cases], bfloat16=bfloat16, mistake=mistake)
    return json.loads(out.splitlines()[-1])


def assert_right(cases, answers):
    for case, answer in zip(cases, answers, strict=True):
        assert answer["failures"] == [], f"{case}: {answer['errors']}"
        assert answer["touched"] == 0, f"{case} wrote outside its outputs"


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_every_length_and_width_agrees_with_float64(dtype):
    """fp32 within 1e-5, fp16 within 2e-3, bf16 within 2e-2, relative; NaN bands unread, canaries untouched."""
    cases = [Case(n, 32, dtype, min(n, 10), batch=1, heads=2) for n in LENGTHS]
    cases += [Case(n, width, dtype, 10, batch=1, heads=2) for width in (16, 24, 48, 64) for n in (39, 64)]
    cases += [Case(39, 32, dtype, 0, *extras, batch=2, heads=3) for extras in kernels.PARTLY]
    assert_right(cases, lab(cases, bfloat16=True))


def test_the_long_path_agrees_with_float64_at_1024():
    cases = [Case(1024, 16, "float16", 10, batch=1, heads=1), Case(180, 48, "float32", 10, batch=1, heads=1)]
    assert_right(cases, lab(cases))


def test_the_shim_for_bfloat16_is_needed_and_works():
    """Without it the interpreter is silently wrong; with it the very same case is right."""
    case = [Case(39, 32, "bfloat16", 10, batch=1, heads=1)]
    assert lab(case)[0]["errors"]["out"] > 0.5
    assert lab(case, bfloat16=True)[0]["errors"]["out"] < 5e-3


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("(j[None, :] <= i[:, None]) & (j[None, :] < length)", "(j[None, :] < i[:, None] + 2) & (j[None, :] < length)"),
        ("(j[:, None] <= i[None, :])", "(j[:, None] >= i[None, :])"),
        ("* (scale * LOG2E)", "* scale"),
        ("s -= slope * LOG2E *", "s += slope * LOG2E *"),
        ("slope_share -=", "slope_share +="),
        ("keys = (j[:, None] < L)", "keys = (j[:, None] < L + 1)"),
        ("rows = (i[:, None] < L)", "rows = (i[:, None] < L + 1)"),
        ("(dv * g).to(", "dv.to("),
        ("(length - 1 - j)", "(length - j)"),
    ],
)
def test_a_planted_mistake_is_caught(right, wrong):
    """Masks, scale, slope sign, boundary, gate: one character's worth of error each."""
    answers = lab([Case(39, 24, header=10, batch=1, heads=2)], mistake=[right, wrong])
    assert any(answer["failures"] or answer["touched"] for answer in answers)


def test_the_op_is_a_good_citizen_of_torch():
    """opcheck, a full graph in one trace, and ten training steps equal to torch's own attention."""
    script = """
import torch
from bench.config import compose
from bench.run import make_model
from bench.train import draw, make_optimizers, train_step
from models.kernels import attention_triton as kernels
from models.kernels.attention import attention

torch.manual_seed(0)
for length in (15, 140):
    qkv = torch.randn(1, length, 3, 2, 16, requires_grad=True)
    slopes, gate = torch.tensor([1.0, 0.1], requires_grad=True), torch.tensor([0.5, 1.0], requires_grad=True)
    for extras in ((slopes, gate), (None, None)):
        torch.library.opcheck(kernels.attention_forward, (qkv, *extras, 3))

def through(qkv):
    return attention(qkv * 2, slopes, 3, gate, "triton").sum()
qkv = torch.randn(1, 15, 3, 2, 16, requires_grad=True)
plain = torch.autograd.grad(through(qkv), qkv)[0]
traced = torch.autograd.grad(torch.compile(through, fullgraph=True, backend="aot_eager")(qkv), qkv)[0]
torch.testing.assert_close(plain, traced)

weights = {}
for backend in ("triton", "sdpa"):
    changes = {"attention": backend, "steps": 10, "batch": 2, "layers": 2}
    config = compose("smoke", "transformer", "hmm", 0, "cpu", changes)
    model = make_model(config)
    optimizers = make_optimizers(model, config)
    for batch, answer in draw(config.make_task(), config):
        train_step(model, optimizers, batch, answer, config.clip)
    weights[backend] = torch.cat([p.detach().flatten() for p in model.parameters()])
error = (weights["triton"] - weights["sdpa"]).norm() / weights["sdpa"].norm()
assert error < 1e-4, error
print("good")
"""
    assert interpreted("-c", script).strip() == "good"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"qkv": torch.zeros(1, 4, 3, 2, 20)}, "no kernel for head width 20: supported are 16, 24, 32, 48, 64"),
        ({"qkv": torch.zeros(1, 0, 3, 2, 16)}, "no kernel for length 0: supported are 1 to 2048"),
        ({"qkv": torch.zeros(1, 2049, 3, 1, 16)}, "no kernel for length 2049"),
        ({"qkv": torch.zeros(1, 4, 3, 2, 16, dtype=torch.float64)}, "no kernel for torch.float64"),
        ({"qkv": torch.zeros(1, 4, 2, 16)}, "qkv must be [batch, length, 3, heads, width], not [1, 4, 2, 16]"),
        ({"qkv": torch.zeros(1, 4, 3, 16, 2).transpose(3, 4)}, "qkv must be contiguous"),
        ({"qkv": torch.zeros(4, 1, 3, 2, 16).expand(4, 4, 3, 2, 16)}, "qkv must be contiguous"),
        ({"slopes": torch.zeros(3)}, "slopes must be 2 numbers, one a head, not [3]"),
        ({"gate": torch.zeros(2, dtype=torch.float16)}, "gate must be float32 whatever qkv is, not torch.float16"),
        ({"header": 5}, "a header of 5 does not fit into a length of 4"),
    ],
)
def test_a_bad_shape_is_refused_by_the_kernel_itself(change, message):
    given = {"qkv": torch.zeros(1, 4, 3, 2, 16), "slopes": None, "gate": None, "header": 0, **change}
    with pytest.raises(ValueError, match=re.escape(message)):
        attention_triton.refuse(**given)


def test_mixed_dtypes_in_the_cache_are_refused():
    with pytest.raises(ValueError, match="they must be the same"):
        attention_triton.decode(
            torch.zeros(1, 2, 16), torch.zeros(1, 4, 2, 2, 16, dtype=torch.float16), 4, None, None, 0
        )


def test_what_has_no_kernel_goes_through_sdpa_and_says_why():
    from bench.device import pick_attention

    assert pick_attention("cuda", None, 32, 39) == ("triton", "fused kernels on CUDA")
    assert pick_attention("cuda", None, 1, 39) == ("sdpa", "no kernel for head width 1, only for 16, 24, 32, 48, 64")
    assert pick_attention("cuda", None, 32, 2049) == ("sdpa", "no kernel for sequences of 2049, only up to 2048")
    assert pick_attention("cpu", None, 32, 39)[0] == "sdpa"
    with pytest.raises(BadInput, match="no Triton kernel for sequences of 2049: served are up to 2048"):
        pick_attention("cuda", "triton", 32, 2049)


@pytest.mark.parametrize(("settings", "attention"), [({}, "triton"), ({"horizon": 500}, "sdpa")])
def test_a_run_whose_longest_sequences_have_no_kernel_does_without(settings, attention):
    assert compose("smoke", "transformer", "bijection-revisit", 0, "cuda", settings).attention == attention


def test_a_run_checks_the_kernels_that_it_will_use(monkeypatch):
    """Heads, slopes and gate are constants of a kernel: another is another binary."""
    checked = []
    monkeypatch.setattr("bench.run.require_right", lambda case, device: checked.append(case))
    for positions, sloped in (("alibi", True), ("none", False)):
        config = compose("quick", "transformer", "hmm", 0, "cpu", {"positions": positions, "horizons": (20, 50)})
        check_kernels(config.make_model(), config.make_task(), config)
        assert {(c.heads, c.width, c.sloped, c.gated, c.header) for c in checked} == {(3, 16, sloped, False, 10)}
        assert [c.length for c in checked] == config.lengths() == [30, 60]
        checked.clear()


def test_nothing_is_trained_on_a_kernel_that_fails(monkeypatch):
    monkeypatch.setattr(kernels, "errors", lambda case, device: {"out": 1e-7, "d_qkv": 0.5})
    with pytest.raises(RuntimeError, match=r"fails its check at L 39, width 32.*d_qkv is off by 5.0e-01"):
        kernels.require_right(Case(39, 32), "cpu")
    monkeypatch.setattr(kernels, "errors", lambda case, device: {"out": float("nan")})
    with pytest.raises(RuntimeError, match="out is off by nan"):
        kernels.require_right(Case(39, 32), "cpu")


def test_a_failed_check_prints_no_time_and_fails(monkeypatch, capsys):
    from rich.console import Console

    monkeypatch.setattr(kernels, "check_all", lambda device: [(Case(39, 32), {"out": 0.5})])
    monkeypatch.setattr(kernels, "time_all", lambda console: pytest.fail("timed after a failed check"))
    assert kernels.report(Console()) == 1
    assert "1 checks failed: no times are given" in capsys.readouterr().out


# Compiled ahead of time. The whole matrix is in docs/kernels.md; here the largest of each kernel is compiled again.

TABLE = ROOT / "docs" / "kernels.md"


def table_rows():
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in TABLE.read_text().splitlines() if "| " in line]


def key(job):
    return [job.target, job.kernel, job.dtype, str(job.width), str(job.length or "any")]


@pytest.mark.parametrize("target", kernels_static.TARGETS)
def test_the_largest_kernels_compile_for_every_target_as_the_table_says(target):
    work = [
        job
        for job in kernels_static.jobs([target])
        if job.width == 64 and job.dtype in ("fp32", "bf16") and job.length in (None, 59, 128)
    ]
    assert {job.kernel for job in work} == set(attention_triton.KERNELS)
    published = {tuple(row[:5]): row for row in table_rows()}
    for compiled in kernels_static.compile_all(work, 1):
        assert compiled.complaints() == [], compiled
        registers = int(published[tuple(key(compiled))][6])
        assert compiled.registers <= registers, (
            f"{compiled} needs more registers than the {registers} of docs/kernels.md"
        )


def test_the_table_has_every_shipped_configuration_and_none_spills():
    rows = {tuple(row[:5]): row for row in table_rows()}
    work = kernels_static.jobs(list(kernels_static.TARGETS))
    assert len(work) > 1000
    for job in work:
        row = rows[tuple(key(job))]
        assert row[7] == "0", row
        assert int(row[8]) <= kernels_static.TARGETS[job.target][3], row
        assert row[11] == row[12], row  # bytes moved are the least
        if job.dtype != "fp32" and job.kernel != "decode":
            assert row[10] == "yes", row


def test_bytes_are_counted_through_loops():
    ttir = """
    %c0_i32 = arith.constant 0 : i32
    %c16_i32 = arith.constant 16 : i32
    %c59_i32 = arith.constant 59 : i32
    %1 = tt.load %0 : tensor<64x32x!tt.ptr<bf16>>
    scf.for %i = %c0_i32 to %c59_i32 step %c16_i32  : i32 {
      %2 = tt.load %p, %m, %z : tensor<16x32x!tt.ptr<f32>>
    }
    tt.store %q, %s : !tt.ptr<f32>
    """
    assert kernels_static.count_bytes(ttir) == 64 * 32 * 2 + 4 * 16 * 32 * 4 + 4


def test_a_complaint_names_what_is_wrong():
    fine = kernels_static.Compiled("sm_86", "short forward", "bf16", 32, 59, 4, 80, 0, 8192, 900, True, 100, 100)
    assert fine.complaints() == []
    from dataclasses import replace

    bad = replace(fine, spilled=8, shared=10**6, instructions=10**6, tensor_cores=False, bytes_moved=200)
    assert len(bad.complaints()) == 5


# The captured step, with a stand-in for CUDA's graphs: a capture runs nothing, a replay runs what was captured.


def test_a_captured_step_trains_exactly_as_the_plain_one(smoke, monkeypatch):
    from bench.run import make_model

    config = smoke(steps=12)
    curves = []
    for captured in (False, True):
        if captured:
            monkeypatch.setattr("bench.train.capture", lambda work: work)
            monkeypatch.setattr("bench.train.beside", lambda work: work())
            monkeypatch.setattr("bench.train.wants_capture", lambda config: True)
        model = make_model(config)
        curve, *_ = fit(model, config.make_task(), config, lambda _: None)
        curves.append([point["loss"] for point in curve])
    assert curves[0] == curves[1]


def test_a_captured_step_reads_only_its_own_buffers(monkeypatch):
    """After the capture every batch is copied into the same memory, which a graph needs."""
    monkeypatch.setattr("bench.train.beside", lambda work: work())
    captures = []

    def capture(work):
        captures.append(work)
        return work

    monkeypatch.setattr("bench.train.capture", capture)
    seen = []

    def step(batch, answer):
        seen.append((batch.tokens.data_ptr(), int(batch.tokens.sum())))
        return answer.sum()

    from tasks.base import Batch

    take = CapturedStep(step)
    results = []
    for i in range(6):
        n = torch.full((2,), i)
        results.append(take(Batch(n, n, n, n), n.float()))
    assert len(captures) == 1
    assert len({pointer for pointer, _ in seen[CapturedStep.WARM_UP :]}) == 1
    assert [total for _, total in seen] == [0, 2, 4, 6, 8, 10]
    assert [int(r) for r in results] == [0, 2, 4, 6, 8, 10]


def test_a_training_step_never_waits_for_the_host(smoke, monkeypatch):
    """Whatever would make a GPU stop and answer, counted: none in a step.

    But for torch's AdamW, which keeps its step count on the host unless it is to be captured, and asks it there.
    """
    from bench.run import make_model
    from bench.train import draw, make_optimizers, set_rate, train_step

    config = smoke(arch="transformer", task="hmm")
    model = make_model(config)
    optimizers = make_optimizers(model, config)
    waits = []
    for name in ("item", "tolist", "cpu", "numpy", "__bool__", "__int__", "__float__", "nonzero"):
        plain = getattr(torch.Tensor, name)

        def counted(self, *words, plain=plain, name=name, **more):
            waits.append(name)
            return plain(self, *words, **more)

        monkeypatch.setattr(torch.Tensor, name, counted)
    for adam in (optimizer for optimizer in optimizers if isinstance(optimizer, torch.optim.AdamW)):

        def not_counted(plain=adam.step):
            before = len(waits)
            plain()
            del waits[before:]

        monkeypatch.setattr(adam, "step", not_counted)
    stream = draw(config.make_task(), config)
    for _ in range(2):
        batch, answer = next(stream)
        for optimizer in optimizers:
            set_rate(optimizer, 0.01)
        train_step(model, optimizers, batch, answer, config.clip)
    assert waits == []
