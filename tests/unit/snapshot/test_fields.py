"""Columns out of dictionaries: what a field may be, and the path of the first one that is wrong."""

import subprocess
import sys

import numpy as np
import pytest

from snapconv.errors import MalformedSnapshotError
from snapconv.snapshot.fields import BYTES, Interner, Rows, check_range, check_total, reject_shared
from snapconv.units import shown


def row_path(i: int) -> str:
    return f"rows[{i}]"


def rows(*values, key="n"):
    """One dictionary per value; an ellipsis stands for a missing key."""
    return Rows([{} if value is ... else {key: value} for value in values], row_path)


class TestInts:
    def test_integers_become_int64(self):
        column = rows(1, -1, 2**63 - 1, -(2**63)).ints("n")
        assert column.dtype == np.int64
        assert column.tolist() == [1, -1, 2**63 - 1, -(2**63)]

    def test_a_column_with_one_unsigned_value_wraps_that_one(self):
        assert rows(5, 2**64 - 2).ints("n").tolist() == [5, -2]

    @pytest.mark.parametrize("value", [2**64, -(2**63) - 1, 10**100])
    def test_more_than_64_bits_are_refused_with_the_path(self, value):
        with pytest.raises(
            MalformedSnapshotError, match=r"^rows\[1\]\.n: an integer of more than 64 bits$"
        ):
            rows(1, value).ints("n")

    @pytest.mark.parametrize(
        ("value", "got"),
        [
            ("1", "str"),
            (1.0, "float"),
            (True, "bool"),
            ([], "list"),
            ({}, "dict"),
            (..., "nothing"),
            (None, "nothing"),
        ],
    )
    def test_what_is_no_integer_is_refused_with_the_path(self, value, got):
        with pytest.raises(
            MalformedSnapshotError, match=rf"^rows\[2\]\.n: expected int, got {got}$"
        ):
            rows(1, 2, value, 3).ints("n")

    def test_a_missing_value_is_filled_where_there_is_a_filler(self):
        assert rows(1, ..., None).ints("n", missing=-7).tolist() == [1, -7, -7]

    @pytest.mark.parametrize("missing", [None, 0])
    def test_a_key_that_no_row_has_is_no_column(self, missing):
        assert rows(..., None).optional_ints("n", missing=missing) is None

    def test_a_required_key_that_no_row_has_is_an_error(self):
        with pytest.raises(
            MalformedSnapshotError, match=r"^rows\[0\]\.n: expected int, got nothing$"
        ):
            rows(..., ...).ints("n")

    def test_a_required_key_of_no_rows_is_an_empty_column(self):
        assert rows().ints("n").tolist() == []


class TestBounds:
    @pytest.mark.parametrize("value", [-1, 2**48 + 1, 2**63 - 1])
    def test_a_size_out_of_bounds_is_refused_with_the_path(self, value):
        with pytest.raises(
            MalformedSnapshotError,
            match=rf"^rows\[1\]\.size: expected 0 to 2\^48 bytes, got {value}$",
        ):
            check_range(np.array([512, value]), BYTES, "size", row_path=row_path)

    def test_sizes_within_the_bounds_pass(self):
        check_range(np.array([0, 512, 2**48]), BYTES, "size", row_path=row_path)
        check_range(None, BYTES, "size", row_path=row_path)

    def test_only_the_marked_rows_are_looked_at(self):
        column = np.array([-1, 5, -1])
        check_range(column, BYTES, "size", row_path=row_path, among=np.array([False, True, False]))
        with pytest.raises(MalformedSnapshotError, match=r"rows\[2\]"):
            check_range(
                column, BYTES, "size", row_path=row_path, among=np.array([False, True, True])
            )

    def test_a_sum_that_could_overflow_is_refused(self):
        check_total(np.full(8192, 2**48), "rows")
        with pytest.raises(
            MalformedSnapshotError, match=r"^rows: the sizes add up to more than 2\^61 bytes$"
        ):
            check_total(np.full(8193, 2**48), "rows")


class TestTexts:
    def test_equal_texts_share_an_id_across_columns(self):
        interner = Interner()
        assert rows("a", "b", "a").text_ids("n", interner).tolist() == [0, 1, 0]
        assert rows("c", ..., "b").text_ids("n", interner).tolist() == [2, -1, 1]
        assert interner.values() == ("a", "b", "c")

    def test_ids_follow_the_first_appearance_in_every_process(self):
        """The order of a set of strings changes with the seed of their hash."""
        program = (
            "from snapconv.snapshot.fields import Interner\n"
            "print(Interner().ids([str(i) for i in range(50)]).tolist() == list(range(50)))"
        )
        for seed in ("1", "2"):
            done = subprocess.run(
                [sys.executable, "-c", program],
                env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
                capture_output=True,
                text=True,
                check=True,
            )
            assert done.stdout == "True\n"

    def test_a_key_that_no_row_has_is_no_column(self):
        assert rows(..., None).text_ids("n", Interner()) is None

    @pytest.mark.parametrize(
        ("value", "got"), [(1, "int"), (b"x", "bytes"), ([], "list"), ({}, "dict")]
    )
    def test_what_is_no_text_is_refused_with_the_path(self, value, got):
        with pytest.raises(
            MalformedSnapshotError, match=rf"^rows\[1\]\.n: expected str, got {got}$"
        ):
            rows("a", value).text_ids("n", Interner())


class TestPools:
    def test_pairs_may_be_tuples_or_lists(self):
        interner = Interner()
        assert rows((0, 0), [0, 1], ..., [0, 0]).pool_ids("n", interner).tolist() == [
            0,
            1,
            -1,
            0,
        ]
        assert interner.values() == ((0, 0), (0, 1))

    def test_a_key_that_no_row_has_is_no_column(self):
        assert rows(..., None).pool_ids("n", Interner()) is None

    @pytest.mark.parametrize(
        "value",
        [
            0,
            "00",
            (),
            (0,),
            (0, 0, 0),
            (0, 0.0),
            (0, True),
            (0, None),
            [[], []],
            {0: 0, 1: 1},
            (0, -1),
            (2**32, 0),
        ],
        ids=repr,
    )
    def test_what_is_no_pair_of_small_ints_is_refused_with_the_path(self, value):
        with pytest.raises(
            MalformedSnapshotError, match=r"^rows\[1\]\.n: expected a pair of ints from 0 to 2\^32"
        ):
            rows((0, 0), value).pool_ids("n", Interner())


class TestRows:
    def test_rows_must_be_dictionaries(self):
        with pytest.raises(MalformedSnapshotError, match=r"^rows\[1\]: expected dict, got list$"):
            Rows([{}, []], row_path)


class TestShared:
    def test_one_list_in_two_places_is_refused_with_both(self):
        shared = [1]
        with pytest.raises(
            MalformedSnapshotError, match=r"^rows\[2\] is the same list as rows\[1\];"
        ):
            reject_shared([[1], shared, shared], row_path)

    def test_equal_lists_and_one_empty_list_in_two_places_pass(self):
        empty = []
        reject_shared([[1], [1], empty, empty], row_path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("plain ünïcode", "plain ünïcode"),
        ("a\nb\x00\x7f", r"a\nb\x00\x7f"),
        ("\x1b]0;title\x07", r"\x1b]0;title\x07"),
        ("\ud800\u202e", r"\ud800\u202e"),
        ("x" * 80, "x" * 80),
        ("x" * 81, "x" * 80 + "…"),
    ],
)
def test_a_text_from_the_file_is_shown_short_and_harmless(text, said):
    assert shown(text) == said
