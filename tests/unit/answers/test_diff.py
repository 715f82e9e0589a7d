"""Two snapshots compared at their peaks, on hand-made traces in which every number shows."""

import pytest

import snapconv
from snapconv.answers.diff import Change, Difference, compare_files, paired
from snapconv.writers.text.diff import diff_lines
from tests.builders import MIB, TraceBuilder, frame


def line(number, function="forward", file="/home/me/project/net.py"):
    return [frame(function, file, number), frame("<module>", "/home/me/project/train.py", 3)]


@pytest.fixture
def side_of(tmp_path):
    def side_of(builder, *others, **fields):
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.pickle"
        path.write_bytes(__import__("pickle").dumps(builder.snapshot(*others, **fields)))
        session = snapconv.load(path)
        return session.analysis

    return side_of


@pytest.fixture
def compared(side_of):
    def compared(old, new):
        (found,) = compare_files(side_of(old), side_of(new)).devices
        return found

    return compared


def rows_of(found):
    return [
        (
            row.old_line and row.old_line.line_number,
            row.new_line and row.new_line.line_number,
            row.change.difference,
            row.change.more_bytes,
        )
        for row in found.lines
    ]


def test_lines_are_sorted_by_what_they_did_to_the_peak(compared):
    old = TraceBuilder().segment(8 * MIB).alloc(2 * MIB, frames=line(7)).alloc(MIB, frames=line(8))
    new = (
        TraceBuilder().segment(8 * MIB).alloc(3 * MIB, frames=line(7)).alloc(4 * MIB, frames=line(9, "loss"))
    )
    found = compared(old, new)
    assert (found.allocated.more_bytes, found.reserved.more_bytes) == (4 * MIB, 0)
    assert rows_of(found) == [
        (None, 9, Difference.APPEARED, 4 * MIB),
        (7, 7, Difference.GREW, MIB),
        (8, None, Difference.GONE, -MIB),
    ]
    assert sum(row.change.more_bytes for row in found.lines) == found.allocated.more_bytes


def test_addresses_and_order_make_no_difference(compared):
    sizes = [(512, 7), (1024, 8), (4096, 9)]
    old, new = TraceBuilder().segment(), TraceBuilder().segment()
    for size, number in sizes:
        old.alloc(size, frames=line(number))
    new.alloc(2048, frames=line(3, "warm_up"))
    new.free()
    for size, number in reversed(sizes):
        new.alloc(size, frames=line(number))
    assert {row.change.difference for row in compared(old, new).lines} == {Difference.SAME}


def test_what_no_line_of_the_project_made_is_a_row_of_its_own(compared):
    other = [frame("run", "/usr/lib/python3/dist-packages/tool/run.py", 1)]
    old = TraceBuilder().segment().alloc(512, frames=line(7)).alloc(512, frames=other)
    new = TraceBuilder().segment().alloc(512, frames=line(7)).alloc(1536, frames=other)
    assert rows_of(compared(old, new))[0] == (None, None, Difference.GREW, 1024)


def test_a_line_below_its_function_has_moved_and_is_no_new_one(compared, side_of):
    old = TraceBuilder().segment().alloc(512, frames=line(7)).alloc(1024, frames=line(8))
    new = TraceBuilder().segment().alloc(512, frames=line(10)).alloc(2048, frames=line(11))
    assert rows_of(compared(old, new)) == [
        (8, 11, Difference.GREW, 1024),
        (7, 10, Difference.SAME, 0),
    ]
    shown = list(diff_lines(compare_files(side_of(old), side_of(new))))
    assert any("net.py:11 in forward (was 8)" in text for text in shown)


def test_another_clone_of_the_project_is_the_same_project(compared):
    old = TraceBuilder().segment().alloc(512, frames=line(7))
    new = TraceBuilder().segment().alloc(512, frames=line(7, file="/mnt/ci/build/3/project/net.py")[:1])
    assert rows_of(compared(old, new)) == [(7, 7, Difference.SAME, 0)]


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        (Change(0, 5, 0, 1), Difference.APPEARED),
        (Change(5, 0, 1, 0), Difference.GONE),
        (Change(5, 6), Difference.GREW),
        (Change(6, 5), Difference.SHRANK),
        (Change(5, 5, 1, 9), Difference.SAME),
    ],
)
def test_what_became_of_a_row(change, difference):
    assert change.difference is difference


def test_devices_are_compared_with_those_of_their_number(side_of):
    def device(number):
        return TraceBuilder(number).segment(address=(number + 1) << 40).alloc(512)

    old, new = side_of(device(0), device(1)), side_of(device(1), device(2))
    pairs, gone, come = paired(old.devices, new.devices)
    assert [(a.device.device, b.device.device) for a, b in pairs] == [(1, 1)]
    assert (gone, come) == ([0], [2])


def test_the_only_devices_are_compared_whatever_their_numbers(side_of):
    pairs, gone, come = paired(
        side_of(TraceBuilder(0).segment().alloc(512)).devices,
        side_of(TraceBuilder(3).segment().alloc(512)).devices,
    )
    assert [(a.device.device, b.device.device) for a, b in pairs] == [(0, 3)]
    assert (gone, come) == ([], [])


def test_settings_that_differ_are_shown_and_no_others(side_of):
    builder = TraceBuilder().segment().alloc(512)
    old = side_of(builder, allocator_settings={"expandable_segments": False, "max_split_size": -1})
    new = side_of(builder, allocator_settings={"expandable_segments": True, "max_split_size": -1})
    report = compare_files(old, new)
    assert [(row.name, row.old, row.new) for row in report.settings] == [
        ("expandable_segments", "False", "True")
    ]
    assert "  expandable_segments: False -> True" in list(diff_lines(report))


def test_files_without_a_trace_are_compared_as_they_were_at_the_dump(compared):
    old = TraceBuilder().segment(traced=False).alloc(512, traced=False, frames=line(7))
    new = TraceBuilder().segment(traced=False).alloc(1024, traced=False, frames=line(7))
    assert rows_of(compared(old, new)) == [(7, 7, Difference.GREW, 512)]


def test_the_values_for_machines_have_every_row(side_of):
    old = side_of(TraceBuilder().segment().alloc(512, frames=line(7)))
    new = side_of(TraceBuilder().segment().alloc(1024, frames=line(7)))
    (device,) = compare_files(old, new).to_json()["devices"]
    place = {"file": "net.py", "line": 7, "function": "forward"}
    assert device["lines"] == [
        {
            "old": place,
            "new": place,
            "difference": "grew",
            "old_bytes": 512,
            "new_bytes": 1024,
            "change_bytes": 512,
            "n_old": 1,
            "n_new": 1,
        }
    ]
    assert device["peak_allocated"] == {"old_bytes": 512, "new_bytes": 1024, "change_bytes": 512}
