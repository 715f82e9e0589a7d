"""The final state of the allocator as columns: segments, their blocks, and torch's older shapes."""

import pytest

from snapconv.errors import MalformedSnapshotError
from snapconv.snapshot.segment_table import BlockState, read_segments
from snapconv.snapshot.stack_table import Collected
from tests.builders import ADDR, MIB, TraceBuilder, frame


class Reading:
    """The two tables of some raw segments, with what was interned and counted on the way."""

    def __init__(self, raw):
        collected = Collected()
        self.stacks, self.pools = collected.stacks, collected.pools
        self.segments, self.blocks = read_segments(raw, collected, "segments")
        self.sizes_missing = collected.sizes_missing


def segment(*blocks, **fields):
    """A segment as torch 1.x had them, with only what every release has."""
    base = {"address": ADDR, "total_size": 2 * MIB, "blocks": list(blocks)}
    return base | fields


def block(**fields):
    return {
        "size": 512,
        "state": "active_allocated",
        "address": ADDR,
        "requested_size": 500,
    } | fields


def old_block(size, state="active_allocated", **fields):
    """A block of torch 2.0: no address, and its occupants under ``history``, newest first."""
    return {"size": size, "state": state} | fields


class TestSegments:
    def test_a_segment_becomes_a_row(self):
        found = Reading(
            TraceBuilder(device=3)
            .segment(20 * MIB, stream=7, segment_pool_id=(0, 1), frames=[frame()])
            .raw_segments()
        )
        table = found.segments
        assert (len(table), len(found.blocks)) == (1, 1)
        assert (table.device.tolist(), table.addr.tolist(), table.total_bytes.tolist()) == (
            [3],
            [ADDR],
            [20 * MIB],
        )
        assert (table.stream.tolist(), table.is_small.tolist(), table.is_expandable.tolist()) == (
            [7],
            [False],
            [False],
        )
        assert (found.pools.values()[table.pool_id[0]], table.stack_id.tolist()) == ((0, 1), [0])

    def test_a_segment_without_blocks_has_none(self):
        assert len(Reading([segment(), segment(blocks=None)]).blocks) == 0

    def test_small_and_expandable_segments_are_shown(self):
        table = Reading(
            [segment(segment_type="small", is_expandable=True), segment(segment_type="large")]
        ).segments
        assert (table.is_small.tolist(), table.is_expandable.tolist()) == (
            [True, False],
            [True, False],
        )

    def test_what_torch_1_lacks_has_defaults(self):
        table = Reading([segment()]).segments
        assert (table.device.tolist(), table.stream.tolist(), table.pool_id.tolist()) == (
            [0],
            [0],
            [-1],
        )
        assert (table.is_small.tolist(), table.stack_id.tolist()) == ([False], [-1])

    def test_an_address_above_2_63_wraps_to_a_negative_one(self):
        address = 18446720620317114368
        found = Reading([segment(block(address=address), address=address)])
        assert found.segments.addr.tolist() == found.blocks.addr.tolist() == [address - 2**64]


class TestBlocks:
    def test_blocks_are_rows_in_order_with_their_segment(self):
        builder = (
            TraceBuilder()
            .segment()
            .alloc(1000)
            .alloc(3000)
            .free(ADDR)
            .segment(20 * MIB)
            .alloc(5 * MIB)
        )
        table = Reading(builder.raw_segments()).blocks
        assert table.segment_id.tolist() == [0, 0, 0, 1, 1]
        assert table.addr.tolist() == [
            ADDR,
            ADDR + 1024,
            ADDR + 4096,
            ADDR + 2 * MIB,
            ADDR + 7 * MIB,
        ]
        assert table.block_bytes.tolist() == [1024, 3072, 2 * MIB - 4096, 5 * MIB, 15 * MIB]
        assert table.requested_bytes.tolist() == [0, 3000, 0, 5 * MIB, 0]
        assert table.state.tolist() == [0, 1, 0, 1, 0]

    def test_the_stale_request_of_an_inactive_block_is_0_whatever_it_says(self):
        found = Reading([segment(block(state="inactive", requested_size=-77))])
        assert found.blocks.requested_bytes.tolist() == [0]

    @pytest.mark.parametrize(
        ("state", "code"),
        [
            ("inactive", BlockState.INACTIVE),
            ("active_allocated", BlockState.ACTIVE),
            ("active_pending_free", BlockState.PENDING_FREE),
            ("active_awaiting_free", BlockState.PENDING_FREE),
        ],
    )
    def test_every_state_of_torch_is_known(self, state, code):
        assert Reading([segment(block(state=state))]).blocks.state.tolist() == [code]

    def test_blocks_that_do_not_tile_their_segment_are_kept_as_they_are(self):
        """A synthetic file that circulates has random addresses."""
        found = Reading([segment(block(address=5), block(address=ADDR + 9))])
        assert found.blocks.addr.tolist() == [5, ADDR + 9]


