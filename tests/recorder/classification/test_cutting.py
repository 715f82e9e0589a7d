"""A cut of a recording is what another recording of the same run would have been."""

import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

BENCH = Path(__file__).parents[3] / "scripts" / "bench" / "classification"


@pytest.fixture(scope="module")
def bench():
    """The modules of the benchmark, which find each other by name."""
    before = set(sys.modules)
    sys.path.insert(0, str(BENCH))
    try:
        import cutting
        import recording
        import setups

        recorded = recording.record("recommender", setups.Setup(n_steps=3))
        yield cutting, recorded
    finally:
        sys.path.remove(str(BENCH))
        for name in set(sys.modules) - before:
            if str(getattr(sys.modules[name], "__file__", "")).startswith(str(BENCH)):
                del sys.modules[name]


def trace(cut):
    return cut.raw["device_traces"][0]


def test_nothing_of_the_recorder_is_left_in_a_cut(bench):
    cutting, recorded = bench
    for history in cutting.HISTORIES:
        raw = cutting.cut(recorded, history, "all").raw
        assert "snapconv" not in raw
        assert not [
            row for row in raw["external_annotations"] if row["name"].startswith("snapconv")
        ]


def test_every_cut_is_the_end_of_the_whole_trace(bench):
    cutting, recorded = bench
    (whole,) = recorded.raw["device_traces"]
    n_lost = [cutting.cut(recorded, history, "all").n_lost for history in cutting.HISTORIES]
    assert n_lost[0] == 0
    assert len(set(n_lost)) == 4
    for history, lost in zip(cutting.HISTORIES, n_lost, strict=True):
        assert trace(cutting.cut(recorded, history, "all")) == whole[lost:]


def test_a_late_recording_knows_no_stack_of_what_was_there_before(bench):
    cutting, recorded = bench
    raw = cutting.cut(recorded, "late", "all").raw
    new = {event["addr"] for event in raw["device_traces"][0] if event["action"] == "alloc"}
    old = [
        block
        for segment in raw["segments"]
        for block in segment["blocks"]
        if block["state"] == "active_allocated" and block["address"] not in new
    ]
    assert old
    assert not [block for block in old if block.get("frames")]


def test_without_frames_of_cpp_backward_has_empty_stacks_and_forward_python_alone(bench):
    cutting, recorded = bench
    both = [trace(cutting.cut(recorded, "complete", stacks)) for stacks in ("all", "python")]
    for full, bare in zip(*both, strict=True):
        files = [frame["filename"] for frame in bare.get("frames", ())]
        assert all(name.endswith(".py") or name.startswith("<") for name in files)
        if any("Engine::thread_main" in frame["name"] for frame in full.get("frames", ())):
            assert files == []
