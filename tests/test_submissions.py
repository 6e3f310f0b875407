"""Records from others: the good ones are shown and marked, the hostile ones refused by name with the reason."""

import json
import re
from copy import deepcopy
from dataclasses import replace

import pytest

from bench.board import submissions
from bench.board.markdown import pages
from bench.board.overview import make_board
from bench.cli import main
from bench.config import compose
from bench.records import BadRecord, parse, read_all, write
from bench.run.run import run_one
from bench.seeds import PUBLISHED_FROM

COMMIT = "42420f52ddfd684eeaad0e37b99a61ab515720c7"


@pytest.fixture(scope="module")
def made():
    configs = [compose("smoke", arch, "hmm", PUBLISHED_FROM, "cpu", {"steps": 2}) for arch in ("mlp-pointwise", "mlp")]
    return [replace(run_one(config)[0], commit=COMMIT, dirty=False).to_json() for config in configs]


def record_of(data, **changes):
    return parse(json.dumps({**data, **changes}))


def with_config(data, config):
    """The same record under another config, with the id to match."""
    return record_of(data, id=config.id(), config=config.to_json())


def task_page(ours, theirs):
    return pages(make_board(ours, theirs), "leaderboard.md", published=False)["hmm.md"]


def rows(page):
    """The rows of the first table of a page by architecture, each as a dict by column."""
    lines = next(part for part in page.split("\n\n") if part.startswith("|")).splitlines()
    header, _, *cells = [[cell.strip() for cell in line[1:-1].split(" |")] for line in lines]
    return {row[1]: dict(zip(header, row, strict=True)) for row in cells}


@pytest.fixture
def sent(made):
    return deepcopy(made[1])


