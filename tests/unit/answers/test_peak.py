"""What is said of a moment: groups of modules, models of equal sizes, and memory that is not torch's."""

import pickle
from pathlib import Path

import numpy as np
import pytest

import snapconv
from snapconv.answers.peak import ModuleTotal, device_memory, group_modules, n_models
from snapconv.session import load
from tests.builders import MIB, TraceBuilder
from tests.classified_jobs import APPLY, ENGINE, FORWARD, MAIN, STEP, ZERO_GRAD, Job


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


SIZES = (4096, 8192, 12_288, 4096)


def trained(n_copies, *, more=(), missing=0, sizes=SIZES, n_trained=1):
    """Models of equal sizes are placed, of which the first is trained, and ``more`` beside them.

    They may as well be the layers of one model, of which the first ``n_trained`` are trained.
    """
    job = Job()
    for copy in range(n_copies):
        for size in sizes[: len(sizes) - missing * (copy > 0)]:
            job.alloc(APPLY, size)
    for size in more:
        job.alloc(APPLY, size)
    for _ in range(2):
        job.does(FORWARD)
        gradients = [job.alloc(ENGINE, size) for size in sizes * n_trained]
        job.does(STEP)
        for addr in gradients:
            job.free(addr, ZERO_GRAD)
    job.does(MAIN)
    return job


@pytest.fixture
def found(tmp_path):
    def of_job(job, *, live=True):
        path = tmp_path / "snapshot.pickle"
        path.write_bytes(pickle.dumps(job.snapshot()))
        (device,) = load(path).devices
        return n_models(device, np.full(len(device.allocations), live))

    return of_job


@pytest.mark.parametrize(("n_copies", "expected"), [(1, None), (2, 2), (3, 3)])
def test_weights_that_are_all_there_several_times_are_several_models(n_copies, expected, found):
    assert found(trained(n_copies)) == expected


def test_at_a_moment_without_weights_there_are_no_models(found):
    assert found(trained(2), live=False) is None


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"more": (2048,)}, 2),
        ({"more": (5120,)}, None),
        ({"more": (8192,)}, None),
        ({"missing": 1}, None),
        ({"sizes": SIZES[:2]}, None),
    ],
    ids=[
        "a few are not trained",
        "several are not",
        "a size has another",
        "a copy lacks a part",
        "of two sizes",
    ],
)
def test_nearly_all_bytes_are_there_as_often(given, expected, found):
    assert found(trained(2, **given)) == expected


@pytest.mark.parametrize(("n_trained", "n_placed"), [(2, 4), (3, 6), (1, 6)])
def test_layers_of_one_model_that_have_no_gradients_are_no_models(n_trained, n_placed, found):
    """They are frozen, or memory ran out in the backward before it came to them."""
    assert found(trained(n_placed, n_trained=n_trained)) is None


def test_the_largest_layers_of_two_networks_are_no_models(found):
    """A generator and a critic that mirror each other have one large layer of a size each."""
    job = Job()
    for _ in range(2):
        job.alloc(APPLY, 400_000)
    generator = (2048, 4096, 8192, 400_000)
    for size in generator[:3]:
        job.alloc(APPLY, size)
    job.does(FORWARD)
    for addr in [job.alloc(ENGINE, size) for size in generator]:
        job.free(addr, ZERO_GRAD)
    assert found(job) is None


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
