"""The leaderboard: ranked rightly, mixed never, safe whatever a record says."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from bench.board import fairness, render, table, time_to_accuracy
from bench.config import compose
from bench.glance import HELD, PARTLY, at_a_glance, conclusions, primitives
from bench.rows import group, plain, same_settings
from bench.run import run_one


@pytest.fixture(scope="module")
def records():
    configs = [
        compose("smoke", arch, task, seed, "cpu", {})
        for task in ("bijection", "hmm")
        for arch in ("transformer", "mlp")
        for seed in (0, 1)
    ]
    return [run_one(config)[0] for config in configs]


def of(records, task):
    return [record for record in records if record.config["task"] == task]


def test_rows_are_ranked_by_error_with_references_in_place(records):
    header, rows = table(of(records, "hmm"))
    assert len({len(row) for row in rows} | {len(header)}) == 1
    errors = [float(row[2].split()[0]) for row in rows]
    assert errors == sorted(errors)
    names = [row[1] for row in rows]
    assert names[0] == "*exact*"
    assert {"*uniform*", "*best constant*", "*window 1*", "*window 10*"} <= set(names)
    assert {row[1]: row[0] for row in rows}["*exact*"] == ""
    constant = dict(zip(header, rows[names.index("*best constant*")], strict=True))
    assert constant["KL"] == constant["curve"] == ""  # it is the best constant by MAE, and by nothing else
    assert float(constant["MAE K=20"]) > 0


def test_a_row_that_knows_no_more_than_the_uniform_predictor_has_no_rank(records):
    """Where H_Bayes follows from the position alone, a predictor that reads nothing can have every entropy right."""
    first = of(records, "bijection")[0]
    guess = first.references["20"]["uniform"]["all"]["kl"]
    made = synthetic(first, "mlp", [0.0, 0.0], kl=1.01 * guess) + synthetic(first, "transformer", [0.1, 0.2], kl=0.1)
    ranks = {row[1]: row[0] for row in table(made)[1]}
    assert ranks["mlp"] == "-"
    assert ranks["transformer"] == "1"
    assert "held" not in {row[0]: row[1] for row in next(iter(primitives(made).values()))}["mlp"]


def test_an_interval_comes_from_seeds_and_only_from_seeds(records):
    _, rows = table(of(records, "bijection"))
    mine = {row[1]: row for row in rows}
    assert re.fullmatch(r"\d\.\d{4} \[\d\.\d{4}, \d\.\d{4}\]", mine["transformer"][2])
    assert "[" not in mine["*uniform*"][2]
    _, single = table(of(records, "bijection")[:1])
    assert all("[" not in cell for row in single for cell in row)


def test_an_unreadable_horizon_is_not_a_number(records):
    header, rows = table(of(records, "hmm"))
    mine = {row[1]: row for row in rows}
    assert mine["mlp"][header.index("MAE K=50")] == "n/a"
    assert mine["mlp"][header.index("K=50 new")] == "n/a"
    assert mine["transformer"][header.index("K=50 new")] != "n/a"
    header, _ = table(of(records, "bijection"))
    assert "MAE K=50" not in header  # the task itself ends at 20


def test_presets_tracks_and_devices_are_never_mixed(records):
    first = records[0]
    others = [
        replace(first, config={**first.config, **change})
        for change in ({"preset": "paper"}, {"supervision": "sampled"}, {"device": "cuda"}, {"task": "hmm"})
    ]
    assert len(group([first, *others])) == 5


def test_a_setting_that_differs_gets_a_row_of_its_own_and_a_name(records):
    a = next(r for r in of(records, "hmm") if r.config["arch"] == "transformer")
    b = replace(a, config={**a.config, "lr": 0.5})
    names = [row[1] for row in table([a, b])[1]]
    assert "transformer" in names
    assert "transformer lr=0.5" in names
    assert "transformer lr=0.5" in [row[1] for row in table([b])[1]]  # alone, too: it is not the preset's


def synthetic(record, arch, errors, kl=0.0, **config):
    """Records of one architecture, its error given seed by seed."""

    def one(seed, error):
        at = {"all": {**record.metrics["20"]["all"], "entropy_mae": error, "kl": kl}}
        metrics = {**record.metrics, "20": at}
        return replace(record, config={**record.config, "arch": arch, "seed": seed, **config}, metrics=metrics)

    return [one(seed, error) for seed, error in enumerate(errors)]


def test_rows_whose_intervals_overlap_share_a_rank(records):
    first = of(records, "bijection")[0]
    made = synthetic(first, "transformer", [0.10, 0.12, 0.14]) + synthetic(first, "mlp", [0.11, 0.13, 0.15])
    made += synthetic(first, "mlp-pointwise", [0.50, 0.51, 0.52])
    header, rows = table(made)
    ranks = {row[1]: row[0] for row in rows}
    assert [ranks[arch] for arch in ("transformer", "mlp", "mlp-pointwise")] == ["1", "1", "3"]
    p = {row[1]: row[header.index("p")] for row in rows}
    assert p["transformer"] == ""
    assert p["mlp"] == p["mlp-pointwise"] == "0.25"  # three seeds can say no more than that


def test_a_second_table_says_what_each_row_was_given(records):
    first = of(records, "hmm")[0]
    search = {"seed": 1_000_000, "steps": 50, "errors": {"0.01": 0.2, "0.02": 0.1, "0.04": None}}
    header, rows = fairness(synthetic(first, "transformer", [0.1]) + synthetic(first, "mlp", [0.2], tuning=search))
    given = {row[0]: dict(zip(header, row, strict=True)) for row in rows}
    assert given["transformer"]["tuning"] == "*untuned*"
    assert given["mlp"]["tuning"] == "3 rates x 50 steps"
    assert given["mlp"]["tokens"] == f"{12 * 16 * 30:,}"
    assert given["mlp"]["state"] == f"{first.state_bytes:,}"
    assert given["mlp"]["of budget"] == f"{first.parameters / first.budget:.1%}"


def test_tuned_and_untuned_runs_of_one_architecture_are_told_apart(records):
    first = of(records, "hmm")[0]
    search = {"seed": 1_000_000, "steps": 50, "errors": {"0.02": 0.1}}
    both = synthetic(first, "mlp", [0.1]) + synthetic(first, "mlp", [0.2], tuning=search)
    assert {row[1] for row in table(both)[1]} >= {"mlp", "mlp tuned"}


def test_other_task_parameters_are_another_table(records):
    first = of(records, "bijection")[0]
    other = replace(first, config={**first.config, "task_params": {"size": 30}})
    longer = replace(first, config={**first.config, "horizon": 10})
    names = [name.task for name in group([first, other, longer])]
    assert names == ["bijection", "bijection horizon=10", "bijection size=30"]


def test_a_task_parameter_that_a_record_leaves_out_is_the_tasks_own_not_the_presets():
    with_bos = run_one(compose("smoke", "mlp", "bernoulli", 0, "cpu", {"steps": 2}))[0]
    assert with_bos.config["task_params"] == {"bos": True}
    without = replace(with_bos, config={**with_bos.config, "task_params": {}})
    assert [name.task for name in group([with_bos, without])] == ["bernoulli", "bernoulli bos=False"]


def test_a_memory_is_read_off_the_windows_of_all_seeds(records):
    a, b = (r for r in of(records, "hmm") if r.config["arch"] == "transformer")

    def with_windows(record, factor):
        at = record.references["20"]
        windows = {
            name: {**row, "all": {**row["all"], "kl": row["all"]["kl"] * factor}}
            for name, row in at.items()
            if name.startswith("window")
        }
        return replace(record, references={**record.references, "20": {**at, **windows}})

    def memory(*rows):
        header, lines = table(list(rows))
        return next(line[header.index("memory")] for line in lines if line[1] == "transformer")

    low, high = with_windows(a, 1.0), with_windows(b, 1e6)  # the second alone says: far beyond any error seen
    assert memory(low, high) == memory(high, low) != memory(low)


def test_seeds_that_were_tuned_on_two_machines_are_one_row(records):
    first = of(records, "hmm")[0]
    rows = [
        synthetic(first, "mlp", [0.1], tuning={"seed": 1, "steps": 50, "errors": {"0.02": error}})[0]
        for error in (0.11, 0.12)
    ]
    rows[1] = replace(rows[1], config={**rows[1].config, "seed": 1})
    header, lines = table(rows)
    assert [line[header.index("seeds")] for line in lines if line[1] == "mlp"] == ["2"]
    again = replace(rows[0], id="elsewhere", metrics=synthetic(first, "mlp", [0.3])[0].metrics)
    header, lines = table([*rows, again])  # the same seed once more is no third
    assert [line[header.index("seeds")] for line in lines if line[1] == "mlp"] == ["2", "1"]


def test_the_presets_tasks_come_first_from_the_smallest_preset_on(records):
    first = records[0]
    made = [
        replace(first, config={**first.config, "task": task, "preset": preset})
        for task, preset in (("recall", "quick"), ("bernoulli", "quick"), ("hmm", "paper"), ("hmm", "small"))
    ]
    assert [(name.task.split()[0], name.preset) for name in group(made)] == [
        ("hmm", "small"),
        ("hmm", "paper"),
        ("bernoulli", "quick"),
        ("recall", "quick"),
    ]


def test_at_a_glance_shows_the_presets_own_rows_and_what_is_missing(records):
    def constant(task, name="best constant"):
        return of(records, task)[0].references["20"][name]["all"]["entropy_mae"]

    usual = {"steps": compose("smoke", "mlp", "hmm", 0, "cpu", {}).steps}
    hmm, bijection = of(records, "hmm")[0], of(records, "bijection")[0]
    made = synthetic(bijection, "transformer", [0.2, 0.4], **usual) + synthetic(bijection, "mlp", [0.1], **usual)
    for other in ({"steps": 999}, {"activation": "swiglu"}, {"positions": "none"}):  # not the preset's: not this row
        made += synthetic(bijection, "transformer", [0.05], **{**usual, **other})
    made += synthetic(hmm, "transformer", [0.5], steps=999)
    assert list(at_a_glance(made).items()) == [
        (
            "preset smoke, posterior supervision, cpu",
            (
                ["architecture", "bijection", "hmm"],
                [
                    ["transformer", "0.3000 (2)", "0.5000† (1; 999 x 16)"],  # run on most tasks, so first
                    ["mlp", "**0.1000** (1)", "missing"],
                    ["*best constant*", *(f"{constant(t):.4f}" for t in ("bijection", "hmm"))],
                    ["*uniform*", *(f"{constant(t, 'uniform'):.4f}" for t in ("bijection", "hmm"))],
                ],
            ),
        )
    ]
    assert at_a_glance(of(made, "hmm")) == {}  # one task has a table already


def test_a_primitive_is_as_strong_as_its_weakest_task_and_held_if_all_were_measured(records):
    first = of(records, "hmm")[0]
    constant = first.references["20"]["best constant"]["all"]["entropy_mae"]
    usual = {"positions": "alibi", "activation": "relu2", "ffn": 64}  # what the preset has for hmm-sticky
    cases = {"transformer": (0.9 * HELD, "**held**"), "mlp": (0.9 * PARTLY, "partly"), "mlp-pointwise": (1.0, "no")}
    made, sticky = [], []
    for arch, (share, _) in cases.items():
        made += synthetic(first, arch, [share * constant] * 2)
        sticky += synthetic(first, arch, [0.01 * constant] * 2, task="hmm-sticky", **usual)
    ((track, rows),) = primitives([*made, *sticky]).items()
    assert {row[0]: row[2].split(" (")[0] for row in rows} == {arch: word for arch, (_, word) in cases.items()}
    assert {row[0]: row[2] for row in rows}["transformer"] == "**held** (hmm 4.5%, hmm-sticky 1.0%)"
    assert all(row[1] == row[3] == "not measured" for row in rows)
    assert conclusions([*made, *sticky]) == {
        track: [
            "- **transport** (a belief moves on with a hidden state: hmm, hmm-sticky): held by transformer; "
            "partly by mlp; not by mlp-pointwise."
        ]
    }
    text = render([*made, *sticky])
    assert (
        text.index(f"## What holds: {track}") < text.index(f"## Primitives: {track}") < text.index(f"## hmm: {track}")
    )
    ((_, rows),) = primitives(made).items()  # half of a primitive: a failure on it is one, a success is not
    assert {row[0]: row[2] for row in rows}["transformer"] == "not measured (hmm 4.5%, hmm-sticky missing)"
    assert {row[0]: row[2] for row in rows}["mlp-pointwise"].startswith("no (")
    assert conclusions(made) == {}


def test_a_verdict_on_which_seeds_disagree_or_of_one_seed_is_marked(records):
    first = of(records, "hmm")[0]
    constant = first.references["20"]["best constant"]["all"]["entropy_mae"]
    usual = {"positions": "alibi", "activation": "relu2", "ffn": 64}
    cases = {
        "transformer": ([0.8, 0.9], "**held**"),  # of the limit
        "mlp": ([0.1, 1.5], "**held**~"),
        "lstm": ([0.5], "**held**~"),
        "gru": ([0.9, 1.8], "partly~"),
    }
    made = []
    for arch, (shares, _) in cases.items():
        made += synthetic(first, arch, [HELD * share * constant for share in shares])
        made += synthetic(first, arch, [0.01 * constant] * 2, task="hmm-sticky", **usual)
    ((_, rows),) = primitives(made).items()
    assert {row[0]: row[2].split(" (")[0] for row in rows} == {arch: word for arch, (_, word) in cases.items()}
    ((_, (line,)),) = conclusions(made).items()
    assert "held by lstm~, mlp~, transformer; partly by gru~." in line


def test_rows_with_settings_of_their_own_have_no_rank_beside_the_presets(records):
    first = of(records, "bijection")[0]

    def rank(*rows):
        return {line[1]: line[0] for line in table([r for row in rows for r in row])[1] if not line[1].startswith("*")}

    usual, longer = synthetic(first, "mlp", [0.3]), synthetic(first, "transformer", [0.1], steps=999)
    assert rank(usual, longer) == {"mlp": "1", "transformer steps=999": "†"}
    assert rank(longer, synthetic(first, "mlp", [0.3], steps=999)) == {
        "transformer steps=999": "1",
        "mlp steps=999": "2",
    }
    shorter = synthetic(first, "mlp", [0.3], steps=9)
    assert rank(longer, shorter) == {"transformer steps=999": "†", "mlp steps=9": "†"}
    assert rank(longer, shorter, synthetic(first, "lstm", [0.9], steps=9)) == {  # what most rows share
        "transformer steps=999": "†",
        "mlp steps=9": "1",
        "lstm steps=9": "2",
    }


def test_the_rules_state_the_thresholds_of_the_code():
    rules = " ".join((Path(__file__).parent.parent / "leaderboard/RULES.md").read_text().split())
    assert f"below {HELD * 100:g} % of the best constant's, and partly below {PARTLY * 100:g} %" in rules


def test_a_failed_run_is_shown_as_failed(records):
    broken = replace(records[0], status="failed", error="the loss is nan by step 7", metrics={}, references={})
    assert "the loss is nan by step 7" in render([*records, broken])


def test_text_from_a_record_stays_text():
    hostile = "<script>alert(1)</script> | a | **b** [c](d) `e`\n# f"
    safe = plain(hostile)
    assert "\n" not in safe
    for mark in "<>|*[]`#":
        assert safe.count(mark) == safe.count("\\" + mark)


def test_what_was_not_measured_says_so(records):
    text = render(records)
    assert "GPU time, memory and energy: not measured." in text
    gone = [replace(r, memory_bytes={**r.memory_bytes, "resident": None}) for r in records]
    header, rows = table(of(gone, "hmm"))
    peaks = {row[1]: row[header.index("peak memory")] for row in rows}
    assert peaks["transformer"] == peaks["mlp"] == "not measured"
    assert peaks["*uniform*"] == ""


def test_energy_and_utilisation_of_a_gpu_are_shown_if_every_run_measured_them(records):
    def on_gpu(record, joules, share):
        platform = {**record.platform, "gpu": {"flops_utilisation": share}}
        config = {**record.config, "device": "cuda"}
        return replace(record, config=config, platform=platform, energy_joules=joules)

    a, b = of(records, "hmm")[:2]
    text = render([on_gpu(a, 1000.0, 0.25), on_gpu(b, 3000.0, 0.35)])
    assert "Energy: 2,000 J a run. Training arithmetic: 30.0% of the peak." in text
    text = render([on_gpu(a, 1000.0, None), on_gpu(b, None, 0.35)])
    assert "Energy: not measured. Training arithmetic: not measured." in text


def test_no_records_is_a_sentence():
    assert "No records yet" in render([])


def test_time_to_accuracy_is_the_first_look_below_a_goal(records):
    record = records[0]
    curve = [
        {"step": 30, "seconds": 5.0, "entropy_mae": 0.2},
        {"step": 60, "seconds": 9.0, "entropy_mae": 0.09},
        {"step": 90, "seconds": 13.0, "entropy_mae": 0.04},
        {"step": 120, "seconds": 17.0, "entropy_mae": 0.11},
    ]
    mine = replace(record, loss_curve=curve, train_flops=6e12, config={**record.config, "steps": 120})
    header, [row] = time_to_accuracy([mine])
    assert header == ["architecture", "0.1 bits", "0.03 bits", "0.01 bits", "0.003 bits"]
    assert row[1:] == ["9 s, 60 steps, 3.0e+12 FLOPs", "not reached", "not reached", "not reached"]
    other = replace(mine, id="other", config={**mine.config, "seed": 1}, loss_curve=curve[:1])
    assert time_to_accuracy([mine, other])[1][0][1] == "1 of 2 seeds"


def test_who_remembers_more_than_sixteen_observations_is_said():
    record = run_one(compose("smoke", "transformer", "hmm-sticky", 0, "cpu", {"steps": 2, "horizon": 40}))[0]
    assert "Memory beyond 16 observations: no row has it." in render([record])
    window = record.references["40"]["window 16"]["all"]["kl"]
    better = {**record.metrics, "40": {"all": {**record.metrics["40"]["all"], "kl": 0.9 * window}}}
    assert "Memory beyond 16 observations: transformer steps=2." in render([replace(record, metrics=better)])
    better["40"]["all"]["kl"] = 0.99 * window  # as good as that window, not better
    assert "Memory beyond 16 observations: no row has it." in render([replace(record, metrics=better)])


def test_the_order_in_which_settings_were_given_makes_no_other_row(records):
    a, b = (r for r in of(records, "hmm") if r.config["arch"] == "transformer")
    a = replace(a, config={**a.config, "task_params": {"states": 5, "symbols": 5}})
    b = replace(b, config={**b.config, "task_params": {"symbols": 5, "states": 5}})
    assert len(same_settings([a, b])) == 1
