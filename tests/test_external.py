"""Code from outside: files, packages, entry points; here, in workers and on Ray; and all that is refused."""

import hashlib
import json
import os
import re
import shlex
import zipfile
from pathlib import Path

import pytest
from fixtures import make_record
from rich.console import Console

from bench import external
from bench.board.reproduce import commands
from bench.board.rows import make_rankings
from bench.cli import main
from bench.config import compose
from bench.engine.dispatch import run_all
from bench.engine.plan import Plan
from bench.records import BadRecord, parse, read
from models.base import ARCHS
from tasks.base import TASKS

os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # on Linux too: 127.0.0.1 stays what it is
ROOT = Path(__file__).resolve().parent.parent
MODEL = re.search(r"`my_model.py`.*?```python\n(.*?)```", (ROOT / "docs/extending.md").read_text(), re.DOTALL)[1]
SMALL = ["--preset", "smoke", "--set", "layers=2", "width=16", "heads=2", "steps=3", "sequences=16", "horizons=20"]

TASK = '''"""Coins with a bias of 1/4 or 3/4."""
from dataclasses import dataclass
import torch
from tasks.base import TASKS, Batch, Shape, require

@TASKS.add("two-coins", version=1)
@dataclass(frozen=True)
class TwoCoins:
    bias: float = 0.75
    horizon: int = 20

    def __post_init__(self):
        require(self.horizon >= 1, "horizon must be at least 1")

    @property
    def shape(self):
        return Shape(vocab=2, features=0, classes=2, header=0, stride=1, horizon=self.horizon)

    def max_horizon(self):
        return None

    def sample(self, n, horizon, rng):
        coin = torch.where(torch.rand(n, 1, generator=rng, device=rng.device) < 0.5, self.bias, 1 - self.bias)
        flips = (torch.rand(n, horizon + 1, generator=rng, device=rng.device) < coin).long()
        queries = torch.arange(horizon, device=rng.device)
        return Batch(flips[:, :-1], flips.new_zeros(n, horizon, 0).double(), flips[:, 1:], queries)

    def posterior(self, batch):
        heads = batch.tokens.cumsum(1).double()
        tails = (1 - batch.tokens).cumsum(1).double()
        odds = (self.bias / (1 - self.bias)) ** (heads - tails)
        p = (self.bias * odds + 1 - self.bias) / (odds + 1)
        return torch.stack([1 - p, p], -1)
'''


@pytest.fixture(autouse=True)
def _forget_external_code():
    yield
    for code in external.loaded_code():
        ARCHS.forget(code.origin)
        TASKS.forget(code.origin)


@pytest.fixture
def bench(tmp_path, monkeypatch, capsys):
    """A command in an empty folder: its exit code, and what it wrote to stdout and stderr."""
    monkeypatch.chdir(tmp_path)

    def call(*words):
        code = main(list(words))
        said = capsys.readouterr()
        return code, said.out, said.err

    return call


@pytest.fixture
def package(tmp_path, monkeypatch):
    """An installed package, my_package 0.3, that offers an architecture and a task."""

    def make(name="my_package", model=MODEL):
        folder = tmp_path / "site" / name
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text("")
        (folder / "models.py").write_text(model)
        (folder / "coins.py").write_text(TASK)
        info = tmp_path / "site" / f"{name}-0.3.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.3\n")
        (info / "entry_points.txt").write_text(
            f"[tunnel_bench.architectures]\ntiny-gru = {name}.models\n[tunnel_bench.tasks]\ntwo-coins = {name}.coins\n"
        )
        monkeypatch.syspath_prepend(tmp_path / "site")
        return folder

    return make


def records(folder):
    return sorted(Path(folder, "results").rglob("*.json"))


