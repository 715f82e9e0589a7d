"""The codes of categories and of evidence, which stand in columns."""

import pytest

from snapconv.classification.categories import Category, Evidence


@pytest.mark.parametrize("codes", [Category, Evidence])
def test_codes_are_the_numbers_from_0_on_and_0_is_for_what_is_not_known(codes):
    assert [code.value for code in codes] == list(range(len(codes)))
    assert [code.label for code in codes if not code.value] in (["unknown"], ["none"])
