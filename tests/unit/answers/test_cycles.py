"""Reference cycles, known by what Python's collector frees together, and what only looks like them."""

import pytest

import snapconv
from snapconv.answers.cycles import find_garbage
from snapconv.answers.growth import report_growth
from snapconv.cli.app import main
from tests.builders import MIB, TraceBuilder, frame
from tests.faulty_jobs import CALL, COLLECTIONS, COLLECTOR, ENGINE, at, steps_that_collect


def garbage_of(job, tmp_path):
    return find_garbage(snapconv.load(job.trace.write(tmp_path / "s.pickle")).devices[0])


def test_blocks_of_several_steps_that_go_at_unrelated_places_are_in_reference_cycles(tmp_path):
    found = garbage_of(steps_that_collect(), tmp_path)
    assert (found.line.place, found.most_bytes, found.n_collections) == ("state.py:7", 8 * MIB, 3)
    assert found.certainty == "likely"


def test_the_fault_saves_what_earlier_steps_left(advice_on):
    """Of three steps' blocks at the peak, one is of the step itself."""
    advice = advice_on(steps_that_collect())
    (fault,) = advice.faults
    assert (fault.kind, fault.where.place, fault.held_bytes) == ("garbage", "state.py:7", 8 * MIB)
    assert fault.saved_bytes == 8 * MIB
    assert not fault.is_certain


def test_growth_names_what_waits_for_the_collector(tmp_path):
    report = report_growth(
        snapconv.load(steps_that_collect().trace.write(tmp_path / "s.pickle")).devices[0]
    )
    assert report.to_json()["garbage"] == {
        "file": "state.py",
        "line": 7,
        "function": "extra",
        "most_bytes": 8 * MIB,
        "n_collections": 3,
        "certainty": "likely",
    }


@pytest.mark.parametrize("stack", [at(18), ENGINE])
def test_the_collector_on_the_stack_of_one_burst_is_certain(tmp_path, stack):
    found = garbage_of(steps_that_collect([[COLLECTOR, *stack]], n=4), tmp_path)
    assert (found.n_collections, found.certainty) == (1, "certain")


@pytest.mark.parametrize(
    ("what", "job"),
    [
        ("a list is cleared at one line", steps_that_collect([at(18)] * 3)),
        ("and, at the end, at another", steps_that_collect([at(18), at(18), at(30)])),
        (
            "the outputs of an epoch go in a library",
            steps_that_collect([at(9, frame("end", "/lib/fit.py"))] * 3),
        ),
        ("a cache is bounded", steps_that_collect([at(18)] * 11, every=1, frees=1)),
        (
            "a module clears its cache",
            steps_that_collect([at(13, CALL, frame("reset", line=4))] * 3),
        ),
        ("one backward goes through several forwards", steps_that_collect([ENGINE] * 3)),
        ("one burst alone is no evidence", steps_that_collect([ENGINE])),
        ("each step frees its own", steps_that_collect(COLLECTIONS, every=1)),
        ("nothing is freed", steps_that_collect([])),
    ],
)
def test_what_the_program_drops_itself_is_not_in_cycles(tmp_path, what, job):
    assert garbage_of(job, tmp_path) is None, what


def test_what_was_not_collected_yet_may_be_in_cycles_too(advice_on, tmp_path, capsys):
    """A leak, a cache and a ring that no collection reached have the same lifetimes."""
    job = steps_that_collect([])
    (fault,) = advice_on(job).faults
    assert fault.kind == "growing"
    assert "reference cycles, which gc.collect() frees" in fault.wrong_if
    main(["growth", str(tmp_path / "s.pickle")])
    assert "only what gc.collect() frees is in cycles" in capsys.readouterr().out


def test_a_trace_without_allocations_has_no_cycles(tmp_path):
    file = (
        TraceBuilder()
        .segment(traced=False)
        .event("snapshot", size=512)
        .write(tmp_path / "s.pickle")
    )
    assert find_garbage(snapconv.load(file).devices[0]) is None
