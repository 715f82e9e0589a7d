"""One device's trace as columns: torch's keys, its actions, and what is refused or counted."""

import pytest

from snapconv.errors import MalformedSnapshotError
from snapconv.snapshot.event_table import Action, read_trace
from snapconv.snapshot.stack_table import Collected
from tests.builders import ADDR, MIB, START_US, TraceBuilder, frame

OF_MEMORY = (
    "alloc free_requested free_completed segment_alloc segment_free segment_map "
    "segment_unmap free snapshot"
)


def read(*trace, into=None):
    return read_trace([dict(event) for event in trace], "device_traces[0]", into or Collected())


def event(action="alloc", **fields):
    return TraceBuilder().event(action, **fields).events[0]


class TestColumns:
    def test_a_trace_becomes_one_row_per_event_in_order(self):
        trace = TraceBuilder().segment(2 * MIB).alloc(1000).free().events
        table = read(*trace)
        assert [Action(code).name for code in table.action] == [
            "SEGMENT_ALLOC", "ALLOC", "FREE_REQUESTED", "FREE_COMPLETED",
        ]  # fmt: skip
        assert table.addr.tolist() == [ADDR] * 4
        assert table.size.tolist() == [2 * MIB, 1000, 1000, 1000]
        assert table.time_us.tolist() == [START_US, START_US + 1, START_US + 2, START_US + 3]
        assert len(table) == 4

    def test_the_raw_list_is_emptied(self):
        trace = [event(), event()]
        read_trace(trace, "x", Collected())
        assert trace == []

    def test_a_key_that_only_later_events_have_is_minus_one_before(self):
        table = read(event(), event(compile_context="0/0", pool_id=(0, 1), user_metadata="x"))
        assert table.compile_context_id.tolist() == [-1, 0]
        assert table.user_metadata_id.tolist() == [-1, 1]
        assert table.pool_id.tolist() == [-1, 0]


class TestEras:
    """A key that a release lacks is a column that is None, or a plain default."""

    def test_torch_2_0_and_2_1_have_no_times(self):
        table = read({"action": "alloc", "addr": 1, "size": 2, "stream": 0})
        assert table.time_us is None
        assert table.compile_context_id is None
        assert table.user_metadata_id is None
        assert table.pool_id is None
        assert table.stack_id.tolist() == [-1]

    def test_missing_frames_and_no_frames_are_different(self):
        without = event()
        del without["frames"]
        assert read(without, event(frames=[]), event(frames=[frame()])).stack_id.tolist() == [
            -1,
            0,
            1,
        ]

    def test_texts_and_pools_are_interned(self):
        into = Collected()
        table = read(
            event(compile_context="N/A", user_metadata="", pool_id=(0, 0)),
            event(compile_context="0/0", user_metadata="", pool_id=(0, 1)),
            event(compile_context="N/A", user_metadata="step", pool_id=(0, 0)),
            into=into,
        )
        texts = into.texts.values()
        assert [texts[i] for i in table.compile_context_id] == ["N/A", "0/0", "N/A"]
        assert [texts[i] for i in table.user_metadata_id] == ["", "", "step"]
        assert [into.pools.values()[i] for i in table.pool_id] == [(0, 0), (0, 1), (0, 0)]

    def test_some_events_without_a_time_have_minus_one(self):
        without = event()
        del without["time_us"]
        assert read(event(time_us=5), without).time_us.tolist() == [5, -1]

    def test_the_address_of_an_oom_is_the_free_memory_of_the_device(self):
        table = read(*TraceBuilder().oom(4096, device_free=777).events)
        assert (table.action.tolist(), table.addr.tolist(), table.size.tolist()) == (
            [Action.OOM],
            [777],
            [4096],
        )

    def test_addresses_and_streams_above_2_63_wrap(self):
        table = read(event(addr=18446720620317114368, stream=2**64 - 1))
        assert table.addr.tolist() == [18446720620317114368 - 2**64]
        assert table.stream.tolist() == [-1]

    @pytest.mark.parametrize(
        "action", [a for a in Action if a is not Action.UNKNOWN], ids=lambda a: a.name.lower()
    )
    def test_every_action_of_torch_and_torch_npu_is_known(self, action):
        into = Collected()
        assert read(event(action.name.lower()), into=into).action.tolist() == [action]
        assert into.unknown_actions == {}


