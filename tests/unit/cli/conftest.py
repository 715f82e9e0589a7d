"""The command line in this process: what a command returns, prints, and says on the side."""

from typing import NamedTuple

import pytest

from snapconv import analysis, session
from snapconv.cli.app import main
from snapconv.cli.terminal import fitted


def screens(text, width=80):
    """What a terminal of so many columns shows of each device."""
    for device in text.split("\n\n"):
        yield [
            part
            for line in device.splitlines()
            for part in fitted(line, width, shortens_paths=True)
        ]


class Done(NamedTuple):
    """What a run left: its exit code and what it said."""

    code: int
    out: str
    err: str


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder that is the current one."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def analysed_once(monkeypatch):
    """Let commands without options share the analysis of a file."""
    analyses, analyze_file = {}, analysis.analyze_file

    def shared(path, options, *, device=None, progress=None):
        if device is not None or options != analysis.AnalysisOptions():
            return analyze_file(path, options, device=device, progress=progress)
        if path not in analyses:
            analyses[path] = analyze_file(path, options, progress=progress)
        return analyses[path]

    # What is imported from now on would take the shared one for good; a session has its own
    # already.
    assert session.analyze_file is analyze_file
    monkeypatch.setattr(analysis, "analyze_file", shared)


@pytest.fixture
def snapconv(capsys):
    """Run a command; no command may show a traceback."""

    def run(*arguments):
        code = main([str(argument) for argument in arguments])
        said = capsys.readouterr()
        assert "Traceback" not in said.err
        return Done(code, said.out, said.err)

    return run
