"""Published claims: verdicts by rule, runs found by rule, and nothing said where nothing was measured."""

import re
from dataclasses import replace
from pathlib import Path
from statistics import mean

import pytest

import bench.board
from bench import SAMPLES, reports
from bench.claims import dynamics, markdown
from bench.claims.dynamics import FewerSteps
from bench.claims.evidence import Evidence, setting, spread
from bench.claims.generalisation import Diversity, HeldOut
from bench.claims.mechanisms import Mechanism, ReportStatement, SeedStatement
from bench.claims.places import PLACES, name_numbers, place_of
from bench.claims.published import CLAIMS, LPE_MODEL, NARROW, NUMBER_SOURCES, NUMBERS, SOURCES, STATEMENTS
from bench.claims.verdicts import (
    EASIER,
    UNDECIDED,
    UNTESTED,
    VERDICTS,
    Contrast,
    Cost,
    Error,
    Order,
    Primitives,
    ReportNumber,
    Unmeasured,
    Verdict,
    compare,
    judge,
)
from bench.config import compose
from bench.presets import NEWER_BLOCK
from bench.records import Look, read_all, write
from bench.report.diagnostics.claims import TESTS
from bench.reports import Report, Section, Table
from bench.run.run import run_one
from bench.statements import STATEMENTS as RULES
from bench.stats import mean_interval
from bench.text import significant
from models.base import ARCHS
from tasks.base import TASKS
from tests.fixtures import make_record

RUNS = Path(__file__).resolve().parent.parent / "leaderboard/runs"
CLAIM = Error("id", "transformer on hmm", "v1", 0.049, "hmm", "transformer")
NO_EVIDENCE = Evidence([], {})


@pytest.fixture(scope="module")
def record():
    plain = {"positions": "alibi", "activation": "relu2"}
    return run_one(compose("smoke", "transformer", "hmm", 0, "cpu", {"steps": 2, **plain}))[0]


def as_row(record, preset, error, seed=0, steps=700, **config):
    settings = {"steps": steps, "batch": 16, "positions": "alibi", "activation": "relu2", **config}
    changed = replace(compose(preset, "transformer", "hmm", 0, "cpu", {}), seed=10 + seed, **settings)
    metrics = {"20": {"all": {**record.metrics["20"]["all"], "entropy_mae": error}}}
    return replace(record, id=f"{preset}{seed}{error}", config=changed, metrics=metrics)


def as_coins(record, preset="bernoulli-report", **config):
    """The same as a run of coin flips, with the preset's own settings unless others are given."""
    own = compose(preset, "transformer", "bernoulli", 10, "cpu", config)
    return replace(record, id=f"{preset}{config}", config=own)


def evidence(*runs, reports=None):
    return Evidence(runs, reports or {})


def report(run, samples=SAMPLES, **tables):
    """A report with these tables, each a header and rows."""
    made = [Table(name, header, rows) for name, (header, *rows) in tables.items()]
    return {run.id: Report(run.id, "a run", [Section("s", "ok", "", made, [])], samples)}


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
    assert compare(ours, published, failure) == verdict


@pytest.mark.parametrize(
    ("bounds", "failure", "verdict"),
    [
        ((0.001, 0.003), False, "exceeded"),
        ((0.001, 0.012), False, UNDECIDED),  # as good, or better: not shown to be equal
        ((0.001, 0.200), False, UNDECIDED),
        ((0.001, 0.012), True, UNDECIDED),
        ((0.001, 0.003), True, "not reproduced"),
    ],
)
def test_both_ends_of_an_interval_must_agree(bounds, failure, verdict):
    assert compare(0.002, 0.010, failure, bounds) == verdict


@pytest.mark.parametrize(
    ("bounds", "verdict"),
    [
        ((0.0067, 0.0149), "reproduced"),
        ((0.0066, 0.0149), UNDECIDED),  # either end alone
        ((0.0067, 0.0151), UNDECIDED),
        ((0.0151, 0.0200), "not reproduced"),
        ((0.0050, 0.0066), "exceeded"),
    ],
)
def test_reproduced_is_a_two_sided_test_of_equivalence(bounds, verdict):
    assert compare(mean(bounds), 0.010, bounds=bounds) == verdict
    beyond = {"exceeded", UNDECIDED} if bounds[1] < 0.015 else set()
    assert compare(mean(bounds), 0.010, bounds=bounds, perfect=True) == ("reproduced" if verdict in beyond else verdict)


def test_an_order_takes_two_rows_of_one_setting_seed_by_seed(record):
    claim = Order("id", "lstm is ahead", "v1", "in words", "hmm", "lstm", "transformer")

    def judged(lstm, transformer, **config):
        rows = [as_row(record, "quick", error, seed) for seed, error in enumerate(transformer)]
        rows += [as_row(record, "quick", error, seed, arch="lstm", **config) for seed, error in enumerate(lstm)]
        return claim.judge(evidence(*rows))

    assert judged([0.1, 0.2, 0.3], [0.2, 0.41, 0.6]).verdict == "reproduced"  # by a factor of two in every seed
    assert judged([0.2, 0.41, 0.6], [0.1, 0.2, 0.3]).verdict == "not reproduced"
    assert judged([0.1, 0.2, 0.3], [0.2, 0.2, 0.1]).verdict == UNDECIDED
    assert judged([0.1], [0.14]).verdict == UNDECIDED  # one seed alone has to be ahead by the slack
    one = judged([0.1], [0.2])
    assert one.verdict == "reproduced"
    assert (one.ours, one.where) == ("lstm 0.1, transformer 0.2", "preset quick, 1 seed, 700 steps of 16")
    assert judged([0.1], [0.2, 9.0]) == one  # seeds that both have
    assert judged([0.1], [0.2], width=40).verdict == UNTESTED
    assert judged([], [0.2]).verdict == UNTESTED


def test_the_largest_preset_speaks_and_then_the_most_seeds(record):
    quick = as_row(record, "quick", 0.04)
    small = [as_row(record, "small", 0.008, seed) for seed in range(3)]
    short = as_row(record, "small", 0.5, steps=10)
    sampled = as_row(record, "paper", 0.7, supervision="sampled")
    judged = CLAIM.judge(evidence(quick, short, *small, sampled))
    assert judged.verdict == "exceeded"
    assert judged.ours == "0.008 [0.008, 0.008]"
    assert judged.where == "preset small, the plain block, 3 seeds, 700 steps of 16"
    assert CLAIM.judge(evidence(quick)).ours == "0.04"


def test_three_fresh_seeds_speak_before_a_larger_preset(record):
    rows = {preset: [as_row(record, preset, e, i) for i in range(3)] for preset, e in (("quick", 0.05), ("small", 0.1))}
    large, small = [as_row(record, "paper", 0.3)], rows["quick"]
    assert CLAIM.judge(evidence(*large, *small)).ours == "0.05 [0.05, 0.05]"
    assert CLAIM.judge(evidence(*large, *small, *rows["small"])).ours == "0.1 [0.1, 0.1]"
    assert CLAIM.judge(evidence(*large, *small[:2])).ours == "0.3"  # two are few
    recipe = [replace(run, config=replace(run.config, seed=i)) for i, run in enumerate(small)]
    assert CLAIM.judge(evidence(*large, *recipe)).ours == "0.3"


