"""A pickle of plain values: what is built, what is refused before that, and that nothing is imported."""

import builtins
import io
import pickle
import pickletools
import re
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snapconv.errors import (
    MalformedSnapshotError,
    SnapconvError,
    TruncatedFileError,
    UnsafePickleError,
)
from snapconv.snapshot.readers import plain_pickle
from snapconv.snapshot.readers.plain_pickle import Checked, check_pickle, load_plain_pickle
from tests.builders import TraceBuilder, frame

SNAPSHOT = TraceBuilder().segment().alloc(512, frames=[frame(), frame("main")]).free().snapshot()
SMALL = pickle.dumps(SNAPSHOT, 4)


def load(data: bytes):
    return load_plain_pickle(io.BytesIO(data), len(data))


def refusal(data: bytes, error: type[SnapconvError] = UnsafePickleError) -> str:
    with pytest.raises(error) as caught:
        check_pickle(data)
    return str(caught.value)


class Canary:
    """Leaves a mark in ``builtins`` when it is unpickled."""

    def __reduce__(self):
        return exec, ("import builtins; builtins.snapconv_canary = True",)


CODE = {
    "GLOBAL": b"cos\nsystem\n",
    "STACK_GLOBAL": b"\x8c\x02os\x8c\x06system\x93",
    "INST": b"(ios\nsystem\n",
    "OBJ": b"(o",
    "NEWOBJ": b"N)\x81",
    "NEWOBJ_EX": b"N)}\x92",
    "REDUCE": b"N)R",
    "BUILD": b"NNb",
    "EXT1": b"\x82\x01",
    "EXT2": b"\x83\x01\x00",
    "EXT4": b"\x84\x01\x00\x00\x00",
    "PERSID": b"Pname\n",
    "BINPERSID": b"NQ",
    "NEXT_BUFFER": b"\x97",
    "READONLY_BUFFER": b"N\x98",
}


class TestWhatItRefuses:
    @pytest.mark.parametrize("name", CODE)
    def test_an_opcode_that_requests_code_is_refused_with_its_byte_offset(self, name):
        before, stream = b"\x80\x05]\x94(K\x01", CODE[name]
        opcode = next(op.code for op in pickletools.opcodes if op.name == name).encode("latin-1")
        offset = len(before) + stream.rindex(opcode) if name != "PERSID" else len(before)
        assert f"(opcode {name} at byte {offset})" in refusal(before + stream + b"e.")

    def test_every_opcode_of_python_is_allowed_or_refused_on_purpose(self):
        texts = {
            "INT",
            "LONG",
            "FLOAT",
            "STRING",
            "UNICODE",
            "GET",
            "PUT",
            "BYTEARRAY8",
            "FROZENSET",
        }
        refused = {UnsafePickleError: set(), MalformedSnapshotError: set()}
        for opcode in pickletools.opcodes:
            try:
                check_pickle(b"\x80\x05" + opcode.code.encode("latin-1") + bytes(100) + b".")
            except (UnsafePickleError, MalformedSnapshotError) as error:
                if "at byte 2" in str(error) or "byte 2 is" in str(error):
                    refused[type(error)].add(opcode.name)
        assert refused == {UnsafePickleError: set(CODE), MalformedSnapshotError: texts}

    @pytest.mark.parametrize("name", ["GLOBAL", "INST"])
    def test_a_refused_global_is_named(self, name):
        assert "refers to os.system" in refusal(b"\x80\x02" + CODE[name] + b".")

    @pytest.mark.parametrize("protocol", [2, 3, 4, 5])
    def test_a_pickled_object_is_named_by_its_class(self, protocol):
        assert "refers to " in refusal(pickle.dumps([pickle.HIGHEST_PROTOCOL, Canary()], protocol))

    @pytest.mark.parametrize(
        ("stream", "name"),
        [
            (b"\x8c\x02os\x94\x8c\x06system\x94\x93", "os.system"),
            (b"\x8c\x02osq\x05\x8c\x06system\x30\x30h\x05\x8c\x06system\x93", "os.system"),
            (b"\x8c\x02os\x95\x08\x00\x00\x00\x00\x00\x00\x00\x8c\x06system\x93", "os.system"),
            (b"K\x01\x94\x8c\x06systemh\x00\x93", "an object to be built"),
            (b"h\x07h\x08\x93", "an object to be built"),
        ],
        ids=["memoized", "BINPUT", "FRAME-between", "not-a-string", "nothing-there"],
    )
    def test_a_stack_global_is_named_or_not_at_all(self, stream, name):
        assert f"refers to {name} (opcode STACK_GLOBAL" in refusal(b"\x80\x04" + stream + b".")

    def test_a_name_is_shown_without_what_a_terminal_acts_upon(self):
        assert r"refers to o\x1b[2Js.x (opcode GLOBAL" in refusal(b"\x80\x02co\x1b[2Js\nx\n.")

    def test_a_refused_opcode_inside_a_string_is_text(self):
        hostile = b"".join(CODE.values()).decode("latin-1") * 20
        assert check_pickle(pickle.dumps([hostile], 4)).n_odd_tuples == 0

    def test_a_refused_opcode_after_the_stop_is_not_checked(self):
        assert check_pickle(b"\x80\x02N." + b"cos\nsystem\n").end == 4

    def test_an_opcode_of_protocol_0_is_refused_with_advice(self):
        text = refusal(b"\x80\x02I12\n.", MalformedSnapshotError)
        assert re.search(r"byte 2 is 0x49, an opcode that no snapshot has.*protocol 0 or 1", text)

    @pytest.mark.parametrize("unknown", [0x00, 0x07, 0x20, 0x99, 0xFF])
    def test_an_unknown_opcode_is_refused_with_its_offset(self, unknown):
        text = refusal(b"\x80\x04]N" + bytes([unknown]) + b"a.", MalformedSnapshotError)
        assert f"byte 4 is 0x{unknown:02x}" in text


