"""The ledger: verdicts by rule, rows found by rule, and nothing said where nothing was measured."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from bench import ledger
from bench.claims import (
    UNDECIDED,
    UNTESTED,
    Claim,
    Contrast,
    Cost,
    Mechanism,
    Order,
    Primitives,
    Row,
    Stated,
    Told,
    weigh,
)
from bench.config import compose
from bench.diagnostics.claims import CLAIMS as weighed
from bench.evidence import Evidence, read_reports, scene
from bench.presets import NEWER_BLOCK
from bench.records import read_all, write
from bench.run import run_one


@pytest.mark.parametrize(
    ("ours", "published", "failure", "verdict"),
    [
        (0.010, 0.010, False, "reproduced"),
        (0.014, 0.010, False, "reproduced"),  # within the slack
        (0.002, 0.010, False, "exceeded"),
        (0.020, 0.010, False, "not reproduced"),
        (1.5, 1.85, True, "reproduced"),
        (3.0, 1.85, True, "reproduced"),  # a worse failure is one
        (0.01, 1.85, True, "not reproduced"),
    ],
)
def test_verdicts(ours, published, failure, verdict):
    assert weigh(ours, published, failure) == verdict


@pytest.mark.parametrize(
    ("bounds", "failure", "verdict"),
    [
        ((0.001, 0.003), False, "exceeded"),
        ((0.001, 0.012), False, "reproduced"),  # the weaker of two successes
        ((0.001, 0.200), False, UNDECIDED),
        ((0.001, 0.012), True, UNDECIDED),
        ((0.001, 0.003), True, "not reproduced"),
    ],
)
def test_both_ends_of_an_interval_must_agree(bounds, failure, verdict):
    assert weigh(0.002, 0.010, failure, bounds) == verdict


def test_an_order_takes_two_rows_of_one_setting_seed_by_seed(record):
    claim = Order("lstm is ahead", "a paper", "in words", "hmm", "lstm", "transformer")

    def judged(lstm, transformer, **config):
        rows = [as_row(record, "quick", error, seed) for seed, error in enumerate(transformer)]
        rows += [as_row(record, "quick", error, seed, arch="lstm", **config) for seed, error in enumerate(lstm)]
        return claim.judge(Evidence(rows, {}))

    assert judged([0.1, 0.2, 0.3], [0.2, 0.41, 0.6]).verdict == "reproduced"  # by a factor of two in every seed
    assert judged([0.2, 0.41, 0.6], [0.1, 0.2, 0.3]).verdict == "not reproduced"
    assert judged([0.1, 0.2, 0.3], [0.2, 0.2, 0.1]).verdict == UNDECIDED
    assert judged([0.1], [0.14]).verdict == UNDECIDED  # one seed alone has to be ahead by the slack
    assert judged([0.1], [0.2]).verdict == "reproduced"
    assert judged([0.1], [0.2]).measured == "lstm 0.1, transformer 0.2 (preset quick, 1 seed, 700 steps of 16)"
    assert judged([0.1], [0.2, 9.0]).measured == judged([0.1], [0.2]).measured  # seeds that both have
    assert judged([0.1], [0.2], width=48).verdict == UNTESTED
    assert judged([], [0.2]).verdict == UNTESTED


@pytest.fixture(scope="module")
def record():
    plain = {"positions": "alibi", "activation": "relu2"}
    return run_one(compose("smoke", "transformer", "hmm", 0, "cpu", {"steps": 2, **plain}))[0]


def as_row(record, preset, error, seed=0, steps=700, **config):
    changed = {**record.config, "preset": preset, "seed": seed, "steps": steps, **config}
    metrics = {"20": {"all": {**record.metrics["20"]["all"], "entropy_mae": error}}}
    return replace(record, id=f"{preset}{seed}{error}", config=changed, metrics=metrics)


def as_coins(record, preset="bernoulli-report", **config):
    """The same as a run of coin flips, with the preset's own settings unless others are given."""
    own = compose(preset, "transformer", "bernoulli", 0, "cpu", config).to_json()
    return replace(record, id=f"{preset}{config}", config=own)