@pytest.mark.parametrize(
    ("error", "failure", "verdict"),
    [
        (0.0101, False, UNDECIDED),  # as good, and yet another seed may not be
        (0.0043, False, "exceeded"),  # by more than 2.25 times
        (0.0046, False, UNDECIDED),
        (0.0230, False, "not reproduced"),
        (0.0220, False, UNDECIDED),
        (0.0120, True, "reproduced"),
        (0.0090, True, UNDECIDED),
        (0.0043, True, "not reproduced"),
    ],
)
def test_a_single_seed_has_a_factor_either_way(record, error, failure, verdict):
    claim = replace(CLAIM, published=0.01, failure=failure)
    assert claim.judge(evidence(as_row(record, "quick", error))).verdict == verdict
    twice = [as_row(record, "quick", error, seed) for seed in range(2)]
    assert claim.judge(evidence(*twice)).verdict == compare(error, 0.01, failure)


def test_a_block_that_is_not_the_published_one_is_named(record):
    newer = as_row(record, "small", 0.008, **NEWER_BLOCK)
    assert CLAIM.judge(evidence(newer)).where == "preset small, alibi-shift, swiglu, 1 seed, 700 steps of 16"
    assert setting(as_row(record, "small", 0.008, arch="lstm", **NEWER_BLOCK)) == "preset small, swiglu"
    assert setting(as_row(record, "small", 0.008)) == "preset small, the plain block"


def test_a_number_may_be_divided_by_that_of_a_reference(record):
    uniform = record.references["20"]["uniform"]["all"]["entropy_mae"]
    share = replace(CLAIM, published=0.5, over="uniform")
    level = [as_row(record, "quick", 0.5 * uniform, seed) for seed in range(2)]
    assert share.judge(evidence(*level)).verdict == "reproduced"
    assert share.judge(evidence(as_row(record, "quick", 0.1 * uniform))).verdict == "exceeded"


def test_a_model_that_learned_from_draws_is_compared_with_one_that_did(record):
    claim = replace(CLAIM, supervision="sampled")
    exact = as_row(record, "paper", 0.001)
    drawn = [as_row(record, "quick", 0.05, seed, supervision="sampled") for seed in range(2)]
    both = claim.judge(evidence(exact, *drawn))
    assert both.verdict == "reproduced"
    assert both.ours == "0.05 [0.05, 0.05]; on the exact posterior 0.001"
    mine, other = both.where.split("; ")
    assert mine == "preset quick, sampled, 2 seeds, 700 steps of 16"
    assert other == "on the exact posterior preset paper, the plain block, 1 seed, 700 steps of 16"
    alone = claim.judge(evidence(exact))
    assert alone.verdict == UNTESTED  # it had the better targets
    assert alone.ours == "on the exact posterior 0.001"
    failure = replace(claim, published=1.85, failure=True).judge(evidence(exact))
    assert (failure.verdict, failure.why) == (UNDECIDED, EASIER)  # it may fail on draws alone


def test_a_claim_without_any_error_can_be_reproduced_but_not_exceeded(record):
    found = evidence(as_row(record, "quick", 0.001))
    assert CLAIM.judge(found).verdict == "exceeded"
    assert replace(CLAIM, perfect=True).judge(found).verdict == "reproduced"
    assert replace(CLAIM, preset="small").judge(found).verdict == UNTESTED  # another setting than the published one


def test_an_explanation_has_its_numbers_from_the_run(record):
    claim = replace(CLAIM, why="uniform {uniform}, constant {constant}, curve {curve}")
    said = claim.judge(evidence(as_row(record, "quick", 0.04))).why
    at_k = record.references["20"]
    bayes = record.by_position["20"]["h_bayes"]
    curve = min(sum(abs(h - c) for h in bayes) / len(bayes) for c in bayes)  # a median is one of them, or as good
    expected = [at_k["uniform"]["all"]["entropy_mae"], at_k["best constant"]["all"]["entropy_mae"], curve]
    assert [float(part.split()[1]) for part in said.split(", ")] == pytest.approx(expected, rel=1e-3)


def test_an_explanation_names_our_steps_and_what_another_setting_gives_where_that_was_run(record):
    claim = replace(
        CLAIM, published=0.001, shorter="Ours: {ours}",
        contrast=Contrast("positions", "sinusoidal", ", and {other} against {usual} ({where})"),
    )  # fmt: skip
    usual = as_row(record, "quick", 0.04, steps=1200)
    ours = f"Ours: {record.parameters:,} parameters and 1,200 steps of 16"
    assert claim.judge(evidence(usual)).why == ours
    assert claim.judge(evidence(usual)).verdict == UNDECIDED  # so few steps cannot refute it
    assert replace(claim, shorter="").judge(evidence(usual)).verdict == "not reproduced"
    assert replace(claim, sequences=1200 * 16).judge(evidence(usual)).verdict == "not reproduced"  # as many can
    assert replace(claim, published=0.04).judge(evidence(usual)).why == ""  # nothing falls short
    shown = replace(claim, published=0.04, failure=True)
    assert shown.judge(evidence(usual)).verdict == UNDECIDED  # it may fail because it is short
    assert replace(shown, sequences=1200 * 16).judge(evidence(usual)).verdict == "reproduced"
    beaten = replace(shown, published=1.85).judge(evidence(usual))
    assert (beaten.verdict, beaten.why) == ("not reproduced", "")  # a short run can refute a failure
    other = as_row(record, "quick", 0.3, steps=1200, positions="sinusoidal")
    judged = claim.judge(evidence(usual, other))
    assert judged.why == f"{ours}, and 0.3 against 0.04 (preset quick, 1 seed)"
    assert judged.ours == "0.04"
    longer = as_row(record, "quick", 0.03, steps=9999)  # not what it compares with
    assert "0.3 against 0.04" in claim.judge(evidence(usual, other, longer)).why
    assert "against" not in claim.judge(evidence(other, longer)).why


def test_of_two_rows_of_one_size_the_presets_own_speaks(record):
    config = compose("quick", "transformer", "hmm", 0, "cpu", {})
    own = replace(as_row(record, "quick", 0.04), config=config)
    other = replace(as_row(record, "quick", 0.3), config=replace(config, positions="sinusoidal"))
    for runs in ((own, other), (other, own)):
        assert CLAIM.judge(evidence(*runs)).ours == "0.04"


def test_a_row_with_settings_that_have_nothing_to_do_with_its_length_does_not_speak(record):
    config = compose("quick", "transformer", "hmm", 0, "cpu", {})
    own = replace(as_row(record, "quick", 0.04), config=config)
    longer = replace(as_row(record, "quick", 0.03), config=replace(config, steps=9 * config.steps, batch=8))
    assert CLAIM.judge(evidence(own, longer)).ours == "0.03"
    for change in ({"value_lr": 10.0}, {"optimizer": "adamw"}, {"layers": 1}, {"lr": 0.5}, {"clip": 9.0}):
        other = replace(longer, config=replace(longer.config, preset="small", **change))
        assert CLAIM.judge(evidence(own, longer, other)).ours == "0.03", change


