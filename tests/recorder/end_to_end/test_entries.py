"""The entries of fixtures/entries, recorded without a GPU."""

import pytest

from tests.entries import ENTRIES, weights_of
from tests.entry_checks import EntryChecks
from tests.recordings import convert, record, sequence

pytest.importorskip("torch")


class TestSimulatedEntries(EntryChecks):
    """All that must hold of any recording."""


def test_recording_leaves_the_sequence_of_allocations_as_it_is(recording, alone):
    assert len(alone.sequence) > 100
    assert sequence(recording.snapshot, with_addresses=True) == alone.sequence
    assert recording.metadata["devices"][0]["max_memory_allocated"] == alone.max_memory_allocated


@pytest.mark.parametrize("entry", ENTRIES)
def test_without_computing_there_are_names_sizes_and_a_peak_but_no_times(entry, tmp_path):
    recording = record(entry, "train", tmp_path, options=["--simulate", "--no-compute"])
    assert recording.code == 0, recording.said
    names = sorted(path.name for path in recording.capture.iterdir())
    assert names == ["ending.json", "snapshot.pickle"]
    assert "no times of operations" in recording.said
    reports = convert(recording.capture)
    assert reports.time is None
    rows = reports.rows("SELECT name, size_bytes, grad_size_bytes FROM weight_entries")
    assert {name: (size, gradient) for name, size, gradient in rows} == weights_of(entry)
    (device,) = recording.metadata["devices"]
    assert reports.values["reports"][0]["peak_usage_bytes"] == device["max_memory_allocated"]


def test_a_tied_weight_is_one_row_and_a_frozen_one_has_no_gradient(recorded):
    recording = recorded("tied_frozen", "train")
    rows = convert(recording.capture).rows("SELECT name, grad_size_bytes FROM weight_entries")
    assert "head.weight" not in dict(rows)
    frozen = {name: n_bytes for name, n_bytes in rows if name.startswith("encoder.")}
    assert frozen == dict.fromkeys(
        ["encoder.0.weight", "encoder.0.bias", "encoder.2.weight", "encoder.2.bias"], 0
    )
