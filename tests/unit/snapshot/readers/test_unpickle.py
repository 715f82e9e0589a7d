"""Building the values of a pickle: plain ones are built, and nothing is ever imported or called."""

import builtins
import gc
import io
import pickle
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snapconv.errors import MalformedSnapshotError, UnsafePickleError
from snapconv.snapshot.readers import pickle_scan
from snapconv.snapshot.readers.pickle_scan import Checked
from snapconv.snapshot.readers.unpickle import load_plain_pickle
from tests.builders import TraceBuilder, frame

SNAPSHOT = TraceBuilder().segment().alloc(512, frames=[frame(), frame("main")]).free().snapshot()


def load(data: bytes, **options):
    return load_plain_pickle(io.BytesIO(data), len(data), **options)


class Canary:
    """Leaves a mark in ``builtins`` when it is unpickled."""

    def __reduce__(self):
        return exec, ("import builtins; builtins.snapconv_canary = True",)


class TestPlainValues:
    @pytest.mark.parametrize("protocol", [2, 3, 4, 5])
    def test_every_protocol_gives_the_same_values(self, protocol):
        assert load(pickle.dumps(SNAPSHOT, protocol)) == SNAPSHOT

    @settings(deadline=None, derandomize=True, max_examples=100)
    @given(
        st.recursive(
            st.none()
            | st.booleans()
            | st.integers(-(2**63), 2**64 - 1)
            | st.floats(allow_nan=False)
            | st.text(),
            lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=5),
        ),
        st.integers(2, 5),
    )
    def test_what_was_pickled_comes_back(self, value, protocol):
        assert load(pickle.dumps(value, protocol)) == value

    @pytest.mark.parametrize("protocol", [3, 4, 5])
    def test_bytes_in_foreign_keys_are_plain(self, protocol):
        assert load(pickle.dumps({"extra": b"\0\xff"}, protocol)) == {"extra": b"\0\xff"}

    def test_sets_of_plain_values_are_plain(self):
        assert load(pickle.dumps({1, "a"}, 4)) == {1, "a"}

    def test_shared_objects_stay_shared(self):
        frames = [frame()]
        first, second = load(pickle.dumps([{"frames": frames}, {"frames": frames}], 4))
        assert first["frames"] is second["frames"]

    def test_a_list_that_holds_itself_is_built(self):
        value = []
        value.append(value)
        loaded = load(pickle.dumps(value, 4))
        assert loaded[0] is loaded

    def test_bytes_after_the_stop_are_ignored(self):
        assert load(pickle.dumps([1], 4) + b"\0\0\0cos\nsystem\n") == [1]

    def test_the_stream_of_torchs_cpp_writer_is_read(self):
        """Protocol 2, BINPUT after most objects, and LONG1 always of 8 bytes, signed."""
        key = b"X\x07\x00\x00\x00addressq\x01"
        value = b"\x8a\x08" + struct.pack("<q", 18446720620317114368 - 2**64)
        assert load(b"\x80\x02}q\x00(" + key + value + b"X\x04\x00\x00\x00pool(K\x00K\x01tq\x02u.") == {
            "address": 18446720620317114368 - 2**64,
            "pool": (0, 1),
        }

    def test_progress_shows_both_passes_up_to_the_last_byte(self):
        data, seen = pickle.dumps(SNAPSHOT, 4), []
        load(data, progress=lambda *args: seen.append(args))
        assert seen[-1] == ("loading", len(data), len(data))
        assert {stage for stage, _, _ in seen} <= {"checking", "loading"}