def test_fresh_seeds_speak_before_recipe_seeds(record):
    config = compose("quick", "transformer", "hmm", 0, "cpu", {})
    runs = [
        replace(as_row(record, "quick", error, seed), config=replace(config, seed=seed))
        for seed, error in ((0, 0.01), (1, 0.01), (2, 0.01), (10, 0.1), (11, 0.1))
    ]
    judged = CLAIM.judge(evidence(*runs))
    assert (judged.ours[:3], "recipe" in judged.where) == ("0.1", False)
    assert ", recipe seeds, 3 seeds, " in CLAIM.judge(evidence(*runs[:3])).where


def test_a_cost_is_that_of_the_row_which_ends_there_for_the_fewest_flops(record):
    claim = Cost("id", "what it took", "v1", "1,000 steps of 16", 1000 * 16, 0.04, "hmm", "transformer")

    def ended(preset, error, seed=0, flops=7e12, seconds=6.0, **config):
        run = as_row(record, preset, error, seed, **config)
        return replace(run, train_flops=flops, seconds=replace(record.seconds, train=seconds))

    row = [ended("quick", 0.05), ended("quick", 0.05, seed=1, seconds=8.0)]  # within the slack
    judged = claim.judge(evidence(*row))
    assert judged.verdict == "reproduced"
    assert judged.ours == "0.05 [0.05, 0.05] after 700 steps of 16"
    assert judged.where == "preset quick, 2 seeds, 7e+12 FLOPs, 7 s"
    assert replace(claim, sequences=2000 * 16).judge(evidence(*row)).verdict == "exceeded"
    half = [ended("small", 0.01, flops=1e12), ended("small", 0.07, seed=1, flops=1e12)]  # one seed is not there
    dearer = [ended("paper", 0.01, flops=7e13, steps=10)]  # in fewer steps
    for other in (half, dearer):
        assert claim.judge(evidence(*row, *other)) == judged
    missed = claim.judge(evidence(*half))
    assert (missed.ours, missed.where) == ("not reached in 700 steps of 16", "preset small, the plain block")
    assert (missed.verdict, missed.why) == (UNTESTED, "")
    drawn = replace(claim, supervision="sampled").judge(evidence(*row))
    assert drawn.verdict == UNTESTED
    assert drawn.ours == f"{UNTESTED}; on the exact posterior {judged.ours}"
    nothing = claim.judge(NO_EVIDENCE)
    assert (nothing.ours, nothing.verdict) == (UNTESTED, UNTESTED)


def test_primitives_are_those_of_the_published_tasks(record):
    has = frozenset({"accumulation", "transport"})
    claim = Primitives("id", "has two", "readme", "2 of 3", "mlp", has)
    constant = record.references["20"]["best constant"]["all"]["entropy_mae"]
    uniform = record.references["20"]["uniform"]["all"]["kl"]

    def row(task, share, more=1.0, seeds=5):
        """Five seeds, and one run of five times the steps with `more` times the error."""
        config = compose("quick", "mlp", task, 0, "cpu", {})
        configs = [replace(config, seed=seed) for seed in range(10, 10 + seeds)]
        runs = []
        for at in (*configs, replace(configs[0], steps=5 * config.steps)):
            scaled = share * (more if at.steps > config.steps else 1)
            errors = {**record.metrics["20"]["all"], "entropy_mae": scaled * constant, "kl": scaled * uniform}
            at_k = {str(at.horizon): {"all": errors}}, {str(at.horizon): record.references["20"]}
            runs.append(replace(record, config=at, id=at.id(), metrics=at_k[0], references=at_k[1]))
        return runs

    def judged(bijection, hmm, recall, **how):
        rows = (row("bijection", bijection), row("hmm-tokens", hmm), row("recall-64", recall, **how))
        return claim.judge(evidence(*(run for runs in rows for run in runs)))

    assert judged(0.01, 0.3, 0.9).verdict == "reproduced"
    assert judged(0.01, 0.3, 0.9).ours == "accumulation held, transport partly, binding no"
    assert judged(0.01, 0.3, 0.9).where.startswith("bijection 1.0% (preset quick), hmm-tokens 30.0%")
    assert judged(0.01, 0.6, 0.9).verdict == "not reproduced"
    assert judged(0.01, 0.3, 0.4).verdict == "not reproduced"  # it has more than it was said to have
    few, shorter = judged(0.01, 0.3, 0.9, seeds=4), judged(0.01, 0.3, 0.9, more=0.3)
    assert few.verdict == shorter.verdict == "undecided"
    assert few.why.endswith("Undecided: a verdict takes 5 seeds and a run of 5 times the steps")
    assert claim.judge(evidence(*row("bijection", 0.01))).verdict == UNTESTED


def test_a_claim_may_ask_for_other_parameters_of_its_task(record):
    claim = Error("x", "order 3", "v1", 0.5, "markov", "transformer", "kl", None, params={"order": 3}, relative=True)
    usual, other = (make_record(task="markov", preset="quick", order=order) for order in (2, 3))
    assert claim.judge(evidence(usual)).verdict == UNTESTED
    verdict = claim.judge(evidence(usual, other))
    k = str(other.config.horizon)
    assert k == "128"  # it follows from the order
    share = 100 * other.at()["all"]["kl"] / mean(other.by_position[k]["h_bayes"])
    assert verdict.ours == significant(share)


def test_a_number_may_be_of_the_first_positions_alone(record):
    errors = record.by_position["20"]["entropy_mae"]
    judged = replace(CLAIM, first=3).judge(evidence(as_row(record, "quick", 0.5)))
    assert float(judged.ours) == pytest.approx(sum(errors[:3]) / 3, rel=1e-3)


def test_a_larger_row_that_does_not_reach_a_horizon_leaves_it_to_one_that_does(record):
    far = replace(CLAIM, horizon=50)
    reaches = as_row(record, "quick", 0.04)
    reaches = replace(reaches, metrics={**reaches.metrics, "50": reaches.metrics["20"]})
    blind = as_row(record, "paper", 0.01, positions="learned")
    blind = replace(blind, metrics={**blind.metrics, "50": None})
    judged = far.judge(evidence(blind, reaches))
    assert (judged.ours, judged.where.split(",")[0]) == ("0.04", "preset quick")


def test_a_record_that_is_older_than_a_metric_cannot_speak_of_it(record):
    later = replace(CLAIM, metric="of tomorrow")
    assert later.judge(evidence(as_row(record, "quick", 0.04))).verdict == UNTESTED


