"""Records of the tests' own, made without training: every number is given or follows from the error."""

from dataclasses import replace

from bench.config import draft
from bench.records import Look, Memory, RunRecord, Seconds
from bench.seeds import PUBLISHED_FROM

UNIFORM, CONSTANT = {"entropy_mae": 2.0, "kl": 2.0}, {"entropy_mae": 1.0, "kl": 3.0}
ENDS = ("bijection", "recall")  # tasks that end at the training horizon
LIMITED = ("mlp", "mlp-pointwise")  # architectures that read no further than they were trained


def metrics(mae, kl):
    return {"entropy_mae": mae, "entropy_curve_mae": mae / 2, "kl": kl, "tv": kl / 2, "nll_gap": kl}


def parts(mae, kl, beyond):
    """`post` are the new positions, here with twice the error."""
    return {"all": metrics(mae, kl), **({"post": metrics(2 * mae, kl)} if beyond else {})}


def references(task, beyond):
    known = {"exact": (0.0, 0.0), "uniform": tuple(UNIFORM.values()), "best constant": tuple(CONSTANT.values())}
    if task.startswith("hmm"):
        known |= {f"window {w}": (0.3 / w, 0.1 / w) for w in (1, 2, 4, 16)}
    return {name: parts(*errors, beyond) for name, errors in known.items()}


def curves(error, kl, length):
    bayes = [2.0 - i / length for i in range(length)]
    return {"h_bayes": bayes, "h_model": [h + error for h in bayes], "entropy_mae": [error] * length,
            "kl": [kl] * length}  # fmt: skip


def make_record(
    arch="transformer",
    task="bijection",
    seed=PUBLISHED_FROM,
    error=0.1,
    kl=None,
    preset="smoke",
    device="cpu",
    **settings,
):
    """A finished run with this error. Settings are those of --set, and `tuning`, `supervision` or `task_params`."""
    given = {k: settings.pop(k) for k in ("tuning", "task_params") if k in settings}
    config = replace(draft(preset, arch, task, seed, device, settings), **given)
    kl = error / 10 if kl is None else kl
    horizons = [k for k in config.horizons if k <= config.horizon or task not in ENDS]
    read = [k for k in horizons if k <= config.horizon or arch not in LIMITED]
    steps = config.steps
    return RunRecord(
        schema=1,
        id=config.id(),
        status="ok",
        error=None,
        config=config,
        budget=20_000,
        parameters=19_000,
        state_bytes=4096,
        train_flops=6e12,
        metrics={str(k): parts(error, kl, k > config.horizon) if k in read else None for k in config.horizons},
        references={str(k): references(task, k > config.horizon) if k in horizons else None for k in config.horizons},
        by_position={str(k): curves(error, kl, k) if k in read else None for k in config.horizons},
        loss_curve=[Look(max(1, steps // 2), 4.0, 2.0, 4 * error), Look(steps, 8.0, 1.0, error)],
        seconds=Seconds(setup=1.0, compile=0.0, data=2.0, train=8.0, eval=0.5),
        tokens_per_second=1000.0,
        memory_bytes=Memory(resident=2**29),
        energy_joules=None,
        platform={"device": device, "name": "a machine", "torch": "2.13", "threads": 1, "why": "", "gpu": None},
        commit="1234567" + "0" * 33,
        dirty=False,
        weights="sha256:" + "0" * 64,
    )


def make_records(arch, errors, task="bijection", **settings):
    """One architecture, its error given seed by seed."""
    return [make_record(arch, task, seed, error, **settings) for seed, error in enumerate(errors, PUBLISHED_FROM)]


def fail(record, error="the loss is nan by step 7"):
    return replace(record, status="failed", error=error, metrics={}, references={}, by_position={}, loss_curve=[])


def change(record, **config):
    """Another run: the same numbers, another config and so another id."""
    changed = replace(record.config, **config)
    return replace(record, config=changed, id=changed.id())


def certain(record):
    """The same run on a task whose exact answer is a point mass: a sure constant has no entropy error."""
    known = {k: each and {**each, "best constant": parts(0.0, 30.0, "post" in each["uniform"])}
             for k, each in record.references.items()}  # fmt: skip
    exact = {k: each and {**each, "h_bayes": [0.0] * len(each["h_bayes"])} for k, each in record.by_position.items()}
    return replace(record, references=known, by_position=exact)
