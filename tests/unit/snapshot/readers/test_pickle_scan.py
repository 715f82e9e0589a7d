"""The scan of a pickle's opcodes: what it finds, what it refuses, and that lanes change nothing."""

import io
import pickle
import pickletools
import re
import struct

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from snapconv.errors import MalformedSnapshotError, SnapconvError, TruncatedFileError, UnsafePickleError
from snapconv.snapshot.readers import opcodes, pickle_scan
from snapconv.snapshot.readers.pickle_scan import Checked, check_pickle
from tests.builders import TraceBuilder

SMALL = pickle.dumps(TraceBuilder().segment().alloc(512).free().snapshot(), 4)
# Long enough for several lanes and, with tiny constants, several chunks.
EVENTS = pickle.dumps([{"action": "alloc", "size": 512 * i, "pool_id": (0, i % 3)} for i in range(200)], 4)


def check(data: bytes) -> Checked:
    return check_pickle(io.BytesIO(data), len(data))


@pytest.fixture
def tiny(monkeypatch):
    """Lanes of 7 bytes that look 5 bytes back, in chunks of 64."""
    monkeypatch.setattr(pickle_scan, "_MIN_LANE_BYTES", 7)
    monkeypatch.setattr(pickle_scan, "_MAX_LANE_BYTES", 7)
    monkeypatch.setattr(pickle_scan, "_LEAD_BYTES", 5)
    monkeypatch.setattr(pickle_scan, "_CHUNK_BYTES", 64)


def refusal(data: bytes, error: type[SnapconvError] = UnsafePickleError) -> str:
    with pytest.raises(error) as caught:
        check(data)
    return str(caught.value)


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
        names = {op.name: op.code.encode("latin-1")[0] for op in pickletools.opcodes}
        refused = {name for name, code in names.items() if opcodes.ROLE[code] == opcodes.REFUSED}
        text_opcodes = {"INT", "LONG", "FLOAT", "STRING", "UNICODE", "GET", "PUT"}
        assert refused == set(CODE) | text_opcodes | {"BYTEARRAY8", "FROZENSET"}

    @pytest.mark.parametrize("name", ["GLOBAL", "INST"])
    def test_a_refused_global_is_named(self, name):
        assert "refers to os.system" in refusal(b"\x80\x02" + CODE[name] + b".")

    @pytest.mark.parametrize("protocol", [2, 3, 4, 5])
    def test_a_pickled_object_is_named_by_its_class(self, protocol):
        assert "refers to fractions.Fraction" in refusal(
            pickle.dumps([pickle.HIGHEST_PROTOCOL, Third()], protocol)
        )

    @pytest.mark.parametrize(
        ("stream", "name"),
        [
            (b"\x8c\x02os\x94\x8c\x06system\x94\x93", "os.system"),
            (b"\x8c\x02os\x94\x8c\x01x\x94\x30h\x00\x8c\x06system\x93", "os.system"),
            (
                b"\x8c\x02osq\x05\x8c\x06systemr\x06\x00\x00\x00\x30\x30h\x05j\x06\x00\x00\x00\x93",
                "os.system",
            ),
            (b"\x8c\x02os\x95\x08\x00\x00\x00\x00\x00\x00\x00\x8c\x06system\x93", "os.system"),
            (b"\x8c\x02os\x8c\x06system\x8c\x01x\x30\x93", "a global"),
            (b"K\x01\x94\x8c\x06systemh\x00\x93", "a global"),
            (b"h\x07h\x08\x93", "a global"),
        ],
        ids=["memoized", "MEMOIZE", "BINPUT", "FRAME-between", "not-on-top", "not-a-string", "nothing-there"],
    )
    def test_a_stack_global_is_named_from_the_memo_or_not_at_all(self, stream, name):
        assert f"refers to {name} (opcode STACK_GLOBAL" in refusal(b"\x80\x04" + stream + b".")

    def test_a_name_from_an_earlier_chunk_is_not_guessed(self, tiny):
        stream = b"\x80\x04\x8c\x02os\x94\x8c\x03sys\x94" + b"N" * 100 + b"h\x00\x8c\x06system\x93."
        assert f"refers to a global (opcode STACK_GLOBAL at byte {len(stream) - 2})" in refusal(stream)

    def test_a_name_is_shown_without_what_a_terminal_acts_upon(self):
        assert r"refers to o\x1b[2Js.\xff (opcode GLOBAL" in refusal(b"\x80\x02co\x1b[2Js\n\xff\n.")

    def test_a_refused_opcode_inside_a_string_is_text(self):
        hostile = b"".join(CODE.values()).decode("latin-1") * 20
        assert check(pickle.dumps([hostile], 4)).n_odd_tuples == 0

    def test_a_refused_opcode_after_the_stop_is_not_checked(self):
        assert check(b"\x80\x02N." + b"cos\nsystem\n").end == 4

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

    def test_a_memo_index_within_the_files_size_is_fine(self):
        assert check(b"\x80\x02Nr\x09\x00\x00\x00.").end == 9

    @pytest.mark.parametrize(("value", "n_bytes"), [((1 << 64) - 1, 9), (-(1 << 63), 8), (1 << 40, 6)])
    def test_integers_of_64_bits_are_read(self, value, n_bytes):
        data = pickle.dumps(value, 4)
        assert data[data.index(b"\x8a") + 1] == n_bytes
        assert check(data).end == len(data)

    @pytest.mark.parametrize("stream", [b"\x8a\x0a" + b"\x01" * 10, b"\x8b\x0a\x00\x00\x00" + b"\x01" * 10])
    def test_an_integer_of_more_than_9_bytes_is_refused_at_its_offset(self, stream):
        assert "integer of more than 64 bits at byte 3" in refusal(
            b"\x80\x04]" + stream + b"a.", MalformedSnapshotError
        )

    def test_a_negative_length_of_a_long_is_refused(self):
        refusal(b"\x80\x04\x8b\xff\xff\xff\xff.", MalformedSnapshotError)

    @pytest.mark.parametrize(
        "stream", [b"X\xff\xff\xff\xff", b"\x8d" + b"\xff" * 8, b"\x8e" + b"\xff" * 7 + b"\x7f"]
    )
    def test_a_string_longer_than_the_file_is_a_truncated_file(self, stream):
        refusal(b"\x80\x04" + stream + b"abc.", TruncatedFileError)

    def test_a_million_empty_lists_are_read_and_four_million_are_not(self):
        assert check(b"\x80\x04" + b"]" * 999_999 + b".").end == 1_000_002
        assert "little more than empty containers" in refusal(b"\x80\x04" + b"]" * 4_000_001 + b".")


