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
    builder = (
        TraceBuilder().segment(64 * MIB, traced=False).alloc(40 * MIB, traced=False).alloc(4 * MIB)
    )
    assert concluded(builder, Request(capacity=1 << 30)) == (
        "what the trace shows fits: 64.00 MiB reserved at most, 960.00 MiB left"
    )


def late_job():
    """40 MiB in use before the trace and 4 MiB more in it, in a segment of 64 MiB."""
    builder = TraceBuilder().segment(64 * MIB, traced=False, segment_type="large")
    return builder.alloc(40 * MIB, traced=False).alloc(4 * MIB)


def test_one_stream_counts_the_memory_of_before_the_trace(tmp_path):
    (trials,) = load(late_job().write(tmp_path / "s.pickle")).what_if(Request(one_stream=True))
    assert [tried.outcome.ledger.max_reserved_bytes for tried in trials.tried] == [64 * MIB] * 2


@pytest.mark.parametrize("scale", [1, 2])
def test_the_shortage_is_no_less_for_a_larger_batch(tmp_path, scale):
    session = load(late_job().write(tmp_path / "s.pickle"))
    (trials,) = session.what_if(Request(capacity=30 * MIB), batch_scale=scale)
    assert conclude(trials) == (
        "does not fit in 30.00 MiB: at least 14.00 MiB short, out of memory before the first event"
    )


def test_a_setting_that_helps_a_part_of_a_job_says_so(tmp_path):
    builder = TraceBuilder().segment(2 * MIB, traced=False).alloc(MIB, traced=False)
    for _ in range(40):
        builder.segment(20 * MIB, segment_type="large").alloc(11 * MIB)
    (trials,) = load(builder.write(tmp_path / "s.pickle")).what_if(
        Request(("expandable_segments:True",), capacity=450 * MIB)
    )
    assert conclude(trials).endswith(
        "what the trace shows fits with another setting: export "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
    )


def test_a_larger_batch_that_reserves_less_than_the_program_proves_nothing(tmp_path):
    """The file has frees of memory from before its trace, and no segments."""
    builder = TraceBuilder().segment(64 * MIB, traced=False).alloc(8 * MIB, traced=False).free()
    builder.segments = []
    session = load(builder.write(tmp_path / "s.pickle"))
    (trials,) = session.what_if(Request(capacity=1 << 30), batch_scale=2)
    assert conclude(trials) == (
        "unknown whether it fits: a replay of the file's own settings with batch × 2 reserves 0 "
        "B, the "
        "program reserved 8.00 MiB"
    )
