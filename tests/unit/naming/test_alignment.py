"""Sequences of sizes are aligned in order, with as many bytes as possible."""

import numpy as np
import pytest

from snapconv.naming.alignment import align


def best_common(first, second):
    """The bytes of the best alignment, by the table that textbooks have."""
    best = np.zeros((len(first) + 1, len(second) + 1), np.int64)
    for i, a in enumerate(first.tolist()):
        for j, b in enumerate(second.tolist()):
            best[i + 1, j + 1] = max(best[i, j + 1], best[i + 1, j], best[i, j] + a if a == b else 0)
    return int(best[-1, -1])


@pytest.mark.parametrize("seed", range(40))
def test_an_alignment_keeps_the_order_and_is_the_best_there_is(seed):
    rng = np.random.default_rng(seed)
    first, second = (rng.integers(1, 6, rng.integers(0, 12)) for _ in range(2))
    found = align(first, second)
    paired = found.partner >= 0
    assert (np.diff(found.partner[paired]) > 0).all()
    assert (first[found.partner[paired]] == second[paired]).all()
    assert second[paired].sum() == best_common(first, second)


def test_which_of_equal_neighbours_is_missing_is_not_certain():
    found = align(np.array([5, 7, 7, 9]), np.array([5, 7, 9]))
    assert found.partner.tolist() == [0, 1, 3]
    assert found.is_certain.tolist() == [True, False, True]


def test_sequences_too_long_for_a_table_are_paired_up_to_where_they_differ(monkeypatch):
    monkeypatch.setattr("snapconv.naming.alignment._MAX_CELLS", 5)
    first, second = np.array([3, 100, 4, 4, 200, 5]), np.array([3, 100, 4, 200, 5, 5])
    found = align(first, second)
    assert found.partner.tolist() == [0, 1, 2, -1, -1, -1]
    assert not found.is_certain.any()


def test_a_size_may_be_one_of_several():
    found = align(np.array([4, 8, 4]), np.array([2, 8, 4]), np.array([2, 4, 2]))
    assert found.partner.tolist() == [0, 1, 2]
    assert found.is_certain.all()


def test_nothing_is_paired_where_either_side_is_empty():
    nothing = np.empty(0, np.int64)
    assert align(nothing, np.array([1, 2])).partner.tolist() == [-1, -1]
    assert align(np.array([1, 2]), nothing).partner.tolist() == []


def test_the_end_is_no_surer_than_the_beginning():
    found = align(np.array([7, 1, 7, 2, 7]), np.array([7]))
    assert found.partner.tolist() == [0]
    assert not found.is_certain.any()