CLAIM = Row("transformer on hmm", "a paper", 0.049, "hmm", "transformer")


def test_the_largest_preset_speaks_and_then_the_most_seeds(record):
    quick = [as_row(record, "quick", 0.04)]
    small = [as_row(record, "small", 0.008, seed) for seed in range(3)]
    short = [as_row(record, "small", 0.5, steps=10)]
    sampled = [as_row(record, "paper", 0.7, supervision="sampled")]
    judged = CLAIM.judge(Evidence([*quick, *short, *small, *sampled], {}))
    assert judged.verdict == "exceeded"
    assert judged.measured == "0.008 [0.008, 0.008] (preset small, the plain block, 3 seeds, 700 steps of 16)"
    assert CLAIM.judge(Evidence(quick, {})).verdict == "reproduced"


def test_a_block_that_is_not_the_published_one_is_named(record):
    newer = as_row(record, "small", 0.008, **NEWER_BLOCK)
    assert (
        CLAIM.judge(Evidence([newer], {})).measured
        == "0.008 (preset small, alibi-shift, swiglu, 1 seed, 700 steps of 16)"
    )
    assert scene(as_row(record, "small", 0.008, arch="lstm", **NEWER_BLOCK)) == "preset small, swiglu"
    assert (
        scene(as_row(record, "small", 0.008, positions="alibi", activation="relu2")) == "preset small, the plain block"
    )


def test_a_number_may_be_held_against_that_of_a_reference(record):
    uniform = record.references["20"]["uniform"]["all"]["entropy_mae"]
    share = replace(CLAIM, published=0.5, over="uniform")
    assert share.judge(Evidence([as_row(record, "quick", 0.5 * uniform)], {})).verdict == "reproduced"
    assert share.judge(Evidence([as_row(record, "quick", 0.1 * uniform)], {})).verdict == "exceeded"


def test_a_model_that_learned_from_draws_is_held_against_one_that_did(record):
    claim = replace(CLAIM, supervision="sampled")
    exact, drawn = as_row(record, "paper", 0.001), as_row(record, "quick", 0.05, supervision="sampled")
    both = claim.judge(Evidence([exact, drawn], {}))
    assert both.verdict == "reproduced"
    mine, other = both.measured.split("; ")
    assert mine == "0.05 (preset quick, sampled, 1 seed, 700 steps of 16)"
    assert other == "on the exact posterior 0.001 (preset paper, the plain block, 1 seed, 700 steps of 16)"
    alone = claim.judge(Evidence([exact], {}))
    assert alone.verdict == UNTESTED  # it had the better targets
    assert alone.measured.startswith("on the exact posterior 0.001")
    assert replace(claim, published=1.85, failure=True).judge(Evidence([exact], {})).verdict == "not reproduced"


def test_a_claim_without_any_error_can_be_reproduced_but_not_exceeded(record):
    found = Evidence([as_row(record, "quick", 0.001)], {})
    assert CLAIM.judge(found).verdict == "exceeded"
    assert replace(CLAIM, whole=True).judge(found).verdict == "reproduced"


def test_an_explanation_has_its_numbers_from_the_run(record):
    found = Evidence([as_row(record, "quick", 0.04)], {})
    told = replace(CLAIM, why="uniform {uniform}, constant {constant}, curve {curve}").judge(found).why
    at_k = record.references["20"]
    bayes = record.by_position["20"]["h_bayes"]
    curve = min(sum(abs(h - c) for h in bayes) / len(bayes) for c in bayes)  # a median is one of them, or as good
    expected = [at_k["uniform"]["all"]["entropy_mae"], at_k["best constant"]["all"]["entropy_mae"], curve]
    assert [float(part.split()[1]) for part in told.split(", ")] == pytest.approx(expected, rel=1e-3)


