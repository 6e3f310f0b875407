"""Is it Bayesian: the laws behind the tests, and planted predictors, each caught by the test that it fails."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from bench.config import compose
from bench.report import report
from bench.report.diagnostics import bayes
from bench.report.diagnostics.base import NotAvailable, Run
from bench.report.rollout import Exact
from bench.seeds import generator
from models.base import Geometry
from tasks.base import TASKS, HasRollouts, reorder
from tasks.bernoulli import Bernoulli
from tasks.group import Group
from tasks.markov import Markov
from tasks.recurrence import Recurrence
from tests.test_models import make

ROLLED_OUT = [
    Bernoulli(2.0, 0.5), Bernoulli(bos=True), Bernoulli(pool=5), Markov(order=1), Markov(order=3),
    Markov(order=2, alphabet=3, prior=0.7), Recurrence(modulus=5), Recurrence(modulus=5, opaque=True),
]  # fmt: skip
ORDERLESS = {"bernoulli", "bijection", "bijection-revisit", "markov", "recall", "recall-64", "regression", "revision"}
BOUND = 4.0  # standard deviations of the null


def draw(task, n=64, horizon=None):
    return task.sample(n, horizon or task.horizon, generator("cpu", 0, "test"))


@pytest.mark.parametrize("task", ROLLED_OUT, ids=str)
@pytest.mark.parametrize("further", [0, 1, 5])
def test_the_mean_of_the_next_exact_answer_is_the_present_one(task, further):
    """The tower property without chance: every next token, weighed by its exact probability."""
    tokens = draw(task, horizon=task.opening + further).tokens
    exact = Exact(task)
    p_BC = exact(tokens, torch.empty(*tokens.shape, 0))[:, -1].exp()
    expected = 0
    for c in range(task.shape.classes):
        longer = torch.cat([tokens, tokens.new_full((len(tokens), 1), task.answer_token + c)], dim=1)
        expected = expected + p_BC[:, c : c + 1] * bayes.answer(exact, longer, task.probe(longer))
    now = bayes.answer(exact, tokens, task.probe(tokens))
    torch.testing.assert_close(expected, now, rtol=0, atol=1e-12)
    assert now.std() > 1e-3 or isinstance(task, Recurrence)  # where three numbers leave even odds


@pytest.mark.parametrize("task", ROLLED_OUT, ids=str)
def test_the_exact_predictor_steps_as_it_reads(task):
    batch = draw(task, 5, 12)
    exact = Exact(task)
    whole, state = exact(batch.tokens, batch.features), exact.start(5, batch.tokens.shape[1])
    for t in range(batch.tokens.shape[1]):
        stepped = exact.step(batch.tokens[:, t], batch.features[:, t], state)
        torch.testing.assert_close(stepped, whole[:, t], rtol=0, atol=1e-9)


@pytest.mark.parametrize("task", [*(TASKS[name]() for name in TASKS.names()), *ROLLED_OUT, Group("z60", 0.1)], ids=str)
def test_another_order_leaves_the_last_exact_answer_as_it_is(task):
    batch = draw(task)
    other = reorder(task, batch, generator("cpu", 1, "test"))
    if other is None:
        return
    exact, again = task.posterior(batch), task.posterior(other)
    torch.testing.assert_close(again[:, -1], exact[:, -1], rtol=0, atol=1e-10)
    changed = (batch.tokens != other.tokens).flatten(1).any(1) | (batch.features != other.features).flatten(1).any(1)
    assert changed.double().mean() > 0.5
    if isinstance(task, HasRollouts):
        joint, reordered = (
            p.gather(-1, b.targets[..., None]).log().sum((1, 2)) for p, b in ((exact, batch), (again, other))
        )
        torch.testing.assert_close(reordered, joint, rtol=0, atol=1e-9)
        assert torch.equal(other.tokens[:, 1:] - task.answer_token, other.targets[:, :-1])


def test_which_tasks_have_an_order_that_does_not_matter():
    tasks = {name: TASKS[name]() for name in TASKS.names()}
    rng = generator("cpu", 0, "test")
    assert {name for name, task in tasks.items() if reorder(task, draw(task, 4), rng)} == ORDERLESS


class Planted(Exact):
    """A predictor of bits by its P(1) after each position, from bits [B, T]; it reads everything anew at each step."""

    def __init__(self, p_one):
        super().__init__(Bernoulli())
        self.steps, self.p_one = False, p_one

    def forward(self, tokens_BT, features_BTF):
        p_BT = self.p_one(tokens_BT.double())
        return torch.stack([1 - p_BT, p_BT], dim=-1).log()


def counts(bits_BT):
    return bits_BT.cumsum(1), torch.arange(1, bits_BT.shape[1] + 1)


def wrong_prior(bits_BT):
    """Beta(8, 8): coherent, since it is somebody's exact answer."""
    ones, seen = counts(bits_BT)
    return (ones + 8) / (seen + 16)


