"""The frames of a report's entries, in proportion to its file."""

from snapconv.answers.memory_report import ActivationEntry
from snapconv.answers.report_frames import left_out_note, n_frames_of_an_end, with_fewer_frames
from snapconv.stacks.project_lines import MAX_LINES_OF_AN_END, SourceLine


def entries(n: int, n_frames: int) -> tuple[ActivationEntry, ...]:
    frames = tuple(SourceLine("model/" + "x" * 78, line, "forward") for line in range(1, n_frames + 1))
    return (ActivationEntry("linear", 512, frames),) * n


def test_frames_stay_whole_where_they_are_in_proportion():
    few = entries(10, 50)
    assert n_frames_of_an_end(few, 1000) == MAX_LINES_OF_AN_END
    assert with_fewer_frames(few, MAX_LINES_OF_AN_END) is few


def test_each_entry_keeps_as_many_of_each_end_as_fit():
    """A row is counted as 100 bytes; 8 × 100,000 bytes and 256 KiB hold 10,621 rows: 10 for each of 1,000."""
    many = entries(1000, 100)
    n = n_frames_of_an_end(many, 100_000)
    assert n == 4
    kept = with_fewer_frames(many, n)
    assert [frame.line_number for frame in kept[-1].frames] == [1, 2, 3, 4, 97, 98, 99, 100]


def test_where_not_even_one_fits_an_entry_has_none():
    assert n_frames_of_an_end(entries(10_000, 3), 0) == 0
    assert with_fewer_frames(entries(1, 3), 0)[0].frames == ()


def test_the_note_says_what_is_written():
    (note,) = left_out_note(4, n_cut_stacks=0, device=1)
    assert (note.slug, note.device) == ("left-out", 1)
    assert "the 4 innermost and the 4 outermost" in note.message
    (note,) = left_out_note(MAX_LINES_OF_AN_END, n_cut_stacks=7, device=0)
    assert "of 7 deep stacks" in note.message
    assert "none" in left_out_note(0, n_cut_stacks=0, device=0)[0].message
    assert left_out_note(MAX_LINES_OF_AN_END, n_cut_stacks=0, device=0) == ()
