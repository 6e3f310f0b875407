"""The fused kernels without a GPU: interpreted against float64, and compiled for real ones."""

import json
import os
import re
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

from bench.check import binaries, kernels
from bench.config import compose
from bench.registry import BadInput
from bench.run.run import check_kernels
from bench.run.train import CapturedStep, fit
from bench.run.turns import finish
from models.kernels import attention_triton, check
from models.kernels.check import Case

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
    cases += [Case(n, 32, dtype, sloped=False) for n in (39, 153)]
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
        ("keys = (j[:, None] < L)", "keys = (j[:, None] < L + 1)"),
        ("rows = (i[:, None] < L)", "rows = (i[:, None] < L + 1)"),
        ("(dk * scale).to(qkv", "dk.to(qkv"),
        ("(length - 1 - j)", "(length - j)"),
    ],
)
def test_a_planted_mistake_is_caught(right, wrong):
    """Masks, scale, slope sign, boundary: each mistake is small."""
    answers = lab([Case(39, 24, header=10, batch=1, heads=2)], mistake=[right, wrong])
    assert any(answer["failures"] or answer["touched"] for answer in answers)


@pytest.mark.parametrize(
    ("right", "wrong"),
    [("// blocks", "// (blocks + 1)"), ("% blocks", "% 1"), ("peak + tl.log2(total)", "peak - tl.log2(total)")],
)
def test_a_mistake_in_the_long_path_is_caught(right, wrong):
    answers = lab([Case(153, 16, header=10, batch=1, heads=2)], mistake=[right, wrong])
    assert any(answer["failures"] or answer["touched"] for answer in answers)


def test_no_grid_is_larger_than_cuda_allows():
    """Axis x may have 2^31 - 1 programs, axes y and z only 65,535: batch x heads must be on x."""
    grid = attention_triton.long_grid(batch=8192, heads=16, length=2048, block=16)
    assert grid == (8192 * 16 * 128,)
    assert grid[0] < 2**31


