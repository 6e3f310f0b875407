"""The emulation of lower precision on a CPU (docs/precision)."""

import importlib.util
import sys
from pathlib import Path

import pytest
import torch

from bench.run import train
from bench.run.run import make_model

FILE = Path(__file__).resolve().parent.parent / "docs/precision/emulate.py"
spec = importlib.util.spec_from_file_location("emulate", FILE)
emulate = importlib.util.module_from_spec(spec)
spec.loader.exec_module(emulate)


def test_rounding_to_seven_bits_is_bfloat16():
    torch.manual_seed(0)
    x = torch.cat([torch.randn(1000) * 10.0**e for e in range(-6, 7)])
    x = torch.cat([x, torch.tensor([0.0, 1.0, -2.0, 1 + 2**-8, 1 + 3 * 2**-8])])  # ties to even
    assert torch.equal(emulate.rounded(x, 7), x.bfloat16().float())
    assert torch.equal(emulate.rounded(emulate.rounded(x, 10), 10), emulate.rounded(x, 10))
    assert ((emulate.rounded(x, 10) - x).abs() <= 2.0**-11 * x.abs()).all()


@pytest.mark.parametrize(("bits", "least", "most"), [(10, 1e-6, 1e-2), (7, 1e-4, 5e-2)])
def test_forward_and_backward_products_are_rounded(smoke, bits, least, most):
    config = smoke(attention="math")
    data = next(train.draw(config.make_task(), config))

    def gradient(mode):
        model = make_model(config)
        with mode:
            train.backward(model, *data, 1)
        return torch.cat([p.grad.flatten() for p in model.parameters()])

    exact, low = gradient(torch.enable_grad()), gradient(emulate.Rounding(bits))
    assert least < (low - exact).norm() / exact.norm() < most


def test_the_command_of_the_page_prints_a_line_for_each_precision(monkeypatch, capsys):
    page = (FILE.parent.parent / "precision.md").read_text()
    command = next(line for line in page.splitlines() if line.startswith("python docs/precision/emulate.py"))
    monkeypatch.setattr(sys, "argv", [*command.split()[1:], "--preset", "smoke", "--set", "steps=2"])
    emulate.main()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("|")[2].strip() for line in lines[2:]] == ["fp32", "tf32", "bf16"]
    assert train.backward.__module__ == "bench.run.train"
