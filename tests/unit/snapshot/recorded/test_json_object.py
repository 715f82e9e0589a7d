"""Values of an unchecked object come out as their kind, or are refused with their place."""

import pytest

from snapconv.errors import MalformedSnapshotError, TruncatedFileError
from snapconv.snapshot.recorded.json_object import COUNT, MILLISECONDS, TEXT, JsonObject, read_unchecked_json

VALUES = {
    "n": 3,
    "big": float(2**70),
    "rows": [1, 2, -7],
    "huge": [1, 2**64 - 1],
    "times": [1, None, 2.5],
    "names": ["a", "b"],
    "inner": {"name": "a" * 1000},
}


@pytest.fixture
def values():
    return JsonObject(VALUES, "")


def test_right_values_come_out(values):
    assert values.value("n", COUNT) == 3
    assert values.optional("no", COUNT, missing=5) == 5
    assert values.items("names", TEXT) == ["a", "b"]
    assert str(values.numbers("times", MILLISECONDS.or_null()).tolist()) == "[1.0, nan, 2.5]"
    assert len(values.child("inner").value("name", TEXT)) == 1000
    assert values.optional_child("no") is None


@pytest.mark.parametrize(
    ("take", "said"),
    [
        (lambda file: file.value("no", COUNT), "no: is missing"),
        (lambda file: file.value("n", TEXT), "n: expected str, got int"),
        (lambda file: file.value("big", COUNT), "big: expected int, got float"),
        (lambda file: file.numbers("rows", COUNT), "rows[2]: expected int >= 0, got -7"),
        (lambda file: file.numbers("times", MILLISECONDS), "times[1]: expected float, got null"),
        (lambda file: file.child("inner").value("no", TEXT), "inner.no: is missing"),
        (lambda file: file.child("inner").value("name", COUNT), "inner.name: expected int, got str"),
        (
            lambda file: file.numbers("huge", COUNT),
            "huge[1]: expected int <= 4611686018427387903, got 18446744073709551615",
        ),
        (lambda file: file.items("times", TEXT), "times[0]: expected str, got int"),
        (lambda file: file.child("rows"), "rows: expected object, got array"),
        (lambda file: file.optional_child("n"), "n: expected object | null, got int"),
        (lambda file: JsonObject([], ""), "the file: expected object, got array"),
    ],
)
def test_a_wrong_value_is_refused_with_its_place_and_what_is_there(values, take, said):
    with pytest.raises(MalformedSnapshotError) as refused:
        take(values)
    assert str(refused.value) == said


def test_a_file_that_is_not_json_is_malformed_and_one_that_breaks_off_truncated():
    with pytest.raises(MalformedSnapshotError, match=r"^no JSON text: unexpected content .*\(byte 4\)$"):
        read_unchecked_json(b"[1] 2")
    with pytest.raises(TruncatedFileError, match="breaks off at byte 6;"):
        read_unchecked_json(b"[1, 2,")