def digest(text):
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def test_a_file_gives_a_row_and_a_changed_file_another_run(bench, tmp_path):
    Path("my_model.py").write_text(MODEL)
    words = ["run", "--arch", "./my_model.py", "--task", "bijection", *SMALL]
    code, out, err = bench(*words)
    assert (code, err) == (0, "")
    (path,) = records(tmp_path)
    config = read(path).config
    assert (config.arch, config.arch_source, config.task_source) == ("tiny-gru", digest(MODEL), "")
    assert path.with_suffix(".arch.py").read_text() == MODEL
    mark = f"tiny-gru (external {digest(MODEL)[7:15]})"
    assert mark in out
    assert mark in Path("results/bijection.md").read_text()
    assert bench(*words)[0] == 0
    assert records(tmp_path) == [path]  # a finished run is not repeated
    Path("my_model.py").write_text(MODEL + "# another text\n")
    assert bench(*words)[0] == 0
    assert len(records(tmp_path)) == 2
    assert path.exists()
    assert len(set(re.findall(r"tiny-gru \(external \w{8}\)", Path("results/bijection.md").read_text()))) == 2
    assert bench(*words, "--fresh")[0] == 0
    assert len(list(tmp_path.rglob("*.arch.py"))) == 2


def test_the_example_is_short_and_trains_at_every_budget_of_quick(bench):
    assert len([line for line in MODEL.splitlines() if line]) <= 15
    Path("my_model.py").write_text(MODEL)
    name = external.find(ARCHS, "./my_model.py")
    for task in TASKS.names():
        compose("quick", name, task, 10, "cpu", {})  # refuses a model that misses its budget


def test_one_of_several_is_chosen_by_name_and_both_make_a_grid(bench, tmp_path):
    second = (
        MODEL.replace("tiny-gru", "tiny-gru-2").replace("class TinyGRU", "class Other").replace("TinyGRU(", "Other(")
    )
    Path("two.py").write_text(MODEL + second)
    assert bench("run", "--arch", "two.py:tiny-gru-2", "--task", "bijection", *SMALL)[0] == 0
    assert [path.parent.name for path in records(tmp_path)] == ["tiny-gru-2"]
    code, out, _ = bench("run", "--arch", "two.py:tiny-gru", "two.py:tiny-gru-2", "mlp", "--task", "bijection", *SMALL)
    assert (code, out.startswith("3 runs")) == (0, True)
    assert len(records(tmp_path)) == 3


def test_a_module_of_a_package_is_found_and_its_whole_package_hashed(bench, package, tmp_path):
    folder = package("my_package")
    assert bench("run", "--arch", "my_package.models:tiny-gru", "--task", "bijection", *SMALL)[::2] == (0, "")
    (path,) = records(tmp_path)
    kept = path.with_suffix(".arch.txt").read_text()
    assert MODEL in kept
    assert "# my_package/coins.py" in kept
    assert read(path).config.arch_source == digest(kept)
    (folder / "__init__.py").write_text("# changed\n")
    code, _, err = bench("run", "--arch", "my_package.models:tiny-gru", "--task", "bijection", *SMALL)
    assert (code, err.count("\n")) == (2, 1)
    assert "changed since it was imported" in err


def test_entry_points_are_listed_with_their_package_and_run_by_name(bench, package, tmp_path):
    package("their_package")
    code, out, _ = bench("list")
    listed = " ".join(out.split())  # a narrow terminal breaks lines
    assert code == 0
    assert "tiny-gru from package their_package 0.3 (their_package.models)" in listed
    assert "two-coins from package their_package 0.3 (their_package.coins)" in listed
    assert bench("run", "--arch", "tiny-gru", "--task", "two-coins", *SMALL)[::2] == (0, "")
    (path,) = records(tmp_path)
    assert (read(path).config.arch_source[:7], read(path).config.task_source[:7]) == ("sha256:", "sha256:")


def test_an_entry_point_may_have_a_name_that_python_likes_better(bench, package, tmp_path):
    info = package("spelt_package").parent / "spelt_package-0.3.dist-info/entry_points.txt"
    info.write_text("[tunnel_bench.architectures]\nTiny_GRU = spelt_package.models\n")
    assert bench("run", "--arch", "Tiny_GRU", "--task", "bijection", *SMALL)[::2] == (0, "")
    assert [read(path).config.arch for path in records(tmp_path)] == ["tiny-gru"]


def test_a_module_without_a_package_is_found_by_its_name(bench, tmp_path, monkeypatch):
    (tmp_path / "onefile.py").write_text(MODEL)
    monkeypatch.syspath_prepend(tmp_path)
    assert bench("run", "--arch", "onefile", "--task", "bijection", *SMALL)[::2] == (0, "")


