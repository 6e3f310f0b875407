"""docs/quickstart.ipynb: committed without outputs, and every cell runs."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell

NOTEBOOK = Path(__file__).parents[1] / "docs/quickstart.ipynb"
LEARNED = """
error, known = scored[20].metrics["all"], scored[20].references
print(error["kl"].high < known["uniform"]["all"]["kl"])
print(error["entropy_mae"].high < known["best constant"]["all"]["entropy_mae"])
"""


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    """In a fresh kernel and an empty folder, with one cell more."""
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    notebook.cells.append(new_code_cell(LEARNED))
    folder = tmp_path_factory.mktemp("notebook")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")  # the other tests have the other cores
        NotebookClient(notebook, timeout=900, resources={"metadata": {"path": str(folder)}}).execute()
    assert not list(folder.iterdir())  # it writes nothing
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def printed(cell):
    return "".join(output.get("text", "") for output in cell.outputs)


def test_outputs_are_not_committed():
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    for cell in notebook.cells:
        assert cell.cell_type != "code" or (cell.outputs, cell.execution_count) == ([], None)


def test_it_goes_from_a_task_to_a_scored_model_to_its_curve(executed):
    text = "".join(map(printed, executed))
    assert "exact posterior" in text
    assert "K=50: 0." in text
    assert "best constant: 0." in text
    pictures = [o for cell in executed for o in cell.outputs if "image/png" in o.get("data", {})]
    assert len(pictures) == 1


def test_the_model_has_learned_something(executed):
    """More than predictors that read nothing."""
    assert printed(executed[-1]).split() == ["True", "True"]


def test_nothing_is_written_to_stderr(executed):
    """A warning would be the first thing that a reader sees."""
    assert [o.text for cell in executed for o in cell.outputs if o.get("name") == "stderr"] == []
