"""The page about coverage and changes that tests notice is as its records say, with the right interval."""

import pytest

from scripts import tests_page
from scripts.mutation import score


def test_the_page_is_what_its_records_say():
    assert tests_page.PAGE.read_text(encoding="utf-8") == tests_page.page()


@pytest.mark.parametrize(
    ("hits", "n", "low", "high"),
    [
        (0, 10, 0.0, 0.2775),  # Wilson 1927, as tables of the interval have it
        (5, 10, 0.2366, 0.7634),
        (10, 10, 0.7225, 1.0),
        (81, 263, 0.2553, 0.3662),
    ],
)
def test_the_interval_is_wilsons(hits, n, low, high):
    assert score.wilson(hits, n) == pytest.approx((low, high), abs=1e-4)


@pytest.mark.parametrize(("hits", "n"), [(0, 300), (150, 300), (299, 300), (300, 300)])
def test_the_interval_contains_the_share_and_stays_between_0_and_1(hits, n):
    low, high = score.wilson(hits, n)
    assert 0 <= low <= hits / n + 1e-12 <= high + 2e-12 <= 1 + 2e-12


def test_every_reason_is_of_a_change_that_survived():
    survived = {one["id"] for package in score.recorded().values() for one in package["survivors"]}
    assert set(score.reasons()) <= survived


def test_a_package_has_as_many_changes_as_were_asked_for():
    assert {package: one["changes"] >= 300 for package, one in score.recorded().items()} == {
        "replay": True,
        "allocator": True,
        "classification": True,
    }
