"""What was published stays: run ids and batches of the first tasks."""

import hashlib

import pytest

from bench.config import compose
from bench.seeds import generator
from tasks.base import TASKS

# a hash of tokens, targets and queries, and the sum of absolute features, whose last bits differ between kinds of CPU
BATCHES = {
    "bernoulli": ("664b93eda44bad8c", 0.0),
    "bijection": ("a032721a03a9e4a1", 0.0),
    "bijection-revisit": ("a6159835ca28831c", 0.0),
    "hmm": ("395388aa903efcbe", 3775.249396),
    "hmm-sticky": ("2390df2db4c9844f", 5766.067488),
    "recall": ("9a41ef9aa4c08968", 0.0),
    "regression": ("b8c5607e6095c55d", 3001.708010),
}
IDS = {
    "smoke": "9d898dc7b7cc 1ae4db06a579 537f4730d5e2 b0eb8cb1e079 acc8075b7c68 e933e98749ee 2961644ec88a",
    "quick": "7fefce642aa0 b39e13f7e109 d92ee88f197b 3a91764fd4b3 4cafcd602dba e763e1e53c76 70e8636c2258",
    "small": "9a91116a0367 92632174c4cd 7b961f2ff71b 81b64f9c5735 ab073a03f6f3 61d132340efb 2eb80b4c3c3d",
    "paper": "4a1ee5f94e6a af4ea0440714 13c6c9b3be68 19575b632b83 7b4a13bc5f1e ff22a32aa6a7 dedb771ad504",
    "bernoulli-report": "733205ade74f",
}  # fmt: skip


@pytest.mark.parametrize("name", BATCHES)
def test_batches_of_the_first_tasks_are_the_same(name):
    task = TASKS[name]()
    batch = task.sample(33, task.horizon, generator("cpu", 7, "frozen"))
    digest = hashlib.sha256()
    for tensor in (batch.tokens, batch.targets, batch.queries):
        digest.update(tensor.contiguous().numpy().tobytes())
    known, total = BATCHES[name]
    assert digest.hexdigest()[:16] == known
    assert float(batch.features.double().abs().sum()) == pytest.approx(total, rel=1e-6)


@pytest.mark.parametrize("preset", IDS)
def test_run_ids_of_the_first_tasks_are_the_same(preset):
    known_ids = IDS[preset].split()  # bernoulli-report has the first task alone
    for name, known in zip([*BATCHES][: len(known_ids)], known_ids, strict=True):
        assert compose(preset, "transformer", name, 0, "cpu", {}).id() == known
