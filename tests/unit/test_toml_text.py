"""TOML of the user: its values, and what would cost far more than its length is refused with the line."""

import time

import pytest

from snapconv.toml_text import MOST_TOML_BYTES, read_toml


def test_a_file_of_a_project_is_read():
    text = (
        b"[tool.a]\nsizes = [1_000, 2.5e3]\nwords = 'a.b.c' # it's one. Or. Two.\n[[rules]]\n\"x.y\".z = true"
    )
    assert read_toml(text) == {
        "tool": {"a": {"sizes": [1000, 2500.0], "words": "a.b.c"}},
        "rules": [{"x.y": {"z": True}}],
    }


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"[a]\nb = 1\n" + b".".join([b"k"] * 50_000) + b" = 1", "line 3: a key may have 16 parts"),
        (b'"a" . ' * 50_000 + b"b = 1", "line 1: a key may have 16 parts"),
        (b"[" + b"a." * 50_000 + b"b]", "line 1: a key may have 16 parts"),
        (b"a = {" + b"'b'." * 50_000 + b"c = 1}", "line 1: a key may have 16 parts"),
        (b'k = [{a = """\n#"""}, {' + b"x." * 50_000 + b"y = 1}]", "line 2: a key may have 16 parts"),
        (b'k = [{a = """x""""}, {' + b"x." * 50_000 + b"y = 1}]", "line 1: a key may have 16 parts"),
        (b'a = "' + b'\\"' * 500_000, "Unterminated|Illegal"),
        (b'a = """' + b'\\"""' * 200_000, "Unterminated|Illegal|Expected"),
        (b"\na = " + b"9" * 5000, "line 2: a number 1000 digits"),
        (b"a = " + b"[" * 5000 + b"]" * 5000, "nested too deep"),
        (b"#" * (MOST_TOML_BYTES + 1), "4 MiB"),
        (b"a", "line 1|end of document"),
        (b"a = '\xff'", "utf-8"),
    ],
)
def test_a_costly_or_damaged_text_is_refused_at_once(text, reason):
    begin = time.process_time()
    with pytest.raises(ValueError, match=reason):
        read_toml(text)
    assert time.process_time() - begin < 3


@pytest.mark.parametrize("quotes", ['"', "'", '"""', "'''"])
def test_words_in_texts_are_no_keys(quotes):
    long = "so. " * 100
    numbers = ", ".join(["1.5"] * 100)
    assert read_toml(f"a = {quotes}{long}{quotes}\nb = [{numbers}]".encode())["a"] == long
