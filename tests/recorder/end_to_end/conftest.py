"""Every entry, recorded once as a script and once as providers, and converted."""

from functools import cache

import pytest

from tests.entries import ENTRIES, KINDS
from tests.recorder.driving.conftest import run  # noqa: F401  # a fixture
from tests.recordings import Recording, one_thread, record, watch

SMOKE_CASES = {("transformer", "train"), ("lstm", "providers")}
# One of each prefix: what they build and run is what the scripts do.
WITH_PROVIDERS = ("cnn", "lstm")
CASES = [
    pytest.param(
        (entry, kind),
        id=f"{entry}-{kind}",
        marks=[pytest.mark.smoke("recording")] if (entry, kind) in SMOKE_CASES else [],
    )
    for entry in ENTRIES
    for kind in KINDS
    if kind == "train" or entry in WITH_PROVIDERS
]

# A processor without half precision takes a minute for five steps of the batches that a GPU gets.
BATCH_SIZES = {"amp_accumulation": 256}


@pytest.fixture(autouse=True, scope="session")
def on_one_thread():
    pytest.importorskip("torch")
    with one_thread():
        yield


@pytest.fixture(scope="session")
def recorded(tmp_path_factory):
    """Record an entry, once for all tests."""

    @cache
    def recorded(entry, kind):
        folder = tmp_path_factory.mktemp(entry)
        return record(entry, kind, folder, batch_size=BATCH_SIZES.get(entry))

    return recorded


@pytest.fixture(scope="session")
def alone(recording):
    """The same steps with nothing but torch's history on."""
    batch_size = BATCH_SIZES.get(recording.entry)
    return watch(recording.entry, recording.kind, batch_size=batch_size)


@pytest.fixture(params=CASES, scope="session")
def recording(request, recorded) -> Recording:
    return recorded(*request.param)


@pytest.fixture
def again(recording, tmp_path):
    """Record it once more, each time with a larger batch.

    Python's work between two calls stays as it was: on a processor that is fast with tensors and
    slow with Python it may be a tenth of a small step.
    """

    def record_again(attempt: int) -> Recording:
        folder = tmp_path / str(attempt)
        folder.mkdir()
        first = BATCH_SIZES.get(recording.entry, ENTRIES[recording.entry].gpu_batch_size // 32)
        batch_size = first * 2**attempt
        return record(recording.entry, recording.kind, folder, batch_size=batch_size)

    return record_again


@pytest.fixture
def unrecorded(alone):
    """The steps of the same training that nobody records.

    It is simulated too: a device draws its batches from a generator of its own, and autocast casts
    as on a GPU. That a simulation computes what the CPU does is tested beside it.
    """
    return alone.steps
