"""What README, docs and RULES state is what the code and the published records say, by row and column."""

import csv
import os
import re
import subprocess
import sys
from math import log2
from pathlib import Path
from statistics import mean

import pytest

from bench.board.glossary import GLOSSARY, MARKS
from bench.board.overview import PRIMITIVES, make_board, primitive_tasks
from bench.board.results import columns
from bench.board.shares import HELD, PARTLY
from bench.claims.published import CLAIMS
from bench.presets import NEWER_BLOCK, PRESETS, SIZES
from bench.records import read_all
from bench.run.score import METRICS
from bench.stats import APART, SLACK, paired_p
from models.base import ARCHS
from tasks.base import TASKS

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "leaderboard/RULES.md")]
PAGES += sorted((ROOT / "docs").glob("*.md"))
README, CONTRIBUTING, RULES = (page.read_text() for page in PAGES[:3])
READING, RUNNING, EXTENDING, TASKS_PAGE = (
    (ROOT / "docs" / name).read_text() for name in ("reading.md", "running.md", "extending.md", "tasks.md")
)


def section(page, title):
    return page.split(f"\n## {title}\n")[1].split("\n## ")[0]


def tables(text):
    """Every table of a page: header and rows, each a list of cells."""
    found = re.findall(r"((?:^\|.*\|\n)+)", text + "\n", re.MULTILINE)
    rows = [[[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in t.splitlines()] for t in found]
    return [(header, body) for header, _, *body in rows]


def unescaped(cell):
    return cell.replace("\\|", "|")


def names(cells):
    """All names in backticks, in order."""
    return [name for cell in cells for name in re.findall(r"`([^`]+)`", cell)]


@pytest.fixture(scope="module")
def board():
    records, problems = read_all(ROOT / "leaderboard/runs")
    assert not problems
    return make_board(records)


@pytest.fixture(scope="module")
def row(board):
    """A published row with its preset's settings, on exact targets unless told otherwise."""

    def find(task, arch, preset="quick", supervision="posterior"):
        return ranking(board, task, preset, supervision).one_row_each()[arch]

    return find


def ranking(board, task, preset, supervision="posterior"):
    return next(r for r in board.rankings if (r.group.label, *r.group.track) == (task, preset, supervision, "cpu"))


def test_the_readmes_results_are_what_the_published_records_give():
    command = [sys.executable, "leaderboard/summary.py", "--check"]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False)
    assert done.returncode == 0, "run python leaderboard/summary.py"


def test_every_sentence_of_the_readmes_results_names_seeds_and_row():
    block = README.split("<!-- results:begin -->")[1].split("<!-- results:end -->")[0]
    sentences = re.findall(r"^- .+", block, re.MULTILINE)
    header, _ = tables(block)[0]
    assert [names([sentence])[0] for sentence in sentences] == names(header)
    for sentence in sentences:
        if sentence.endswith("no row is ranked yet."):
            continue
        assert re.search(r"\([\d.e-]+( [\[(].+)?, \d+ (recipe )?seeds?", sentence), sentence


def test_the_glossary_is_the_boards():
    header, body = tables(section(READING, "Glossary"))[0]
    assert header == ["term", "what it means"]
    assert {unescaped(term): unescaped(meaning) for term, meaning in body} == GLOSSARY
    assert len(body) == len(GLOSSARY) <= 25


def test_every_mark_is_explained_by_its_constant():
    _, body = tables(section(READING, "Marks"))[0]
    explained = {mark: meaning for mark, _, meaning in body}
    assert {mark: explained[mark] for mark in MARKS} == MARKS
    pages = {name: (ROOT / "leaderboard" / name).read_text() for name in ("README.md", "hmm.md", "group.md")}
    used = {"README.md": "†~", "hmm.md": "†°-", "group.md": "~"}
    for name, marks in used.items():
        for mark in marks:
            assert f"{mark}: {MARKS[mark]}." in pages[name], (name, mark)


