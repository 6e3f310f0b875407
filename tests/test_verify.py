"""bench verify: a true record holds, and any one thing changed is found."""

import json
from copy import deepcopy
from dataclasses import replace

import pytest

from bench.check import verify
from bench.cli import main
from bench.config import compose
from bench.records import read, write
from bench.run.run import run_one
from models.base import ARCHS

FEW = {"steps": 4, "horizons": (10, 20), "sequences": 16}


@pytest.fixture(scope="module")
def made():
    """Two runs of one architecture: their weights fit into each other's place."""
    return [run_one(compose("smoke", "mlp-pointwise", "hmm", seed, "cpu", FEW)) for seed in (0, 1)]


@pytest.fixture
def runs(made, tmp_path):
    return [write(tmp_path, record, weights) for record, weights in made]


def call(capsys, *words):
    code = main(["verify", *map(str, words)])
    return code, capsys.readouterr().out


def change(path, edit):
    data = json.loads(path.read_text())
    edit(data)
    path.write_text(json.dumps(data))


def leaves(tree, name=()):
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from leaves(value, (*name, key))
    elif isinstance(tree, list):
        for key, value in enumerate(tree):
            yield from leaves(value, (*name, key))
    elif isinstance(tree, int | float):
        yield name


def test_true_records_hold(runs, tmp_path, capsys):
    code, out = call(capsys, tmp_path)
    assert code == 0
    assert out.count("holds (weights evaluated again, every number equal)") == 2
    assert "2 hold, 0 do not, 0 not verified" in out
    code, out = call(capsys, runs[0], "--rerun")
    assert code == 0
    assert "holds (trained again, every number equal)" in out


