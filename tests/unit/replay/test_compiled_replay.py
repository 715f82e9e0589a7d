"""What the core does for ordinary events, and that it does it by itself: nothing is left to the twin."""

import numpy as np
import pytest

from snapconv import columns
from snapconv.native.library import core
from snapconv.replay.compiled_replay import pair_compiled, walk_compiled
from snapconv.replay.rounding import RoundingRules
from snapconv.snapshot.segment_table import BlockState, BlockTable, SegmentTable
from tests.tables import int64, table

pytestmark = pytest.mark.skipif(core() is None, reason="the compiled core is not in use")

S, MIB = 0x7F00_0000_0000, 1 << 20
ALLOC, REQUESTED, COMPLETED, BOTH, OTHER = 1, 2, 3, 4, 0


@pytest.fixture(params=[1, 2, 1 << 16], autouse=True)
def _in_pieces(request, monkeypatch):
    monkeypatch.setattr(columns, "_CHUNK_ROWS", request.param)


def test_events_are_paired_in_the_order_in_which_they_begin():
    kind = np.array([REQUESTED, ALLOC, COMPLETED, OTHER, BOTH, ALLOC, ALLOC, BOTH], np.int8)
    addr = int64(1, 2, 1, 2, 2, 1, 1, 2)
    columns, n_orphans, n_implicit = pair_compiled(core(), kind, addr, np.isin(kind, (COMPLETED, BOTH)))
    # Rows of alloc, requested, completed, end and address; the last free has no alloc, and the alloc no free.
    assert list(zip(*(column.tolist() for column in columns), strict=True)) == [
        *[(-1, 0, 2, 2, 1), (1, 4, 4, 4, 2), (5, -1, -1, 6, 1), (6, -1, -1, -1, 1)],
    ]
    assert (n_orphans, n_implicit) == (1, 1)


def test_blocks_get_their_sizes_from_the_last_event_to_the_first():
    segments = table(SegmentTable, 1, addr=[S], total_bytes=[20 * MIB])
    blocks = table(
        BlockTable,
        2,
        addr=[S, S + 4 * MIB],
        block_bytes=[4 * MIB, 16 * MIB],
        requested_bytes=[3 * MIB + 1, 0],
        state=[BlockState.ACTIVE, BlockState.INACTIVE],
    )
    kind = np.array([COMPLETED, ALLOC, COMPLETED, ALLOC], np.int8)
    addr = int64(S + 5 * MIB, S + 4 * MIB, S + 4 * MIB, S)
    size = int64(2 * MIB, 15 * MIB, 15 * MIB, 3 * MIB + 1)
    walked = walk_compiled(core(), kind, addr, size, segments, blocks, RoundingRules())
    sizes, least_space, n_conflicts = walked
    assert sizes.tolist() == [0, 16 * MIB, 0, 3 * MIB + 512]
    assert least_space == {S + 5 * MIB: 15 * MIB}
    assert n_conflicts == 0
