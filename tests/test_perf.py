"""What `bench perf` compares does the same work on both sides; how long it takes is no test's business."""

import json
import platform
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from bench.check import perf
from bench.cli import main
from bench.config import compose
from bench.run.run import make_model
from bench.run.score import predict
from bench.seeds import generator
from models.base import count_built


def test_prefix_by_prefix_gives_the_same_answers():
    config = compose("smoke", "transformer", "hmm", 0, "cpu", {})
    model, batch = make_model(config).eval(), config.make_task().sample(3, 12, generator("cpu", 0, "test"))
    torch.testing.assert_close(perf.prefix_by_prefix(model, batch), predict(model, batch), atol=1e-5, rtol=0)


@pytest.mark.parametrize("preset", ["small", "paper"])
def test_the_plain_transformer_has_our_size(preset):
    config = compose(preset, "transformer", "hmm", 0, "cpu", {})
    plain = count_built(lambda: perf.Plain(config.make_task().shape, config))
    assert abs(plain - config.budget()) < 0.01 * plain


def test_the_plain_transformer_sees_no_future():
    config = compose("smoke", "transformer", "hmm", 0, "cpu", {})
    task = config.make_task()
    plain = perf.Plain(task.shape, config)
    batch = task.sample(2, 12, generator("cpu", 0, "test"))
    changed = batch.tokens.clone()
    changed[:, -1] = (changed[:, -1] + 1) % 5
    before, after = plain(batch.tokens, batch.features), plain(changed, batch.features)
    assert torch.equal(before[:, :-1], after[:, :-1])
    assert not torch.equal(before[:, -1], after[:, -1])


def test_the_stock_recipe_gives_muon_the_matrices_of_the_stack_and_adamw_the_rest():
    config = compose("smoke", "transformer", "hmm", 0, "cpu", {})
    plain = perf.Plain(config.make_task().shape, config)
    muon, adam = [
        {id(p) for group in optimizer.param_groups for p in group["params"]} for optimizer in perf.stock_recipe(plain)
    ]
    stack = {id(p) for p in plain.stack.parameters()}
    assert muon == {id(p) for p in plain.stack.parameters() if p.ndim == 2}
    assert len(muon) == 4 * config.layers  # queries, keys and values; attention's output; up; down
    assert adam == {id(p) for p in plain.parameters()} - muon
    assert stack & adam  # norms and biases


PAGES = """
import resource, sys, torch
from bench.check import perf

if sys.argv[1] == "hold":
    perf.hold_memory()
for _ in range(4):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(1 << 24)  # 64 MiB: 16,384 pages
    cleared = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
print(cleared)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc is told to keep what is freed")
def test_what_one_work_frees_is_kept_for_the_next():
    def cleared(how):
        return int(subprocess.run([sys.executable, "-c", PAGES, how], check=True, capture_output=True).stdout)

    assert cleared("hold") < 100 < cleared("return")


def test_turns_are_taken_in_order_and_the_first_round_does_not_count():
    order = []
    works = {name: (lambda name=name: order.append(name)) for name in "ab"}
    assert set(perf.turns(works, rounds=2)) == {"a", "b"}
    assert "".join(order) == "ababab"


def test_an_exponent_is_the_slope_over_log_log(monkeypatch):
    monkeypatch.setattr(perf, "turns", lambda steps: {size: 3.0 * int(size) ** 1.7 for size in steps})
    assert abs(perf.exponent("batch", (2, 4, 8)) - 1.7) < 1e-9


def test_the_share_of_data_is_that_of_a_step_with_its_data(monkeypatch):
    drawn = []

    def run_data(works, rounds=1):
        drawn.append([works["data"]() for _ in range(2)])
        return {"data": 16 * 0.25, "step": 0.75}  # 16 steps are drawn at once

    monkeypatch.setattr(perf, "turns", run_data)
    monkeypatch.setattr(perf, "POOL", 2)
    assert perf.data_shares("bernoulli") == {"bernoulli_data_share": 0.25, "bernoulli pool=2_data_share": 0.25}
    assert list(perf.data_shares("revision-cue")) == ["revision-cue_data_share"]
    for (first, _), (again, _) in drawn:  # every round draws a whole block anew, and so pays for it
        assert torch.equal(first.tokens, again.tokens)


def test_every_figure_has_a_meaning_and_the_object_is_flat(monkeypatch):
    monkeypatch.setattr(perf, "turns", lambda works, rounds=1: dict.fromkeys(works, 1.0))
    monkeypatch.setattr(perf, "POOL", 2)
    found = perf.measure()
    assert all(isinstance(value, float) for value in found.values())
    assert len(perf.report(found).rows) == len(found)
    assert {"small_muon_share_of_step", "paper_muon_share_of_step"} <= found.keys()
    assert found["small_step_over_plain"] == found["evaluation_over_plain"] == 1.0


def test_transformer_lens_is_compared_where_it_is_installed(monkeypatch):
    class Hooked(torch.nn.Module):
        def __init__(self, size):
            super().__init__()
            self.size, self.row = size, torch.nn.Embedding(size.d_vocab, size.d_vocab_out)

        def forward(self, tokens):
            assert tokens.shape[1] == self.size.n_ctx
            return self.row(tokens)

    def run_all(works, rounds):
        for work in works.values():
            work()
        return dict.fromkeys(works, 1.0)

    monkeypatch.setattr(perf, "turns", run_all)
    monkeypatch.setitem(sys.modules, "transformer_lens", None)
    assert not [name for name in perf.step_ratios("smoke", 1) if "lens" in name]
    fake = SimpleNamespace(HookedTransformer=Hooked, HookedTransformerConfig=SimpleNamespace)
    monkeypatch.setitem(sys.modules, "transformer_lens", fake)
    found = perf.step_ratios("smoke", 1)
    assert found["step_over_lens"] == found["arithmetic_over_lens"] == 1.0
    assert {"step_over_lens", "arithmetic_over_lens"} < set(perf.MEANING)


def test_json_holds_what_the_table_shows(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(perf, "measure", lambda progress: {"sampling_over_plain": 190.0, "small_step_over_plain": 0.5})
    assert main(["perf", "--json", str(tmp_path / "made" / "perf.json")]) == 0
    assert json.loads((tmp_path / "made" / "perf.json").read_text()) == perf.measure(None)
    out = capsys.readouterr().out
    assert "190" in out
    assert "0.50" in out
