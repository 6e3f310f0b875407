"""What was trained, how, and how it went: from the record alone, for every task."""

from __future__ import annotations

from bench.diagnostics.base import EXACT, GREY, MODEL, Picture, Run, Section, Table, canvas, section
from bench.score import LN2, entropy_bits
from bench.train import watched
from models.base import ACTIVATIONS, usual_hidden

LPE_REPORT = {
    "layers": "1", "width": "16", "heads": "1", "feed-forward width": "16", "positions": "none",
    "parameters": "1,794", "normalisation": "before each branch",
    "supervision": "sampled", "bits in a sequence": "1,024", "batch": "64", "optimizer": "adamw",
    "weight decay": "0.01", "learning rate": "0.0003", "warm-up steps": "400", "gradient clipping": "1.0",
    "steps": "4,000",
}  # fmt: skip


def _beside(run: Run, name: str, ours: dict[str, str]) -> Table:
    """A table of settings, with the published column where there is one."""
    if run.config.task != "bernoulli":
        return Table(name, ["field", "value"], [[key, value] for key, value in ours.items()])
    rows = [[key, value, LPE_REPORT.get(key)] for key, value in ours.items()]
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
        "seconds of training": f"{record.seconds['train']:,.0f} on {record.platform['threads']} thread(s)",
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
    each = [(p["step"] - len(p["losses"]) + 1 + i, loss) for p in points for i, loss in enumerate(p.get("losses", ()))]
    if each:
        steps, losses = zip(*each, strict=True)
        axis.plot(steps, [LN2 * loss for loss in losses], color=GREY, linewidth=0.4, label="training loss, every step")
    seen = [p for p in points if "eval_loss" in p]
    if seen:
        nats = [LN2 * p["eval_loss"] for p in seen]
        axis.plot([p["step"] for p in seen], nats, "o-", color=MODEL, markersize=3, label="evaluation loss")
    if run.config.device == "cpu":  # a GPU draws other sequences from the same seed
        bayes = LN2 * entropy_bits(watched(run.task, run.config).posterior).mean().item()
        label = f"exact posterior on the same sequences ({bayes:.4f})"
        axis.axhline(bayes, color=EXACT, linestyle="--", linewidth=1, label=label)
    axis.set(xlabel="step", ylabel="loss (nats a prediction)", title="Training curve")
    axis.legend()
    rows = [[p["step"], p["seconds"], LN2 * p["loss"], LN2 * p["eval_loss"] if "eval_loss" in p else None,
             p["entropy_mae"]] for p in points]  # fmt: skip
    header = ["step", "seconds", "training loss (nats)", "evaluation loss (nats)", "entropy MAE (bits)"]
    text = f"Training loss at every step, and {len(points)} looks at the model on sequences that no step trains on."
    return Section(text, [Table("curve", header, rows)], [Picture("training_curve", figure, "Loss by step.")])


@section("Error by position")
def errors(run: Run) -> Section:
    figure, axis = canvas(8, 4)
    rows = []
    for horizon, columns in run.record.by_position.items():
        if columns is None:
            rows.append([int(horizon), None, None, None, None])
            continue
        axis.plot(range(1, int(horizon) + 1), columns["entropy_mae"], linewidth=1, label=f"horizon {horizon}")
        new = run.record.metrics[horizon].get("post", {})
        whole = run.record.metrics[horizon]["all"]
        rows.append([int(horizon), whole["entropy_mae"], new.get("entropy_mae"), whole["kl"], whole["nll_gap"]])
    axis.axvline(run.config.horizon, color=GREY, linestyle=":", label="end of training")
    axis.set(xlabel="prediction", ylabel="|H model - H Bayes| (bits)", title="Error by position", yscale="log")
    axis.legend()
    header = ["horizon", "entropy MAE (bits)", "new positions alone", "KL (bits)", "NLL gap (bits)"]
    return Section("", [Table("errors", header, rows)], [Picture("error_by_position", figure, "Mean over sequences.")])
