"""Stacks whose size is in proportion to their file."""

import numpy as np

from snapconv.snapshot.stack_table import MAX_DEPTH, StackInterner, StackTable, bound_stacks

LARGE = 1 << 30


def stacks_of(*stacks: list[dict]) -> StackTable:
    interner = StackInterner()
    interner.ids(stacks, lambda i: f"stack {i}")
    return interner.table()


def frame(line: int, **fields) -> dict:
    return {"name": "f", "filename": "train.py", "line": line, **fields}


def lines(stacks: StackTable, stack_id: int) -> list[int]:
    return stacks.frames.lines[stacks.frames_of(stack_id)].tolist()


class TestDepth:
    def test_a_deep_stack_keeps_both_of_its_ends(self):
        deep = [frame(n) for n in range(1, MAX_DEPTH + 101)]
        stacks, notes = bound_stacks(stacks_of(deep[:5], deep, deep[-3:]), LARGE)
        half = MAX_DEPTH // 2
        assert lines(stacks, 1) == [*range(1, half + 1), *range(half + 101, MAX_DEPTH + 101)]
        assert (lines(stacks, 0), lines(stacks, 2)) == (
            [1, 2, 3, 4, 5],
            [MAX_DEPTH + n for n in (98, 99, 100)],
        )
        assert "of 1 stacks" in notes[0].message

    def test_the_deepest_that_is_allowed_is_whole(self):
        stacks, notes = bound_stacks(stacks_of([frame(n) for n in range(1, MAX_DEPTH + 1)]), LARGE)
        assert len(lines(stacks, 0)) == MAX_DEPTH
        assert notes == ()


class TestTexts:
    def test_long_texts_of_many_frames_are_cut_to_what_the_file_pays_for(self):
        """20,000 frames share a path of 4,000 characters: 80 MB as a table, from a file of 100 kB."""
        path = "/" + "d" * 3990 + "/model.py"
        table = stacks_of([frame(n, filename=path) for n in range(20_000)])
        stacks, notes = bound_stacks(table, 100_000)
        frames = stacks.frames
        assert sum(map(len, frames.names + frames.filenames)) <= 4 * 100_000 + (512 << 10)
        assert set(frames.names) == {"f"}
        assert all(len(name) > 20 and name.endswith("d/model.py") for name in frames.filenames)
        assert f"cut to {len(frames.filenames[0])} bytes" in notes[-1].message

    def test_they_stay_whole_where_the_file_has_them(self):
        table = stacks_of([frame(n, filename=f"/{n}" + "d" * 4000 + ".py") for n in range(300)])
        stacks, notes = bound_stacks(table, 300 * 4000)
        assert stacks.frames == table.frames or stacks.frames.filenames == table.frames.filenames
        assert notes == ()

    def test_short_texts_stay_whole_beside_long_ones(self):
        long = [frame(n, name="n" * 4000) for n in range(1000)]
        stacks, _ = bound_stacks(stacks_of([*long, frame(5000, name="forward")]), 1000)
        assert stacks.frames.names[-1] == "forward"
        assert len(stacks.frames.names[0]) < 1000

    def test_a_cut_leaves_no_half_of_a_character(self):
        table = stacks_of(
            [frame(n, name="é" * 3000, filename="ü" * 3000 + ".py") for n in range(999)]
        )
        stacks, _ = bound_stacks(table, 1000)
        assert set(stacks.frames.names[0]) == {"é"}
        assert set(stacks.frames.filenames[0].removesuffix(".py")) == {"ü"}


def test_what_is_within_the_bounds_is_the_same_table():
    table = stacks_of([frame(1), frame(2)], [])
    stacks, notes = bound_stacks(table, 0)
    assert notes == ()
    assert np.array_equal(stacks.frame_ids, table.frame_ids)
    assert np.array_equal(stacks.offsets, table.offsets)
    assert stacks.frames.names == table.frames.names
