"""Weights with their gradients, matched by size. Rows count from 0, sizes are requested bytes."""

import numpy as np
import pytest

from snapconv.classification.categories import Category
from snapconv.naming.weight_table import match_weights
from snapconv.replay.device_replay import AllocationTable

WEIGHT, GRADIENT, OTHER = Category.WEIGHT, Category.GRADIENT, Category.TEMPORARY


def match(*rows, event=10, iteration=(0, 20)):
    """Match rows of (category, requested bytes, alloc event, end event); -1: before, or never."""
    category, requested, alloc, end = zip(*rows, strict=True) if rows else ((),) * 4
    n = len(rows)
    ends, sizes = np.array(end, np.int64), np.array(requested, np.int64)
    zeros, missing = np.zeros(n, np.int64), np.full(n, -1, np.int32)
    flags = np.ones(n, np.bool_)
    allocations = AllocationTable(
        alloc_event=np.array(alloc, np.int64),
        free_requested_event=ends,
        free_completed_event=ends,
        end_event=ends,
        addr=zeros,
        stream=zeros,
        requested_bytes=sizes,
        block_bytes=-(-sizes // 512) * 512,
        is_exact=flags,
        is_pending_at_end=~flags,
        pool_id=missing,
        stack_id=missing,
        free_stack_id=missing,
    )
    codes = np.array(category, np.int8)
    found = match_weights(allocations, codes, event=event, iteration_events=iteration)
    return found.row.tolist(), found.gradient_row.tolist(), found.n_unmatched_gradients


def test_a_gradient_belongs_to_the_weight_of_its_size():
    rows = [
        (WEIGHT, 100, -1, -1),
        (WEIGHT, 200, -1, -1),
        (GRADIENT, 200, 4, -1),
        (GRADIENT, 100, 5, -1),
    ]
    assert match(*rows) == ([0, 1], [3, 2], 0)


def test_weights_are_those_that_are_live_at_the_event():
    rows = [
        (WEIGHT, 100, -1, 5),
        (WEIGHT, 100, 3, -1),
        (WEIGHT, 100, 11, -1),
        (WEIGHT, 100, 10, 11),
    ]
    assert match(*rows)[0] == [1, 3]


def test_before_the_first_event_only_preexisting_weights_are_live():
    rows = [(WEIGHT, 100, -1, 5), (WEIGHT, 100, 0, -1), (GRADIENT, 100, -1, 2)]
    assert match(*rows, event=-1) == ([0], [2], 0)


def test_a_weight_without_a_gradient_has_none():
    assert match((WEIGHT, 100, -1, -1), (GRADIENT, 104, 1, -1)) == ([0], [-1], 1)


def test_there_is_one_gradient_per_weight_and_one_weight_per_gradient():
    rows = [(WEIGHT, 100, -1, -1)] * 3 + [(GRADIENT, 100, 1, -1)] * 2
    weights, gradients, n_unmatched = match(*rows)
    assert weights == [0, 1, 2]
    assert sorted(gradients) == [-1, 3, 4]
    assert n_unmatched == 0


def test_gradients_that_fit_no_weight_are_counted_if_live():
    rows = (
        [(WEIGHT, 100, -1, -1)]
        + [(GRADIENT, 100, 1, -1)] * 3
        + [(GRADIENT, 7, 1, 5), (GRADIENT, 7, 1, -1)]
    )
    assert match(*rows)[2] == 3


def test_gradients_that_are_live_at_the_event_go_first():
    rows = [
        (WEIGHT, 100, -1, -1),
        (GRADIENT, 100, 1, 5),
        (GRADIENT, 100, 8, -1),
        (GRADIENT, 100, 12, -1),
    ]
    assert match(*rows) == ([0], [2], 0)


@pytest.mark.parametrize(
    ("alloc", "end", "counts"),
    [
        (-1, -1, True),
        (-1, 5, True),  # freed at the iteration's first event
        (-1, 4, False),
        (20, -1, True),  # made at its last
        (21, -1, False),
        (6, 7, True),
    ],
)
def test_a_gradient_counts_if_it_lives_during_the_iteration(alloc, end, counts):
    rows = [(WEIGHT, 100, -1, -1), (GRADIENT, 100, alloc, end)]
    assert match(*rows, iteration=(5, 20))[1] == ([1] if counts else [-1])


def test_other_categories_are_not_matched():
    assert match((OTHER, 100, -1, -1), (WEIGHT, 100, -1, -1), (OTHER, 100, 1, -1)) == ([1], [-1], 0)


def test_without_weights_every_live_gradient_is_left_over():
    assert match((GRADIENT, 100, 1, -1), (GRADIENT, 100, 1, 3)) == ([], [], 1)
    assert match() == ([], [], 0)


def test_sizes_that_are_unique_are_right_whatever_their_order():
    sizes = [100 * k for k in range(1, 40)]
    rows = [(WEIGHT, size, -1, -1) for size in sizes] + [
        (GRADIENT, size, 1, -1) for size in reversed(sizes)
    ]
    weights, gradients, n_unmatched = match(*rows)
    assert [rows[g][1] for g in gradients] == [rows[w][1] for w in weights] == sizes
    assert n_unmatched == 0


def test_gradients_of_the_iteration_before_give_no_second_gradient():
    # A batch norm: weight and bias are trained, its two buffers have the same size. zero_grad is at
    # event 6.
    rows = [(WEIGHT, 64, -1, -1)] * 4 + [(GRADIENT, 64, -1, 6)] * 2 + [(GRADIENT, 64, 8, -1)] * 2
    assert match(*rows, iteration=(5, 20)) == ([0, 1, 2, 3], [6, 7, -1, -1], 0)


def test_gradients_that_are_used_up_one_by_one_all_count():
    rows = [(WEIGHT, 64, -1, -1)] * 2 + [(GRADIENT, 64, 6, 7), (GRADIENT, 64, 8, 9)]
    assert match(*rows, iteration=(5, 20)) == ([0, 1], [2, 3], 0)
