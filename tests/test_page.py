"""The site, in a real browser: Debian's Chromium, driven by Playwright, opened from a file."""

import hashlib
import json
import os
import re
import shlex
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from bench import reports
from bench.board import site as page
from bench.board.overview import make_board
from bench.board.reproduce import commands
from bench.cli import main, make_parser
from bench.engine.grid import make_configs
from bench.presets import CORE, TASKS
from bench.records import Memory, Seconds, write
from bench.registry import BadInput
from bench.seeds import PUBLISHED_FROM
from tests.fixtures import certain, change, fail, make_record

ROOT = Path(__file__).resolve().parent.parent
ASSETS = ROOT / "bench/board/assets"
HOSTILE = "</script><img src=x onerror='window.hacked=1'><b>bold</b> <!--"
VIEWS = ("board", "curves", "cost", "length", "primitives", "bayes", "claims", "reading")
SVG = '<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"><script>parent.hacked=1</script></svg>'
BAYES = {  # as a report has them, and a test of which this code knows nothing
    "name": "bayes",
    "header": ["test", "statistic", "this run", "exact predictor", "its spread", "z", "note"],
    "rows": [
        ["martingale", "drift", 0.5, 0.0078, 0.0014, 351.6, None],
        ["exchangeability", "share", 0.0215, 0.0, 0.0, None, None],
        ["calibration", "error", None, None, None, None, "n/a: no reason"],
        [HOSTILE, "what", HOSTILE, True, None, None, None],
    ],
}
SECONDS = dict(zip(CORE, (31.0, 7.0, 5.0, 23.0, 11.0), strict=True))  # in another order than the errors


def run(arch, task="hmm", seed=0, factor=1.0, preset="quick", **settings):
    """A record whose error and seconds are its architecture's own."""
    error = 0.03 * 2 ** CORE.index(arch) * factor
    record = make_record(arch, task, PUBLISHED_FROM + seed, error, preset=preset, **settings)
    return replace(record, seconds=Seconds(setup=1.0, train=SECONDS[arch], eval=1.0))


def suite(**settings):
    return [run(arch, task, **settings) for task in TASKS for arch in CORE]


def make_site(out, records, reported=(), claims=(), runs=None):
    runs = runs or [out.parent]
    board = make_board(records, reported)
    page.write(out, runs, board, claims, reports.find(runs, board.records))


def make_records():
    """Three seeds, two presets, a GPU with energy, a failed run, and one whose every text is an attack."""
    ours = suite()
    made = [run(a, t, seed, 1 + seed / 5, "small") for t in ("bijection", "hmm") for a in CORE for seed in range(3)]
    memory = Memory(resident=2**30, allocated=2**28, reserved=2**29)
    on_gpu = [run(arch, preset="paper", device="cuda") for arch in CORE]
    made += [replace(r, energy_joules=1000.0 + i, memory_bytes=memory) for i, r in enumerate(on_gpu)]
    made.append(fail(run("transformer", "bijection", 9), HOSTILE))
    strange = change(ours[0], preset=HOSTILE, task_params={"note": HOSTILE})
    platform = {**strange.platform, "name": HOSTILE, "why": HOSTILE}
    made.append(replace(strange, platform=platform, notes=[HOSTILE], commit=HOSTILE))
    return ours + made


