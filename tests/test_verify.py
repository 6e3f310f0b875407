"""bench verify: a true record holds, and any one thing changed is found."""

import json

import pytest

from bench import verify
from bench.cli import main
from bench.config import compose
from bench.records import read, write
from bench.run import run_one


@pytest.fixture(scope="module")
def made():
    """Two runs of one architecture: their weights fit into each other's place."""
    few = {"steps": 4, "horizons": (10, 20), "sequences": 16}
    return [run_one(compose("smoke", "mlp-pointwise", "hmm", seed, "cpu", few)) for seed in (0, 1)]


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
    assert "not verified (weights not here: only --rerun can verify it)" in out


def test_on_another_platform_the_tolerance_is_stated_and_kept(runs, capsys):
    change(runs[0], lambda d: d["platform"].update(name="another processor"))
    right = read(runs[0]).metrics["20"]["all"]["kl"]
    change(runs[0], lambda d: d["metrics"]["20"]["all"].update(kl=right + 5e-5))
    code, out = call(capsys, runs[0])
    assert code == 0
    assert "within 0.0001 bits + 0.1%: another platform" in out
    change(runs[0], lambda d: d["metrics"]["20"]["all"].update(kl=right * 1.001 + 2e-4))
    assert call(capsys, runs[0])[0] == 1


def test_on_another_platform_a_rerun_must_fall_within_the_interval(runs, capsys):
    change(runs[0], lambda d: d["platform"].update(name="another processor"))
    code, out = call(capsys, runs[0], "--rerun")
    assert code == 0
    assert "allowed" in out
    for path in runs:  # both seeds claim a third of the error
        change(
            path, lambda d: d["metrics"]["20"]["all"].update(entropy_mae=d["metrics"]["20"]["all"]["entropy_mae"] / 3)
        )
    code, out = call(capsys, runs[0], "--rerun")
    assert code == 1
    assert "is outside" in out


def test_nothing_to_verify_is_a_mistake(tmp_path, capsys):
    assert main(["verify", str(tmp_path)]) == 2
    assert main(["verify", str(tmp_path / "none")]) == 2
    assert "no record or folder" in capsys.readouterr().err


def test_a_sample_is_the_same_every_time(runs, tmp_path):
    paths = verify.find([tmp_path])
    assert verify.sample(paths, 1) == verify.sample(list(reversed(paths)), 1)
    assert verify.sample(paths, 5) == paths
