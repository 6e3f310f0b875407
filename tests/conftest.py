import pytest
import torch

from bench.config import RunConfig, compose


@pytest.fixture(autouse=True)
def _one_thread():
    """Small tensors gain nothing from threads, and tests run side by side."""
    torch.set_num_threads(1)


@pytest.fixture
def smoke():
    """A config of the smoke preset, with any changes."""

    def make(arch: str = "transformer", task: str = "bijection", seed: int = 0, **overrides: object) -> RunConfig:
        return compose("smoke", arch, task, seed, "cpu", overrides)

    return make
