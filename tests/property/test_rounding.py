"""The allocator's size rules, for one request in allocator/ and for columns in replay/: they agree."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from snapconv.allocator.allocator_settings import (
    MIB,
    N_ROUNDUP_INTERVALS,
    NPU_PADDING_BYTES,
    SMALL_REQUEST_BYTES,
    AllocatorSettings,
)
from snapconv.replay.rounding import RoundingRules
from tests.drawn_inputs import drawn

GIB = 1 << 30

any_settings = st.builds(
    AllocatorSettings,
    max_split_size_bytes=st.none() | st.integers(20, 4096).map(lambda n: n * MIB),
    # 0 and 1 switch the rounding off; torch takes any power of two.
    roundup_power2_divisions=st.tuples(
        *[st.sampled_from((0, 1, 2, 4, 8, 16, 1 << 10, 1 << 20))] * N_ROUNDUP_INTERVALS
    ),
    expandable_segments=st.booleans(),
    padding_bytes=st.sampled_from((0, NPU_PADDING_BYTES)),
)
# From a byte to beyond what a float holds exactly, and around every power of two and every 512
# bytes.
any_size = st.one_of(
    st.integers(1, 4 * MIB),
    st.integers(1, 128 * GIB),
    st.builds(
        lambda e, offset: max((1 << e) + offset, 1), st.integers(0, 60), st.integers(-1025, 1025)
    ),
)
often = settings(deadline=None, derandomize=True, max_examples=drawn(300))


@often
@given(any_settings, st.lists(any_size, min_size=1, max_size=30))
def test_a_request_is_rounded_alike_alone_and_in_a_column(found, sizes):
    rounded = RoundingRules(found).rounded(np.array(sizes, np.int64))
    assert rounded.tolist() == [found.round_size(size) for size in sizes]


@often
@given(any_settings, st.data())
def test_a_free_block_is_split_alike_alone_and_in_a_column(found, data):
    limit = found.max_split_size_bytes or MIB
    block_bytes = found.round_size(data.draw(any_size | st.integers(limit - 513, limit + 1)))
    is_small = block_bytes <= SMALL_REQUEST_BYTES
    least = int(
        RoundingRules(found).least_remainder(np.array([block_bytes]), np.zeros(1, np.int64))[0]
    )
    remainder = data.draw(
        st.sampled_from((0, 511, 512, 513, MIB - 1, MIB, MIB + 1, 64 * GIB))
        | st.integers(0, 4 * MIB)
    )
    is_split = found.should_split(block_bytes + remainder, block_bytes, is_small=is_small)
    assert is_split == (remainder >= least)
