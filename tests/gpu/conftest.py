"""Recordings on a real GPU, each in a process of its own. Skipped where there is none.

``SNAPCONV_REHEARSE=1`` runs the same tests with a simulated GPU: a rehearsal of the tests
themselves.
"""

from functools import cache

import pytest

from tests.entries import ENTRIES, KINDS
from tests.recordings import IS_REHEARSAL, Recording, in_a_process

CASES = [(entry, kind) for entry in ENTRIES for kind in KINDS]
OPTIONS = ("--simulate",) if IS_REHEARSAL else ()


@pytest.fixture(autouse=True, scope="session")
def gpu():
    torch = pytest.importorskip("torch")
    if not IS_REHEARSAL and not torch.cuda.is_available():
        pytest.skip("there is no GPU")


@pytest.fixture(scope="session")
def recorded(tmp_path_factory, gpu):
    """Record an entry, once for all tests."""

    @cache
    def record(entry: str, kind: str, attempt: int = 0) -> Recording:
        folder = tmp_path_factory.mktemp(f"{entry}_{kind}_{attempt}_")
        done = in_a_process("record", entry, kind, folder, *OPTIONS)
        capture = folder / f"{entry}_{kind}.capture"
        return Recording(entry, kind, capture, done["code"], done["said"], done["steps"])

    return record


@pytest.fixture(params=CASES, ids=["-".join(case) for case in CASES], scope="session")
def recording(request, recorded) -> Recording:
    return recorded(*request.param)


@pytest.fixture
def again(recording, recorded):
    """Record it once more."""
    return lambda attempt: recorded(recording.entry, recording.kind, attempt + 1)


@pytest.fixture(scope="session")
def watched(tmp_path_factory, gpu):
    """Run an entry with torch's own history, once for all tests."""

    @cache
    def watch(entry: str, kind: str):
        return in_a_process("watch", entry, kind, tmp_path_factory.mktemp("watched"), *OPTIONS)

    return watch


@pytest.fixture
def unrecorded(recording, watched):
    """The steps of the same training that nobody records."""
    return watched(recording.entry, recording.kind)["steps"]
