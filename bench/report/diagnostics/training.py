"""What was trained, how, and how it went: from the record alone, for every task."""

from __future__ import annotations

from typing import Any

from bench.records import RunRecord
from bench.report.diagnostics.base import EXACT, GREY, MODEL, Picture, Run, Section, Table, canvas, section
from bench.run.score import LN2, entropy_bits
from bench.run.train import watch_exam
from bench.text import number
from models.base import ACTIVATIONS, usual_hidden

# of each part: the sequences, and the exact answer that they are scored against
PARTS = {
    "all": ("as in training", "prior of training"),
    "post": ("as in training, new positions", "prior of training"),
    "inside-full": ("laws of the pool", "full prior"),
    "outside-full": ("fresh laws", "full prior"),
    "outside-pool": ("fresh laws", "pool prior"),
    "shifted": ("laws of the other prior", "shifted prior"),
    "shifted-own": ("laws of the other prior", "own prior"),
    "beyond": ("as in training, beyond the loss horizon", "prior of training"),
    "heldout": ("held-out prefixes", "prior of training"),
}
ANSWERS = ("pool prior", "full prior", "own prior", "shifted prior")  # references that are exact under some prior
PAIRS = (  # sequences with two exact answers: the part scored against each
    ("laws of the pool", ("all", "pool prior"), ("inside-full", "full prior")),
    ("fresh laws", ("outside-pool", "pool prior"), ("outside-full", "full prior")),
    ("laws of the other prior", ("shifted-own", "own prior"), ("shifted", "shifted prior")),
)


def _beside(run: Run, name: str, ours: dict[str, str]) -> Table:
    """A table of settings, with the published column where there is one."""
    published = run.literature.settings
    if run.config.task != "bernoulli" or not published:
        return Table(name, ["field", "value"], [[key, value] for key, value in ours.items()])
    rows = [[key, value, published.get(key)] for key, value in ours.items()]
    return Table(name, ["field", "value", "LPE report"], rows)


@section("Architecture")
def architecture(run: Run) -> Section:
    config, record = run.config, run.record
    ours = {
        "architecture": config.arch,
        "parameters": f"{record.parameters:,}",
        "parameter budget": f"{record.budget:,}",
        "state carried at the training length": "n/a"
        if record.state_bytes is None
        else f"{record.state_bytes:,} bytes",
    }
    if config.arch == "transformer":
        norm = "before each branch" if config.width > 2 else "none"
        ours |= {
            "layers": str(config.layers), "width": str(config.width), "heads": str(config.heads),
            "feed-forward width": str(usual_hidden(config.ffn, config.activation)),
            "positions": config.positions, "normalisation": norm, "activation": ACTIVATIONS[config.activation].name,
        }  # fmt: skip
    return Section("", [_beside(run, "architecture", ours)])


@section("Training")
def recipe(run: Run) -> Section:
    config, record = run.config, run.record
    spent = "not measured" if record.seconds.train is None else f"{record.seconds.train:,.0f}"
    ours = {
        "task": ", ".join([config.task, *(f"{key} = {value}" for key, value in config.task_params.items())]),
        "supervision": config.supervision,
        "predictions in a sequence": f"{config.horizon:,}",
        "batch": str(config.batch),
        "steps": f"{config.steps:,}",
        "optimizer": config.optimizer,
        "learning rate": f"{config.lr:g}",
        "schedule": f"linear warm-up, then {'linear to nothing' if config.decay == 'linear' else 'constant'}",
        "warm-up steps": str(config.warmup),
        "weight decay": f"{config.weight_decay:g}",
        "gradient clipping": str(config.clip),
        "seed": str(config.seed),
        "seconds of training": f"{spent} on {record.platform['threads']} thread(s)",
        "machine": f"{record.platform['name']}, torch {record.platform['torch']}",
        "commit": f"{(record.commit or 'unknown')[:12]}{' with changes' if record.dirty else ''}",
    }
    if config.task == "bernoulli":
        ours["bits in a sequence"] = f"{config.horizon + (not config.task_params.get('bos', False)):,}"
    return Section("", [_beside(run, "training", ours)])


