"""The model under a file's own settings: the file's own segments, to the byte, or the reason why not."""

from dataclasses import replace
from pathlib import Path

import pytest

from snapconv.hypotheses.allocator_calls import find_calls
from snapconv.hypotheses.trial import try_out
from snapconv.hypotheses.trial_outcome import Trial
from snapconv.replay.device_replay import replay
from snapconv.snapshot.load import load_snapshot
from snapconv.units import HOST
from tests.model_check import find_difference

ROOT = Path(__file__).parents[3]
FIXTURES = [
    *sorted((ROOT / "fixtures").glob("*.pickle")),
    ROOT / "fixtures" / "transformer.capture",
]
REAL = sorted((ROOT.parent / "shared" / "snapshots").glob("*.pickle"))
# Drawn by a program: blocks lie where no segment is.
SYNTHETIC = {"facebookresearch-mosaic-output"}


def checked(path, *, own=None):
    """The calls, device and allocations of every device of a file, perhaps under other settings."""
    snapshot = load_snapshot(path)
    for device in snapshot.devices:
        if device.device != HOST:
            replayed = replay(snapshot, device)
            calls = find_calls(snapshot, device, replayed)
            yield (
                replace(calls, file_settings=replace(calls.file_settings, **own or {})),
                device,
                replayed.allocations,
            )


@pytest.mark.parametrize("path", [*FIXTURES, *REAL], ids=lambda path: path.stem)
def test_the_own_settings_give_the_own_segments_to_the_byte(path):
    if path.stem in SYNTHETIC:
        pytest.skip("a synthetic file: its blocks do not fill their segments")
    for calls, device, allocations in checked(path):
        assert find_difference(calls, device, allocations.addr) == ""


def test_a_block_elsewhere_and_another_end_are_found():
    ((calls, device, allocations),) = checked(ROOT / "fixtures" / "training_step.pickle")
    addr = allocations.addr.copy()
    addr[100] += 512
    found = find_difference(calls, device, addr)
    expected = f"from event {allocations.alloc_event[100]} on: the model places a block at 0x"
    assert found.startswith(expected)
    sizes = device.blocks.block_bytes.copy()
    sizes[0] += 512
    larger = replace(device, blocks=replace(device.blocks, block_bytes=sizes))
    assert find_difference(calls, larger, allocations.addr).startswith(
        "at the end: the block at 0x"
    )


def test_other_settings_do_not_give_the_own_segments():
    own = {"max_split_size_bytes": None}
    ((calls, _, _),) = checked(ROOT / "fixtures" / "max_split_size.pickle", own=own)
    assert try_out(calls, Trial(calls.file_settings, is_check=True)).differs_at is not None
