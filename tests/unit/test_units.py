"""Sizes, as people write them."""

import pytest

from snapconv.units import format_share, parse_bytes


def test_a_part_too_small_for_the_figure_is_not_written_as_nothing():
    assert [format_share(part, 10_000) for part in (0, 4, 10)] == ["0.0 %", "< 0.1 %", "0.1 %"]


@pytest.mark.parametrize(
    ("text", "n_bytes"),
    [
        ("24GiB", 24 * 2**30),
        ("512 MiB", 512 * 2**20),
        ("1.5g", 3 * 2**29),
        ("80G", 80 * 2**30),
        ("1T", 2**40),
        ("24GB", 24 * 2**30),
        ("24 gb", 24 * 2**30),
        ("8kib", 8 * 2**10),
        ("2tb", 2 * 2**40),
        ("4096B", 4096),
    ],
)
def test_a_size_is_read_in_binary_units(text, n_bytes):
    assert parse_bytes(text) == n_bytes


@pytest.mark.parametrize(
    "text", ["", "GiB", "-1GiB", "0", "0GiB", "1e9", "24GiB!", "24PiB", "24ib"]
)
def test_what_is_no_size_is_refused(text):
    with pytest.raises(ValueError, match="expected"):
        parse_bytes(text)


@pytest.mark.parametrize("text", ["24", "4096", "1.5"])
def test_a_number_without_a_unit_is_refused_with_one_that_has_it(text):
    with pytest.raises(ValueError, match="24GiB"):
        parse_bytes(text)
