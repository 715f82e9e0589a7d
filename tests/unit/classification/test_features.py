"""What the rules see of allocations."""

import numpy as np

from snapconv.classification.features import of_fullest


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
