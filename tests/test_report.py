"""Reports: the statistics by known numbers, the estimator by an exact predictor, the page by its files."""

import csv
import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import beta, betabinom

from bench import reports
from bench.claims.mechanisms import ReportStatement
from bench.claims.published import CLAIMS, LPE_SETTINGS, NUMBERS, STATEMENTS
from bench.claims.verdicts import ReportNumber
from bench.cli import main
from bench.config import compose
from bench.records import write
from bench.report import report
from bench.report.diagnostics import QUESTIONS, lowprob, permutation, posterior, predictive, prior, probes, training
from bench.report.diagnostics.base import Literature, NotAvailable, Run, Section, Table, section
from bench.report.rollout import Exact
from bench.run.run import evaluate, run_one
from bench.run.score import LN2, predict, score
from bench.run.train import watch_exam
from tasks.base import TASKS
from tasks.bernoulli import Bernoulli

FLAT = Bernoulli()
LITERATURE = Literature(NUMBERS, LPE_SETTINGS, STATEMENTS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Smoke runs on disk: one that can be rolled out, one that cannot."""
    out = tmp_path_factory.mktemp("runs")
    tiny = {"layers": 1, "heads": 1, "width": 8, "ffn": 8, "horizon": 64}
    for arch, task, change in (("transformer", "bernoulli", tiny), ("mlp", "bernoulli", {"horizon": 64}),
                               ("transformer", "hmm", {})):  # fmt: skip
        write(out, *run_one(compose("smoke", arch, task, 0, "cpu", {"steps": 2, **change})))
    return out


@pytest.fixture(scope="module")
def exact(folder):
    """A run whose model is Bayes."""
    run = report.load(report.find(str(folder / "bernoulli/transformer"), folder))
    return replace(run, task=FLAT, model=Exact(FLAT))


def rows(table: Table) -> dict[str, list]:
    return {row[0]: row[1:] for row in table.rows}


def test_expected_bayes_loss_is_the_published_one():
    assert round(predictive.expected_nll(FLAT, 256), 5) == 0.50850


def test_expected_bayes_loss_is_what_draws_give():
    task = Bernoulli(2.0, 5.0)
    losses = [predictive.draw_exam(task, torch.Generator().manual_seed(i))[2] for i in range(40)]
    assert np.mean(losses) == pytest.approx(predictive.expected_nll(task, 256), abs=4 * np.std(losses) / 40**0.5)


def test_perfect_match_is_the_published_baseline():
    """Contexts of the report's own law; the published row is a mean over few contexts, so 8 % is its sampling error."""
    s = betabinom(50, 1, 1).rvs(150, random_state=0)
    found = posterior.perfect_match([(k + 1, 51 - k) for k in s], 200, 4, seed=0)
    for name, published in NUMBERS["posterior_metrics"].items():
        assert found[name] == pytest.approx(published[5], rel=0.08), name


def test_metrics_of_one_context_by_hand():
    """Two samples at 1/2 under the uniform law: F_M is a step, F the diagonal."""
    found = posterior.compare(np.full(2, 0.5), 1.0, 1.0)
    assert found["W1"] == pytest.approx(0.25, abs=1e-3)
    assert found["CvM-int"] == pytest.approx(1 / 12, abs=1e-3)
    assert found["KS"] == pytest.approx(0.5)
    assert found["PIT-KS"] == pytest.approx(0.5)
    assert found["PIT-CvM"] == pytest.approx(1 / 6)
    assert found["quantile RMSE"] == pytest.approx(math.sqrt((0.45**2 * 2 + 0.25**2 * 2) / 5))
    assert found["coverage MAE"] == pytest.approx(np.mean([0.5, 0.2, 0.1, 0.05]))


def test_an_exact_predictors_rollouts_are_the_posterior(exact):
    """Through the same code as a model: its metrics sit at the perfect match."""
    made = posterior.rollouts(exact)
    laws = posterior.posteriors(FLAT, made.contexts)
    found = [posterior.compare(p, *law) for p, law in zip(made.model, laws, strict=True)]
    perfect = posterior.perfect_match(laws, 200, 20, seed=1)
    for name in posterior.METRICS:
        # a share among 1,000 tokens is a little wider than the posterior itself: a tenth, then the sampling error
        spread = np.std([m[name] for m in found]) / len(found) ** 0.5
        assert np.mean([m[name] for m in found]) < 1.1 * perfect[name] + 4 * spread, name
    a, b = np.array(laws).T
    assert np.median(lowprob.relative_error(made.model, lowprob.log_probability(a, b))) < 0.3


def test_a_biased_sampler_is_caught():
    law = beta(20, 32)
    perfect = posterior.perfect_match([(20, 32)], 200, 40, seed=0)
    found = posterior.compare(law.rvs(200, random_state=0) + 0.05, 20, 32)
    assert all(found[name] > 1.5 * perfect[name] for name in posterior.METRICS)


def test_low_probability_is_the_integral():
    a, b = np.array([1.0, 26.0]), np.array([51.0, 26.0])
    p = np.linspace(0, 1, 200_001)
    for i in range(2):
        integral = np.trapezoid(p**25 * (1 - p) ** 25 * beta(a[i], b[i]).pdf(p), p)
        assert lowprob.log_probability(a, b)[i] == pytest.approx(math.log(integral), rel=1e-6)
    assert lowprob.relative_error(np.zeros((2, 3)), lowprob.log_probability(a, b)).tolist() == [1.0, 1.0]


def test_an_exact_predictor_has_no_gap_and_no_error(exact):
    loss = rows(predictive.loss.ask(exact).tables[0])
    assert loss["gap (%)"][0] == pytest.approx(0.0, abs=1e-6)
    agreement = rows(predictive.agreement.ask(exact).tables[0])
    assert agreement["Pearson r"][0] == pytest.approx(1.0)
    assert agreement["MAE"][0] == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize(("a", "b"), [(1.0, 1.0), (2.0, 5.0), (0.5, 0.5)])
@pytest.mark.parametrize("bos", [False, True])
def test_an_exact_predictors_prior_is_recovered(exact, a, b, bos):
    task = Bernoulli(a, b, bos)
    found = prior.recovery.ask(replace(exact, task=task, model=Exact(task))).tables[0]
    for row in found.rows:
        assert row[1:3] == pytest.approx([a, b], rel=1e-2), row


def test_a_probe_recovers_what_is_linear_and_nothing_else():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 30, 3))
    assert probes.held_out_r2(x, x @ np.array([1.0, -2.0, 0.5]) + 3) == pytest.approx(1.0)
    assert probes.held_out_r2(x, rng.normal(size=(40, 30))) < 0.05


