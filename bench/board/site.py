"""Records to a site: one folder that opens from a file, without a network and without anything to build.

    index.html       every ranking, curve, cost, primitive and claim; a view and its filters are in the address
    runs/<id>.html   one run: curves, costs, config, platform, report, and the commands that make it again
    assets/          style, scripts, and the plotting library

The charts are Vega-Lite's: 780 kB for both of its files (260 kB packed), a grammar kept by the same university group
since 2016, and charts that are plain JSON, so that what is drawn outlives the library. Its two files are its package's
own, unchanged, and stand in assets with their licence.

All that a record says is data here: JSON in an inert element with every `<` escaped, and the scripts put it into the
page as text. A figure of a report is shown as an image, which cannot run anything.
"""

from __future__ import annotations

import base64
import json
import math
import re
import shlex
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from statistics import mean
from string import Template
from typing import Any

import numpy as np

from bench import VERSION, ledger
from bench.board import LEGEND, peak_bytes, seconds
from bench.claims import Claim
from bench.config import FIXED, USUAL, draft
from bench.evidence import read_reports
from bench.floors import effective_memory
from bench.glance import (
    HELD,
    NO_MEANS,
    PARTLY,
    PRIMITIVES,
    PRIMITIVES_LEGEND,
    Shares,
    primitive_shares,
    primitive_tasks,
    shaky,
    strength,
)
from bench.presets import PRESETS
from bench.records import REPORT, SELF_REPORTED, RunRecord, prepare_folder, write_whole
from bench.registry import BadInput
from bench.rows import beyond, group, longest, mean_of, printable, ranked, ranks, references_of, row_name, untouched
from bench.stats import interval, paired_p
from models.base import ARCHS

ASSETS = ("page.css", "charts.js", "index.js", "run.js", "vega.min.js", "vega-lite.min.js", "LICENSE-vega.txt")
MARK = "tunnel-bench-page"  # in every page of ours: a folder without it is somebody else's
FIRST = ("transformer", "mlp", "lstm", "mamba2", "gated-deltanet", "linear-attention")  # a hue each; others repeat them
POINTS = 256  # of a curve, at the most
CURVE = 4  # digits of its numbers: more than a screen can show
METRICS = ("entropy_mae", "kl", "entropy_curve_mae", "tv", "nll_gap")


def write(out: Path, runs: Sequence[Path], records: Sequence[RunRecord], reported: Sequence[RunRecord] = ()) -> None:
    """The site of these records; `runs` are the folders they were read from, and may hold reports beside them."""
    prepare(out)
    claims = ledger.judge(records, read_reports(runs, records))
    archs = palette([*records, *reported])
    marks = [*((record, False) for record in records), *((record, True) for record in reported)]
    pages = {}
    for record, marked in marks:
        places = [folder / (SELF_REPORTED if marked else "") / record.path for folder in runs]
        place = next((place for place in places if place.exists()), places[0])
        title = f"{record.config['arch']} on {record.config['task']}, seed {record.config['seed']}"
        data = {"archs": archs, "self": marked, **run_data(record, place)}
        pages[f"{record.id}.html"] = _fill("run.js", "..", title, data)
    text = _fill("index.js", ".", "tunnel-bench leaderboard", site_data(records, reported, claims))
    for folder in (out, out / "runs", out / "assets"):
        prepare_folder(folder, "--html")
    for name in ASSETS:
        write_whole(out / "assets" / name, _asset(name))
    for name, page in pages.items():
        write_whole(out / "runs" / name, page.encode())
    write_whole(out / "index.html", text.encode())
    for old in (out / "runs").glob("*.html"):
        if old.name not in pages:
            old.unlink()


def prepare(out: Path) -> None:
    """A folder that is new, empty or a site of ours, and can be written."""
    index = out / "index.html"
    ours = index.is_file() and MARK in index.read_text(encoding="utf-8", errors="replace")
    if out.is_dir() and any(out.iterdir()) and not ours:
        raise BadInput(f"{out} holds other files: name an empty folder, or one that --html has made")
    prepare_folder(out, "--html")