class TestTuples:
    @pytest.mark.parametrize("protocol", [2, 3, 4, 5])
    def test_pool_ids_are_not_odd(self, protocol):
        assert (
            check(pickle.dumps([(0, 0), (0, 300), (70_000, 1), (2**31 - 1, -1)], protocol)).n_odd_tuples == 0
        )

    def test_empty_tuples_and_those_of_none_and_bool_are_not_odd(self):
        assert check(pickle.dumps([(), (None,), (True, False, 1)], 4)).n_odd_tuples == 0

    @pytest.mark.parametrize(
        "value", [("a", 1), (1.0, 2), (2**40, 0), ((1, 2),), (1, 2, 3, 4), ([], 1)], ids=repr
    )
    def test_any_other_tuple_is_odd(self, value):
        assert check(pickle.dumps([value], 4)).n_odd_tuples == 1

    def test_a_tuple_built_from_a_mark_is_not_odd_with_three_numbers(self):
        assert check(b"\x80\x02(K\x01K\x02K\x03t.").n_odd_tuples == 0
        assert check(b"\x80\x02(K\x01K\x02K\x03K\x04t.").n_odd_tuples == 1

    def test_a_frame_may_begin_between_the_numbers_of_a_tuple(self):
        frame = b"\x95\x03\x00\x00\x00\x00\x00\x00\x00"
        assert check(b"\x80\x04K\x01" + frame + b"K\x02" + frame + b"\x86.").n_odd_tuples == 0

    def test_a_tuple_after_the_stop_does_not_count(self):
        assert check(b"\x80\x04N." + b"]\x85" * 9).n_odd_tuples == 0