def test_an_explanation_names_our_steps_and_what_another_setting_gives_where_that_was_run(record):
    claim = replace(
        CLAIM, published=0.001, shorter="Ours: {ours}",
        contrast=Contrast("positions", "sinusoidal", ", and {other} against {usual} ({where})"),
    )  # fmt: skip
    usual = as_row(record, "quick", 0.04, steps=1200, positions="alibi")
    ours = f"Ours: {record.parameters:,} parameters and 1,200 steps of 16"
    assert claim.judge(Evidence([usual], {})).why == ours
    assert claim.judge(Evidence([usual], {})).verdict == UNDECIDED  # so few steps cannot refute it
    assert replace(claim, shorter="").judge(Evidence([usual], {})).verdict == "not reproduced"
    assert replace(claim, steps=1200).judge(Evidence([usual], {})).verdict == "not reproduced"  # as many can
    assert replace(claim, published=0.04).judge(Evidence([usual], {})).why == ""  # nothing falls short
    other = [as_row(record, "quick", 0.3, seed, steps=1200, positions="sinusoidal") for seed in range(2)]
    told = claim.judge(Evidence([usual, other[0]], {}))
    assert told.why == f"{ours}, and 0.3 against 0.04 (preset quick, 1 seed)"
    longer = as_row(record, "quick", 0.03, steps=9999, positions="alibi")  # not what it compares with
    assert "0.3 against 0.04" in claim.judge(Evidence([usual, other[0], longer], {})).why
    assert "against" not in claim.judge(Evidence([other[0], longer], {})).why
    assert told.measured.startswith("0.04 ")


def test_of_two_rows_of_one_size_the_presets_own_speaks(record):
    config = compose("quick", "transformer", "hmm", 0, "cpu", {}).to_json()
    own = replace(as_row(record, "quick", 0.04), config=config)
    other = replace(as_row(record, "quick", 0.3), config={**config, "positions": "sinusoidal"})
    for records in ([own, other], [other, own]):
        assert CLAIM.judge(Evidence(records, {})).measured.startswith("0.04 ")


def test_a_cost_is_that_of_the_row_which_ends_there_for_the_fewest_flops(record):
    claim = Cost("what it took", "a paper", "1,000 steps", 1000, 0.04, "hmm", "transformer")

    def ended(preset, error, seed=0, flops=7e12, seconds=6.0, **config):
        run = as_row(record, preset, error, seed, **config)
        return replace(run, train_flops=flops, seconds={**record.seconds, "train": seconds})

    row = [ended("quick", 0.05), ended("quick", 0.05, seed=1, seconds=8.0)]  # within the slack
    judged = claim.judge(Evidence(row, {}))
    assert judged.verdict == "reproduced"
    assert judged.measured == "0.05 [0.05, 0.05] after 700 steps of 16, 7e+12 FLOPs, 7 s (preset quick, 2 seeds)"
    assert replace(claim, steps=2000).judge(Evidence(row, {})).verdict == "exceeded"
    half = [ended("small", 0.01, flops=1e12), ended("small", 0.07, seed=1, flops=1e12)]  # one seed is not there
    dearer = [ended("paper", 0.01, flops=7e13, steps=10)]  # in fewer steps
    for other in (half, dearer):
        assert claim.judge(Evidence([*row, *other], {})).measured == judged.measured
    missed = claim.judge(Evidence(half, {}))
    assert missed.measured == "not reached in 700 steps of 16 (preset small, the plain block)"
    assert (missed.verdict, missed.why) == (UNTESTED, "")
    drawn = replace(claim, supervision="sampled").judge(Evidence(row, {}))
    assert drawn.verdict == UNTESTED
    assert drawn.measured == f"{UNTESTED}; on the exact posterior {judged.measured}"
    assert claim.judge(Evidence([], {}))[3:5] == (UNTESTED, UNTESTED)