def test_a_package_without_python_files_is_refused(bench, tmp_path, monkeypatch):
    with zipfile.ZipFile(tmp_path / "zipped.zip", "w") as archive:
        archive.writestr("zipped_package/__init__.py", MODEL)
    monkeypatch.syspath_prepend(str(tmp_path / "zipped.zip"))
    code, _, err = bench("run", "--arch", "zipped_package:tiny-gru", "--task", "bijection", *SMALL)
    assert (code, err.count("\n")) == (2, 1)
    assert "package 'zipped_package' has no Python files here" in err


def test_a_package_that_cannot_be_imported_is_listed_and_refused_in_one_line(bench, package):
    package("broken_package", "import nothing_of_this_name\n")
    assert "broken_package 0.3" in bench("list")[1]
    code, _, err = bench("run", "--arch", "tiny-gru", "--task", "bijection", *SMALL)
    assert (code, err.count("\n")) == (2, 1)
    assert "broken_package.models cannot be loaded: ModuleNotFoundError: No module named 'nothing_of" in err
    assert not Path("results").exists()


def test_a_link_to_nothing_beside_a_package_is_not_part_of_it(package):
    """Editors leave such links beside a file that is being edited."""
    folder = package("linked_package")
    (folder / ".#models.py").symlink_to("nobody@nowhere")
    assert external.read_code("linked_package.models").text.count("# linked_package/") == 3


def test_workers_use_the_text_that_the_command_has_read(bench, tmp_path, package):
    """Both processes train although the file is gone, and give what one process gives."""
    Path("my_model.py").write_text(MODEL)
    Path("my_task.py").write_text(TASK)
    arch, task = external.find(ARCHS, "my_model.py"), external.find(TASKS, "my_task.py")
    few = {"layers": 2, "width": 16, "heads": 2, "steps": 3, "sequences": 16, "horizons": (20,)}
    configs = [compose("smoke", arch, task, seed, "cpu", few) for seed in (10, 11)]
    Path("my_model.py").unlink()
    Path("my_task.py").write_text("raise RuntimeError('a text that nobody asked to run')")
    code = external.loaded_code()
    apart = run_all(configs, Plan(tmp_path / "two", jobs=2, code=code), Console(quiet=True))
    here = run_all(configs, Plan(tmp_path / "one", code=code), Console(quiet=True))
    assert [record.error for record in apart] == [None, None]
    assert [record.weights for record in apart] == [record.weights for record in here]
    assert {p.read_text() for p in (tmp_path / "two").rglob("*.task.py")} == {TASK}


def test_the_command_with_two_jobs_gives_both_rows(bench, tmp_path, package):
    Path("my_model.py").write_text(MODEL)
    package("jobs_package")
    words = ["run", "--arch", "./my_model.py", "--task", "jobs_package.coins:two-coins", "--seeds", "2", "--jobs", "2"]
    assert bench(*words, *SMALL)[::2] == (0, "")
    assert [read(path).status for path in records(tmp_path)] == ["ok", "ok"]
    assert len(list(tmp_path.rglob("*.arch.py"))) == 2


def test_ray_workers_use_the_text_that_the_command_has_read(bench, tmp_path):
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    here = {"node_ip_address": "127.0.0.1", "object_store_memory": 80_000_000}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False, **here})
    try:
        Path("my_model.py").write_text(MODEL)
        words = [
            "run",
            "--arch",
            "./my_model.py",
            "--task",
            "bijection",
            "--engine",
            "ray",
            "--address",
            cluster.address,
        ]
        assert bench(*words, *SMALL)[::2] == (0, "")
    finally:
        ray.shutdown()
        cluster.shutdown()
    (path,) = records(tmp_path)
    assert read(path).status == "ok"
    assert path.with_suffix(".arch.py").read_text() == MODEL


def changed(old, new):
    assert old in MODEL
    return MODEL.replace(old, new)


