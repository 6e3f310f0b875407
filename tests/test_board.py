"""The leaderboard: ranked rightly, mixed never, safe whatever a record says."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from bench.board.markdown import cost_table, overview_page, pages, ranking_tables, task_page
from bench.board.overview import make_board
from bench.board.rows import group_seeds, make_rankings
from bench.board.shares import HELD, PARTLY
from bench.presets import PRESETS
from bench.records import Memory, parse, read_all
from bench.text import plain
from tasks.base import TASKS
from tests.fixtures import CONSTANT, UNIFORM, certain, change, fail, make_record, make_records

ROOT = Path(__file__).resolve().parent.parent
SEARCH = {"seeds": [8, 9], "steps": 50, "errors": {"0.01": [0.2], "0.02": [0.1, 0.1], "0.04": [None]}}


def ranking(*records):
    (found,) = make_rankings(records)
    return found


def ranks(*records):
    return {row.name: row.place for row in ranking(*records).rows}


def cells(text):
    """The header of the first Markdown table in a text, and its rows by the name of the architecture."""
    first = re.search(r"^\|.*?(?=\n\n|\Z)", text, re.MULTILINE | re.DOTALL)[0]
    header, _, *rows = [[cell.strip() for cell in line[1:-1].split("|")] for line in first.splitlines()]
    return header, {row[header.index("architecture")]: dict(zip(header, row, strict=True)) for row in rows}


def ranking_table(found):
    return ranking_tables(found)[0]


def page(*records):
    board = make_board(records)
    return overview_page(board, [found.task for found in board.rankings], published=False)


def test_rows_are_ranked_by_error_with_references_in_place():
    found = ranking(*make_records("transformer", [0.3, 0.31], "hmm"), *make_records("mlp", [0.1, 0.11], "hmm"))
    header, rows = cells(ranking_table(found))
    errors = [float(row["MAE K=20"].split()[0]) for row in rows.values()]
    assert errors == sorted(errors)
    assert next(iter(rows)) == "*exact*"
    assert {"*uniform*", "*best constant*", "*window 1*", "*window 16*"} <= rows.keys()
    assert (rows["mlp"]["#"], rows["transformer"]["#"], rows["*exact*"]["#"]) == ("1", "2", "")
    constant = rows["*best constant*"]
    assert constant["KL"] == ""  # it is the best constant by MAE, and by nothing else
    assert float(constant["MAE K=20"]) == CONSTANT["entropy_mae"]
    assert header == ["#", "architecture", "MAE K=20", "KL", "new to K=50", "seeds", "p"]


def test_a_row_that_knows_no_more_than_the_uniform_predictor_has_no_rank():
    """Where H_Bayes follows from the position alone, a predictor that reads nothing can have every entropy right."""
    guessed = make_records("mlp", [0.0, 0.0], kl=1.01 * UNIFORM["kl"])
    learned = make_records("transformer", [0.1, 0.2], kl=0.1)
    assert ranks(*guessed, *learned) == {"mlp": "-", "transformer": "1"}
    (overview,) = make_board([*guessed, *learned]).overviews
    assert overview.verdicts["mlp"]["accumulation"].leaning == "no"


def test_an_interval_comes_from_seeds_and_only_from_seeds():
    both = ranking(*make_records("transformer", [0.1, 0.12]), *make_records("mlp", [0.2]))
    _, rows = cells(ranking_table(both))
    assert re.fullmatch(r"0\.1100 \[0\.\d{4}, 0\.\d{4}\]", rows["transformer"]["MAE K=20"])
    assert "[" not in rows["mlp"]["MAE K=20"] + rows["*uniform*"]["MAE K=20"]
    assert [row.interval is None for row in both.rows] == [False, True]


def test_effective_memories_are_a_short_table_of_the_rows_that_compare():
    made = [make_record(task="hmm", error=0.3), make_record("gru", "hmm", error=0.1, steps=999)]
    text = task_page("hmm", [ranking(*made)], "README.md").split("Effective memory")[1]
    header, rows = cells(text)
    assert header == ["architecture", "memory"]
    assert rows.keys() == {"transformer"}
    assert rows["transformer"]["memory"] == str(ranking(*made).rows[1].memory)


def test_an_unreadable_horizon_is_not_a_number():
    found = ranking(make_record(task="hmm", error=0.1), make_record("mlp", "hmm", error=0.3))
    _, rows = cells(ranking_table(found))
    assert rows["mlp"]["new to K=50"] == "n/a"
    assert rows["transformer"]["new to K=50"] == "0.2000"
    assert found.rows[1].scores.longer == {30: None, 50: None}
    ends = ranking(make_record(task="bijection"))
    assert ends.longer == ()  # the task itself ends at 20
    assert not any("new" in name for name in cells(ranking_table(ends))[0])


def test_presets_tracks_and_devices_are_never_mixed():
    first = make_record()
    changes = ({"preset": "paper"}, {"supervision": "sampled"}, {"device": "cuda"}, {"task": "hmm"})
    assert len(make_rankings([first, *(change(first, **each) for each in changes)])) == 5


def test_a_setting_that_differs_gets_a_row_of_its_own_and_a_name():
    a, b = make_record(), make_record(lr=0.5)
    assert {row.name for row in ranking(a, b).rows} == {"transformer", "transformer lr=0.5"}
    assert ranking(b).rows[0].settings == ("lr=0.5",)  # alone, too: it is not the preset's
    assert cells(ranking_table(ranking(b)))[1]["transformer"]["settings"] == "lr=0.5"


def test_rows_whose_intervals_overlap_share_a_rank():
    rows = ranking(
        *make_records("transformer", [0.10, 0.12, 0.14]),
        *make_records("mlp", [0.11, 0.13, 0.15]),
        *make_records("mlp-pointwise", [0.50, 0.51, 0.52]),
    ).rows
    assert [(row.arch, row.rank) for row in rows] == [("transformer", 1), ("mlp", 1), ("mlp-pointwise", 3)]
    assert [row.p for row in rows] == [None, 0.5, 0.5]  # three seeds can say no more than that


def test_p_compares_ranked_rows_only():
    """Between two ranked rows lie one with other settings and one that guesses: p skips both, and they have none."""
    found = ranking(
        *make_records("transformer", [0.1, 0.2, 0.3]),
        *make_records("lstm", [0.3, 0.2, 0.1], steps=999),
        *make_records("mlp", [0.2, 0.2, 0.2], kl=2 * UNIFORM["kl"]),
        *make_records("gru", [0.2, 0.3, 0.4]),
    )
    assert {row.name: (row.place, row.p) for row in found.rows} == {
        "transformer": ("1", None),
        "lstm steps=999": ("†", None),
        "mlp": ("-", None),
        "gru": ("1", 0.25),  # against the transformer, which is better on every seed
    }
    assert [row["p"] for row in cells(ranking_table(found))[1].values() if row["p"]] == ["0.25"]


def test_a_second_table_says_what_each_row_cost():
    first = make_record(error=0.1)
    found = ranking(first, make_record("mlp", error=0.2, tuning=SEARCH))
    _, rows = cells(cost_table(found))
    assert rows["transformer"]["lr"] == "0.02"
    assert rows["mlp tuned"]["lr"] == "0.02"
    assert [rows[arch]["search: runs, FLOPs"] for arch in ("mlp tuned", "transformer")] == ["4, 2.40e+13", ""]
    assert rows["transformer"]["parameters"] == f"{first.parameters:,}"
    assert rows["transformer"]["state"] == f"{first.state_bytes:,}"
    assert rows["transformer"]["steps x batch"] == "12 x 16"
    assert rows["transformer"]["FLOPs"] == "6.00e+12"
    assert rows["transformer"]["seconds"] == f"{first.seconds.total:.0f}"
    assert rows["transformer"]["peak MiB"] == "512"
    assert f"Parameter budget {first.budget:,}" in task_page("bijection", [found], "README.md")


def test_tuned_and_untuned_runs_of_one_architecture_are_told_apart():
    both = ranking(make_record("mlp", error=0.1), make_record("mlp", error=0.2, tuning=SEARCH))
    assert [row.name for row in both.rows] == ["mlp", "mlp tuned"]
    alone = ranking(make_record("lstm", error=0.2, tuning=SEARCH))
    assert [row.settings for row in alone.rows] == [("tuned",)]  # whatever the others are


def test_recipe_seeds_are_shown_and_never_ranked():
    old = [make_record(arch, seed=seed, error=e) for arch, e in (("mlp", 0.1), ("gru", 0.3)) for seed in (0, 1)]
    alone = ranking(*old)
    assert {row.name: row.place for row in alone.rows} == {"mlp°": "†", "gru°": "†"}
    assert alone.why_unranked.startswith("Not ranked yet: every row has recipe seeds")
    board = make_board(old)
    assert alone.why_unranked in pages(board, "README.md", published=False)["bijection.md"]
    assert board.headline.best("bijection") is None
    assert board.headline.verdicts["mlp"]["accumulation"].word == "not measured"
    both = ranking(*old, *make_records("mlp", [0.9, 0.9]))
    ranked, said, others = ranking_tables(both)
    assert [name for name in cells(ranked)[1] if "*" not in name] == ["mlp"]
    assert "not ranked (†)" in said
    assert {name: row["seeds"] for name, row in cells(others)[1].items()} == {"mlp": "2°", "gru": "2°"}
    assert {row.name: row.rank for row in both.rows} == {"mlp°": None, "gru°": None, "mlp": 1}
    assert both.why_unranked == ""
    others = [make_record(arch, seed=seed, steps=999) for arch in ("mlp", "gru") for seed in (0, 1)]
    assert [row.rank for row in ranking(*others).rows] == [None, None]  # nor among themselves


def test_where_every_row_has_one_seed_nothing_is_ranked():
    single = [make_record("mlp", error=0.1), make_record("gru", error=0.9)]
    found = ranking(*single)
    assert [(row.place, row.compares) for row in found.rows] == [("†", True)] * 2
    assert found.why_unranked == "Not ranked yet: every row that compares has a single seed."
    assert ranks(*single, make_record("gru", seed=11, error=0.9)) == {"mlp": "1", "gru": "2"}


def test_an_architecture_is_ranked_once_and_tuned_where_two_are():
    def tuned(arch, errors, chosen=0.02):
        search = {"seeds": [8, 9], "steps": 12, "errors": {f"{chosen:g}": [0.1, 0.1]}}
        return make_records(arch, errors, tuning=search, lr=chosen)

    plain = [r for arch in ("mlp", "gru", "lstm") for r in make_records(arch, [0.3, 0.3])]
    one = ranking(*plain, *tuned("mlp", [0.1, 0.1]))
    assert {row.name for row in one.rows if row.rank} == {"mlp", "gru", "lstm"}
    two = ranking(*plain, *tuned("mlp", [0.1, 0.1]), *tuned("gru", [0.2, 0.2]))
    assert [(row.name, row.rank) for row in two.rows if row.rank] == [("mlp tuned", 1), ("gru tuned", 2)]
    again = tuned("mlp", [0.05, 0.05, 0.05], 0.04)  # another search has another row
    more = ranking(*tuned("mlp", [0.1, 0.1]), *again, *tuned("gru", [0.2, 0.2]))
    assert [(row.arch, len(row.records), row.rank) for row in more.rows] == [
        ("mlp", 3, 1),
        ("mlp", 2, None),
        ("gru", 2, 2),
    ]


def test_the_rank_by_kl_is_shown_where_the_means_order_two_rows_differently():
    def row(arch, errors, kls):
        return [
            make_record(arch, seed=10 + i, error=e, kl=kl) for i, (e, kl) in enumerate(zip(errors, kls, strict=True))
        ]

    first = row("transformer", [0.020, 0.021, 0.019], [0.0020, 0.0021, 0.0019])
    wide = row("mamba2", [0.037, 0.034, 0.040], [0.001, 0.004, 0.016])  # level by KL, and behind by its mean
    assert ranks(*first, *wide) == {"transformer": "1", "mamba2": "2"}
    better = row("lstm", [0.037, 0.034, 0.040], [0.0010, 0.0011, 0.0009])
    assert ranks(*first, *better) == {"transformer": "1 (KL 2)", "lstm": "2 (KL 1)"}
    level = row("gru", [0.021, 0.020, 0.022], [0.0019, 0.0020, 0.0018])
    assert ranks(*first, *level) == {"transformer": "1 (KL 1)", "gru": "1 (KL 1)"}


def test_other_task_parameters_are_another_table():
    made = [make_record(), make_record(size=30), make_record(horizon=10)]
    names = [found.group.label for found in make_rankings(made)]
    assert names == ["bijection", "bijection horizon=10", "bijection size=30"]
    assert [overview.tasks for overview in make_board(made).overviews] == [("bijection",)]  # the preset's own


def test_a_task_parameter_that_a_record_leaves_out_is_the_tasks_own_not_the_presets():
    with_bos = make_record("mlp", "bernoulli")
    assert with_bos.config.task_params == {"bos": True}
    without = change(with_bos, task_params={})
    assert [found.group.label for found in make_rankings([with_bos, without])] == ["bernoulli", "bernoulli bos=False"]


def test_a_memory_is_read_off_the_windows_of_all_seeds():
    def with_windows(record, factor):
        at = record.references["20"]
        windows = {
            name: {**known, "all": {**known["all"], "kl": known["all"]["kl"] * factor}}
            for name, known in at.items()
            if name.startswith("window")
        }
        return replace(record, references={**record.references, "20": {**at, **windows}})

    def memory(*records):
        return ranking(*records).rows[0].memory

    a, b = make_records("transformer", [0.4, 0.4], "hmm")
    low, high = with_windows(a, 1.0), with_windows(b, 1e6)  # the second alone says: far beyond any error seen
    assert memory(low, high) == memory(high, low) != memory(low)


def test_seeds_that_were_tuned_on_two_machines_are_one_row():
    rows = [
        make_record("mlp", seed=seed, tuning={**SEARCH, "errors": {"0.02": [error]}})
        for seed, error in ((0, 0.11), (1, 0.12))
    ]
    assert [len(row.records) for row in ranking(*rows).rows] == [2]
    again = replace(make_record("mlp", error=0.3, tuning={**SEARCH, "errors": {"0.02": [0.13]}}))
    assert [len(row.records) for row in ranking(*rows, again).rows] == [2, 1]  # the same seed once more is no third


def test_the_presets_tasks_come_first_from_the_smallest_preset_on():
    wanted = [("hmm", "small"), ("hmm", "paper"), ("bernoulli", "quick"), ("recall", "quick")]
    made = [make_record(task=task, preset=preset) for task, preset in reversed(wanted)]
    assert [(found.task, found.group.preset) for found in make_rankings(made)] == wanted


def test_the_overview_shows_the_presets_own_rows_and_what_is_missing():
    made = make_records("transformer", [0.2, 0.4]) + make_records("mlp", [0.1])
    for other in ({"steps": 999}, {"activation": "swiglu"}, {"positions": "none"}):  # not the preset's: not this row
        made += make_records("transformer", [0.05], **other)
    made += make_records("transformer", [0.5], "hmm", steps=999)
    text = page(*made)
    assert "Headline track: preset smoke, posterior supervision, cpu." in text
    header, rows = cells(text)
    assert header == ["architecture", "bijection", "hmm"]
    assert [list(row.values()) for row in rows.values()] == [
        ["transformer", "0.3000", "0.5000†"],  # run on most tasks, so first
        ["mlp", "**0.1000**~", ""],  # best, of one seed
        ["*best constant*", *[f"{CONSTANT['entropy_mae']:.4f}"] * 2],
        ["*uniform*", *[f"{UNIFORM['entropy_mae']:.4f}"] * 2],
    ]


def test_a_cell_is_marked_where_its_seeds_disagree_or_are_one():
    """On whether the task is held, partly held or not: small differences within one word are no disagreement."""
    cases = {
        "transformer": ([0.8 * HELD, 0.9 * HELD], True),
        "lstm": ([0.9 * HELD, 1.1 * HELD], False),
        "gru": ([0.9 * PARTLY, 1.1 * PARTLY], False),
        "mamba2": ([0.1 * HELD], False),
        "mlp": ([0.9, 1.1], True),
    }
    made = [record for arch, (errors, _) in cases.items() for record in make_records(arch, errors)]
    (overview,) = make_board(made).overviews
    assert {arch: overview.cells[arch, "bijection"].seeds_agree for arch in cases} == {
        arch: agree for arch, (_, agree) in cases.items()
    }
    for arch, (errors, _) in cases.items():
        cell = overview.cells[arch, "bijection"]
        assert cell.shares == pytest.approx(errors)  # the best constant has an error of one
        assert cell.share == pytest.approx(sum(errors) / len(errors))
    blind = make_records("hybrid", [0.01, 0.01], kl=0.9 * UNIFORM["kl"])  # right entropies, wrong distributions
    (overview,) = make_board(blind).overviews
    assert overview.cells["hybrid", "bijection"].shares == pytest.approx((0.9, 0.9))


def test_the_fullest_track_is_the_headline_and_of_equals_the_larger_preset():
    quick = [make_record(task=task, preset="quick") for task in ("bijection", "hmm")]
    paper = make_record(preset="paper")
    assert make_board([paper, *quick]).headline.track.preset == "quick"
    assert make_board([paper, quick[0]]).headline.track.preset == "paper"
    assert make_board([]).headline is None


def settle(arch, error, task):
    """Five seeds and a run of five times the steps, all with one error."""
    steps = PRESETS["smoke"].values_for(task)["steps"]
    return [*make_records(arch, [error] * 5, task), make_record(arch, task, 0, error, steps=5 * steps)]


def test_a_primitive_is_as_strong_as_its_weakest_task_and_held_if_all_were_measured():
    cases = {"transformer": (0.9 * HELD, "held"), "mlp": (0.9 * PARTLY, "partly"), "mlp-pointwise": (1.0, "no")}
    made, sticky = [], []
    for arch, (error, _) in cases.items():
        kl = error * UNIFORM["kl"]
        made += [with_kl(record, kl) for record in settle(arch, error, "hmm")]
        sticky += settle(arch, 0.01, "hmm-sticky")
    (overview,) = make_board([*made, *sticky]).overviews
    assert {arch: verdicts["transport"].word for arch, verdicts in overview.verdicts.items()} == {
        arch: word for arch, (_, word) in cases.items()
    }
    assert overview.verdicts["transformer"]["transport"].shares == pytest.approx({"hmm": 0.045, "hmm-sticky": 0.01})
    others = {v[name].word for v in overview.verdicts.values() for name in ("accumulation", "binding")}
    assert others == {"not measured"}
    text = page(*made, *sticky)
    assert (
        "- **Transport** (a belief moves with a hidden state). 3 architectures were compared on hmm and hmm-sticky. "
        "transformer is below 5% of guessing on every task (on hmm, 4.5%: 0.0450 [0.0450, 0.0450], 5 seeds). "
        "mlp is below 50% of guessing on every task (on hmm, 45.0%: 0.4500 [0.4500, 0.4500], 5 seeds). "
        "mlp-pointwise is not below 50% of guessing (on hmm, 100.0%: 1.0000 [1.0000, 1.0000], 5 seeds). "
        "Settled: held by transformer; partly held by mlp; not held by mlp-pointwise.\n"
    ) in text
    assert "| **held** (hmm 4.5%, hmm-sticky 1.0%) " in text
    gap = [record for record in sticky if record.config.arch == "mlp"]  # the others miss a task that the track has
    half = make_board([*made, *gap]).overviews[0].verdicts  # a failure on half of a primitive is one, a success is not
    assert half["transformer"]["transport"].word == "open"
    assert half["mlp-pointwise"]["transport"].word == "no"


def with_kl(record, kl):
    """The same run with another KL."""
    return replace(
        record,
        metrics={k: each and {part: {**m, "kl": kl} for part, m in each.items()} for k, each in record.metrics.items()},
    )


def test_a_word_needs_five_seeds_both_metrics_and_a_longer_run():
    def said(*records):
        (overview,) = make_board([*records, *settle("mlp", 0.01, "hmm")]).overviews
        verdict = overview.verdicts["transformer"]["transport"]
        return verdict.word, verdict.leaning

    *seeds, longer = settle("transformer", 0.01, "hmm")
    assert said(*seeds, longer) == ("held", "held")
    assert said(*seeds) == ("open", "held")  # more steps might change it
    assert said(*seeds[:4], longer) == ("open", "held")
    assert said(*seeds, make_record("transformer", "hmm", 0, 0.4, steps=longer.config.steps)) == ("open", "held")
    shorter = make_record("transformer", "hmm", 0, 0.01, steps=longer.config.steps - 1)
    assert said(*seeds, shorter) == ("open", "held")
    assert said(*seeds[:4], make_record("transformer", "hmm", 4, 0.1), longer) == ("open", "held")  # a seed disagrees
    wrong = [with_kl(record, 0.2 * UNIFORM["kl"]) for record in (*seeds, longer)]  # right entropies alone
    assert said(*wrong) == ("open", "partly")


def test_a_primitive_that_was_run_in_part_is_said_to_be():
    hmm = make_records("transformer", [0.01] * 2, "hmm")
    line = (
        "- **Transport** (a belief moves with a hidden state). 1 architecture was compared on hmm. transformer is "
        "below 5% of guessing (on hmm, 1.0%: 0.0100 [0.0100, 0.0100], 2 seeds). No row with the preset's settings: "
        "hmm-sticky.\n"
    )
    assert line in page(*hmm, *make_records("transformer", [0.01] * 2))
    assert "**Transport**" not in page(*hmm)  # one task says nothing of a primitive


def test_a_sentence_counts_architectures_and_names_the_row_nearest_to_the_limit():
    errors = {"transformer": 0.01, "gru": 0.02, "lstm": 0.03, "mamba2": 0.02, "hybrid": 0.01, "gated-deltanet": 0.04,
              "mlp": 0.9, "mlp-pointwise": 0.7}  # fmt: skip
    made = [record for arch, error in errors.items() for record in make_records(arch, [error] * 2, "hmm")]
    text = page(*made, make_record("gru", error=0.001), make_record("mlp", error=0.1), make_record("lstm", error=0.2))
    assert (
        "6 of them are below 5% of guessing (closest to that limit: gated-deltanet on hmm, 4.0%: 0.0400 [0.0400, "
        "0.0400], 2 seeds). mlp and mlp-pointwise are not below 50% of guessing (closest to that limit: mlp-pointwise "
        "on hmm, 70.0%: 0.7000 [0.7000, 0.7000], 2 seeds)."
    ) in text
    assert len(re.findall(r"^- \*\*", text, re.MULTILINE)) <= 5


def test_an_architecture_that_misses_a_task_is_not_put_beside_those_that_have_it():
    """Its weakest task may be the one that it misses."""
    both = [record for task in ("hmm", "hmm-sticky") for record in make_records("transformer", [0.2] * 2, task)]
    one = make_records("mlp", [0.01] * 2, "hmm")
    (overview,) = make_board([*both, *one]).overviews
    found = overview.comparison("transport")
    assert (found.tasks, found.left_out) == (("hmm", "hmm-sticky"), 1)
    assert [(standing.word, standing.archs) for standing in found.standings] == [("partly", ("transformer",))]
    assert "1 other was compared on fewer of these tasks." in page(*both, *one)
    others = make_records("mlp", [0.01] * 2, "hmm-sticky", steps=999)  # a row that does not compare closes no gap
    assert make_board([*both, *one, *others]).overviews[0].comparison("transport").left_out == 1
    apart = make_board([*make_records("mlp", [0.1] * 2, "hmm"), *make_records("lstm", [0.1] * 2, "hmm-sticky")])
    assert apart.overviews[0].comparison("transport") is None


def test_the_best_rows_are_all_that_have_rank_1_most_often():
    def winners(errors):
        made = [record for (arch, task), each in errors.items() for record in make_records(arch, each, task)]
        (overview,) = make_board(made).overviews
        found = overview.winners()
        return found and found.tasks, page(*made)

    tie = {("gru", "bijection"): [0.1] * 2, ("gru", "hmm"): [0.1] * 2, ("gru", "recall"): [0.9] * 2,
           ("lstm", "bijection"): [0.9] * 2, ("lstm", "hmm"): [0.1] * 2, ("lstm", "recall"): [0.1] * 2}  # fmt: skip
    found, text = winners(tie)
    assert found == {"gru": ("bijection", "hmm"), "lstm": ("hmm", "recall")}
    assert (
        "- **Best rows.** Rank 1 on most tasks, 2 of 3 each: gru on bijection and hmm (bijection: 0.1000 [0.1000, "
        "0.1000], 2 seeds); lstm on hmm and recall (hmm: 0.1000 [0.1000, 0.1000], 2 seeds). Rows of a single seed are "
        "not counted.\n"
    ) in text
    assert winners({**tie, ("gru", "recall"): [0.1] * 2})[0] == {"gru": ("bijection", "hmm", "recall")}
    once = {key: each for key, each in tie.items() if key[1] != "hmm"}
    assert winners(once)[0] is None  # one task each says nothing
    assert winners({key: each[:1] for key, each in tie.items()})[0] is None
    assert "Best rows" not in winners(once)[1]


def test_precisions_are_never_ranked_together():
    full = [r for arch in ("mlp", "transformer") for r in make_records(arch, [0.2, 0.2], device="cuda")]
    low = [make_record("lstm", error=0.1, device="cuda", precision="bf16")]
    (ranking,) = make_rankings([*full, *low])
    assert [(row.arch, row.settings, row.rank is None) for row in ranking.rows] == [
        ("lstm", ("precision=bf16",), True), ("mlp", (), False), ("transformer", (), False),
    ]  # fmt: skip


def test_rows_with_settings_of_their_own_have_no_rank_beside_the_presets():
    usual, longer = make_records("mlp", [0.3, 0.3]), make_records("transformer", [0.1, 0.1], steps=999)
    assert ranks(*usual, *longer) == {"mlp": "1", "transformer steps=999": "†"}
    assert ranks(*longer, *make_records("mlp", [0.3, 0.3], steps=999)) == {
        "transformer steps=999": "1",
        "mlp steps=999": "2",
    }
    shorter = make_records("mlp", [0.3, 0.3], steps=9)
    assert ranks(*longer, *shorter) == {"transformer steps=999": "†", "mlp steps=9": "†"}
    assert ranks(*longer, *shorter, make_record("lstm", error=0.9, steps=9)) == {  # what most rows share
        "transformer steps=999": "†",
        "mlp steps=9": "1",
        "lstm steps=9": "2",
    }


def test_a_failed_run_is_shown_as_failed():
    (found,) = make_rankings([make_record(), fail(make_record("mlp"))])
    assert [row.arch for row in found.rows] == ["transformer"]
    text = task_page("bijection", [found], "README.md")
    assert "**failed**: mlp, seed 10: the loss is nan by step 7" in text
    alone = make_board([fail(make_record())])
    assert "the loss is nan by step 7" in pages(alone, "README.md", published=False)["bijection.md"]


def test_text_from_a_record_stays_text():
    hostile = "<script>alert(1)</script> | a | **b** [c](d) `e`\n# f"
    safe = plain(hostile)
    assert "\n" not in safe
    for mark in "<>|*[]`#":
        assert safe.count(mark) == safe.count("\\" + mark)
    text = task_page("bijection", make_rankings([make_record(), fail(make_record("mlp"), hostile)]), "README.md")
    assert safe in text
    assert hostile not in text


def test_what_was_not_measured_says_so():
    found = ranking(make_record(), replace(make_record("mlp"), memory_bytes=Memory(), state_bytes=None))
    assert "GPU time, memory and energy: not measured." in task_page("bijection", [found], "README.md")
    _, rows = cells(cost_table(found))
    assert (rows["mlp"]["peak MiB"], rows["mlp"]["state"]) == ("not measured", "not measured")
    assert rows["transformer"]["peak MiB"] == "512"


def test_energy_and_utilisation_of_a_gpu_are_shown_if_every_run_measured_them():
    def text(*measured):
        records = [
            replace(record, platform={**record.platform, "gpu": {"flops_utilisation": share}}, energy_joules=joules)
            for record, (joules, share) in zip(make_records("mlp", [0.1, 0.1], device="cuda"), measured, strict=True)
        ]
        return task_page("bijection", [ranking(*records)], "README.md")

    assert "Energy: 2,000 J a run. Training arithmetic: 30.0% of the peak." in text((1000.0, 0.25), (3000.0, 0.35))
    assert "Energy: not measured. Training arithmetic: not measured." in text((1000.0, None), (None, 0.35))


def test_no_records_is_a_sentence():
    assert "No records yet" in page()


def test_who_remembers_more_than_sixteen_observations_is_said():
    window = 0.1 / 16  # the KL of that window, in the records of the tests
    for share, beyond in ((1.5, "no row has it"), (0.99, "no row has it"), (0.9, "transformer")):  # better, not as good
        found = ranking(make_record(task="hmm-sticky", kl=share * window))
        assert f"Memory beyond 16 observations: {beyond}." in task_page("hmm-sticky", [found], "README.md")


def test_the_order_in_which_settings_were_given_makes_no_other_row():
    a, b = make_records("transformer", [0.1, 0.1], "hmm")
    a, b = change(a, task_params={"states": 5, "symbols": 5}), change(b, task_params={"symbols": 5, "states": 5})
    assert len(group_seeds([a, b])) == 1


def test_a_default_that_was_named_makes_no_other_row():
    a, b = make_records("transformer", [0.1, 0.1], "hmm")
    assert len(group_seeds([a, change(b, task_params={"states": 5})])) == 1
    assert len(group_seeds([a, change(b, task_params={"states": 4})])) == 2
    others = make_records("lstm", [0.9, 0.9], "hmm")
    compared = ranking(a, b, *(change(record, task_params={"states": 5}) for record in others))
    assert [row.rank for row in compared.rows] == [1, 2]


def test_a_constant_that_knows_the_entropy_makes_no_answer_certain():
    """One coin in every sequence: its entropy is that of all sequences, and it is none."""
    record = make_record(task="bernoulli")
    known = {k: {**each, "best constant": each["exact"]} for k, each in record.references.items()}
    assert not replace(record, references=known).has_certain_answers
    assert certain(record).has_certain_answers


def test_every_task_has_a_page_that_the_overview_links_to():
    made = make_board([make_record(task="hmm"), make_record(task="recall")])
    found = pages(made, "board.md", published=False)
    assert set(found) == {"board.md", "hmm.md", "recall.md"}
    assert "[hmm](hmm.md), [recall](recall.md)" in found["board.md"]
    assert "[All tasks](board.md)" in found["hmm.md"]
    assert "results.csv" not in found["board.md"]  # only the published leaderboard has one
    assert "results.csv" in pages(made, "board.md", published=True)["board.md"]


def test_the_published_leaderboard_is_one_page_and_its_task_tables_are_narrow():
    board = make_board(read_all(ROOT / "leaderboard/runs")[0])
    found = pages(board, "README.md", published=True)
    assert len(found["README.md"].encode()) < 20_000
    assert set(found) == {"README.md", *(f"{each.task}.md" for each in board.rankings)}
    for each in board.rankings:
        if each.rows:
            tables = [text for text in ranking_tables(each) if text.startswith("|")]
            assert all(len(cells(text)[0]) <= 8 for text in tables), each.group
            assert len(cells(cost_table(each))[0]) <= 9, each.group


def test_the_records_of_the_tests_are_records():
    """What they test would otherwise be nothing that a run writes."""
    made = [make_record(arch, task) for arch in ("mlp", "transformer") for task in TASKS.names()]
    for record in (*made, fail(made[0]), change(made[0], seed=3), make_record(tuning=SEARCH)):
        assert parse(json.dumps(record.to_json())) == record


def test_where_the_answer_is_certain_the_kl_ranks_and_is_shown():
    sure = certain(make_record("mlp", "recall", error=0.001, kl=0.9))  # sure, and wrong
    right = certain(make_record("transformer", "recall", error=0.01, kl=0.02))
    found = ranking(sure, right)
    assert found.by_kl
    assert [row.arch for row in found.rows] == ["transformer", "mlp"]
    (overview,) = make_board([sure, right]).overviews
    assert overview.cells["transformer", "recall"].share == pytest.approx(0.02 / UNIFORM["kl"])
    assert overview.floors["recall"] == {"best constant": None, "uniform": UNIFORM["kl"]}
    table = ranking_table(found)
    assert re.match(r"\| *# \| architecture +\| +KL K=", table)
    assert "best constant" not in table
    assert re.search(r"transformer +\| +0.02\d* \| +0.01", table)
