"""bench on a GPU that computes nothing: the host's side of CUDA, on a machine that has none. See README.md here."""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter
from pathlib import Path

import lab
import pytest

from bench.run.train import NOT_CAPTURED
from models.base import ARCHS
from tasks.base import TASKS

WAITS = """
from torch import nn
from models.base import ARCHS, Embed, count_built, solve

class Waits(nn.Module):
    def __init__(self, shape, width, hidden):
        super().__init__()
        self.embed = Embed(shape, width)
        self.head = nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, shape.classes))

    def forward(self, tokens, features):
        x = self.embed(tokens, features)
        return self.head(x * (1.0 if x.sum().item() < 1e9 else 0.5))

@ARCHS.add("waits")
def build(shape, params, geometry):
    size = solve(lambda n: count_built(lambda: Waits(shape, geometry.width, n)), params)
    return Waits(shape, geometry.width, size)
"""
NODES = json.loads((Path(__file__).parent / "nodes.json").read_text())
SMOKE = ("--preset", "smoke", "--set", "steps=60")  # a watch point every three steps, and four blocks of data
ONE = ("--arch", "transformer", "--task", "bijection", *SMOKE)


def require_clean(result: lab.Result, runs: int) -> None:
    """Of the runs; the table that follows them is made of numbers that mean nothing, and may fail on a zero."""
    assert len(result.records) == len(result.traces) == runs, result.errors
    for record, trace in zip(result.records, result.traces, strict=True):
        assert not lab.problems(record, trace), (record["config"]["arch"], record["config"]["task"])


@pytest.fixture(scope="module")
def one(tmp_path_factory) -> lab.Result:
    return lab.run(tmp_path_factory.mktemp("one"), *ONE)


@pytest.mark.parametrize("half", [0, 1])
def test_every_architecture_trains_as_one_captured_step(tmp_path, half):
    archs = list(ARCHS.names())[half::2]
    result = lab.run(tmp_path, "--arch", *archs, "--task", "bijection", *SMOKE)
    require_clean(result, len(archs))
    found = {r["config"]["arch"]: len(t.step) for r, t in zip(result.records, result.traces, strict=True)}
    assert found == {arch: NODES["smoke"][arch] for arch in archs}


@pytest.mark.parametrize("half", [0, 1])
def test_every_task_is_drawn_and_scored_on_the_gpu(tmp_path, half):
    tasks = list(TASKS.names())[half::2]
    require_clean(lab.run(tmp_path, "--arch", "transformer", "--task", *tasks, *SMOKE), len(tasks))


@pytest.mark.parametrize("arch", list(NODES["paper"]))
def test_the_paper_shape_is_captured_without_atomics(tmp_path, arch):
    """Embeddings of more than 3,072 tokens a batch take another path through torch than smaller ones."""
    settings = ("steps=20", "sequences=256", "horizons=20")
    result = lab.run(
        tmp_path, "--preset", "paper", "--seeds", "1", "--arch", arch, "--task", "bijection", "--set", *settings
    )
    require_clean(result, 1)
    assert len(result.traces[0].step) == NODES["paper"][arch]


def test_without_triton_attention_is_torchs_own(tmp_path):
    result = lab.run(tmp_path, *ONE, "attention=sdpa")
    require_clean(result, 1)
    assert "_short_forward" not in result.traces[0].step


def test_attention_is_our_kernel_by_default(one):
    require_clean(one, 1)
    assert {"_short_forward", "_short_backward"} <= set(one.traces[0].step)


def products(trace):
    """How many products of each kind a captured step has."""
    return Counter(kernel.split()[1] for kernel in trace.step if kernel.startswith("GEMM "))


def test_training_multiplies_in_the_precision_that_was_asked_for(tmp_path, one):
    """Muon's products are in bfloat16 anyway."""
    usual = products(one.traces[0])
    assert usual.keys() == {"f32", "bf16"}
    for precision in ("tf32", "bf16"):
        result = lab.run(tmp_path / precision, *ONE, f"precision={precision}")
        require_clean(result, 1)
        assert products(result.traces[0]) == Counter(bf16=usual["bf16"]) + Counter({precision: usual["f32"]})
        assert f"on cuda in {precision}" in result.out


