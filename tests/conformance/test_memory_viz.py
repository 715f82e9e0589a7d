"""Our figures against those that torch's own tool counts from the same file (torch.cuda._memory_viz).

It reads CUDA devices only: pinned host memory is handed to it as if it were one. What it prints is
rounded, so its words for our numbers are compared.
"""

import pickle
import re
from pathlib import Path

import pytest

import snapconv

_memory_viz = pytest.importorskip("torch.cuda._memory_viz")

pytestmark = pytest.mark.smoke("viewer")

FIXTURES = Path(__file__).parents[2] / "fixtures"
HOST = -1
CASES = [
    ("torch_2_13", 0),
    ("torch_2_14", 0),
    ("torch_2_14", HOST),
    ("torch_2_15", 0),
    ("torch_2_15", HOST),
    ("several_streams", 0),
    ("host_only", HOST),
]


def raw_of(name, device):
    """The snapshot of one device, as a file of its own."""
    raw = pickle.loads((FIXTURES / f"{name}.pickle").read_bytes())
    if device == HOST:
        return {"segments": raw["host_segments"], "device_traces": [raw["host_traces"]]}
    return {"segments": raw["segments"], "device_traces": [raw["device_traces"][device]]}


def replay_of(name, device):
    session = snapconv.load(FIXTURES / f"{name}.pickle")
    return next(found.replay for found in session.devices if found.device.device == device)


def printed(text, label):
    return re.search(rf"^{label}: (.*)$", text, re.MULTILINE)[1]


@pytest.mark.parametrize(("name", "device"), CASES)
def test_what_is_reserved_and_allocated_at_the_end_is_what_torch_adds_up(name, device):
    replay, torchs = replay_of(name, device), _memory_viz.segsum(raw_of(name, device))
    live = replay.allocations.live_at(len(replay.reserved.after) - 1)
    allocated = int(replay.allocations.requested_bytes[live].sum())
    assert printed(torchs, "total_reserved") == repr(_memory_viz.Bytes(replay.reserved.end))
    assert printed(torchs, "total_allocated") == repr(_memory_viz.Bytes(allocated))


@pytest.mark.parametrize(("name", "device"), CASES)
def test_every_allocation_of_the_trace_is_one_that_torch_prints(name, device):
    torchs = _memory_viz.trace(raw_of(name, device))
    allocations = replay_of(name, device).allocations
    n_printed = len(re.findall(r"^\w+ = \w+\[\d+:", torchs, re.MULTILINE))
    assert n_printed == (allocations.alloc_event >= 0).sum() > 0


def test_an_annotation_is_where_torch_prints_it():
    (line,) = re.findall(r".*rows of the table.*", _memory_viz.trace(raw_of("torch_2_15", 0)))
    assert "annotate" in line


def bytes_read_by_torch(raw):
    """What torch's tool calls reserved and allocated at the end of a file: it adds up its blocks."""
    torchs = _memory_viz.segsum(raw)
    return printed(torchs, "total_reserved"), printed(torchs, "total_allocated")


@pytest.mark.parametrize(
    "name", ["torch_2_13", "torch_2_15", "several_streams", "expandable_segments"]
)
def test_parts_that_end_along_a_trace_give_torch_the_points_of_our_curves(name, tmp_path):
    session = snapconv.load(FIXTURES / f"{name}.pickle")
    (replay,) = (row.replay for row in session.devices if row.device.device == 0)
    allocations = replay.allocations
    n_events = len(replay.reserved.after)
    begin = n_events // 5  # parts begin within the trace too: what is live before has no alloc
    for end in range(begin, n_events, max(1, (n_events - begin) // 6)):
        part = tmp_path / f"{end}.pickle"
        session.of_device(0).cut(str(begin), str(end), output=part)
        raw = pickle.loads(part.read_bytes())
        live = allocations.live_at(end)
        requested = int(allocations.requested_bytes[live].sum())
        figures = (int(replay.reserved.after[end]), requested)
        assert bytes_read_by_torch(raw) == tuple(repr(_memory_viz.Bytes(n)) for n in figures)
        assert len(raw["device_traces"][0]) == end - begin + 1
        n_allocations = len(re.findall(r"^\w+ = \w+\[\d+:", _memory_viz.trace(raw), re.MULTILINE))
        began = (allocations.alloc_event >= begin) & (allocations.alloc_event <= end)
        assert n_allocations == began.sum()