def forgets(bits_BT):
    """Exact at first; from position 32 on it only knows which bit leads. That too is exact, given what it knows."""
    ones, seen = counts(bits_BT)
    s = torch.arange(bits_BT.shape[1] + 1)[:, None]  # all numbers of ones are equally likely
    leads = (2 * s > seen) & (s <= seen)
    p_lead = (leads * (s + 1)).sum(0) / leads.sum(0) / (seen + 2)
    p_trail = 1 - (2 * s < seen).mul(seen - s + 1).sum(0) / (2 * s < seen).sum(0) / (seen + 2)
    known = torch.where(2 * ones > seen, p_lead, torch.where(2 * ones < seen, p_trail, 0.5))
    return torch.where(seen < 32, (ones + 1) / (seen + 2), known)


def urn(bits_BT):
    """p moves to the last bit by a share of its own, by turns a fifth too large and too small: order matters."""
    p, path = torch.full_like(bits_BT[:, 0], 0.5), []
    for t, bit in enumerate(bits_BT.unbind(1)):
        share = (1 + 0.2 * (-1) ** t) / (t + 3)
        p = p + share * (bit - p)
        path.append(p)
    return torch.stack(path, dim=1)


def run_of(model, task="bernoulli", samples=200, **params):
    config = compose("smoke", "transformer", task, 0, "cpu", params)
    made = config.make_task()
    return Run(SimpleNamespace(), config, made, Exact(made) if model is None else model, samples)


def ask(run):
    return {row[0]: dict(zip(bayes.HEADER, row, strict=True)) for row in bayes.coherence.ask(run).tables[0].rows}


@pytest.mark.parametrize(
    ("p_one", "caught"),
    [
        (None, set()),
        (wrong_prior, {bayes.CALIBRATION}),
        (forgets, {bayes.DRIFT, bayes.JOINT}),  # what is not a martingale is not exchangeable as a whole
        (urn, {bayes.ORDER, bayes.JOINT}),
    ],
)
def test_a_planted_predictor_is_caught_by_the_test_that_it_fails_and_by_no_other(p_one, caught):
    found = ask(run_of(p_one and Planted(p_one), horizon=64, bos=False))
    failed = {name for name in (bayes.DRIFT, bayes.CALIBRATION) if abs(found[name]["z"]) > BOUND}
    failed |= {name for name in (bayes.ORDER, bayes.JOINT) if found[name]["this run"] > 1e-6}
    assert failed == caught
    assert found[bayes.ORDER]["exact predictor"] < 1e-12
    assert found[bayes.JOINT]["exact predictor"] < 1e-12
    if p_one is not urn:
        assert found[bayes.ORDER]["this run"] < 1e-12