MIXED = "self.cell(self.embed(tokens_BT, features_BTF))[0]"
LATER = f"{MIXED}.flip(1).cumsum(1).flip(1)"
AHEAD = "        self.ahead = nn.Linear(width, width)\n        nn.init.zeros_(self.ahead.weight)\n        self.head ="
BLOCKS = """
def blocks(x, size):
    out = x.clone()
    for i in range(0, x.shape[1], size):
        out[:, i : i + size] = x[:, i : i + size].mean(1, keepdim=True)
    return out
"""


def in_blocks(size):
    """It sees the future inside blocks of this size alone."""
    return changed(MIXED, f"blocks({MIXED}, {size})") + BLOCKS


BAD = {
    "a syntax error": ("def x(:", "my_model.py cannot be loaded: SyntaxError: invalid syntax (my_model.py, line 1)"),
    "an error": ("\n1 / 0", "my_model.py cannot be loaded: ZeroDivisionError: division by zero (my_model.py, line 2)"),
    "an exit": ("import sys\nsys.exit(3)", "my_model.py cannot be loaded: SystemExit: 3"),
    "a neighbour": ("import other_file_here", "ModuleNotFoundError: No module named 'other_file_here'"),
    "bytes": (b"\xff\xfe", "is not text in UTF-8"),
    "no registration": ("x = 1", "my_model.py registers no architecture: decorate one with @ARCHS.add('my-name')"),
    "a task alone": (TASK, "my_model.py registers no architecture"),
    "two": (
        changed('@ARCHS.add("tiny-gru"', '@ARCHS.add("another")\n@ARCHS.add("tiny-gru"'),
        "registers several architectures, tiny-gru, another: choose with my_model.py:tiny-gru",
    ),
    "our name": (changed('"tiny-gru"', '"mlp"'), "architecture 'mlp' is registered already: choose another name"),
    "no name": (changed('"tiny-gru"', '"Tiny GRU"'), "architecture 'Tiny GRU' needs another name"),
    "the future": (changed(MIXED, LATER), "tiny-gru sees the future: what follows position"),
    "the future, through weights that start at zero": (
        changed("        self.head =", AHEAD).replace(f"({MIXED})", f"({MIXED} + self.ahead({LATER}))"),
        "tiny-gru sees the future: what follows position",
    ),
    **{f"the future in blocks of {n}": (in_blocks(n), "tiny-gru sees the future: what follows") for n in (2, 3, 5, 13)},
    "chance": (
        changed(MIXED, f"{MIXED} + __import__('torch').randn(())"),
        "tiny-gru answers the same question differently when it is asked again",
    ),
    "no number": (changed(MIXED, f"{MIXED} * float('nan')"), "tiny-gru returns numbers that are not finite"),
    "no size": (
        changed("geometry.width, n)), params)", "geometry.width, 8)), params)"),
        "its number of parameters does not grow with its size",
    ),
    "a long name": (changed('"tiny-gru"', f'"{"a" * 65}"'), "needs a name of at most 64 letters"),
    "a reserved name": (
        changed('"tiny-gru"', '"tuning"'),
        "'tuning' needs another name: results have a folder or a page",
    ),
    "its neighbours": (changed(MIXED, f"{MIXED} + {MIXED}.mean(0, keepdim=True)"), "tiny-gru mixes sequences"),
    "the wrong shape": (changed(f"({MIXED})", f"({MIXED})[..., :-1]"), "tiny-gru returns [2, 39, 19], where"),
    "a broken forward": (changed(MIXED, "nothing"), "tiny-gru on bijection cannot be run: NameError: name 'nothing'"),
    "the wrong size": (changed("width, size)", "width, 2 * size)"), "no size of it is within 1 % of"),
    "no module": (changed("return TinyGRU(", "return len("), "no tiny-gru on bijection can be built from this"),
}


def test_a_model_that_ends_before_the_longest_horizon_says_so_before_training(bench):
    check = "        assert tokens_BT.shape[1] <= 40, 'too long'\n        return self.head"
    Path("my_model.py").write_text(changed("        return self.head", check))
    words = ["run", "--arch", "./my_model.py", "--task", "hmm", *SMALL, "--set", "horizons=20,50"]
    code, _, err = bench(*words)
    assert (code, err.count("\n")) == (2, 1)
    assert "tiny-gru cannot read 60 positions, which horizon 50 has, and has no max_length that says so: " in err
    Path("my_model.py").write_text(changed("        return self.head", check) + "\nTinyGRU.max_length = 40\n")
    assert bench(*words)[0] == 0