def test_primitives_are_those_of_the_published_tasks(record):
    claim = Primitives("has two", "a paper", "primitives", "mlp", frozenset({"accumulation", "transport"}))
    constant = record.references["20"]["best constant"]["all"]["entropy_mae"]
    uniform = record.references["20"]["uniform"]["all"]["kl"]

    def row(task, share):
        run = replace(record, config=compose("quick", "mlp", task, 0, "cpu", {}).to_json(), id=task)
        errors = {**record.metrics["20"]["all"], "entropy_mae": share * constant, "kl": 0.1 * share * uniform}
        return replace(run, metrics={"20": {"all": errors}})

    def judged(bijection, hmm, recall):
        return claim.judge(Evidence([row("bijection", bijection), row("hmm", hmm), row("recall", recall)], {}))

    assert judged(0.01, 0.3, 0.9).verdict == "reproduced"
    assert judged(0.01, 0.3, 0.9).measured.startswith(
        "accumulation held (bijection 1.0%, preset quick), transport partly"
    )
    assert judged(0.01, 0.6, 0.9).verdict == "not reproduced"
    assert judged(0.01, 0.3, 0.4).verdict == "not reproduced"  # it has more than it was said to have
    assert claim.judge(Evidence([row("bijection", 0.01)], {})).verdict == UNTESTED


def test_a_number_may_be_of_the_first_positions_alone(record):
    run = as_row(record, "quick", 0.5)
    errors = record.by_position["20"]["entropy_mae"]
    assert replace(CLAIM, first=3).value(run) == pytest.approx(sum(errors[:3]) / 3)


def test_a_larger_row_that_does_not_reach_a_horizon_leaves_it_to_one_that_does(record):
    far = replace(CLAIM, horizon=50)
    reaches = as_row(record, "quick", 0.04)
    reaches = replace(reaches, metrics={**reaches.metrics, "50": reaches.metrics["20"]})
    blind = as_row(record, "paper", 0.01, positions="learned")
    blind = replace(blind, metrics={**blind.metrics, "50": None})
    assert far.judge(Evidence([blind, reaches], {})).measured.startswith("0.04 (preset quick")


def test_an_order_says_where_ours_has_a_shift(record):
    claim = Order("lstm is ahead", "a paper", "in words", "hmm", "lstm", "transformer")
    shifted = as_row(record, "small", 0.1, **NEWER_BLOCK)
    lstm = as_row(record, "small", 0.2, arch="lstm", **NEWER_BLOCK)
    assert claim.judge(Evidence([shifted, lstm], {})).why == (
        "Our transformer has a shift, which the published one has not"
    )
    plain = as_row(record, "small", 0.4, positions="alibi")
    assert claim.judge(Evidence([shifted, lstm, plain], {})).why.endswith(": without, ours has 0.4 (1 seed)")


def test_of_a_presets_runs_only_its_own_settings_speak(record):
    told = Told("r", "a report", 0.5, *ledger.COINS, "agreement", ("MAE",), "this run")
    runs = [as_coins(record, width=32), as_coins(record, a=2.0), as_coins(record)]

    def report(value):
        return {
            "sections": [{"tables": [{"name": "agreement", "header": ["m", "this run"], "rows": [["MAE", value]]}]}]
        }

    for records in (runs, runs[::-1]):
        reports = {run.id: report(value) for run, value in zip(runs, (9.0, 8.0, 0.5), strict=True)}
        assert told.judge(Evidence(records, reports)).measured.startswith("0.5 ")
    assert told.judge(Evidence(runs[:2], reports)).verdict == UNTESTED


def test_who_does_no_worse_than_the_exact_predictor_shows_noise(record):
    run = as_coins(record)
    told = Told("p95", "a report", 2.05, *ledger.COINS, "lowprob", ("p95",), "ours", floor="exact")
    table = {"name": "lowprob", "header": ["statistic", "ours", "exact"], "rows": [["p95", 0.99, 1.2]]}
    evidence = Evidence([run], {run.id: {"run": run.id, "sections": [{"tables": [table]}]}})
    assert told.judge(evidence).verdict == UNTESTED
    assert "score 1.2 here" in told.judge(evidence).why
    table["rows"][0][2] = 0.5
    assert told.judge(evidence).verdict == "exceeded"


