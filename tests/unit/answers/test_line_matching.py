"""Lines of two versions of a program: which is which, by file, function, order and what they allocate."""

from hypothesis import given
from hypothesis import strategies as st

from snapconv.answers.line_matching import match_lines
from snapconv.stacks.project_lines import SourceLine


def lines(file, function, **contents):
    """Lines by their numbers: ``_7="linear relu"``."""
    return {
        SourceLine(file, int(number[1:]), function): frozenset(words.split())
        for number, words in contents.items()
    }


def matched(old, new):
    """The numbers (or places, where files differ) of every match."""
    return {
        (match.old and match.old.line_number, match.new and match.new.line_number)
        for match in match_lines(old, new)
    }


def test_a_line_that_stays_is_the_same():
    old = lines("m.py", "forward", _7="linear", _8="relu")
    assert matched(old, old) == {(7, 7), (8, 8)}
    assert not any(match.is_moved for match in match_lines(old, old))


def test_lines_below_an_insertion_have_moved():
    old = lines("m.py", "forward", _7="linear", _8="relu", _9="linear")
    new = lines("m.py", "forward", _9="linear", _10="relu", _11="linear")
    assert matched(old, new) == {(7, 9), (8, 10), (9, 11)}


def test_an_inserted_line_appears_and_moves_only_those_below():
    old = lines("m.py", "forward", _7="linear", _8="relu", _9="softmax")
    new = lines("m.py", "forward", _7="linear", _8="dropout", _9="relu", _10="softmax")
    assert matched(old, new) == {(7, 7), (None, 8), (8, 9), (9, 10)}


def test_a_removed_line_is_gone():
    old = lines("m.py", "forward", _7="linear", _8="dropout", _9="relu")
    new = lines("m.py", "forward", _7="linear", _8="relu")
    assert matched(old, new) == {(7, 7), (8, None), (9, 8)}


def test_a_line_that_does_something_else_now_is_still_that_line():
    assert matched(lines("m.py", "f", _7="relu"), lines("m.py", "f", _7="gelu")) == {(7, 7)}


def test_another_line_that_does_something_else_is_another():
    assert matched(lines("m.py", "f", _7="relu"), lines("m.py", "f", _9="gelu")) == {(7, None), (None, 9)}


def test_functions_are_not_mixed_up():
    both = lines("m.py", "f", _7="relu") | lines("m.py", "g", _9="relu")
    assert matched(both, lines("m.py", "g", _7="relu")) == {(7, None), (9, 7)}
    assert matched(lines("m.py", "f", _7="relu"), lines("m.py", "g", _7="gelu")) == {(7, None), (None, 7)}


def test_a_function_with_another_name_is_the_same_where_it_allocates_the_same():
    old = lines("m.py", "attend", _7="linear", _8="softmax") | lines("m.py", "main", _40="zeros")
    new = lines("m.py", "attention", _17="linear", _18="softmax") | lines("m.py", "main", _50="zeros")
    assert matched(old, new) == {(7, 17), (8, 18), (40, 50)}


def test_of_two_new_functions_that_allocate_the_same_none_is_the_old_one():
    new = lines("m.py", "g", _7="relu") | lines("m.py", "h", _9="relu")
    assert matched(lines("m.py", "f", _7="relu"), new) == {(7, None), (None, 7), (None, 9)}


def test_a_function_is_not_looked_for_in_other_files():
    assert matched(lines("m.py", "f", _7="relu"), lines("n.py", "g", _7="relu")) == {(7, None), (None, 7)}


def test_a_file_in_another_folder_is_the_same_file():
    (match,) = match_lines(lines("src/net/m.py", "f", _7="relu"), lines("lib/m.py", "f", _9="relu"))
    assert (match.old.place, match.new.place) == ("src/net/m.py:7", "lib/m.py:9")
    assert match.is_moved


def test_a_file_of_that_name_with_other_functions_is_another():
    assert len(match_lines(lines("a/m.py", "f", _7="relu"), lines("b/m.py", "g", _7="relu"))) == 2


def test_two_files_that_may_be_it_are_none():
    new = lines("b/m.py", "f", _7="relu") | lines("c/m.py", "f", _7="relu")
    assert len(match_lines(lines("a/m.py", "f", _7="relu"), new)) == 3


def test_a_file_that_is_still_there_is_not_another_one():
    old = lines("a/m.py", "f", _7="relu")
    assert len(match_lines(old, old | lines("b/m.py", "f", _7="relu"))) == 2


def test_a_function_of_very_many_lines_is_matched_by_its_numbers():
    many = lines("m.py", "f", **{f"_{number}": "relu" for number in range(1, 1001)})
    assert matched(many, many) == {(number, number) for number in range(1, 1001)}


SOME_LINES = st.dictionaries(
    st.builds(
        SourceLine, st.sampled_from(["a/m.py", "b/m.py", "n.py"]), st.integers(1, 9), st.sampled_from("fg")
    ),
    st.frozensets(st.sampled_from(["linear", "relu", "softmax"]), max_size=2),
    max_size=8,
)


@given(SOME_LINES, SOME_LINES)
def test_every_line_is_in_exactly_one_match(old, new):
    found = match_lines(old, new)
    assert sorted(match.old for match in found if match.old) == sorted(old)
    assert sorted(match.new for match in found if match.new) == sorted(new)
    assert all(match.old or match.new for match in found)


@given(SOME_LINES)
def test_a_version_is_the_same_as_itself(lines):
    """Also where lines allocate nothing alike."""
    assert all(match.old == match.new for match in match_lines(lines, lines))
