"""The compiled kernels executed without a GPU: right against float64, and planted mistakes in the PTX are caught."""

import copy
import re
from itertools import product

import fla.ops.gated_delta_rule  # noqa: F401  as for a machine without a GPU: it looks for one when it is imported
import pytest
import torch
import triton
from triton.runtime.autotuner import Autotuner
from triton.runtime.driver import driver

from bench.check.ptx.driver import Driver, executing
from bench.check.ptx.machine import Launch
from bench.check.ptx.memory import Global
from bench.check.ptx.program import Fault, Program
from bench.config import compose
from bench.run.run import check_recurrences
from models.kernels import attention_triton
from models.kernels.check import Case, Recurrence, errors, failures, recurrence_errors, warm_up
from models.linear import Mixer

SMALL = {"batch": 1, "heads": 2}
# stricter than what a run asks for: fp32 to a few roundings, half precision to the rounding of its inputs
TOLERANCE = {"float32": 2e-6, "float16": 1e-3, "bfloat16": 8e-3}


def run(case, target, change=lambda ptx: ptx):
    with executing(target, change) as launched:
        found = errors(case, "cpu")
    return found, launched


@pytest.mark.parametrize(
    ("target", "case"),
    [
        ("sm_80", Case(1, 16, **SMALL)),
        ("sm_80", Case(15, 32, header=10, **SMALL)),
        ("sm_89", Case(63, 24, header=10, **SMALL)),
        ("sm_90", Case(39, 64, sloped=False, **SMALL)),
        ("sm_90", Case(70, 48, header=10, batch=1, heads=1)),  # the long path starts at 65 for wide heads
        ("sm_80", Case(15, 24, "bfloat16", header=10, **SMALL)),  # one warp: mma.sync, ldmatrix
        ("sm_89", Case(63, 32, "bfloat16", header=10, **SMALL)),
        ("sm_90", Case(128, 64, "bfloat16", **SMALL)),  # wgmma of two groups of warps
        ("sm_90", Case(140, 48, "bfloat16", header=10, **SMALL)),  # the long path: wgmma, cp.async
        ("sm_90", Case(63, 16, "float16", **SMALL)),
    ],
    ids=str,
)
def test_compiled_kernels_agree_with_float64(target, case):
    found, launched = run(case, target)
    assert set(found) == {"out", "d_qkv", "decode"}
    assert max(found.values()) <= TOLERANCE[case.dtype], found
    assert {launch.kernel for launch in launched} >= {"_decode"}
    assert len(launched) >= 3


def record(monkeypatch, target, case):
    """Every launch of a case, by its kernel: the PTX, and a function that launches another text with the same input."""
    texts, launches = {}, {}

    class Recorded(Launch):
        def __init__(self, program, grid, arguments, shared, memory):
            super().__init__(program, grid, arguments, shared, memory)
            name = re.match(r"(\w+)_param_", program.parameters[0][1])[1]
            before = copy.deepcopy(memory)

            def launch(text):
                memory = copy.deepcopy(before)
                Launch(Program(text), grid, arguments, shared, memory).run()
                return memory.bytes

            launches[name] = launch

    def keep(text):
        texts[re.search(r"\.entry (\w+)", text)[1]] = text
        return text

    monkeypatch.setattr("bench.check.ptx.driver.Launch", Recorded)
    run(case, target, keep)
    return {name: (texts[name], launch) for name, launch in launches.items()}


WAITS = {"barriers": r"bar\.sync\s+0;", "warps": r"bar\.warp\.sync\s+-1;"}
WAITS |= {"copies": r"cp\.async\.wait_group\s+\d;", "products": r"wgmma\.wait_group\S+ 0;"}


