"""Columns out of dictionaries: what a field may be, and the path of the first one that is wrong."""

import subprocess
import sys
from collections import Counter
from typing import Any

import numpy as np
import pytest

from snapconv.errors import MalformedSnapshotError
from snapconv.snapshot import fields
from snapconv.snapshot.fields import (
    BYTES,
    Interner,
    check_range,
    check_total,
    expect_dicts,
    int_column,
    pool_column,
    present_keys,
    reject_shared,
    required_int_column,
    text_column,
    wrap_int64,
)
from snapconv.units import shown


def path(i: int) -> str:
    return f"rows[{i}]"


def rows(*values, key="n"):
    """One dictionary per value; an ellipsis stands for a missing key."""
    return [{} if value is ... else {key: value} for value in values]


class TestInts:
    def test_integers_become_int64(self):
        column = int_column(rows(1, -1, 2**63 - 1, -(2**63)), "n", path=path)
        assert column.dtype == np.int64
        assert column.tolist() == [1, -1, 2**63 - 1, -(2**63)]

    @pytest.mark.parametrize(
        ("value", "wrapped"),
        [
            (2**63 - 1, 2**63 - 1),
            (2**63, -(2**63)),
            (18446720620317114368, 18446720620317114368 - 2**64),
            (2**64 - 1, -1),
            (2**64, 2**64),
        ],
    )
    def test_an_address_above_2_63_wraps_to_a_negative_one(self, value, wrapped):
        assert wrap_int64(value) == wrapped

    def test_a_column_with_one_unsigned_value_wraps_that_one(self):
        assert int_column(rows(5, 2**64 - 2), "n", path=path).tolist() == [5, -2]

    @pytest.mark.parametrize("value", [2**64, -(2**63) - 1, 10**100])
    def test_more_than_64_bits_are_refused_with_the_path(self, value):
        with pytest.raises(MalformedSnapshotError, match=r"^rows\[1\]\.n: an integer of more than 64 bits$"):
            int_column(rows(1, value), "n", path=path)

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
        with pytest.raises(MalformedSnapshotError, match=rf"^rows\[2\]\.n: expected int, got {got}$"):
            int_column(rows(1, 2, value, 3), "n", path=path)

    def test_a_missing_value_is_filled_where_there_is_a_filler(self):
        assert int_column(rows(1, ..., None), "n", path=path, missing=-7).tolist() == [1, -7, -7]

    @pytest.mark.parametrize("missing", [None, 0])
    def test_a_key_that_no_row_has_is_no_column(self, missing):
        assert int_column(rows(..., None), "n", path=path, missing=missing) is None

    def test_a_required_key_that_no_row_has_is_an_error(self):
        with pytest.raises(MalformedSnapshotError, match=r"^rows\[0\]\.n: expected int, got nothing$"):
            required_int_column(rows(..., ...), "n", path=path)

    def test_a_required_key_of_no_rows_is_an_empty_column(self):
        assert required_int_column([], "n", path=path).tolist() == []


class TestBounds:
    @pytest.mark.parametrize("value", [-1, 2**48 + 1, 2**63 - 1])
    def test_a_size_out_of_bounds_is_refused_with_the_path(self, value):
        with pytest.raises(
            MalformedSnapshotError, match=rf"^rows\[1\]\.size: expected 0 to 2\^48 bytes, got {value}$"
        ):
            check_range(np.array([512, value]), BYTES, "size", path=path)

    def test_sizes_within_the_bounds_pass(self):
        check_range(np.array([0, 512, 2**48]), BYTES, "size", path=path)
        check_range(None, BYTES, "size", path=path)

    def test_only_the_marked_rows_are_looked_at(self):
        column = np.array([-1, 5, -1])
        check_range(column, BYTES, "size", path=path, where=np.array([False, True, False]))
        with pytest.raises(MalformedSnapshotError, match=r"rows\[2\]"):
            check_range(column, BYTES, "size", path=path, where=np.array([False, True, True]))

    def test_a_sum_that_could_overflow_is_refused(self):
        check_total(np.full(8192, 2**48), "rows")
        with pytest.raises(
            MalformedSnapshotError, match=r"^rows: the sizes add up to more than 2\^61 bytes$"
        ):
            check_total(np.full(8193, 2**48), "rows")


