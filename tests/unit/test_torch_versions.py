"""scripts/test_torch_versions: which releases it takes, how it reads results, and the table that it keeps."""

import os
import subprocess
import sys
from collections import Counter
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

import pytest

from snapconv.guest.torch_surface import OLDEST

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def script():
    """The script as a module; its name has no suffix, and Python shall not write its bytes beside it."""
    loader = SourceFileLoader("torch_versions", str(ROOT / "scripts" / "test_torch_versions"))
    module = module_from_spec(spec_from_loader(loader.name, loader))
    sys.modules[loader.name] = module  # dataclasses look their module up
    exec(compile(loader.get_data(loader.path), loader.path, "exec"), module.__dict__)
    yield module
    del sys.modules[loader.name]


def test_of_every_minor_release_from_the_lowest_on_the_last_patch_is_taken(script):
    known = [(2, 10, 0), (2, 9, 0), (2, 9, 1), (2, 1, 2), (2, 2, 0)]
    assert script.last_patches(known, (2, 2)) == [(2, 2, 0), (2, 9, 1), (2, 10, 0)]


def case(name, *, smoke="", said=""):
    mark = f'<properties><property name="smoke" value="{smoke}"/></properties>' if smoke else ""
    return f'<testcase classname="tests.recorder.{name[0]}" name="{name}">{mark}{said}</testcase>'


RESULTS = "\n".join(
    (
        "<testsuites><testsuite>",
        case("a1", smoke="times"),
        case("a2", smoke="times", said='<failure message="assert 1 == 2&#10; + 1">…</failure>'),
        case("b1", smoke="viewer", said='<skipped message="not here"/>'),
        case("b2", said='<error message="KeyError"/>'),
        "</testsuite></testsuites>",
    )
)


def test_results_are_counted_by_the_part_that_they_show(script, tmp_path):
    (tmp_path / "results.xml").write_text(RESULTS, encoding="utf-8")
    results = script.read_results(tmp_path / "results.xml")
    assert results.by_part["times"] == Counter(passed=1, failed=1)
    assert results.total == Counter(passed=1, failed=2, skipped=1)
    assert results.failed == (
        "tests.recorder.a::a2: assert 1 == 2",
        "tests.recorder.b::b2: KeyError",
    )
    row = script.row_of(("2.4.1+cpu", "3.11.7"), results, full=False)
    cells = dict(zip(script.COLUMNS, row, strict=True))
    assert (cells["times"], cells["viewer"]) == ("1 of 2 fail", "–")
    assert cells["tests"] == "smoke: 1 passed, 2 failed, 1 skipped"


def test_a_fatal_test_has_failed_in_the_part_of_those_beside_it(script, tmp_path):
    (tmp_path / "results.xml").write_text(RESULTS, encoding="utf-8")
    results = script.read_results(tmp_path / "results.xml", ["tests/recorder/a.py::crash"])
    assert results.by_part["times"] == Counter(passed=1, failed=2)
    assert results.total["failed"] == 3
    assert "tests/recorder/a.py::crash: fatal" in results.failed


@pytest.mark.parametrize(
    "end",
    [
        "",
        " Fatal Python error: Segmentation fault\n\nCurrent thread …",
        " PASSED            [ 58%]",
    ],
)
def test_the_test_that_was_running_is_the_last_in_the_log(script, end):
    log = "collected 2 items\n\ntests/a.py::first SKIPPED (why) [ 50%]\ntests/b.py::second[a b-[3]]"
    assert script.last_started(log + end) == "tests/b.py::second[a b-[3]]"
    assert script.last_started("collected 0 items") is None


FORKING = """
import os, time
kept = bytearray(96 << 20)
if os.fork():
    time.sleep(60)
else:
    more = bytearray(96 << 20)
    time.sleep(60)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_what_takes_too_much_memory_is_killed_with_its_children(script):
    program = f"{FORKING}# of {os.getpid()}"
    with Path(os.devnull).open("wb") as output:
        limits = script.Limits(memory_bytes=160 << 20, seconds=30)
        end = script.run_limited([sys.executable, "-c", program], output.fileno(), limits)
    assert end.startswith("killed above 0.2 GiB")
    listed = subprocess.run(
        ["ps", "-A", "-o", "args="], capture_output=True, text=True, check=True
    ).stdout
    assert f"# of {os.getpid()}" not in listed


@pytest.mark.skipif(os.name != "posix", reason="kills a group of processes")
def test_what_takes_too_long_is_killed_and_a_crash_is_named(script):
    with Path(os.devnull).open("wb") as output:
        short, long = (script.Limits(memory_bytes=1 << 30, seconds=seconds) for seconds in (1, 60))
        run = [sys.executable, "-c"]
        sleeping = script.run_limited([*run, "import time; time.sleep(60)"], output.fileno(), short)
        crashing = script.run_limited([*run, "import os; os.abort()"], output.fileno(), long)
    assert (sleeping, crashing) == ("killed after 1 s", "crashed with signal 6")


# --- what stands in the project


def test_the_lower_bound_of_the_package_is_that_of_the_recorder(script):
    assert script.lower_bound() == OLDEST
