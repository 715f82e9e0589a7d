"""The first line of what-if: whether the job fits, by how much, and which setting saves memory."""

import pytest

from snapconv.allocator.allocator_settings import MIB
from snapconv.answers.what_if.conclusion import conclude
from snapconv.answers.what_if.setting_trials import Request
from snapconv.session import load
from tests.builders import TraceBuilder


@pytest.fixture
def concluded(tmp_path):
    def run(builder, request):
        (trials,) = load(builder.write(tmp_path / "snapshot.pickle")).what_if(request)
        return conclude(trials)

    return run


def three_segments():
    """60 MiB in use at once, in three segments of 20 MiB, the last of them at event 5."""
    builder = TraceBuilder()
    for _ in range(3):
        builder.segment(20 * MIB, segment_type="large").alloc(20 * MIB)
    return builder


def test_a_job_that_fits_has_what_is_left(concluded):
    assert concluded(three_segments(), Request(capacity=70 * MIB)) == (
        "fits: 60.00 MiB reserved at most, 10.00 MiB left"
    )


def test_a_job_that_does_not_fit_has_what_is_short_and_where(concluded):
    # The third segment lacks 10 MiB; 60 MiB are in use at once, 10 more than there are.
    assert concluded(three_segments(), Request(capacity=50 * MIB)) == (
        "does not fit in 50.00 MiB: at least 10.00 MiB short, out of memory at event 5"
    )


def test_the_shortage_is_of_the_whole_job_and_not_of_the_first_request_that_failed(concluded):
    # The second segment lacks 1 MiB at event 3, but 60 MiB are in use at the end.
    assert concluded(three_segments(), Request(capacity=39 * MIB)) == (
        "does not fit in 39.00 MiB: at least 21.00 MiB short, out of memory at event 3"
    )


def test_a_card_by_name_leaves_out_what_is_not_torchs(concluded):
    request = Request.read(card="RTX 4060")  # 7.75 GiB, of which 1 GiB is assumed to be outside
    assert concluded(three_segments(), request) == "fits: 60.00 MiB reserved at most, 6.69 GiB left"


def test_few_events_recommend_nothing(concluded):
    sentence = concluded(three_segments(), Request(is_search=True))
    assert sentence.startswith("no setting is recommended: the order of the allocations decides")


def test_a_replay_that_leaves_memory_out_does_not_say_that_the_job_fits(concluded):
    """The file has frees of memory from before its trace, and no segments."""
    builder = TraceBuilder().segment(64 * MIB, traced=False)
    for _ in range(3):
        builder.alloc(8 * MIB, traced=False)
    for _ in range(3):
        builder.free()
    builder.segments = []
    assert concluded(builder, Request(capacity=1 << 30)).startswith("unknown whether it fits: ")


def test_what_fits_of_a_trace_that_began_late_is_what_the_trace_shows(concluded):
    builder = TraceBuilder().segment(64 * MIB, traced=False).alloc(40 * MIB, traced=False).alloc(4 * MIB)
    assert concluded(builder, Request(capacity=1 << 30)) == (
        "what the trace shows fits: 64.00 MiB reserved at most, 960.00 MiB left"
    )
