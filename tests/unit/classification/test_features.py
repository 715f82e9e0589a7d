"""What the rules see of allocations."""

import numpy as np

from snapconv.classification.features import at, first_before, last_before, next_of, of_fullest


def int64(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


ITERATION = np.array([0, 0, 1, 1, 2, 2, -1], np.int32)


def test_the_rows_of_the_fullest_iteration_are_those_with_most_bytes_not_most_rows():
    sizes = int64(10, 10, 50, 10, 20, 20, 0)
    assert of_fullest(np.arange(7), ITERATION, sizes).tolist() == [2, 3]


def test_of_equals_the_last_iteration_counts():
    sizes = int64(30, 30, 50, 10, 20, 40, 0)
    assert of_fullest(np.arange(7), ITERATION, sizes).tolist() == [4, 5]


def test_only_the_given_rows_count():
    sizes = int64(10, 10, 50, 10, 20, 20, 0)
    assert of_fullest(int64(0, 1, 3), ITERATION, sizes).tolist() == [0, 1]


def test_before_the_trace_is_an_iteration_too():
    assert of_fullest(int64(0, 6), ITERATION, int64(1, 0, 0, 0, 0, 0, 9)).tolist() == [6]


def test_no_rows_have_no_iteration():
    assert of_fullest(int64(), ITERATION, int64(*[1] * 7)).tolist() == []


def test_an_event_before_or_beyond_a_column_has_the_missing_value():
    assert at(int64(5, 6), int64(-2, -1, 0, 1, 2), 9).tolist() == [9, 9, 5, 6, 9]
    assert at(int64(), int64(-1, 0), 9).tolist() == [9, 9]


def test_the_next_of_some_events_is_later_than_the_given_one():
    assert next_of(int64(4, 2), int64(1, 2, 3, 4), 8).tolist() == [2, 4, 4, 8]


def test_the_last_of_some_events_before_another_is_earlier_than_that():
    assert last_before(int64(2, 4), int64(2, 3, 4, 5)).tolist() == [-1, 2, 2, 4]


def test_the_first_of_some_rows_counts_for_all_that_are_followed_by_the_same_event():
    """Rows 1 and 2 are given, and event 6 follows them; event 9 follows the last row, which is not given."""
    following, alloc = int64(6, 6, 6, 9), int64(1, 2, 3, 7)
    assert first_before(following, alloc, int64(2, 1), 9).tolist() == [2, 2, 2, 9]
