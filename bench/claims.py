"""The ledger: what was published, what our records say of it, and a verdict.

A claim names the row of a table that speaks to it: task, architecture, horizon, metric, and what the published model
was trained on, the exact posterior or one draw from it. It is held against the largest preset at which that row was run
(paper, small, quick; most sequences read, then the preset's own settings, then most seeds), by its mean over seeds.
Where the published model learned from draws and none of ours did, ours cannot show a success; a failure it can refute.
Claims about how a model works, and those of the Bernoulli report, are read from the runs' reports: of the largest run
that has one, the lowest seed first.

exceeded         a success was claimed and ours is better by more than the slack
reproduced       ours is within the slack of what was claimed
not reproduced   ours falls short of a claimed success, or is better than a claimed failure
not tested here  no record or no report speaks to it
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import log2
from pathlib import Path
from statistics import mean, median
from typing import Any, NamedTuple

from tabulate import tabulate

from bench.board import GENERATED
from bench.presets import NEWER_BLOCK
from bench.records import RunRecord
from bench.rows import plain, references_of, same_settings, untouched
from bench.stats import interval

SLACK = 1.5  # a factor: another seed, recipe or machine moves an error by as much
SIZES = ("paper", "small", "quick")
UNTESTED = "not tested here"
BETTER_TARGETS = "The published model learned from draws, ours from the exact posterior: a success on it proves less"
VERDICTS = ("exceeded", "reproduced", "not reproduced", UNTESTED)
FIRST, README, LATER = "arXiv:2512.22471v1", "the authors' README", "arXiv:2512.22471v3 and after"
REPOSITORY = "the authors' repository"
GEOMETRY, FLIPS = "the authors' later paper", "Bernoulli Transformer LPE Report"

TITLE = "# Published claims, and what we measured"
LEGEND = f"""\
Numbers are errors in bits where nothing else is said. A claim about an error is held against the largest preset at
which its row was run, by the mean over seeds, with its 95 % interval where there are several. A claim about how a model
works is held against the largest run that has a report: one run, of one seed, trained on the exact posterior, which may
be much smaller than the published one. **Reproduced** allows a factor of {SLACK} either way, **exceeded** is better
than that; a claimed failure that we do not see is **not reproduced**. Where the published model learned from draws,
our runs on draws decide, and those on the exact posterior stand beside. Where ours is below the `paper` preset, a
success that is not reproduced may want no more than size or steps. `sampled` marks runs that were trained on one draw
from the posterior, as the authors' models of bijection are; all others learned from the exact posterior, as theirs of
hmm. `alibi-shift` and `swiglu` mark runs whose attention sees the previous position's projections too, or whose
feed-forward layers are gated: a plain transformer's are not.