def test_orderings_keep_their_count_and_are_sorted_by_their_last_bit():
    bits = permutation.shuffle(12, torch.Generator().manual_seed(0))
    assert (bits.sum(1) == 12).all()
    assert bits[:, -1].tolist() == sorted(bits[:, -1].tolist())
    assert len(bits.unique(dim=0)) == permutation.ORDERINGS


@pytest.fixture(scope="module")
def coins(folder, tmp_path_factory):
    """A run of coin flips, and the folder of its report with what was published beside."""
    run = report.load(report.find(str(folder / "bernoulli/transformer"), folder), samples=3, literature=LITERATURE)
    out = tmp_path_factory.mktemp("report")
    assert report.write(run, out) == []
    return run, out


def test_a_report_has_every_figure_twice_and_every_table_as_csv(coins, tmp_path):
    run, out = coins
    page = (out / "report.md").read_text()
    titles = [*(q.title for q in QUESTIONS if q.applies(run)), report.COST]
    assert [line[3:] for line in page.splitlines() if line.startswith("## ")] == titles
    assert [line for line in page.splitlines() if line.startswith("n/a")] == [
        "n/a: hypotheses of this task cannot be renamed, so no sequence has a donor",
        "n/a: a rank correlation takes at least 4 parts, and there are 2",
        "n/a: no snapshots were kept, and 4 are needed: bench run --fresh --checkpoints 12",
        "n/a: no snapshots were kept while it trained: bench run --fresh --checkpoints 12 keeps some",
    ]
    figures = {path.stem for path in out.glob("*.png")}
    assert figures == {path.stem for path in out.glob("*.svg")}
    named = {"training_curve", "model_vs_bayes", "posterior_panels", "posterior_boxes", "lowprob_percentiles"}
    named |= {"lowprob_by_probability", "permutation", "symmetry", "probes", "coefficient", "prior"}
    assert named <= figures
    assert all(f"({name}.png)" in page for name in figures)
    with (out / "posterior_metrics.csv").open() as file:
        table = list(csv.DictReader(file))
    assert len(table) == 2 * len(posterior.METRICS)
    assert all(float(row["mean"]) > 0 for row in table)
    again = tmp_path / "again"
    assert report.write(run, again, [predictive.agreement]) == []
    for name in ("model_vs_bayes.svg", "model_vs_bayes.png", "agreement.csv"):
        assert (again / name).read_bytes() == (out / name).read_bytes()


