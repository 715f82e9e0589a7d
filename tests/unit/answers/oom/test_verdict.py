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
    counted_bytes=10 * GIB,
    usable=FreePieces(),
)
PIECE, PIECES = FreePieces(100 * MIB, 1, 100 * MIB), FreePieces(3 * GIB, 90, 90 * MIB)
TOTAL = FULL.reserved_bytes + 50 * MIB


@pytest.mark.parametrize(
    ("fields", "cause", "words"),
    [
        ({}, "full", "full: 100.00 MiB more were needed, 50.00 MiB were free on the device"),
        # From the 50 MiB that are missing and a partly used segment of 20 MiB on; where that is
        # little of the reserved memory, from two requests on.
        (
            {"usable": FreePieces(70 * MIB - 1, 20, 30 * MIB), "reserved_bytes": GIB},
            "full",
            "full: ",
        ),
        (
            {"usable": FreePieces(70 * MIB, 20, 30 * MIB), "reserved_bytes": GIB},
            "fragmented",
            "70.00 MiB are reserved and free",
        ),
        ({"usable": FreePieces(200 * MIB - 1, 20, 30 * MIB)}, "full", "full: "),
        ({"usable": FreePieces(200 * MIB, 20, 30 * MIB)}, "fragmented", ""),
        (
            {"usable": FreePieces(GIB, 90, 50 * MIB), "reserved_bytes": 78 * GIB},
            "fragmented",
            "",
        ),
        # As little is a part of the whole device: here the larger part is not torch's.
        (
            {
                "usable": FreePieces(102 * MIB, 9, 20 * MIB),
                "reserved_bytes": GIB,
                "device_total_bytes": 2 * GIB,
            },
            "full",
            "",
        ),
        (
            {
                "usable": FreePieces(103 * MIB, 9, 20 * MIB),
                "reserved_bytes": GIB,
                "device_total_bytes": 2 * GIB,
            },
            "fragmented",
            "",
        ),
        # Of little reserved memory a twentieth is as usual.
        (
            {"usable": FreePieces(60 * MIB - 1, 9, MIB), "reserved_bytes": 200 * MIB},
            "full",
            "",
        ),
        (
            {"usable": FreePieces(60 * MIB, 9, MIB), "reserved_bytes": 200 * MIB},
            "fragmented",
            "",
        ),
        # Beside a request that shares a segment there are pieces for other sizes: 128 MiB.
        ({"block_bytes": 10 * MIB, "usable": FreePieces(138 * MIB - 1, 20, MIB)}, "full", ""),
        ({"block_bytes": 10 * MIB, "usable": FreePieces(138 * MIB, 20, MIB)}, "fragmented", ""),
        (
            {"block_bytes": 2 * GIB, "segment_bytes": 2 * GIB, "usable": FreePieces(GIB, 9, MIB)},
            "full",
            "",
        ),
        # Enough only together with what is free on the device.
        (
            {"block_bytes": GIB, "segment_bytes": GIB, "usable": FreePieces(GIB - MIB, 9, MIB)},
            "fragmented",
            "",
        ),
        # From a quarter more than 2 GiB on, as contexts and NCCL differ; where other processes are
        # listed, from 2 GiB and what is missing on. Of fragmentation and memory outside the larger.
        ({"device_total_bytes": TOTAL + 2559 * MIB}, "full", ""),
        (
            {"device_total_bytes": TOTAL + 2560 * MIB},
            "held outside torch",
            "2.50 GiB of the device",
        ),
        (
            {"device_total_bytes": TOTAL + 2150 * MIB, "others_bytes": GIB},
            "held outside torch",
            "2.10 GiB of the device",
        ),
        ({"device_total_bytes": TOTAL + 2 * GIB, "others_bytes": GIB}, "full", ""),
        ({"usable": PIECES, "device_total_bytes": TOTAL + 4 * GIB}, "fragmented", ""),
        ({"usable": PIECES, "device_total_bytes": TOTAL + 6 * GIB}, "held outside torch", ""),
        ({"device_free_bytes": 100 * MIB}, "not known", "the cause is not in the file"),
        ({"allowed_bytes": FULL.reserved_bytes + 99 * MIB}, "limited", "stopped by the limit"),
        ({"allowed_bytes": FULL.reserved_bytes + 100 * MIB}, "full", ""),
        ({"elsewhere": PIECE}, "wrong pool or stream", "a free block of 100.00 MiB"),
        (
            {"usable": PIECE, "splits_below": 64 * MIB},
            "kept for larger requests",
            "max_split_size_mb",
        ),
        ({"usable": PIECE}, "not known", "could have served it"),
        # Free segments of private pools.
        ({"returnable_bytes": 50 * MIB}, "wrong pool or stream", "50.00 MiB in free segments"),
        ({"returnable_bytes": 49 * MIB}, "full", ""),
        (
            {"device_total_bytes": 90 * MIB, "device_free_bytes": 90 * MIB},
            "larger than the device",
            "",
        ),
    ],
)
def test_every_cause_has_its_threshold_and_its_sentence(fields, cause, words):
    verdict = decide_oom(replace(FULL, **fields))
    assert verdict.cause == cause
    assert words in verdict.sentence