def _asset(name: str) -> bytes:
    return (files("bench") / "assets" / name).read_bytes()


def _fill(script: str, root: str, title: str, data: dict[str, Any]) -> str:
    """A page around its data. An escaped `<` cannot close the element that holds it."""
    inert = json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    template = Template(_asset("page.html").decode())
    return template.substitute(title=escape(title), root=root, script=script, mark=MARK, data=inert)


def site_data(records: Sequence[RunRecord], reported: Sequence[RunRecord], claims: Sequence[Claim]) -> dict[str, Any]:
    """All that index.html shows, rounded to what can be seen."""
    everyone = [*records, *reported]
    marked = frozenset(record.id for record in reported)
    told = LEGEND.replace("*Italics*", "dashed lines")
    legend = re.findall(r"^- (.+?): (.+?)(?=\n- |\n\n)", told, re.DOTALL | re.MULTILINE)
    return {
        "version": VERSION,
        "archs": palette(everyone),
        "groups": [
            {**name._asdict(), **_ranking(members, marked), "failed": _failed(members)}
            for name, members in group(everyone).items()
        ],
        "primitives": {
            "names": list(PRIMITIVES),
            "legend": f"{PRIMITIVES_LEGEND} {NO_MEANS}".replace("*", ""),
            "held": HELD,
            "partly": PARTLY,
            "tracks": {
                track: [[arch, *(_primitive(p, got.get(p, {})) for p in PRIMITIVES)] for arch, got in archs.items()]
                for track, archs in primitive_shares(list(records)).items()
            },
        },
        "claims": [{name: _unmarked(text) for name, text in claim._asdict().items()} for claim in claims],
        "legend": [[re.sub(r"[*`]", "", part).replace("\n  ", " ") for part in pair] for pair in legend],
    }


def _primitive(name: str, shares: Shares) -> list[Any]:
    tasks = primitive_tasks(name)
    return [strength(tasks, shares), _short({t: s.value for t, s in shares.items()}), shaky(tasks, shares)]


def _unmarked(text: str) -> str:
    """Without the marks that Markdown needs."""
    return re.sub(r"\\(\W)", r"\1", text).replace("`", "")


def palette(records: Sequence[RunRecord]) -> list[str]:
    """The architectures in the order of their colours and shapes, the same in every chart of a site."""
    used = {record.config["arch"] for record in records}
    known = [*FIRST, *(arch for arch in ARCHS.names() if arch not in FIRST)]
    return [arch for arch in known if arch in used] + sorted(used - set(known))


def _failed(members: Sequence[RunRecord]) -> list[dict[str, Any]]:
    return [
        {"id": r.id, "arch": r.config["arch"], "seed": r.config["seed"], "error": printable(r.error)}
        for r in members
        if r.status != "ok"
    ]


def _ranking(members: Sequence[RunRecord], marked: frozenset[str]) -> dict[str, Any]:
    """One ranking, in numbers: what bench.board.table says in text, and the curves."""
    good = [record for record in members if record.status == "ok"]
    if not good:
        return {"trained": members[0].config["horizon"], "longer": [], "refs": [], "k": [], "exams": {}, "rows": []}
    trained = str(good[0].config["horizon"])
    longer = beyond(good)
    own = [record for record in good if record.id not in marked] or good  # whose references are shown
    reach = max((longest([r]) for r in good), key=int)
    stride = math.ceil(int(reach) / POINTS)
    runs = ranked(good, trained, marked)
    rows = []
    # H_Bayes of the sequences that a row was scored on: those of its seeds, at the longest horizon that it reads
    exams: dict[str, list[float]] = {}
    for place, (rank, (errors, same)) in enumerate(zip(ranks(runs, trained), runs, strict=True)):
        scores = _scores([r.metrics for r in same], trained, longer)
        mine = longest(same)
        exam = f"{mine} {sorted(errors)}"
        exams[exam] = exams.get(exam) or _average(same, mine, "h_bayes", stride)
        rows.append(
            {
                "rank": rank,
                "name": row_name(same[0], good),
                "arch": same[0].config["arch"],
                "self": same[0].id in marked,
                "own": untouched(same[0].config),
                "runs": [[r.config["seed"], r.id] for r in same],
                **dict(zip(("mae", "kl", "curve", "at"), scores, strict=True)),
                "interval": _short(interval(list(errors.values()))),
                "p": _short(paired_p(runs[place - 1][0], errors) if place else None),
                "memory": effective_memory(mean_of(same, trained, "kl"), references_of(same, trained, "kl")),
                **_costs(same),
                "exam": exam,
                "h": _average(same, mine, "h_model", stride),
                "e": _average(same, mine, "entropy_mae", stride),
            }
        )
    return {
        "trained": int(trained),
        "longer": [int(k) for k in longer],
        "machine": " and ".join(sorted({printable(r.platform["name"]) for r in good})),
        "refs": [[name, *_scores([_of(r, name) for r in own], trained, longer)] for name in own[0].references[trained]],
        "k": list(range(1, int(reach) + 1, stride)),
        "exams": exams,
        "rows": rows,
    }