def test_a_mean_over_contexts_has_a_spread(record):
    run = as_coins(record)
    told = Told("W1", "a report", 0.0164, *ledger.COINS, "metrics", ("W1", "this run"), "mean", each="contexts")

    def judged(contexts):
        value = sum(contexts) / len(contexts)
        tables = [
            {"name": "metrics", "header": ["metric", "source", "mean"], "rows": [["W1", "this run", value]]},
            {"name": "contexts", "header": ["context", "W1"], "rows": [list(pair) for pair in enumerate(contexts)]},
        ]
        return told.judge(Evidence([run], {run.id: {"run": run.id, "sections": [{"tables": tables}]}}))

    assert judged([0.0100, 0.0101, 0.0099] * 10).verdict == "exceeded"
    assert judged([0.0050, 0.0200, 0.0050] * 10).verdict == "reproduced"  # the same mean, which may well be 0.012
    assert judged([0.0100, 0.0102] * 5).measured.startswith("0.0101 [0.01002, 0.01018] (run ")


def test_a_statement_in_words_holds_if_every_row_of_its_table_is_within_its_bound(record):
    run = as_coins(record, "bernoulli-bottleneck")

    def judged(values, **bound):
        table = {"name": "coefficient", "header": ["head", "R²"], "rows": [list(pair) for pair in enumerate(values)]}
        claim = Stated("linear", "a study", "nearly", *ledger.NARROW, "coefficient", "R²", **bound)
        return claim.judge(Evidence([run], {run.id: {"run": run.id, "sections": [{"tables": [table]}]}}))

    assert judged([0.97, 0.99], least=0.95).verdict == "reproduced"
    assert judged([0.97, 0.90], least=0.95).verdict == "not reproduced"
    assert judged([0.97, 0.90], most=0.95).verdict == "not reproduced"
    assert judged([0.97, 0.99], most=0.99).verdict == "reproduced"
    assert judged([0.97, 0.90], least=0.95).measured.startswith("R² 0.9 to 0.97 (run ")
    assert "at least 0.95" in judged([0.97], least=0.95).why
    assert judged([], least=0.95).verdict == UNTESTED


def test_what_was_not_measured_is_not_judged(record):
    failed = replace(as_row(record, "quick", 0.04), status="failed")
    other = as_row(record, "quick", 0.04, task="bijection")
    for evidence in (Evidence([], {}), Evidence([failed], {}), Evidence([other], {})):
        assert CLAIM.judge(evidence)[3:5] == (UNTESTED, UNTESTED)
    far = replace(CLAIM, horizon=50)
    assert far.judge(Evidence([as_row(record, "quick", 0.04)], {})).verdict == UNTESTED


def test_reports_speak_for_what_records_do_not_hold(record):
    run = as_coins(record)
    told = Told("r", "a report", 0.9958, *ledger.COINS, "agreement", ("Pearson r",), "this run", more=True)
    table = {"name": "agreement", "header": ["metric", "this run"], "rows": [["Pearson r", 0.9999]]}
    report = {"run": run.id, "sections": [{"tables": [table]}]}
    assert told.judge(Evidence([run], {})).verdict == UNTESTED
    judged = told.judge(Evidence([run], {run.id: report}))
    assert judged.verdict == "exceeded"
    assert judged.measured.startswith("0.9999 (run ")
    table["rows"][0][1] = 0.98
    assert told.judge(Evidence([run], {run.id: report})).verdict == "not reproduced"


def test_the_page_has_every_claim_and_counts_verdicts():
    found = ledger.judge([])
    assert all(claim.verdict == UNTESTED for claim in found)
    page = ledger.render([*found, Claim("c", "s", "1", "2", "exceeded", "")])
    told = f"1 exceeded, 0 reproduced, 0 not reproduced, 0 undecided, {len(found)} not tested here."
    assert f"{len(found) + 1} claims: {told}" in page
    assert page.count("\n|") == len(found) + 3
    missed = [Claim("c", "s", "1", "2", "not reproduced", "", kind) for kind in ("error", "failure", "failure")]
    told = "2 published failures that we do not see, 1 errors that ours did not reach"
    assert (
        f"3 claims: 0 exceeded, 0 reproduced, 3 not reproduced ({told}), 0 undecided, 0 not tested here."
        in ledger.render(missed)
    )