def test_horizons_that_the_task_has_not_are_no_models_fault(bench):
    Path("my_model.py").write_text(MODEL)
    words = ["run", "--arch", "./my_model.py", "--task", "bijection", *SMALL, "--set", "horizons=20,30,50"]
    assert bench(*words)[::2] == (0, "")


@pytest.mark.parametrize("case", BAD)
def test_a_bad_file_is_refused_in_one_line_and_nothing_is_written(bench, case):
    text, reason = BAD[case]
    Path("my_model.py").write_bytes(text if isinstance(text, bytes) else text.encode())
    code, out, err = bench("run", "--arch", "./my_model.py", "--task", "bijection", *SMALL)
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert reason in err
    assert [path.name for path in Path().iterdir()] == ["my_model.py"]
    assert external.loaded_code() == () or "cannot be loaded" not in err
    assert set(ARCHS.names()) >= {"mlp", "transformer"}


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ("./missing.py", "cannot read ./missing.py: No such file or directory"),
        ("./missing.py:name", "cannot read ./missing.py: No such file or directory"),
        ("results/", "cannot read results/: "),
        ("no_such_package.models:name", "no package 'no_such_package' here: install it, or name a file"),
        ("no_such_package:name", "no package 'no_such_package' here"),
        ("__main__:name", "no package '__main__' here"),
        ("json:name", "no architecture in json 'name'. Known: "),
        ("a b:c", "'a b' is neither a file that ends in .py nor a module"),
        ("mpl", "no architecture 'mpl'. Did you mean 'mlp'? Known: "),
    ],
)
def test_what_cannot_be_found_is_refused_in_one_line(bench, word, reason):
    code, out, err = bench("run", "--arch", word, "--task", "bijection", *SMALL)
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert reason in err
    assert list(Path().iterdir()) == []


def test_two_files_cannot_have_one_name(bench):
    Path("a.py").write_text(MODEL)
    Path("b.py").write_text(MODEL + "\n")
    code, _, err = bench("run", "--arch", "a.py", "b.py", "--task", "bijection", *SMALL)
    assert (code, err) == (2, "bench: b.py: architecture 'tiny-gru' is registered already: choose another name\n")


def test_a_task_file_is_run_shown_without_its_code_and_its_parameters_set(bench, tmp_path):
    Path("my_task.py").write_text(TASK)
    words = ["run", "--arch", "mlp-pointwise", "--task", "./my_task.py", *SMALL]
    assert bench(*words)[::2] == (0, "")
    assert bench(*words, "bias=0.9")[::2] == (0, "")
    first, second = sorted(records(tmp_path), key=lambda path: len(read(path).config.task_params))
    assert first.with_suffix(".task.py").read_text() == TASK
    title = f"two-coins (external {digest(TASK)[7:15]})"
    with_code = {path.name: path.read_text() for path in Path("results").glob("*.md")}
    assert f"## {title}: preset smoke" in with_code["two-coins.md"]
    assert f"## {title} bias=0.9: preset smoke" in with_code["two-coins.md"]
    TASKS.forget(str(tmp_path / "my_task.py"))
    code, out, err = bench("board", "--html", "site", "--csv", "all.csv", "--figures")
    assert (code, err) == (0, "")
    assert f"{title}: preset smoke" in out
    assert Path("results/two-coins.md").read_text() == with_code["two-coins.md"]
    command = commands(read(second), second)[-1]
    assert f"--task {second.with_suffix('.task.py')}:two-coins" in command
    assert "bias=0.9" in command
    assert bench(*command.split()[1:], "--out", "again")[::2] == (0, "")
    assert [path.name for path in Path("again").rglob("*.json")] == [second.name]  # the same run