def make_report(folder, run):
    folder.mkdir(parents=True)
    (folder / "heat.svg").write_text(SVG)
    table = {"name": "counts", "header": ["what", HOSTILE], "rows": [["a", 0.123456], [HOSTILE, None]]}
    good = {"title": "Which layers does it need?", "status": "ok", "text": HOSTILE, "tables": [table],
            "figures": [{"name": "heat", "caption": "A heat map."}]}  # fmt: skip
    tests = {"title": "Is it Bayesian at all?", "status": "ok", "text": "", "tables": [BAYES], "figures": []}
    gone = {"title": "Not here", "status": "n/a", "text": "no taps", "tables": [], "figures": []}
    (folder / "report.json").write_text(json.dumps({"run": run, "title": "t", "sections": [good, gone, tests]}))


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The page of all these, as the command writes it, with a report beside one record."""
    folder = tmp_path_factory.mktemp("site")
    ours = make_records()
    reported = [run(arch, "bijection", 7, 0.9) for arch in CORE[:3]]
    first = next(r for r in ours if r.config.task == "hmm")
    make_report(folder / "runs" / first.path.with_suffix(""), first.id)
    make_site(folder / "site", ours, reported, runs=[folder / "runs"])
    (folder / "site" / "reported").write_text(first.id)
    return folder / "site"


@pytest.fixture(scope="module")
def browser():
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        pytest.skip("NO BROWSER, THE PAGE WAS NOT TESTED: install Debian's chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        root = os.geteuid() == 0  # whom Chromium's sandbox refuses
        opened = driver.chromium.launch(executable_path=found, args=["--no-sandbox"] if root else [])
        yield opened
        opened.close()


@pytest.fixture
def visit(browser):
    """Open a page of a site; afterwards nothing may have complained, and nothing may have left this machine."""
    contexts, complaints = [], []

    def call(path, address="", width=1280, scheme="light"):
        contexts.append(browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme))
        tab = contexts[-1].new_page()
        tab.on("console", lambda message: complaints.append(message.text))
        tab.on("pageerror", lambda error: complaints.append(str(error)))
        tab.on("request", lambda r: r.url.startswith(("file:", "data:")) or complaints.append(r.url))
        if path.exists():
            tab.goto(path.as_uri() + address)
            tab.wait_for_selector("main")
        return tab

    yield call
    for context in contexts:
        context.close()
    assert not complaints


def draw(tab):
    """Scroll through all charts, as a reader would, until each is drawn; the number of marks of each."""
    charts = tab.locator(".chart")
    for i in range(charts.count()):
        charts.nth(i).scroll_into_view_if_needed()
        tab.wait_for_function("i => document.querySelectorAll('.chart')[i].dataset.drawn", arg=i)
    script = "all => all.map(c => [...c.querySelectorAll('.role-mark path, .role-mark line')].filter(m => {"
    script += "const b = m.getBBox(); return b.width > 0 || b.height > 0 }).length)"
    return charts.evaluate_all(script)


@pytest.mark.parametrize("view", VIEWS)
def test_a_view_opens_from_a_file_and_every_chart_has_marks(site, visit, view):
    tab = visit(site / "index.html", f"#{view}")
    assert tab.locator("nav [aria-current=page]").inner_text() == tab.title().split(" · ")[0]
    marks = draw(tab)
    assert len(marks) == {"curves": 4, "cost": 4, "length": 7}.get(view, 0)  # bijection has no longer horizon
    assert all(count > 1 for count in marks)


def test_a_run_has_a_page_with_its_curves_commands_and_report(site, visit):
    tab = visit(site / "runs" / f"{(site / 'reported').read_text()}.html")
    assert len(draw(tab)) == 3
    text = tab.locator("main").inner_text()
    for said in (
        "bench run --preset quick",
        "bench verify",
        "git checkout 1234567",
        "Which layers does it need?",
        "n/a",
    ):
        assert said in text
    assert "0.12346" in text
    assert HOSTILE in text
    assert tab.locator(".picture img").evaluate("image => image.naturalWidth") == 9
    assert tab.evaluate("window.hacked") is None
    tab.locator("nav a", has_text="Leaderboard").click()
    tab.wait_for_selector(".ranking")
    assert tab.locator("h3 .tags span").all_text_contents() == ["quick", "posterior", "cpu"]
    ended = [record.id for record in make_records() if record.ok and HOSTILE not in str(record)]
    other = visit(next(site / f"runs/{id}.html" for id in ended if id not in tab.url))
    assert f"bench report {Path(other.url).stem}" in other.locator("main").inner_text()


def test_the_first_view_is_the_heat_map_of_the_headline_track_and_a_click_opens_a_table(site, visit):
    tab = visit(site / "index.html")
    assert tab.locator("main table").count() == 1
    assert tab.locator("h3 .tags span").all_text_contents() == ["quick", "posterior", "cpu"]
    assert tab.locator(".heat thead th").all_text_contents() == list(TASKS)
    assert tab.locator(".heat tbody th").all_text_contents() == list(CORE)  # the least error first
    numbers = tab.locator(".heat tbody tr >> nth=1").locator("td").all_text_contents()
    assert numbers == ["0.0600"] * len(TASKS)
    assert [row.split()[-1] for row in tab.locator(".heat tfoot tr").all_inner_texts()] == ["1.0000", "2.0000"]
    assert tab.evaluate("document.documentElement.scrollHeight") < 1800  # two screens
    cell = tab.get_by_role("link", name="mlp on hmm: 0.0600 bits, 6.0 % of the best constant's error, 1 seed")
    cell.click()
    assert soon(tab, lambda: tab.locator(".ranking").count(), 1)
    assert tab.locator(".card h3").evaluate("h => h.firstChild.textContent") == "hmm"
    assert tab.locator(".ranking tbody th a").all_text_contents() == list(CORE)
    assert tab.evaluate("scrollY") == 0
    tab.locator("a", has_text="All tasks").click()
    assert soon(tab, lambda: tab.locator(".heat").count(), 1)


def test_the_table_of_the_bayesian_tests_has_a_row_for_each_report_that_has_them(site, visit, tmp_path):
    id = (site / "reported").read_text()
    tab = visit(site / "index.html", "#bayes")
    rows = tab.locator(".bayes tbody tr")
    assert rows.count() == 1
    assert tab.locator(".bayes thead th").all_text_contents() == [
        "architecture", "task", "martingale", "exchangeability", "calibration", HOSTILE
    ]  # fmt: skip
    assert rows.locator("td").all_inner_texts() == [
        "hmm\nquick, posterior, cpu", "0.5000\nexact 0.0078 ± 0.0014\nz 351.6 ▲", "0.0215\nexact 0", "n/a", "n/a"
    ]  # fmt: skip
    assert tab.locator(".bayes .far").count() == 1
    assert rows.locator("th a").get_attribute("href") == f"runs/{id}.html"
    make_site(tmp_path / "site", [run("mlp")])  # no report, so no such view
    other = visit(tmp_path / "site/index.html", "#bayes")
    assert other.locator("nav a", has_text="Is it Bayesian?").count() == 0
    assert other.title().startswith("Leaderboard")


def test_a_claim_is_five_short_columns_and_its_reasons_open_below(tmp_path, visit):
    claim = {"claim": "An MLP fails", "published": "1.85", "ours": "0.01", "verdict": "reproduced", "source": "A paper"}
    made = [{**claim, "where": "preset small, 3 seeds", "why": "More steps"}, {**claim, "where": "", "why": ""}]
    make_site(tmp_path / "site", [make_record()], claims=made)
    tab = visit(tmp_path / "site/index.html", "#claims")
    rows = tab.locator(".ledger tbody tr")
    assert [len(row.split("\t")) for row in rows.all_inner_texts()] == [5, 1, 5]  # the second has no reasons
    said = tab.locator(".ledger .note details")
    assert "3 seeds" not in said.inner_text()
    said.locator("summary").click()
    assert said.inner_text().endswith("preset small, 3 seeds. More steps")


def test_a_cell_is_marked_where_seeds_disagree_and_darker_where_the_error_is_larger(tmp_path, visit):
    agree = [run("transformer", "hmm", seed) for seed in (0, 1)]
    torn = [run("mlp", "hmm", seed, factor) for seed, factor in ((0, 0.1), (1, 1.0))]
    other = run("mlp-pointwise", "hmm", steps=7)
    make_site(tmp_path / "site", [*agree, *torn, other])
    for scheme, sign in (("light", -1), ("dark", 1)):
        tab = visit(tmp_path / "site/index.html", scheme=scheme)
        cells = {
            name: (text, shaky == "shaky", sum(map(int, re.findall(r"\d+", colour))))
            for name, text, shaky, colour in tab.locator(".heat tbody tr").evaluate_all(
                "rows => rows.map(r => [r.cells[0].textContent, r.cells[1].textContent, r.cells[1].className, "
                "getComputedStyle(r.cells[1]).backgroundColor])"
            )
        }
        assert {name: cell[:2] for name, cell in cells.items()} == {
            "transformer": ("0.0300", False),
            "mlp": ("0.0330", True),
            "mlp-pointwise": ("0.1200†", True),
        }
        shades = [sign * cells[name][2] for name in ("transformer", "mlp", "mlp-pointwise")]
        assert shades == sorted(set(shades))


def test_where_the_answer_is_certain_every_view_ranks_by_the_kl(tmp_path, visit):
    """An error in entropy says little there: a predictor can be sure, and wrong."""
    kls = {"transformer": 0.02, "lstm": 0.2, "mlp": 1.5}
    made = [certain(make_record(arch, "recall", error=0.01 / (1 + kl), kl=kl)) for arch, kl in kls.items()]
    make_site(tmp_path / "site", [*made, make_record("mlp", "hmm")])
    tab = visit(tmp_path / "site/index.html")
    caption = tab.locator(".card .references").inner_text()
    assert "its share of the best constant's or the uniform predictor's error" in caption
    cell = tab.get_by_role("link", name="transformer on recall: 0.0200 bits, 1.0 % of the uniform predictor's error")
    assert cell.count() == 1
    cell.click()
    assert soon(tab, lambda: tab.locator(".ranking tbody th a").all_text_contents(), list(kls))
    heads = tab.locator(".ranking thead th").all_inner_texts()
    assert (heads[2], heads[4]) == ("KL K=20", "MAE")
    assert column(tab, 3, "recall") == list(kls.values())
    assert column(tab, 5, "recall") == sorted(column(tab, 5, "recall"), reverse=True)
    dots = tab.locator(".ranking tbody .dot").evaluate_all("all => all.map(dot => parseFloat(dot.style.left))")
    assert dots == sorted(set(dots))  # on the scale of the KL
    assert "best constant" not in tab.locator(".references").inner_text()
    group = "DATA.groups.find(group => group.task === 'recall')"
    front = f"pareto({group}.rows, [['uniform', 2]], 'flops', 'error', {{}}).layer[1].data.values.map(p => p.arch)"
    assert tab.evaluate(front) == ["transformer"]  # all cost the same
    first = f"lengths({group}, {group}.rows).layer[1].data.values.map(point => point.value)"
    assert tab.evaluate(first) == list(kls.values())


def column(tab, number, task="hmm"):
    cells = tab.locator(f'section[data-task="{task}"] >> nth=0').locator(f"tbody td:nth-child({number})")
    return [float(c.replace(",", "")) for c in cells.evaluate_all("all => all.map(c => c.firstChild.textContent)")]


def soon(tab, read, expected):
    """The page draws when it comes to it, and on a busy machine that takes a while."""
    for _ in range(100):
        if read() == expected:
            return True
        tab.wait_for_timeout(50)
    return False


def test_sorting_changes_the_order_of_the_rows(site, visit):
    tab = visit(site / "index.html", "#board?task=hmm&preset=quick")
    assert column(tab, 3) == sorted(column(tab, 3))
    heads = tab.locator("thead").first.locator("th").all_inner_texts()
    seconds = heads.index("seconds") + 1
    before = column(tab, seconds)
    assert before != sorted(before)
    tab.locator("[data-sort=seconds]").first.click()
    assert soon(tab, lambda: column(tab, seconds), sorted(before))
    tab.keyboard.press("Enter")  # the focus stays on the button
    assert soon(tab, lambda: column(tab, seconds), sorted(before, reverse=True))
    assert tab.locator("th[aria-sort=descending]").inner_text().startswith("seconds")
    tab.go_back()
    assert soon(tab, lambda: column(tab, seconds), sorted(before))


def test_filters_change_what_is_shown(site, visit):
    tab = visit(site / "index.html")
    rows, heats = tab.locator(".ranking tbody tr"), tab.locator(".heat")
    tab.select_option("#pick-preset", "*")
    assert soon(tab, heats.count, 2)  # quick and small
    tab.select_option("#pick-device", "*")
    assert soon(tab, heats.count, 3)  # and paper, on a GPU
    tab.select_option("#pick-task", "bijection")
    first = "all => all.map(h => h.firstChild.textContent)"  # inner text is empty where nothing is drawn yet
    assert soon(tab, lambda: tab.locator(".card h3").evaluate_all(first), ["bijection"] * 2)
    assert rows.count() == 2 * len(CORE) + 3  # two presets, and the self-reported
    tab.select_option("#pick-preset", "small")
    assert soon(tab, rows.count, len(CORE))
    tab.locator("#arch-mlp").press("Space")
    assert soon(tab, rows.locator("th a").all_text_contents, [arch for arch in CORE if arch != "mlp"])
    tab.select_option("#pick-device", "cuda")
    assert soon(tab, lambda: tab.locator(".empty").all_text_contents(), ["No run fits these filters."])


def test_a_deep_link_opens_the_view_with_its_filters(site, visit):
    tab = visit(site / "index.html", "#cost?task=hmm&preset=paper&device=cuda&x=joules&y=kl")
    assert tab.title().startswith("Cost")
    assert tab.locator(".grid .card").count() == 1
    assert [tab.locator(f"#pick-{name}").input_value() for name in ("task", "x", "y")] == ["hmm", "joules", "kl"]
    assert draw(tab)[0] > 4
    assert "energy, joules" in tab.locator(".chart").inner_text()
    tab.goto((site / "index.html").as_uri() + "#cost?task=hmm&preset=quick&x=joules")
    assert "not measured" in tab.locator(".grid .empty").inner_text()
    assert tab.locator(".chart").count() == 0


def test_intervals_and_references_are_drawn(site, visit):
    tab = visit(site / "index.html", "#board?task=bijection&preset=small")
    rows = tab.locator(".ranking tbody tr").count()
    assert rows == 5
    assert tab.locator(".strip .range").count() == rows
    shown = tab.locator("tbody .strip").first.evaluate("e => getComputedStyle(e).backgroundImage")
    assert shown.count("gradient") == 2  # uniform and best constant
    low, middle, high = (
        tab.locator(f".strip {c}").first.evaluate(f"e => e.getBoundingClientRect().{side}")
        for c, side in ((".range", "left"), (".dot", "x"), (".range", "right"))
    )
    assert low < middle + 8 < high
    sent = visit(site / "index.html", "#board?task=bijection").locator("tbody em")
    assert set(sent.all_text_contents()) == {"self-reported"}


@pytest.mark.parametrize("view", [*VIEWS, "run"])
def test_nothing_overflows_a_phone(site, visit, view):
    path = site / ("index.html" if view in VIEWS else f"runs/{(site / 'reported').read_text()}.html")
    tab = visit(path, f"#{view}?preset=quick", width=390)
    draw(tab)
    assert tab.evaluate("document.documentElement.scrollWidth") <= 390
    cut = "all => all.filter(card => card.scrollWidth > card.clientWidth).map(card => card.textContent.slice(0, 40))"
    assert tab.locator(".card").evaluate_all(cut) == []  # what is wider than its card can be scrolled to


@pytest.mark.parametrize(("scheme", "rules"), [("light", {}), ("dark", {"runOnly": ["color-contrast"]})])
def test_contrast_and_labels_pass_an_automated_check(site, visit, scheme, rules):
    from axe_playwright_python.sync_playwright import Axe

    tab = visit(site / "index.html", scheme=scheme)
    for view in (*VIEWS, "run"):
        path = site / ("index.html" if view in VIEWS else f"runs/{(site / 'reported').read_text()}.html")
        tab.goto(f"{path.as_uri()}#{view}?preset=small&task=hmm")
        draw(tab)
        found = Axe().run(tab, options={"preload": False, **rules}).response["violations"]
        assert [(v["id"], n["html"]) for v in found for n in v["nodes"]] == [], view


def test_hostile_text_is_shown_as_text(site, visit):
    tab = visit(site / "index.html")
    assert HOSTILE in tab.locator(".failed").first.text_content()
    assert tab.locator("main img").count() == 0
    assert tab.locator("main b", has_text="bold").count() == 0
    for record in (r for r in make_records() if HOSTILE in str(r)):
        own = visit(site / "runs" / f"{record.id}.html")
        assert HOSTILE in own.locator("main").inner_text()
        assert own.locator("main img").count() == 0
        assert own.evaluate("window.hacked") is None
    assert tab.evaluate("window.hacked") is None


def test_an_interval_that_reaches_far_below_leaves_the_charts_as_they_are(tmp_path, visit):
    """On a log axis one such bar would push all marks of a chart to one side."""
    calm = [make_record(arch, error=error) for arch, error in zip(CORE, (0.03, 0.001, 0.01, 0.1, 0.5), strict=True)]
    torn = [make_record("transformer", seed=seed, error=error) for seed, error in ((11, 0.6), (12, 0.0005))]
    make_site(tmp_path / "site", calm + torn)
    (group,) = page.site_data(make_board(calm + torn), [])["groups"]
    ((low, mae),) = [(row["interval"][0], row["mae"]) for row in group["rows"] if row["interval"]]
    assert low < mae / 1000
    script = "marks => marks.map(m => +m.getAttribute('transform').match(/[-\\d.]+/g)[1])"
    tab = visit(tmp_path / "site/index.html", "#cost")
    draw(tab)
    places = tab.locator(".mark-symbol path").evaluate_all(script)
    assert len(places) == len(calm)
    assert max(places) - min(places) > 100


def test_a_curve_is_of_the_row_with_the_presets_settings(tmp_path, visit):
    """Rows of one architecture share a colour: with another's settings, a line would be taken for the preset's."""
    ours = [run(arch) for arch in CORE]
    make_site(tmp_path / "site", [*ours, run(CORE[0], factor=0.5, positions="sinusoidal")])
    tab = visit(tmp_path / "site/index.html", "#length")
    draw(tab)
    drawn = tab.evaluate(
        "DATA.groups.map(group => group.rows.filter(row => row.shown).map(row => [row.name, row.own]))"
    )
    assert [sorted(name for name, _ in rows) for rows in drawn] == [sorted(CORE)]
    assert all(own for rows in drawn for _, own in rows)
    names = tab.locator(".chart").first.locator(".mark-line path").count()
    assert names == len(ours)


def test_a_thousand_records_cost_in_proportion_to_their_number(tmp_path, visit):
    """Of the page's own thread, in one browser: ten times the rows take at most ten times as long; sorting, little."""
    tracks = [{"preset": p, "supervision": s, "lr": (i + 1) / 100} for p in ("quick", "small", "paper", "smoke", "tiny")
              for s in ("posterior", "sampled") for i in range(20)]  # fmt: skip
    one = [run(arch, "bijection") for arch in CORE]
    many = [change(record, **track) for track in tracks for record in one]
    assert len({record.id for record in many}) == 1000
    spent = {}
    for records in (many[:100], many):
        out = tmp_path / f"site-{len(records)}"
        make_site(out, records)
        tab = visit(tmp_path / "none")
        meter = tab.context.new_cdp_session(tab)
        meter.send("Performance.enable", {"timeDomain": "threadTicks"})

        def busy(meter=meter):
            told = meter.send("Performance.getMetrics")["metrics"]
            return next(m["value"] for m in told if m["name"] == "TaskDuration")

        start = busy()
        tab.goto((out / "index.html").as_uri() + "#board?task=bijection&preset=*&supervision=*")
        loaded = busy() - start
        assert tab.locator(".ranking tbody tr").count() == len(records)
        start = busy()
        tab.locator("[data-sort=seconds]").first.click()
        tab.wait_for_selector("th[aria-sort]:has([data-sort=seconds])")
        tab.evaluate("() => new Promise(done => requestAnimationFrame(() => setTimeout(done)))")
        spent[len(records)] = loaded, busy() - start
        assert column(tab, 6, "bijection") == sorted(column(tab, 6, "bijection"))
    print(f"loaded and sorted, in seconds: {spent}")
    assert 0 < spent[1000][0] < 10 * spent[100][0]
    assert 0 < spent[1000][1] < 2 * spent[1000][0]


