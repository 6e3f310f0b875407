"""The emulation of lower precision on a CPU (docs/precision)."""

import importlib.util
import sys
from pathlib import Path

import pytest
import torch

from bench.run import muon, train
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


def test_muon_is_rounded_as_in_bfloat16():
    """Compared with torch's products in bfloat16, which round in the same places; ties may fall to either side."""
    torch.manual_seed(0)
    for shape in ((3, 16, 48), (2, 40, 24)):
        stack = torch.randn(shape)
        exact, low = muon.orthogonalise(stack), muon.orthogonalise(stack.bfloat16()).float()
        ours = emulate.orthogonalise(stack)
        assert torch.equal(ours, ours.bfloat16().float())
        assert (ours - low).norm() < 0.5 * (low - exact).norm()


def test_the_command_of_the_page_goes_on_where_it_stopped_and_prints_the_table(monkeypatch, capsys, tmp_path):
    page = (FILE.parent.parent / "precision.md").read_text()
    command = next(line for line in page.splitlines() if line.startswith("python docs/precision/emulate.py"))
    words = [*command.split()[1:], "--preset", "smoke", "--seeds", "1", "--set", "steps=2", "--out", str(tmp_path)]
    words += ["--task", "bijection"]
    monkeypatch.setattr(sys, "argv", words)
    emulate.main()
    first = capsys.readouterr().out
    rows = [line.split("|") for line in first.splitlines() if line.startswith("| bijection")]
    assert [row[5].strip() for row in rows] == ["fp32", "tf32", "bf16"]
    assert len(list(tmp_path.glob("*.json"))) == 3
    assert muon.orthogonalise.__module__ == "bench.run.muon"
    assert train.backward.__module__ == "bench.run.train"
    next(tmp_path.glob("*-tf32.json")).unlink()
    done = []
    monkeypatch.setattr(emulate, "error", lambda config, precision: done.append(precision) or 0.5)
    emulate.main()
    assert done == ["tf32"]
    monkeypatch.setattr(sys, "argv", [words[0], "--table", str(tmp_path)])
    capsys.readouterr()
    emulate.main()
    assert "| tf32        | 0.5" in capsys.readouterr().out
    assert done == ["tf32"]


def test_the_page_shows_the_table_of_the_published_files():
    """Or says that there are none."""
    folder = FILE.parent / "runs"
    page = (FILE.parent.parent / "precision.md").read_text()
    shown = page.partition("<!-- table -->")[2].partition("<!-- /table -->")[0].strip()
    assert shown == (emulate.table(folder) if any(folder.glob("*.json")) else "Not measured yet.")
