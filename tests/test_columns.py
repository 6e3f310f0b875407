"""The columns of a ranking: one list, and every table has its own of them."""

import csv
import io

import pytest

from bench.board import columns as listed
from bench.board import results, site
from bench.board.columns import Column, columns
from bench.board.markdown import cost_table, ranking_tables
from bench.board.overview import make_board
from bench.board.terminal import ranking_table
from tests.fixtures import make_record, make_records


@pytest.fixture
def board():
    return make_board([*make_records("mlp", [0.1, 0.2], "hmm"), make_record("gru", "hmm", error=0.3)])


def test_a_column_that_is_listed_is_in_every_table_that_it_names(board, monkeypatch):
    """One file is touched: Markdown, terminal, site and CSV have it."""
    all_columns = listed._all
    new = Column(
        "loss", "last loss", ("ranking", "cost", "terminal", "site"),
        lambda row: f"<{row.records[0].loss_curve[-1].loss}>",
        value=lambda row: row.records[0].loss_curve[-1].loss,
        csv={"last_loss": lambda row: row.records[0].loss_curve[-1].loss},
        is_foreign=True,
    )  # fmt: skip
    monkeypatch.setattr(listed, "_all", lambda ranking: [*all_columns(ranking), new])
    monkeypatch.setitem(listed.CSV, "last_loss", new.csv["last_loss"])
    (ranking,) = board.rankings
    for text in (ranking_tables(ranking)[0], cost_table(ranking)):
        assert "last loss" in text
        assert r"\<1.0\>" in text  # a foreign text is escaped
    assert ranking_table(ranking).columns[-2].header == "last loss"
    data = site.site_data(board, [])["groups"][0]
    assert data["columns"][-1][:2] == ["loss", "last loss"]
    assert [(row["cells"][-1], row["keys"][-1]) for row in data["rows"]] == [("<1.0>", 1.0)] * 2
    rows = list(csv.DictReader(io.StringIO(results.render(board))))
    assert [row["last_loss"] for row in rows] == ["1.0"] * 3


def test_a_column_is_left_out_where_no_row_has_it(board):
    (ranking,) = board.rankings
    assert {"memory", "new", "p"} <= {column.key for column in columns(ranking)}
    (plain,) = make_board([make_record()]).rankings
    assert not {"memory", "new", "p", "settings", "joules"} & {column.key for column in columns(plain)}


def test_the_site_counts_runs_architectures_and_tasks_not_tables():
    board = make_board([make_record(), make_record(size=30), make_record("mlp", "hmm", seed=1)], [make_record(seed=2)])
    assert len(board.rankings) == 3
    assert site.site_data(board, [])["counts"] == {"run": 4, "architecture": 2, "task": 2}
