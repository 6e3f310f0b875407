"""Intervals, paired tests and ranks, on numbers made for the purpose and against scipy."""

import numpy as np
import pytest
from scipy.stats import bootstrap, permutation_test

from bench.stats import interval, paired_p, shared_ranks


@pytest.mark.parametrize("n", [2, 3, 5, 6])
def test_enumerated_interval_agrees_with_scipys_random_resamples(n):
    values = np.random.default_rng(n).lognormal(size=n)
    theirs = bootstrap((values,), np.mean, method="percentile", n_resamples=50_000, rng=1).confidence_interval
    assert interval(list(values)) == pytest.approx(tuple(theirs), abs=0.05 * np.ptp(values))


def test_an_interval_is_reproducible_and_holds_the_mean():
    for n in (2, 6, 7, 12):  # both sides of the border between all resamples and random ones
        values = list(np.random.default_rng(n).normal(size=n))
        low, high = interval(values)
        assert min(values) <= low < np.mean(values) < high <= max(values)
        assert interval(values) == (low, high)
    assert interval([1.0]) is None
    assert interval([2.0, 2.0, 2.0]) == (2.0, 2.0)


@pytest.mark.parametrize("n", [2, 3, 5, 8])
def test_paired_test_equals_scipys_exact_permutations(n):
    rng = np.random.default_rng(n)
    a = rng.normal(size=n)
    b = a + rng.normal(0.5, 1.0, size=n)
    theirs = permutation_test(
        (a, b), lambda x, y, axis: np.mean(x - y, axis=axis), permutation_type="samples", vectorized=True
    )
    assert paired_p(dict(enumerate(a)), dict(enumerate(b))) == pytest.approx(min(1.0, theirs.pvalue))


def test_paired_test_uses_common_seeds_and_sees_through_what_they_share():
    noise = {0: 0.0, 1: 5.0, 2: -3.0, 3: 8.0, 4: 1.0}
    better = {seed: value - 0.1 for seed, value in noise.items()}
    assert paired_p(better, noise) == 2 / 2**5
    assert paired_p(better, {**noise, 9: -100.0}) == 2 / 2**5
    assert paired_p({0: 1.0}, {0: 2.0}) is None
    assert paired_p({0: 1.0, 1: 1.0}, {2: 2.0, 3: 2.0}) is None
    assert paired_p(noise, noise) == 1.0


def test_ranks_are_shared_with_the_best_they_overlap_and_no_further():
    """A chain of overlaps does not make the last equal to the first."""
    rows = [[1.0, 2.0, 3.0], [2.0, 3.0, 4.0], [3.5, 4.0, 4.5], [9.0, 9.1, 9.2]]
    assert shared_ranks(rows) == [1, 1, 3, 4]
    assert shared_ranks([[1.0], [2.0], [2.0], [3.0]]) == [1, 2, 2, 4]
    assert shared_ranks([]) == []
