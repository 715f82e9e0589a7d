"""What all tables share: different and equal values of a column."""

import numpy as np
import pytest

from snapconv.columns import (
    distinct,
    grouped,
    is_among,
    last_before,
    next_of,
    number_groups,
    run_starts,
)


@pytest.mark.parametrize("values", [[], [3], [2, 2], [5, -1, 5, 0, -1]])
def test_the_different_values_of_a_column_stand_in_order(values):
    assert distinct(np.array(values, np.int64)).tolist() == sorted(set(values))


@pytest.mark.parametrize(
    ("values", "starts"), [([], []), ([0], [0]), ([-1, -1, 3, 3, 3, -1], [0, 2, 5])]
)
def test_a_run_of_equal_values_starts_where_the_one_before_ends(values, starts):
    assert run_starts(np.array(values, np.int64)).tolist() == starts


@pytest.mark.parametrize(
    "others", [[], [7], [-1, 512], [1 << 60, 512, 512], [512, *range(9)], [1 << 60, *range(7)]]
)
@pytest.mark.parametrize("values", [[], [512], [-1, 7, 1 << 60, 513, 1 << 61]])
def test_a_value_is_among_others_where_one_is_equal(values, others):
    found = is_among(np.array(values, np.int64), np.array(others, np.int64))
    assert found.tolist() == [value in others for value in values]


@pytest.mark.parametrize(
    ("rows", "groups"), [([], []), ([3], [[3]]), ([4, 0, 2, 1], [[2], [4, 0], [1]])]
)
def test_rows_of_one_key_form_a_group_in_the_order_in_which_they_are_given(rows, groups):
    key = np.array([5, 9, -1, 7, 5])
    assert [group.tolist() for group in grouped(np.array(rows, np.int64), key)] == groups


@pytest.mark.parametrize("most", [9, 1 << 20])  # numbers of 16 bits are sorted in another way
@pytest.mark.parametrize("second", [[0, 0, 0, 0, 0], [1, 0, 1, 1, -1]])
def test_rows_with_equal_keys_form_a_group_and_groups_stand_in_the_order_of_the_keys(most, second):
    first = [5, most, 5, -1, most]
    keys = list(zip(first, second, strict=True))
    begins, group = number_groups(np.array(first), np.array(second, np.int8))
    assert [keys[row] for row in begins.tolist()] == sorted(set(keys))
    assert begins.tolist() == [keys.index(key) for key in sorted(set(keys))]
    assert [sorted(set(keys))[number] for number in group.tolist()] == keys


@pytest.mark.parametrize("events", [[], [0], [2, 3, 7]])
def test_the_events_before_and_after_each_are_the_nearest_of_some(events):
    given, some = np.arange(-1, 9), np.array(events, np.int64)
    assert next_of(some, given, 8).tolist() == [
        min([e for e in events if e > i], default=8) for i in given
    ]
    assert last_before(some, given).tolist() == [
        max([e for e in events if e < i], default=-1) for i in given
    ]
