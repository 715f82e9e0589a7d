"""Record every program once in each mode; a test is expected to fail where the catalogue says so."""

from functools import cache
from importlib.util import find_spec

import pytest

from tests.ecosystem.catalogue import MODES, PROGRAMS
from tests.ecosystem.recorded_program import record

# The programs by what stands in brackets in the names of their tests.
PROGRAM_BY_CASE = {program.name: program.name for program in PROGRAMS}
PROGRAM_BY_CASE |= {
    f"{program.name}-{mode}": program.name for program in PROGRAMS for mode in MODES
}


def pytest_ignore_collect():
    """Leave the folder alone where its libraries are not installed: it has an environment of its own."""
    return True if find_spec("transformers") is None else None


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist, where it is installed
def pytest_xdist_make_scheduler(config, log):
    """Give all tests of a program to one process, which records the program once for all of them.

    ``--dist loadgroup`` does so by marks, but not with pytest 9.2 (pytest-xdist 3.8.0): it adds the
    group to a private copy of the test's name that pytest no longer reads.
    """
    from xdist.scheduler import LoadScopeScheduling

    class SchedulingByProgram(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            return scope_of(nodeid)

    return SchedulingByProgram(config, log)


def scope_of(nodeid):
    """Return the program whose recording a test needs, or the job that a file's tests share."""
    test, _, case = nodeid.rstrip("]").partition("[")
    if case in PROGRAM_BY_CASE and "test_callbacks" not in test:
        return PROGRAM_BY_CASE[case]
    return f"{test.partition('::')[0]} {case.partition('-')[0]}"


def pytest_generate_tests(metafunc):
    test = metafunc.function.__name__
    if {"program", "mode"} <= {*metafunc.fixturenames}:
        cases = [case(p, test, f"{p.name}-{m}", p, m) for p in PROGRAMS for m in MODES]
        metafunc.parametrize(("program", "mode"), cases)
    elif "program" in metafunc.fixturenames:
        metafunc.parametrize("program", [case(p, test, p.name, p) for p in PROGRAMS])


def case(program, test, name, *values):
    marks = [] if program.is_short else [pytest.mark.long]
    *_, mode = name.rpartition("-")
    is_of_times = (
        test == "test_operations_account_for_forward_and_backward"
    )  # which differ from run to run
    for key in ("all", mode, test, f"{test}[{mode}]"):
        if reason := program.known_failures.get(key):
            marks.append(pytest.mark.xfail(reason=reason, strict=not is_of_times))
            break
    if program.needs:
        marks.append(needs(program.needs))
    return pytest.param(*values, id=name, marks=marks)


@cache
def needs(package):
    """Return the mark that skips a program without one of its packages."""
    try:
        __import__(package)
    except (ImportError, RuntimeError) as error:
        return pytest.mark.skipif(True, reason=f"{package} does not import here: {error}")
    return pytest.mark.skipif(False, reason="")


@pytest.fixture(scope="session")
def recordings(tmp_path_factory):
    """Return a function that records a program in a mode, unless that was done already."""
    folder = tmp_path_factory.mktemp("recordings")
    return cache(lambda program, mode: record(program, mode, folder / mode / program.name))


@pytest.fixture
def recorded(recordings, program, mode):
    """Return a recording that has come to its end as the program would alone."""
    recorded = recordings(program, mode)
    assert recorded.run.code == 0, recorded.run.said
    return recorded


@pytest.fixture
def counted(recordings, program):
    """Return what the program, computing, counted after the last step that was recorded."""
    return recordings(program, "compute").own_count(program.recorded_step)
