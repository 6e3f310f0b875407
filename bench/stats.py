"""What several seeds allow one to say.

Seeds are paired: runs of one seed read the same batches and the same evaluation sequences, so two architectures are
compared seed by seed. What they share is the data, not the course of training: on two machines one run ends some per
cent apart, and so a row may have seeds from several.

interval       95 % interval over seeds, by Student's t on the logarithm of the error: seeds differ by factors, and of
               0.7, 1.7 and 1.8 bits a symmetric interval would reach zero. A bootstrap of two or three seeds is no more
               than their range, which holds the mean in half to three quarters of all cases
bounds         that interval, or for a single seed a factor of 1.5 either way
median_interval  of the median of many values, by a bootstrap: few of them are far out
mean_interval  of the mean of many values, by Student's t on the values themselves
prediction_interval  where one more seed would fall, by the same law
paired_p       exact sign-flip test of the mean paired difference of logarithms, two-sided: 2^-(n-1) at the least, so
               that five seeds cannot go below 0.06, and three not below 0.25
holm           the same tests, corrected for being several (Holm 1979): the chance that any of them is a false alarm
two_groups     whether seeds fall apart: some left a plateau, some did not, and an interval over both says little
shared_ranks   one more than the number of rows that are clearly better: whose bounds end before this one's begin; and,
               since seeds that disagree should not raise a row, never better than a row of less mean error that has
               several seeds
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import product
from math import cos, exp, log, pi, sin, tan
from statistics import mean, stdev

import numpy as np

LEVEL = 0.95
APART = 3.0  # a factor between two neighbouring seeds: of normal rows a few per cent have it with five seeds
SLACK = 1.5  # a factor: another seed, recipe or machine moves an error by as much
RESAMPLED = 2000  # samples of a bootstrap
FLIPPED = 16  # seeds for which all 2^n signs are tried; of more as many, drawn at random
LEAST, MOST = 1e-12, 700.0  # an error that has a logarithm, and a logarithm that has a number


def interval(errors: Sequence[float]) -> tuple[float, float] | None:
    """None for a single seed: one number has no spread."""
    return _around(errors, (1 / len(errors)) ** 0.5) if errors else None


def bounds(values: Sequence[float]) -> tuple[float, float]:
    return interval(values) or (values[0] / SLACK, values[0] * SLACK)


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    drawn = np.random.default_rng(0).choice(np.array(values), (RESAMPLED, len(values)))
    low, high = np.quantile(np.median(drawn, axis=1), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def prediction_interval(errors: Sequence[float]) -> tuple[float, float] | None:
    return _around(errors, (1 + 1 / len(errors)) ** 0.5) if errors else None


def mean_interval(values: Sequence[float]) -> tuple[float, float]:
    reach = student(len(values) - 1) * stdev(values) / len(values) ** 0.5
    return mean(values) - reach, mean(values) + reach


@cache
def student(freedom: int) -> float:
    """Student's t that holds LEVEL of all cases, for whole degrees of freedom; scipy would take a third of a second.

    Abramowitz and Stegun 26.7.3 and 26.7.4, solved for the angle by bisection.
    """
    low, high = 0.0, pi / 2
    for _ in range(60):
        angle = (low + high) / 2
        even = freedom % 2 == 0
        term = total = 1.0 if even else cos(angle)
        for k in range(2 if even else 3, freedom, 2):
            term *= cos(angle) ** 2 * (k - 1) / k
            total += term
        share = sin(angle) * total if even else (angle + sin(angle) * total * (freedom > 1)) * 2 / pi
        low, high = (angle, high) if share < LEVEL else (low, angle)
    return float(freedom**0.5 * tan(low))


def _around(errors: Sequence[float], share: float) -> tuple[float, float] | None:
    n = len(errors)
    if n < 2:
        return None
    logs = [log(max(error, LEAST)) for error in errors]
    reach = student(n - 1) * stdev(logs) * share
    return exp(mean(logs) - reach), exp(min(mean(logs) + reach, MOST))


def paired_p(a: dict[int, float], b: dict[int, float]) -> float | None:
    """How often chance alone would set two rows this far apart, from the seeds that both have; None below two."""
    common = sorted(a.keys() & b.keys())
    if len(common) < 2:
        return None
    differences = np.array([log(max(a[seed], LEAST)) - log(max(b[seed], LEAST)) for seed in common])
    if len(common) <= FLIPPED:
        signs = np.array(list(product((-1, 1), repeat=len(common))))
    else:
        signs = np.random.default_rng(0).choice((-1, 1), (2**FLIPPED, len(common)))
        signs[0] = 1  # as seen, so that it is never nothing
    flipped = signs @ differences
    # as far apart as seen, up to the rounding of a sum
    return float((abs(flipped) >= abs(differences.sum()) * (1 - 1e-12)).mean())


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Each corrected for all of them together, None where there was no test."""
    made = sorted((p, i) for i, p in enumerate(p_values) if p is not None)
    found: list[float | None] = [None] * len(p_values)
    largest = 0.0
    for place, (p, i) in enumerate(made):
        largest = max(largest, min(1.0, p * (len(made) - place)))
        found[i] = largest
    return found


def two_groups(errors: Sequence[float]) -> tuple[int, float] | None:
    """How many seeds are on the better side of the widest gap, and their mean; None where no gap is wide."""
    ordered = sorted(max(error, LEAST) for error in errors)
    gap, count = max(((ordered[i] / ordered[i - 1], i) for i in range(1, len(ordered))), default=(1.0, 0))
    return (count, mean(ordered[:count])) if len(ordered) > 2 and gap >= APART else None


def shared_ranks(rows: Sequence[Sequence[float]]) -> list[int]:
    """Ranks of rows, each given by its values over seeds. A single seed gets the slack as its interval."""
    ends = [bounds(values) for values in rows]
    ranks = [1 + sum(high < low for _, high in ends) for low, _ in ends]
    least = 1
    for i in sorted(range(len(rows)), key=lambda i: mean(rows[i])):
        ranks[i] = max(ranks[i], least)
        if len(rows[i]) > 1:
            least = ranks[i]
    return ranks