def test_an_order_says_where_ours_has_a_shift(record):
    claim = Order("id", "lstm is ahead", "v1", "in words", "hmm", "lstm", "transformer")
    shifted = as_row(record, "small", 0.1, **NEWER_BLOCK)
    lstm = as_row(record, "small", 0.2, arch="lstm", **NEWER_BLOCK)
    assert claim.judge(evidence(shifted, lstm)).why == "Our transformer has a shift, which the published one has not"
    plain = as_row(record, "small", 0.4)
    assert claim.judge(evidence(shifted, lstm, plain)).why.endswith(": without, ours has 0.4 (1 seed)")


def test_of_a_presets_runs_only_its_own_settings_speak(record):
    claim = ReportNumber("id", "MAE", "lpe", 0.5, *LPE_MODEL, "agreement", {"metric": "MAE"}, "this run")
    runs = [as_coins(record, width=32), as_coins(record, a=2.0), as_coins(record)]
    found = {}
    for run, value in zip(runs, (9.0, 8.0, 0.5), strict=True):
        found |= report(run, agreement=(["metric", "this run"], ["MAE", value]))
    for order in (runs, runs[::-1]):
        assert claim.judge(evidence(*order, reports=found)).ours == "0.5"
    assert claim.judge(evidence(*runs[:2], reports=found)).verdict == UNTESTED
    exact, tuned = as_coins(record, supervision="posterior"), as_coins(record)
    tuned = replace(tuned, id="tuned", config=replace(tuned.config, tuning={"seeds": [1]}))
    for run in (exact, tuned):
        found |= report(run, agreement=(["metric", "this run"], ["MAE", 0.1]))
    assert claim.judge(evidence(exact, tuned, *runs, reports=found)).ours == "0.5"


def test_a_number_no_worse_than_the_exact_predictors_is_noise(record):
    run = as_coins(record)
    row = {"statistic": "p95"}
    claim = ReportNumber("id", "p95", "lpe", 2.05, *LPE_MODEL, "lowprob", row, "ours", floor="exact")

    def found(exact):
        return report(run, lowprob=(["statistic", "ours", "exact"], ["p95", 0.99, exact]))

    def judged(exact):
        return claim.judge(evidence(run, reports=found(exact)))

    assert judged(1.8).verdict == judged(1.0).verdict == UNTESTED
    assert "score 1.8 here" in judged(1.8).why
    assert judged(0.5).verdict == UNDECIDED
    assert replace(claim, published=2.3).judge(evidence(run, reports=found(0.5))).verdict == "exceeded"


@pytest.mark.parametrize("order", [1, 2, 3])
def test_a_number_of_a_report_may_be_of_other_parameters_of_the_task(order):
    claims = {claim.id: claim for claim in CLAIMS}
    claim = claims[f"orders-posterior-{order}"]

    def judged(value, exact, of=order):
        run = make_record("transformer", "markov", preset="markov-report", order=of)
        table = (["metric", "mean", "exact predictor"], ["mean MAE", value, exact])
        return claim.judge(evidence(run, reports=report(run, chain_posterior=table)))

    assert judged(0.99 * claim.published, 0.001).verdict == UNDECIDED  # one run
    assert judged(claim.published / 3, 0.001).verdict == "exceeded"
    assert judged(claim.published, 2 * claim.published).verdict == UNTESTED  # noise
    assert judged(claim.published, 0.001, of=order % 3 + 1).verdict == UNTESTED  # of another order


def test_an_order_that_is_evidence_for_a_mechanism_takes_models_near_the_best(record):
    claim = Order("id", "the update", "v1", "in words", "hmm", "transformer", "lstm", of_mechanism=True)

    def judged(count=3, *others):
        ours = [as_row(record, "quick", 0.1, seed) for seed in range(count)]
        theirs = [as_row(record, "quick", 0.3, seed, arch="lstm") for seed in range(count)]
        return claim.judge(evidence(*ours, *theirs, *others))

    assert (judged().verdict, judged().kind) == ("reproduced", "mechanism")
    assert judged(2).verdict == UNDECIDED
    assert judged(2).why == "It takes at least 3 seeds"
    far = judged(3, as_row(record, "small", 0.04, arch="gru"))
    assert (far.verdict, far.why) == (UNDECIDED, "An error of 0.1 bits is more than 2 times the best, 0.04")
    assert judged(3, as_row(record, "small", 0.06, arch="gru")).verdict == "reproduced"
    assert {c.of_mechanism for c in CLAIMS if isinstance(c, Order) and c.id.startswith("v1-ffn")} == {True}


def test_seeds_that_fall_apart_are_told_as_such():
    assert spread([0.152, 0.035, 0.018]) == "0.06833 (2 of 3: 0.0265)"
    assert spread([0.25, 0.15, 0.42]) == "0.2733 (0.15 to 0.42)"  # their interval is wider than a factor of ten
    assert spread([0.2, 0.21, 0.22]) == "0.21 [0.1864, 0.2362]"
    assert spread([0.25]) == "0.25"


def test_an_order_may_be_asked_beyond_the_training_length():
    claim = Order("id", "signed ahead", "v1", "", "hmm", "gru", "lstm", horizon=50, part="post")

    def row(arch, error, beyond):
        records = [make_record(arch, "hmm", seed, error, preset="quick") for seed in range(3)]
        post = {"all": records[0].metrics["50"]["all"], "post": {**records[0].metrics["50"]["post"]}}
        post["post"]["entropy_mae"] = beyond
        return [replace(record, metrics={**record.metrics, "50": post}) for record in records]

    ahead, behind = row("gru", 0.2, 0.1), row("lstm", 0.1, 0.3)
    assert claim.judge(evidence(*ahead, *behind)).verdict == "reproduced"
    assert replace(claim, horizon=None, part="all").judge(evidence(*ahead, *behind)).verdict == "not reproduced"
    short = [replace(record, metrics={**record.metrics, "50": None}) for record in behind]
    assert claim.judge(evidence(*ahead, *short)).verdict == UNTESTED


@pytest.mark.parametrize(
    ("held", "rest", "verdict"),
    [
        ([1.2, 1.3, 1.4], [0.2, 0.2, 0.3], "reproduced"),
        ([1.2, 1.3, 1.4], [0.2, 0.2, 0.9], UNDECIDED),  # one seed has learned little at all
        ([0.3, 0.3, 0.3], [0.06, 0.06, 0.06], UNDECIDED),  # partly
        ([0.4, 1.3, 1.4], [0.1, 0.2, 0.3], UNDECIDED),
        ([0.02, 0.02, 0.03], [0.02, 0.02, 0.03], "not reproduced"),
        ([], [], UNTESTED),
    ],
)
def test_held_out_prefixes_fail_where_the_rest_is_learned(held, rest, verdict):
    """Shares of the uniform predictor's KL."""
    claim = next(claim for claim in CLAIMS if claim.id == "july-recurrence-heldout")

    def run(seed, of_held, of_rest):
        made = make_record("transformer", "recurrence", seed, preset="quick", supervision="sampled", holdout=0.2)
        k = str(made.config.horizon)
        uniform = made.references[k]["uniform"]["all"]
        known = {**made.references[k], "uniform": {"all": uniform, "heldout": {**uniform, "kl": 3.0}}}
        shares = {"all": of_rest * uniform["kl"], "heldout": of_held * 3.0}
        errors = {part: {**made.metrics[k]["all"], "kl": kl} for part, kl in shares.items()}
        return replace(made, metrics={**made.metrics, k: errors}, references={**made.references, k: known})

    judged = claim.judge(evidence(*(run(i, *pair) for i, pair in enumerate(zip(held, rest, strict=True)))))
    assert judged.verdict == verdict
    if held:
        assert judged.ours.startswith(f"heldout {significant(mean(held))} ")