BAD_TASKS = {
    "no dataclass": ("@dataclass(frozen=True)\n", "", "it must be a frozen dataclass, registered with a version"),
    "no version": (', version=1', "", "it must be a frozen dataclass, registered with a version"),
    "no horizon": ("horizon: int = 20", "length: int = 20", "'TwoCoins' object has no attribute 'horizon'"),
    "a broken shape": ("vocab=2, ", "", "TypeError: Shape.__init__() missing 1 required"),
    "tokens": ("Batch(flips[:, :-1]", "Batch(flips[:, :-2]", "tokens must be int64 [4, 20]"),
    "vocabulary": ("vocab=2", "vocab=1", "tokens must be 0 to 0"),
    "single precision": ("[1 - p, p], -1)", "[1 - p, p], -1).float()", "must be float64 [4, 20, 2]"),
    "no distribution": ("[1 - p, p]", "[p, p]", "the posterior must be probabilities that sum to one"),
    "impossible": ("[1 - p, p]", "[0 * p, p / p]", "a target was drawn that the posterior calls impossible"),
    "the answer": ("batch.tokens.cumsum", "batch.targets.cumsum", "the posterior must not use the targets"),
    "chance": ("generator=rng, ", "", "the same generator must draw the same batch"),
    "a crash": ("odds = ", "odds = nothing", "cannot be run: NameError: name 'nothing"),
    "our name": ('"two-coins"', '"hmm"', "task 'hmm' is registered already"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_TASKS)
def test_a_bad_task_is_refused_in_one_line_and_nothing_is_written(bench, case):
    old, new, reason = BAD_TASKS[case]
    assert old in TASK
    Path("my_task.py").write_text(TASK.replace(old, new))
    code, out, err = bench("run", "--arch", "mlp-pointwise", "--task", "my_task.py", *SMALL)
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert reason in err
    assert [path.name for path in Path().iterdir()] == ["my_task.py"]


@pytest.fixture
def foreign(bench, tmp_path):
    """A finished run of a file, in a process that does not know the file; its kept text would leave a trace if run."""
    Path("my_model.py").write_text(MODEL)
    assert bench("run", "--arch", "my_model.py", "--task", "bijection", *SMALL)[0] == 0
    ARCHS.forget(str(tmp_path / "my_model.py"))
    return records(tmp_path)[0]


def test_no_record_and_no_page_loads_code(bench, foreign):
    for path in (Path("my_model.py"), foreign.with_suffix(".arch.py")):
        path.write_text(f"open({str(foreign.parent / 'ran')!r}, 'w')")
    code, out, err = bench("board", "--html", "site", "--csv", "all.csv", "--figures")
    assert (code, err) == (0, "")
    assert "tiny-gru (external" in out
    assert "tiny-gru (external" in Path("all.csv").read_text()
    reason = f"architecture 'tiny-gru' is external code, {digest(MODEL)[:19]}: name its file with --arch"
    assert bench("report", str(foreign)) == (2, "", f"bench: {reason}\n")
    code, out, _ = bench("verify", str(foreign))
    assert (code, f"not verified ({reason})" in out) == (1, True)
    assert not (foreign.parent / "ran").exists()


def test_report_and_verify_take_the_code_that_the_run_used_and_no_other(bench, foreign):
    kept = str(foreign.with_suffix(".arch.py"))
    Path("copy.py").write_text(MODEL)
    code, out, _ = bench("verify", str(foreign), "--arch", kept, "copy.py")  # as all seeds' copies would be given
    assert (code, "1 hold, 0 do not" in out) == (0, True)
    assert bench("report", str(foreign), "--samples", "2", "--arch", kept)[0] == 0
    assert (foreign.with_suffix("") / "report.md").is_file()
    external_code = external.loaded_code()
    for each in external_code:
        ARCHS.forget(each.origin)
    Path("other.py").write_text(MODEL + "\n")
    code, _, err = bench("report", str(foreign), "--arch", "other.py")
    assert (code, err.count("\n")) == (2, 1)
    assert f"was {digest(MODEL)[:19]} in this run, and what --arch names is {digest(MODEL + chr(10))[:19]}" in err


def test_the_commands_of_a_run_name_the_kept_file(bench, foreign, tmp_path):
    verify, *_, run = commands(read(foreign), foreign)
    kept = f"{foreign.with_suffix('.arch.py')}:tiny-gru"
    assert verify == f"bench verify {foreign} --rerun --arch {kept}"
    assert f"--arch {kept}" in run
    assert bench(*run.split()[1:], "--out", "again")[::2] == (0, "")
    assert [path.name for path in Path("again").rglob("*.json")] == [foreign.name]


def test_a_record_of_external_code_is_not_taken_into_the_leaderboard(bench, foreign):
    clean = {**json.loads(foreign.read_text()), "commit": "0" * 40, "dirty": False}
    Path("sent.json").write_text(json.dumps(clean))
    Path("board").mkdir()
    code, _, err = bench("board", "--runs", "board", "--add", "sent.json")
    assert code == 1
    assert "refused sent.json: made with external code: a pull request must add its file" in err
    assert list(Path("board").rglob("*.json")) == []


def test_external_code_cannot_take_the_place_of_ours_in_a_record(foreign):
    text = foreign.read_text().replace('"arch": "tiny-gru"', '"arch": "mlp"')
    with pytest.raises(BadRecord, match="architecture 'mlp' is part of this suite"):
        parse(text)


def test_a_config_of_ours_has_no_new_fields(smoke):
    assert {"arch_source", "task_source"}.isdisjoint(smoke().to_json())


def test_an_external_row_is_ranked_among_ours_and_marked(bench):
    Path("my_model.py").write_text(MODEL)
    external.find(ARCHS, "my_model.py")
    errors = {"tiny-gru": 0.1, "mlp": 0.5}
    (ranking,) = make_rankings([make_record(arch, seed=s, error=e) for arch, e in errors.items() for s in (10, 11)])
    marked = f"tiny-gru (external {digest(MODEL)[7:15]})"
    assert [(row.name, row.rank) for row in ranking.rows] == [(marked, 1), ("mlp", 2)]


UNIFORM = """
import torch

def load():
    return lambda tokens, features: torch.full((*tokens.shape, 2), 0.5)
"""


def test_a_model_trained_elsewhere_is_scored_on_a_task_of_ones_own(bench, tmp_path):
    Path("my_task.py").write_text(TASK)
    Path("mine.py").write_text(UNIFORM)
    words = ["evaluate", "--task", "./my_task.py", "--model", "./mine.py:load", "--preset", "smoke"]
    words += ["--device", "cpu", "--set", "bias=0.9", "sequences=16"]
    assert bench(*words)[::2] == (0, "")
    (path,) = records(tmp_path)
    record = read(path)
    assert (record.config.task, record.config.task_source) == ("two-coins", digest(TASK))
    assert record.config.task_params == {"bias": 0.9}
    assert path.with_suffix(".task.py").read_text() == TASK
    (command,) = commands(record, path)
    assert bench(*shlex.split(command)[1:], "--out", "again")[::2] == (0, "")
    assert [found.name for found in (tmp_path / "again").rglob("*.json")] == [path.name]
    path.unlink()
    Path("my_task.py").write_text(TASK.replace("[1 - p, p]", "[p, p]"))
    code, _, err = bench(*words)
    assert (code, err.count("\n")) == (2, 1)
    assert "the posterior must be probabilities that sum to one" in err
    assert not records(tmp_path)


def test_the_ten_line_mixer_of_the_documentation_gives_a_row_from_a_file_outside(bench, tmp_path):
    text = (ROOT / "docs/extending.md").read_text()
    Path("decay.py").write_text(re.search(r"`models/decay.py`.*?```python\n(.*?)```", text, re.DOTALL)[1])
    words = ["run", "--arch", "./decay.py", "--task", "hmm", "--preset", "quick", "--set", "steps=2", "sequences=16"]
    code, out, err = bench(*words, "--seeds", "1")
    assert (code, err) == (0, "")
    assert "decay (external" in out
    assert bench(*words, "--seeds", "3", "--jobs", "2")[::2] == (0, "")
    found = [read(path) for path in records(tmp_path)]
    assert sorted(record.config.seed for record in found) == [10, 11, 12]
    assert all(record.ok and abs(record.parameters - record.budget) <= 0.01 * record.budget for record in found)