@section("Training curve")
def curve(run: Run) -> Section:
    points = run.record.loss_curve
    figure, axis = canvas(8, 4)
    each = [(p.step - len(p.losses) + 1 + i, loss) for p in points for i, loss in enumerate(p.losses)]
    if each:
        steps, losses = zip(*each, strict=True)
        nats = [LN2 * loss for loss in losses]
        axis.plot(steps, nats, color=GREY, linewidth=0.4, label="training loss, every step", rasterized=True)
    seen = [(p.step, LN2 * p.eval_loss) for p in points if p.eval_loss is not None]
    if seen:
        axis.plot(*zip(*seen, strict=True), "o-", color=MODEL, markersize=3, label="evaluation loss")
    if run.config.device == "cpu":  # a GPU draws other sequences from the same seed
        bayes = LN2 * entropy_bits(watch_exam(run.task, run.config).posterior).mean().item()
        label = f"exact posterior on the same sequences ({bayes:.4f})"
        axis.axhline(bayes, color=EXACT, linestyle="--", linewidth=1, label=label)
    axis.set(xlabel="step", ylabel="loss (nats a prediction)", title="Training curve")
    axis.legend()
    rows = [
        [p.step, p.seconds, LN2 * p.loss, None if p.eval_loss is None else LN2 * p.eval_loss, p.entropy_mae]
        for p in points
    ]
    header = ["step", "seconds", "training loss (nats)", "evaluation loss (nats)", "entropy MAE (bits)"]
    text = f"Training loss at every step, and {len(points)} looks at the model on sequences that no step trains on."
    return Section(text, [Table("curve", header, rows)], [Picture("training_curve", figure, "Loss by step.")])


@section("Error by position")
def errors(run: Run) -> Section:
    figure, axis = canvas(8, 4)
    rows: list[list[float | None]] = []
    for horizon, columns in run.record.by_position.items():
        if columns is None:
            rows.append([int(horizon), None, None, None, None])
            continue
        axis.plot(range(1, int(horizon) + 1), columns["entropy_mae"], linewidth=1, label=f"horizon {horizon}")
        found = run.record.at(int(horizon))
        new, whole = found.get("post", {}), found["all"]
        rows.append([int(horizon), whole["entropy_mae"], new.get("entropy_mae"), whole["kl"], whole.get("nll_gap")])
    axis.axvline(run.config.horizon, color=GREY, linestyle=":", label="end of training")
    axis.set(xlabel="prediction", ylabel="|H model - H Bayes| (bits)", title="Error by position", yscale="log")
    axis.legend()
    header = ["horizon", "entropy MAE (bits)", "new positions alone", "KL (bits)", "NLL gap (bits)"]
    text, others = parts(run)
    tables = [Table("errors", header, rows), *others]
    return Section(text, tables, [Picture("error_by_position", figure, "Mean over sequences.")])


def parts(run: Run) -> tuple[str, list[Table]]:
    """The further evaluations of a task's settings, and how far the task's exact answers are from each other there."""
    record = run.record
    if not set(record.at()) - {"all", "post"}:
        return "", []
    known = record.references[str(run.config.horizon)] or {}
    answers = [name for name in ANSWERS if name in known]
    rows: list[list[Any]] = []
    for horizon, found in record.metrics.items():
        beside = record.references[horizon] or {}
        for part, errors in (found or {}).items():
            others = [beside[name][part]["kl"] for name in (*answers, "uniform")]
            model = [errors["entropy_mae"], errors["kl"], errors.get("nll_gap")]
            rows.append([int(horizon), part, *PARTS.get(part, ("the task's own", "the task's own")), *model, *others])
    header = ["horizon", "part", "sequences", "exact answer", "entropy MAE (bits)", "KL (bits)", "NLL gap (bits)"]
    header += [f"KL of {name} (bits)" for name in (*answers, "uniform")]
    text = "Second table: this run and reference predictors, each against the exact answer that the row names. "
    return text + _nearer(record), [Table("parts", header, rows)]


def _nearer(record: RunRecord) -> str:
    """Where a row's sequences have two exact answers: which of them the run is nearer to."""
    found, said = record.at(), []
    known = record.references[str(record.config.horizon)] or {}
    for sequences, (first, one), (second, other) in PAIRS:
        if first in found and second in found and one in known:
            kl, other_kl = found[first]["kl"], found[second]["kl"]
            said.append(
                f"On {sequences} its KL is {number(kl)} to the {one} and {number(other_kl)} to the {other}, which are "
                f"{number(known[one][second]['kl'])} bits apart: nearer to the {one if kl < other_kl else other}."
            )
    return " ".join(said)