class TestOddTuples:
    def test_a_file_with_odd_tuples_gets_lists_in_their_place(self):
        value = {"extra": ("a", (1, 2), (1.5,), ((), 3, 4), (1, 2, 3, 4)), "pool_id": (0, 0)}
        expected = {"extra": ["a", [1, 2], [1.5], [(), 3, 4], [1, 2, 3, 4]], "pool_id": [0, 0]}
        for protocol in (2, 3, 4, 5):
            assert load(pickle.dumps(value, protocol)) == expected

    def test_a_pool_id_alone_stays_a_tuple(self):
        assert load(pickle.dumps({"pool_id": (0, 0)}, 4)) == {"pool_id": (0, 0)}

    def test_tuples_that_hold_a_tuple_twice_cannot_be_a_key(self):
        """Their hash would take 2^60 steps."""
        doubling = b")\x94" + b"".join(b"h" + bytes([i, ord("h"), i]) + b"\x86\x94" for i in range(60))
        for use in (b"}(%bNu.", b"\x8f(%b\x90.", b"(%bNd."):
            with pytest.raises(MalformedSnapshotError, match="unhashable type: 'list'"):
                load(b"\x80\x04" + use.replace(b"%b", doubling + b"0" * 61 + b"h\x3c"))

    def test_a_deep_nest_of_tuples_is_built_and_freed(self):
        assert len(load(b"\x80\x04)" + b"\x85" * 200_000 + b".")) == 1

    def test_code_is_refused_beside_odd_tuples_too(self):
        with pytest.raises(UnsafePickleError, match=r"builtins\.exec"):
            load(pickle.dumps([("a", "b"), Canary()], 4))


class TestTheSecondLock:
    """The scan refuses code first; these hold without it."""

    @pytest.fixture(params=[0, 1], ids=["C-unpickler", "list-unpickler"])
    def _scan_is_blind(self, request, monkeypatch):
        blind = lambda file, n_bytes, **_: Checked(n_bytes, request.param)  # noqa: E731  # a stub
        monkeypatch.setattr(pickle_scan, "check_pickle", blind)

    @pytest.mark.usefixtures("_scan_is_blind")
    @pytest.mark.parametrize("protocol", [2, 3, 4, 5])
    def test_a_global_is_refused_by_the_unpickler(self, protocol):
        with pytest.raises(UnsafePickleError, match="exec"):
            load(pickle.dumps(Canary(), protocol))
        assert not hasattr(builtins, "snapconv_canary")

    @pytest.mark.usefixtures("_scan_is_blind")
    def test_a_persistent_id_is_refused_by_the_unpickler(self):
        with pytest.raises(UnsafePickleError, match="persistent id"):
            load(b"\x80\x02K\x01Q.")


class TestDamage:
    @pytest.mark.parametrize(
        "stream",
        [
            b"\x80\x04.",
            b"\x80\x04h\x05.",
            b"\x80\x04Nu.",
            b"\x80\x04N(u.",
            b"\x80\x04](N.",
            b"\x80\x04a.",
            b"\x80\x04e.",
            b"\x80\x040.",
            b"\x80\x041.",
            b"\x80\x042.",
            b"\x80\x04\x85.",
            b"\x80\x04\x94.",
            b"\x80\x04}(]Nu.",
            b"\x80\x04}(Nu.",
            b"\x80\x04X\x02\x00\x00\x00\xff\xfe.",
            b"\x80\x04U\x01\xff.",
            b"\x80\x09N.",
            b"\x80\x04NsNs.",
            b"\x80\x04\x8f(]\x90.",
            b"\x80\x04(.",
        ],
        ids=repr,
    )
    @pytest.mark.parametrize("odd", [b"", b"K\x01N\x85\x85\x300"], ids=["plain", "with-odd-tuples"])
    def test_opcodes_that_make_no_sense_together_are_one_kind_of_error(self, stream, odd):
        try:
            load(stream[:2] + odd + stream[2:])
        except MalformedSnapshotError as error:
            assert "the pickle is damaged" in str(error)  # noqa: PT017  # some are nonsense that loads

    @pytest.mark.parametrize("length", [100, 1 << 40, (1 << 63) - 1, 1 << 63, (1 << 64) - 1])
    def test_a_frame_longer_than_the_file_costs_no_memory(self, length):
        with pytest.raises(MalformedSnapshotError, match="the pickle is damaged"):
            load(b"\x80\x04\x95" + struct.pack("<Q", length) + b"N.")

    def test_a_long_message_is_cut(self):
        with pytest.raises(MalformedSnapshotError) as caught:
            load(b"\x80\x04X\xe8\x03\x00\x00" + b"\xff" * 1000 + b".")
        assert len(str(caught.value)) < 400

    def test_the_collector_is_as_it_was(self):
        assert gc.isenabled()
        with pytest.raises(MalformedSnapshotError):
            load(b"\x80\x04.")
        assert gc.isenabled()
