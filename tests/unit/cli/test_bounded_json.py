"""JSON is in proportion to its file: what is cut, and that what fits is not."""

import json

import pytest

from snapconv.cli.terminal import limited_text, print_json
from snapconv.files import most_bytes_of_output


def bounded(values, n_bytes):
    text, n_items, _ = limited_text(values, json.dumps, most_bytes_of_output(n_bytes))
    assert len(text) <= most_bytes_of_output(n_bytes)
    return json.loads(text), n_items


LINES = [{"line": i, "bytes": 10**6 - i} for i in range(50_000)]
DEVICES = [{"device": i, "names": ["n" * 100] * 1000} for i in range(100)]


def test_what_fits_is_whole_and_the_bound_grows_with_the_file():
    values = {"devices": [{"lines": list(range(5000)), "name": "n" * 9000}]}
    assert bounded(values, 0) == (values, None)
    assert bounded({"lines": LINES}, 1 << 20) == ({"lines": LINES}, None)


def test_the_first_entries_of_lists_and_every_device_remain():
    assert bounded({"devices": [{"lines": LINES}]}, 1000) == (
        {"devices": [{"lines": LINES[:1000]}]},
        1000,
    )
    assert [one["device"] for one in bounded({"devices": DEVICES}, 10)[0]["devices"]] == list(
        range(100)
    )


def test_long_texts_and_keys_are_cut_with_what_is_left_out():
    found, _ = bounded({"k" * 500_000: 1, "text": "t" * 900_000}, 0)
    assert found["text"].startswith("ttt")
    assert "characters more" in found["text"]


@pytest.mark.parametrize(
    ("n_bytes", "said"), [(0, "note: left-out: of every list only the first 1000"), (None, "")]
)
def test_a_note_says_what_is_left_out(capsys, n_bytes, said):
    print_json({"lines": LINES}, n_bytes=n_bytes)
    assert capsys.readouterr().err.startswith(said)
