"""Intervals, paired tests and ranks, on numbers made for the purpose and against scipy."""

import numpy as np
import pytest
from scipy.stats import permutation_test, t

from bench.stats import holm, interval, paired_p, prediction_interval, shared_ranks, student, two_groups


@pytest.mark.parametrize("n", [2, 3, 5])
def test_an_interval_is_students_on_the_log_and_holds_the_truth_in_95_of_100_cases(n):
    logs = np.random.default_rng(n).normal(-3.0, 0.5, size=(4000, n))
    bounds = np.array([interval(list(values)) for values in np.exp(logs)])
    theirs = t.interval(0.95, n - 1, loc=logs.mean(1), scale=logs.std(1, ddof=1) / n**0.5)
    assert np.log(bounds) == pytest.approx(np.stack(theirs, axis=1))
    held = ((bounds[:, 0] <= np.exp(-3.0)) & (bounds[:, 1] >= np.exp(-3.0))).mean()
    assert 0.94 < held < 0.96


@pytest.mark.parametrize("n", [2, 3, 5])
def test_a_prediction_interval_holds_one_more_seed_in_95_of_100_cases(n):
    errors = np.exp(np.random.default_rng(n).normal(-3.0, 0.5, size=(4000, n + 1)))
    bounds = np.array([prediction_interval(list(values)) for values in errors[:, 1:]])
    assert 0.94 < ((bounds[:, 0] <= errors[:, 0]) & (errors[:, 0] <= bounds[:, 1])).mean() < 0.96


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 5, 8, 29, 100, 2047])
def test_students_quantile_is_scipys(freedom):
    assert student(freedom) == pytest.approx(t.ppf(0.975, freedom), rel=1e-9)


def test_an_interval_of_errors_is_positive_and_one_seed_has_none():
    assert interval([]) is None
    assert interval([1.0]) is None
    assert interval([2.0, 2.0, 2.0]) == pytest.approx((2.0, 2.0))
    low, high = interval([0.7, 1.7, 1.8])
    assert 0.3 < low < 0.7
    assert high > 1.8
    low, high = interval([0.0, 1e6])  # no more than numbers can hold
    assert low >= 0
    assert np.isfinite(high)


@pytest.mark.parametrize("n", [2, 3, 5, 8])
def test_paired_test_equals_scipys_exact_permutations(n):
    rng = np.random.default_rng(n)
    a = rng.normal(size=n)
    b = a + rng.normal(0.5, 1.0, size=n)
    errors = [dict(enumerate(np.exp(each))) for each in (a, b)]  # seeds differ by factors
    theirs = permutation_test(
        (a, b), lambda x, y, axis: np.mean(x - y, axis=axis), permutation_type="samples", vectorized=True
    )
    assert paired_p(*errors) == pytest.approx(min(1.0, theirs.pvalue))


def test_paired_test_uses_common_seeds_and_sees_through_what_they_share():
    noise = {0: 1.0, 1: 5.0, 2: 0.03, 3: 8.0, 4: 0.2}
    better = {seed: 0.9 * value for seed, value in noise.items()}
    assert paired_p(better, noise) == 2 / 2**5
    assert paired_p(better, {**noise, 9: 1e-9}) == 2 / 2**5
    assert paired_p({0: 1.0}, {0: 2.0}) is None
    assert paired_p({0: 1.0, 1: 1.0}, {2: 2.0, 3: 2.0}) is None
    assert paired_p(noise, noise) == 1.0


def test_of_many_seeds_all_count():
    apart = {seed: 2.0 if seed < 16 else 0.5 for seed in range(40)}  # the first sixteen alone would say otherwise
    assert paired_p(apart, dict.fromkeys(range(40), 1.0)) > 0.1
    assert 0 < paired_p(dict.fromkeys(range(40), 2.0), dict.fromkeys(range(40), 1.0)) < 1e-4


def test_one_bad_seed_does_not_carry_the_paired_test():
    level = dict.fromkeys(range(5), 1.0)
    assert paired_p({**dict.fromkeys(range(4), 0.5), 4: 3.0}, level) < 1  # better by a factor of two in four of five
    assert paired_p({0: 2.0, 1: 0.5, 2: 2.0, 3: 0.5, 4: 1.0}, level) == 1.0


def test_a_rank_counts_the_rows_that_are_clearly_better():
    """A chain of overlaps does not make the last equal to the first, nor does a row between two part them."""
    rows = [[0.9, 1.0, 1.1], [1.1, 1.2, 1.3], [1.5, 1.6, 1.7], [9.0, 9.1, 9.2]]
    assert shared_ranks(rows) == [1, 1, 2, 4]  # the third overlaps the second, not the first
    assert shared_ranks([[1.0], [2.0], [2.5], [6.0]]) == [1, 1, 2, 4]  # a factor of 1.5 around each
    assert shared_ranks([[0.9, 1.0, 1.1], [1.9], [0.5, 1.5, 2.5]]) == [1, 1, 1]
    assert shared_ranks([[0.9, 1.0, 1.1], [2.0], [0.5, 1.5, 2.5]]) == [1, 2, 1]
    assert shared_ranks([]) == []


def test_seeds_that_disagree_earn_no_rank():
    rows = [[1.0, 1.01, 1.02], [1.5, 1.51, 1.52], [0.9, 2.0, 4.0]]
    assert shared_ranks(rows) == [1, 2, 2]  # the last overlaps the first, and stands below the second
    assert shared_ranks(rows[::-1]) == [2, 2, 1]
    assert shared_ranks([rows[0], [1.6], rows[2]]) == [1, 2, 1]  # one seed parts nothing


def test_holm_corrects_for_all_tests_together():
    """Against the definition: the k-th smallest of m times m - k + 1, never falling, never above one."""
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, None, 0.6]) == pytest.approx([1.0, None, 1.0])
    assert holm([]) == []


def test_seeds_that_fall_apart_are_counted():
    assert two_groups([0.024, 0.103, 0.023]) == pytest.approx((2, 0.0235))
    assert two_groups([0.042, 0.041, 0.034]) is None
    assert two_groups([0.01, 1.0]) is None  # two seeds cannot show which is the rule
    assert two_groups([0.5, 0.001, 0.6, 0.7, 0.5]) == pytest.approx((1, 0.001))
