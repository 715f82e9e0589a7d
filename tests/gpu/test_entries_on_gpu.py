"""The entries of fixtures/entries, recorded on a real GPU."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.entry_checks import EntryChecks
from tests.recordings import IS_REHEARSAL, sequence

pytest.importorskip("torch")
pytestmark = pytest.mark.gpu

BENCH = Path(__file__).parents[2] / "scripts" / "bench" / "recording.py"
# A step that is recorded may take this many times as long as one that is not.
MAX_RATIO = 10


class TestEntriesOnAGpu(EntryChecks):
    """All that must hold of any recording."""

    def test_the_peak_is_that_of_a_run_without_recording(self, recording, watched):
        (device,) = recording.metadata["devices"]
        alone = watched(recording.entry, recording.kind)
        assert device["max_memory_allocated"] == alone["max_memory_allocated"]

    def test_recording_leaves_the_sequence_of_allocations_as_it_is(self, recording, watched):
        alone = watched(recording.entry, recording.kind)["sequence"]
        assert len(alone) > 100
        recorded = sequence(recording.snapshot, with_addresses=IS_REHEARSAL)
        assert [list(event) for event in recorded] == alone

    def test_a_recording_shows_what_it_was_made_on(self, recording):
        import torch

        assert bool(recording.metadata["simulated"]) is IS_REHEARSAL
        assert recording.timing["clock"] == ("cpu" if IS_REHEARSAL else "cuda")
        assert recording.metadata["cuda"] == torch.version.cuda
        if not IS_REHEARSAL:
            assert recording.metadata["devices"][0]["name"] == torch.cuda.get_device_name(0)


def test_recording_slows_a_step_down_by_a_known_ratio():
    done = subprocess.run(
        [sys.executable, BENCH, "--json", *["--simulate"] * IS_REHEARSAL, "transformer"],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    ((case),) = json.loads(done.stdout)
    assert case["is_right"]
    assert 0.5 < case["memory_ratio"] < MAX_RATIO
    assert 0.5 < case["timing_ratio"] < MAX_RATIO
