"""The operations of all devices of a file."""

import pickle

from snapconv.session import load
from snapconv.stacks import stack_facts
from tests.builders import TraceBuilder, frame

OTHER = [frame("other", "/home/me/project/train.py", 12)]


def test_stacks_are_looked_at_once_for_all_devices_of_a_file(tmp_path, monkeypatch):
    builders = [TraceBuilder(device=n).segment().alloc(512, frames=OTHER) for n in range(5)]
    looked_at = []
    infer = stack_facts._operation_of
    monkeypatch.setattr(
        stack_facts, "_operation_of", lambda *of: looked_at.append(of) or infer(*of)
    )
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(builders[0].snapshot(*builders[1:])))
    session = load(path)
    assert len(session.devices) == 5
    assert {device.operations for device in session.devices} == {("unknown", "other")}
    assert len({id(device.operations) for device in session.devices}) == 1
    assert len(looked_at) == len(session.snapshot.stacks)
