"""Records: written whole, read strictly, refused by name."""

import csv
import json
import subprocess
from dataclasses import replace

import pytest

from bench.cli import main
from bench.config import compose
from bench.records import BadRecord, parse, read, read_all, write
from bench.run.run import run_one
from bench.run.score import METRICS
from bench.run.source import read_source
from bench.text import number


@pytest.fixture(scope="module")
def made():
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
        (lambda d: d["config"].update(arch=None), r"config\.arch has the wrong type"),
        (lambda d: d["config"].update(task="nim"), "no task 'nim'"),
        (lambda d: d["config"].pop("lr"), r"missing config\.lr"),
        (lambda d: d["config"].update(flavour="mint"), r"unknown config\.flavour"),
        (lambda d: d["metrics"]["20"]["all"].update(kl="low"), r"metrics\.20\.all\.kl has the wrong type"),
        (lambda d: d["metrics"]["20"]["all"].update(kl=-1.0), "metrics.20.all.kl is negative"),
        (lambda d: d["metrics"].pop("50"), "metrics are at horizons"),
        (lambda d: d["metrics"]["20"]["all"].update(kl=float("inf")), "kl must be a finite number, not inf"),
        (lambda d: d["platform"].update(free=[float("nan")]), "platform has a number that is not finite"),
        (lambda d: d.update(status="great"), "status 'great'"),
    ],
)
def test_a_changed_record_is_refused_with_the_reason(made, change, reason):
    data = json.loads(json.dumps(made[0].to_json()))
    assert parse(json.dumps(data)) == made[0]
    change(data)
    with pytest.raises(BadRecord, match=reason):
        parse(json.dumps(data))


def test_tuning_has_an_id_of_its_own_and_changes_no_other(made):
    record = made[0]
    assert "tuning" not in record.config.to_json()
    assert replace(record.config, tuning={}).id() == record.id
    tuned = replace(record.config, tuning={"seeds": [8, 9], "steps": 1, "errors": {"0.02": [0.5]}})
    assert tuned.id() != record.id
    searched = replace(record, id=tuned.id(), config=tuned)
    assert parse(json.dumps(searched.to_json())) == searched


@pytest.mark.parametrize("metric", sorted({*METRICS} - {"entropy_mae", "kl", "entropy_curve_mae"}))
def test_a_record_from_before_a_metric_still_renders(made, tmp_path, metric):
    """Of the metrics, tables take the three above; any other may have been added after a record was written."""
    data = made[0].to_json()
    for tree in (*data["metrics"].values(), *(row for at_k in data["references"].values() for row in at_k.values())):
        for part in tree.values():
            del part[metric]
    record = parse(json.dumps(data))
    write(tmp_path / "runs", record, None)
    words = ["--runs", tmp_path / "runs", "--html", tmp_path / "site", "--csv", tmp_path / "all.csv", "--figures"]
    assert main(["board", *map(str, words)]) == 0
    page = (tmp_path / "runs/hmm.md").read_text()
    assert f" {number(record.error_bits)} " in next(line for line in page.splitlines() if "| mlp-pointwise" in line)
    (row,) = csv.DictReader((tmp_path / "all.csv").open())
    assert row[f"{metric}_1"] == row[f"{metric}_2_new"] == ""
    assert float(row["kl_1"]) == record.at()["all"]["kl"]


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
    assert reasons["list.json"] == "the file has the wrong type (list)"
    assert reasons["nan.json"].startswith("metrics.20.all.kl must be a finite number, not nan")
    assert any("the same run as" in reason for reason in reasons.values())


def test_a_record_names_the_commit_of_the_code_and_of_nothing_around_it(tmp_path, monkeypatch):
    def git(*words):
        who = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
        done = subprocess.run(["git", "-C", tmp_path, *who, *words], capture_output=True, text=True, check=True)
        return done.stdout.strip()

    monkeypatch.delenv("TUNNEL_BENCH_COMMIT", raising=False)
    assert read_source(tmp_path) == (None, None)
    (tmp_path / "bench").mkdir()
    (tmp_path / "bench/run.py").write_text("one")
    git("init", "--quiet")
    git("add", ".")
    git("commit", "--quiet", "--message", "one")
    head = git("rev-parse", "HEAD")
    assert read_source(tmp_path) == (head, False)
    (tmp_path / "bench/run.py").write_text("two")
    assert read_source(tmp_path) == (head, True)
    assert read_source(tmp_path / "bench") == (None, None)  # installed inside another project
    for told, known in ((head, (head, None)), (f"{head}-dirty", (head, True))):  # an image has no git to ask
        monkeypatch.setenv("TUNNEL_BENCH_COMMIT", told)
        assert read_source(tmp_path / "bench") == known