@pytest.mark.parametrize(
    ("distances", "verdict"),
    [
        ({2: (0.01, 0.5), 64: (0.05, 0.06), 2048: (0.3, 0.02)}, "reproduced"),
        ({2: (0.01, 0.5), 64: (0.05, 0.06), 2048: (0.03, 0.025)}, UNDECIDED),  # not beyond the slack
        ({2: (0.5, 0.01), 64: (0.05, 0.06), 2048: (0.3, 0.02)}, "not reproduced"),  # it infers from two laws
        ({2: (0.01, 0.5), 64: (0.01, 0.3), 2048: (0.01, 0.2)}, "not reproduced"),  # it memorises all
        ({2: (0.01, 0.5), 2048: (0.3, 0.02)}, UNTESTED),  # no curve
    ],
)
def test_diversity_compares_the_two_exact_answers_at_the_ends_of_the_curve(distances, verdict):
    """KL to Bayes with the pool as prior, and with the full prior, on laws from outside."""
    claim = next(claim for claim in CLAIMS if claim.id == "orders-diversity-markov")

    def run(pool, to_pool, to_full):
        made = make_record("transformer", "markov", preset="quick", supervision="sampled", pool=pool)
        k = str(made.config.horizon)
        kls = {"all": to_pool, "inside-full": to_full, "outside-pool": to_pool, "outside-full": to_full}
        errors = {part: {**made.metrics[k]["all"], "kl": kl} for part, kl in kls.items()}
        usual = {name: dict.fromkeys(errors, scored["all"]) for name, scored in made.references[k].items()}
        known = {**usual, "pool prior": errors}
        return replace(made, metrics={k: errors}, references={k: known})

    judged = claim.judge(evidence(*(run(pool, *pair) for pool, pair in distances.items())))
    assert judged.verdict == verdict
    if verdict != UNTESTED:
        assert judged.where == "preset quick, sampled, pools of 2, 64, 2,048 laws"


def test_a_mean_over_contexts_has_a_spread(record):
    run = as_coins(record)
    row = {"metric": "W1", "source": "this run"}
    claim = ReportNumber("id", "W1", "lpe", 0.0164, *LPE_MODEL, "metrics", row, "mean", each="contexts")

    def judged(contexts):
        value = sum(contexts) / len(contexts)
        metrics = (["metric", "source", "mean"], ["W1", "this run", value])
        found = report(run, metrics=metrics, contexts=(["context", "W1"], *map(list, enumerate(contexts))))
        return claim.judge(evidence(run, reports=found))

    assert judged([0.0070, 0.0071, 0.0069] * 10).verdict == "exceeded"
    assert judged([0.0001, 0.0300, 0.0001] * 5).verdict == UNDECIDED  # the mean may well be 0.018
    assert judged([0.0160, 0.0165, 0.0170] * 10).verdict == UNDECIDED  # one run has the slack of a seed
    assert judged([0.0100, 0.0102] * 5).ours == "0.0101 [0.01002, 0.01018]"


def test_a_median_over_contexts_has_a_spread(record):
    run = as_coins(record)
    claim = ReportNumber("id", "p50", "lpe", 0.154, *LPE_MODEL, "lowprob", {"statistic": "p50"}, "error", each="each",
                         median=True)  # fmt: skip

    def judged(contexts):
        tables = {"lowprob": (["statistic", "error"], ["p50", 0.05]), "each": (["error"], *([c] for c in contexts))}
        return claim.judge(evidence(run, reports=report(run, **tables)))

    near, far = judged([0.04, 0.05, 0.06] * 10), judged([0.01] * 14 + [0.05] * 2 + [2.0] * 14)
    assert (near.ours, near.verdict) == ("0.05 [0.045, 0.055]", "exceeded")
    assert (far.ours, far.verdict) == ("0.05 [0.01, 2]", UNDECIDED)


def test_a_statement_in_words_holds_if_every_row_of_its_table_is_within_its_bound(record):
    made = as_coins(record, "bernoulli-bottleneck")
    runs = [replace(made, id=f"run{i}", config=replace(made.config, seed=10 + i)) for i in range(3)]

    def judged(values, *others, **bound):
        claim = ReportStatement("id", "linear", "study", "nearly", *NARROW, "coefficient", "R²", **bound)
        found = {}
        for run, of in zip(runs, (values, *(others or (values, values))), strict=False):
            found |= report(run, coefficient=(["head", "R²"], *map(list, enumerate(of))))
        return claim.judge(evidence(*runs, reports=found))

    assert judged([0.97, 0.99], least=0.95).verdict == "reproduced"
    assert judged([0.97, 0.90], least=0.95).verdict == "not reproduced"
    assert judged([0.97, 0.90], most=0.95).verdict == "not reproduced"
    assert judged([0.97, 0.99], most=0.99).verdict == "reproduced"
    assert judged([0.97, 0.90], least=0.95).ours == "R² 0.9 to 0.97"
    assert "at least 0.95" in judged([0.97], least=0.95).why
    assert judged([0.97], [0.97], [0.9], least=0.95).verdict == UNDECIDED  # the seeds disagree
    two = judged([0.97], [0.97], least=0.95)
    assert (two.verdict, two.why[-23:]) == (UNDECIDED, "a verdict takes 3 seeds")
    assert judged([], least=0.95).verdict == UNTESTED


def test_of_a_construction_the_row_that_is_exact_counts(record):
    claim = next(claim for claim in CLAIMS if claim.id == "study-negation")
    made = as_coins(record, "bernoulli-bottleneck")
    runs = [replace(made, id=f"run{i}", config=replace(made.config, seed=10 + i)) for i in range(3)]

    def judged(without):
        table = (["norm and head", "mean absolute"], ["as trained", 0.1], ["without their biases", without])
        found = {}
        for run in runs:
            found |= report(run, symmetry_construction=table)
        return claim.judge(evidence(*runs, reports=found)).verdict

    assert (judged(1e-7), judged(0.01)) == ("reproduced", "not reproduced")
    assert claim.judge(evidence(*runs)).verdict == UNTESTED


def test_what_was_not_measured_is_not_judged(record):
    failed = replace(as_row(record, "quick", 0.04), status="failed")
    other = as_row(record, "quick", 0.04, task="bijection")
    for found in (NO_EVIDENCE, evidence(failed), evidence(other)):
        judged = CLAIM.judge(found)
        assert (judged.ours, judged.where, judged.verdict) == ("", "", UNTESTED)
    assert replace(CLAIM, horizon=50).judge(evidence(as_row(record, "quick", 0.04))).verdict == UNTESTED


