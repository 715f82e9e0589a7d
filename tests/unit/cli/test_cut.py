"""`snapconv cut`: a part of a trace has the curves of the whole, and is a snapshot like any other."""

import pickle
import pickletools
from pathlib import Path

import numpy as np
import pytest

import snapconv
from snapconv.errors import InputError
from tests.builders import ADDR, MIB, START_US, TraceBuilder, frame
from tests.parted_files import CURVES, FILES, counted_job

FIXTURES = Path(__file__).parents[3] / "fixtures"


def cut(path, begin, end):
    return snapconv.load(path).cut(begin, end, output=path.with_name("part.pickle"), force=True)


@pytest.mark.parametrize("name", FILES)
def test_every_curve_of_a_part_is_that_of_the_whole(name, tmp_path):
    session = snapconv.load(FIXTURES / f"{name}.pickle")
    for device in session.devices:
        n_events = device.n_events
        if n_events < 3:
            continue
        first, last = n_events // 3, 2 * n_events // 3
        path = session.of_device(device.device.device).cut(
            str(first), str(last), output=tmp_path / "part.pickle", force=True
        )
        part = snapconv.load(path).of_device(device.device.device).devices[0]
        for curve in CURVES:
            whole = getattr(device.replay, curve).after[first : last + 1]
            assert np.array_equal(getattr(part.replay, curve).after, whole), curve


def test_the_segments_are_those_at_the_end_of_the_part(tmp_path):
    """Counted by hand from the events of the job: at event 6 the third block waits for a stream."""
    path = cut(counted_job().write(tmp_path / "run.pickle"), "2", "6")
    (segment,) = pickle.loads(path.read_bytes())["segments"]
    blocks = [(b["address"] - ADDR, b["size"], b["state"]) for b in segment["blocks"]]
    assert blocks == [
        (0, MIB, "active_allocated"),
        (MIB, 2 * MIB, "inactive"),
        (3 * MIB, 4 * MIB, "active_pending_free"),
        (7 * MIB, 13 * MIB, "inactive"),
    ]
    totals = [segment[key] for key in ("total_size", "allocated_size", "active_size")]
    assert totals == [20 * MIB, MIB, 5 * MIB]
    assert segment["blocks"][0]["frames"] == [frame("make_1", line=1)]


def test_events_and_everything_else_stay_as_they_are(tmp_path):
    trace = counted_job()
    annotations = [
        {"stage": stage, "name": "step", "device": 0, "time_us": START_US + i}
        for stage, i in (("START", 3), ("END", 4), ("START", 8))
    ]
    settings = {"expandable_segments": False, "new_setting": [1, {"a": None}]}
    path = trace.write(
        tmp_path / "run.pickle",
        allocator_settings=settings,
        external_annotations=annotations,
        snapconv={"version": 1, "source": {"files": {"/x/train.py": "secret"}, "left_out": []}},
        some_key="kept",
    )
    part = pickle.loads(cut(path, "2", "6").read_bytes())
    assert part["device_traces"] == [trace.snapshot()["device_traces"][0][2:7]]
    assert part["allocator_settings"] == settings
    assert part["external_annotations"] == annotations[:2]
    assert part["some_key"] == "kept"
    assert part["snapconv"]["source"] is None


def test_damaged_annotations_are_left_out(tmp_path):
    whole = {"name": "step", "stage": "START", "time_us": START_US}
    damaged = [{"name": "no time", "stage": "END"}, {"name": "nor here"}]
    path = counted_job().write(tmp_path / "run.pickle", external_annotations=[whole, *damaged])
    assert pickle.loads(cut(path, "0", "3").read_bytes())["external_annotations"] == [whole]


def test_a_part_is_a_pickle_of_plain_values(tmp_path):
    path = cut(FIXTURES / "training_step.pickle", "iteration:1", "iteration:1")
    try:
        names = {opcode.name for opcode, _, _ in pickletools.genops(path.read_bytes())}
    finally:
        path.unlink()
    assert not names & {"GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD", "INST", "OBJ", "NEWOBJ"}


