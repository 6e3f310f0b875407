"""The GPU that a process uses, as far as a machine without one can show; the rest is in tests/nullgpu."""

import os

import pytest
import torch

from bench.device import gpu_problem, pick_device, products, settle_arithmetic, use_gpu
from bench.registry import BadInput


@pytest.mark.parametrize(
    ("visible", "number", "left"), [(None, 1, "1"), ("2,3", 1, "3"), ("GPU-ab,GPU-cd", 0, "GPU-ab"), ("2", 1, "")]
)
def test_a_gpu_is_counted_among_the_visible_ones(monkeypatch, visible, number, left):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible or "")
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    use_gpu(number)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == left


def test_the_first_choice_of_a_gpu_stands_in_a_process(monkeypatch):
    """bench.library picks the device anew for each call."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    monkeypatch.setattr("bench.device._chosen", None)
    monkeypatch.setattr("bench.device.gpu_problem", lambda: None)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    for _ in range(2):
        assert pick_device("cuda:1") == ("cuda", "asked for")
        assert os.environ["CUDA_VISIBLE_DEVICES"] == "3"
    with pytest.raises(BadInput, match="this process has chosen GPU 1: another one takes a new process"):
        pick_device("cuda:0")


@pytest.mark.parametrize(
    ("capability", "usable"), [((7, 0), False), ((7, 5), True), ((8, 9), True), ((9, 0), True), ((13, 0), True)]
)
def test_a_gpu_must_be_in_the_list_that_torch_was_built_for(monkeypatch, capability, usable):
    class Driver:
        def cuDriverGetVersion(self, out):
            out._obj.value = 13000

    monkeypatch.setattr("bench.device.ctypes.CDLL", lambda name: Driver())
    monkeypatch.setattr("torch.version.cuda", "13.0")
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda number: [(8, 0), capability][number])
    monkeypatch.setattr("torch.cuda.get_device_name", lambda number: f"a GPU of {capability}")
    monkeypatch.setattr("torch.cuda.get_arch_list", lambda: ["sm_75", "sm_80", "sm_90", "compute_120"])
    problem = gpu_problem()
    if usable:
        assert problem is None
    else:
        assert "GPU 1, a GPU of (7, 0), is sm_70, and this torch was built for sm_75, sm_80" in problem
        assert "choose another GPU with --device cuda:N" in problem


def test_on_a_gpu_float32_is_float32_and_algorithms_are_deterministic(monkeypatch):
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    try:
        settle_arithmetic("cuda")
        assert torch.backends.cudnn.allow_tf32 is False  # raises where its parts disagree
        assert torch.are_deterministic_algorithms_enabled()
        assert not torch.utils.deterministic.fill_uninitialized_memory
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    finally:
        torch.backends.cudnn.allow_tf32 = True
        torch.use_deterministic_algorithms(False)
        torch.utils.deterministic.fill_uninitialized_memory = True


@pytest.mark.parametrize("precision", ["fp32", "tf32"])
def test_products_of_training_leave_no_trace_in_scoring(precision):
    """bf16, torch's autocast, needs a GPU: tests/nullgpu."""
    settings = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    try:
        for is_forward in (True, False):
            with products(precision, is_forward):
                assert torch.backends.cuda.matmul.allow_tf32 == torch.backends.cudnn.allow_tf32 == (precision == "tf32")
            assert not torch.backends.cuda.matmul.allow_tf32
            assert not torch.backends.cudnn.allow_tf32
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = settings