def test_every_published_number_is_found_by_the_table_and_row_that_it_is_kept_under(coins):
    run, out = coins
    found = reports.read(out / reports.REPORT, run.record.id)
    for table in NUMBERS.keys() - {"error"}:  # which the test of the claim `calibrated` reads
        shown = [list(line.values()) for line in found.lines(table) if line.get("source") != "this run"]
        for name, values in NUMBERS[table].items():
            (row,) = [cells for cells in shown if cells[0] == name]
            assert set(values) <= set(row), (table, name)
    assert NUMBERS["error"].keys() <= set(TASKS.names())
    settings = {line["field"]: line for table in ("architecture", "training") for line in found.lines(table)}
    assert {name: settings[name]["LPE report"] for name in LPE_SETTINGS} == LPE_SETTINGS


def test_every_number_that_a_claim_asks_of_a_report_is_in_one(coins):
    run, out = coins
    found = reports.read(out / reports.REPORT, run.record.id)
    for claim in (claim for claim in CLAIMS if getattr(claim, "task", None) == run.record.config.task):
        if isinstance(claim, ReportNumber):
            (line,) = [line for line in found.lines(claim.table) if claim.row.items() <= line.items()]
            assert {claim.column, claim.floor or claim.column} <= line.keys(), claim.id
            column = claim.row.get("metric", claim.column)
            assert not claim.each or all(column in line for line in found.lines(claim.each)), claim.id
        elif isinstance(claim, ReportStatement):
            lines = list(found.lines(claim.table))
            assert lines, claim.id
            assert all(isinstance(line[claim.column], float) for line in lines), claim.id


def test_who_cannot_be_rolled_out_says_so(folder, tmp_path):
    run = report.load(report.find(str(folder / "bernoulli/mlp"), folder))
    assert report.write(run, tmp_path) == []
    page = (tmp_path / "report.md").read_text()
    assert "n/a: the architecture has no step function" in page
    assert "n/a: the model reads at most 64 positions" in page
    assert "n/a: the architecture has no tap like \\*attn.z" in page


def test_another_task_is_asked_only_what_applies(folder, tmp_path):
    run = report.load(report.find(str(folder / "hmm/transformer"), folder))
    assert report.write(run, tmp_path) == []
    page = (tmp_path / "report.md").read_text()
    assert "## Error by position" in page
    assert "Posterior samples" not in page
    assert "LPE report" not in page


def test_a_section_that_breaks_is_shown_and_the_others_go_on(exact, tmp_path):
    @section("broken")
    def broken(run: Run) -> Section:
        raise RuntimeError("out of <luck>")

    @section("refused")
    def refused(run: Run) -> Section:
        raise NotAvailable("not here")

    @section("whole")
    def whole(run: Run) -> Section:
        return Section("all is well", [Table("t", ["x", "y"], [["a|b", 0.123456], ["c", None]])])

    assert report.write(exact, tmp_path, [broken, refused, whole]) == ["broken"]
    page = (tmp_path / "report.md").read_text()
    assert "**failed**: RuntimeError: out of \\<luck\\>" in page
    assert "n/a: not here" in page
    assert "all is well" in page
    content = json.loads((tmp_path / "report.json").read_text())
    *asked, cost = content["sections"]
    assert [(s["title"], s["status"], s["text"]) for s in asked] == [
        ("broken", "failed", "RuntimeError: out of <luck>"),
        ("refused", "n/a", "not here"),
        ("whole", "ok", "all is well"),
    ]
    assert [name for name, _ in cost["tables"][0]["rows"]] == ["broken", "refused", "whole", "all"]
    assert content["sections"][2]["tables"][0]["rows"] == [["a|b", 0.123456], ["c", None]]
    assert "| a\\|b | 0.1235 |" in page
    assert (tmp_path / "t.csv").read_text() == "x,y\na|b,0.123456\nc,\n"


