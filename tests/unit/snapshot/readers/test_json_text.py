"""A JSON text is read as a type says, or refused with the place, what was expected and what is there."""

from typing import Annotated

import pytest
from msgspec import Meta, Struct
from msgspec.json import Decoder

from snapconv.errors import MalformedSnapshotError, TruncatedFileError
from snapconv.snapshot.readers.json_text import ANYTHING, read_json


class Row(Struct):
    n: Annotated[int, Meta(ge=0, lt=10)]
    name: Annotated[str, Meta(max_length=2)] = ""


class File(Struct):
    rows: list[Row]


FILE = Decoder(File)


def test_what_is_right_is_read_as_the_type():
    assert read_json(b'{"rows": [{"n": 3, "more": []}], "else": 1}', FILE) == File([Row(3)])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"[]", "the file: expected object, got array"),
        (b"{}", "rows: is missing"),
        (b'{"rows": [{"n": 1}, {}]}', "rows[1].n: is missing"),
        (b'{"rows": [{"n": "1"}]}', "rows[0].n: expected int, got str"),
        (b'{"rows": [{"n": -7}]}', "rows[0].n: expected int >= 0, got -7"),
        (
            b'{"rows":[{"n":1,"name":"\\u001b[m"}]}',
            r'rows[0].name: expected str of length <= 2, got "\u001b[m"',
        ),
        (b'{"rows": [{"n": 1e999}]}', "rows[0].n: number out of range"),
    ],
)
def test_a_wrong_value_is_refused_with_its_place_and_what_is_there(text, said):
    with pytest.raises(MalformedSnapshotError) as refused:
        read_json(text, FILE)
    assert str(refused.value) == said


def test_a_wrong_value_before_another_that_cannot_be_read_is_named():
    with pytest.raises(
        MalformedSnapshotError, match=r"^rows\[0\]\.n: expected int >= 0, got something else$"
    ):
        read_json(b'{"rows": [{"n": -7}], "else": 1e999}', FILE)


def test_a_long_value_is_shown_in_part():
    text = b'{"rows": [{"n": 1, "name": "%s"}]}' % (b"a" * 1000)
    with pytest.raises(MalformedSnapshotError, match=r'got "a{79}…$'):
        read_json(text, FILE)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"[1, NaN]", r"invalid character \(byte 4\)"),
        (b"[1] 2", "trailing characters"),
        (b'["\xff"]', "can't decode byte 0xff"),
        (b"[" * 500_000 + b"]" * 500_000, "nested too deep"),
    ],
)
def test_what_is_no_json_is_refused_with_the_byte(text, said):
    with pytest.raises(MalformedSnapshotError, match=f"^no JSON text: .*{said}"):
        read_json(text, ANYTHING)


@pytest.mark.parametrize("text", [b"", b"[1, 2", b'{"a": "b', b'{"a": tru'])
def test_a_text_that_breaks_off_shows_where(text):
    with pytest.raises(TruncatedFileError, match=f"breaks off at byte {len(text)};"):
        read_json(text, ANYTHING)


def test_a_text_of_empty_lists_is_not_read():
    with pytest.raises(MalformedSnapshotError, match="little more than empty lists"):
        read_json(b"[" + b"[]," * 1_000_001 + b"1]", ANYTHING)