class TestWhatIsCounted:
    def test_unknown_actions_are_counted_and_kept_as_unknown(self):
        into = Collected()
        table = read(event("teleport"), event(), event("teleport"), event("x"), into=into)
        assert table.action.tolist() == [0, Action.ALLOC, 0, 0]
        assert into.unknown_actions == {"teleport": 2, "x": 1}


class TestWhatIsRefused:
    @pytest.mark.parametrize(
        ("fields", "message"),
        [
            ({"action": 5}, "action: expected str, got int"),
            ({"action": None}, "action: expected str, got nothing"),
            ({"action": ["alloc"]}, "action: expected str, got list"),
            ({"addr": "0x1"}, "addr: expected int, got str"),
            ({"addr": 1.5}, "addr: expected int, got float"),
            ({"addr": 2**64}, "addr: an integer of more than 64 bits"),
            (
                {"addr": 2**62 + 1},
                f"addr: expected an address of at most 62 bits from either end, got {2**62 + 1}",
            ),
            ({"size": "1"}, "size: expected int, got str"),
            ({"size": True}, "size: expected int, got bool"),
            ({"size": float("nan")}, "size: expected int, got float"),
            ({"size": -1}, "size: expected 0 to 2^48 bytes, got -1"),
            ({"size": 2**48 + 1}, f"size: expected 0 to 2^48 bytes, got {2**48 + 1}"),
            ({"stream": "default"}, "stream: expected int, got str"),
            ({"time_us": 1.7e15}, "time_us: expected int, got float"),
            (
                {"time_us": 2**63 - 1},
                f"time_us: expected microseconds of at most 62 bits, got {2**63 - 1}",
            ),
            ({"device_free": "all"}, "device_free: expected int, got str"),
            (
                {"action": "oom", "device_free": -(2 << 20)},
                "device_free: expected 0 to 2^60 bytes, got -2097152",
            ),
            ({"frames": "none"}, "frames: expected list, got str"),
            ({"frames": [frame(), 7]}, "frames[1]: expected dict, got int"),
            ({"compile_context": 0}, "compile_context: expected str, got int"),
            ({"user_metadata": {}}, "user_metadata: expected str, got dict"),
            ({"pool_id": 0}, "pool_id: expected a pair of ints from 0 to 2^32 - 1"),
        ],
    )
    def test_a_wrong_value_is_refused_with_the_path(self, fields, message):
        with pytest.raises(MalformedSnapshotError) as caught:
            read(event(), event(), event(), event() | fields)
        assert str(caught.value) == f"device_traces[0][3].{message}"

    @pytest.mark.parametrize("value", [[], None, "alloc", 1])
    def test_an_event_must_be_a_dictionary(self, value):
        trace = [event(), value]
        with pytest.raises(
            MalformedSnapshotError, match=r"^device_traces\[0\]\[1\]: expected dict, got"
        ):
            read_trace(trace, "device_traces[0]", Collected())

    def test_an_event_without_an_action_is_refused(self):
        with pytest.raises(
            MalformedSnapshotError, match=r"\[0\]\.action: expected str, got nothing"
        ):
            read({"addr": 1})

    @pytest.mark.parametrize("action", OF_MEMORY.split())
    def test_sizes_of_memory_are_bounded(self, action):
        assert read(event(action, size=2**48)).size.tolist() == [2**48]
        with pytest.raises(MalformedSnapshotError, match=r"expected 0 to 2\^48 bytes"):
            read(event(action, size=2**48 + 1))

    def test_the_size_of_an_oom_may_be_absurd(self):
        """A wrong shape asks for anything; torch itself refuses 2^60 bytes and more with another error."""
        assert read(*TraceBuilder().oom(2**60).events).size.tolist() == [2**60]
        with pytest.raises(MalformedSnapshotError, match=r"\[0\]\.size: expected 0 to 2\^60 bytes"):
            read(*TraceBuilder().oom(2**60 + 1).events)

    def test_the_numbers_of_an_unknown_action_are_not_checked(self):
        assert read(event("teleport", addr=2**63 - 1, size=-5)).size.tolist() == [-5]

    def test_sizes_whose_sum_could_overflow_are_refused(self):
        with pytest.raises(
            MalformedSnapshotError,
            match=r"^device_traces\[0\]: the sizes add up to more than 2\^61 bytes",
        ):
            read(*[event(size=2**48)] * 8193)