def test_the_op_is_a_good_citizen_of_torch():
    """opcheck, a full graph in one trace, and ten training steps equal to torch's own attention."""
    script = """
import torch
from bench.config import compose
from bench.run.run import make_model
from bench.run.train import draw, make_optimizers, train_step
from models.kernels import attention_triton as kernels
from models.kernels.attention import attention

torch.manual_seed(0)
for length in (15, 140):
    qkv = torch.randn(1, length, 3, 2, 16, requires_grad=True)
    slopes = torch.tensor([1.0, 0.1])
    for given in (slopes, None):
        torch.library.opcheck(kernels.attention_forward, (qkv, given, 3))

def through(qkv):
    return attention(qkv * 2, slopes, 3, "triton").sum()
qkv = torch.randn(1, 15, 3, 2, 16, requires_grad=True)
plain = torch.autograd.grad(through(qkv), qkv)[0]
traced = torch.autograd.grad(torch.compile(through, fullgraph=True, backend="aot_eager")(qkv), qkv)[0]
torch.testing.assert_close(plain, traced)

def wanted(slopes):
    return attention(qkv, slopes, 3, "triton").sum()
for call in (wanted, torch.compile(wanted, fullgraph=True, backend="aot_eager")):
    try:
        call(slopes.clone().requires_grad_())
    except Exception as error:
        assert "slopes have no gradient" in str(error), error
    else:
        raise AssertionError("slopes that require a gradient were accepted")

runs = []  # of the backward kernel, whose grid is 1 sequence x 2 heads
plain_backward = kernels._short_backward
kernels._short_backward = {(2,): lambda *a, **k: (runs.append(1), plain_backward[(2,)](*a, **k))}
attention(qkv.detach(), slopes, 3, "triton")
with torch.no_grad():
    attention(qkv, slopes, 3, "triton")
assert runs == []
torch.autograd.grad(wanted(slopes), qkv)
assert runs == [1]
kernels._short_backward = plain_backward

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
        ({"slopes": torch.zeros(3)}, "slopes must be 2 numbers, one per head, not [3]"),
        ({"slopes": torch.zeros(2, dtype=torch.float16)}, "slopes must be float32 for every dtype of qkv"),
        ({"header": 5}, "a header of 5 does not fit into a length of 4"),
        (
            {"qkv": torch.zeros(1, 1, 1, 1, 1).expand(2**20, 2048, 3, 16, 16)},
            "1048576 sequences with 16 heads of length 2048 are more programs than CUDA launches",
        ),
    ],
)
def test_a_bad_shape_is_refused_by_the_kernel_itself(change, message):
    given = {"qkv": torch.zeros(1, 4, 3, 2, 16), "slopes": None, "header": 0, **change}
    with pytest.raises(ValueError, match=re.escape(message)):
        attention_triton.refuse(**given)


def test_mixed_dtypes_in_the_cache_are_refused():
    with pytest.raises(ValueError, match="they must be the same"):
        attention_triton.decode(torch.zeros(1, 2, 16), torch.zeros(1, 4, 2, 2, 16, dtype=torch.float16), 4, None, 0)


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
    """Heads and slopes are constants of a kernel: other values make another binary."""
    checked = []
    monkeypatch.setattr("bench.run.run.require_right", lambda case, device: checked.append(case))
    for positions, sloped in (("alibi", True), ("none", False)):
        config = compose("quick", "transformer", "hmm", 0, "cpu", {"positions": positions, "horizons": (20, 50)})
        check_kernels(config.make_model(), config.make_task(), config)
        assert {(c.heads, c.width, c.sloped, c.header) for c in checked} == {(3, 16, sloped, 10)}
        assert [c.length for c in checked] == config.lengths() == [30, 60]
        checked.clear()


def test_nothing_is_trained_on_a_kernel_that_fails(monkeypatch):
    monkeypatch.setattr(check, "errors", lambda case, device: {"out": 1e-7, "d_qkv": 0.5})
    with pytest.raises(RuntimeError, match=r"fails its check at L 39, width 32.*d_qkv is off by 5.0e-01"):
        check.require_right(Case(39, 32), "cpu")
    monkeypatch.setattr(check, "errors", lambda case, device: {"out": float("nan")})
    with pytest.raises(RuntimeError, match="out is off by nan"):
        check.require_right(Case(39, 32), "cpu")


def test_a_failed_check_prints_no_time_and_fails(monkeypatch, capsys):
    from rich.console import Console

    monkeypatch.setattr(kernels, "check_all", lambda device: [kernels.Checked("sm_80", Case(39, 32), {"out": 0.5})])
    monkeypatch.setattr(kernels, "time_all", lambda console: pytest.fail("timed after a failed check"))
    assert kernels.report(Console()) == 1
    assert "1 checks failed, so nothing was timed" in capsys.readouterr().out


def test_beside_a_gpu_that_cannot_be_used_the_interpreter_checks_and_says_why(monkeypatch, capsys):
    from rich.console import Console

    monkeypatch.setattr(kernels, "gpu_problem", lambda: "CUDA does not start: reason")
    monkeypatch.setattr(kernels, "check_all", lambda device: [kernels.Checked("sm_80", Case(39, 32), {"out": 0.0})])
    assert kernels.report(Console(width=300)) == 0
    out = capsys.readouterr().out
    assert "executed by an interpreter of PTX (CUDA does not start: reason)" in out
    assert "Not measured: times, because CUDA does not start: reason." in out
    assert "--device" not in out


def test_kernels_are_checked_and_timed_with_the_arithmetic_of_a_run(monkeypatch):
    from rich.console import Console

    steps = []
    monkeypatch.setattr(kernels, "pick_device", lambda asked: ("cuda", "there is one"))
    for name in ("settle_arithmetic", "check_all", "time_all"):
        monkeypatch.setattr(kernels, name, lambda _, name=name: steps.append(name) or [])
    assert kernels.report(Console()) == 0
    assert steps == ["settle_arithmetic", "check_all", "time_all"]


# Compiled ahead of time. The whole matrix is in docs/kernels.md; here the largest of each kernel is compiled again.

TABLE = ROOT / "docs" / "kernels.md"


def table_rows():
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in TABLE.read_text().splitlines() if "| " in line]


def key(job):
    return (job.target, job.kernel, job.dtype, str(job.width), str(job.length or "any"))


@pytest.mark.parametrize("target", binaries.TARGETS)
def test_the_largest_kernels_compile_for_every_target_as_the_table_says(target):
    work = [
        job
        for job in binaries.jobs([target])
        if job.width == 64 and job.dtype in ("fp32", "bf16") and job.length in (None, 59, 128) and job.sloped
    ]
    assert {job.kernel for job in work} == set(attention_triton.KERNELS)
    published = {tuple(row[:5]): row for row in table_rows()}
    for compiled in binaries.in_processes(binaries.compile_job, work, 1):
        assert compiled.complaints() == [], compiled
        registers = int(published[key(compiled)][6])
        assert compiled.registers <= registers, (
            f"{compiled} needs more registers than the {registers} of docs/kernels.md"
        )


def test_the_kernels_compile_without_slopes():
    work = [job for job in binaries.jobs(["sm_90"]) if job.width == 64 and job.dtype == "bf16" and not job.sloped]
    assert {job.kernel for job in work} == set(attention_triton.KERNELS)
    assert [compiled.complaints() for compiled in binaries.in_processes(binaries.compile_job, work, 1)] == [[]] * len(
        work
    )


def test_the_table_has_every_shipped_configuration_and_spills_at_most_two_registers():
    rows = {tuple(row[:5]): row for row in table_rows()}
    work = binaries.jobs(list(binaries.TARGETS))
    assert len(work) > 2000
    for job in work:
        row = rows[key(job)]
        assert int(row[7]) <= binaries.SMALL_SPILL, row
        assert int(row[8]) <= binaries.TARGETS[job.target][3], row
        assert row[11] == row[12], row  # bytes moved are the least
        if job.dtype != "fp32" and job.kernel != "decode":
            assert row[10] == "yes", row


def test_a_row_of_the_table_shows_the_larger_form():
    small = binaries.Compiled("sm_86", "short forward", "bf16", 32, 59, False, 4, 80, 0, 8192, 900, True, 100, 100)
    large = replace(small, sloped=True, registers=84, bytes_moved=104, bytes_least=104)
    (row,) = [line for line in kernels.render([small, large]).splitlines() if line.startswith("| sm_86")]
    cells = [cell.strip() for cell in row.split("|")[1:-1]]
    assert cells == ["sm_86", "short forward", "bf16", "32", "59", "4", "84", "0", "8192", "900", "yes", "104", "104"]


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
    assert binaries.count_bytes(ttir) == 64 * 32 * 2 + 4 * 16 * 32 * 4 + 4


def test_a_complaint_names_what_is_wrong():
    fine = binaries.Compiled("sm_86", "short forward", "bf16", 32, 59, True, 4, 80, 0, 8192, 900, True, 100, 100)
    assert fine.complaints() == []
    bad = replace(fine, spilled=12, shared=10**6, instructions=10**6, tensor_cores=False, bytes_moved=200)
    assert len(bad.complaints()) == 5


# The captured step, with a stand-in for CUDA's graphs: a capture runs nothing, a replay runs what was captured.


def test_a_captured_step_trains_exactly_as_the_plain_one(smoke, monkeypatch):
    from bench.run.run import make_model

    config = smoke(steps=12)
    curves = []
    for captured in (False, True):
        if captured:
            monkeypatch.setattr("bench.run.train.capture", lambda work: work)
            monkeypatch.setattr("bench.run.train.beside", lambda work: work())
            monkeypatch.setattr("bench.run.train.watch_waits", lambda work: (work(), False))
            monkeypatch.setattr("bench.run.train.wants_capture", lambda config: True)
        model = make_model(config)
        curve, *_ = finish(fit(model, config.make_task(), config, lambda _: None))
        curves.append([point["loss"] for point in curve])
    assert curves[0] == curves[1]


def test_a_captured_step_reads_only_its_own_buffers(monkeypatch):
    """After the capture every batch is copied into the same memory, which a graph needs."""
    monkeypatch.setattr("bench.run.train.beside", lambda work: work())
    monkeypatch.setattr("bench.run.train.watch_waits", lambda work: (work(), False))
    captures = []

    def capture(work):
        captures.append(work)
        return work

    monkeypatch.setattr("bench.run.train.capture", capture)
    seen = []

    def step(batch, answer):
        seen.append((batch.tokens.data_ptr(), int(batch.tokens.sum())))
        return answer.sum()

    from tasks.base import Batch

    take = CapturedStep(step, [])
    results = []
    for i in range(6):
        n = torch.full((2,), i)
        results.append(take(Batch(n, n, n, n), n.float()))
    assert len(captures) == 1
    assert len({pointer for pointer, _ in seen[CapturedStep.WARM_UP :]}) == 1
    assert [total for _, total in seen] == [0, 2, 4, 6, 8, 10]
    assert [int(r) for r in results] == [0, 2, 4, 6, 8, 10]


def test_a_step_that_waits_for_the_gpu_is_never_captured(smoke, monkeypatch):
    """torch warns of the wait where it is asked to, as on a GPU; the run goes on and says why it is slower."""
    import warnings

    from bench.run.run import run_one
    from bench.run.train import NOT_CAPTURED, loss_nats

    def waiting(model, batch, answer):
        if modes[-1:] == ["warn"]:
            warnings.warn("called a synchronizing CUDA operation (Triggered internally)", stacklevel=1)
        return loss_nats(model, batch, answer)

    modes = []
    monkeypatch.setattr("torch.cuda.set_sync_debug_mode", modes.append)
    monkeypatch.setattr("bench.run.train.loss_nats", waiting)
    monkeypatch.setattr("bench.run.train.beside", lambda work: work())
    monkeypatch.setattr("bench.run.train.capture", lambda work: pytest.fail("captured"))
    monkeypatch.setattr("bench.run.train.wants_capture", lambda config: True)
    monkeypatch.setattr("bench.run.run.step_flops", lambda *_: 1)
    record, _ = run_one(smoke(steps=8))
    assert record.status == "ok", record.error
    assert record.notes == [NOT_CAPTURED]
    assert modes == ["warn", "default"]


def test_a_training_step_never_waits_for_the_host(smoke, monkeypatch):
    """Whatever would make a GPU stop and answer, counted: none in a step.

    But for torch's AdamW, which keeps its step count on the host unless it is to be captured, and asks it there.
    """
    from bench.run.run import make_model
    from bench.run.train import draw, make_optimizers, set_rate, train_step

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


def test_a_time_is_of_a_captured_graph(monkeypatch):
    """With stand-ins for CUDA: the work itself runs before the clock starts, only replays are timed."""
    from bench.check import timing

    done = []
    monkeypatch.setattr(timing, "beside", lambda work: work())
    monkeypatch.setattr(timing, "capture", lambda work: lambda: done.append("replay"))

    def cuda_events(work):
        done.append("start")
        work()
        done.append("stop")
        return 0.04  # milliseconds, for twenty replays

    monkeypatch.setattr(timing, "cuda_events", cuda_events)
    median, spread = timing.time_on_cuda(lambda: done.append("work"))
    assert (median, spread) == (pytest.approx(2.0), pytest.approx(0.0))
    assert done.count("work") == 3
    timed = done[done.index("start") :]
    assert set(timed) == {"start", "replay", "stop"}
    assert timed.count("replay") == 20 * timed.count("start")


def test_the_page_has_the_roofline_of_float32():
    text = TABLE.read_text()
    assert kernels.roofline() in text
    assert kernels.EXECUTION in text


@pytest.mark.parametrize("fault", [{}, {"spilled": 960}, {"shared": 200 * 1024}])
def test_a_kernel_of_flas_that_spills_or_does_not_fit_fails_the_page(monkeypatch, capsys, fault):
    from rich.console import Console

    from bench.check.recurrences import Binary, Sizes

    one = replace(Binary("sm_89", Sizes("delta_rule", 64, 48), "solve", 40, 0, 1024, 0.5), **fault)
    monkeypatch.setattr(kernels.binaries, "jobs", lambda targets: [])
    monkeypatch.setattr(kernels.recurrences, "compile_all", lambda *_: iter([[one]]))
    monkeypatch.setattr(kernels.recurrences, "sizes_of_runs", list)
    assert kernels.report_static(None, Console()) == bool(fault)
    assert ("bench: sm_89 solve at delta_rule, 64, 48: " in capsys.readouterr().err) == bool(fault)


def test_the_page_has_every_kernel_of_flas_that_runs_use_and_none_has_a_fault():
    from bench.check.binaries import SMALL_SPILL, TARGETS
    from bench.check.recurrences import DEVICES, MOST_SPILL, sizes_of_runs

    assert list(DEVICES) == [name for name, (backend, *_) in TARGETS.items() if backend == "cuda"]
    section = TABLE.read_text().partition("## Linear recurrences")[2]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in section.splitlines() if "| sm_" in line]
    found = {}
    for target, name, keys, values, kernel, registers, spilled, shared, _ in rows:
        found.setdefault((target, name, int(keys), int(values)), set()).add(kernel)
        assert 0 < int(registers) <= 255
        assert int(spilled) <= (MOST_SPILL if kernel == "chunk_bwd_kernel_dqkwg" else SMALL_SPILL)
        assert int(shared) <= TARGETS[target][3]
    assert found.keys() == {(target, *sizes) for target in DEVICES for sizes in sizes_of_runs()}
    for name in ("decayed_sum", "delta_rule"):  # a kernel that does not depend on the sizes is compiled once a target
        kernels_of = [
            set().union(*(of for (at, rule, *_), of in found.items() if (at, rule) == (target, name)))
            for target in DEVICES
        ]
        assert all(of == kernels_of[0] for of in kernels_of)
        assert len(kernels_of[0]) >= 5


def test_a_kernel_of_flas_is_compiled_again_as_the_page_says():
    from bench.check.recurrences import Sizes, compile_all

    (binaries,) = compile_all(["sm_80"], [Sizes("decayed_sum", 24, 48)], 1)
    section = TABLE.read_text().partition("## Linear recurrences")[2]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in section.splitlines() if "| sm_80" in line]
    page = {row[4]: int(row[5]) for row in rows if row[1:4] == ["decayed_sum", "24", "48"]}
    found = {}
    for one in binaries:
        found[one.kernel] = max(one.registers, found.get(one.kernel, 0))
        assert not one.complaints()
    assert found == page