@pytest.mark.parametrize("arch", ["lstm", "linear-attention", "mlp"])
def test_other_architectures_train_in_bfloat16_too(tmp_path, arch):
    require_clean(lab.run(tmp_path, "--arch", arch, "--task", "bijection", *SMOKE, "precision=bf16"), 1)


def test_a_model_that_waits_for_the_gpu_trains_without_a_capture(tmp_path):
    model = tmp_path / "waits.py"
    model.write_text(WAITS)
    result = lab.run(tmp_path, "--arch", str(model), "--task", "bijection", *SMOKE)
    (record,), (trace,) = result.records, result.traces
    assert record["status"] == "ok", record["error"]
    assert record["notes"] == [NOT_CAPTURED]
    assert not trace.captures
    assert not trace.violations


def test_workers_have_a_gpu_process_each(tmp_path):
    result = lab.run(tmp_path, *ONE, "--seeds", "3", "--jobs", "3")
    assert result.code == 0, result.errors
    assert len(result.records) == len(result.traces) == 3
    assert not result.violations


def test_equal_runs_launch_equal_kernels(tmp_path, one):
    again = lab.run(tmp_path, *ONE)
    assert again.traces[0].step == one.traces[0].step


def test_seeds_that_share_a_gpu_launch_what_each_launches_alone(tmp_path, one):
    """Four seeds in one process take turns, each with a captured step and a stream of its own."""
    result = lab.run(tmp_path, *ONE, "--seeds", "4", "--per-gpu", "4")
    (trace,) = result.traces
    assert not trace.violations
    assert [record["status"] for record in result.records] == ["ok"] * 4
    assert {record["seconds"]["train"] for record in result.records} == {None}
    assert list(trace.captures.values()) == [one.traces[0].step] * 4
    each = list(trace.captures)
    assert trace.replays == each * (60 - lab.WARM_UP)
    assert all(len(trace.streams[graph]) == 1 for graph in each)  # two captures on one stream share cuBLAS's workspace
    assert len(set.union(*trace.streams.values())) == 4
    watched = {look["step"] for look in result.records[0]["loss_curve"]}
    for replays in trace.syncs:
        assert replays % 4 or lab.WARM_UP + replays // 4 in (lab.WARM_UP, 60, *watched), trace.syncs[replays]