Sources: arXiv:2512.22471 is Aggarwal, Dalal and Misra, *The Bayesian Geometry of Transformer Attention*
(https://arxiv.org/abs/2512.22471); its v1 and later versions differ in their numbers. Repository and README are
https://github.com/vishalmisra/bayesian-wind-tunnel. The later paper is one of the two that follow it (arXiv:2512.22473,
arXiv:2512.23752); its number was not looked up there. The *Bernoulli Transformer LPE Report* is of an automated run of
18 February 2026, and has no address that we know."""
WHAT = {
    "failure": "published failures that we do not see",
    "error": "errors that ours did not reach",
    "mechanism": "statements of how a model works, each tested on one run",
}


class Claim(NamedTuple):
    claim: str
    source: str
    published: str
    measured: str
    verdict: str
    why: str
    kind: str = "error"  # or failure, or mechanism: what was claimed


@dataclass(frozen=True)
class Row:
    """A published number with the row and the column of ours that speak to it."""

    claim: str
    source: str
    published: float
    task: str
    arch: str
    metric: str = "entropy_mae"
    horizon: int = 20
    part: str = "all"
    failure: bool = False  # claimed as a failure: being better does not reproduce it
    whole: bool = False  # claimed without any error: it can be reproduced, not exceeded
    over: str | None = None  # a reference predictor, whose number ours is divided by
    supervision: str = "posterior"  # of the published model
    words: str = ""  # what was published, where it is not the number that ours is held against
    why: str = ""  # may name our {steps}, and {uniform}, {constant}, {curve}: what predictors that read nothing score
    contrast: Contrast | None = None

    def judge(self, evidence: Evidence) -> Claim:
        rows = {s: evidence.row(self.task, self.arch, s) for s in (self.supervision, "posterior")}
        rows = {s: row for s, row in rows.items() if row and row[0].metrics.get(str(self.horizon))}
        if not rows:
            return Claim(self.claim, self.source, self.words or number(self.published), UNTESTED, UNTESTED, "")
        row = next(iter(rows.values()))
        verdict, why = UNTESTED, BETTER_TARGETS
        if self.supervision in rows or self.failure:
            verdict = weigh(mean(map(self.value, row)), self.published, self.failure)
            why = self.why.format(steps=f"{row[0].config['steps']:,}", **floors(row, self.horizon))
            if self.contrast:
                why += self.contrast.told(self, evidence)
        if self.whole and verdict == "exceeded":
            verdict = "reproduced"
        measured = "; ".join(map(self.told, rows.values()))
        kind = "failure" if self.failure else "error"
        return Claim(self.claim, self.source, self.words or number(self.published), measured, verdict, why, kind)

    def told(self, row: Sequence[RunRecord]) -> str:
        better = row[0].config["supervision"] != self.supervision
        where = f"{len(row)} seed{'s' * (len(row) > 1)}, {row[0].config['steps']:,} steps"
        exact = "on the exact posterior " * better
        return f"{exact}{spread([self.value(r) for r in row])} ({scene(row[0])}, {where})"

    def value(self, record: RunRecord) -> float:
        k = str(self.horizon)
        ours: float = record.metrics[k][self.part][self.metric]
        return ours / record.references[k][self.over][self.part][self.metric] if self.over else ours


@dataclass(frozen=True)
class Contrast:
    """Rows of the same architecture that have another setting, if there are any: does that make the difference?"""

    setting: str
    value: str
    text: str  # names {measured}

    def told(self, claim: Row, evidence: Evidence) -> str:
        row = evidence.row(claim.task, claim.arch, "posterior", {self.setting: self.value})
        return self.text.format(measured=claim.told(row)) if row and row[0].metrics.get(str(claim.horizon)) else ""


@dataclass(frozen=True)
class Told:
    """A published number with the cell of a run's report that speaks to it."""

    claim: str
    source: str
    published: float
    task: str
    arch: str
    preset: str
    table: str
    row: tuple[str, ...]  # the first cells of the row
    column: str
    more: bool = False  # more is better
    floor: str = ""  # the column of the exact predictor's own number: who is not above it shows noise, not skill

    def judge(self, evidence: Evidence) -> Claim:
        found = next(evidence.lines(self.task, self.arch, self.table, self.row, self.preset), None)
        value = found[1].get(self.column) if found else None
        if found is None or not isinstance(value, int | float):
            return Claim(self.claim, self.source, number(self.published), UNTESTED, UNTESTED, "")
        run, line = found
        # of correlations and the like, near one, what is missing is the error
        verdict = weigh(*((1 - value, 1 - self.published) if self.more else (value, self.published)), failure=False)
        why = ""
        if self.floor and value <= line[self.floor]:
            verdict, why = UNTESTED, f"The exact predictor's own rollouts score {number(line[self.floor])} here: noise"
        measured = f"{number(value)} (run {run.id}, {scene(run)})"
        return Claim(self.claim, self.source, number(self.published), measured, verdict, why)


@dataclass(frozen=True)
class Mechanism:
    """A published statement about how a model works; the run's own report has weighed it, by a rule that it states."""

    source: str
    published: str
    task: str
    arch: str
    claim: str  # as the report's table of claims has it
    why: str = ""

    def judge(self, evidence: Evidence) -> Claim:
        found = list(evidence.lines(self.task, self.arch, "claims", (self.claim,)))
        name = f"{self.claim} ({self.arch} on {self.task})"
        if not found:
            return Claim(name, self.source, self.published, UNTESTED, UNTESTED, "")
        told = {"holds": "reproduced", "does not hold": "not reproduced"}
        run, line = next((f for f in found if f[1]["verdict"] in told), found[0])  # the first that could test it
        verdict = told.get(str(line["verdict"]), UNTESTED)
        measured = f"{plain(line['measured here'])} (run {run.id}, {scene(run)})"
        why = f"It holds if {plain(line['holds if'])}{self.why}"
        return Claim(name, self.source, self.published, measured, verdict, why, "mechanism")