def test_text_in_a_page_cannot_leave_its_element(site):
    for path in (site / "index.html", *(site / "runs").glob("*.html")):
        text = path.read_text()
        (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
        assert "<" not in data
        json.loads(data)
        assert "onerror" not in text.replace(data, "")


def test_the_commands_of_a_page_make_the_same_run(tmp_path):
    """With any settings; `bench run` itself is asked what it would run."""
    for changes in (
        [],
        ["width=16", "horizon=10"],
        ["steps=7", "size=10", "width=16", "ffn=64", "horizon=10", "horizons=10,12"],
    ):
        words = "run --preset smoke --task bijection --arch mlp --seeds 2 --supervision sampled --device cpu"
        words_of = [*words.split(), *(["--set", *changes] if changes else [])]
        asked = make_configs(make_parser().parse_args(words_of), "cpu")[1]
        first = make_record()
        record = replace(first, id=asked.id(), config=asked)
        check, start, again = commands(record, tmp_path / "a b.json")
        made = make_configs(make_parser().parse_args(shlex.split(again)[1:]), "cpu")
        assert asked.id() in [config.id() for config in made]
        assert start == f"git checkout {first.commit}"
        assert shlex.split(check) == ["bench", "verify", str(tmp_path / "a b.json"), "--rerun"]


def test_a_site_takes_the_place_of_the_last_one_and_of_nothing_else(tmp_path):
    ours = suite()[:2]
    make_site(tmp_path / "site", ours)
    make_site(tmp_path / "site", ours[1:])
    assert [path.stem for path in (tmp_path / "site/runs").iterdir()] == [ours[1].id]
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/index.html").write_text("my own page")
    with pytest.raises(BadInput, match="holds other files"):
        make_site(tmp_path / "mine", ours)
    assert (tmp_path / "mine/index.html").read_text() == "my own page"


def test_a_report_is_shown_as_agreed_or_the_reason_why_not(tmp_path):
    record = make_record()
    place = tmp_path / record.path
    folder = place.with_suffix("")

    def shown():
        return page.run_data(record, place, reports.find([tmp_path], [record]).get(record.id))["report"]

    assert shown() is None
    make_report(folder, record.id)
    assert [section["status"] for section in shown()["sections"]] == ["ok", "n/a", "ok"]
    text = (folder / "report.json").read_text()
    for old, new in (
        (f'"run": "{record.id}"', '"run": "b"'),
        ('"n/a"', '"fine"'),
        ('"heat"', '"../heat"'),
        ('"rows"', '"row"'),
        ("{", "["),
        ('"heat"', "7"),
    ):
        (folder / "report.json").write_text(text.replace(old, new, 1))
        told = shown()
        assert "is not a report" in told["problem"], new
        assert told["sections"] == []
    (folder / "report.json").write_text(text)
    (folder / "heat.svg").unlink()
    assert "a figure of the report is missing" in shown()["problem"]


def test_board_writes_the_site_on_demand(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for record in suite()[:3]:
        write(tmp_path / "results", record, None)
    assert main(["board", "--html", "site"]) == 0
    assert "wrote site/index.html" in capsys.readouterr().out
    assert len(list((tmp_path / "site/runs").iterdir())) == 3
    assert main(["board", "--html", "site", "--check"]) == 2
    assert main(["board", "--html", "results"]) == 2
    assert "results holds other files" in capsys.readouterr().err
    (tmp_path / "file").touch()
    (tmp_path / "results/leaderboard.md").unlink()
    assert main(["board", "--html", "file"]) == 2
    assert re.fullmatch(r"bench: cannot write to file: .* with --html\n", capsys.readouterr().err)
    assert not (tmp_path / "results/leaderboard.md").exists()


def test_the_library_is_its_packages_own():
    told = re.findall(r"^sha256 (\w+)  (\S+)$", (ASSETS / "LICENSE-vega.txt").read_text(), re.MULTILINE)
    assert {name for _, name in told} == {"vega.min.js", "vega-lite.min.js"}
    for digest, name in told:
        assert hashlib.sha256((ASSETS / name).read_bytes()).hexdigest() == digest


def test_no_records_is_a_sentence(tmp_path, visit):
    make_site(tmp_path / "site", [])
    tab = visit(tmp_path / "site/index.html")
    for view in VIEWS[::-1]:
        tab.goto((tmp_path / "site/index.html").as_uri() + f"#{view}")
    assert "No records yet" in tab.locator("main").inner_text()


def test_commands_spell_out_a_decay_that_is_not_the_presets():
    record = run("transformer", "bernoulli")
    level = change(record, decay="none")
    assert any("decay=none" in command for command in commands(level, Path("x.json")))
    older = change(record, preset="bernoulli-report")
    assert "decay=linear" in commands(older, Path("x.json"))[1]  # and no checkout of a commit that has no such key
    assert not any("decay" in command for command in commands(record, Path("x.json")))