def _of(record: RunRecord, name: str) -> dict[str, Any]:
    return {k: at_k and at_k[name] for k, at_k in record.references.items()}


def _average(records: Sequence[RunRecord], k: str, name: str, stride: int) -> list[float]:
    """A curve, its mean over seeds; of a very long one every n-th position."""
    curves = [record.by_position[k][name][::stride] for record in records]
    return _short(np.mean(curves, axis=0).tolist(), CURVE)


def _scores(trees: list[dict[str, Any]], trained: str, longer: list[str]) -> list[Any]:
    """MAE, KL and curve MAE at the training horizon; MAE at each longer one, over all positions and the new ones."""

    def score(k: str, part: str, metric: str) -> float | None:
        return mean(tree[k][part][metric] for tree in trees) if all(tree.get(k) for tree in trees) else None

    at = {k: [score(k, "all", "entropy_mae"), score(k, "post", "entropy_mae")] for k in longer}
    return _short([*(score(trained, "all", m) for m in ("entropy_mae", "kl", "entropy_curve_mae")), at])


def _costs(same: Sequence[RunRecord]) -> dict[str, Any]:
    """What a row took, as the table says it; null where it was not measured."""
    first = same[0]
    joules = [r.energy_joules for r in same if r.energy_joules is not None]
    return {
        "seconds": _short(mean(map(seconds, same))),
        "flops": _short(first.train_flops),
        "bytes": peak_bytes(list(same)),
        "joules": _short(mean(joules)) if len(joules) == len(same) else None,
        "parameters": first.parameters,
        "state": first.state_bytes,
        "steps": first.config["steps"],
        "tuned": "tuning" in first.config,
    }


def _short(value: Any, digits: int = 7) -> Any:
    """So many digits of every number; what is infinite has no place on an axis."""
    if isinstance(value, float):
        return float(f"{value:.{digits}g}") if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _short(item, digits) for key, item in value.items()}
    return [_short(item, digits) for item in value] if isinstance(value, list | tuple) else value


def run_data(record: RunRecord, place: Path) -> dict[str, Any]:
    """All that a run's page shows; `place` is where its record lies."""
    kept = ("id", "status", "config", "platform", "seconds", "notes", "parameters", "budget", "memory_bytes", "commit")
    return {
        **{name: getattr(record, name) for name in (*kept, "dirty", "weights", "state_bytes")},
        **{name: _short(getattr(record, name)) for name in ("train_flops", "energy_joules", "tokens_per_second")},
        "ranking": next(iter(group([record]))).task,
        "error": printable(record.error) if record.error else None,
        "total": _short(seconds(record)) if record.status == "ok" else None,
        "scores": _run_scores(record) if record.status == "ok" else [],
        "curves": {k: _thin(curves) for k, curves in record.by_position.items() if curves},
        "training": [_short([look["step"], look["seconds"], look.get("entropy_mae")]) for look in record.loss_curve],
        "commands": commands(record, place),
        "report": read_report(place.with_suffix(""), record.id),
    }