@pytest.mark.parametrize(
    ("target", "case", "waits", "kernels"),
    [
        ("sm_80", Case(39, 32, header=10, batch=1, heads=1), "barriers", 3),
        ("sm_80", Case(15, 32, "bfloat16", batch=1, heads=1), "warps", 2),
        ("sm_80", Case(140, 32, "bfloat16", batch=1, heads=1), "copies", 1),
        ("sm_90", Case(140, 48, "bfloat16", batch=1, heads=1), "products", 1),
    ],
    ids=str,
)
def test_a_removed_wait_is_caught(target, case, waits, kernels, monkeypatch):
    """Every one, in every kernel of the case. Elsewhere some waits are needless: the next one waits for the same."""
    tried = set()
    for kernel, (text, launch) in record(monkeypatch, target, case).items():
        right = launch(text)
        for found in re.finditer(WAITS[waits], text):
            changed = text[: found.start()] + text[found.end() :]
            try:  # in lockstep a lost barrier changes no number, a lost copy does
                caught = (launch(changed) != right).any()
            except Fault as fault:
                caught = re.search("race|nobody waited", str(fault))
            assert caught, f"{kernel} without {found[0]!r} at {found.start()}"
            tried.add(kernel)
    assert len(tried) == kernels


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        (r"(setp\.lt\.u\d\d\s+%p\d+, %rd?\d+), 39;", r"\1, 40;"),  # the end of the sequence
        (r"setp\.ge\.u64", "setp.gt.u64"),  # the present position
        (r"0fFF800000", "0f00000000"),  # the weight of the future
        (r"(setp\.lt\.u64\s+%p\d+, %rd\d+), 23;", r"\1, 7;"),  # the last block of queries
        (r"(shfl\.sync\.bfly\.b32\s+%r\d+, %r\d+), 16,", r"\1, 8,"),  # a partner in a sum over keys
    ],
)
def test_a_changed_constant_is_caught(right, wrong):
    hits = []

    def change(text):
        text, n = re.subn(right, wrong, text)
        hits.append(n)
        return text

    case = Case(39, 32, header=10, batch=1, heads=1)
    try:
        caught = failures(case, run(case, "sm_80", change)[0])
    except Fault as fault:
        caught = re.search("outside of every tensor|two threads write different values", str(fault))
    assert sum(hits) > 0
    assert caught


def test_tf32_products_agree_to_tf32():
    """The shipped kernels with the precision of their products exchanged; TF32 has ten bits behind the point."""
    functions = [f for f in vars(attention_triton).values() if isinstance(f, triton.JITFunction)]
    sources = [f.src for f in functions]
    case = Case(39, 32, header=10, batch=1, heads=1)
    try:
        for function, source in zip(functions, sources, strict=True):
            function._unsafe_update_src(source.replace('"ieee"', '"tf32"'))
        found, launched = run(case, "sm_80")
    finally:
        for function, source in zip(functions, sources, strict=True):
            function._unsafe_update_src(source)
    assert launched[0].executed["mma"] > 0
    assert 1e-5 < found["out"] < 2e-3
    assert 1e-5 < found["d_qkv"] < 2e-3


HEAD = """.visible .entry k(
	.param .u64 .ptr .global .align 1 k_param_0
)
.reqntid 64
{
	ld.param.b64 	%rd1, [k_param_0];
	mov.u32 	%r1, %tid.x;
	mul.wide.u32 	%rd2, %r1, 4;
	add.s64 	%rd3, %rd1, %rd2;
"""


def run_text(body, out, blocks=1):
    memory = Global([out])
    Launch(Program(HEAD + body + "\tret;\n}\n"), (blocks, 1, 1), [memory.address(out)], 1024, memory).run()
    memory.give_back()
    return out


def test_a_text_is_executed():
    out = run_text("mov.u32 %r2, %ctaid.x;\nmad.lo.s32 %r3, %r1, 3, 1;\nst.global.b32 [%rd3], %r3;\n", torch.zeros(64))
    assert out.view(torch.int32).tolist() == [3 * i + 1 for i in range(64)]


@pytest.mark.parametrize(
    ("body", "blocks", "message"),
    [
        ("frobnicate.f32 %r2, %r1;", 1, "unknown to this interpreter: frobnicate.f32 %r2, %r1"),
        ("ld.global.b32 %r2, [%rd3+4];", 1, "outside of every tensor"),
        ("ld.global.v2.b32 {%r2, %r3}, [%rd1+4];", 1, "not aligned to 8 bytes"),
        ("st.global.b32 [%rd3], %r1;", 2, "race: two threads write to one place of global memory"),
        (
            "ld.global.b32 %r2, [%rd3];\nst.global.b32 [%rd3], %r1;",
            2,
            "global memory is overwritten after an access by an",
        ),
        ("st.shared.b32 [%r1], %r1;", 1, "not aligned to 4 bytes in shared memory"),
        ("ld.shared.b32 %r2, [1024];", 1, "outside of the 1024 bytes of shared memory"),
        ("add.s32 %r2, %r3, 1;", 1, "%r3 is read before it is written"),
        ("setp.lt.u32 %p1, %r1, 7;\n@%p1 bra $END;\n$END:", 1, "threads of one block take different branches"),
        ("setp.lt.u32 %p1, %r1, 7;\n@%p1 bar.sync 0;", 1, "not all threads reach the barrier"),
        ("mov.u32 %r2, 0;\ncp.async.ca.shared.global [%r2], [%rd1], 4;", 1, "race: two threads|nobody waited"),
    ],
)
def test_a_fault_names_the_instruction(body, blocks, message):
    with pytest.raises(Fault, match=message if "|" in message else re.escape(message)) as fault:
        run_text(body + "\n", torch.zeros(64), blocks)
    assert str(fault.value).split(": ")[-1] in body + "ret"


