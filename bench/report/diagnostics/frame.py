"""What the causal questions share: their sequences, donors, a random twin, and the frame of hypotheses.

Donor   the same sequence with its hypotheses renamed (`tasks.base.CanRename`): keys, layout and entropy are the same,
        the exact answer is another
Frame   the directions in which the embeddings of recipient and donor differ: those of the tokens that stand for
        hypotheses, or of the header's features. Where a task cannot rename, the embeddings of the tokens that are read
Twin    the same architecture with fresh weights. Maps that start at zero are drawn as well: otherwise no layer would
        write anything, and the control would be the embedding alone
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor, nn

from bench.report.diagnostics.anatomy import affordable, watch
from bench.report.diagnostics.base import NotAvailable, Run
from bench.report.interventions import EMBEDDING, Answers
from bench.report.subspaces import centred_span
from bench.run.score import LN2, Exam, entropy_bits
from bench.seeds import derive
from models.taps import tap_names
from tasks.base import Batch, CanRename, HasHypotheses, permutations

SEQUENCES, LEAST, WORK = 128, 14, 5e9  # of a forward: at most so many sequences, at least, parameters x positions
TWINS = 3
DIFFERENT = 0.1  # total variation: reads where recipient and donor have the same answer decide nothing


class Setting(NamedTuple):
    exam: Exam
    donor: Exam | None  # None where the task cannot rename
    answers: Answers
    evidence: list[int]  # positions that stand for hypotheses; all where none does
    others: list[Batch]  # further sequences, for whatever is fitted, and their donors if there are any


@lru_cache(maxsize=1)
def setting(run: Run) -> Setting:
    length = run.task.shape.length(run.config.horizon)
    run.require_length(length)
    count = max(LEAST, affordable(run, length, SEQUENCES, WORK))
    batch = run.task.sample(count, run.config.horizon, run.rng("interventions"))
    exam = Exam(batch, run.task.posterior(batch))
    evidence = list(range(length))
    if isinstance(run.task, HasHypotheses):
        evidence = (run.task.hypotheses(batch.tokens) >= 0).all(0).nonzero().flatten().tolist()
    renamed = _rename(run, batch, "renamed")
    donor = None if renamed is None else Exam(renamed, run.task.posterior(renamed))
    further = run.task.sample(count, run.config.horizon, run.rng("further sequences"))
    others = [each for each in (further, _rename(run, further, "further donors")) if each is not None]
    return Setting(exam, donor, Answers(run.model, batch), evidence, others)


def _rename(run: Run, batch: Batch, stream: str) -> Batch | None:
    if not isinstance(run.task, CanRename):
        return None
    return run.task.rename(batch, permutations(len(batch.tokens), run.task.shape.classes, run.rng(stream)))


def make_frame(model: nn.Module, batch: Batch, donor: Batch | None) -> Tensor:
    """[D, R] in the space of the embedding."""
    if EMBEDDING not in tap_names(model):
        raise NotAvailable("the architecture has no tap on its embedding")
    own = watch(model, batch, EMBEDDING)[EMBEDDING]
    if donor is None:
        tokens, inverse = batch.tokens.unique(return_inverse=True)
        sums = torch.zeros(len(tokens), own.shape[-1]).index_add(0, inverse.flatten(), own.flatten(0, 1))
        return centred_span(sums / inverse.flatten().bincount()[:, None])
    other = watch(model, donor, EMBEDDING)[EMBEDDING]
    return centred_span((other - own).flatten(0, 1))


@lru_cache(maxsize=1)
def frame(run: Run) -> Tensor:
    exam, donor, *_ = setting(run)
    return make_frame(run.model, exam.batch, None if donor is None else donor.batch)


@lru_cache(maxsize=1)
def twins(run: Run) -> list[nn.Module]:
    return [_fresh(run, i) for i in range(TWINS)]


def twin(run: Run) -> nn.Module:
    return twins(run)[0]


def _fresh(run: Run, i: int) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(derive(run.config.seed, "report", "twin", *([i] if i else [])))
        model = run.config.make_model()
        for module in model.modules():
            if isinstance(module, nn.Linear) and not module.weight.any():
                module.reset_parameters()
    return model.eval()


def trained(run: Run) -> slice:
    """The reads that were trained on: all, or those before the loss horizon."""
    return slice(getattr(run.task, "loss_horizon", None))


def need_donor(run: Run) -> Exam:
    donor = setting(run).donor
    if donor is None:
        raise NotAvailable("hypotheses of this task cannot be renamed, so no sequence has a donor")
    return donor


def kl_bits(p: Tensor, log_q: Tensor) -> Tensor:
    """KL(p || q) of each read, [B, Q]."""
    return -torch.where(p > 0, p * log_q, 0.0).sum(-1) / LN2 - entropy_bits(p)


def margin(log_q: Tensor, own: Tensor, other: Tensor) -> float:
    """How much nearer the answer is to the donor's posterior than to the recipient's: bits of KL, mean over reads."""
    differ = (own - other).abs().sum(-1) / 2 > DIFFERENT
    if not differ.any():
        raise NotAvailable("recipient and donor have the same answers")
    return (kl_bits(own, log_q) - kl_bits(other, log_q))[differ].mean().item()