def test_every_column_of_the_csv_is_documented_in_order():
    _, body = tables(section(READING, "Columns of results.csv"))[0]
    assert names(line[0] for line in body) == columns()


def test_every_metric_is_documented_in_order():
    _, body = tables(section(READING, "Metrics"))[0]
    assert names(line[0] for line in body) == list(METRICS)


def test_every_preset_and_architecture_has_a_row():
    _, presets = tables(section(RUNNING, "Presets"))[0]
    assert sorted(names(line[0] for line in presets)) == sorted([*PRESETS, "auto"])
    _, archs = tables(section(RUNNING, "Architectures"))[0]
    assert sorted(names(line[0] for line in archs)) == sorted(ARCHS.names())


def test_the_uniform_predictor_scores_what_reading_says():
    scored = mean(log2(20) - log2(21 - k) for k in range(1, 21))
    says = " ".join(READING.split())
    assert f"on `bijection` is worse than guessing: the uniform predictor scores {scored:.3f}." in says


def test_published_numbers_in_the_documents_are_those_of_the_claims():
    published = {claim.id: claim.published for claim in CLAIMS if hasattr(claim, "published")}
    reading, tasks = (" ".join(text.split()) for text in (READING, TASKS_PAGE))
    mlp = published["v1-bijection-mlp"]
    assert f"A published MLP error of {mlp:g} bits on `bijection`" in reading
    assert f"A published MLP has {mlp:g} bits, worse than uniform" in tasks
    lstm, mlp = published["v3-hmm-tokens-lstm"], published["v3-hmm-tokens-mlp"]
    assert f"The published LSTM ({lstm:.3f}) and MLP ({mlp:.2f}) are at the uniform predictor of `hmm-tokens`" in tasks


def test_the_readme_describes_the_quick_suite():
    quick = PRESETS["quick"]
    count = {4: "four", 5: "five"}
    says = f"the quick suite ({count[len(quick.tasks)]} tasks, {count[len(quick.archs)]} architectures;"
    assert says in " ".join(README.split())


def test_thresholds_in_the_documents_are_those_of_the_code():
    reading, rules = " ".join(READING.split()), " ".join(RULES.split())
    held, partly = f"{100 * HELD:.0f} %", f"{100 * PARTLY:.0f} %"
    assert f"holds* a primitive if its error is below {held} of the best constant's and its KL below {held}" in reading
    assert f"below {partly} it holds it *partly*" in reading
    assert f"the error is below {held} of the best constant's and the KL below {held} of the uniform" in rules
    assert f"below {partly} it holds it partly" in rules
    for page in (reading, rules):
        assert f"given a factor of {SLACK:g} either way" in page
    verdicts = section(READING, "Verdicts")
    assert set(re.findall(r"factor of ([\d.]+)", verdicts)) == {f"{SLACK:g}"}
    assert f"Where seeds form two groups (a factor of {APART:g} between two neighbours)" in reading
    least = paired_p(dict.fromkeys(range(3), 1.0), dict.fromkeys(range(3), 2.0))
    assert f"With three seeds `p` cannot fall below {least:g}" in reading
    assert f"With three seeds `p` cannot fall below {least:g}" in rules


def test_the_primitives_in_the_rules_are_those_of_the_tasks():
    rules = " ".join(RULES.split())
    for primitive in PRIMITIVES:
        listed = re.search(rf"{primitive} \([^:]+: ([^)]+)\)", rules)[1]
        assert sorted(names([listed])) == sorted(primitive_tasks(primitive))


def test_the_rules_name_the_evaluation_sequences_of_every_preset():
    usual, fewer, which = re.search(r"sequences \(([\d,]+); (\d+) for (.+?), whose", " ".join(RULES.split())).groups()
    listed = names([which])
    for name, preset in PRESETS.items():
        if name != "smoke":
            sequences = {preset.values_for(task)["sequences"] for task in preset.tasks}
            assert sequences == {int((fewer if name in listed else usual).replace(",", ""))}


