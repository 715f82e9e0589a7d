"""JSON is in proportion to its file: what is cut, and that what fits is not."""

import json

from snapconv.cli.terminal import bounded_text


def bounded(values, n_bytes):
    text, notes = bounded_text(values, json.dumps, n_bytes)
    return json.loads(text), notes


def test_what_fits_is_whole():
    values = {"devices": [{"lines": list(range(5000)), "name": "n" * 9000}]}
    assert bounded(values, 0) == (values, ())


def test_the_first_entries_of_lists_remain_and_the_note_says_how_many():
    lines = [{"line": i, "bytes": 10**6 - i} for i in range(50_000)]
    found, (note,) = bounded({"devices": [{"lines": lines}]}, 1000)
    assert found["devices"][0]["lines"] == lines[:1000]
    assert note.slug == "left-out"
    assert "first 1000 entries" in note.message


def test_every_device_remains():
    devices = [{"device": i, "names": ["n" * 100] * 1000} for i in range(2000)]
    found, _ = bounded({"devices": devices}, 10)
    assert [one["device"] for one in found["devices"]] == list(range(2000))
    assert len(json.dumps(found)) < 1 << 20


def test_long_texts_and_keys_are_cut_with_what_is_left_out():
    found, notes = bounded({"k" * 500_000: 1, "text": "t" * 900_000}, 0)
    assert notes
    assert found["text"].startswith("ttt")
    assert "characters more" in found["text"]
    assert len(json.dumps(found)) < 1 << 20


def test_the_bound_grows_with_the_file():
    values = {"lines": ["x" * 100] * 20_000}
    assert bounded(values, 0)[1]
    assert not bounded(values, 1 << 20)[1]
