"""The verdict follows from figures alone; each threshold matters, and each cause has its sentence."""

from dataclasses import replace

import pytest

from snapconv.answers.oom.verdict import FreePieces, Shortage, decide_oom

MIB, GIB = 1 << 20, 1 << 30
FULL = Shortage(
    block_bytes=100 * MIB,
    segment_bytes=100 * MIB,
    device_free_bytes=50 * MIB,
    device_total_bytes=None,
    reserved_bytes=10 * GIB,
    live_bytes=10 * GIB,
    here=FreePieces(),
)


def cause(**fields):
    return decide_oom(replace(FULL, **fields)).cause


def test_without_anything_else_it_is_full():
    verdict = decide_oom(FULL)
    assert (verdict.cause, verdict.is_inferred) == ("full", False)
    assert verdict.sentence == "full: 10.00 GiB are in use, 50.00 MiB left, and 100.00 MiB more were needed"


@pytest.mark.parametrize(("share", "expected"), [(0.045, "full"), (0.055, "fragmented")])
def test_free_pieces_count_as_fragmentation_from_a_twentieth_of_what_is_reserved(share, expected):
    n_bytes = int(share * FULL.reserved_bytes)
    assert cause(here=FreePieces(n_bytes, 20, 30 * MIB)) == expected


def test_free_pieces_that_together_are_less_than_the_request_are_no_fragmentation():
    assert cause(block_bytes=2 * GIB, segment_bytes=2 * GIB, here=FreePieces(1 * GIB, 9, 300 * MIB)) == "full"


@pytest.mark.parametrize(("outside", "expected"), [(2.0, "full"), (2.1, "held outside torch")])
def test_what_is_outside_counts_from_two_gib_on_and_what_is_missing(outside, expected):
    total = int(outside * GIB) + FULL.reserved_bytes + 50 * MIB
    assert cause(device_total_bytes=total) == expected


def test_of_fragmentation_and_memory_outside_the_larger_one_is_the_cause():
    pieces = FreePieces(3 * GIB, 90, 90 * MIB)
    total = FULL.reserved_bytes + 50 * MIB
    assert cause(here=pieces, device_total_bytes=total + 4 * GIB) == "fragmented"
    assert cause(here=pieces, device_total_bytes=total + 6 * GIB) == "held outside torch"


@pytest.mark.parametrize(("n_bytes", "is_named"), [(100 * MIB - 1, False), (100 * MIB, True)])
def test_a_pool_with_as_much_free_as_was_needed_is_named_though_no_piece_would_do(n_bytes, is_named):
    fields = {"elsewhere": FreePieces(n_bytes, 9, 20 * MIB), "other_pool": "the private pool (1, 0)"}
    verdict = decide_oom(replace(FULL, **fields, other_pool_bytes=n_bytes))
    said = "; 100.00 MiB are free in the private pool (1, 0), which this request cannot use"
    assert (verdict.cause, verdict.sentence.endswith(said)) == ("full", is_named)


def test_a_device_that_had_the_segment_free_was_not_what_refused_it():
    verdict = decide_oom(replace(FULL, device_free_bytes=100 * MIB))
    assert (verdict.cause, verdict.is_inferred) == ("not known", False)
    assert "the cause is not in the file" in verdict.sentence
    assert cause(device_free_bytes=100 * MIB - 1) == "full"


def test_a_known_limit_is_no_inference():
    verdict = decide_oom(replace(FULL, allowed_bytes=FULL.reserved_bytes + 99 * MIB))
    assert (verdict.cause, verdict.is_inferred) == ("limited", False)
    assert cause(allowed_bytes=FULL.reserved_bytes + 100 * MIB) == "full"


def test_a_piece_that_would_have_served_it_is_of_another_pool_or_kept_or_a_contradiction():
    piece = FreePieces(100 * MIB, 1, 100 * MIB)
    assert cause(elsewhere=piece) == "wrong pool or stream"
    assert cause(here=piece, splits_below=64 * MIB) == "kept for larger requests"
    assert cause(here=piece) == "not known"


def test_free_segments_of_a_private_pool_would_have_given_what_was_missing():
    assert cause(returnable_bytes=50 * MIB) == "wrong pool or stream"
    assert cause(returnable_bytes=49 * MIB) == "full"


def test_a_request_that_no_device_of_this_size_can_serve_is_named_first():
    assert cause(device_total_bytes=90 * MIB, device_free_bytes=90 * MIB) == "larger than the device"


def test_without_the_devices_free_memory_full_is_an_inference():
    assert decide_oom(replace(FULL, device_free_bytes=None)).is_inferred
