"""One question a file; the order here is the order of the page. A new section is a new file and a name in this list."""

from bench.diagnostics import (
    coefficient,
    lowprob,
    permutation,
    posterior,
    predictive,
    prior,
    probes,
    symmetry,
    training,
)
from bench.diagnostics.base import Question

QUESTIONS: tuple[Question, ...] = (
    training.architecture,
    training.recipe,
    training.curve,
    training.errors,
    predictive.loss,
    predictive.agreement,
    posterior.quality,
    lowprob.estimation,
    permutation.invariance,
    symmetry.flips,
    probes.statistics,
    coefficient.linearity,
    prior.recovery,
)
