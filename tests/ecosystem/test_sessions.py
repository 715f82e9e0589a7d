"""The sessions of docs/guide/ecosystem.md are what the terminal shows, but for the times."""

import re
import shutil
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

from scripts import record_sessions
from scripts.record_sessions import SESSIONS, shown_of, what_stays, with_part
from tests.ecosystem.catalogue import PROGRAMS

REQUIREMENTS = Path(__file__).with_name("requirements.txt").read_text(encoding="utf-8")
PINNED = dict(re.findall(r"^([\w-]+)==([\w.]+)$", REQUIREMENTS, re.MULTILINE))
PAGE = record_sessions.PAGE.read_text(encoding="utf-8")


def installed(package):
    try:
        return version(package).partition("+")[0]
    except PackageNotFoundError:
        return None


@pytest.mark.skipif(
    any(
        installed(package) != PINNED[package] for package in ("torch", "transformers", "lightning")
    ),
    reason="the page has the sessions of the pinned libraries",
)
@pytest.mark.parametrize("session", SESSIONS, ids=lambda session: session.program)
def test_a_session_of_the_page_is_what_the_terminal_shows(session, recordings):
    (program,) = [program for program in PROGRAMS if program.name == session.program]
    recorded = recordings(
        program, "compute"
    )  # as the session records it, but for the name of the capture
    folder, capture = recorded.folder.resolve(), f"{program.path.stem}.capture"
    shutil.copytree(folder / "it.capture", folder / capture)
    said = (recorded.run.out + recorded.run.err).replace("it.capture", capture)
    again = with_part(PAGE, session.program, shown_of(session, program, said, folder))
    assert what_stays(again) == what_stays(PAGE)