def test_reports_speak_for_what_records_do_not_hold(record):
    run = as_coins(record)
    row = {"metric": "Pearson r"}
    claim = ReportNumber("id", "r", "lpe", 0.9958, *LPE_MODEL, "agreement", row, "this run", more=True)

    def judged(value, samples=SAMPLES):
        table = (["metric", "this run"], ["Pearson r", value])
        return claim.judge(evidence(run, reports=report(run, samples, agreement=table)))

    assert claim.judge(evidence(run)).verdict == UNTESTED
    assert (judged(0.9999).ours, judged(0.9999).where) == ("0.9999", f"run {run.id}, preset bernoulli-report, sampled")
    assert judged(0.9999).verdict == "exceeded"
    assert judged(0.98).verdict == "not reproduced"
    assert judged(0.9999, samples=20).verdict == UNTESTED  # fewer samples than others have: another measure


def test_a_report_is_read_from_beside_its_record(record, tmp_path):
    folder = write(tmp_path, record, None).with_suffix("")
    assert reports.find([tmp_path], [record]) == {}
    folder.mkdir()
    for text, problem in (
        ("{ not json", "not readable as JSON"),
        ('{"run": "another", "title": "t", "sections": []}', "it is of run 'another'"),
        (f'{{"run": "{record.id}", "title": "t"}}', "missing sections"),
    ):
        (folder / "report.json").write_text(text)
        found = reports.find([tmp_path], [record])[record.id]
        assert found.report is None
        assert problem in found.problem
    (folder / "report.json").write_text(f'{{"run": "{record.id}", "title": "t", "samples": 20, "sections": []}}')
    assert reports.find([tmp_path / "empty", tmp_path], [record])[record.id].report == Report(record.id, "t", [], 20)


def claims_table(*rows):
    """The table of claims as a report has it: each row an id, a sentence and a verdict."""
    header = ["id", "claim", "source", "holds if", "measured here", "verdict"]
    return header, *([id, said, "", "x > 1", verdict, verdict] for id, said, verdict in rows)


EVERY_LAYER = Mechanism("v1-x", "every-layer", "Every layer is needed", "v1", "> 10 times", "hmm", "transformer")


def judged_over_seeds(record, reported, *others, errors=(0.04, 0.05, 0.06), id="every-layer", sentence=""):
    """Each seed has a report with the word that it reported."""
    runs = [as_row(record, "quick", error, seed) for seed, error in enumerate(errors[: len(reported)])]
    found = {}
    for run, word in zip(runs, reported, strict=True):
        found |= report(
            run, claims=claims_table(("no-discontinuity", EVERY_LAYER.claim, "holds"), (id, sentence, word))
        )
    return EVERY_LAYER.judge(evidence(*runs, *others, reports=found))


HOLDS, FAILS, CANNOT = "holds", "does not hold", "cannot be tested with this run"


@pytest.mark.parametrize(
    ("reported", "verdict", "reason"),
    [
        ((HOLDS,) * 3, "reproduced", "3 of 3 seeds"),
        ((FAILS,) * 3, "not reproduced", "0 of 3 seeds"),
        ((HOLDS, FAILS, HOLDS), UNDECIDED, "2 of 3 seeds: they disagree"),
        ((HOLDS,) * 2, UNDECIDED, "2 of 2 seeds; it takes at least 3"),
        ((HOLDS, CANNOT, HOLDS), UNDECIDED, "2 of 2 seeds; it takes at least 3"),
    ],
)
def test_a_mechanism_is_decided_by_three_seeds_that_agree(record, reported, verdict, reason):
    judged = judged_over_seeds(record, reported)
    assert judged_over_seeds(record, reported, sentence="No layer may be left out, in other words") == judged
    assert judged_over_seeds(record, reported, id="another").verdict == UNTESTED
    answered = [seed for seed, word in enumerate(reported) if word != CANNOT]
    told = "; ".join(f"seed {10 + seed}: {reported[seed]}" for seed in answered)
    assert (judged.verdict, judged.why) == (verdict, f"{told}. It holds if x > 1. {reason}")
    assert judged.ours == f"holds in {reported.count(HOLDS)} of {len(answered)} seeds"
    assert judged.where.startswith(f"preset quick, {len(answered)} seeds (runs ")


def test_reports_by_different_rules_decide_nothing(record):
    runs = [as_row(record, "quick", 0.05, seed) for seed in range(3)]
    found = {}
    for run, rule in zip(runs, ("x > 1", "x > 2", "x > 1"), strict=True):
        header, line = claims_table(("every-layer", "", "holds"))
        line[3] = rule
        found |= report(run, claims=(header, line))
    judged = EVERY_LAYER.judge(evidence(*runs, reports=found))
    assert (judged.verdict, judged.why) == (UNDECIDED, "Its reports were written by different rules: write them again")


def test_a_mechanism_takes_models_that_are_near_the_best_of_the_same_question(record):
    def judged(*others):
        return judged_over_seeds(record, (HOLDS,) * 3, *others)

    assert judged(as_row(record, "small", 0.031, arch="lstm")).verdict == "reproduced"
    better = judged(as_row(record, "small", 0.029, arch="lstm"))
    assert better.verdict == UNDECIDED
    assert better.why.endswith("an error of 0.06 bits is more than 2 times the best, 0.029")
    for change in ({"supervision": "sampled"}, {"task": "hmm-sticky"}, {"task_params": {"states": 3}}, {"horizon": 5}):
        other = as_row(record, "small", 0.001, **change)
        other = replace(other, metrics={str(other.config.horizon): other.metrics["20"]})
        assert judged(other).verdict == "reproduced", change
    assert judged(replace(as_row(record, "small", 0.001), status="failed")).verdict == "reproduced"


def test_the_largest_row_with_three_seeds_that_can_answer_speaks(record):
    rows = {"small": [0.01], "quick": [0.011, 0.012, 0.013]}
    runs = {preset: [as_row(record, preset, e, seed) for seed, e in enumerate(of)] for preset, of in rows.items()}

    def judged(words):
        found = {}
        for preset, word in words.items():
            for run in runs[preset]:
                found |= report(run, claims=claims_table(("every-layer", "", word)))
        return EVERY_LAYER.judge(evidence(*runs["quick"], *runs["small"], reports=found))

    assert judged({"quick": HOLDS, "small": FAILS}).verdict == "reproduced"
    alone = judged({"small": FAILS})
    assert (alone.verdict, alone.ours) == (UNDECIDED, FAILS)
    assert alone.where == f"preset small, the plain block, 1 seed (run {runs['small'][0].id})"
    cannot = judged({"small": CANNOT})
    assert (cannot.verdict, cannot.ours, cannot.where) == (
        UNTESTED, CANNOT, f"run {runs['small'][0].id}, preset small, the plain block",
    )  # fmt: skip


OVERLAPS = SeedStatement("j", "frame-overlap", "The frame", "july", "3 x null", "hmm", "transformer")