def test_bounds_are_events_iterations_annotations_and_seconds(tmp_path):
    session = snapconv.load(FIXTURES / "training_step.pickle")
    (device,) = session.devices
    second = device.iterations[1]
    times = device.device.events.time_us
    until = (int(times[100]) - int(times[0])) / 1e6
    cases = (
        ("#7", "11", 7, 11),
        ("iteration:1", "iteration:1", second.first_event, second.last_event),
        (None, f"{until}s", 0, int(np.flatnonzero(times == times[100])[-1])),
        (f"{until}s", None, int(np.flatnonzero(times == times[100])[0]), len(times) - 1),
    )
    for begin, end, first, last in cases:
        part = session.cut(begin, end, output=tmp_path / "part.pickle", force=True)
        shown = snapconv.load(part).devices[0].device.events.time_us
        assert np.array_equal(shown, times[first : last + 1]), (begin, end)


def test_an_annotation_is_from_its_first_event_to_its_last(tmp_path):
    trace = TraceBuilder().segment(20 * MIB)
    for text in ("", "load", "load", "", "load", ""):
        trace.alloc(512, user_metadata=text)
    path = cut(trace.write(tmp_path / "run.pickle"), "annotation:load", "annotation:load")
    (events,) = pickle.loads(path.read_bytes())["device_traces"]
    assert [event["user_metadata"] for event in events] == ["load", "load", "", "load"]


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ((), 2, "give --from, --to or both"),
        (("--from", "noon"), 2, "expected an event such as 1234"),
        (("--from", "99"), 3, "cuda:0 has no event 99; it has 9 events"),
        (("--to", "iteration:7"), 3, "cuda:0 has no iteration:7; it has 1 iteration"),
        (("--from", "annotation:x"), 3, "no annotation 'x' with events"),
        (("--from", "5", "--to", "3"), 3, "the range has no event"),
    ],
)
def test_a_bound_that_is_not_there_is_an_error(words, code, message, tmp_path, snapconv):
    path = counted_job().write(tmp_path / "run.pickle")
    done = snapconv("cut", path, *words, "-o", tmp_path / "part.pickle")
    assert done.code == code
    assert message in done.err
    assert not (tmp_path / "part.pickle").exists()


def test_the_command_names_the_file_and_replaces_it_only_with_force(folder, snapconv):
    counted_job().write(folder / "run.pickle")
    done = snapconv("cut", "run.pickle", "--to", "4")
    assert done.code == 0
    assert "run.part.pickle (" in done.out
    assert snapconv("cut", "run.pickle", "--to", "4").code == 5
    assert snapconv("cut", "run.pickle", "--to", "4", "--force").code == 0
    assert snapconv("cut", "run.pickle", "--to", "4", "-o", "run.pickle", "--force").code == 5


def test_a_file_without_events_or_of_the_profiler_is_refused(tmp_path):
    with pytest.raises(InputError, match="has no events"):
        snapconv.load(FIXTURES / "segments_only.pickle").cut("0", output=tmp_path / "part.pickle")


def test_pytorchs_viewer_draws_a_part(tmp_path):
    """Its pages have the part itself, with the same curves; its own replay takes every event."""
    viz = pytest.importorskip("torch.cuda._memory_viz")
    (device,) = snapconv.load(FIXTURES / "training_step.pickle").devices
    path = snapconv.load(FIXTURES / "training_step.pickle").cut(
        "1000", "2000", output=tmp_path / "part.pickle"
    )
    part = pickle.loads(path.read_bytes())
    for name, plot in (("trace", viz.trace_plot), ("segments", viz.segment_plot)):
        page = tmp_path / f"{name}.html"
        page.write_text(plot(part))
        (drawn,) = snapconv.load(page).devices
        for curve in CURVES:
            whole = getattr(device.replay, curve).after[1000:2001]
            assert np.array_equal(getattr(drawn.replay, curve).after, whole)
    assert "1001 entries" in viz.trace(part)
    assert viz.segsum(part)
