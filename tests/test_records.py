"""Records: written whole, read strictly, refused by name."""

import json
import subprocess
from dataclasses import asdict

import pytest

from bench.records import BadRecord, parse, parse_config, read, read_all, write
from bench.run import run_one, source_version


@pytest.fixture(scope="module")
def made():
    from bench.config import compose

    return run_one(compose("smoke", "mlp-pointwise", "hmm", 0, "cpu", {"steps": 2}))


def test_a_record_survives_the_disk(made, tmp_path):
    record, weights = made
    path = write(tmp_path, record, weights)
    assert path == tmp_path / "hmm" / "mlp-pointwise" / f"{record.id}.json"
    assert read(path) == record
    assert path.with_suffix(".safetensors").read_bytes() == weights
    assert sorted(p.suffix for p in path.parent.iterdir()) == [".json", ".safetensors"]


def test_curves_stand_on_one_line(made, tmp_path):
    text = write(tmp_path, made[0], None).read_text()
    line = next(line for line in text.splitlines() if '"h_bayes"' in line)
    assert line.count(",") >= 19


def test_a_crash_while_writing_leaves_nothing_behind(made, tmp_path, monkeypatch):
    record, weights = made
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        write(tmp_path, record, weights)
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == []


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda d: d.pop("metrics"), "missing metrics"),
        (lambda d: d.update(extra=1), "unknown extra"),
        (lambda d: d.update(schema=2), "schema 2"),
        (lambda d: d.update(parameters="many"), "parameters has the wrong type"),
        (lambda d: d.update(dirty=1), "dirty has the wrong type"),
        (lambda d: d.update(id="0" * 12), "does not belong to its config"),
        (lambda d: d["config"].update(steps=3), "does not belong to its config"),
        (lambda d: d["config"].update(arch=None), "config's arch has the wrong type"),
        (lambda d: d["config"].update(task="nim"), "no task 'nim'"),
        (lambda d: d["config"].pop("lr"), "config is missing lr"),
        (lambda d: d["config"].update(flavour="mint"), "config has unknown flavour"),
        (lambda d: d["metrics"]["20"]["all"].update(kl="low"), "metrics.20.all.kl is not a number"),
        (lambda d: d["metrics"]["20"]["all"].update(kl=-1.0), "metrics.20.all.kl is negative"),
        (lambda d: d["metrics"].pop("50"), "metrics are at horizons"),
        (lambda d: d.update(status="great"), "status 'great'"),
    ],
)
def test_a_changed_record_is_refused_with_the_reason(made, change, reason):
    data = json.loads(json.dumps(asdict(made[0])))
    assert parse(data).id == made[0].id
    change(data)
    with pytest.raises(BadRecord, match=reason):
        parse(data)


def test_tuning_has_an_id_of_its_own_and_changes_no_other(made):
    config = made[0].config
    assert "tuning" not in config
    tuned = {**config, "tuning": {"seed": 1_000_000, "steps": 1, "errors": {"0.02": 0.5}}}
    assert parse_config(tuned).id() != made[0].id
    assert parse_config({**config, "tuning": {}}).id() == made[0].id
    assert parse_config(tuned).to_json() == tuned


def test_bad_files_are_named_and_good_ones_beside_them_are_read(made, tmp_path):
    path = write(tmp_path, made[0], None)
    (tmp_path / "torn.json").write_text(path.read_text()[:500])
    (tmp_path / "nan.json").write_text(path.read_text().replace('"kl": ', '"kl": NaN, "was": ', 1))
    (tmp_path / "list.json").write_text("[]")
    (tmp_path / "deep.json").write_text("[" * 100_000)
    (tmp_path / "copy.json").write_text(path.read_text())
    records, problems = read_all(tmp_path)
    assert [record.id for record in records] == [made[0].id]
    reasons = {p.name: reason for p, reason in problems}
    assert {"torn.json", "nan.json", "list.json", "deep.json"} < set(reasons)
    assert len(reasons) == 5
    assert reasons["list.json"] == "not a JSON object"
    assert "NaN is not a number" in reasons["nan.json"]
    assert any("the same run as" in reason for reason in reasons.values())


def test_a_record_names_the_commit_of_the_code_and_of_nothing_around_it(tmp_path, monkeypatch):
    def git(*words):
        who = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
        done = subprocess.run(["git", "-C", tmp_path, *who, *words], capture_output=True, text=True, check=True)
        return done.stdout.strip()

    monkeypatch.delenv("TUNNEL_BENCH_COMMIT", raising=False)
    assert source_version(tmp_path) == (None, None)
    (tmp_path / "bench").mkdir()
    (tmp_path / "bench/run.py").write_text("one")
    git("init", "--quiet")
    git("add", ".")
    git("commit", "--quiet", "--message", "one")
    head = git("rev-parse", "HEAD")
    assert source_version(tmp_path) == (head, False)
    (tmp_path / "bench/run.py").write_text("two")
    assert source_version(tmp_path) == (head, True)
    assert source_version(tmp_path / "bench") == (None, None)  # installed inside another project
    for told, known in ((head, (head, None)), (f"{head}-dirty", (head, True))):  # an image has no git to ask
        monkeypatch.setenv("TUNNEL_BENCH_COMMIT", told)
        assert source_version(tmp_path / "bench") == known
