"""Two snapshots compared at their peaks, on hand-made traces in which every number shows."""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

import snapconv
from snapconv.answers.diff import Difference, compare_files, match_lines
from snapconv.stacks.project_lines import LIBRARY_ONLY, NO_STACK, SourceLine
from snapconv.writers.text.comparisons import diff_lines
from tests.builders import MIB, TraceBuilder, frame
from tests.classified_jobs import job_of


def line(number, function="forward", file="/home/me/project/net.py"):
    return [frame(function, file, number), frame("<module>", "/home/me/project/train.py", 3)]


@pytest.fixture
def side_of(tmp_path):
    def side_of(builder, *others, **fields):
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.pickle"
        path.write_bytes(pickle.dumps(builder.snapshot(*others, **fields)))
        return snapconv.load(path).analysis

    return side_of


@pytest.fixture
def compared(side_of):
    def compared(old, new):
        (found,) = compare_files(side_of(old), side_of(new)).devices
        return found

    return compared


def rows_of(found):
    numbers = ([line and line.line_number for line in row.name] for row in found.lines)
    return [
        (*both, row.difference, row.more_bytes)
        for both, row in zip(numbers, found.lines, strict=True)
    ]


def test_lines_are_sorted_by_what_they_did_to_the_peak(compared):
    old = TraceBuilder().segment(8 * MIB).alloc(2 * MIB, frames=line(7)).alloc(MIB, frames=line(8))
    new = (
        TraceBuilder()
        .segment(8 * MIB)
        .alloc(3 * MIB, frames=line(7))
        .alloc(4 * MIB, frames=line(9, "loss"))
    )
    found = compared(old, new)
    assert (found.allocated.more_bytes, found.reserved.more_bytes) == (4 * MIB, 0)
    assert rows_of(found) == [
        (None, 9, Difference.APPEARED, 4 * MIB),
        (7, 7, Difference.GREW, MIB),
        (8, None, Difference.GONE, -MIB),
    ]
    assert sum(row.more_bytes for row in found.lines) == found.allocated.more_bytes


@pytest.mark.parametrize("certain", [False, True])
def test_what_is_likely_is_counted_and_shown_unless_only_what_is_certain_counts(certain, tmp_path):
    path = tmp_path / "likely.pickle"
    path.write_bytes(pickle.dumps(job_of("does FORWARD, alloc MAIN").snapshot()))
    analysis = snapconv.load(path, certain=certain).analysis
    report = compare_files(analysis, analysis)
    assert (report.devices[0].likely.new_bytes > 0) is not certain
    shown = [one for one in diff_lines(report) if one.endswith("(unknown with --certain)")]
    assert len(shown) == (not certain)


def test_addresses_and_order_make_no_difference(compared):
    sizes = [(512, 7), (1024, 8), (4096, 9)]
    old, new = TraceBuilder().segment(), TraceBuilder().segment()
    for size, number in sizes:
        old.alloc(size, frames=line(number))
    new.alloc(2048, frames=line(3, "warm_up"))
    new.free()
    for size, number in reversed(sizes):
        new.alloc(size, frames=line(number))
    assert {row.difference for row in compared(old, new).lines} == {Difference.SAME}


def test_what_no_line_of_the_project_made_is_a_row_of_its_own(compared):
    other = [frame("run", "/usr/lib/python3/dist-packages/tool/run.py", 1)]
    old = TraceBuilder().segment().alloc(512, frames=other).alloc(512, frames=line(7))
    new = (
        TraceBuilder()
        .segment()
        .alloc(1536, frames=other)
        .alloc(512, frames=line(7))
        .alloc(3072, frames=[])
    )
    library, no_stack = (LIBRARY_ONLY, LIBRARY_ONLY), (NO_STACK, NO_STACK)
    rows = {row.name: (row.difference, row.more_bytes) for row in compared(old, new).lines}
    assert rows[library] == (Difference.GREW, 1024)
    assert rows[no_stack] == (Difference.APPEARED, 3072)


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
    new = (
        TraceBuilder()
        .segment()
        .alloc(512, frames=line(7, file="/mnt/ci/build/3/project/net.py")[:1])
    )
    assert rows_of(compared(old, new)) == [(7, 7, Difference.SAME, 0)]


def device(number, n_bytes=512):
    return TraceBuilder(number).segment(address=(number + 1) << 40).alloc(n_bytes)


@pytest.mark.parametrize(
    ("old", "new", "pairs", "only_old", "only_new"),
    [
        pytest.param((0, 1), (1, 2), [(1, 1)], [0], [2], id="those of one number"),
        pytest.param((0,), (3,), [(0, 3)], [], [], id="the only ones, whatever their numbers"),
    ],
)
def test_devices_are_paired(old, new, pairs, only_old, only_new, side_of):
    found = compare_files(side_of(*map(device, old)), side_of(*map(device, new)))
    assert [(one.old_device, one.new_device) for one in found.devices] == pairs
    assert (list(found.only_old), list(found.only_new)) == (only_old, only_new)


def test_devices_that_ran_out_of_memory_come_first_then_those_with_the_highest_peak(side_of):
    sizes = {0: 512, 1: 1024, 2: 4096, 3: 2048}
    old, new = ([device(*one) for one in sizes.items()] for _ in range(2))
    old[1].oom(4 * MIB, device_free=MIB)
    report = compare_files(side_of(*old), side_of(*new))
    assert [one["new_device"] for one in report.to_json()["devices"]] == [0, 1, 2, 3]
    assert [text[:6] for text in diff_lines(report) if text.startswith("cuda")] == [
        "cuda:1", "cuda:2", "cuda:3", "cuda:0"
    ]  # fmt: skip