class TestWhatCostsMemory:
    def test_a_memo_index_beyond_the_files_size_is_refused(self):
        text = refusal(b"\x80\x02Nr\xff\xff\xff\x7f.")
        assert "byte 3 requests a memo larger than the file" in text

    def test_a_memo_of_half_a_million_entries_is_fine(self):
        assert check_pickle(b"\x80\x02Nr\xff\xff\x07\x00.").end == 9

    @pytest.mark.parametrize(
        ("value", "n_bytes"), [((1 << 64) - 1, 9), (-(1 << 63), 8), (1 << 40, 6)]
    )
    def test_integers_of_64_bits_are_read(self, value, n_bytes):
        data = pickle.dumps(value, 4)
        assert data[data.index(b"\x8a") + 1] == n_bytes
        assert check_pickle(data).end == len(data)

    @pytest.mark.parametrize(
        "stream", [b"\x8a\x0a" + b"\x01" * 10, b"\x8b\x0a\x00\x00\x00" + b"\x01" * 10]
    )
    def test_an_integer_of_more_than_9_bytes_is_refused_at_its_offset(self, stream):
        assert "integer of more than 64 bits at byte 3" in refusal(
            b"\x80\x04]" + stream + b"a.", MalformedSnapshotError
        )

    def test_a_negative_length_of_a_long_is_refused(self):
        refusal(b"\x80\x04\x8b\xff\xff\xff\xff.", MalformedSnapshotError)

    @pytest.mark.parametrize(
        "stream",
        [
            b"X\xff\xff\xff\xff",
            b"\x8d" + b"\xff" * 8,
            b"\x8e" + b"\xff" * 7 + b"\x7f",
            b"\x8d" + bytes(7) + b"\x80",
        ],
    )
    def test_a_string_longer_than_the_file_is_a_truncated_file(self, stream):
        refusal(b"\x80\x04" + stream + b"abc.", TruncatedFileError)

    def test_a_million_empty_lists_are_read_and_four_million_are_not(self):
        assert check_pickle(b"\x80\x04" + b"]" * 999_999 + b".").end == 1_000_002
        assert "little more than empty containers" in refusal(b"\x80\x04" + b"]" * 4_000_001 + b".")


