"""The memory of a device that is not torch's, at a moment."""

import pickle
from pathlib import Path

import snapconv
from snapconv.answers.peak import device_memory
from tests.builders import MIB, TraceBuilder

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