@pytest.mark.parametrize(
    ("shares", "verdict"),
    [((0.4, 0.5, 0.6), "reproduced"), ((0.1, 0.1, 0.1), "not reproduced"), ((0.4, 0.5), UNDECIDED), ((), UNTESTED)],
)
def test_a_statement_over_seeds_shows_means_with_their_intervals(record, shares, verdict):
    runs = [as_row(record, "quick", 0.04, seed) for seed in range(3)]
    found = {}
    for run, share in zip(runs[: len(shares)], shares, strict=True):
        header = ["place", "overlap of readout and frame", "at random", "ratio", "largest of the twins"]
        found |= report(run, overlap=(header, ["embedding", share, 0.1, share / 0.1, 0.1]))
    judged = OVERLAPS.judge(evidence(*runs, reports=found))
    assert judged.verdict == verdict
    if shares:
        ratios = [share / 0.1 for share in shares]
        low, high = mean_interval(ratios)
        assert f"times the null {significant(mean(ratios))} [{significant(low)}, {significant(high)}]" in judged.ours
        assert judged.why.startswith("Also: at most 10 [10, 10]. It holds if ")
        assert "excess" in judged.why
    else:
        assert (judged.ours, judged.where, judged.why) == ("", "", "")


def test_a_statement_over_seeds_asks_for_the_parameters_of_its_task():
    claim = SeedStatement("j", "geometry-outlives", "", "july", "", "recurrence", "transformer", {"loss_horizon": 5})
    table = (["positions", "KL (bits)", "overlap", "at random", "overlap over null", "largest of the twins"],
             ["inside", 0.01, 0.9, 0.2, 4.5, 0.2], ["beyond", 0.5, 0.8, 0.2, 4.0, 0.2])  # fmt: skip

    def judged(**params):
        runs = [make_record("transformer", "recurrence", seed, preset="quick", **params) for seed in range(3)]
        found = {}
        for run in runs:
            found |= report(run, horizon=table)
        plain = make_record("transformer", "recurrence", 0, error=1e-5, preset="quick")  # another question
        return claim.judge(evidence(*runs, plain, reports=found)).verdict

    assert judged(loss_horizon=5) == "reproduced"
    assert judged(loss_horizon=3) == UNTESTED


def test_the_page_has_every_claim_under_its_source_and_counts_verdicts():
    found = judge(CLAIMS, [])
    assert [verdict.id for verdict in found] == [claim.id for claim in CLAIMS]
    assert {verdict.verdict for verdict in found} == {UNTESTED}
    page = markdown.render([*found, Verdict("c", "one more", "v1", "1", "error", "2", verdict="exceeded")])
    counts = f"1 exceeded, 0 reproduced, 0 not reproduced, 0 undecided, {len(found)} not tested here."
    assert f"{len(found) + 1} claims: {counts}" in page
    sections = dict(part.split("\n", 1) for part in page.split("\n## ")[1:])
    assert "| one more" in sections[SOURCES["v1"].name]
    for source, (name, _) in SOURCES.items():
        own = sum(verdict.source == source for verdict in found) + (source == "v1")
        assert sections[name].count("\n|") == own + 2  # a header and its line


def test_the_page_says_which_kinds_were_not_reproduced():
    kinds = ("error", "failure", "failure")
    missed = [Verdict("c", "c", "v1", "1", kind, "2", verdict="not reproduced") for kind in kinds]
    detail = "published failures that we do not see: 2; errors that ours did not reach: 1"
    counts = f"0 exceeded, 0 reproduced, 3 not reproduced ({detail}), 0 undecided, 0 not tested here."
    assert f"3 claims: {counts}" in markdown.render(missed)


def test_a_note_is_below_its_table_under_its_number_and_is_text():
    verdicts = [
        Verdict("a", "first", "v1", "1", "error", "2", verdict="exceeded"),
        Verdict("b", "second|", "v1", "1", "error", "2", "preset quick", "<b> is text", "exceeded"),
    ]
    page = markdown.render(verdicts)
    first, second = (line for line in page.splitlines() if line.startswith(("| first", "| second")))
    assert "[1]" not in first
    assert "2 [1]" in second
    assert "second\\|" in second
    assert "\n1. Preset quick. \\<b\\> is text.\n" in page


def test_the_site_knows_every_verdict():
    script = (Path(bench.board.__file__).parent / "assets/index.js").read_text()
    known = next(line for line in script.splitlines() if line.startswith("const VERDICTS"))
    assert re.findall(r'([a-z][a-z ]+)"?: "', known) == list(VERDICTS)


FEWER = FewerSteps("f", "", "paper2", 0.4, "hmm", "transformer", "value_lr", 1.0, 10.0,
                   {"optimizer": "adamw", "decay": "none"})  # fmt: skip


def in_training(losses, value_lr, seed=0, **changed):
    settings = {"optimizer": "adamw", "decay": "none", "steps": 10 * len(losses), "value_lr": value_lr, **changed}
    run = make_record("transformer", "hmm", seed, preset="quick", **settings)
    looks = [Look(10 * (i + 1), 1.0, 9.0, 0.1, loss) for i, loss in enumerate(losses)]
    return replace(run, loss_curve=looks)


USUAL = [9.0, 8.0, 7.0, 6.0, 1.0, 1.0, 1.0, 1.2, 0.8, 1.0]  # it ends with 1 and reaches that after half of its steps


@pytest.mark.parametrize(
    ("faster", "ours", "verdict"),
    [
        ([3.0, 1.0, 1.5, 1.0, 0.9], "0.4 [0.4, 0.4]", "reproduced"),
        ([1.0], "0.2 [0.2, 0.2]", "exceeded"),
        (USUAL, "1 [1, 1]", "not reproduced"),
        ([5.0, 4.0, 3.0, 2.0, 2.0, 2.0, 1.1, 1.1, 1.0], "1.8 [1.8, 1.8]", "not reproduced"),
        ([1.1], "not reached by 3 of 3 seeds", "not reproduced"),
    ],
)
def test_a_schedule_is_judged_by_the_steps_to_the_same_loss(faster, ours, verdict, monkeypatch):
    losses = (faster + [faster[-1]] * 10)[:10]
    runs = [in_training(of, rate, seed) for seed in range(3) for of, rate in ((USUAL, 1.0), (losses, 10.0))]
    monkeypatch.setattr(dynamics, "PUBLISHED", "adamw")
    judged = FEWER.judge(evidence(*runs))
    assert (judged.ours, judged.verdict) == (ours, verdict)
    monkeypatch.undo()
    under_another = FEWER.judge(evidence(*runs))
    assert (under_another.ours, under_another.verdict) == (ours, UNDECIDED)
    assert "plain gradient descent" in under_another.why


