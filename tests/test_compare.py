"""The comparison of old tables with today's CSV: each cell is counted once, and a changed number is found."""

import pytest

from bench.board.overview import make_board
from leaderboard import compare as tool
from tests.fixtures import CONSTANT, UNIFORM, make_record, make_records

PAGE = f"""# Leaderboard

## At a glance: preset smoke, posterior supervision, cpu

| architecture   | hmm    |
|:---------------|-------:|
| transformer    | 0.1000 |

## hmm: preset smoke, posterior supervision, cpu

| # | architecture         | MAE K=20                | K=50 new | KL     | seeds | tokens |
|--:|:---------------------|------------------------:|---------:|-------:|------:|-------:|
|   | *window 4*           | 0.0750                  |          | 0.0250 |       |        |
| 1 | transformer          | 0.1000 [0.1000, 0.1000] | 0.2000   | 0.0100 | 2     | 9      |
| † | transformer lr\\=0.5 | 0.3000                  | 0.6000   | 0.0300 | 1     | 9      |
|   | *best constant*      | {CONSTANT["entropy_mae"]:.4f} |    |        |       |        |
|   | *uniform*            | {UNIFORM["entropy_mae"]:.4f} | | {UNIFORM["kl"]:.4f} |   |        |

| architecture | parameters | peak memory | 0.1 bits           | 0.01 bits   |
|:-------------|-----------:|------------:|-------------------:|------------:|
| transformer  | 19,000     | 512 MiB     | 12 steps, 8 s      | not reached |
"""


@pytest.fixture(scope="module")
def board():
    return make_board([*make_records("transformer", [0.1, 0.1], "hmm"), make_record(task="hmm", error=0.3, lr=0.5)])


def test_every_cell_is_equal_or_has_no_counterpart(board):
    found = tool.compare(PAGE, board)
    assert found.different == []
    assert found.equal == {"#": 2, "errors": 6, "seeds": 2, "reference MAE": 2, "reference KL": 1, "parameters": 1,
                           "peak memory": 1, "steps to": 2}  # fmt: skip
    assert found.missing == {"repeated": 1, "reference": 2, "tokens": 2}


@pytest.mark.parametrize(
    ("old", "new", "column"),
    [
        ("| 0.6000   |", "| 0.6001   |", "errors"),
        ("[0.1000, 0.1000]", "[0.0999, 0.1000]", "errors"),
        ("512 MiB", "513 MiB", "peak memory"),
        ("12 steps", "11 steps", "steps to"),
        ("| † |", "| 2 |", "#"),
        (f"{UNIFORM['kl']:.4f} |   |", "1.0000 |   |", "reference KL"),
        ("| transformer  | 19,000", "| lstm  | 19,000", "row"),
        ("## hmm: preset smoke", "## hmm: preset quick", "table"),
    ],
)
def test_a_changed_cell_is_found(board, old, new, column):
    assert PAGE.count(old) == 1
    found = tool.compare(PAGE.replace(old, new), board)
    assert column in {each[1] for each in found.different}