def test_report_command_takes_an_id_and_fails_with_a_broken_section(folder, tmp_path, monkeypatch, capsys):
    path = next((folder / "hmm/transformer").glob("*.json"))

    @section("broken")
    def broken(run: Run) -> Section:
        raise RuntimeError("no")

    monkeypatch.setattr(report.write, "__defaults__", ([broken],))
    assert main(["report", path.stem, "--runs", str(folder), "--out", str(tmp_path / "page")]) == 1
    assert "section failed: broken" in capsys.readouterr().err
    assert (tmp_path / "page/report.md").exists()


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda p: p.with_suffix(".safetensors").unlink(), "no weights at"),
        (lambda p: p.with_suffix(".safetensors").write_bytes(b"other"), "its sha256 differs from the record's"),
        (lambda p: p.write_text("{"), "is not a record: not readable as JSON"),
        (lambda p: p.unlink(), "does not name one run. No record fits"),
    ],
)
def test_a_run_that_is_not_whole_is_refused(folder, tmp_path, capsys, spoil, message):
    path = next((folder / "hmm/transformer").glob("*.json"))
    for file in (path, path.with_suffix(".safetensors")):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    spoil(tmp_path / path.name)
    assert main(["report", str(tmp_path / path.name), "--runs", str(tmp_path)]) == 2
    assert message in capsys.readouterr().err


def test_no_model_is_below_the_exact_line_of_the_training_curve(folder):
    """The line and the looks are of the same sequences: between them lies the model's KL, and nothing else."""
    run = report.load(report.find(str(folder / "hmm/transformer"), folder))
    lines = training.curve.ask(run).pictures[0].figure.axes[0].lines
    exact = next(line.get_ydata()[0] for line in lines if "exact" in str(line.get_label()))
    exam = watch_exam(run.task, run.config)
    kl = score(exam, predict(run.model, exam.batch)).kl.mean().item()
    last = LN2 * run.record.loss_curve[-1].eval_loss
    assert last - exact == pytest.approx(LN2 * kl, abs=1e-9)
    assert kl > 0.01


@pytest.mark.parametrize(
    ("task", "settings", "parts", "answers"),
    [
        (
            "bernoulli",
            {"pool": 2},
            ["all", "inside-full", "outside-full", "outside-pool"],
            ["pool prior", "full prior"],
        ),
        ("bernoulli", {"eval_prior": 9.0}, ["all", "shifted", "shifted-own"], ["own prior", "shifted prior"]),
        ("recurrence", {"loss_horizon": 5, "holdout": 0.2}, ["all", "beyond", "heldout"], []),
    ],
)
def test_a_report_shows_every_part_beside_the_exact_answers(task, settings, parts, answers):
    short = {"steps": 1, "sequences": 32, "horizon": 8, "horizons": (8,)}
    config = compose("smoke", "lstm", task, 0, "cpu", {**short, **settings})
    record = run_one(config)[0]
    found = training.errors.ask(Run(record, config, config.make_task(), torch.nn.Identity()))
    table = found.tables[1]
    assert table.header[7:] == [f"KL of {name} (bits)" for name in (*answers, "uniform")]
    assert [row[1] for row in table.rows] == parts
    for _, part, _, answer, mae, kl, _, *others in table.rows:
        assert (mae, kl) == (record.at()[part]["entropy_mae"], record.at()[part]["kl"])
        for name, other in zip(answers, others[:-1], strict=True):  # the last is the uniform predictor
            assert other == record.references["8"][name][part]["kl"]
            assert (other < 1e-9) == (name == (answers[0] if answer == "prior of training" else answer))
    assert found.text.count("apart: nearer to the") == {"pool": 2, "eval_prior": 1}.get(next(iter(settings)), 0)


def test_a_report_says_which_exact_answer_a_model_is_nearer_to():
    task = Bernoulli(pool=2, horizon=16)
    config = compose("smoke", "lstm", "bernoulli", 0, "cpu", {"pool": 2, "horizon": 16, "horizons": (16,)})
    found = evaluate(Exact(task), task, config)
    record = replace(run_one(replace(config, steps=1))[0], config=config, **found)
    text = training.errors.ask(Run(record, config, task, torch.nn.Identity())).text
    assert text.count("apart: nearer to the pool prior.") == 2


def test_a_report_without_further_parts_has_no_table_of_them(folder):
    run = report.load(report.find(str(folder / "hmm/transformer"), folder))
    assert [table.name for table in training.errors.ask(run).tables] == ["errors"]
