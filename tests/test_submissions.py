"""Records from others: the good ones are shown and marked, the hostile ones refused by name with the reason."""

import json
from copy import deepcopy
from dataclasses import asdict, replace

import pytest

from bench import submissions
from bench.board import render
from bench.cli import main
from bench.config import compose
from bench.records import BadRecord, parse, read_all, write
from bench.run import run_one

COMMIT = "42420f52ddfd684eeaad0e37b99a61ab515720c7"


@pytest.fixture(scope="module")
def made():
    configs = [compose("smoke", arch, "hmm", 0, "cpu", {"steps": 2}) for arch in ("mlp-pointwise", "mlp")]
    source = {"commit": COMMIT, "dirty": False}
    return [{**json.loads(json.dumps(asdict(run_one(config)[0]))), **source} for config in configs]


@pytest.fixture
def sent(made):
    return deepcopy(made[1])


@pytest.fixture
def board(made, tmp_path, capsys, monkeypatch):
    """A leaderboard with one record of ours; files are added to it by name and content."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "runs", parse(made[0]), None)

    def add(**files):
        for name, content in files.items():
            (tmp_path / f"{name}.json").write_text(content if isinstance(content, str) else json.dumps(content))
        code = main(["board", "--runs", "runs", "--add", *(f"{name}.json" for name in files)])
        said = capsys.readouterr()
        return code, said.out, said.err, (tmp_path / "runs/leaderboard.md").read_text()

    return add


def test_a_good_record_is_added_and_marked(board, sent, tmp_path):
    code, out, err, table = board(good=sent)
    assert (code, err) == (0, "")
    path = f"runs/self-reported/hmm/mlp/{sent['id']}.json"
    assert f"added {path}: self-reported until verified" in out
    assert "| mlp steps=2 (self-reported) |" in table
    assert "| mlp-pointwise " in table
    assert "mlp-pointwise (self-reported)" not in table
    assert json.loads((tmp_path / path).read_text()) == sent
    assert main(["board", "--runs", "runs", "--check"]) == 0


def test_a_record_moved_to_its_place_loses_the_mark(board, sent, tmp_path):
    board(good=sent)
    place = tmp_path / f"runs/hmm/mlp/{sent['id']}.json"
    place.parent.mkdir()
    (tmp_path / f"runs/self-reported/hmm/mlp/{sent['id']}.json").rename(place)
    assert main(["board", "--runs", "runs"]) == 0
    table = (tmp_path / "runs/leaderboard.md").read_text()
    assert "(self-reported) |" not in table
    assert "| mlp steps=2  " in table


def put(data, path, value):
    *folders, last = path.split(".")
    for folder in folders:
        data = data[folder]
    data[last] = value


INJECTION = "<script>alert(1)</script>|x|\n# [a](b)"
HOSTILE = [
    ("id", "0" * 12, "does not belong to its config"),
    ("id", "../../../etc/passwd", "does not belong to its config"),
    ("config.steps", 3, "does not belong to its config"),
    ("config.arch", "../../../tmp/x", "config's arch '../../../tmp/x' is not a name"),
    ("config.arch", "/etc/x", "config's arch '/etc/x' is not a name"),
    ("config.arch", "..", "config's arch '..' is not a name"),
    ("config.arch", "a\x00b", "is not a name"),
    ("config.arch", INJECTION, "is not a name"),
    ("config.task", "../hmm", "config's task '../hmm' is not a name"),
    ("parameters", "many", "parameters has the wrong type (str)"),
    ("parameters", None, "0 parameters, budget"),
    ("parameters", 10**6, "1,000,000 parameters, budget"),
    ("metrics", [], "metrics has the wrong type (list)"),
    ("metrics.20", None, "metrics has nothing at the training horizon"),
    ("metrics.20.all.kl", True, "metrics.20.all.kl is not a number"),
    ("metrics.20.all.entropy_mae", -0.1, "metrics.20.all.entropy_mae is negative"),
    ("metrics.20.all", {}, "metrics at 20 has not every metric"),
    ("references", {}, "references are not at the config's horizons"),
    ("references.20", None, "references has nothing at the training horizon"),
    ("references.20.<b>x</b>", {}, "references.20 has a strange key '<b>x</b>'"),
    ("references.20.guess", {}, "references at 20 are not best constant, exact, uniform, window 1"),
    ("metrics.20.all.entropy_mae", 1e-9, "metrics at 20: entropy_mae of all is 1e-09, by position"),
    ("metrics.20.all.kl", 1e-9, "metrics at 20: kl of all is 1e-09, by position"),
    ("by_position.20", [1], "by_position at a horizon is not a table"),
    ("by_position.20.kl", "low", "by_position has a curve that is not a list of numbers"),
    ("by_position.20.h_model", [1.0], "by_position at 20 has not 20 numbers in each of h_bayes, h_model"),
    ("loss_curve", [{"step": 1, "seconds": "long"}], "loss_curve has a look without step, seconds, entropy_mae"),
    ("seconds", {}, "seconds is missing compile, eval, setup, train"),
    ("seconds.train", "fast", "seconds.train is not a number or null"),
    ("memory_bytes.resident", -1, "memory_bytes.resident is not a number or null"),
    ("platform", {}, "platform.name is not text"),
    ("platform.name", "x" * 1000, "platform.name has 1,000 characters, more than 300"),
    ("platform.deep", [[[[[[[[]]]]]]]], "platform.deep is nested too deeply"),
    ("commit", INJECTION, "commit is not a commit's hash"),
    ("dirty", True, "dirty: the code had changes that its commit does not have"),
    ("weights", None, "weights has no SHA-256"),
    ("status", "failed", "a failed run: there is nothing to verify"),
    ("schema", 2, "schema 2, expected 1"),
    ("rank", 1, "unknown rank"),
]


TORN = [
    (lambda text: text + " " * (1 << 24), "bytes, more than 16,777,216"),
    (lambda text: text[:500], "not readable as JSON"),
    (lambda text: "[" * 100_000, "not readable as JSON"),
    (lambda text: text.replace('"kl": ', '"kl": NaN, "x": ', 1), "NaN is not a number"),
    (lambda text: text.replace('"kl": ', '"kl": 1e999, "x": ', 1), "1e999 is not a number"),
    (lambda text: text.replace('"parameters": ', f'"parameters": 1{"0" * 4000}', 1), "is not a number"),
    (lambda text: text.replace('"status": ', '"status": "failed", "status": ', 1), "a key stands twice"),
]


def test_hostile_records_are_each_refused_by_name_and_the_good_one_beside_them_renders(board, sent):
    files, reasons = {}, {}
    for i, (path, value, reason) in enumerate(HOSTILE):
        forged = deepcopy(sent)
        put(forged, path, value)
        files[f"forged{i}"], reasons[f"forged{i}"] = forged, reason
    for i, (change, reason) in enumerate(TORN):
        files[f"torn{i}"], reasons[f"torn{i}"] = change(json.dumps(sent)), reason
    code, out, err, table = board(**files, good=sent)
    assert code == 1
    said = dict(line.removeprefix("bench: refused ").split(".json: ", 1) for line in err.splitlines())
    assert said.keys() == reasons.keys()
    assert [name for name, reason in reasons.items() if reason not in said[name]] == []
    assert out.count("added ") == 1
    assert "| mlp steps=2 (self-reported) |" in table
    assert "<script>" not in table


def test_sizes_that_would_stall_the_check_are_refused_before_it(made):
    """The id is right and the config is not: only then does the check get to sizes."""
    for name, value in (("layers", 10**9), ("width", 10**12), ("sequences", 10**12)):
        config = compose("smoke", "mlp", "hmm", 0, "cpu", {"steps": 2})
        forged = {**deepcopy(made[1]), "config": {**config.to_json(), name: value}}
        forged["id"] = submissions.parse_config(forged["config"]).id()
        with pytest.raises(BadRecord, match=f"config's {name} is {value}, more than"):
            submissions.check_submission(parse(forged))


def test_fewer_sequences_than_the_preset_asks_for_are_refused(made):
    config = compose("smoke", "mlp", "hmm", 0, "cpu", {"steps": 2, "sequences": 63})
    forged = {**deepcopy(made[1]), "config": config.to_json(), "id": config.id()}
    with pytest.raises(BadRecord, match="scored on 63 sequences, its preset on 64"):
        submissions.check_submission(parse(forged))


def test_a_config_that_bench_run_would_refuse_is_refused(made):
    for name, value, reason in (
        ("preset", INJECTION, "no preset '<script>"),
        ("device", INJECTION, "config's device is '<script>"),
        ("supervision", "both", "supervision must be one of"),
        ("arch", "oracle", "no architecture 'oracle'"),
        ("horizons", [30, 50], "leave out the training horizon"),
        ("heads", 0, "heads must be at least 1"),
        ("task_params", {"size": [1]}, "config's size is not a plain value"),
        ("task_params", {"colour": 1}, "config is not valid"),
    ):
        forged = {**deepcopy(made[1]), "config": {**made[1]["config"], name: value}}
        if name == "horizons":
            for tree in ("metrics", "references", "by_position"):
                forged[tree] = {k: forged[tree][k] for k in ("30", "50")}
        forged["id"] = submissions.parse_config(forged["config"]).id()
        with pytest.raises(BadRecord, match=reason) as refusal:
            submissions.check_submission(parse(forged))
        assert "\n" not in str(refusal.value)


def test_a_run_is_added_once(board, sent, made):
    assert "bad.json: the same run as good.json" in board(good=sent, bad=sent)[2]
    assert "good.json: the same run as one that was sent before" in board(good=sent)[2]
    assert "ours.json: the same run as one of the records" in board(ours=made[0])[2]


def test_text_that_passes_is_shown_as_text(board, sent):
    sent["platform"]["name"] = "<img src=x onerror=1> | **b** https://x.example www.x.example a_b_ `c`"
    code, _, _, table = board(good=sent)
    assert code == 0
    shown = "\\<img src=x onerror=1\\> \\| \\*\\*b\\*\\* https\\://x.example www\\.x.example a\\_b\\_ \\`c\\`"
    assert shown in table
    for part in table.split("\n\n"):  # no row of any table has gained a column
        rows = [line for line in part.splitlines() if line.startswith("|")]
        assert len({line.replace("\\|", "").count("|") for line in rows}) <= 1


def test_a_pull_request_is_held_to_the_same_check(board, sent, tmp_path, capsys):
    board(good=sent)
    folder = tmp_path / "runs/self-reported/hmm/mlp"
    whole = (folder / f"{sent['id']}.json").read_text()
    (folder / f"{sent['id']}.json").write_text(whole.replace(COMMIT, "x" * 40))
    (folder / "copy.json").write_text(whole)
    assert main(["board", "--runs", "runs"]) == 1
    err = capsys.readouterr().err
    assert "commit is not a commit's hash" in err
    assert f"copy.json: it belongs in self-reported/hmm/mlp/{sent['id']}.json" in err


def test_a_self_reported_seed_never_enters_the_mean_of_verified_ones(made):
    ours, theirs = (parse({**deepcopy(made[1])}) for _ in range(2))
    forged = compose("smoke", "mlp", "hmm", 1, "cpu", {"steps": 2})
    theirs = parse({**deepcopy(made[1]), "id": forged.id(), "config": forged.to_json()})
    theirs.references["20"]["uniform"]["all"]["entropy_mae"] = 99.0
    table = render([ours], [theirs])
    assert "| mlp steps=2  " in table
    assert "| mlp steps=2 (self-reported) |" in table
    assert "99.0" not in table
    rows = [line for line in table.splitlines() if line.split("|")[2:3] and "mlp steps=2" in line.split("|")[2]]
    assert len(rows) == 2
    assert not any("[" in line for line in rows)  # two seeds would have an interval


def test_whatever_a_leaf_is_changed_to_it_is_refused_or_renders(made, monkeypatch):
    """Every value of a record, one at a time, against what JSON can say. The config stays, and is not checked again."""
    monkeypatch.setattr(submissions, "_check_config", lambda config: None)
    monkeypatch.setattr("bench.config.RunConfig.budget", lambda config: made[1]["budget"])

    def leaves(tree, path=()):
        if isinstance(tree, dict) and tree:
            for key in tree:
                yield (*path, key)
                yield from leaves(tree[key], (*path, key))

    values = (None, True, -1, 10**18, 1e300, "", INJECTION, [], {}, [INJECTION], {"a": {}})
    refused = shown = 0
    for i, path in enumerate(leaves(made[1])):
        if path[0] == "config":  # no change of it passes: the id would not fit
            continue
        for value in (values[i % len(values)], values[(i + 5) % len(values)]):
            forged = deepcopy(made[1])
            place = forged
            for key in path[:-1]:
                place = place[key]
            place[path[-1]] = value
            try:
                record = parse(forged)
                submissions.check_submission(record)
            except BadRecord:
                refused += 1
                continue
            assert "<script>" not in render([], [record])
            shown += 1
    assert refused > shown > 0


@pytest.mark.parametrize(
    ("tuning", "reason"),
    [
        ({"x": 1}, "tuning is not a search of ours"),
        ({"seed": 1, "steps": "many", "errors": {}}, "tuning.steps is not a whole number"),
        ({"seed": 1, "steps": 3, "errors": [1]}, "tuning.errors is not a table"),
    ],
)
def test_a_search_that_is_not_ours_is_refused(made, tuning, reason):
    config = replace(compose("smoke", "mlp", "hmm", 0, "cpu", {"steps": 2}), tuning=tuning)
    forged = parse({**deepcopy(made[1]), "id": config.id(), "config": config.to_json()})
    with pytest.raises(BadRecord, match=reason):
        submissions.check_submission(forged)


def test_the_records_of_others_are_no_records_of_ours(board, sent, tmp_path):
    board(good=sent)
    assert len(read_all(tmp_path / "runs")[0]) == 1


def test_a_file_that_is_not_there_is_a_mistake_in_the_command(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    assert main(["board", "--runs", "runs", "--add", "nothere.json"]) == 2
    assert "bench: --add nothere.json: no such file" in capsys.readouterr().err
    assert list(tmp_path.rglob("*")) == [tmp_path / "runs"]
