"""Block sizes from requests, against the rule in plain Python and at every boundary."""

import numpy as np
import pytest

from snapconv.allocator.allocator_settings import NPU_PADDING_BYTES, AllocatorSettings
from snapconv.replay.rounding import HOST_RULES, NEVER, RoundingRules, infer_rules
from snapconv.snapshot.segment_table import BlockState, BlockTable
from tests.tables import int64, table

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
NO_DIVISIONS = (0,) * 16
BOUNDARIES = sorted(
    {
        max(boundary + offset, 1)
        for boundary in (
            512,
            1024,
            2048,
            4096,
            MIB,
            2 * MIB,
            3 * MIB,
            20 * MIB,
            GIB,
            32 * GIB,
            64 * GIB,
        )
        for offset in (-513, -512, -511, -33, -32, -31, -1, 0, 1, 31, 32, 33, 511, 512, 513)
    }
)


ANYWHERE = int64(0, 0, 0)


def rules(**settings) -> RoundingRules:
    return RoundingRules(AllocatorSettings(**settings))


def in_plain_python(n_bytes, divisions=NO_DIVISIONS, padding=0):
    """torch's round_size in its own words.

    A request is rounded up to 512 bytes. Where its power of two is divided, and it is larger than
    512 bytes per division, it is rounded up to the next of the equal parts between two powers of
    two instead. The first entry is for all below 2 MiB, the last for all from 32 GiB on.
    """
    n_bytes += padding
    power, interval = 1, -20
    while power * 2 <= n_bytes:
        power, interval = power * 2, interval + 1
    n_parts = divisions[min(max(interval, 0), 15)]
    if n_parts > 1 and n_bytes > 512 * n_parts:
        steps = (power + power * part // n_parts for part in range(n_parts + 1))
        return next(step for step in steps if step >= n_bytes)
    return max(-(-n_bytes // 512), 1) * 512


def rounded(*sizes, **settings):
    """Round requests as a column, and check that the settings round each request to the same block."""
    found = rules(**settings).rounded(int64(*sizes)).tolist()
    assert found == [AllocatorSettings(**settings).round_size(size) for size in sizes]
    return found


def check(sizes, *, divisions, padding=0):
    wanted = [in_plain_python(size, divisions, padding) for size in sizes]
    assert rounded(*sizes, roundup_power2_divisions=divisions, padding_bytes=padding) == wanted


@pytest.mark.parametrize("padding", [0, NPU_PADDING_BYTES])
@pytest.mark.parametrize(
    "divisions",
    [NO_DIVISIONS, (1,) * 16, (2,) * 16, (4,) * 16, (8,) * 16, (1024,) * 16, (0, 2, 4, 8) * 4],
    ids=str,
)
def test_every_boundary_is_rounded_by_the_rule_in_plain_python(divisions, padding):
    check(BOUNDARIES, divisions=divisions, padding=padding)


@pytest.mark.parametrize("divisions", [0, 4])
def test_sizes_beyond_the_precision_of_a_float_are_rounded_exactly(divisions):
    sizes = [
        (1 << e) + offset for e in (53, 54, 57, 60) for offset in (-513, -1, 0, 1, 511, 512, 513)
    ]
    check(sizes, divisions=(divisions,) * 16)


def test_a_small_block_splits_off_512_bytes_and_a_large_one_more_than_1_mib():
    assert rules().least_remainder(int64(512, MIB, MIB + 512), ANYWHERE).tolist() == [
        512,
        512,
        MIB + 1,
    ]


def test_with_expandable_segments_every_block_splits_off_512_bytes():
    found = rules(expandable_segments=True, max_split_size_bytes=20 * MIB)
    assert found.least_remainder(int64(512, MIB + 512, 64 * MIB), ANYWHERE).tolist() == [
        512,
        512,
        512,
    ]


def test_from_max_split_size_on_a_block_is_never_split():
    found = rules(max_split_size_bytes=32 * MIB)
    assert found.least_remainder(int64(512, 32 * MIB - 512, 32 * MIB), ANYWHERE).tolist() == [
        512,
        MIB + 1,
        NEVER,
    ]


def block_table(*blocks, state=BlockState.ACTIVE):
    """Live blocks of (requested bytes, block bytes), one after the other."""
    requested, sizes = (
        (int64(*column) for column in zip(*blocks, strict=True)) if blocks else (int64(),) * 2
    )
    addr = np.cumsum(sizes) - sizes
    return table(
        BlockTable,
        len(blocks),
        addr=addr,
        block_bytes=sizes,
        requested_bytes=requested,
        state=state,
    )


def inferred(table, **settings):
    return infer_rules(AllocatorSettings(**settings), table).settings.padding_bytes


def test_padding_is_inferred_where_it_explains_more_blocks():
    assert inferred(block_table((512, 1024), (1024, 1536), (100, 512))) == NPU_PADDING_BYTES


def test_blocks_that_both_rules_explain_leave_the_rule_of_cuda():
    assert inferred(block_table((100, 512), (600, 1024))) == 0
    assert inferred(block_table()) == 0


def test_where_both_rules_explain_the_blocks_the_backend_decides():
    for blocks in (block_table(), block_table((100, 512), (600, 1024))):
        assert (
            infer_rules(AllocatorSettings(), blocks, backend="npu").settings.padding_bytes
            == NPU_PADDING_BYTES
        )
        assert infer_rules(AllocatorSettings(), blocks, backend="xpu").settings.padding_bytes == 0


def test_blocks_that_keep_a_large_remainder_do_not_decide_the_padding():
    assert (
        inferred(block_table((512, 1024), (2 * MIB, 3 * MIB), (2 * MIB, 3 * MIB)))
        == NPU_PADDING_BYTES
    )


def test_large_blocks_of_expandable_segments_keep_no_remainder_and_show_the_padding_too():
    padded = block_table((2 * MIB, 2 * MIB + 512), (32 * MIB - 512, 32 * MIB))
    assert inferred(padded, expandable_segments=True) == NPU_PADDING_BYTES
    assert inferred(padded) == 0


def test_a_block_of_just_1_mib_keeps_no_remainder_and_shows_the_padding():
    assert inferred(block_table((MIB - 512, MIB))) == NPU_PADDING_BYTES
    assert inferred(block_table((MIB - 480, MIB + 512))) == 0


def test_only_live_blocks_show_the_padding():
    assert inferred(block_table((512, 1024), state=BlockState.INACTIVE)) == 0
    assert inferred(block_table((512, 1024), state=BlockState.PENDING_FREE)) == NPU_PADDING_BYTES


def test_of_pinned_memory_every_size_is_that_of_a_block_and_nothing_is_split():
    sizes = int64(1, 511, 513, 5000, MIB + 1)
    assert HOST_RULES.rounded(sizes).tolist() == sizes.tolist()