@pytest.fixture
def board(made, tmp_path, capsys, monkeypatch):
    """A leaderboard with one record of ours; files are added to it by name and content."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "runs", record_of(made[0]), None)

    def add(**files):
        for name, content in files.items():
            (tmp_path / f"{name}.json").write_text(content if isinstance(content, str) else json.dumps(content))
        code = main(["board", "--runs", "runs", "--add", *(f"{name}.json" for name in files)])
        said = capsys.readouterr()
        return code, said.out, said.err, (tmp_path / "runs/hmm.md").read_text()

    return add


def test_a_good_record_is_added_and_marked(board, sent, tmp_path):
    code, out, err, page = board(good=sent)
    assert (code, err) == (0, "")
    path = f"runs/self-reported/hmm/mlp/{sent['id']}.json"
    assert f"added {path}: self-reported until verified" in out
    assert {"mlp (self-reported)", "mlp-pointwise"} <= rows(page).keys()
    assert "| mlp steps=2 (self-reported) |" in page  # in the table of costs
    assert "mlp-pointwise steps=2 (self-reported)" not in page
    assert json.loads((tmp_path / path).read_text()) == sent
    assert main(["board", "--runs", "runs", "--check"]) == 0


def test_a_record_moved_to_its_place_loses_the_mark(board, sent, tmp_path):
    board(good=sent)
    place = tmp_path / f"runs/hmm/mlp/{sent['id']}.json"
    place.parent.mkdir()
    (tmp_path / f"runs/self-reported/hmm/mlp/{sent['id']}.json").rename(place)
    assert main(["board", "--runs", "runs"]) == 0
    page = (tmp_path / "runs/hmm.md").read_text()
    assert "(self-reported)" not in page
    assert {"mlp", "mlp-pointwise"} <= rows(page).keys()


def test_what_an_honest_run_does_not_know_is_no_reason_to_refuse_it(board, sent, tmp_path):
    """An image that was built without COMMIT, and operations, which are counted on the CPU."""
    code, _, err, page = board(good={**sent, "commit": None, "dirty": None, "train_flops": None})
    assert (code, err) == (0, "")
    assert "mlp (self-reported)" in rows(page)
    assert main(["board", "--runs", "runs", "--out", "all/board.md", "--html", "site", "--figures"]) == 0


def put(data, path, value):
    *folders, last = path
    for folder in folders:
        data = data[folder]
    data[last] = value


INJECTION = "<script>alert(1)</script>|x|\n# [a](b)"
HOSTILE = [
    ("id", "0" * 12, "does not belong to its config"),
    ("id", "../../../etc/passwd", "does not belong to its config"),
    ("config.steps", 3, "does not belong to its config"),
    ("config.arch", "../../../tmp/x", "config.arch '../../../tmp/x' is not a name"),
    ("config.arch", "/etc/x", "config.arch '/etc/x' is not a name"),
    ("config.arch", "..", "config.arch '..' is not a name"),
    ("config.arch", "a\x00b", "is not a name"),
    ("config.arch", INJECTION, "is not a name"),
    ("config.task", "../hmm", "config.task '../hmm' is not a name"),
    ("parameters", "many", "parameters has the wrong type (str)"),
    ("parameters", None, "0 parameters, budget"),
    ("parameters", 10**6, "1,000,000 parameters, budget"),
    ("metrics", [], "metrics has the wrong type (list)"),
    ("metrics.20", None, "metrics has nothing at the training horizon"),
    ("metrics.20.all.kl", True, "metrics.20.all.kl has the wrong type (bool)"),
    ("metrics.20.all.entropy_mae", -0.1, "metrics.20.all.entropy_mae is negative"),
    ("metrics.20.all", {}, "metrics at 20 lacks entropy_curve_mae, entropy_mae, kl"),
    ("references", {}, "references are not at the config's horizons"),
    ("references.20", None, "references has nothing at the training horizon"),
    ("references.20.<b>x</b>", {}, "references.20 has a strange key '<b>x</b>'"),
    ("references.20.guess", {}, "references at 20 are not best constant, exact, uniform, window 1"),
    ("metrics.20.all.entropy_mae", 1e-9, "metrics at 20: entropy_mae of all is 1e-09, by position"),
    ("metrics.20.all.kl", 1e-9, "metrics at 20: kl of all is 1e-09, by position"),
    ("by_position.20", [1], "by_position.20 has the wrong type (list)"),
    ("by_position.20.kl", "low", "by_position.20.kl has the wrong type (str)"),
    ("by_position.20.h_model", [1.0], "by_position at 20 has not 20 numbers in each of h_bayes, h_model"),
    ("loss_curve", [{"step": 1, "seconds": "long"}], "loss_curve.0.seconds has the wrong type (str)"),
    ("seconds", {}, "seconds of setup, train or eval are missing"),
    ("seconds.train", "fast", "seconds.train has the wrong type (str)"),
    ("memory_bytes.resident", -1, "memory_bytes.resident must be at least 0, not -1"),
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
    (lambda text: text.replace('"kl": ', '"kl": NaN, "x": ', 1), "metrics.20.all.kl must be a finite number, not nan"),
    (
        lambda text: text.replace('"kl": ', '"kl": 1e999, "x": ', 1),
        "metrics.20.all.kl must be a finite number, not inf",
    ),
    (
        lambda text: text.replace('"parameters": ', f'"parameters": 1{"0" * 5000}', 1),
        "not readable as JSON (number out of range",
    ),
    (
        lambda text: text.replace('"platform": {', '"platform": {"x": NaN, ', 1),
        "platform has a number that is not finite",
    ),
    (lambda text: text.replace('"status": ', '"status": "failed", "status": ', 1), "a key occurs twice"),
]


def test_a_record_older_than_a_metric_is_accepted_without_it(sent):
    """Adding a metric must not drop the records that others sent before."""
    trees = [*sent["metrics"].values(), *(tree for at in sent["references"].values() for tree in at.values())]
    for part in (part for tree in trees if tree for part in tree.values()):
        del part["tv"], part["nll_gap"]
    old = record_of(sent)
    submissions.check_submission(old)
    page = task_page([], [old])
    assert rows(page)["mlp (self-reported)"]["KL"]


def test_hostile_records_are_each_refused_by_name_and_the_good_one_beside_them_renders(board, sent):
    files, reasons = {}, {}
    for i, (path, value, reason) in enumerate(HOSTILE):
        forged = deepcopy(sent)
        put(forged, path.split("."), value)
        files[f"forged{i}"], reasons[f"forged{i}"] = forged, reason
    for i, (change, reason) in enumerate(TORN):
        files[f"torn{i}"], reasons[f"torn{i}"] = change(json.dumps(sent)), reason
    code, out, err, page = board(**files, good=sent)
    assert code == 1
    said = dict(line.removeprefix("bench: refused ").split(".json: ", 1) for line in err.splitlines())
    assert said.keys() == reasons.keys()
    assert [name for name, reason in reasons.items() if reason not in said[name]] == []
    assert out.count("added ") == 1
    assert {"mlp (self-reported)", "mlp-pointwise"} <= rows(page).keys()
    assert "<script>" not in page


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("layers", 10**9, "config.layers must be at most 256, not 1000000000"),
        ("width", 10**12, "config.width must be at most 16384"),
        ("sequences", 10**12, "config.sequences must be at most 10000000"),
        ("horizons", [20, 5000], "config's horizons reach beyond 4,096"),
        ("horizons", list(range(1, 21)), "config has 20 horizons, more than 16"),
        ("task_params", {"states": 10**6}, "config's states is too large"),
    ],
)
def test_sizes_that_would_stall_the_check_are_refused_before_it(made, name, value, reason):
    """The id is right and the config is not: only then does the check get to sizes."""
    data = {**made[1], **{tree: scored_at(made[1][tree], value) for tree in SCORED if name == "horizons"}}
    config = replace(record_of(made[1]).config, **{name: value})
    with pytest.raises(BadRecord, match=re.escape(reason)):
        submissions.check_submission(with_config(data, config))


SCORED = ("metrics", "references", "by_position")


def scored_at(tree, horizons):
    """What was measured at 20, and nothing elsewhere."""
    return {str(k): tree["20"] if k == 20 else None for k in horizons}


def test_fewer_sequences_than_the_preset_asks_for_are_refused(made):
    config = compose("smoke", "mlp", "hmm", PUBLISHED_FROM, "cpu", {"steps": 2, "sequences": 63})
    with pytest.raises(BadRecord, match="scored on 63 sequences, its preset on 64"):
        submissions.check_submission(with_config(made[1], config))


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("preset", INJECTION, "no preset '<script>"),
        ("device", INJECTION, "config's device is '<script>"),
        ("supervision", "both", "supervision must be one of"),
        ("arch", "oracle", "no architecture 'oracle'"),
        ("horizons", [30, 50], "leave out the training horizon"),
        ("heads", 0, "config.heads must be at least 1"),
        ("task_params", {"size": [1]}, "config's size is not a plain value"),
        ("task_params", {"colour": 1}, "config is not valid"),
    ],
)
def test_a_config_that_bench_run_would_refuse_is_refused(made, name, value, reason):
    data = deepcopy(made[1])
    if name == "horizons":
        data |= {tree: {k: data[tree][k] for k in ("30", "50")} for tree in SCORED}
    config = replace(record_of(made[1]).config, **{name: value})
    with pytest.raises(BadRecord, match=reason) as refusal:
        submissions.check_submission(with_config(data, config))
    assert "\n" not in str(refusal.value)


def test_a_run_is_added_once(board, sent, made):
    same = "the same run as a record that is here"
    assert f"bad.json: {same}" in board(good=sent, bad=sent)[2]
    assert f"good.json: {same}" in board(good=sent)[2]
    assert f"ours.json: {same}" in board(ours=made[0])[2]


def test_text_that_passes_is_shown_as_text(board, sent):
    sent["platform"]["name"] = "<img src=x onerror=1> | **b** https://x.example www.x.example a_b_ `c`"
    code, _, _, page = board(good=sent)
    assert code == 0
    shown = "\\<img src=x onerror=1\\> \\| \\*\\*b\\*\\* https\\://x.example www\\.x.example a\\_b\\_ \\`c\\`"
    assert shown in page
    for part in page.split("\n\n"):  # no row of any table has gained a column
        lines = [line for line in part.splitlines() if line.startswith("|")]
        assert len({line.replace("\\|", "").count("|") for line in lines}) <= 1


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
    ours = record_of(made[1])
    theirs = with_config(made[1], replace(ours.config, seed=PUBLISHED_FROM + 1))
    theirs.references["20"]["uniform"]["all"]["entropy_mae"] = 99.0
    found = rows(task_page([ours], [theirs]))
    assert found["mlp"]["seeds"] == found["mlp (self-reported)"]["seeds"] == "1"
    assert float(found["*uniform*"]["MAE K=20"]) < 3.0


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
            put(forged, path, value)
            try:
                record = record_of(forged)
                submissions.check_submission(record)
            except BadRecord:
                refused += 1
                continue
            assert "<script>" not in task_page([], [record])
            shown += 1
    assert refused > shown > 0


@pytest.mark.parametrize(
    ("tuning", "reason"),
    [
        ({"x": 1}, "tuning is not a search of ours"),
        ({"seeds": 1, "steps": 3, "errors": {}}, "tuning.seeds is not a list"),
        ({"seeds": [1], "steps": "many", "errors": {}}, "tuning.steps is not a whole number"),
        ({"seeds": [1], "steps": 3, "errors": [1]}, "tuning.errors is not a table"),
        ({"seeds": [8], "steps": 3, "errors": {"0.02": 0.1}}, "tuning.errors are not lists of numbers"),
        *(
            (
                {"seeds": [8, seed], "steps": 3, "errors": {"0.02": [0.1]}},
                f"its search used seeds that are not below {PUBLISHED_FROM}",
            )
            for seed in (PUBLISHED_FROM, PUBLISHED_FROM + 7, "8")
        ),
    ],
)
def test_a_search_that_is_not_ours_is_refused(made, tuning, reason):
    config = replace(record_of(made[1]).config, tuning=tuning)
    with pytest.raises(BadRecord, match=reason):
        submissions.check_submission(with_config(made[1], config))


def test_a_seed_of_recipe_work_is_refused(made):
    config = replace(record_of(made[1]).config, seed=PUBLISHED_FROM - 1)
    with pytest.raises(BadRecord, match="seed 9: seeds below 10 are for work on recipes"):
        submissions.check_submission(with_config(made[1], config))


def test_the_records_of_others_are_no_records_of_ours(board, sent, tmp_path):
    board(good=sent)
    assert len(read_all(tmp_path / "runs")[0]) == 1


def test_a_file_that_is_not_there_is_a_mistake_in_the_command(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    assert main(["board", "--runs", "runs", "--add", "nothere.json"]) == 2
    assert "bench: --add nothere.json: no such file" in capsys.readouterr().err
    assert list(tmp_path.rglob("*")) == [tmp_path / "runs"]
