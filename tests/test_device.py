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
    with pytest.raises(BadInput, match="CUDA uses GPU 1 in this process: cuda:0 takes a new process"):
        pick_device("cuda:0")


@pytest.mark.parametrize("start", ["auto", "cuda", "elsewhere"])
def test_another_gpu_is_refused_once_cuda_has_started(monkeypatch, start):
    """CUDA has read CUDA_VISIBLE_DEVICES by then, and the run would train on the first GPU."""
    monkeypatch.setattr("bench.device._chosen", None)
    monkeypatch.setattr("bench.device.gpu_problem", lambda: None)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    if start == "elsewhere":
        monkeypatch.setattr("torch.cuda.is_initialized", lambda: True)
    else:
        pick_device(start)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with pytest.raises(BadInput, match="CUDA uses GPU 0 in this process: cuda:1 takes a new process"):
        pick_device("cuda:1")
    assert "CUDA_VISIBLE_DEVICES" not in os.environ
    assert pick_device("cuda:0")[0] == "cuda"


class Driver:
    """libcuda as far as the start needs it."""

    def __init__(self, code: int = 0, version: int = 13000):
        self.code, self.version = code, version

    def cuInit(self, flags):
        return self.code

    def cuDriverGetVersion(self, out):
        out._obj.value = self.version

    def cuGetErrorName(self, code, out):
        out._obj.value = b"CUDA_ERROR_SYSTEM_NOT_READY"

    def cuGetErrorString(self, code, out):
        out._obj.value = b"system not yet initialized"


@pytest.mark.parametrize(
    ("driver", "told"),
    [
        (Driver(100, 12020), None),  # a library without a GPU, as on a login node
        (Driver(802), "CUDA does not start: CUDA_ERROR_SYSTEM_NOT_READY (802), system not yet initialized"),
        (Driver(0, 12080), "supports CUDA 12.8 and this torch needs 13.0"),
        (Driver(0), None),
    ],
)
def test_only_a_machine_without_a_gpu_trains_on_its_cpu(monkeypatch, driver, told):
    monkeypatch.setattr("bench.device.ctypes.CDLL", lambda name: driver)
    monkeypatch.setattr("torch.version.cuda", "13.0")
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    if told is None:
        assert pick_device("auto")[0] == "cpu"
    else:
        with pytest.raises(BadInput) as refused:
            pick_device("auto")
        assert told in str(refused.value)
        assert "\n" not in str(refused.value)


def test_a_container_without_its_gpu_is_told_how_to_get_it(monkeypatch, tmp_path):
    """The host's driver is in /proc whether or not the container was started with --gpus all."""
    (tmp_path / "version").write_text("NVRM version: 580")
    monkeypatch.setattr("bench.device.DRIVER", tmp_path / "version")
    monkeypatch.setattr("torch.version.cuda", "13.0")
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("bench.device.gpu_problem", lambda: None)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    device, why = pick_device("auto")
    assert device == "cpu"
    assert why.endswith("but this process was given no GPU (docker: --gpus all)")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert pick_device("auto")[1] == "auto: CUDA_VISIBLE_DEVICES is empty"


@pytest.mark.parametrize(
    ("capability", "usable"), [((7, 0), False), ((7, 5), True), ((8, 9), True), ((9, 0), True), ((13, 0), True)]
)
def test_a_gpu_must_be_in_the_list_that_torch_was_built_for(monkeypatch, capability, usable):
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
