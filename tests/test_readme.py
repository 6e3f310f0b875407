"""README's results: each sentence says what the ranking says."""

from bench.board.overview import make_board
from bench.board.readme import BEGIN, END, insert, sentence
from bench.board.rows import make_rankings
from tests.fixtures import UNIFORM, make_record, make_records


def said(*records):
    (found,) = make_rankings(records)
    return sentence(found)


def test_only_ranked_rows_are_counted():
    ranked = [*make_records("gru", [0.1] * 2), *make_records("lstm", [0.2] * 2)]
    guess = make_records("mlp", [0.3] * 2, kl=2 * UNIFORM["kl"])  # compared, no better than guessing: a dash
    other = make_records("mamba2", [0.05] * 2, steps=999)  # a dagger
    says = "`bijection`: `gru` (0.1000 [0.1000, 0.1000], 2 seeds) has the least error of 2 ranked rows."
    assert said(*ranked, *guess, *other) == says
    assert said(*make_records("gru", [0.1] * 2)).endswith("is the only ranked row.")
    assert said(*guess) == "`bijection`: no row is ranked yet."


def test_rows_that_are_level_are_named_and_many_are_counted():
    level = [record for arch in ("gru", "lstm", "mlp") for record in make_records(arch, [0.1, 0.2])]
    assert said(*level).endswith("level with it: `lstm`, `mlp`.")
    more = [record for arch in ("mamba2", "hybrid") for record in make_records(arch, [0.1, 0.2])]
    assert said(*level, *more).endswith(", 2 other rows.")


def test_a_row_with_less_kl_than_the_winner_is_named():
    first = make_records("gru", [0.1, 0.11], kl=0.1)
    kl_level = make_records("lstm", [0.3, 0.31], kl=0.1)
    assert said(*first, *kl_level).endswith("of 2 ranked rows.")
    ahead = make_records("lstm", [0.3, 0.31], kl=0.01)
    assert said(*first, *ahead).endswith("of 2 ranked rows; less KL than it: `lstm`.")


def test_tuned_seeds_are_said():
    search = {"seeds": [8, 9], "steps": 50, "errors": {"0.02": [0.1]}}
    assert "2 seeds, tuned)" in said(*make_records("gru", [0.1] * 2, tuning=search))


def test_the_results_replace_what_stands_between_the_marks():
    page = f"above\n{BEGIN}\nold\n{END}\nbelow\n"
    new = insert(page, make_board([make_record()]))
    assert new.startswith(f"above\n{BEGIN}\nHeadline track: preset smoke")
    assert new.endswith(f"\n{END}\nbelow\n")
    assert "old" not in new
    assert insert(new, make_board([make_record()])) == new