@dataclass(frozen=True)
class Evidence:
    records: Sequence[RunRecord]
    reports: Mapping[str, dict[str, Any]]

    def rows(self, task: str, arch: str, supervision: str = "posterior") -> list[list[RunRecord]]:
        """Seeds of one setting, the largest setting first."""

        def speaks(record: RunRecord) -> bool:
            c = record.config
            ours = (c["task"], c["arch"], c["supervision"]) == (task, arch, supervision) and c["preset"] in SIZES
            return ours and record.status == "ok" and not set(c["task_params"]) - {"bos"}

        def place(row: list[RunRecord]) -> tuple[int, int, bool, int]:
            c = row[0].config
            return SIZES.index(c["preset"]), -c["steps"] * c["batch"], not untouched(c), -len(row)

        return sorted(same_settings([record for record in self.records if speaks(record)]), key=place)

    def row(self, task: str, arch: str, supervision: str, settings: Mapping[str, Any] | None = None) -> list[RunRecord]:
        """The largest, of those that have these settings."""
        wanted = (settings or {}).items()
        rows = self.rows(task, arch, supervision)
        return next((row for row in rows if all(row[0].config.get(k) == v for k, v in wanted)), [])

    def lines(
        self, task: str, arch: str, table: str, start: tuple[str, ...], preset: str | None = None
    ) -> Iterator[tuple[RunRecord, dict[str, Any]]]:
        """A row of a report's table, by its first cells, from every run that has it, the largest first."""
        if preset is None:
            runs = [record for row in self.rows(task, arch) for record in row]
        else:
            runs = [
                r
                for r in self.records
                if (r.config["task"], r.config["arch"], r.config["preset"]) == (task, arch, preset)
            ]
        for run in runs:
            for section in self.reports.get(run.id, {}).get("sections", ()):
                for found in section["tables"]:
                    for cells in found["rows"]:
                        if found["name"] == table and tuple(cells[: len(start)]) == start:
                            yield run, dict(zip(found["header"], cells, strict=True))


def weigh(ours: float, published: float, failure: bool) -> str:
    if published / SLACK <= ours <= published * SLACK:
        return "reproduced"
    if failure:
        return "reproduced" if ours > published else "not reproduced"
    return "exceeded" if ours < published else "not reproduced"


def floors(row: list[RunRecord], horizon: int) -> dict[str, str]:
    """What predictors that read nothing score on the row's own sequences: by MAE, and the best of them by the curve."""
    known = references_of(row, str(horizon))
    entropies = [mean(at_k) for at_k in zip(*(r.by_position[str(horizon)]["h_bayes"] for r in row), strict=True)]
    curve = mean(abs(h - median(entropies)) for h in entropies)
    found = {"uniform": known["uniform"], "constant": known["best constant"], "curve": curve}
    return {name: number(value) for name, value in found.items()}


def scene(run: RunRecord) -> str:
    """The preset, draws if it was trained on them, and what the run's blocks have that a plain transformer's do not."""
    newer = {name: value for name, value in NEWER_BLOCK.items() if run.config.get(name) == value}
    if "transformer" not in run.config["arch"]:
        newer.pop("positions", None)
    sampled = ["sampled"] if run.config["supervision"] == "sampled" else []
    return ", ".join([f"preset {run.config['preset']}", *sampled, *newer.values()])


def number(value: float) -> str:
    return f"{value:.2g}" if abs(value) < 0.001 else f"{value:.4g}"


def spread(values: Sequence[float]) -> str:
    bounds = interval(values)
    return number(mean(values)) + (f" [{number(bounds[0])}, {number(bounds[1])}]" if bounds else "")


