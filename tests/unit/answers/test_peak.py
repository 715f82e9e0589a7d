"""The memory of a moment: what is not torch's, what is likely or one of two categories, and equal modules."""

import pickle
from pathlib import Path

import pytest

import snapconv
from snapconv.answers.peak import (
    EITHER_LABEL,
    CategoryTotal,
    ModuleTotal,
    device_memory,
    group_modules,
    likely_words,
    rows_of_summary,
)
from tests.builders import MIB, TraceBuilder

FIXTURES = Path(__file__).parents[3] / "fixtures"


TEXT = (
    "CUDA out of memory. Tried to allocate 30.00 MiB. GPU 0 has a total capacity of 300.00 MiB "
    "of which"
)
RECORDED = {"devices": [{"device": 0, "total_bytes": 200 * MIB, "max_memory_allocated": 1}]}
NAMES = ("total_bytes", "free_bytes", "outside_bytes", "at_most_bytes", "measured_event")


@pytest.mark.parametrize(
    ("event", "given", "recorded", "expected"),
    [
        pytest.param(2, 100, {}, (100, 4, 76, 72, 2), id="what is neither free nor reserved"),
        pytest.param(3, 100, {}, (100, None, 76, 72, 2), id="elsewhere: that of the failure"),
        pytest.param(2, None, {}, (None, 4, None, None, 2), id="without a total"),
        pytest.param(2, None, RECORDED, (200, 4, 176, 172, 2), id="as recorded"),
        pytest.param(
            2,
            None,
            {"ended": {"how": "oom", "detail": TEXT}},
            (300, 4, 276, 272, 2),
            id="as torch's own message has it",
        ),
    ],
)
def test_the_memory_of_a_device_outside_torch(tmp_path, event, given, recorded, expected):
    trace = TraceBuilder().segment(20 * MIB).alloc(MIB).oom(30 * MIB, 4 * MIB).segment(8 * MIB)
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(
        pickle.dumps(
            trace.snapshot(**({"snapconv": {"version": 1, **recorded}} if recorded else {}))
        )
    )
    found = device_memory(snapconv.load(path).devices[0], event, given_total=given and given * MIB)
    values = [getattr(found, name) for name in NAMES]
    in_mib = [value // MIB if isinstance(value, int) else value for value in values[:-1]]
    assert (*in_mib, values[-1]) == expected


def test_a_simulated_device_has_nothing_outside():
    session = snapconv.load(FIXTURES / "transformer.capture")
    assert device_memory(session.devices[0], 0).is_simulated


@pytest.mark.parametrize(
    ("likely_bytes", "words"),
    [(0, ""), (9, ""), (512, "512 B of it only likely"), (1024, "likely"), (1015, "likely")],
)
def test_a_sum_shows_how_much_of_it_is_likely(likely_bytes, words):
    assert likely_words(1024, likely_bytes) == words


def test_what_is_one_of_two_categories_is_a_row_beside_the_unknown():
    categories = (
        CategoryTotal("weight", 1, 8, 512, likely_bytes=512),
        CategoryTotal("unknown", 3, 24, 1536),
    )
    either = CategoryTotal(EITHER_LABEL, 2, 16, 1024)
    assert rows_of_summary(categories, either) == (
        categories[0],
        CategoryTotal("unknown", 1, 8, 512),
        either,
    )


def total(
    module: str, block_bytes: int, n_allocations: int = 1, evidence: str = "metadata"
) -> ModuleTotal:
    return ModuleTotal(module, evidence, n_allocations, block_bytes)


def rows(*totals: ModuleTotal) -> list[tuple[str, int]]:
    return [(label, n_bytes) for n_bytes, label in group_modules(totals)]


def test_layers_of_equal_size_are_one_row_with_their_number():
    layers = [total(f"blocks.{i}.mlp", 500) for i in range(12)]
    assert rows(total("head", 700), *layers) == [("blocks.*.mlp, 12 modules", 6000), ("head", 700)]


def test_a_layer_of_another_size_has_its_own_row():
    layers = [total(f"blocks.{i}", 500) for i in range(3)]
    assert rows(*layers, total("blocks.3", 900)) == [
        ("blocks.*, 3 modules", 1500),
        ("blocks.3", 900),
    ]


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
