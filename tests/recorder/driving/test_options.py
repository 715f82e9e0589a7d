import pytest

from snapconv.recorder.options import parse_capacity


@pytest.mark.parametrize(
    ("text", "n_bytes"),
    [
        ("24GiB", 24 * 2**30),
        ("512 MiB", 512 * 2**20),
        ("1.5g", 3 * 2**29),
        ("80G", 80 * 2**30),
        ("1T", 2**40),
        ("4096", 4096),
        ("4096B", 4096),
    ],
)
def test_a_size_is_read_in_binary_units(text, n_bytes):
    assert parse_capacity(text) == n_bytes


@pytest.mark.parametrize("text", ["", "GiB", "24GB", "24 gb", "-1GiB", "0", "0GiB", "1e9", "24GiB!", "24PiB"])
def test_what_is_no_size_or_may_mean_two_is_refused(text):
    with pytest.raises(ValueError, match="expected"):
        parse_capacity(text)