NINETEEN = mean(log2(20 / (21 - k)) for k in range(1, 20))
UNIFORM = "The uniform predictor scores {uniform}: the published number is worse than guessing"
POINTWISE = (
    f"The uniform predictor scores {NINETEEN:.4g} without the last position: an MLP that reads one position at a time "
    "(`mlp-pointwise`) cannot do better"
)
CURVE = (
    "The published metric averages entropies over sequences first; a predictor that reads nothing scores {curve} on it"
)
CONTEXT_FREE = "The uniform predictor scores {uniform} on hmm, and the best constant {constant}"
DILUTED = (
    f"Twenty near-perfect positions dilute the published mean; the new positions alone are near {0.0288 * 50 / 30:.2g}"
)

STEPS = "The authors' command trains for 100,000 steps, ours had {steps}"
LEARNED = (
    "The authors' released code learns a vector for each position, and none beyond the training length is trained; "
    "ours has slopes of distance"
)
ABSOLUTE = Contrast("positions", "sinusoidal", ". With absolute positions (sinusoidal) it has {measured}")
LAYERS = "; the authors' REPRODUCE.md expects that a layer's removal costs less than 10 % of accuracy"
HEADS = "; the authors' REPRODUCE.md expects that most heads cost less than 5 % of accuracy"

MISSED = (
    "Ours is not accuracy but total variation over the uniform predictor's: 0 is exact, 1 is guessing. Half of our "
    "queries are of unknown keys, so the two compare as far as success and failure go, and no further"
)
TOP_OFF = ("hmm", "transformer-no-attn-top2", "entropy_curve_mae")
ERROR, FLOOR = "rollout estimator, relative error", "exact predictor's rollouts"
DRAWS = "sampled"
COINS = ("bernoulli", "transformer", "bernoulli-report")

CLUSTERS = "A recurrent model's last layer forms one cluster for each hidden state"

