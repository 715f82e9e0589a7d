"""The model under a file's own settings: the file's own segments, to the byte, or the reason why not."""

from dataclasses import replace
from pathlib import Path

import pytest

from snapconv.answers.what_if.calls import find_calls
from snapconv.answers.what_if.model_check import find_difference
from snapconv.replay.device_replay import replay
from snapconv.snapshot.load import load_snapshot
from snapconv.units import HOST

ROOT = Path(__file__).parents[4]
FIXTURES = [*sorted((ROOT / "fixtures").glob("*.pickle")), ROOT / "fixtures" / "transformer.capture"]
REAL = sorted((ROOT.parent / "shared" / "snapshots").glob("*.pickle"))
# Drawn by a program: blocks lie where no segment is.
SYNTHETIC = {"facebookresearch-mosaic-output"}


def differences_of(path, *, change=lambda device: device, own=None):
    """The difference of every device of a file, its blocks or its settings changed."""
    snapshot = load_snapshot(path)
    for device in snapshot.devices:
        if device.device != HOST:
            replayed = replay(snapshot, device)
            calls = find_calls(snapshot, device, replayed)
            calls = replace(calls, own=replace(calls.own, **own or {}))
            yield find_difference(calls, change(device), replayed.allocations.addr)


@pytest.mark.parametrize("path", [*FIXTURES, *REAL], ids=lambda path: path.stem)
def test_the_own_settings_give_the_own_segments_to_the_byte(path):
    if path.stem in SYNTHETIC:
        pytest.skip("a synthetic file: its blocks do not fill their segments")
    assert set(differences_of(path)) <= {""}


def test_a_block_elsewhere_is_found_at_its_event():
    path = ROOT / "fixtures" / "training_step.pickle"
    snapshot = load_snapshot(path)
    (device,) = snapshot.devices
    replayed = replay(snapshot, device)
    calls = find_calls(snapshot, device, replayed)
    addr = replayed.allocations.addr.copy()
    addr[100] += 512
    event = replayed.allocations.alloc_event[100]
    difference = find_difference(calls, device, addr)
    assert difference.startswith(f"from event {event} on: the model places a block at 0x")


def test_another_end_is_found():
    def larger(device):
        sizes = device.blocks.block_bytes.copy()
        sizes[0] += 512
        return replace(device, blocks=replace(device.blocks, block_bytes=sizes))

    (difference,) = differences_of(ROOT / "fixtures" / "training_step.pickle", change=larger)
    assert difference.startswith("at the end: the block at 0x")


def test_other_settings_do_not_give_the_own_segments():
    other = {"max_split_size_bytes": None}
    assert any(differences_of(ROOT / "fixtures" / "max_split_size.pickle", own=other))
