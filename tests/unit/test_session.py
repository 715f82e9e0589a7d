"""A snapshot in a notebook: ``snapconv.load``."""

import pytest

import snapconv
from snapconv.stacks.paths import PathMap
from tests.builders import TraceBuilder, frame


@pytest.fixture
def two_devices(tmp_path):
    """A file with 512 bytes on device 0 and 2,048 on device 2."""
    first = TraceBuilder().segment().alloc(512)
    second = TraceBuilder(device=2).segment().alloc(2048)
    return first.write(tmp_path / "run.pickle", second, odd_key=1)


def test_every_device_of_the_file_is_analysed(two_devices):
    session = snapconv.load(str(two_devices))
    assert [analysis.device.device for analysis in session.devices] == [0, 2]
    assert [analysis.replay.allocated.peak for analysis in session.devices] == [512, 2048]
    assert session.snapshot.path == two_devices


def test_a_report_is_about_the_first_device_by_default(two_devices):
    session = snapconv.load(two_devices)
    assert [session.report(device).peak_usage_bytes for device in (None, 0, 2)] == [512, 512, 2048]


def test_a_device_that_the_file_does_not_have_is_a_key_error(two_devices):
    with pytest.raises(KeyError, match="1"):
        snapconv.load(two_devices).report(1)


def test_notes_of_the_whole_file_stand_once(two_devices):
    notes = snapconv.load(two_devices).notes
    assert [note.slug for note in notes].count("unknown-keys") == 1
    assert len(set(notes)) == len(notes)


def test_the_root_and_path_maps_are_those_given(tmp_path):
    path = (
        TraceBuilder()
        .segment()
        .alloc(512, frames=[frame("f", "/cluster/job/a/b.py")])
        .write(tmp_path / "s.pickle")
    )
    session = snapconv.load(path, project_root="/w/a", path_maps=(PathMap("/cluster/job", "/w"),))
    assert session.project.root == "/w/a"
    assert session.project.relative_paths == ("b.py",)


def test_stages_are_reported_while_reading(two_devices):
    seen = []
    snapconv.load(two_devices, progress=lambda stage, done, total: seen.append((stage, done <= total)))
    assert seen
    assert all(ok for _, ok in seen)


def test_categories_are_words_of_the_package(two_devices):
    analysis = snapconv.load(two_devices).devices[0]
    assert analysis.rows(snapconv.Category.UNKNOWN).tolist() == [0]
    assert snapconv.Evidence.NONE.label == "none"
