"""results.csv: every number, one row a record."""

import csv
import io
from dataclasses import asdict, replace
from pathlib import Path

from bench.board.overview import make_board
from bench.board.results import COSTS, SETTINGS, columns, render
from bench.records import Look, read_all
from bench.run.score import METRICS
from tests.fixtures import CONSTANT, UNIFORM, fail, make_record, make_records

ROOT = Path(__file__).resolve().parent.parent


def rows(records, reported=()):
    """The rows of the CSV by record, as text."""
    found = list(csv.DictReader(io.StringIO(render(make_board(records, reported)))))
    assert len({row["id"] for row in found}) == len(found)
    return {row["id"]: row for row in found}


def check_numbers(record, row, has_score=True):
    """Each number of the row is the record's, to its last digit."""
    config = record.config
    for name in ("arch", "preset", "supervision", "device", "seed", *SETTINGS):
        assert row[name] == str(getattr(config, name)), name
    expected = {"status": record.status, "commit": record.commit, "dirty": record.dirty}
    if has_score:
        expected |= {name: getattr(record, name) for name in COSTS}
        expected |= {f"seconds_{name}": value for name, value in asdict(record.seconds).items()}
        expected |= {f"bytes_{name}": value for name, value in asdict(record.memory_bytes).items()}
        for name in ("best constant", "uniform"):
            floor = record.references[str(config.horizon)][name]["all"]
            expected |= {f"{name.replace(' ', '_')}_{m}": floor[m] for m in ("entropy_mae", "kl")}
    numbers = [name.removeprefix("K_") for name in row if name.startswith("K_")]
    assert {k for k, known in record.metrics.items() if known} <= {row[f"K_{i}"] for i in numbers}
    for i in numbers:
        known = record.metrics.get(row[f"K_{i}"]) or {}
        expected |= {f"{m}_{i}": known.get("all", {}).get(m) for m in METRICS}
        if i != "1":
            expected |= {f"{m}_{i}_new": known.get("post", {}).get(m) for m in METRICS}
    for name, value in expected.items():
        assert row[name] == ("" if value is None else str(value)), name


def test_a_record_is_a_row_and_each_number_is_the_records():
    made = make_records("transformer", [0.1, 0.123456789012345], "hmm") + make_records("mlp", [0.3], "hmm")
    made += [make_record("lstm", "bijection", error=0.2, lr=0.5)]
    found = rows(made)
    assert found.keys() == {record.id for record in made}
    for record in made:
        check_numbers(record, found[record.id])
    longer = found[made[0].id]
    assert [longer[f"K_{i}"] for i in (1, 2, 3)] == ["20", "30", "50"]
    assert float(longer["entropy_mae_3_new"]) == 0.2
    limited = found[made[2].id]
    assert (limited["entropy_mae_1"], limited["entropy_mae_2"], limited["entropy_mae_3_new"]) == ("0.3", "", "")
    assert float(limited["best_constant_entropy_mae"]) == CONSTANT["entropy_mae"]
    assert float(limited["uniform_kl"]) == UNIFORM["kl"]


def test_shorter_horizons_and_any_number_of_them_are_there():
    record = make_record(task="hmm", horizons=(5, 10, 20, 30, 40, 50))
    row = rows([record, make_record()])[record.id]
    assert [row[f"K_{i}"] for i in range(1, 7)] == ["20", "5", "10", "30", "40", "50"]
    check_numbers(record, row)


def test_ranks_p_and_marks_are_those_of_the_table():
    made = [*make_records("transformer", [0.1, 0.2]), *make_records("mlp", [0.3, 0.4])]
    other, guess = make_record("lstm", lr=0.5), make_record("gru", kl=2 * UNIFORM["kl"])
    reported = make_record("gru", seed=7)
    found = rows([*made, other, guess], [reported])
    assert [found[r.id]["rank"] for r in (*made, other, guess)] == ["1", "1", "1", "1", "†", "-"]
    assert [found[r.id]["p"] for r in (*made, other, guess)] == ["", "", "0.5", "0.5", "", ""]
    assert [found[r.id]["is_preset_default"] for r in (made[0], other)] == ["True", "False"]
    assert [found[r.id]["self_reported"] for r in (guess, reported)] == ["False", "True"]


def test_a_failed_run_has_a_row_with_its_error_and_no_scores():
    record = fail(make_record("mlp", "hmm"), 'it said, "no"')
    row = rows([make_record(task="hmm"), record])[record.id]
    assert (row["status"], row["error"], row["rank"], row["entropy_mae_1"]) == ("failed", 'it said, "no"', "", "")
    check_numbers(record, row, has_score=False)


def test_steps_to_an_error_are_a_records_own():
    looks = [Look(30, 1.0, 1.0, 0.2), Look(60, 2.0, 1.0, 0.09), Look(90, 3.0, 1.0, 0.001)]
    record = replace(make_record(), loss_curve=looks[:2])
    better = replace(make_record(seed=1), loss_curve=looks)
    found = rows([record, better])
    assert [found[r.id]["steps_to_0.1"] for r in (record, better)] == ["60", "60"]
    assert [found[r.id]["steps_to_0.03"] for r in (record, better)] == ["", "90"]


def test_task_parameters_and_tuning_are_named():
    tuned = make_record(tuning={"seeds": [8, 9], "steps": 5, "errors": {"0.02": [0.1]}})
    found = rows([make_record(size=30), tuned])
    assert {row["task"]: row["tuned"] for row in found.values()} == {"bijection size=30": "False", "bijection": "True"}


def test_columns_are_the_same_whatever_the_records():
    for made in ([], [make_record()], [make_record(task="hmm"), fail(make_record("mlp"))]):
        header, *_ = render(make_board(made)).splitlines()
        assert header.split(",") == columns()
    assert len(set(columns())) == len(columns())


def test_the_published_csv_has_each_published_record_with_its_numbers():
    records = read_all(ROOT / "leaderboard/runs")[0]
    text = (ROOT / "leaderboard/results.csv").read_text()
    published = {row["id"]: row for row in csv.DictReader(io.StringIO(text))}
    assert published.keys() == {record.id for record in records}
    for record in records:
        check_numbers(record, published[record.id], has_score=record.ok)