class TestTexts:
    def test_equal_texts_share_an_id_across_columns(self):
        interner = Interner()
        assert text_column(rows("a", "b", "a"), "n", interner, path=path).tolist() == [0, 1, 0]
        assert text_column(rows("c", ..., "b"), "n", interner, path=path).tolist() == [2, -1, 1]
        assert interner.values() == ("a", "b", "c")

    def test_ids_follow_the_first_appearance_in_every_process(self):
        """The order of a set of strings changes with the seed of their hash."""
        program = (
            "from snapconv.snapshot.fields import Interner, text_column\n"
            "rows = [{'n': str(i)} for i in range(50)]\n"
            "print(text_column(rows, 'n', Interner(), path=str).tolist() == list(range(50)))"
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
        assert text_column(rows(..., None), "n", Interner(), path=path) is None

    @pytest.mark.parametrize(("value", "got"), [(1, "int"), (b"x", "bytes"), ([], "list"), ({}, "dict")])
    def test_what_is_no_text_is_refused_with_the_path(self, value, got):
        with pytest.raises(MalformedSnapshotError, match=rf"^rows\[1\]\.n: expected str, got {got}$"):
            text_column(rows("a", value), "n", Interner(), path=path)


class TestPools:
    def test_pairs_may_be_tuples_or_lists(self):
        interner = Interner()
        assert pool_column(rows((0, 0), [0, 1], ..., [0, 0]), "n", interner, path=path).tolist() == [
            0,
            1,
            -1,
            0,
        ]
        assert interner.values() == ((0, 0), (0, 1))

    def test_a_key_that_no_row_has_is_no_column(self):
        assert pool_column(rows(..., None), "n", Interner(), path=path) is None

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
            pool_column(rows((0, 0), value), "n", Interner(), path=path)


class TestKeys:
    def test_unknown_keys_are_counted_once_per_row(self):
        unknown = Counter()
        keys = present_keys([{"a": 1, "x": 1}, {"x": 2}, {"b": 3}], frozenset("ab"), unknown)
        assert keys == {"a", "b", "x"}
        assert unknown == {"x": 2}

    def test_known_keys_and_those_that_are_no_text_are_not_counted(self):
        unknown = Counter()
        odd: Any = {"a": 1, 5: 1, None: 2, b"x": 3}
        present_keys([odd], frozenset("a"), unknown)
        assert unknown == {}

    def test_a_long_or_dangerous_key_is_cut_and_escaped(self):
        unknown = Counter()
        present_keys([{"\x1b[2J" + "k" * 1000: 1}], frozenset(), unknown)
        assert list(unknown) == [r"\x1b[2J" + "k" * 76 + "…"]

    def test_a_huge_dictionary_in_many_places_is_walked_once(self, monkeypatch):
        huge: dict[str, object] = {str(i): i for i in range(fields._MANY_KEYS + 1)}
        unknown = Counter()
        present_keys([huge] * 1000, frozenset(), unknown)
        assert unknown["0"] == 1

    def test_rows_must_be_dictionaries(self):
        expect_dicts([{}, {}], path)
        with pytest.raises(MalformedSnapshotError, match=r"^rows\[1\]: expected dict, got list$"):
            expect_dicts([{}, []], path)


class TestShared:
    def test_one_list_in_two_places_is_refused_with_both(self):
        shared = [1]
        with pytest.raises(MalformedSnapshotError, match=r"^rows\[2\] is the same list as rows\[1\];"):
            reject_shared([[1], shared, shared], path)

    def test_equal_lists_and_one_empty_list_in_two_places_pass(self):
        empty = []
        reject_shared([[1], [1], empty, empty], path)


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