class TestTruncation:
    @pytest.mark.parametrize("constants", ["tiny", "usual"])
    def test_a_small_pickle_cut_at_any_byte_is_truncated(self, constants, request):
        if constants == "tiny":
            request.getfixturevalue("tiny")
        assert check(SMALL).end == len(SMALL)
        for n in range(len(SMALL)):
            refusal(SMALL[:n], TruncatedFileError)

    @pytest.mark.parametrize("n", [3, 40, 70, 200])
    def test_a_file_that_becomes_shorter_while_it_is_read_is_refused_with_both_sizes(self, tiny, n):
        with pytest.raises(TruncatedFileError, match=f"ends at byte {n}, and had 100000 bytes"):
            check_pickle(io.BytesIO(EVENTS[:n]), 100_000)

    def test_the_message_shows_where_the_file_breaks_off(self):
        assert "breaks off at byte 40" in refusal(SMALL[:40], TruncatedFileError)

    @pytest.mark.parametrize("n_nuls", [1, 2, 3, 5000])
    def test_nuls_after_the_stop_are_ignored(self, n_nuls):
        assert check(SMALL + bytes(n_nuls)).end == len(SMALL)


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
TINY = settings(
    deadline=None,
    derandomize=True,
    max_examples=200,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


class TestLanes:
    @TINY
    @given(value=VALUES, protocol=st.integers(2, 5))
    def test_lanes_and_chunks_find_what_the_disassembler_finds(self, tiny, value, protocol):
        data = pickle.dumps(value, protocol)
        assert check(data + b"trailing.") == oracle(data)

    @TINY
    @given(value=VALUES, protocol=st.integers(2, 5))
    def test_tokens_are_those_of_the_disassembler(self, value, protocol):
        data = pickle.dumps(value, protocol)
        codes = pickle_scan._Chunk(data, 0, len(data), len(data)).codes
        tokens = [(at, code) for at, code, _ in pickle_scan._tokens(codes, 0, len(data))]
        assert tokens == [(at, ord(op.code)) for op, _, at in pickletools.genops(data)]

    @TINY
    @given(
        value=VALUES, flips=st.lists(st.tuples(st.integers(0), st.integers(0, 255)), min_size=1, max_size=4)
    )
    def test_lanes_change_no_verdict_on_a_damaged_stream(self, tiny, value, flips):
        damaged = bytearray(pickle.dumps(value, 4))
        for place, byte in flips:
            damaged[place % len(damaged)] = byte
        assert verdict(bytes(damaged)) == sequential_verdict(bytes(damaged))

    @pytest.mark.parametrize("n_bytes", [300, 5000, 70_000])
    def test_a_string_may_span_many_lanes(self, tiny, n_bytes):
        data = pickle.dumps(["(" * n_bytes, (0, 0), "\x93" * n_bytes], 4)
        assert check(data) == Checked(len(data), 0)

    @pytest.mark.parametrize("start", [b"", b"("], ids=["bare", "marked"])
    def test_a_long_run_of_numbers_is_not_walked_again(self, start, monkeypatch):
        monkeypatch.setattr(pickle_scan._Chunk, "_walk_alone", None)
        data = b"\x80\x04" + start + b"N" * 10_000 + b"\x86t."
        assert check_pickle(io.BytesIO(data), len(data)) == pickle_scan.Checked(len(data), 1)

    def test_a_lane_that_begins_in_a_string_of_opcodes_is_walked_again(self, monkeypatch):
        calls = []
        alone = pickle_scan._Chunk._walk_alone
        monkeypatch.setattr(
            pickle_scan._Chunk, "_walk_alone", lambda *args: calls.append(args) or alone(*args)
        )
        # Each string is a valid stream by itself that runs past the string's end.
        text = ("X" + "\xff" * 3) * 60
        data = pickle.dumps([text + str(i) for i in range(40)], 4)
        assert check(data) == oracle(data)
        assert calls

    def test_a_refused_byte_in_a_misguided_lane_is_no_refusal(self, tiny):
        data = pickle.dumps([{"c": i, "R" * 6: "cRb\x93\x81" * 3} for i in range(60)], 4)
        assert check(data) == oracle(data)

    def test_a_stop_inside_a_string_ends_nothing(self, tiny):
        data = pickle.dumps(["." * n for n in range(60)], 4)
        assert check(data).end == len(data)

    def test_chunks_report_progress_up_to_the_size(self, tiny):
        seen = []
        check_pickle(io.BytesIO(EVENTS), len(EVENTS), progress=lambda done, total: seen.append((done, total)))
        assert len(seen) > len(EVENTS) // 200
        assert seen == sorted(seen)
        assert {total for _, total in seen} == {len(EVENTS)}

    def test_numbers_of_a_tuple_may_lie_in_two_lanes(self, monkeypatch):
        monkeypatch.setattr(pickle_scan, "_LEAD_BYTES", 1)
        for n_bytes in range(3, 12):
            monkeypatch.setattr(pickle_scan, "_MIN_LANE_BYTES", n_bytes)
            monkeypatch.setattr(pickle_scan, "_MAX_LANE_BYTES", n_bytes)
            assert check(EVENTS) == Checked(len(EVENTS), 0)


class Third:
    """Pickled as ``Fraction(1, 3)``."""

    def __reduce__(self):
        from fractions import Fraction

        return Fraction, (1, 3)


def verdict(data: bytes) -> tuple[object, ...]:
    try:
        return (check(data),)
    except SnapconvError as error:
        return type(error), *re.findall(r"byte \d+", str(error))


def sequential_verdict(data: bytes) -> tuple[object, ...]:
    """The verdict with the usual constants, under which these streams are one lane."""
    usual = {"_MIN_LANE_BYTES": 1 << 20, "_MAX_LANE_BYTES": 1 << 20, "_CHUNK_BYTES": 1 << 24}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in usual.items():
            patch.setattr(pickle_scan, name, value)
        return verdict(data)


def test_a_count_of_8_bytes_with_its_highest_bit_set_is_huge():
    data = b"\x80\x04\x8d" + struct.pack("<Q", 1 << 63) + b"x."
    refusal(data, TruncatedFileError)
