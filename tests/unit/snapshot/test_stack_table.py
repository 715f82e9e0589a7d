"""Stacks and frames: one id for what is the same, by identity and by content."""

import json
from copy import deepcopy

import pytest

from snapconv.errors import MalformedSnapshotError
from snapconv.snapshot.stack_table import StackInterner
from tests.builders import frame

LEAF, ROOT = frame("leaf", "/p/a.py", 1), frame("root", "/p/b.py", 2)


def path(i: int) -> str:
    return f"device_traces[0][{i}]"


def intern(*stacks):
    interner = StackInterner()
    ids = interner.ids(deepcopy(stacks), path).tolist()  # it numbers the frames themselves
    return ids, interner.table()


class TestInterning:
    def test_a_stack_is_kept_leaf_first(self):
        ids, table = intern([LEAF, ROOT])
        assert ids == [0]
        assert [table.frames.names[i] for i in table.frames_of(0)] == ["leaf", "root"]
        assert table.frames.filenames == ("/p/a.py", "/p/b.py")
        assert table.frames.lines.tolist() == [1, 2]

    def test_one_list_in_many_places_is_one_stack(self):
        stack = [LEAF, ROOT]
        assert intern(stack, [ROOT], stack)[0] == [0, 1, 0]

    def test_lists_of_the_same_frames_are_one_stack(self):
        assert intern([LEAF, ROOT], [LEAF, ROOT])[0] == [0, 0]

    def test_equal_frames_are_one_frame_after_a_json_round_trip(self):
        ids, table = intern(*json.loads(json.dumps([[LEAF, ROOT], [LEAF, ROOT], [LEAF]])))
        assert ids == [0, 0, 1]
        assert len(table.frames) == 2

    @pytest.mark.parametrize("field", ["name", "filename", "line"])
    def test_frames_that_differ_in_one_field_are_two(self, field):
        other = {**LEAF, field: 9 if field == "line" else "other"}
        assert intern([LEAF], [other])[0] == [0, 1]

    def test_no_stack_is_minus_one_and_has_no_frames(self):
        ids, table = intern(None, [])
        assert ids == [-1, 0]
        assert len(table) == 1
        assert table.frames_of(-1).tolist() == []
        assert table.frames_of(0).tolist() == []

    def test_a_table_of_nothing_is_empty(self):
        table = StackInterner().table()
        assert (len(table), len(table.frames)) == (0, 0)
        assert table.offsets.tolist() == [0]

    def test_a_million_uses_of_a_thousand_stacks_cost_a_thousand_stacks(self):
        stacks = [[frame(line=i), ROOT] for i in range(1000)]
        ids, table = intern(*stacks * 100)
        assert len(ids) == 100_000
        assert len(table) == 1000
        assert len(table.frame_ids) == 2000


class TestLines:
    @pytest.mark.parametrize(
        ("line", "usable"),
        [(1, 1), (2**31 - 1, 2**31 - 1), (0, 0), (-1, 0), (2**31, 0), (2**64 - 1, 0), (None, 0)],
    )
    def test_a_line_that_cannot_be_is_0(self, line, usable):
        """CPython 3.13 reports unknown lines as -1, which torch shows as 2^64 - 1."""
        assert intern([{**LEAF, "line": line}])[1].frames.lines.tolist() == [usable]


class TestFields:
    def test_missing_fields_are_empty(self):
        frames = intern([{}])[1].frames
        assert (frames.names, frames.filenames, frames.lines.tolist()) == (("",), ("",), [0])

    def test_texts_longer_than_any_path_are_cut(self):
        frames = intern([{**LEAF, "name": "n" * 5000, "filename": "f" * 5000}])[1].frames
        assert (len(frames.names[0]), len(frames.filenames[0])) == (4096, 4096)


class TestWhatIsRefused:
    @pytest.mark.parametrize(
        ("stack", "message"),
        [
            ("frames", "device_traces[0][1].frames: expected list, got str"),
            ((LEAF,), "device_traces[0][1].frames: expected list, got tuple"),
            ({"name": "x"}, "device_traces[0][1].frames: expected list, got dict"),
            ([LEAF, "leaf"], "device_traces[0][1].frames[1]: expected dict, got str"),
            ([LEAF, None], "device_traces[0][1].frames[1]: expected dict, got nothing"),
            ([{**LEAF, "name": 1}], "device_traces[0][1].frames[0].name: expected str, got int"),
            (
                [{**LEAF, "filename": b"x"}],
                "device_traces[0][1].frames[0].filename: expected str, got bytes",
            ),
            ([{**LEAF, "line": "1"}], "device_traces[0][1].frames[0].line: expected int, got str"),
            (
                [{**LEAF, "line": 1.0}],
                "device_traces[0][1].frames[0].line: expected int, got float",
            ),
            (
                [{**LEAF, "line": True}],
                "device_traces[0][1].frames[0].line: expected int, got bool",
            ),
        ],
    )
    def test_a_wrong_type_is_refused_with_the_path(self, stack, message):
        with pytest.raises(MalformedSnapshotError) as caught:
            intern([LEAF], stack)
        assert str(caught.value) == message

    def test_a_list_that_holds_itself_is_no_stack(self):
        stack = []
        stack.append(stack)
        with pytest.raises(MalformedSnapshotError, match=r"frames\[0\]: expected dict, got list"):
            intern(stack)
