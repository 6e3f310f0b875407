"""Published weights: which ones, how many bytes, and that each belongs to a published record."""

import hashlib
import importlib.util
from pathlib import Path

import pytest

from bench.board.overview import make_board
from bench.records import WEIGHTS, read_all
from tests.fixtures import make_record

ROOT = Path(__file__).resolve().parent.parent
spec = importlib.util.spec_from_file_location("weights", ROOT / "leaderboard/weights.py")
weights = importlib.util.module_from_spec(spec)
spec.loader.exec_module(weights)


SEARCH = {"seeds": [8, 9], "steps": 1000, "errors": {"0.02": [0.1, 0.1]}}


def run(arch, task, seed, error, **settings):
    return make_record(arch, task, seed, error, preset=weights.PRESET, **settings)


@pytest.fixture
def records():
    """A tuned row of two seeds, an untuned one, and a tuned one of a task whose weights are not published."""
    tuned = [run("mlp", "hmm", seed, error, tuning=SEARCH) for seed, error in ((10, 0.3), (11, 0.2))]
    return [*tuned, run("lstm", "hmm", 10, 0.1), run("mlp", "bernoulli", 10, 0.1, tuning=SEARCH)]


def test_weights_are_of_the_best_seed_of_tuned_rows_of_the_chosen_tasks(records, tmp_path):
    results, folder = tmp_path / "results", tmp_path / "weights"
    for record in records:
        path = (results / record.path).with_suffix(".safetensors")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(record.id.encode())
    folder.mkdir()
    (folder / "0123456789ab.safetensors").write_bytes(b"of an earlier best seed")
    weights.publish(results, make_board(records), folder)
    best = records[1]
    assert best.config.seed == 11
    assert [path.name for path in folder.iterdir()] == [f"{best.id}.safetensors"]
    assert (folder / f"{best.id}.safetensors").read_bytes() == best.id.encode()
    weights.publish(tmp_path / "elsewhere", make_board(records), folder)  # results without the file: it stays
    assert [path.name for path in folder.iterdir()] == [f"{best.id}.safetensors"]


def test_too_many_bytes_are_refused(records, tmp_path, monkeypatch):
    path = (tmp_path / records[1].path).with_suffix(".safetensors")
    path.parent.mkdir(parents=True)
    path.write_bytes(b"weights")
    monkeypatch.setattr(weights, "MOST_BYTES", 6)
    with pytest.raises(SystemExit, match="more than"):
        weights.publish(tmp_path, make_board(records), tmp_path / "weights")


def test_published_weights_belong_to_published_records():
    published = {record.id: record for record in read_all(ROOT / "leaderboard/runs")[0]}
    files = list((ROOT / "leaderboard" / WEIGHTS).glob("*.safetensors"))
    assert files
    for path in files:
        assert published[path.stem].weights == f"sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}", path.name
    assert sum(path.stat().st_size for path in files) <= weights.MOST_BYTES