def test_a_schedule_is_compared_with_one_that_differs_in_nothing_else():
    usual, faster = in_training(USUAL, 1.0), in_training(USUAL, 10.0)
    alone = FEWER.judge(evidence(usual, faster))
    assert (alone.ours, alone.verdict) == ("1", UNDECIDED)  # a verdict takes three seeds
    for changed in ({"batch": 7}, {"decay": "linear"}, {"optimizer": "muon"}, {"lr": 0.01}):
        assert FEWER.judge(evidence(usual, in_training(USUAL, 10.0, **changed))).verdict == UNTESTED
    both = {"decay": "linear"}  # under a decay neither counts
    assert FEWER.judge(evidence(in_training(USUAL, 1.0, **both), in_training(USUAL, 10.0, **both))).verdict == UNTESTED
    assert FEWER.judge(evidence(usual, in_training(USUAL, 10.0, seed=1))).verdict == UNTESTED  # no seed in common
    late = in_training(USUAL, 10.0, seed=1), in_training([9.0] * 10, 1.0, seed=1)
    some = FEWER.judge(evidence(usual, in_training([2.0] * 10, 10.0), *late))
    assert (some.ours, some.verdict) == ("not reached by 1 of 2 seeds", UNDECIDED)


# what was published


def test_every_claim_has_an_id_and_a_source_of_its_own():
    ids = [claim.id for claim in CLAIMS]
    assert len(set(ids)) == len(ids) > 50
    assert {claim.source for claim in CLAIMS} == set(SOURCES)


def test_every_published_number_has_an_id_a_source_and_a_place():
    numbers = name_numbers(NUMBERS, NUMBER_SOURCES)
    assert len({number.id for number in numbers}) == len(numbers) > 15
    assert all(number.source in SOURCES and number.place for number in numbers)
    assert [claim.id for claim in CLAIMS if not place_of(claim.id)] == []
    ids = [claim.id for claim in CLAIMS] + [number.id for number in numbers]
    used = {max((prefix for prefix in PLACES if id.startswith(prefix)), key=len) for id in ids}
    assert used == PLACES.keys()
    assert place_of("another") == ""


def test_every_claim_asks_for_something_that_can_be_run():
    for claim in CLAIMS:
        if isinstance(claim, Unmeasured):
            assert claim.judge(NO_EVIDENCE).verdict == UNTESTED
            continue
        kinds = Error | Order | Cost | Primitives | ReportNumber | ReportStatement | Mechanism
        assert isinstance(claim, kinds | SeedStatement | HeldOut | Diversity | FewerSteps)
        archs = [claim.ahead, claim.behind] if isinstance(claim, Order) else [claim.arch]
        tasks = claim.TASKS.values() if isinstance(claim, Primitives) else [claim.task]
        assert all(ARCHS.facts(arch) is not None for arch in archs)
        assert all(TASKS.facts(task) is not None for task in tasks)
        for task in tasks:  # parameters that it has
            compose("quick", archs[0], task, 0, "cpu", dict(getattr(claim, "params", {})))


def test_no_run_of_the_quick_preset_decides_a_success_or_a_failure_on_the_authors_tasks():
    """It has seen too few sequences, whatever its error; but it refutes a failure that it does not show."""
    own = [claim for claim in CLAIMS if isinstance(claim, Error) and claim.task in ("hmm-tokens", "recall-64")]
    assert len(own) == 9
    for claim in own:
        run = evidence(make_record(claim.arch, claim.task, preset="quick"))
        assert replace(claim, published=1e-9).judge(run).verdict == UNDECIDED, claim.id
        if claim.failure:
            assert replace(claim, published=9.0).judge(run).verdict == "not reproduced", claim.id


def test_a_failure_is_judged_where_it_was_published():
    """On the authors' own task and architecture; orders of chains with the source's length."""
    failures = [claim for claim in CLAIMS if isinstance(claim, Error) and claim.failure]
    assert len(failures) > 9
    for claim in failures:
        assert claim.task not in ("hmm", "recall"), claim.id
        assert (claim.task, claim.arch) != ("bijection", "mlp"), claim.id
    assert {claim.preset for claim in CLAIMS if isinstance(claim, Error) and claim.task == "markov"} == {
        "markov-report"
    }


def test_no_published_number_counts_twice():
    numbers = [
        (claim.source, claim.published, claim.arch, claim.horizon, claim.part, claim.metric, str(claim.params))
        for claim in CLAIMS
        if isinstance(claim, Error)
    ]
    assert len(set(numbers)) == len(numbers)


def test_short_chains_are_those_with_fewer_sequences_than_the_source():
    ids = [f"orders-{k}" for k in range(1, 7)]
    orders = {claim.params["order"]: claim.sequences for claim in CLAIMS if claim.id in ids}
    assert [orders[k] for k in (1, 2, 3)] == [128_000, 64_000, 57_600]


def test_every_statement_about_a_mechanism_is_published_and_tested_under_one_id():
    asked = {claim.statement for claim in CLAIMS if isinstance(claim, Mechanism)}
    assert len(asked) > 5
    assert asked <= TESTS.keys() == STATEMENTS.keys()
    assert {claim.statement for claim in CLAIMS if isinstance(claim, SeedStatement)} < RULES.keys()


def test_published_reports_were_judged_by_the_rules_of_today():
    """Those that a claim asks of."""
    asked = {(claim.task, claim.arch, claim.statement) for claim in CLAIMS if isinstance(claim, Mechanism)}
    records = {record.id: record.config for record in read_all(RUNS)[0]}
    rules = [
        (path.parent.name, line["id"], line["holds if"])
        for path in RUNS.rglob("report.json")
        for line in reports.read(path, path.parent.name).lines("claims")
        for config in [records[path.parent.name]]
        if (config.task, config.arch, line["id"]) in asked and line["verdict"] in Mechanism.ANSWERS
    ]
    assert len(rules) > 10
    assert [(run, id) for run, id, rule in rules if rule != TESTS[id].rule] == []


def test_numbers_that_decide_nothing_are_shown(record):
    """An axis whose removal costs, but no more than that of any other direction."""
    claim = SeedStatement("j", "entropy-axis-inert", "The axis", "july", "nothing", "hmm", "transformer")
    header = ["quantity", "removed", "probe", "random twin", "MAE intact", "MAE once removed", "KL intact",
              "KL once removed", "random: mean", "matched: mean", "draws", "used"]  # fmt: skip
    runs = [as_row(record, "quick", 0.04, seed) for seed in range(3)]

    def judged(without, used="no"):
        rows = (["entropy", "axis", 0.95, 0.2, 0.01, 0.3, 1e-4, without, 1.0, 1.0, 20, used],
                ["identity", "covarying", 1.0, 1.0, 0.01, 0.9, 1e-4, 2.0, 1.0, 1.0, 5, "yes"])  # fmt: skip
        found = {}
        for run in runs:
            found |= report(run, used=(header, *rows))
        return claim.judge(evidence(*runs, reports=found))

    assert judged(1.1e-4).verdict == "reproduced"
    assert judged(0.5, "yes").verdict == "not reproduced"
    between = judged(0.5)
    assert (between.verdict, between.why.endswith(". No seed decides it")) == (UNDECIDED, True)
    assert "MAE added without the axis 0.29 [0.29, 0.29]" in between.ours
    assert judged(None).verdict == UNTESTED