class TestTorch20:
    def test_addresses_follow_from_the_sizes(self):
        found = Reading([
            segment(old_block(512), old_block(1024, "inactive"), old_block(2048)),
            segment(old_block(4096), address=ADDR + 2 * MIB),
        ])  # fmt: skip
        assert found.blocks.addr.tolist() == [ADDR, ADDR + 512, ADDR + 1536, ADDR + 2 * MIB]

    def test_the_newest_occupant_of_an_active_block_is_its_allocation(self):
        history = [
            {"addr": ADDR, "real_size": 400, "frames": [frame("new")]},
            {"real_size": 10, "frames": [frame("old")]},
        ]
        found = Reading([segment(old_block(512, history=history))])
        assert found.blocks.requested_bytes.tolist() == [400]
        table = found.stacks.table()
        assert [table.frames.names[i] for i in table.frames_of(int(found.blocks.stack_id[0]))] == [
            "new"
        ]
        assert not found.sizes_missing

    def test_former_occupants_of_an_inactive_block_are_no_evidence(self):
        found = Reading(
            [segment(old_block(512, "inactive", history=[{"real_size": 400, "frames": [frame()]}]))]
        )
        assert (found.blocks.requested_bytes.tolist(), found.blocks.stack_id.tolist()) == (
            [0],
            [-1],
        )

    def test_a_block_without_a_requested_size_has_its_own(self):
        found = Reading([segment(old_block(512), old_block(1024, history=[{"real_size": 1000}]))])
        assert found.blocks.requested_bytes.tolist() == [512, 1000]
        assert found.sizes_missing

    def test_a_missing_size_of_an_inactive_block_is_not_missed(self):
        assert not Reading([segment(old_block(512, "inactive"))]).sizes_missing


class TestWhatIsRefused:
    @pytest.mark.parametrize(
        ("fields", "message"),
        [
            ({"address": None}, "address: expected int, got nothing"),
            ({"address": "0x7f"}, "address: expected int, got str"),
            (
                {"address": 2**63 - 1},
                f"address: expected an address of at most 62 bits from either end, got {2**63 - 1}",
            ),
            ({"total_size": None}, "total_size: expected int, got nothing"),
            ({"total_size": -1}, "total_size: expected 0 to 2^48 bytes, got -1"),
            ({"total_size": 2**49}, f"total_size: expected 0 to 2^48 bytes, got {2**49}"),
            ({"device": "cuda:0"}, "device: expected int, got str"),
            ({"device": -1}, "device: expected a device from 0 to 127, got -1"),
            ({"device": 128}, "device: expected a device from 0 to 127, got 128"),
            ({"stream": 0.5}, "stream: expected int, got float"),
            ({"segment_pool_id": 3}, "segment_pool_id: expected a pair of ints from 0 to 2^32 - 1"),
            ({"frames": {}}, "frames: expected list, got dict"),
            ({"blocks": {}}, "blocks: expected list, got dict"),
            ({"blocks": [None]}, "blocks[0]: expected dict, got nothing"),
        ],
    )
    def test_a_wrong_value_of_a_segment_is_refused_with_the_path(self, fields, message):
        with pytest.raises(MalformedSnapshotError) as caught:
            Reading([segment(), segment(**fields)])
        assert str(caught.value) == f"segments[1].{message}"

    @pytest.mark.parametrize(
        ("fields", "message"),
        [
            ({"size": None}, "size: expected int, got nothing"),
            ({"size": "512"}, "size: expected int, got str"),
            ({"size": -512}, "size: expected 0 to 2^48 bytes, got -512"),
            ({"address": None}, "address: expected int, got nothing"),
            (
                {"address": -(2**63)},
                f"address: expected an address of at most 62 bits from either end, got {-(2**63)}",
            ),
            ({"requested_size": 1.0}, "requested_size: expected int, got float"),
            ({"requested_size": -1}, "requested_size: expected 0 to 2^48 bytes, got -1"),
            (
                {"state": "leaked\n"},
                r"state: expected one of inactive, active_allocated, active_pending_free, "
                r"active_awaiting_free, got 'leaked\n'",
            ),
            (
                {"state": None},
                "state: expected one of inactive, active_allocated, active_pending_free, "
                "active_awaiting_free, got NoneType",
            ),
            ({"frames": 0}, "frames: expected list, got int"),
            ({"history": 5}, "history: expected list, got int"),
            ({"history": ["x"]}, "history[0]: expected dict, got str"),
            ({"history": [{"real_size": "x"}]}, "history[0].real_size: expected int, got str"),
            (
                {"history": [{"real_size": -4}]},
                "history[0].real_size: expected 0 to 2^48 bytes, got -4",
            ),
        ],
    )
    def test_a_wrong_value_of_a_block_is_refused_with_the_path(self, fields, message):
        with pytest.raises(MalformedSnapshotError) as caught:
            Reading([segment(block()), segment(block(), block(), block(**fields))])
        assert str(caught.value) == f"segments[1].blocks[2].{message}"

    def test_one_list_of_blocks_in_two_segments_is_refused(self):
        blocks = [block()]
        with pytest.raises(
            MalformedSnapshotError,
            match=r"^segments\[1\]\.blocks is the same list as segments\[0\]\.blocks;",
        ):
            Reading([segment(blocks=blocks), segment(blocks=blocks)])

    @pytest.mark.parametrize("field", ["total_size", "size", "requested_size"])
    def test_sizes_whose_sum_could_overflow_are_refused(self, field):
        many = range(8193)
        if field == "total_size":
            raw = [segment(total_size=2**48) for _ in many]
        else:
            raw = [segment(*(block(**{field: 2**48}) for _ in many))]
        with pytest.raises(
            MalformedSnapshotError, match=r"the sizes add up to more than 2\^61 bytes$"
        ):
            Reading(raw)
