"""The site, in a real browser: Debian's Chromium, driven by Playwright, opened from a file."""

import functools
import hashlib
import json
import os
import re
import shlex
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from bench import page
from bench.cli import main, make_parser
from bench.commands import make_configs
from bench.presets import CORE, TASKS
from bench.records import read_all, write
from bench.registry import BadInput
from bench.rows import untouched

ROOT = Path(__file__).resolve().parent.parent
RUNS = ROOT / "leaderboard/runs"
HOSTILE = "</script><img src=x onerror='window.hacked=1'><b>bold</b> <!--"
VIEWS = ("board", "curves", "cost", "length", "primitives", "claims", "reading")
SVG = '<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"><script>parent.hacked=1</script></svg>'


@functools.cache
def published():
    """The quick suite, one seed: twenty records, however many more there are."""
    usual = {"preset": "quick", "seed": 0, "supervision": "posterior"}
    return [
        record
        for record in read_all(RUNS)[0]
        if record.config["arch"] in CORE
        and record.config["task"] in TASKS
        and usual.items() <= record.config.items()
        and untouched(record.config)
    ]


def vary(record, number, error=1.0, **config):
    """Another record like this one: its own id and config, its error times a factor."""
    metrics = json.loads(json.dumps(record.metrics))
    for at_k in filter(None, metrics.values()):
        for part in at_k.values():
            part["entropy_mae"] *= error
    name = hashlib.sha256(f"{record.id} {number}".encode()).hexdigest()[:12]
    return replace(record, id=name, config={**record.config, **config}, metrics=metrics)


def make_records():
    """Three seeds, two presets, a GPU with energy, a failed run, and one whose every text is an attack."""
    ours = published()
    seeded = [r for r in ours if r.config["task"] in ("bijection", "hmm")]
    made = [vary(r, seed, 1 + seed / 5, seed=seed, preset="small") for r in seeded for seed in range(3)]
    on_gpu = [vary(r, "gpu", preset="paper", device="cuda") for r in ours if r.config["task"] == "hmm"]
    memory = {"resident": 2**30, "allocated": 2**28, "reserved": 2**29, "nvml_process": None}
    made += [replace(r, energy_joules=1000.0 + i, memory_bytes=memory) for i, r in enumerate(on_gpu)]
    failed = vary(ours[0], "failed", seed=9)
    made.append(replace(failed, status="failed", error=HOSTILE, metrics={}, references={}, by_position={}))
    strange = vary(ours[0], "hostile", preset=HOSTILE, task_params={"note": HOSTILE})
    platform = {**strange.platform, "name": HOSTILE, "why": HOSTILE}
    made.append(replace(strange, platform=platform, notes=[HOSTILE], commit=HOSTILE))
    return ours + made


