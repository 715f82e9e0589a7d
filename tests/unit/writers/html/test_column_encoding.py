"""Columns as text of a page: read back as the page reads them, they are what they were."""

import base64
import json
import zlib

import numpy as np
import pytest

from snapconv.writers.html.column_encoding import MOST_TEXT, encode_column, encode_values, page_text


def decoded(column):
    """The numbers, from the planes of their bytes, as the page's program has them."""
    data = zlib.decompress(base64.b64decode(column.base64))
    planes = [data[i * column.n : (i + 1) * column.n] for i in range(column.width)]
    assert len(data) == column.n * column.width
    numbers = [
        sum(plane[i] << 8 * byte for byte, plane in enumerate(planes)) for i in range(column.n)
    ]
    if column.kind == 0:
        return numbers
    steps = [number // 2 if number % 2 == 0 else -(number + 1) // 2 for number in numbers]
    return steps if column.kind == 2 else np.cumsum(np.array(steps, np.int64)).tolist()


@pytest.mark.parametrize(
    ("values", "width"),
    [
        ([], 1),
        ([0, 255], 1),
        ([256], 2),
        ([65535, 3], 2),
        ([65536], 4),
        ([1 << 40, 7], 8),
        ([(1 << 63) - 1], 8),
    ],
)
def test_a_column_takes_as_few_bytes_as_its_largest_number_needs(values, width):
    column = encode_column(np.array(values, np.int64))
    assert (column.entry(), decoded(column)) == ([len(values), width, 0], values)


@pytest.mark.parametrize(
    "values", [[], [-1], [5, 3, 3, 900], [-1, 70_000, -70_000], [1 << 50, 1 << 50], [0, -(1 << 40)]]
)
def test_differences_may_be_of_either_sign(values):
    assert decoded(encode_column(np.array(values, np.int64), differences=True)) == values


@pytest.mark.parametrize("values", [[], [0, 0, -1], [5, -300, 70_000]])
def test_a_signed_column_has_the_numbers_themselves(values):
    assert decoded(encode_column(np.array(values, np.int64), signed=True)) == values


@pytest.mark.parametrize("period", [1, 3_000, 200_000])
@pytest.mark.parametrize("most", [1, 200, 30_000])
def test_a_large_column_is_read_back_however_much_of_it_repeats(period, most):
    values = np.tile(np.random.default_rng(1).integers(0, most, period), 200_000 // period)
    column = encode_column(values)
    assert decoded(column) == values.tolist()


def test_a_steady_column_takes_next_to_nothing():
    column = encode_column(np.arange(100_000) * 37, differences=True)
    assert (column.width, len(column.base64) < 300) == (1, True)


def test_values_are_json_with_surrogates_escaped():
    text = zlib.decompress(base64.b64decode(encode_values({"name": "π\ud800", "n": [1, None]})))
    assert json.loads(text) == {"name": "π\\ud800", "n": [1, None]}


def test_a_text_shows_what_is_invisible_in_it_and_is_no_longer_than_a_person_reads():
    assert page_text("a\u202eb\u0000\n<i>") == "a\\u202eb\\x00\\n<i>"
    assert len(page_text("x" * 1_000_000)) < MOST_TEXT + 50