def test_what_the_tables_cannot_show_is_true(board, row):
    says = " ".join(section(RULES, "What this table cannot show").split())
    assert "on `hmm` the LSTM's error at `quick` is more than ten times that at `small`" in says
    assert row("hmm", "lstm").scores.mae > 10 * row("hmm", "lstm", "small").scores.mae
    least = paired_p(dict.fromkeys(range(5), 1.0), dict.fromkeys(range(5), 2.0))
    assert f"with five not below {least:g}" in says
    with (ROOT / "docs/recipe/starts.csv").open() as file:
        assert f"initialised was tried in {len(list(csv.DictReader(file)))} runs" in says
    assert f"their recall stores {TASKS['recall-64']().pairs} pairs" in says
    assert "the LSTM is ahead of the transformer by MAE and behind it by KL" in says
    lstm, transformer = (row("bijection", arch, "small", "sampled").scores for arch in ("lstm", "transformer"))
    assert lstm.mae < transformer.mae
    assert lstm.kl > transformer.kl
    assert (
        "Of the tasks published at `quick`, only `group`, `hmm`, `hmm-sticky` and `markov` have more than three layers"
        in says
    )
    deep = {task for task in board.headline.tasks if PRESETS["quick"].values_for(task)["layers"] > 3}
    assert deep == {"group", "hmm", "hmm-sticky", "markov"}


@pytest.mark.parametrize("page", ["docs/running.md", "docs/recipe.md"])
def test_the_tasks_with_the_newer_block_are_those_of_the_presets(page):
    says = " ".join((ROOT / page).read_text().split())
    sentence = re.search(r"On `hmm` and [^.]+ do\.", says)[0]
    stated = set()
    for clause in sentence.split(";"):
        listed = names([clause])
        stated |= {(preset, task) for preset in listed if preset in PRESETS for task in listed if task in TASKS.names()}
    assert stated == {
        (name, task)
        for name in SIZES
        for task in TASKS.names()
        if name != "smoke" and NEWER_BLOCK.items() <= PRESETS[name].values_for(task).items()
    }


def test_the_readmes_caption_names_every_baseline_of_its_heat_map(board):
    caption = " ".join(README.split("</picture>")[1].split("\n\n")[1].split())
    for baseline in set(board.headline.baselines.values()):
        assert f"{baseline}'s" in caption


def test_contributing_and_extending_list_the_same_files():
    _, body = tables(section(CONTRIBUTING, "Add something"))[0]
    for what, files in body:
        title = what.replace("[", "").split("]")[0]
        listed = re.search(r"^Files: (.+)\.$", section(EXTENDING, title[0].upper() + title[1:]), re.MULTILINE)[1]
        assert names([files]) == names([listed]), title
    assert [what.split("[")[1].split("]")[0] for what, _ in body] == [
        "architecture", "task", "metric", "diagnostic", "claim",
    ]  # fmt: skip


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_and_link_that_a_page_names_exists(page):
    text = page.read_text()
    listed = re.findall(r"`((?:bench|models|tasks|tests|docs|leaderboard)/[\w./-]*)`", text)
    made = {
        "leaderboard/runs/self-reported/",
        "models/decay.py",
        "models/fast_weights.py",
        "models/gla.py",
    }  # by others, by the reader
    for name in set(listed) - made:
        assert (ROOT / name if "NAME" not in name else (ROOT / name).parent).exists(), name
    for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text) + re.findall(r'(?:src|srcset)="([^"]+)"', text):
        assert (page.parent / link).exists(), link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_to_a_section_finds_it(page):
    for link, anchor in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", page.read_text()):
        target = page.parent / link if link else page
        titles = re.findall(r"^#+ (.+)$", target.read_text(), re.MULTILINE)
        anchors = {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
        assert anchor in anchors, f"{link}#{anchor}"


def test_the_recipe_page_is_what_its_records_and_trials_give():
    command = [sys.executable, "docs/recipe/render.py", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