class TestTuples:
    @pytest.mark.parametrize("protocol", [2, 3, 4, 5])
    def test_pool_ids_are_not_odd(self, protocol):
        assert (
            check_pickle(
                pickle.dumps([(0, 0), (0, 300), (70_000, 1), (2**31 - 1, -1)], protocol)
            ).n_odd_tuples
            == 0
        )

    def test_empty_tuples_and_those_of_none_and_bool_are_not_odd(self):
        assert check_pickle(pickle.dumps([(), (None,), (True, False, 1)], 4)).n_odd_tuples == 0

    @pytest.mark.parametrize(
        "value", [("a", 1), (1.0, 2), (2**40, 0), ((1, 2),), (1, 2, 3, 4), ([], 1)], ids=repr
    )
    def test_any_other_tuple_is_odd(self, value):
        assert check_pickle(pickle.dumps([value], 4)).n_odd_tuples == 1

    def test_a_tuple_built_from_a_mark_is_not_odd_with_three_numbers(self):
        assert check_pickle(b"\x80\x02(K\x01K\x02K\x03t.").n_odd_tuples == 0
        assert check_pickle(b"\x80\x02(K\x01K\x02K\x03K\x04t.").n_odd_tuples == 1

    def test_a_frame_may_begin_between_the_numbers_of_a_tuple(self):
        frame = b"\x95\x03\x00\x00\x00\x00\x00\x00\x00"
        assert (
            check_pickle(b"\x80\x04K\x01" + frame + b"K\x02" + frame + b"\x86.").n_odd_tuples == 0
        )

    def test_a_tuple_after_the_stop_does_not_count(self):
        assert check_pickle(b"\x80\x04N." + b"]\x85" * 9).n_odd_tuples == 0


class TestTruncation:
    def test_a_small_pickle_cut_at_any_byte_is_truncated(self):
        assert check_pickle(SMALL).end == len(SMALL)
        for n in range(len(SMALL)):
            assert f"breaks off at byte {n}" in refusal(SMALL[:n], TruncatedFileError)

    @pytest.mark.parametrize("n_nuls", [1, 2, 3, 5000])
    def test_nuls_after_the_stop_are_ignored(self, n_nuls):
        assert check_pickle(SMALL + bytes(n_nuls)).end == len(SMALL)


def oracle(data: bytes) -> Checked:
    """What the scan must find, from Python's own disassembler."""
    kinds, n_odd = "", 0
    for opcode, _, position in pickletools.genops(data):
        match opcode.name:
            case "BININT" | "BININT1" | "BININT2" | "NONE" | "NEWTRUE" | "NEWFALSE":
                kinds += "s"
            case "MARK":
                kinds += "("
            case "FRAME":
                pass
            case "TUPLE1" | "TUPLE2" | "TUPLE3" | "TUPLE" as name:
                needed = {"TUPLE": r"\(s{0,3}$"}.get(name, f"s{{{name[-1]}}}$")
                n_odd += re.search(needed, kinds) is None
                kinds += "x"
            case "STOP":
                return Checked(position + 1, n_odd)
            case _:
                kinds += "x"
    raise AssertionError("the stream has no STOP")


SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**63), 2**64 - 1), st.floats(), st.integers(0, 70_000)
)
# Strings full of bytes that look like opcodes, and long ones.
TEXTS = st.one_of(
    st.text(max_size=8),
    st.text("()NK\x8c\x94.cR]}tX\x01\x02\x00\x85\x86", max_size=300),
    st.integers(0, 400).map("X".__mul__),
)
VALUES = st.recursive(
    SCALARS | TEXTS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=6),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(TEXTS, inner, max_size=4),
        st.tuples(st.integers(0, 300), st.integers(0, 300)),
        st.lists(inner, max_size=2).map(lambda part: [part, part]),
    ),
    max_leaves=25,
)


@settings(deadline=None, derandomize=True, max_examples=300)
@given(value=VALUES, protocol=st.integers(2, 5))
def test_the_check_finds_what_the_disassembler_finds(value, protocol):
    data = pickle.dumps(value, protocol)
    assert check_pickle(data + b"trailing.") == oracle(data)


def test_a_run_of_tokens_longer_than_is_matched_at_once_changes_nothing():
    data = pickle.dumps([[i, (i % 3, i), None, (i,)] for i in range(5_000)], 4)
    assert check_pickle(data) == oracle(data)
    assert check_pickle(b"\x80\x04(" + b"N" * 10_000 + b"\x86t.").n_odd_tuples == 1


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
            lambda inner: (
                st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=5)
            ),
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
        assert load(
            b"\x80\x02}q\x00(" + key + value + b"X\x04\x00\x00\x00pool(K\x00K\x01tq\x02u."
        ) == {
            "address": 18446720620317114368 - 2**64,
            "pool": (0, 1),
        }


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
        doubling = b")\x94" + b"".join(
            b"h" + bytes([i, ord("h"), i]) + b"\x86\x94" for i in range(60)
        )
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
        monkeypatch.setattr(
            plain_pickle, "check_pickle", lambda data: Checked(len(data), request.param)
        )

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
