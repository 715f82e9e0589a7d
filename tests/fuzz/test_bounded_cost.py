"""Small files made to cost much: each is tried in a process that may have little memory and time."""

import gzip
import pickle
import struct
import sys
from collections.abc import Callable

import pytest

from tests.builders import TraceBuilder
from tests.fuzz.corpus import zipped
from tests.fuzz.limited_process import limited_process

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="limits the memory of a process as Linux does"
)

MEMORY_BYTES = 768 << 20
SECONDS = 10
VALID = pickle.dumps(TraceBuilder().segment().alloc(512).snapshot(), 4)


def u32(n: int) -> bytes:
    return struct.pack("<I", n)


def u64(n: int) -> bytes:
    return struct.pack("<Q", n)


def text(value: str) -> bytes:
    return b"X" + u32(len(value)) + value.encode()


def number(n: int) -> bytes:
    return b"J" + struct.pack("<i", n)


def doubling(n: int) -> bytes:
    """Push a tuple that holds the same tuple twice, ``n`` levels deep."""
    levels = b"".join(b"h" + bytes([i, ord("h"), i]) + b"\x86\x94" for i in range(n))
    return b")\x94" + levels + b"0" * (n + 1) + b"h" + bytes([n])


MEMORY: dict[str, tuple[Callable[[], bytes], str]] = {
    "memo of two billion entries": (lambda: b"\x80\x02Nr\xff\xff\xff\x7f.", "UnsafePickleError"),
    "string of 4 GiB": (lambda: b"\x80\x02X\xff\xff\xff\xffabc.", "TruncatedFileError"),
    "string of 2^63 bytes": (
        lambda: b"\x80\x04\x8d" + u64(1 << 63) + b"abc.",
        "TruncatedFileError",
    ),
    "bytes of 2^40 bytes": (lambda: b"\x80\x04\x8e" + u64(1 << 40) + b"abc.", "TruncatedFileError"),
    "integer of 2 GiB": (lambda: b"\x80\x02\x8b\xff\xff\xff\x7f1.", "MalformedSnapshotError"),
    "frame of 2^40 bytes": (
        lambda: b"\x80\x04\x95" + u64(1 << 40) + VALID[11:],
        "MalformedSnapshotError",
    ),
    "frame of 2^63 bytes": (
        lambda: b"\x80\x04\x95" + u64(1 << 63) + VALID[11:],
        "MalformedSnapshotError",
    ),
    "a frame of 2^40 bytes in every frame": (
        lambda: b"\x80\x04" + (b"\x95" + u64(1 << 40)) * 9 + b"N.",
        "MalformedSnapshotError",
    ),
    "20 million empty lists, packed": (
        lambda: gzip.compress(b"\x80\x04" + b"]" * 20_000_000 + b".", 1),
        "UnsafePickleError",
    ),
    "20 million empty lists in JSON, packed": (
        lambda: gzip.compress(b"[" + b"[]," * 20_000_000 + b"[]]", 1),
        "MalformedSnapshotError",
    ),
    "a bomb of zeros": (
        lambda: gzip.compress(b"\x80\x04N." + bytes(200_000_000), 1),
        "MalformedSnapshotError",
    ),
    "a bomb of zeros in a zip": (
        lambda: zipped(b"\x80\x04N." + bytes(200_000_000)),
        "MalformedSnapshotError",
    ),
    "a bomb of zeros in members": (
        lambda: gzip.compress(bytes(20_000_000)) * 20,
        "MalformedSnapshotError",
    ),
    "marks without end": (lambda: b"\x80\x04" + b"(" * 900_000 + b".", "MalformedSnapshotError"),
    "lists in lists": (
        lambda: b"\x80\x04" + b"]" * 900_000 + b"a" * 899_999 + b".",
        "NotASnapshotError",
    ),
    "tuples in tuples": (
        lambda: b"\x80\x04" + b")" + b"\x85" * 900_000 + b".",
        "NotASnapshotError",
    ),
    "JSON of 9 million texts, packed": (
        lambda: gzip.compress(b"[" + b'"ab",' * 9_000_000 + b"1]", 1),
        "NotASnapshotError",
    ),
    "JSON lists in lists": (lambda: b"[" * 900_000, "NotASnapshotError"),
    "JSON dictionaries in dictionaries": (lambda: b'{"segments":' * 80_000, "NotASnapshotError"),
}

KEYS = (
    "action",
    "alloc",
    "addr",
    "size",
    "frames",
    "name",
    "filename",
    "line",
    "free_requested",
    "segment_map",
)
KEY = {key: b"h" + bytes([i]) for i, key in enumerate(KEYS)}
FIRST_FREE = b"h" + bytes([len(KEYS)])


