"""What is so for all tests: which part of the smoke part each is of, and that nothing waits for a disk."""

import os
import signal

import pytest


def pytest_configure():
    """Hear the signals that nohup, or a shell in the background, has this process ignore.

    What a process ignores its children ignore too, and tests send them these signals. A signal that
    is handled here is at its default again in every program that is started.
    """
    if os.name != "nt" and signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda *_: None)  # the run goes on, as nohup wants
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items):
    for item in items:
        if mark := item.get_closest_marker("smoke"):
            item.user_properties.append(("smoke", *mark.args))


@pytest.fixture(scope="session", autouse=True)
def no_sync():
    """What a test writes need not outlive a power cut; tests of that replace fsync themselves.

    What is printed has no width but the one that a test gives it.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        patch.delenv("COLUMNS", raising=False)  # of the terminal that the tests are run in
        yield


@pytest.fixture
def in_its_folder(tmp_path, monkeypatch):
    """The test's own folder is the current one, into which outputs go."""
    monkeypatch.chdir(tmp_path)