def test_a_batch_that_does_not_fit_is_cut_before_the_capture(tmp_path):
    wide = (*ONE, "width=256", "batch=256")  # activations far larger than the data
    peak = lab.run(tmp_path / "whole", *wide).traces[0].peak
    result = lab.run(tmp_path / "less", *wide, NULLGPU_MEMORY=str(2 * peak // 3))
    assert any("out of memory at step 1 " in note for note in result.records[0]["notes"]), result.errors
    assert result.records[0]["status"] == "ok"
    assert len(result.traces[0].captures) == 1
    assert not result.violations


def test_memory_that_ends_in_the_capture_cuts_the_batch_and_captures_again(tmp_path):
    result = lab.run(tmp_path, *ONE, NULLGPU_FULL_CAPTURES="1")
    (note,) = result.records[0]["notes"]
    assert "out of memory at step 4 " in note
    assert result.records[0]["status"] == "ok"
    (trace,) = result.traces
    assert len(trace.replays) == 60 - 2 * lab.WARM_UP
    assert len(trace.step) > NODES["smoke"]["transformer"]  # two passes for each step


def test_a_stopped_run_continues_from_its_step(tmp_path):
    def stop_it(process):
        deadline = time.monotonic() + 300
        while not any("replay" in path.read_text() for path in tmp_path.glob("log-*/*.trace")):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        os.kill(process.pid, signal.SIGTERM)

    long = ("--arch", "transformer", "--task", "bijection", "--preset", "smoke", "--set", "steps=3000")
    stopped = lab.run(tmp_path, *long, meanwhile=stop_it)
    assert stopped.code == 128 + signal.SIGTERM, stopped.errors
    assert not stopped.records
    done = len(stopped.traces[0].replays)
    result = lab.run(tmp_path, *long)
    assert result.code == 0, result.errors
    assert not result.violations
    # both parts warm up before they capture
    assert done + len(result.traces[0].replays) + 2 * lab.WARM_UP == 3000


def test_the_share_of_drawing_data_is_recorded(one):
    """By a pair of events around each of the four blocks; on the null GPU any pair is a millisecond apart."""
    assert one.records[0]["seconds"]["data"] == 4e-3


def test_nvml_of_this_process_is_recorded(one):
    memory, gpu = one.records[0]["memory_bytes"], one.records[0]["platform"]["gpu"]
    assert memory["nvml_process"] > memory["reserved"] // 2
    assert memory["allocated"] <= memory["reserved"] == one.traces[0].run_peak
    assert one.records[0]["energy_joules"] > 0
    assert gpu["driver"] == "580.00"
    assert not gpu["notes"]


@pytest.mark.parametrize(
    ("mode", "note"),
    [("no-energy", "Not Supported"), ("wraps", "went backwards"), ("lost", "Driver Not Loaded"), ("container", "anew")],
)
def test_a_driver_that_refuses_leaves_a_note_and_no_number(tmp_path, mode, note):
    record = lab.run(tmp_path, *ONE, "steps=4", NULLGPU_NVML=mode).records[0]
    assert record["status"] == "ok"
    assert note in " ".join(record["platform"]["gpu"]["notes"])
    if mode == "container":
        assert record["memory_bytes"]["nvml_process"] is None
    else:
        assert record["energy_joules"] is None


def test_every_gpu_has_a_worker_by_default(tmp_path):
    result = lab.run(tmp_path, *ONE, "--seeds", "4", NULLGPU_DEVICES="2")
    assert result.code == 0, result.errors
    assert "2 at a time" in result.out
    assert sorted(list(trace.gpus) for trace in result.traces) == [[0], [0], [1], [1]]
    assert not result.violations


def test_a_gpu_can_be_chosen(tmp_path):
    result = lab.run(tmp_path, *ONE, "--device", "cuda:1", NULLGPU_DEVICES="3")
    require_clean(result, 1)
    assert result.traces[0].gpus == {1}


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (
            {"NULLGPU_DRIVER": "12080"},
            "the NVIDIA driver supports CUDA 12.8 and this torch needs 13.0: install a newer driver",
        ),
        ({"NULLGPU_INIT": "802"}, "CUDA does not start: CUDA_ERROR_SYSTEM_NOT_READY (802), system not yet initialized"),
        ({"NULLGPU_ARCH": "70"}, "GPU 0, Tesla V100-SXM2-16GB, is sm_70, and this torch was built for sm_75"),
    ],
)
def test_a_gpu_that_torch_cannot_use_is_one_line(tmp_path, settings, told):
    result = lab.run(tmp_path, *ONE, **settings)
    assert result.code == 2
    assert told in result.errors.splitlines()[-1]
    assert "--device cpu" in result.errors.splitlines()[-1]
    assert not (tmp_path / "out").exists()
    assert lab.run(tmp_path, *ONE, "steps=2", "--device", "cpu", **settings).code == 0


def test_a_driver_without_a_gpu_trains_on_the_cpu(tmp_path):
    result = lab.run(tmp_path, *ONE, "steps=2", NULLGPU_INIT="100", NULLGPU_DRIVER="12020")
    assert result.code == 0, result.errors
    assert " on cpu in fp32 (auto: " in result.out


def test_a_gpu_that_is_not_there_is_one_line(tmp_path):
    result = lab.run(tmp_path, *ONE, "--device", "cuda:2", NULLGPU_DEVICES="2")
    assert (result.code, result.errors.splitlines()[-1]) == (
        2,
        "bench: there is no GPU 2. Use --device cpu or leave it at auto",
    )