def events(
    *parts: bytes, before: bytes = b"", settings: bytes = b"N", segments: bytes = b"]"
) -> bytes:
    """A whole pickle around the opcodes of a trace; the common strings are in the memo, see KEY."""
    keys = b"(" + b"".join(text(key) + b"\x94" for key in KEYS) + b"1" + before
    trace = b"](](" + b"".join(parts) + b"ee"
    top = (
        text("segments")
        + segments
        + text("allocator_settings")
        + settings
        + text("device_traces")
        + trace
    )
    return b"\x80\x04" + keys + b"}(" + top + b"u."


def event(n: int, action: str = "alloc", frames: bytes = b"") -> bytes:
    fields = KEY["action"] + KEY[action] + KEY["addr"] + number(512 * n) + KEY["size"] + number(512)
    return b"}(" + fields + (KEY["frames"] + frames if frames else b"") + b"u"


def frames(**fields: bytes) -> bytes:
    return b"](}(" + b"".join(KEY[key] + value for key, value in fields.items()) + b"ue"


def huge_dictionary(n: int) -> bytes:
    """Memoise a dictionary of ``n`` keys as the first free entry, and take it off the stack."""
    return (
        b"}\x94("
        + KEY["action"]
        + KEY["alloc"]
        + b"".join(text(f"k{i}") + b"N" for i in range(n))
        + b"u0"
    )


TIME: dict[str, Callable[[], bytes]] = {
    "a key of doubled tuples": lambda: b"\x80\x04}(" + doubling(60) + b"Nu.",
    "a set of doubled tuples": lambda: b"\x80\x04\x8f(" + doubling(60) + b"\x90.",
    "an action of doubled tuples": lambda: events(b"}(" + text("action") + b"2" + b"u"),
    "one huge dictionary as every event": lambda: events(
        FIRST_FREE * 200_000, before=huge_dictionary(40_000)
    ),
    "one huge dictionary as every setting": lambda: events(
        before=huge_dictionary(40_000),
        settings=b"}(" + b"".join(text(f"s{i}") + FIRST_FREE for i in range(40_000)) + b"u",
    ),
    "one event everywhere": lambda: events(FIRST_FREE * 450_000, before=huge_dictionary(0)),
    "unknown keys, all different": lambda: events(
        *(b"}(" + KEY["action"] + KEY["alloc"] + text(f"k{i}") + b"Nu" for i in range(35_000))
    ),
    "integer keys of one hash": lambda: (
        b"\x80\x04}("
        + b"".join(
            b"\x8a\x09" + ((a << 61) - a + b).to_bytes(9, "little", signed=True) + b"N"
            for b in range(60)
            for a in range(1000)
        )
        + b"u."
    ),
    "a million traces": lambda: (
        b"\x80\x04}("
        + text("segments")
        + b"]"
        + text("device_traces")
        + b"]("
        + b"]" * 900_000
        + b"eu."
    ),
    "frames by reference": lambda: events(
        *(event(i, frames=b"](" + FIRST_FREE * i + b"e") for i in range(900)),
        before=huge_dictionary(0),
    ),
    "segments that are mapped in turn": lambda: events(
        *(event(i, "segment_map") for i in range(30_000))
    ),
    "strings of opcodes": lambda: pickle.dumps(
        {"segments": [], "x": ["X\xff\xff\xff" * 12 + str(i) for i in range(9000)]}, 4
    ),
    "a global after a million tokens": lambda: b"\x80\x04" + b"N" * 900_000 + b"\x93.",
    "a zip of very many files": lambda: zipped(*[b""] * 9_000),
    "gzip members of nothing": lambda: gzip.compress(b"") * 40_000 + gzip.compress(VALID),
    "base64 keys without end": lambda: b"<" + b'"base64"  ' * 90_000,
}


@pytest.fixture(scope="module")
def load(tmp_path_factory):
    """Load a file of such bytes: "read", the name of the error, or the code where it was not survived."""
    folder = tmp_path_factory.mktemp("loaded")
    with limited_process(memory_bytes=MEMORY_BYTES, seconds=SECONDS) as run:

        def load(content: bytes) -> str:
            (folder / "x").write_bytes(content)
            code = run(["load", str(folder / "x")], folder / "said")
            return (folder / "said").read_text().strip() if code == 0 else f"ended with {code}"

        yield load


@pytest.mark.parametrize("name", MEMORY)
def test_a_file_made_to_fill_the_memory_is_refused_in_time(load, name):
    content, expected = MEMORY[name]
    assert load(content()) == expected


@pytest.mark.parametrize("name", TIME)
def test_a_file_of_a_megabyte_made_to_take_for_ever_is_done_in_time(load, name):
    content = TIME[name]()
    assert len(content) <= 1 << 20
    assert load(content) in {
        "read",
        "MalformedSnapshotError",
        "NotASnapshotError",
        "UnsafePickleError",
    }
