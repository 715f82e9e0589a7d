"""What all tables share: maxima of many ranges at once, and different and equal values of a column."""

import numpy as np
import pytest

from snapconv.columns import distinct, grouped, is_among, last_before, next_of, range_maxima, run_starts


@pytest.mark.parametrize("n", [1, 2, 255, 256, 257, 3000])
def test_the_maximum_of_every_range_is_that_of_its_values(n):
    generator = np.random.default_rng(n)
    values = generator.integers(-(1 << 62), 1 << 62, n)
    first = generator.integers(0, n, 500)
    last = first + (generator.random(500) * (n - first)).astype(np.int64)
    expected = [values[i : j + 1].max() for i, j in zip(first, last, strict=True)]
    assert range_maxima(values, first, last).tolist() == expected


def test_no_range_has_no_maximum():
    none = np.zeros(0, np.int64)
    assert len(range_maxima(np.arange(5), none, none)) == 0


def test_long_ranges_cost_no_more_than_short_ones():
    """A hundred thousand ranges of a million values each: by their lengths this would take minutes."""
    values = np.arange(1_000_000)
    first, last = np.zeros(100_000, np.int64), np.full(100_000, 999_999)
    assert set(range_maxima(values, first, last).tolist()) == {999_999}


@pytest.mark.parametrize("values", [[], [3], [2, 2], [5, -1, 5, 0, -1]])
def test_the_different_values_of_a_column_stand_in_order(values):
    assert distinct(np.array(values, np.int64)).tolist() == sorted(set(values))


@pytest.mark.parametrize(("values", "starts"), [([], []), ([0], [0]), ([-1, -1, 3, 3, 3, -1], [0, 2, 5])])
def test_a_run_of_equal_values_starts_where_the_one_before_ends(values, starts):
    assert run_starts(np.array(values, np.int64)).tolist() == starts


@pytest.mark.parametrize("others", [[], [7], [-1, 512], [1 << 60, 512, 512]])
@pytest.mark.parametrize("values", [[], [512], [-1, 7, 1 << 60, 513, 1 << 61]])
def test_a_value_is_among_others_where_one_is_equal(values, others):
    found = is_among(np.array(values, np.int64), np.array(others, np.int64))
    assert found.tolist() == [value in others for value in values]


@pytest.mark.parametrize(("rows", "groups"), [([], []), ([3], [[3]]), ([4, 0, 2, 1], [[2], [4, 0], [1]])])
def test_rows_of_one_key_form_a_group_in_the_order_in_which_they_are_given(rows, groups):
    key = np.array([5, 9, -1, 7, 5])
    assert [group.tolist() for group in grouped(np.array(rows, np.int64), key)] == groups


@pytest.mark.parametrize("events", [[], [0], [2, 3, 7]])
def test_the_events_before_and_after_each_are_the_nearest_of_some(events):
    given, some = np.arange(-1, 9), np.array(events, np.int64)
    assert next_of(some, given, 8).tolist() == [min([e for e in events if e > i], default=8) for i in given]
    assert last_before(some, given).tolist() == [max([e for e in events if e < i], default=-1) for i in given]
