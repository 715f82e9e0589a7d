"""The memory of a device that is not torch's, at a moment."""

import pickle
from pathlib import Path

import pytest

import snapconv
from snapconv.answers.peak import device_memory
from tests.builders import MIB, TraceBuilder

FIXTURES = Path(__file__).parents[3] / "fixtures"


TEXT = "CUDA out of memory. Tried to allocate 30.00 MiB. GPU 0 has a total capacity of 300.00 MiB of which"
RECORDED = {"devices": [{"device": 0, "total_bytes": 200 * MIB, "max_memory_allocated": 1}]}
NAMES = ("total_bytes", "total_from", "free_bytes", "outside_bytes", "at_most_bytes", "measured_event")


@pytest.mark.parametrize(
    ("event", "given", "recorded", "expected"),
    [
        pytest.param(2, 100, {}, (100, "given", 4, 76, 72, 2), id="what is neither free nor reserved"),
        pytest.param(3, 100, {}, (100, "given", None, 76, 72, 2), id="elsewhere: that of the failure"),
        pytest.param(2, None, {}, (None, None, 4, None, None, 2), id="without a total"),
        pytest.param(2, None, RECORDED, (200, "recorded", 4, 176, 172, 2), id="as recorded"),
        pytest.param(
            2,
            None,
            {"ended": {"how": "oom", "detail": TEXT}},
            (300, "torch's message", 4, 276, 272, 2),
            id="as torch's own message has it",
        ),
    ],
)
def test_the_memory_of_a_device_outside_torch(tmp_path, event, given, recorded, expected):
    trace = TraceBuilder().segment(20 * MIB).alloc(MIB).oom(30 * MIB, 4 * MIB).segment(8 * MIB)
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(
        pickle.dumps(trace.snapshot(**({"snapconv": {"version": 1, **recorded}} if recorded else {})))
    )
    found = device_memory(snapconv.load(path).devices[0], event, given_total=given and given * MIB)
    values = [getattr(found, name) for name in NAMES]
    in_mib = [value // MIB if isinstance(value, int) else value for value in values[:-1]]
    assert (*in_mib, values[-1]) == expected


def test_a_simulated_device_has_nothing_outside():
    session = snapconv.load(FIXTURES / "transformer.capture")
    assert device_memory(session.devices[0], 0).is_simulated