def _run_scores(record: RunRecord) -> list[list[Any]]:
    """[horizon, part, predictor, metrics...] for the run and, below it, the references on the same sequences."""
    return [
        [int(k), part, name, *(_short(values[metric]) for metric in METRICS)]
        for k, at_k in record.metrics.items()
        if at_k
        for part in at_k
        for name, values in ((None, at_k[part]), *((n, v[part]) for n, v in record.references[k].items()))
    ]


def _thin(curves: dict[str, list[float]]) -> dict[str, Any]:
    length = len(curves["h_model"])
    stride = math.ceil(length / POINTS)
    return {
        "k": list(range(1, length + 1, stride)),
        **{short: _short(curves[name][::stride], CURVE) for short, name in (("b", "h_bayes"), ("h", "h_model"))},
        "e": _short(curves["entropy_mae"][::stride], CURVE),
    }


def commands(record: RunRecord, place: Path) -> list[str]:
    """What checks this run, and what makes it again. Settings that are not the preset's are spelled out.

    One that the record leaves out may be younger than its commit: such a run is made again by the code of today.
    """
    c = {**USUAL, **record.config}
    words = ["bench", "run", "--preset", c["preset"], "--arch", c["arch"], "--task", c["task"]]
    words += ["--seeds", str(c["seed"] + 1), "--supervision", c["supervision"], "--device", c["device"]]
    words += ["--tune"] if c["tuning"] else []
    start = [shlex.join(["git", "checkout", record.commit])] if record.commit else []
    if c["preset"] in PRESETS:
        usual = {**USUAL, **draft(c["preset"], c["arch"], c["task"], c["seed"], c["device"], {}).to_json()}
        rates = {"lr", "adam_lr"} if c["tuning"] else set()  # the search finds them
        told = {k: v for k, v in c.items() if k not in FIXED | rates | {"supervision"} and v != usual[k]}
        told |= {name: c[name] for cause, name in (("width", "ffn"), ("horizon", "horizons")) if cause in told}
        told |= {k: v for k, v in c["task_params"].items() if usual["task_params"].get(k) != v}
        settings = [f"{k}={','.join(map(str, v)) if isinstance(v, list) else v}" for k, v in told.items()]
        words += ["--set", *settings] if settings else []
        if USUAL.keys() & told.keys() - record.config.keys():
            start = []
    check = [shlex.join(["bench", "verify", str(place), "--rerun"])] if record.status == "ok" else []
    return [*check, *start, shlex.join(words)]  # a commit does not have the records that it made


def read_report(folder: Path, run: str) -> dict[str, Any] | None:
    """What `bench report` left beside the record: whole and as agreed, or the reason why it is not shown."""
    path = folder / REPORT
    if not path.is_file():
        return None
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
        if told["run"] != run:
            raise ValueError(f"it is of run {told['run']!r}")
        return {"sections": [_section(section, folder) for section in told["sections"]]}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return {"problem": printable(f"{path} is not a report ({type(error).__name__}: {error})"), "sections": []}


def _section(section: dict[str, Any], folder: Path) -> dict[str, Any]:
    if section["status"] not in ("ok", "n/a", "failed"):
        raise ValueError(f"status {section['status']!r}")
    return {
        "title": str(section["title"]),
        "status": section["status"],
        "text": _unmarked(str(section["text"])),
        "tables": [
            {
                "name": str(t["name"]),
                "header": [str(h) for h in t["header"]],
                "rows": [_short(row, 5) for row in t["rows"]],
            }
            for t in section["tables"]
        ],
        "figures": [{"caption": str(f["caption"]), "source": _image(folder, f["name"])} for f in section["figures"]],
    }


def _image(folder: Path, name: str) -> str:
    if not re.fullmatch(r"[\w-]+", name):
        raise ValueError(f"{name!r} is not a figure's name")
    image = (folder / f"{name}.svg").read_bytes()
    return f"data:image/svg+xml;base64,{base64.b64encode(image).decode()}"