def test_settings_that_differ_are_shown_and_no_others(side_of):
    builder = TraceBuilder().segment().alloc(512)
    old = side_of(builder, allocator_settings={"expandable_segments": False, "max_split_size": -1})
    new = side_of(builder, allocator_settings={"expandable_segments": True, "max_split_size": -1})
    report = compare_files(old, new)
    assert report.settings == (("expandable_segments", "False", "True"),)
    assert "  expandable_segments: False → True" in list(diff_lines(report))


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
            "has_stack": True,
            "difference": "grew",
            "old_bytes": 512,
            "new_bytes": 1024,
            "change_bytes": 512,
            "n_old": 1,
            "n_new": 1,
        }
    ]
    assert device["peak_allocated"] == {"old_bytes": 512, "new_bytes": 1024, "change_bytes": 512}


def code(file, function, **contents):
    """Lines by their numbers: ``_7="linear relu"``."""
    return {
        SourceLine(file, int(number[1:]), function): frozenset(words.split())
        for number, words in contents.items()
    }


def matched(old, new):
    """The numbers (or places, where files differ) of every match."""
    return {
        (before and before.line_number, after and after.line_number)
        for before, after in match_lines(old, new)
    }


def forward(**contents):
    return code("m.py", "forward", **contents)


BOTH = code("m.py", "f", _7="relu") | code("m.py", "g", _9="relu")


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        pytest.param(
            forward(_7="linear", _8="relu"),
            forward(_7="linear", _8="relu"),
            {(7, 7), (8, 8)},
            id="the same",
        ),
        pytest.param(
            forward(_7="linear", _8="relu", _9="linear"),
            forward(_9="linear", _10="relu", _11="linear"),
            {(7, 9), (8, 10), (9, 11)},
            id="lines below an insertion have moved",
        ),
        pytest.param(
            forward(_7="linear", _8="relu", _9="softmax"),
            forward(_7="linear", _8="dropout", _9="relu", _10="softmax"),
            {(7, 7), (None, 8), (8, 9), (9, 10)},
            id="an inserted line moves only those below",
        ),
        pytest.param(
            forward(_7="linear", _8="dropout", _9="relu"),
            forward(_7="linear", _8="relu"),
            {(7, 7), (8, None), (9, 8)},
            id="a removed line is gone",
        ),
        pytest.param(
            forward(_7="relu"), forward(_7="gelu"), {(7, 7)}, id="it does something else now"
        ),
        pytest.param(
            forward(_7="relu"), forward(_9="gelu"), {(7, None), (None, 9)}, id="another line"
        ),
        pytest.param(
            BOTH, code("m.py", "g", _7="relu"), {(7, None), (9, 7)}, id="functions are not mixed up"
        ),
        pytest.param(
            code("m.py", "f", _7="relu"),
            code("n.py", "g", _7="relu"),
            {(7, None), (None, 7)},
            id="a function is not looked for in other files",
        ),
    ],
)
def test_lines_are_matched_within_their_functions_in_order(old, new, expected):
    assert matched(old, new) == expected


def test_a_file_in_another_folder_is_the_same_file():
    ((before, after),) = match_lines(
        code("src/net/m.py", "f", _7="relu"), code("lib/m.py", "f", _9="relu")
    )
    assert (before.place, after.place) == ("src/net/m.py:7", "lib/m.py:9")


def test_a_file_of_that_name_with_other_functions_is_another():
    assert len(match_lines(code("a/m.py", "f", _7="relu"), code("b/m.py", "g", _7="relu"))) == 2


def test_two_files_that_may_be_it_are_none():
    new = code("b/m.py", "f", _7="relu") | code("c/m.py", "f", _7="relu")
    assert len(match_lines(code("a/m.py", "f", _7="relu"), new)) == 3


def test_a_file_that_is_still_there_is_not_another_one():
    old = code("a/m.py", "f", _7="relu")
    assert len(match_lines(old, old | code("b/m.py", "f", _7="relu"))) == 2


def test_a_function_of_very_many_lines_is_matched_by_its_numbers():
    many = code("m.py", "f", **{f"_{number}": "relu" for number in range(1, 1001)})
    assert matched(many, many) == {(number, number) for number in range(1, 1001)}


SOME_LINES = st.dictionaries(
    st.builds(
        SourceLine,
        st.sampled_from(["a/m.py", "b/m.py", "n.py"]),
        st.integers(1, 9),
        st.sampled_from("fg"),
    ),
    st.frozensets(st.sampled_from(["linear", "relu", "softmax"]), max_size=2),
    max_size=8,
)


@given(SOME_LINES, SOME_LINES)
def test_every_line_is_in_exactly_one_match(old, new):
    found = match_lines(old, new)
    assert sorted(before for before, _ in found if before) == sorted(old)
    assert sorted(after for _, after in found if after) == sorted(new)
    assert (None, None) not in found


@given(SOME_LINES)
def test_a_version_is_the_same_as_itself(lines):
    """Also where lines allocate nothing alike."""
    assert all(before == after for before, after in match_lines(lines, lines))