def test_reports_are_read_from_beside_their_records(record, tmp_path):
    path = write(tmp_path, record, None)
    beside = path.with_suffix("")
    beside.mkdir()
    (beside / "report.json").write_text("{ not json")
    assert read_reports([tmp_path], [record]) == {}
    (beside / "report.json").write_text(json.dumps({"run": "another", "sections": []}))
    assert read_reports([tmp_path], [record]) == {}
    (beside / "report.json").write_text(json.dumps({"run": record.id, "sections": []}))
    assert list(read_reports([tmp_path], [record])) == [record.id]
    (beside / "report.json").write_text(json.dumps({"run": record.id, "samples": 20, "sections": []}))
    assert read_reports([tmp_path], [record]) == {}  # fewer samples than others have: another measure


def test_every_claim_asks_for_something_that_can_be_run():
    from models.base import ARCHS
    from tasks.base import TASKS

    for published in ledger.PUBLISHED:
        assert isinstance(published, Row | Order | Cost | Primitives | Told | Stated | Mechanism)
        for task in published.TASKS.values() if isinstance(published, Primitives) else [published.task]:
            ARCHS.facts(published.arch), TASKS.facts(task)


def test_every_claim_about_mechanism_is_one_that_reports_weigh(record):
    named = {claim.claim for claim in weighed}
    asked = [published for published in ledger.PUBLISHED if isinstance(published, Mechanism)]
    assert len(asked) > 5
    assert {published.claim for published in asked} <= named
    run = as_row(record, "quick", 0.04)
    header = ["claim", "source", "holds if", "measured here", "verdict"]
    for told, verdict in (("holds", "reproduced"), ("does not hold", "not reproduced"), ("cannot be tested", UNTESTED)):
        rows = [[claim, "", "x > 1", "x = 2", told] for claim in sorted(named)]
        report = {"sections": [{"tables": [{"name": "claims", "header": header, "rows": rows}]}]}
        judged = Mechanism("a paper", "x", "hmm", "transformer", "Every layer is needed").judge(
            Evidence([run], {run.id: report})
        )
        assert judged.verdict == verdict
        assert judged.why == "It holds if x \\> 1"


def test_a_run_that_cannot_test_a_claim_leaves_it_to_a_smaller_one_that_can(record):
    def report(verdict):
        row = ["Every layer is needed", "", "x", verdict, verdict]
        header = ["claim", "source", "holds if", "measured here", "verdict"]
        return {"sections": [{"tables": [{"name": "claims", "header": header, "rows": [row]}]}]}

    quick, small = as_row(record, "quick", 0.04), as_row(record, "small", 0.01)
    claim = Mechanism("a paper", "x", "hmm", "transformer", "Every layer is needed")
    judged = claim.judge(Evidence([quick, small], {quick.id: report("holds"), small.id: report("cannot be tested")}))
    assert judged.verdict == "reproduced"
    assert quick.id in judged.measured
    assert "another verdict" not in judged.measured
    judged = claim.judge(Evidence([quick, small], {quick.id: report("holds"), small.id: report("does not hold")}))
    assert judged.verdict == "not reproduced"
    assert judged.measured.endswith(f"; another verdict in run {quick.id} (preset quick)")


def test_published_reports_were_judged_by_the_rules_of_today():
    """Those of which the ledger asks."""
    runs = Path(__file__).parent.parent / "leaderboard/runs"
    records = read_all(runs)[0]
    rules = {claim.claim: claim.rule for claim in weighed}
    asked = {(p.task, p.arch, p.claim) for p in ledger.PUBLISHED if isinstance(p, Mechanism)}
    told = [
        (record.id, row)
        for record in records
        for section in read_reports([runs], [record]).get(record.id, {}).get("sections", ())
        for table in section["tables"]
        if table["name"] == "claims"
        for row in table["rows"]
        if (record.config["task"], record.config["arch"], row[0]) in asked and row[-1] in ("holds", "does not hold")
    ]
    assert len(told) > 10
    assert [(run, row[0]) for run, row in told if row[2] != rules[row[0]]] == []


def test_the_page_knows_every_verdict():
    script = (Path(ledger.__file__).parent / "assets/index.js").read_text()
    known = next(line for line in script.splitlines() if line.startswith("const VERDICTS"))
    assert re.findall(r'([a-z][a-z ]+)"?: "', known) == list(ledger.VERDICTS)
