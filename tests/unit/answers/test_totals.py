"""Sums of live memory: what is likely, what is one of two categories, and equal modules."""

import pytest

from snapconv.answers.totals import (
    EITHER_LABEL,
    CategoryTotal,
    ModuleTotal,
    group_modules,
    likely_words,
    rows_of_summary,
)


@pytest.mark.parametrize(
    ("likely_bytes", "words"),
    [(0, ""), (9, ""), (512, "512 B of it likely"), (1024, "likely"), (1015, "likely")],
)
def test_a_sum_shows_how_much_of_it_is_likely(likely_bytes, words):
    assert likely_words(1024, likely_bytes) == words


def test_what_is_one_of_two_categories_is_a_row_beside_the_unknown():
    categories = (CategoryTotal("weight", 1, 8, 512, likely_bytes=512), CategoryTotal("unknown", 3, 24, 1536))
    either = CategoryTotal(EITHER_LABEL, 2, 16, 1024)
    assert rows_of_summary(categories, either) == (categories[0], CategoryTotal("unknown", 1, 8, 512), either)


def total(module: str, block_bytes: int, n_allocations: int = 1, evidence: str = "metadata") -> ModuleTotal:
    return ModuleTotal(module, evidence, n_allocations, block_bytes)


def rows(*totals: ModuleTotal) -> list[tuple[str, int]]:
    return [(label, n_bytes) for n_bytes, label in group_modules(totals)]


def test_layers_of_equal_size_are_one_row_with_their_number():
    layers = [total(f"blocks.{i}.mlp", 500) for i in range(12)]
    assert rows(total("head", 700), *layers) == [("blocks.*.mlp, 12 modules", 6000), ("head", 700)]


def test_a_layer_of_another_size_has_its_own_row():
    layers = [total(f"blocks.{i}", 500) for i in range(3)]
    assert rows(*layers, total("blocks.3", 900)) == [("blocks.*, 3 modules", 1500), ("blocks.3", 900)]


def test_a_layer_with_more_allocations_has_its_own_row():
    layers = [total(f"blocks.{i}", 500) for i in range(3)]
    assert ("blocks.3", 500) in rows(*layers, total("blocks.3", 500, n_allocations=2))


def test_numbers_within_numbers_are_one_row():
    blocks = [total(f"stages.{i}.blocks.{j}", 10) for i in range(2) for j in range(3)]
    assert rows(*blocks) == [("stages.*.blocks.*, 6 modules", 60)]


def test_stages_of_unequal_length_are_one_row_and_a_number_that_all_have_stays():
    blocks = [total(f"stages.{i}.blocks.{j}", 10) for i, n in ((0, 2), (1, 3)) for j in range(n)]
    assert rows(*blocks) == [("stages.*.blocks.*, 5 modules", 50)]
    assert rows(*blocks[2:]) == [("stages.1.blocks.*, 3 modules", 30)]


def test_names_that_are_lines_stay_as_they_are():
    lines = [total(f"model.py:{i} < train.py:5", 500, evidence="frames") for i in range(3)]
    assert rows(*lines) == [(f"model.py:{i} < train.py:5", 500) for i in range(3)]
