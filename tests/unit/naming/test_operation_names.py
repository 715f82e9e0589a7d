"""The operation of every allocation, and where it was inferred from."""

import pickle

from snapconv.naming.origins import BY_NODE
from snapconv.session import load
from snapconv.stacks import operations
from tests.builders import TraceBuilder, frame

OTHER = [frame("other", "/home/me/project/train.py", 12)]
NODE = "torch::autograd::generated::GeluBackward0::release_variables()"
RELEASE = [{"name": NODE, "filename": "??", "line": 0}]


def test_explain_shows_what_a_name_was_inferred_from(tmp_path):
    native = {"name": "at::_ops::gelu::call(at::Tensor const&)", "filename": "??", "line": 0}
    builder = TraceBuilder().segment().alloc(512, frames=OTHER).alloc(512, frames=[native, *OTHER])
    session = load(builder.alloc(512, frames=[]).free(frames=RELEASE).write(tmp_path / "snapshot.pickle"))
    found = [session.explain(f"#{event}").allocations[0]["origin"] for event in (1, 2, 3)]
    assert [(one["operation"], one["operation_from"]) for one in found] == [
        ("other", "the innermost Python function of its stack"),
        ("gelu", "the C++ frames of its stack"),
        ("gelu", BY_NODE),
    ]


def test_stacks_are_looked_at_once_for_all_devices_of_a_file(tmp_path, monkeypatch):
    builders = [TraceBuilder(device=n).segment().alloc(512, frames=OTHER) for n in range(5)]
    looked_at = []
    original = operations._candidates
    monkeypatch.setattr(operations, "_candidates", lambda *given: looked_at.append(given) or original(*given))
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(builders[0].snapshot(*builders[1:])))
    session = load(path)
    assert len(session.devices) == 5
    assert {device.operations for device in session.devices} == {("unknown", "other")}
    assert len({id(device.operations) for device in session.devices}) == 1
    assert len(looked_at) == len(session.snapshot.stacks)