def test_one_changed_digit_is_found_wherever_it_is(runs):
    """Every number of metrics, references and curves by position, and every count, one at a time."""
    whole = json.loads(runs[0].read_text())
    record = read(runs[0])
    seen = []

    def again(*_):
        return {name: getattr(record, name) for name in ("metrics", "references", "by_position")}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verify, "evaluate", again)  # what an evaluation gives was compared above; here many are needed
        assert verify.verify(runs[0], rerun=False).holds
        names = [n for k in ("metrics", "references", "by_position") for n in leaves(whole[k], (k,))]
        for name in [*names[:: len(names) // 16], ("parameters",), ("budget",), ("train_flops",), ("state_bytes",)]:

            def bump(data, name=name):
                for key in name[:-1]:
                    data = data[key]
                data[name[-1]] = (data[name[-1]] or 0) * (1 + 1e-15) + 1e-15 if len(name) > 1 else 7

            change(runs[0], bump)
            verdict = verify.verify(runs[0], rerun=False)
            assert verdict.holds is False, name
            assert len(verdict.differences) == 1
            seen.append(verdict.differences[0].split(":")[0])
            runs[0].write_text(json.dumps(whole))
    assert "parameters" in seen
    assert len(set(seen)) > 16


def test_a_changed_digit_is_printed_with_what_it_should_be(runs, capsys):
    right = read(runs[0]).metrics["20"]["all"]["kl"]
    change(runs[0], lambda d: d["metrics"]["20"]["all"].update(kl=right + 1e-6))
    code, out = call(capsys, runs[0])
    assert code == 1
    assert "DOES NOT HOLD" in out
    assert f"metrics.20.all.kl: {right + 1e-6!r} in the record, {right!r} here" in out
    assert "1 do not" in out


def test_swapped_weights_are_found_even_if_the_hash_is_swapped_too(runs, capsys):
    files = [path.with_suffix(".safetensors") for path in runs]
    files[0].write_bytes(files[1].read_bytes())
    code, out = call(capsys, runs[0])
    assert code == 1
    assert "weights: 'sha256:" in out
    change(runs[0], lambda d: d.update(weights=read(runs[1]).weights))
    code, out = call(capsys, runs[0])
    assert code == 1
    assert "weights: 'sha256:" not in out
    assert "metrics.10.all.entropy_mae" in out


def test_a_changed_config_is_found(runs, capsys):
    change(runs[0], lambda d: d["config"].update(lr=0.021))
    code, out = call(capsys, runs[0])
    assert code == 1
    assert "does not belong to its config" in out
    # with an id and a name to match, only training again can tell
    config = compose("smoke", "mlp-pointwise", "hmm", 0, "cpu",
                     {"steps": 4, "horizons": (10, 20), "sequences": 16, "lr": 0.021, "adam_lr": 0.004})  # fmt: skip
    change(runs[0], lambda d: d.update(config=config.to_json(), id=config.id()))
    moved = runs[0].with_name(f"{config.id()}.json")
    runs[0].rename(moved)
    code, out = call(capsys, moved, "--rerun")
    assert code == 1
    assert "metrics.20.all.entropy_mae" in out


def test_weights_of_another_model_are_refused(runs, capsys):
    runs[0].with_suffix(".safetensors").write_bytes(b"not weights")
    code, out = call(capsys, runs[0])
    assert code == 1
    assert "does not hold this model's weights" in out


def test_a_record_without_weights_is_not_verified(runs, capsys):
    runs[0].with_suffix(".safetensors").unlink()
    code, out = call(capsys, runs[0])
    assert code == 1
    assert "not verified (it has no weights: only --rerun can verify it)" in out


def test_records_without_weights_beside_one_that_holds_are_no_failure(runs, tmp_path, capsys):
    runs[1].with_suffix(".safetensors").unlink()
    code, out = call(capsys, tmp_path)
    assert code == 0
    assert "1 hold, 0 do not, 1 not verified" in out
    change(runs[0], lambda d: d["metrics"]["20"]["all"].update(kl=9.0))
    code, out = call(capsys, tmp_path)
    assert code == 1
    assert "0 hold, 1 do not, 1 not verified" in out


def test_published_weights_are_found_beside_the_folder_of_records(made, tmp_path, capsys):
    record, weights = made[0]
    path = write(tmp_path / "runs", record, None)
    published = tmp_path / "weights" / f"{record.id}.safetensors"
    published.parent.mkdir()
    published.write_bytes(weights)
    code, out = call(capsys, path)
    assert code == 0
    assert "holds (weights evaluated again, every number equal)" in out
    published.write_bytes(made[1][1])
    assert call(capsys, path)[0] == 1


def test_on_another_platform_the_tolerance_is_stated_and_kept(runs, capsys):
    change(runs[0], lambda d: d["platform"].update(name="another processor"))
    right = read(runs[0]).metrics["20"]["all"]["kl"]
    change(runs[0], lambda d: d["metrics"]["20"]["all"].update(kl=right + 5e-5))
    code, out = call(capsys, runs[0])
    assert code == 0
    assert "within 0.0001 bits + 0.1%: another platform" in out
    change(runs[0], lambda d: d["metrics"]["20"]["all"].update(kl=right * 1.001 + 2e-4))
    assert call(capsys, runs[0])[0] == 1


def error_of(record, value):
    metrics = deepcopy(record.metrics)
    metrics["20"]["all"]["entropy_mae"] = value
    return metrics


@pytest.mark.parametrize(
    ("claim", "siblings", "holds"),
    [
        (1.0, [], True),
        (1 / 1.4, [], True),  # a factor of 1.5 either way
        (1 / 3, [], False),
        (1 / 3, [1.0], False),  # one other seed has no spread
        (1 / 3, [0.99, 1.0, 1.01], False),  # the true seeds agree, and the record has no say in it
        (1 / 2.9, [0.3, 1.0, 1.6], True),  # seeds of this run differ by as much
        (1 / 3.1, [0.3, 1.0, 1.6], False),  # and whatever they do, a factor of 3 is too much
        (1 / 2.9, [0.9, 1.1], True),  # two seeds have a spread that says little: it allows that factor
        (1 / 2.9, [0.99, 1.01], False),
        (1 / 300, [0.6, 1.4], False),
        (1 / 300, [0.99, 1.0, 1.01], False),
    ],
)
def test_elsewhere_a_rerun_must_be_near_the_record_or_both_among_the_other_seeds(
    made, tmp_path, claim, siblings, holds
):
    record = made[0][0]
    true = record.metrics["20"]["all"]["entropy_mae"]
    platform = {**record.platform, "name": "another processor"}
    path = write(tmp_path, replace(record, platform=platform, metrics=error_of(record, claim * true)), None)
    for seed, share in enumerate(siblings, start=1):
        config = compose("smoke", "mlp-pointwise", "hmm", seed, "cpu", FEW)
        other = replace(record, id=config.id(), config=config, metrics=error_of(record, share * true))
        write(tmp_path, other, None)
    verdict = verify.verify(path, rerun=True)
    assert verdict.holds is holds
    assert "allowed a factor of 1.5" in verdict.how


def test_another_number_of_threads_and_a_run_that_was_moved_are_another_platform(made, tmp_path):
    record, weights = made[0]
    changed = deepcopy(record.metrics)
    changed["20"]["all"]["kl"] += 5e-5
    elsewhere = [{"platform": {**record.platform, **change}} for change in ({"threads": 4096}, {"muon": "bfloat16"})]
    for told in (*elsewhere, {"notes": ["continued on another platform"]}):
        path = write(tmp_path, replace(record, metrics=changed, **told), weights)
        assert verify.verify(path, rerun=False).holds
    path = write(tmp_path, replace(record, metrics=changed), weights)
    assert not verify.verify(path, rerun=False).holds


def test_a_record_from_a_gpu_is_not_verified_without_one_and_stops_nothing(runs, tmp_path, capsys):
    config = compose("smoke", "mlp-pointwise", "hmm", 0, "cuda", {**FEW, "attention": "sdpa"})
    record = replace(read(runs[0]), id=config.id(), config=config)
    write(tmp_path, record, None)
    code, out = call(capsys, tmp_path)
    assert code == 1
    assert "not verified (the run used a GPU, and this machine has none)" in out
    assert "2 hold, 0 do not, 1 not verified" in out


def test_nothing_to_verify_is_a_mistake(tmp_path, capsys):
    assert main(["verify", str(tmp_path)]) == 2
    assert main(["verify", str(tmp_path / "none")]) == 2
    assert "no record or folder" in capsys.readouterr().err


def test_a_sample_is_the_same_every_time(runs, tmp_path):
    paths = verify.find([tmp_path])
    assert verify.sample(paths, 1) == verify.sample(list(reversed(paths)), 1)
    assert verify.sample(paths, 5) == paths


def test_a_record_of_an_architecture_that_is_not_here_is_not_verified(runs, capsys, monkeypatch):
    """Its file may be somebody's own, or gone: that damages no record."""
    monkeypatch.delitem(ARCHS._entries, "mlp-pointwise")
    code, out = call(capsys, runs[0])
    assert code == 1
    assert "there is no architecture 'mlp-pointwise' here" in out
    assert "0 hold, 0 do not, 1 not verified" in out