def make_report(folder, run):
    folder.mkdir(parents=True)
    (folder / "heat.svg").write_text(SVG)
    table = {"name": "counts", "header": ["what", HOSTILE], "rows": [["a", 0.123456], [HOSTILE, None]]}
    good = {"title": "Which layers does it need?", "status": "ok", "text": HOSTILE, "tables": [table],
            "figures": [{"name": "heat", "caption": "A heat map."}]}  # fmt: skip
    gone = {"title": "Not here", "status": "n/a", "text": "no taps", "tables": [], "figures": []}
    (folder / "report.json").write_text(json.dumps({"run": run, "title": "t", "sections": [good, gone]}))


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The page of all these, as the command writes it, with a report beside one record."""
    folder = tmp_path_factory.mktemp("site")
    ours = make_records()
    reported = [vary(r, "sent", 0.9, seed=7) for r in ours[:3]]
    first = next(r for r in ours if r.config["task"] == "hmm")
    make_report(folder / "runs" / first.path.with_suffix(""), first.id)
    page.write(folder / "site", [folder / "runs"], ours, reported)
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
    assert len(marks) >= {"board": 1, "curves": 5, "cost": 5, "length": 10}.get(view, 0)
    assert all(count > 1 for count in marks)


def test_a_run_has_a_page_with_its_curves_commands_and_report(site, visit):
    tab = visit(site / "runs" / f"{(site / 'reported').read_text()}.html")
    assert len(draw(tab)) == 3
    text = tab.locator("main").inner_text()
    for said in (
        "bench run --preset quick",
        "bench verify",
        "git checkout 5e3b0ad",
        "Which layers does it need?",
        "n/a",
    ):
        assert said in text
    assert "0.12346" in text
    assert HOSTILE in text
    assert tab.locator(".picture img").evaluate("image => image.naturalWidth") == 9
    assert tab.evaluate("window.hacked") is None
    other = visit(next(p for p in (site / "runs").glob("*.html") if p.stem not in tab.url))
    assert f"bench report {Path(other.url).stem}" in other.locator("main").inner_text()


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


def test_filters_change_which_rows_are_shown(site, visit):
    tab = visit(site / "index.html")
    rows = tab.locator(".ranking tbody tr")
    everything = rows.count()
    tab.select_option("#pick-task", "bijection")
    first = "all => all.map(h => h.firstChild.textContent)"  # inner text is empty where nothing is drawn yet
    assert soon(tab, lambda: set(tab.locator(".card h3").evaluate_all(first)), {"bijection"})
    assert 0 < rows.count() < everything
    some = rows.count()
    tab.select_option("#pick-preset", "small")
    assert soon(tab, lambda: 0 < rows.count() < some, True)
    names = rows.locator("th a").all_text_contents()
    assert "mlp" in [name.split()[0] for name in names]
    tab.locator("#arch-mlp").press("Space")
    assert soon(tab, rows.locator("th a").all_text_contents, [n for n in names if n.split()[0] != "mlp"])
    tab.select_option("#pick-device", "cuda")
    assert tab.locator(".empty").inner_text() == "No run fits these filters."


def test_a_deep_link_opens_the_view_with_its_filters(site, visit):
    tab = visit(site / "index.html", "#cost?task=hmm&device=cuda&x=joules&y=kl")
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
    sent = visit(site / "index.html", "#board?preset=quick").locator("tbody em")
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
    calm = [r for r in published() if r.config["task"] == "bijection"]
    torn = [vary(calm[0], seed, error, seed=seed) for seed, error in ((1, 20.0), (2, 0.05))]
    page.write(tmp_path / "site", [tmp_path], calm + torn)
    (group,) = page.site_data(calm + torn, [], [])["groups"]
    ((low, mae),) = [(row["interval"][0], row["mae"]) for row in group["rows"] if row["interval"]]
    assert low < mae / 1000
    script = "marks => marks.map(m => +m.getAttribute('transform').match(/[-\\d.]+/g)[AXIS])"
    for view, axis in (("board", 0), ("cost", 1)):
        tab = visit(tmp_path / "site/index.html", f"#{view}")
        draw(tab)
        places = tab.locator(".mark-symbol path").evaluate_all(script.replace("AXIS", str(axis)))
        assert len(places) == len(calm)
        assert max(places) - min(places) > 100


def test_a_curve_is_of_the_row_with_the_presets_settings(tmp_path, visit):
    """Rows of one architecture share a colour: with another's settings, a line would be taken for the preset's."""
    ours = [r for r in published() if r.config["task"] == "hmm"]
    other = vary(ours[0], "other", 0.5, positions="sinusoidal")
    page.write(tmp_path / "site", [tmp_path], [*ours, other])
    tab = visit(tmp_path / "site/index.html", "#length")
    draw(tab)
    drawn = tab.evaluate("DATA.groups.map(group => firsts(group.rows).map(row => [row.name, row.own]))")
    assert [sorted(name for name, _ in rows) for rows in drawn] == [sorted(r.config["arch"] for r in ours)]
    assert all(own for rows in drawn for _, own in rows)
    names = tab.locator(".chart").first.locator(".mark-line path").count()
    assert names == len(ours)


def test_a_thousand_records_cost_in_proportion_to_their_number(tmp_path, visit):
    """Of the page's own thread, in one browser: ten times the rows take at most ten times as long; sorting, little."""
    tracks = [{"preset": p, "supervision": s, "lr": r} for p in ("quick", "small", "paper", "smoke", "tiny")
              for s in ("posterior", "sampled") for r in (0.01, 0.02, 0.03, 0.04, 0.05)]  # fmt: skip
    many = [vary(r, i, 1 + i / 100, **track) for i, track in enumerate(tracks) for r in published()]
    spent = {}
    for records in (many[:100], many):
        out = tmp_path / f"site-{len(records)}"
        page.write(out, [tmp_path], records)
        tab = visit(tmp_path / "none")
        meter = tab.context.new_cdp_session(tab)
        meter.send("Performance.enable", {"timeDomain": "threadTicks"})

        def busy(meter=meter):
            told = meter.send("Performance.getMetrics")["metrics"]
            return next(m["value"] for m in told if m["name"] == "TaskDuration")

        start = busy()
        tab.goto((out / "index.html").as_uri())
        draw(tab)
        loaded = busy() - start
        assert tab.locator(".ranking tbody tr").count() == len(records)
        start = busy()
        tab.locator("[data-sort=seconds]").first.click()
        tab.wait_for_selector("th[aria-sort]:has([data-sort=seconds])")
        tab.evaluate("() => new Promise(done => requestAnimationFrame(() => setTimeout(done)))")
        spent[len(records)] = loaded, busy() - start
        assert column(tab, 6, "bijection") == sorted(column(tab, 6, "bijection"))
    print(f"loaded and sorted, in seconds: {spent}")
    assert len(many) == 1000
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
        asked = make_configs(make_parser().parse_args([*words.split(), *(["--set", *changes] if changes else [])]))[1]
        first = published()[0]
        record = replace(first, id=asked.id(), config=asked.to_json())
        check, start, again = page.commands(record, tmp_path / "a b.json")
        made = make_configs(make_parser().parse_args(shlex.split(again)[1:]))
        assert asked.id() in [config.id() for config in made]
        assert start == f"git checkout {first.commit}"
        assert shlex.split(check) == ["bench", "verify", str(tmp_path / "a b.json"), "--rerun"]


