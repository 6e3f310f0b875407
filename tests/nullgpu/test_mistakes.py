"""Mistakes planted in a copy of the code: the null GPU reports every one of them."""

from __future__ import annotations

import lab
import pytest

RUN = ("--arch", "transformer", "--preset", "smoke", "--set", "steps=150")
TRAIN, DEVICE = "bench/run/train.py", "bench/device.py"
STEP = "    nn.utils.clip_grad_norm_(model.parameters(), clip, foreach=True)\n"
REPLAY = "        return self.replay().clone()  # the next replay writes into the same place\n"
MALLOC = """    import ctypes
    ctypes.CDLL("libcudart.so.13").cudaMalloc(ctypes.byref(ctypes.c_void_p()), ctypes.c_size_t(64))
"""
SIDE = """    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        loss + 1
"""
KEEP = '        self.__dict__.setdefault("kept", []).append(torch.empty(1 << 18, device="cuda"))\n'
KEEP_LITTLE = KEEP.replace("1 << 18", "1 << 8")
FORGET = "        release_memory(self.device)\n        reset_peak_memory(self.device)\n"
PEAK = "        allocated, reserved = peak_memory(self.device)\n"
KERNELS = "models/kernels/attention_triton.py"
# file, what it says, what it says with the mistake, what is then reported
MISTAKES = {
    "a sync in the step": (TRAIN, STEP, STEP + "    loss.item()\n", "0 replays for 150 steps"),
    "a sync after each step": (
        TRAIN, REPLAY, "        torch.cuda.synchronize()\n" + REPLAY,
        "the host waits after step 4: cudaDeviceSynchronize",
    ),
    "a rate copied from the host": (
        TRAIN, 'group["lr"].fill_(lr)', 'group["lr"].copy_(torch.tensor(lr))',
        "the host waits after step 4: cudaMemcpyAsync",
    ),
    "an allocation in capture": (TRAIN, STEP, STEP + MALLOC, "forbidden in capture: cudaMalloc"),
    "an atomic": (DEVICE, "torch.use_deterministic_algorithms(True)", "pass", "atomics in the step"),
    "a launch on the wrong stream": (
        TRAIN, STEP, STEP + "    with torch.cuda.stream(torch.cuda.default_stream()):\n        loss = loss.clone()\n",
        "launched outside the capture",
    ),
    "a wrong grid": (
        KERNELS, "_short_backward[(B * H,)]", "_short_backward[(1, 65536 * B * H)]",
        "invalid launch: _short_backward grid 1,",
    ),
    "a stream that is not joined": (TRAIN, STEP, STEP + SIDE, "was not joined"),
    "a leak": (TRAIN, REPLAY, KEEP + REPLAY, "a leak"),
    "a leak of a kilobyte a step": (TRAIN, REPLAY, KEEP_LITTLE + REPLAY, "a leak: tensors of"),
    "a peak that forgets the training": (
        "bench/run/meter.py", PEAK, FORGET + PEAK,
        "bytes recorded as reserved",
    ),
    "a peak that counts the checks of the kernels": (
        "bench/run/meter.py", "        release_memory(self.device)\n", "",
        "bytes recorded as reserved",
    ),
}  # fmt: skip
SETTINGS = {
    "an atomic": ("batch=128", "horizon=20", "--task", "bijection"),  # torch has another kernel for few tokens
    # the checks need more than the run
    "a peak that counts the checks of the kernels": ("horizons=900", "batch=1", "sequences=1", "--task", "bernoulli"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_planted_mistake_is_reported(tmp_path, name):
    file, right, wrong, told = MISTAKES[name]
    code = lab.with_mistake(tmp_path / "code", file, right, wrong)
    result = lab.run(tmp_path / "run", *RUN, *SETTINGS.get(name, ("--task", "bijection")), code=code)
    (record,), (trace,) = result.records, result.traces
    assert any(told in problem for problem in lab.problems(record, trace)), lab.problems(record, trace)
