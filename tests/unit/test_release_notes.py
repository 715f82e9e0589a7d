"""The notes of a release are its part of the changelog, or there is none."""

import runpy
from pathlib import Path

import pytest

notes_of = runpy.run_path(str(Path(__file__).parents[2] / "scripts" / "release_notes.py"))["notes_of"]
CHANGELOG = """\
# Changelog

## [Unreleased]

- Later.

## [1.1.0] - 2030-01-02

- New.

## [1.0.0] - 2030-01-01

- Old.
"""


def test_the_notes_are_those_of_the_version_and_of_no_other():
    assert notes_of(CHANGELOG, "1.1.0") == "- New."
    assert notes_of(CHANGELOG, "1.0.0") == "- Old."


def test_a_version_that_the_changelog_lacks_is_not_released():
    with pytest.raises(SystemExit, match=r"nothing below `## \[2\.0\.0\]`"):
        notes_of(CHANGELOG, "2.0.0")
