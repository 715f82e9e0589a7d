"""What is said of a moment: groups of modules, and memory that is not torch's."""

import pickle
from pathlib import Path

import snapconv
from snapconv.answers.peak import device_memory
from snapconv.answers.totals import ModuleTotal, group_modules
from tests.builders import MIB, TraceBuilder


def total(module: str, block_bytes: int, n_allocations: int = 1, evidence: str = "metadata") -> ModuleTotal:
    return ModuleTotal(module, evidence, n_allocations, block_bytes)


def rows(*totals: ModuleTotal) -> list[tuple[str, int]]:
    return [(group.label, group.block_bytes) for group in group_modules(totals)]


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


def test_a_stage_that_has_more_blocks_is_a_row_too():
    """Two stages have blocks 0 and 1, and one of them block 2."""
    blocks = [total(f"stages.{i}.blocks.{j}", 10) for i, n in ((0, 2), (1, 3)) for j in range(n)]
    assert sum(n_bytes for _, n_bytes in rows(*blocks)) == 50
    assert rows(*blocks) == [("stages.*.blocks.*, 4 modules", 40), ("stages.1.blocks.2", 10)]


def test_names_that_are_lines_stay_as_they_are():
    lines = [total(f"model.py:{i} < train.py:5", 500, evidence="frames") for i in range(3)]
    assert rows(*lines) == [(f"model.py:{i} < train.py:5", 500) for i in range(3)]


def test_no_modules_are_no_rows():
    assert group_modules(()) == ()


FIXTURES = Path(__file__).parents[3] / "fixtures"


def memory_of(tmp_path, event, *, metadata=None, total=None):
    trace = TraceBuilder().segment(20 * MIB).alloc(MIB).oom(30 * MIB, 4 * MIB).segment(8 * MIB)
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(trace.snapshot(**({"snapconv": metadata} if metadata else {}))))
    session = snapconv.load(path)
    return device_memory(session.devices[0], event, given_total=total)


def test_at_a_failed_allocation_it_is_what_is_neither_free_nor_reserved(tmp_path):
    found = memory_of(tmp_path, 2, total=100 * MIB)
    assert (found.free_bytes, found.reserved_bytes, found.outside_bytes) == (4 * MIB, 20 * MIB, 76 * MIB)
    assert (found.total_from, found.measured_event) == ("given", 2)


def test_elsewhere_it_is_that_of_the_failed_allocation_and_at_most_the_rest(tmp_path):
    found = memory_of(tmp_path, 3, total=100 * MIB)
    assert (found.free_bytes, found.outside_bytes, found.measured_event) == (None, 76 * MIB, 2)
    assert found.at_most_bytes == 72 * MIB  # 28 MiB were reserved at the end


def test_without_a_total_it_is_not_known(tmp_path):
    found = memory_of(tmp_path, 2)
    assert (found.total_bytes, found.outside_bytes, found.at_most_bytes) == (None, None, None)


def test_the_total_is_the_recorders_or_that_of_torchs_own_message(tmp_path):
    devices = [{"device": 0, "total_bytes": 200 * MIB, "max_memory_allocated": 1}]
    found = memory_of(tmp_path, 2, metadata={"version": 1, "devices": devices})
    assert (found.total_bytes, found.total_from) == (200 * MIB, "recorded")
    text = (
        "CUDA out of memory. Tried to allocate 30.00 MiB. GPU 0 has a total capacity of 300.00 MiB of which"
    )
    ended = {"how": "oom", "detail": text}
    found = memory_of(tmp_path, 2, metadata={"version": 1, "ended": ended})
    assert (found.total_bytes, found.total_from) == (300 * MIB, "torch's message")


def test_a_simulated_device_has_nothing_outside():
    session = snapconv.load(FIXTURES / "transformer.capture")
    assert device_memory(session.devices[0], 0).is_simulated
