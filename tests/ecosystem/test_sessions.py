"""The sessions of docs/guide/ecosystem.md are what the terminal shows, but for the times."""

import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

from scripts import record_sessions

REQUIREMENTS = Path(__file__).with_name("requirements.txt").read_text(encoding="utf-8")
PINNED = dict(re.findall(r"^([\w-]+)==([\w.]+)$", REQUIREMENTS, re.MULTILINE))
PAGE = record_sessions.PAGE.read_text(encoding="utf-8")


def installed(package):
    try:
        return version(package).partition("+")[0]
    except PackageNotFoundError:
        return None


@pytest.mark.skipif(
    any(installed(package) != PINNED[package] for package in ("torch", "transformers", "lightning")),
    reason="the page has the sessions of the pinned libraries",
)
@pytest.mark.parametrize("session", record_sessions.SESSIONS, ids=lambda session: session.program)
def test_a_session_of_the_page_is_what_the_terminal_shows(session):
    again = record_sessions.with_part(PAGE, session.program, record_sessions.shown(session))
    assert record_sessions.what_stays(again) == record_sessions.what_stays(PAGE)
