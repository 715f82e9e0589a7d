"""The core does ordinary events by itself: nothing is left to the twin, whatever the pieces that it gets."""

from pathlib import Path

import pytest

from snapconv import columns
from snapconv.replay import block_sizes, lifetimes
from snapconv.replay.device_replay import replay
from snapconv.snapshot.load import load_snapshot
from tests.twins import needs_core, plain, twin

FIXTURE = Path(__file__).parents[3] / "fixtures" / "several_streams.pickle"


@needs_core
@pytest.mark.parametrize("n_rows", [1, 2, 1 << 16])
def test_the_core_pairs_and_walks_as_its_twin(n_rows, monkeypatch):
    snapshot = load_snapshot(FIXTURE)
    with twin("no"):
        expected = [plain(replay(snapshot, device)) for device in snapshot.devices]
    monkeypatch.setattr(columns, "_CHUNK_ROWS", n_rows)
    monkeypatch.setattr(lifetimes, "_pair", None)
    monkeypatch.setattr(block_sizes, "_Memory", None)
    with twin("require"):
        assert [plain(replay(snapshot, device)) for device in snapshot.devices] == expected
