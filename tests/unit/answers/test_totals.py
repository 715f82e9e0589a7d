"""Sums of live memory: what is likely, what is one of two categories, and equal modules."""

import pytest

from snapconv.answers.totals import (
    EITHER_LABEL,
    CategoryTotal,
    likely_words,
    rows_of_summary,
)


@pytest.mark.parametrize(
    ("likely_bytes", "words"),
    [(0, ""), (9, ""), (512, "512 B of it likely"), (1024, "likely"), (1015, "likely")],
)
def test_a_sum_shows_how_much_of_it_is_likely(likely_bytes, words):
    assert likely_words(1024, likely_bytes) == words


def test_what_is_one_of_two_categories_is_a_row_beside_the_unknown():
    categories = (CategoryTotal("weight", 1, 8, 512, likely_bytes=512), CategoryTotal("unknown", 3, 24, 1536))
    either = CategoryTotal(EITHER_LABEL, 2, 16, 1024)
    assert rows_of_summary(categories, either) == (categories[0], CategoryTotal("unknown", 1, 8, 512), either)
