"""`--from` and `--to`: summary, growth, diff, export and view of a range of the events."""

import json
from pathlib import Path

import pytest

import snapconv as library
from tests.builders import ADDR, MIB, START_US, TraceBuilder, frame

GROWING = Path(__file__).parents[3] / "fixtures" / "growing.pickle"


def job(last_bytes=512):
    trace = TraceBuilder().segment(20 * MIB)
    for n_bytes in (MIB, 2 * MIB, 4 * MIB):
        trace.alloc(n_bytes, frames=[frame(f"make_{n_bytes // MIB}", line=n_bytes // MIB)])
    return trace.free(ADDR + MIB).alloc(last_bytes, frames=[frame(line=9)])


@pytest.fixture
def path(tmp_path):
    return job().write(tmp_path / "run.pickle")


def test_summary_is_about_the_peak_of_the_range(path, snapconv):
    """The whole peaks with 7 MiB at event 3; events 5 and 6 have 5 MiB, then 512 bytes more."""
    words = ("--from", "5", "--to", "6")
    done = snapconv("summary", path, *words)
    assert "the peak of the range: at the end of the trace (7 events)" in done.out
    assert f"({5 * MIB + 512} bytes)" in done.out
    assert "note: range (cuda:0): the figures are those of events 5 to 6 of 7 events" in done.err
    (device,) = json.loads(snapconv("summary", path, *words, "--json").out)["devices"]
    assert (device["event"], device["allocated_bytes"]) == (6, 5 * MIB + 512)


def test_growth_names_the_iterations_of_the_range(snapconv):
    done = snapconv("growth", GROWING, "--from", "iteration:2", "--to", "iteration:4")
    assert "the trace has 3 iterations" in done.out
    assert "after iteration 2:" in done.out
    words = ("--from", "iteration:2", "--to", "iteration:4", "--json")
    (device,) = json.loads(snapconv("growth", GROWING, *words).out)["devices"]
    assert device["first_iteration"] == 2
    assert len(device["iteration_end_bytes"]) == 3


def test_diff_compares_the_same_range_of_both(path, tmp_path, snapconv):
    newer = job(last_bytes=MIB).write(tmp_path / "newer.pickle")
    words = ("diff", path, newer, "--from", "6", "--json")
    (device,) = json.loads(snapconv(*words).out)["devices"]
    assert device["peak_allocated"]["old_bytes"] == 5 * MIB + 512
    assert device["peak_allocated"]["new_bytes"] == 6 * MIB


def test_export_has_the_events_of_the_range_alone(path, tmp_path, snapconv):
    done = snapconv("export", path, "--from", "5", "--to", "6", "-o", tmp_path / "part.json")
    assert done.code == 0
    events = json.loads((tmp_path / "part.json").read_text())["traceEvents"]
    counts = [e for e in events if e["ph"] == "C" and e["name"] == "allocated"]
    times = [time["ts"] for time in counts]
    assert times[0] == START_US + 5
    assert [row["args"]["bytes"] for row in counts] == [5 * MIB, 5 * MIB + 512]


def test_an_exported_iteration_keeps_its_number(tmp_path, snapconv):
    words = ("--from", "iteration:2", "--to", "iteration:3")
    snapconv("export", GROWING, *words, "-o", tmp_path / "part.json")
    events = json.loads((tmp_path / "part.json").read_text())["traceEvents"]
    names = [row["name"] for row in events if row["name"].startswith("iteration ")]
    assert names == ["iteration 2", "iteration 3"]


def test_a_page_has_the_events_of_the_range_alone(path, tmp_path, snapconv):
    words = ("view", path, "--from", "5", "--to", "6", "-o", tmp_path / "part.html")
    done = snapconv(*words)
    assert done.code == 0
    assert "events 5 to 6 of 7 events" in done.err
    page = library.load(path).between("5", "6")
    from snapconv.writers.html.view_device import view_device

    facts = view_device(page.devices[0]).facts
    assert (facts["n_events"], facts["peak_bytes"]) == (2, 5 * MIB + 512)
    assert facts["start_bytes"] == 5 * MIB
    assert (facts["first_event"], facts["n_file_events"], facts["first_us"]) == (5, 7, 5)


@pytest.mark.parametrize("command", ["summary", "growth", "export", "view"])
def test_a_wrong_bound_is_refused_before_the_file_is_read(command, tmp_path, snapconv):
    done = snapconv(command, tmp_path / "absent.pickle", "--from", "noon")
    assert done.code == 2
    assert "expected an event such as 1234" in done.err
    done = (
        snapconv(command, GROWING, "--from", "99999", "-o", tmp_path / "x")
        if command
        in (
            "export",
            "view",
        )
        else snapconv(command, GROWING, "--from", "99999")
    )
    assert done.code == 3
    assert "cuda:0 has no event 99999; it has 468 events" in done.err