@pytest.mark.parametrize(("reserved", "is_little"), [(4000 * MIB, False), (4001 * MIB, True)])
def test_pieces_that_are_less_than_a_twentieth_of_the_reserved_memory_are_called_little(
    reserved, is_little
):
    pieces = FreePieces(200 * MIB, 20, 30 * MIB)
    verdict = decide_oom(replace(FULL, usable=pieces, reserved_bytes=reserved))
    assert ("nearly full as well" in verdict.reason) == is_little


@pytest.mark.parametrize(("n_bytes", "is_named"), [(100 * MIB - 1, False), (100 * MIB, True)])
def test_a_pool_with_as_much_free_as_was_needed_is_named_though_no_piece_would_do(
    n_bytes, is_named
):
    fields = {
        "elsewhere": FreePieces(n_bytes, 9, 20 * MIB),
        "other_pool": "the private pool (1, 0)",
    }
    verdict = decide_oom(replace(FULL, **fields, other_pool_bytes=n_bytes))
    said = "; 100.00 MiB are free in the private pool (1, 0), which this request cannot use"
    assert (verdict.cause, verdict.sentence.endswith(said)) == ("full", is_named)


def test_what_no_figure_shows_is_an_inference():
    limited = replace(FULL, allowed_bytes=FULL.reserved_bytes)
    without_free = replace(FULL, device_free_bytes=None)
    figures = (FULL, limited, without_free)
    are_inferred = [decide_oom(shortage).is_inferred for shortage in figures]
    assert are_inferred == [False, False, True]


def test_nothing_cached_for_a_request_is_said_without_a_figure_beside_what_is_cached_for_others():
    reason = decide_oom(FULL).reason
    assert reason == "torch had no cached memory that this request could use"
    assert decide_oom(replace(FULL, usable=FreePieces(MIB, 2, MIB))).reason.startswith(
        "torch had 1.00 MiB cached"
    )


@pytest.mark.parametrize(
    ("cached", "words"),
    [
        (70 * MIB - 1, "with an allocator of its own"),
        (
            70 * MIB,
            "; in one piece, the 70.00 MiB that torch had cached and the 50.00 MiB free would do as "
            "well",
        ),
        (100 * MIB, "; in one piece, the 100.00 MiB that torch had cached would do as well"),
    ],
)
def test_cached_memory_that_would_do_is_named_beside_what_is_held_outside(cached, words):
    pieces = FreePieces(cached, 20, 30 * MIB)
    verdict = decide_oom(replace(FULL, usable=pieces, device_total_bytes=TOTAL + 6 * GIB))
    assert verdict.cause == "held outside torch"
    assert verdict.reason.endswith(words)
