"""JSON is read as it is defined, torch's own with what Python writes beside it; everything can be written."""

import json
import resource
import subprocess
import sys
from functools import partial
from typing import NamedTuple

import numpy as np
import pytest

from snapconv.errors import MalformedSnapshotError
from snapconv.json_text import (
    JsonError,
    escape_unprintable,
    read_json,
    write_json,
)

read_lenient_json = partial(read_json, is_lenient=True)
READERS = pytest.mark.parametrize("read", [read_json, read_lenient_json])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"[1, NaN]", r"unexpected character.*\(byte 4\)"),
        (b'["\xc3\xa4", x]', r"\(byte 7\)"),
        (b"[1] 2", r"unexpected content after document: line 1 column 5 \(byte 4\)"),
        (b'["\xff"]', "can't decode byte 0xff in position 2"),
        (b"[1e400]", "infinity"),
        (b'["\\ud800"]', "surrogate"),
        (b"[" * 500_000 + b"]" * 500_000, "nested too deep"),
    ],
)
def test_a_text_that_is_not_json_is_refused_with_the_byte(text, reason):
    with pytest.raises(JsonError, match=reason) as refused:
        read_json(text)
    assert not refused.value.is_truncated


@READERS
@pytest.mark.parametrize("text", [b"", b"[1, 2", b'{"a": "b', b'{"a": tru', b'["\xc3', b"[" * 600])
def test_a_text_that_breaks_off_is_truncated(text, read):
    with pytest.raises(JsonError) as refused:
        read(text)
    assert refused.value.is_truncated


def test_a_lenient_text_that_breaks_off_behind_a_surrogate_is_truncated():
    with pytest.raises(JsonError) as refused:
        read_lenient_json(b'["\\ud800", "ab')
    assert refused.value.is_truncated


def test_torchs_own_text_may_have_what_python_writes():
    text = json.dumps([float("inf"), "\ud800", 2**70]).encode()
    assert read_lenient_json(text) == [float("inf"), "\ud800", 2**70]


@READERS
def test_a_text_of_empty_lists_is_not_read(read):
    with pytest.raises(MalformedSnapshotError, match="little more than empty lists"):
        read(b"[" + b"[]," * 1_000_001 + b"1]")


def test_a_number_beyond_64_bits_is_a_float():
    assert read_json(b"[18446744073709551615, 1180591620717411303424]") == [2**64 - 1, float(2**70)]
    assert type(read_json(b"1180591620717411303424")) is float


@pytest.mark.skipif(sys.platform != "linux", reason="the limit of memory is Linux's")
@READERS
def test_a_lack_of_memory_is_no_fault_of_the_text(read):
    limit = 250 << 20
    options = getattr(read, "keywords", {})
    program = (
        "from snapconv.json_text import read_json\n"
        f"read_json(b'\"' + b'a' * {limit >> 1} + b'\"', **{options})"
    )

    def set_limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))

    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, preexec_fn=set_limit
    )
    assert done.stderr.splitlines()[-1] == "MemoryError"


class Pair(NamedTuple):
    first: int
    second: int


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (2**70, b"1180591620717411303424"),
        ([-(2**63) - 1, {"a": 2**64}], b'[-9223372036854775809,{"a":18446744073709551616}]'),
        ({2**70: 1}, b'{"1180591620717411303424":1}'),
        ({"\ud800": "\udfff"}, rb'{"\\ud800":"\\udfff"}'),
        ([float("nan"), float("inf")], b"[null,null]"),
        ({1: "x"}, b'{"1":"x"}'),
        (Pair(1, 2), b"[1,2]"),
        (np.arange(3), b"[0,1,2]"),
        (np.arange(6)[::2], b"[0,2,4]"),
        ({"n": np.int64(7), "is": np.bool_(True)}, b'{"n":7,"is":true}'),
        ([np.arange(6)[::2], 2**70], b"[[0,2,4],1180591620717411303424]"),
    ],
)
def test_every_value_of_a_report_can_be_written(value, text):
    assert write_json(value) == text


def test_what_is_neither_plain_nor_numpy_is_a_bug():
    with pytest.raises(TypeError, match="set"):
        write_json([{1}])


def test_what_a_terminal_obeys_is_escaped():
    text = write_json({"a": "\x1b[m\x7f\u202e\U000e0001ä"}, is_indented=True).decode()
    escaped = escape_unprintable(text)
    assert json.loads(escaped) == json.loads(text)
    assert escaped == '{\n  "a": "\\u001b[m\\u007f\\u202e\\udb40\\udc01ä"\n}'


def test_writing_plain_values_imports_no_numpy():
    program = (
        "import sys; from snapconv.json_text import write_json\n"
        "write_json({'a': [1, 2.5, None, (True, 'x')], 3: {}}); assert 'numpy' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