PUBLISHED: tuple[Row | Told | Mechanism, ...] = (
    Row("transformer on bijection, K = 20", FIRST, 0.003, "bijection", "transformer", supervision=DRAWS,
        why=STEPS),
    Row("transformer on bijection, K = 20", README, 0.007, "bijection", "transformer", supervision=DRAWS,
        why=STEPS),
    Row("an MLP of equal size fails on bijection", FIRST, 1.85, "bijection", "mlp", failure=True,
        supervision=DRAWS, why=UNIFORM),
    Row("an MLP fails on it, rerun", REPOSITORY, 1.107, "bijection", "mlp", failure=True, supervision=DRAWS,
        why=POINTWISE),
    Row("LSTM on bijection, K = 20", README, 0.009, "bijection", "lstm", supervision=DRAWS, why=STEPS),
    Row("Mamba on bijection, K = 20", README, 0.010, "bijection", "mamba2", supervision=DRAWS, why=STEPS),
    Row("transformer on hmm, K = 20, curve", FIRST, 7.5e-5, "hmm", "transformer", "entropy_curve_mae", why=CURVE),
    Row("the same, K = 30", FIRST, 0.012, "hmm", "transformer", "entropy_curve_mae", 30, why=LEARNED,
        contrast=ABSOLUTE),
    Row("the same, K = 50", FIRST, 0.0288, "hmm", "transformer", "entropy_curve_mae", 50, why=DILUTED),
    Row("transformer on hmm, absolute value first", LATER, 0.049, "hmm", "transformer"),
    Row("Mamba on hmm, absolute value first", LATER, 0.024, "hmm", "mamba2"),
    Row("LSTM fails on hmm", LATER, 0.411, "hmm", "lstm", failure=True, why=CONTEXT_FREE),
    Row("an MLP fails on hmm", LATER, 0.40, "hmm", "mlp", failure=True, why=CONTEXT_FREE),
    Row("attention off in the top two layers fits hmm at K = 20, curve", FIRST, 1.57e-3, *TOP_OFF, why=STEPS),
    Row("and collapses at K = 50, curve", FIRST, 1.79, *TOP_OFF, 50, failure=True, why=LEARNED,
        contrast=ABSOLUTE),
    Row("transformer recalls, accuracy", LATER, 0.005, "recall", "transformer", "tv", over="uniform", whole=True,
        words="100 %", why=MISSED),
    Row("Mamba recalls, accuracy", LATER, 0.022, "recall", "mamba2", "tv", over="uniform", whole=True,
        words="97.8 %", why=MISSED),
    Row("LSTM fails to recall, accuracy", LATER, 0.995, "recall", "lstm", "tv", failure=True, over="uniform",
        words="0.5 %", why=MISSED),
    *(
        Mechanism(source, published, task, "transformer", claim, *why)
        for source, published, claim, *why in (
            (FIRST, "> 10 times", "Every layer is needed", LAYERS),
            (FIRST, "one head", "Layer 0 has one hypothesis-frame head", HEADS),
            (LATER, "0.052, random 0.082", "Layer-0 keys are an orthogonal frame of the hypotheses"),
            (FIRST, "sharpens", "Queries align with feasible hypotheses, more so with depth"),
            (GEOMETRY, "PC1 84-90 %", "Late values lie on a low-dimensional manifold"),
            (FIRST, "along PC1", "That manifold is parameterised by posterior entropy"),
            (FIRST, "attention first", "Attention settles before values do"),
        )
        for task in ("bijection", "hmm")
    ),
    Mechanism(LATER, "five clusters", "hmm", "mamba2", CLUSTERS),
    Told("NLL above Bayes, per cent", FLIPS, 0.93, *COINS, "loss", ("gap (%)",), "this run"),
    Told("correlation with Bayes", FLIPS, 0.9958, *COINS, "agreement", ("Pearson r",), "this run", more=True),
    Told("MAE against Bayes over contexts", FLIPS, 0.00954, *COINS, "agreement", ("MAE",), "this run"),
    *(
        Told(f"posterior samples, {metric}", FLIPS, value, *COINS, "posterior_metrics", (metric, "this run"), "mean")
        for metric, value in (
            ("W1", 0.0164), ("KS", 0.1764), ("CvM-int", 0.00221), ("PIT-KS", 0.1794), ("PIT-CvM", 3.4308),
            ("quantile RMSE", 0.0176), ("coverage MAE", 0.0445),
        )
    ),
    *(
        Told(f"low probabilities, relative error, {share}", FLIPS, value, *COINS, "lowprob", (share, "this run"), ERROR,
             floor=FLOOR)
        for share, value in (("p50", 0.154), ("p90", 1.423), ("p95", 2.050))
    ),
)  # fmt: skip


def ledger(records: Sequence[RunRecord], reports: Mapping[str, dict[str, Any]] | None = None) -> list[Claim]:
    evidence = Evidence(records, reports or {})
    return [published.judge(evidence) for published in PUBLISHED]


def read_reports(folders: Sequence[Path], records: Sequence[RunRecord]) -> dict[str, dict[str, Any]]:
    """The reports that lie beside records, by run, from the first folder that has one that can be read."""
    found: dict[str, dict[str, Any]] = {}
    for folder, record in product(folders, records):
        path = folder / record.config["task"] / record.config["arch"] / record.id / "report.json"
        try:
            report = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if isinstance(report, dict) and report.get("run") == record.id:
            found.setdefault(record.id, report)
    return found


def render(claims: Sequence[Claim]) -> str:
    counts = {verdict: sum(c.verdict == verdict for c in claims) for verdict in VERDICTS}
    missed = Counter(c.kind for c in claims if c.verdict == "not reproduced")
    parts = ", ".join(f"{missed[kind]} {what}" for kind, what in WHAT.items() if missed[kind])
    detail = {"not reproduced": f" ({parts})" if parts else ""}
    told = ", ".join(f"{count} {verdict}{detail.get(verdict, '')}" for verdict, count in counts.items())
    header = [name if name != "why" else "what explains a difference" for name in Claim._fields if name != "kind"]
    table = tabulate([list(c)[: len(header)] for c in claims], headers=header, tablefmt="pipe", disable_numparse=True)
    return "\n\n".join([TITLE, GENERATED, f"{len(claims)} claims: {told}.", table, LEGEND]) + "\n"
