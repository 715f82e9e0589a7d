"""The model under a file's own settings: the file's own segments, to the byte, or the reason why not."""

from dataclasses import replace
from pathlib import Path

import pytest

from snapconv.answers.what_if.calls import find_calls
from snapconv.answers.what_if.model_check import check_model
from snapconv.replay.device_replay import replay
from snapconv.snapshot.load import load_snapshot
from snapconv.units import HOST

ROOT = Path(__file__).parents[4]
FIXTURES = [*sorted((ROOT / "fixtures").glob("*.pickle")), ROOT / "fixtures" / "transformer.capture"]
REAL = sorted((ROOT.parent / "shared" / "snapshots").glob("*.pickle"))
# Drawn by a program: blocks lie where no segment is.
SYNTHETIC = {"facebookresearch-mosaic-output"}


def checks_of(path, change=lambda device: device):
    snapshot = load_snapshot(path)
    for device in snapshot.devices:
        if device.device != HOST:
            replayed = replay(snapshot, device)
            calls = find_calls(snapshot, device, replayed)
            yield check_model(calls, change(device), replayed.allocations.addr)


@pytest.mark.parametrize("path", [*FIXTURES, *REAL], ids=lambda path: path.stem)
def test_the_own_settings_give_the_own_segments_to_the_byte(path):
    if path.stem in SYNTHETIC:
        pytest.skip("a synthetic file: its blocks do not fill their segments")
    assert [(check.event, check.reason) for check in checks_of(path) if not check.is_exact] == []


def test_a_block_elsewhere_is_found_at_its_event():
    path = ROOT / "fixtures" / "training_step.pickle"
    snapshot = load_snapshot(path)
    (device,) = snapshot.devices
    replayed = replay(snapshot, device)
    calls = find_calls(snapshot, device, replayed)
    addr = replayed.allocations.addr.copy()
    addr[100] += 512
    check = check_model(calls, device, addr)
    assert check.event == replayed.allocations.alloc_event[100]
    assert check.reason.startswith("the model places a block at 0x")


def test_another_end_is_found():
    def larger(device):
        sizes = device.blocks.block_bytes.copy()
        sizes[0] += 512
        return replace(device, blocks=replace(device.blocks, block_bytes=sizes))

    (check,) = checks_of(ROOT / "fixtures" / "training_step.pickle", larger)
    assert check.event == -1
    assert not check.is_exact


def test_other_settings_do_not_give_the_own_segments():
    snapshot = load_snapshot(ROOT / "fixtures" / "max_split_size.pickle")
    (device,) = snapshot.devices
    replayed = replay(snapshot, device)
    calls = find_calls(snapshot, device, replayed)
    other = replace(calls, own=replace(calls.own, max_split_size_bytes=None))
    assert not check_model(other, device, replayed.allocations.addr).is_exact
