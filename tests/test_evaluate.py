"""bench evaluate: a model that was trained elsewhere is scored, marked, shown and never ranked."""

import csv
import io
import json
from dataclasses import replace

import pytest

from bench import library, records
from bench.board import results, site
from bench.board.markdown import cost_table, overview_page, ranking_tables, task_page
from bench.board.overview import make_board
from bench.board.submissions import check_submission
from bench.check.verify import verify
from bench.claims.published import CLAIMS
from bench.claims.verdicts import judge
from bench.cli import main
from bench.config import UNKNOWN
from bench.records import BadRecord, parse
from tests.fixtures import make_record
from tests.test_board import cells

MODEL = """
import torch
from torch import nn


class Window(nn.Module):
    def __init__(self):
        super().__init__()
        self.scores = nn.Linear(10, 5)

    def forward(self, tokens, features):
        return torch.softmax(self.scores(features.float()) * 0.01, -1)


def load():
    torch.manual_seed(0)
    return Window()


def ahead():
    def model(tokens, features):
        pairs = torch.stack([features[:, i : i + 2].mean((1, 2)) for i in range(0, features.shape[1], 2)], 1)
        seen = pairs.repeat_interleave(2, 1)[:, : features.shape[1], None]
        return torch.softmax(seen * torch.arange(5.0), -1)
    return model


def strict():
    return Strict()


class Strict(nn.Module):
    def __init__(self):
        super().__init__()
        self.scores = nn.Linear(10, 5)

    def forward(self, tokens, features):
        return torch.softmax(self.scores(features) * 0.01, -1)


def endless():
    model = Window()
    model.max_length = "long"
    return model


def plain():
    return lambda tokens, features: torch.full((*tokens.shape, 5), 0.2)
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(MODEL)
    return tmp_path


def evaluate(*words):
    return main(["evaluate", "--task", "hmm", "--preset", "smoke", "--device", "cpu", *words])


def written(folder):
    return [records.read(path) for path in sorted(folder.rglob("*.json"))]


def refused(capsys, folder, *words):
    """The one line that says why; nothing was written."""
    before = {path for path in folder.rglob("*") if "__pycache__" not in path.parts}
    assert evaluate(*words) == 2
    said = capsys.readouterr()
    assert said.err.startswith("bench: ")
    assert said.err.count("\n") == 1
    assert "wrote" not in said.out
    assert {path for path in folder.rglob("*") if "__pycache__" not in path.parts} == before
    return said.err


def test_the_record_has_the_scores_and_null_for_what_is_unknown(mine, capsys):
    assert evaluate("--model", "./mine.py:load") == 0
    out = capsys.readouterr().out
    assert "hmm: preset smoke, trained elsewhere, cpu" in out
    assert "mine-load file=" in out
    assert "95 % intervals over 64 sequences" in out
    (record,) = written(mine / "results")
    assert (record.path.parent.name, record.parameters) == ("mine-load", 55)
    tree = json.loads((mine / "results" / record.path).read_text())
    assert not UNKNOWN.keys() & tree["config"].keys()
    assert tree["config"]["elsewhere"]["model"] == "mine.py:load"
    unknown = ("budget", "state_bytes", "train_flops", "tokens_per_second", "energy_joules", "weights")
    assert {tree[name] for name in unknown} == {None}
    assert set(tree["memory_bytes"].values()) == {tree["seconds"]["train"]} == {None}
    assert (tree["metrics"]["20"].keys(), tree["metrics"]["50"].keys()) == ({"all"}, {"all", "post"})


def test_the_record_has_the_numbers_of_the_library(mine):
    """On a model without parameters, of which nothing but the scores is known."""
    assert evaluate("--model", "mine.py:plain", "--horizons", "25", "--set", "sequences=32") == 0
    (record,) = written(mine / "results")
    assert record.parameters is None
    assert record.config.horizons == (20, 25)
    uniform = library.score(
        lambda t, f: 0.2 + 0 * t[..., None].expand(-1, -1, 5), "hmm", horizons=[25], preset="smoke", sequences=32
    )
    assert record.metrics["25"]["post"]["kl"] == pytest.approx(uniform[25].metrics["post"]["kl"].value)
    assert record.references["25"] == uniform[25].references
    assert record.by_position["20"] == uniform[20].by_position


def test_a_changed_file_is_another_record_and_the_same_file_the_same(mine):
    for _ in range(2):
        assert evaluate("--model", "mine.py:load") == 0
    assert len(written(mine / "results")) == 1
    (mine / "mine.py").write_text(MODEL.replace("manual_seed(0)", "manual_seed(1)"))
    assert evaluate("--model", "mine.py:load") == 0
    both = written(mine / "results")
    (ranking,) = make_board(both).rankings
    assert len({row.name for row in ranking.rows}) == 2
    assert [row.rank for row in ranking.rows] == [None, None]


def test_a_module_gets_features_in_the_type_of_its_weights(mine):
    assert evaluate("--model", "mine.py:strict") == 0


def test_files_beside_the_model_can_be_imported(mine):
    (mine / "deep").mkdir()
    (mine / "deep/weights.py").write_text("SCALE = 0.2")
    (mine / "deep/net.py").write_text(
        "import torch\nfrom weights import SCALE\n"
        "def load():\n    return lambda t, f: torch.full((*t.shape, 5), SCALE)\n"
    )
    assert evaluate("--model", "deep/net.py:load") == 0


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--model", "mine.py"], "--model takes FILE:function"),
        (["--model", "yours.py:load"], "no Python file yours.py"),
        (["--model", "mine.py:laod"], "no function in mine.py 'laod'. Did you mean 'load'?"),
        (["--model", "mine.py:load", "--horizons", "0"], "must be at least 1, not 0"),
        (["--model", "mine.py:load", "--horizons", "many"], "invalid int value: 'many'"),
        (["--model", "mine.py:load", "--task", "bijection", "--horizons", "30"], "no horizon 30: its longest is 20"),
        (["--model", "mine.py:load", "--task", "hm"], "no task 'hm'. Did you mean 'hmm'?"),
        (
            ["--model", "mine.py:load", "--task", "bijection"],
            "the model of mine.py:load, called with tokens [2, 39], f",
        ),
        (["--model", "mine.py:load", "--preset", "huge"], "no preset 'huge'"),
        (["--model", "mine.py:ahead"], "mine-ahead sees the future"),
        (["--model", "mine.py:endless"], "the model's max_length must be a whole number, not 'long'"),
        (["--model", "mine.py:load", "--set", "steps=5"], "no parameter of hmm 'steps'"),
        (["--model", "mine.py:load", "--set", "states=0"], "states"),
    ],
)
def test_a_mistake_in_the_command_is_one_line(mine, capsys, words, reason):
    assert reason in refused(capsys, mine, *words)


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("def load(:", "SyntaxError"),
        ("import no_such_package", "ModuleNotFoundError: No module named 'no_such_package' (bad.py, line 1)"),
        ("import sys\nsys.exit('no weights')", "bad.py failed: SystemExit: no weights"),
        ("def load():\n    return open('weights.pt')", "bad.py:load failed: FileNotFoundError"),
        ("def load():\n    return 3", "bad.py:load returns a int, not a model that can be called"),
        ("def load():\n    return lambda t, f: t / 0 * f.no", "AttributeError: 'Tensor' object has no attribute 'no'"),
        ("def load():\n    return lambda t, f: f[..., :4] * 0 + 0.25", "returns [2, 30, 4], where [sequences, pos"),
        ("def load():\n    return lambda t, f: f[..., :5] * 0 + 0.3", "probabilities sum to 1.5, not to 1"),
        ("def load():\n    return lambda t, f: f[..., :5] * 0 - 1", "a probability of -1: logits need a softmax first"),
    ],
)
def test_a_file_that_gives_no_predictions_is_refused_in_one_line(mine, capsys, code, reason):
    (mine / "bad.py").write_text(code)
    assert reason in refused(capsys, mine, "--model", "bad.py:load")


def test_a_file_that_takes_the_name_of_an_architecture_is_refused(mine, capsys):
    (mine / "mlp.py").write_text(MODEL.replace("def plain", "def pointwise"))
    assert "'mlp-pointwise' cannot be the name of a row" in refused(capsys, mine, "--model", "mlp.py:pointwise")


def test_a_model_too_short_for_the_training_horizon_is_refused(mine, capsys):
    (mine / "short.py").write_text(
        MODEL.replace("class Window(nn.Module):", "class Window(nn.Module):\n    max_length = 29")
    )
    assert "reads 29 positions, the training horizon has 30" in refused(capsys, mine, "--model", "short.py:load")


def make_elsewhere(name="mine-load", task="hmm", error=0.01, **settings):
    """As bench evaluate would write it."""
    base = make_record("transformer", task, 10, error, **settings)
    config = replace(base.config, arch=name, elsewhere={"model": "mine.py:load", "sha256": "ab" * 32}, **UNKNOWN)
    cost = dict.fromkeys(("budget", "parameters", "state_bytes", "train_flops", "tokens_per_second", "weights"))
    measured = {"loss_curve": [], "seconds": records.Seconds(eval=1.0), "memory_bytes": records.Memory()}
    return replace(base, id=config.id(), config=config, **cost, **measured)


def test_the_record_is_read_back_and_claims_no_training():
    record = make_elsewhere()
    tree = record.to_json()
    assert parse(json.dumps(tree)) == record
    for name in UNKNOWN:
        claimed = {**tree, "config": {**tree["config"], name: UNKNOWN[name]}}
        with pytest.raises(BadRecord, match=f"config.{name} is unknown of a model that was trained elsewhere"):
            parse(json.dumps(claimed))


def test_the_best_of_all_is_shown_with_its_mark_and_never_ranked():
    errors = {"transformer": 0.1, "mlp": 0.5}
    ours = [make_record(arch, "hmm", seed, error) for arch, error in errors.items() for seed in (10, 11)]
    board = make_board([*ours, make_elsewhere(error=0.001)])
    trained, elsewhere = sorted(board.rankings, key=lambda ranking: len(ranking.rows), reverse=True)
    assert [(row.arch, row.rank) for row in trained.rows] == [("transformer", 1), ("mlp", 2)]
    (row,) = elsewhere.rows
    assert (row.rank, row.place, row.p) == (None, "†", None)
    assert str(elsewhere.group) == "hmm: preset smoke, trained elsewhere, cpu"
    page = task_page("hmm", board.rankings, "README.md")
    assert "(trained elsewhere): scored by `bench evaluate`" in page
    assert "(trained elsewhere)" not in task_page("hmm", [trained], "README.md")
    _, shown = cells(ranking_tables(elsewhere)[0])
    assert shown["mine-load (trained elsewhere)"]["#"] == "†"
    assert "*window 16*" in shown
    _, costs = cells(cost_table(elsewhere))
    (cost,) = costs.values()
    assert {cost[name] for name in ("parameters", "state", "FLOPs", "seconds", "peak MiB")} == {"not measured"}
    assert (cost["steps x batch"], cost["lr"]) == ("unknown", "unknown")


def test_several_of_them_are_not_ranked_among_each_other():
    (ranking,) = make_board([make_elsewhere("a-load", error=0.1), make_elsewhere("b-load", error=0.2)]).rankings
    assert [(row.arch, row.place) for row in ranking.rows] == [("a-load", "†"), ("b-load", "†")]


@pytest.mark.parametrize("preset", ["smoke", "quick"])
def test_nothing_that_is_said_of_architectures_changes(preset):
    """Heat map, primitives, ladder, pools and claims: even for a model that bears the name of one of ours."""
    tasks = ("hmm", "bijection", "recall-64")
    ours = [make_record("transformer", task, 10, 0.1, preset=preset) for task in tasks]
    alone = make_board(ours)
    with_theirs = make_board([*ours, *(make_elsewhere("transformer", task, preset=preset) for task in tasks)])
    assert with_theirs.overviews == alone.overviews
    assert overview_page(with_theirs, tasks, True) == overview_page(alone, tasks, True)
    assert judge(CLAIMS, with_theirs.records) == judge(CLAIMS, alone.records)
    assert with_theirs.ladders == alone.ladders != ()
    assert with_theirs.pools == alone.pools


def test_every_page_takes_it(mine, capsys):
    assert evaluate("--model", "mine.py:load") == 0
    assert main(["board", "--csv", "all.csv", "--html", "site", "--figures"]) == 0  # alone
    assert main(["run", "--arch", "mlp-pointwise", "--task", "hmm", "--preset", "smoke", "--device", "cpu"]) == 0
    capsys.readouterr()
    assert main(["board", "--csv", "all.csv", "--html", "site", "--figures"]) == 0
    assert "(trained elsewhere)" in capsys.readouterr().out
    assert "mine-load (trained elsewhere)" in (mine / "results/hmm.md").read_text()
    rows = {row["arch"]: row for row in csv.DictReader((mine / "all.csv").open())}
    theirs = rows["mine-load"]
    assert (theirs["supervision"], theirs["horizon"], theirs["steps"]) == ("unknown", "20", "")
    assert theirs["rank"] in ("†", "-")
    assert rows["mlp-pointwise"]["steps"] == "12"
    (record,) = (record for record in written(mine / "results") if record.config.elsewhere)
    page = (mine / f"site/runs/{record.id}.html").read_text()
    assert '"mark":"trained elsewhere"' in page
    assert "bench evaluate --preset smoke --task hmm --device cpu --model mine.py:load --horizons 20 30 50" in page


def test_the_command_on_its_page_makes_the_record_again(mine):
    assert evaluate("--model", "mine.py:load", "--horizons", "25", "--set", "states=5", "sequences=32") == 0
    (first,) = written(mine / "results")
    (command,) = site.run_data(first, mine)["commands"]
    assert main([*command.split()[1:], "--out", "again"]) == 0
    (again,) = written(mine / "again")
    assert again.id == first.id
    assert again.metrics == first.metrics


def test_it_cannot_be_sent_verified_or_reported_on(mine, capsys):
    assert evaluate("--model", "mine.py:load") == 0
    (record,) = written(mine / "results")
    path = mine / "results" / record.path
    with pytest.raises(BadRecord, match="trained elsewhere"):
        check_submission(record)
    for rerun in (False, True):
        verdict = verify(path, rerun)
        assert (verdict.holds, verdict.how.split(":")[0]) == (None, "trained elsewhere")
    capsys.readouterr()
    assert main(["report", str(path)]) == 2
    assert "was trained elsewhere" in capsys.readouterr().err


def test_the_csv_of_the_fixtures_leaves_settings_empty():
    (row,) = csv.DictReader(io.StringIO(results.render(make_board([make_elsewhere()]))))
    assert {row[name] for name in results.SETTINGS if name in UNKNOWN} == {""}
    assert row["tuned"] == row["budget"] == ""