def test_a_site_takes_the_place_of_the_last_one_and_of_nothing_else(tmp_path):
    ours = published()[:2]
    page.write(tmp_path / "site", [tmp_path], ours)
    page.write(tmp_path / "site", [tmp_path], ours[1:])
    assert [path.stem for path in (tmp_path / "site/runs").iterdir()] == [ours[1].id]
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/index.html").write_text("my own page")
    with pytest.raises(BadInput, match="holds other files"):
        page.write(tmp_path / "mine", [tmp_path], ours)
    assert (tmp_path / "mine/index.html").read_text() == "my own page"


def test_a_report_is_read_as_agreed_or_not_at_all(tmp_path):
    make_report(tmp_path / "a", "a")
    good = page.read_report(tmp_path / "a", "a")
    assert [section["status"] for section in good["sections"]] == ["ok", "n/a"]
    assert page.read_report(tmp_path / "none", "a") is None
    text = (tmp_path / "a/report.json").read_text()
    for old, new in (
        ('"run": "a"', '"run": "b"'),
        ('"n/a"', '"fine"'),
        ('"heat"', '"../heat"'),
        ('"rows"', '"row"'),
        ("{", "["),
        ('"heat"', "7"),
    ):
        (tmp_path / "a/report.json").write_text(text.replace(old, new, 1))
        told = page.read_report(tmp_path / "a", "a")
        assert "is not a report" in told["problem"], new
        assert told["sections"] == []


def test_board_writes_the_site_on_demand(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for record in published()[:3]:
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
    told = re.findall(r"^sha256 (\w+)  (\S+)$", (ROOT / "bench/assets/LICENSE-vega.txt").read_text(), re.MULTILINE)
    assert {name for _, name in told} == {"vega.min.js", "vega-lite.min.js"}
    for digest, name in told:
        assert hashlib.sha256((ROOT / "bench/assets" / name).read_bytes()).hexdigest() == digest


def test_no_records_is_a_sentence(tmp_path, visit):
    page.write(tmp_path / "site", [tmp_path], [])
    tab = visit(tmp_path / "site/index.html")
    for view in VIEWS[::-1]:
        tab.goto((tmp_path / "site/index.html").as_uri() + f"#{view}")
    assert "No records yet" in tab.locator("main").inner_text()


def test_commands_spell_out_a_decay_that_is_not_the_presets():
    record = next(r for r in published() if r.config["task"] == "bernoulli" and r.config["arch"] == "transformer")
    level = vary(record, "level", decay="none")
    assert any("decay=none" in command for command in page.commands(level, Path("x.json")))
    older = vary(record, "older", preset="bernoulli-report")
    assert "decay=linear" in page.commands(older, Path("x.json"))[1]  # and no checkout of a commit that has no such key
    assert not any("decay" in command for command in page.commands(record, Path("x.json")))