@pytest.mark.parametrize(
    "case",
    [
        Recurrence("decayed_sum", 20, 1, 16, 17, batch=1),  # keys of 16 or less are widened
        Recurrence("decayed_sum", 20, 1, 24, 25, batch=1),
        Recurrence("delta_rule", 20, 1, 24, 24, batch=1),
    ],
    ids=str,
)
def test_flas_kernels_agree_with_float64(case):
    """In the configuration that runs use, with chunks of 16: float32 throughout, no TF32 product."""
    with executing("sm_80") as launched:
        found = recurrence_errors(case, "cpu")
    assert max(found.values()) <= TOLERANCE["float32"], found
    assert len(launched) >= 6
    assert sum(launch.executed["mma"] for launch in launched) == 0


class Counting(Driver):
    """Compiles what is launched, launches nothing, and remembers which kernels it was given."""

    launcher_cls = lambda *_: lambda *_, **__: None  # noqa: E731

    def load_binary(self, name, *_):
        self.loaded = [*getattr(self, "loaded", []), name]
        return object(), None, 0, 0, 1024


@pytest.mark.parametrize("arch", ["mamba2", "gated-deltanet"])
def test_after_the_check_of_a_recurrence_nothing_is_tuned_or_compiled(monkeypatch, arch):
    """fla's tuner would time every configuration, in the middle of training where the batch size is new."""
    monkeypatch.setattr(Autotuner, "_bench", lambda *_, **__: pytest.fail("a kernel is tuned"))
    monkeypatch.setattr("bench.run.run.require_right_recurrence", lambda case, device: warm_up(case, device))
    config = compose("smoke", arch, "bijection", 0, "cpu", {"batch": 6, "sequences": 40})
    model = config.make_model()
    mixer = next(module for module in model.modules() if isinstance(module, Mixer))
    before, here = driver._active, Counting("sm_80", lambda ptx: ptx)
    driver.set_active(here)
    try:
        check_recurrences(model, config)
        compiled = len(here.loaded)
        assert compiled >= 6
        length = config.make_task().shape.length(config.horizon)
        for batch in (6, 40):
            warm_up(Recurrence(mixer.recurrence, length, mixer.heads, mixer.keys, mixer.values, batch), "cpu")
        assert len(here.loaded) == compiled
        warm_up(Recurrence(mixer.recurrence, length, mixer.heads, mixer.keys, mixer.values, 7), "cpu")
        assert len(here.loaded) > compiled  # what the check would miss if it kept to another batch size
    finally:
        driver._active = before


def test_the_long_path_skips_blocks_of_future_keys():
    """Products grow with the blocks of queries and keys on or below the diagonal, counted as they are executed."""
    executed, needed = {}, {}
    for length in (160, 320):
        case = Case(length, 16, "bfloat16", sloped=False, batch=1, heads=1)
        for launch in run(case, "sm_80")[1]:
            executed[launch.kernel, length] = launch.executed["mma"]
        for kernel in ("forward", "backward kv", "backward q"):
            tile = attention_triton.long_tile(torch.bfloat16, kernel)
            pairs = product(range(0, length, tile.rows), range(0, length, tile.columns))
            needed["_long_" + kernel.replace(" ", "_"), length] = sum(j < i + tile.rows for i, j in pairs)
    for kernel in ("_long_forward", "_long_backward_kv", "_long_backward_q"):
        per_block = [executed[kernel, length] / needed[kernel, length] for length in (160, 320)]
        assert per_block[0] == per_block[1] > 0