@pytest.mark.parametrize(
    ("task", "params", "tests"),
    [
        ("markov", {"order": 2, "horizon": 40}, {bayes.DRIFT, bayes.ORDER, bayes.JOINT, bayes.CALIBRATION}),
        ("markov", {"order": 1, "horizon": 40, "pool": 3}, {bayes.ORDER, bayes.JOINT, bayes.CALIBRATION}),
        ("recurrence", {}, {bayes.DRIFT, bayes.CALIBRATION}),
        ("recurrence", {"opaque": True, "modulus": 5}, {bayes.DRIFT, bayes.CALIBRATION}),
        ("hmm", {}, {bayes.CALIBRATION}),
        ("regression", {}, {bayes.ORDER, bayes.CALIBRATION}),
        ("bijection", {}, {bayes.ORDER, bayes.CALIBRATION}),
    ],
)
def test_an_exact_model_has_the_numbers_of_the_null_and_what_is_not_asked_has_a_reason(task, params, tests):
    found = ask(run_of(None, task, 50, **params))
    assert {name for name, row in found.items() if row["this run"] is not None} == tests
    for row in found.values():
        if row["this run"] is None:
            assert row["note"].startswith("n/a: ")
        elif row["z"] is not None:
            assert abs(row["z"]) < BOUND
        else:
            assert row["this run"] == pytest.approx(row["exact predictor"], abs=1e-12)


def test_the_same_forgetting_is_seen_in_a_chain():
    """One that answers from the last symbols alone drifts to the middle in every context."""

    class Forgets(Exact):
        def forward(self, tokens_BT, features_BTF):
            logits = super().forward(tokens_BT, features_BTF)
            logits[:, 20:] = 0
            return logits

        def step(self, tokens_B, features_BF, state):
            logits = super().step(tokens_B, features_BF, state)
            return torch.zeros_like(logits) if state[2] > 20 else logits

    found = ask(run_of(Forgets(Markov(order=1)), "markov", order=1, horizon=40))
    assert found[bayes.DRIFT]["z"] > BOUND


def test_calibration_error_by_hand():
    """Certain answers, one of four wrong: the answer drawn has probability 1 and comes true in three of four."""
    p = torch.tensor([1.0, 0.0], dtype=torch.float64).expand(1, 4, 2)
    found = bayes.rate(p, torch.tensor([[0, 0, 0, 1]]), generator("cpu", 0, "test"))
    assert found.error() == 0.25
    assert found.answers.tolist() == [0] * 9 + [4]


def test_answers_are_read_behind_their_suffix():
    """By reading each history with its suffix alone, without padding."""
    task = Markov(order=3, horizon=30)
    model = make("transformer", task, Geometry(2, 2, 16, 32, "sinusoidal")).eval()
    tokens = draw(task, 70).tokens
    probe = task.probe(tokens)
    found = bayes.answer(model, tokens, probe)
    assert {int((s >= 0).sum()) for s in probe.suffix.flatten(0, 1)} == {0, 1, 2, 3}
    for b, j in ((0, 0), (3, 1), (31, 2), (69, 3)):
        whole = torch.cat([tokens[b], probe.suffix[b, j][probe.suffix[b, j] >= 0]])[None]
        with torch.no_grad():
            p = model(whole, torch.empty(1, whole.shape[1], 0))[0, -1].softmax(-1)
        assert found[b, j].item() == pytest.approx(p[probe.classes[b, j]].item(), abs=1e-5)


@pytest.mark.parametrize(
    ("model", "params", "reason"),
    [
        (nn.Linear(1, 1), {}, "no step function"),
        (Exact(Bernoulli()), {"horizon": 8}, "leave no room for a rollout"),
    ],
)
def test_a_model_that_cannot_be_rolled_out_says_why(model, params, reason):
    with pytest.raises(NotAvailable, match=reason):
        bayes.drifts(run_of(model, **params))


def test_a_model_whose_predictions_are_all_alike_is_not_said_to_be_exchangeable():
    found = ask(run_of(Planted(lambda bits: torch.full_like(bits, 0.5)), samples=2, bos=False))
    assert "alike" in found[bayes.ORDER]["note"]


def test_the_section_is_part_of_every_report(tmp_path):
    run = run_of(None, "hmm")
    run.record.id = "x"
    assert report.write(run, tmp_path, [bayes.coherence]) == []
    page = (tmp_path / "report.md").read_text()
    assert "n/a: the answers are not what is read next" in page
    assert (tmp_path / "bayes.csv").exists()
