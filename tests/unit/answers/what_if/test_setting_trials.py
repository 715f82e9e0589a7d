"""What is tried, in which order it is shown, and what is said of the figures."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from snapconv.allocator.allocator_settings import MIB
from snapconv.answers.what_if.setting_trials import (
    OWN,
    OWN_PLACED_ANEW,
    SEARCHED,
    Request,
    read_setting,
)
from snapconv.classification.categories import Category
from snapconv.hypotheses.batch_growth import scaled_requests
from snapconv.phases.trace_phases import Phase
from snapconv.session import load
from tests.builders import TraceBuilder
from tests.metadata_builder import metadata

FIXTURES = Path(__file__).parents[4] / "fixtures"


@pytest.fixture
def tried_on(tmp_path):
    def run(builder, request):
        (found,) = load(builder.write(tmp_path / "snapshot.pickle")).what_if(request)
        return found

    return run


def two_segments():
    """40 MiB reserved for 36 MiB: each segment has two blocks of 9 and 2 MiB that are free."""
    builder = TraceBuilder()
    for _ in range(2):
        builder.segment(20 * MIB, segment_type="large").alloc(9 * MIB).alloc(9 * MIB)
    return builder


def test_the_own_settings_come_first_and_alternatives_as_given(tried_on):
    own = "expandable_segments:False"  # not tried again
    found = tried_on(
        two_segments(), Request((own, "max_split_size_mb:64", "expandable_segments:True"))
    )
    assert [one.name for one in found.tried] == [
        OWN,
        "max_split_size_mb:64",
        "expandable_segments:True",
    ]
    assert (
        found.recorded["peak_reserved"]
        == found.tried[0].outcome.ledger.max_reserved_bytes
        == 40 * MIB
    )
    assert found.model_is_exact
    assert found.estimated == ()


def test_a_value_that_the_release_of_the_file_refuses_is_tried_with_a_word_about_it(tmp_path):
    """torch before 2.10 takes sizes above 20 MiB alone (settings_of_torch.tsv)."""
    sizes = ("max_split_size_mb:20", "max_split_size_mb:21")
    for release, refused in (
        ("2.9.1", {sizes[0]: "torch 2.9.1 refuses this value"}),
        ("2.10.0", {}),
    ):
        recorded = metadata(torch=release)
        session = load(two_segments().write(tmp_path / "s.pickle", snapconv=recorded))
        (trials,) = session.what_if(Request(sizes))
        assert trials.refused == refused


def test_a_search_ranks_by_what_is_reserved_and_puts_what_runs_out_last(tried_on):
    found = tried_on(two_segments(), Request(is_search=True, capacity=39 * MIB))
    outcomes = [one.outcome for one in found.tried[1:]]
    refused = {SEARCHED[-1]: "torch before 2.10 refuses per_process_memory_fraction"}
    assert found.refused == refused
    assert {one.name for one in found.tried} == {OWN, *SEARCHED} - refused.keys()
    keys = [
        (outcome.ran_out is not None, outcome.ledger.max_reserved_bytes) for outcome in outcomes
    ]
    assert keys == sorted(keys)
    assert found.tried[0].outcome.ran_out is not None


def test_settings_that_begin_otherwise_are_compared_from_the_same_beginning(tried_on):
    builder = TraceBuilder().segment(40 * MIB, traced=False, segment_type="large")
    builder.alloc(5 * MIB, traced=False).alloc(6 * MIB)
    found = tried_on(builder, Request(("roundup_power2_divisions:4",)))
    assert [one.name for one in found.tried[:2]] == [OWN, OWN_PLACED_ANEW]
    assert [one.outcome.ledger.max_reserved_bytes for one in found.tried[:2]] == [
        40 * MIB,
        20 * MIB,
    ]
    assert any("placed anew" in reason for reason in found.estimated)


def test_a_failed_request_gives_the_capacity(tried_on):
    builder = two_segments().oom(22 * MIB, device_free=10 * MIB)
    found = tried_on(builder, Request(("expandable_segments:True",)))
    assert found.estimated == ()
    assert found.capacity_bytes == 50 * MIB
    assert found.capacity_from == "as torch had when event 6 failed"
    assert [one.outcome.ran_out is None for one in found.tried] == [False, False]
    # 36 MiB of blocks and 22 fit into three pages of 20 MiB; another segment of 22 MiB does not
    # fit.
    found = tried_on(builder, Request(("expandable_segments:True",), capacity=60 * MIB))
    assert [one.outcome.ran_out is None for one in found.tried] == [False, True]


@pytest.mark.parametrize("is_simulated", [False, True])
def test_a_card_is_less_what_a_failed_request_shows_outside_of_torch(is_simulated, tmp_path):
    # 100 MiB of the device, 40 reserved, 10 free: 50 are not torch's. A simulation does not show
    # it.
    simulated = {"simulated": {"compute": False}} if is_simulated else {}
    recorded = metadata(devices=[{"device": 0, "total_bytes": 100 * MIB}], **simulated)
    builder = two_segments().oom(30 * MIB, device_free=10 * MIB)
    session = load(builder.write(tmp_path / "snapshot.pickle", snapconv=recorded))
    assert session.snapshot.metadata is not None
    request = Request(card_bytes=200 * MIB)
    (found,) = session.what_if(replace(request, card_bytes=2 << 30) if is_simulated else request)
    assert found.capacity_bytes == ((1 << 30) if is_simulated else 150 * MIB)
    assert found.capacity_from == (
        "2.00 GiB less 1.00 GiB outside PyTorch (estimated; --capacity is exact)"
        if is_simulated
        else "200.00 MiB less 50.00 MiB outside PyTorch, as when a request failed"
    )


def test_a_fraction_is_of_the_whole_card(tried_on):
    # Of 1079 MiB 1 GiB is taken for what is not torch's: a half is more than the 55 that are left,
    # no limit.
    card, settings = (
        1079 * MIB,
        ("per_process_memory_fraction:0.5", "per_process_memory_fraction:0.02"),
    )
    found = tried_on(two_segments(), Request(settings, card_bytes=card))
    assert found.capacity_bytes == 55 * MIB
    assert [one.outcome.trial.limit for one in found.tried] == [None, card // 2, int(0.02 * card)]
    assert [one.outcome.ran_out is None for one in found.tried] == [True, True, False]


def test_without_a_card_the_own_fraction_has_left_what_torch_can_have(tmp_path):
    conf = "per_process_memory_fraction:0.5,garbage_collection_threshold:0.9"
    settings = {"PYTORCH_CUDA_ALLOC_CONF": conf, "garbage_collection_threshold": 0.9}
    session = load(two_segments().write(tmp_path / "snapshot.pickle", allocator_settings=settings))
    (found,) = session.what_if(Request(("per_process_memory_fraction:0.75",), capacity=40 * MIB))
    assert [one.outcome.trial.limit for one in found.tried] == [40 * MIB, 30 * MIB]
    assert found.tried[0].outcome.ran_out is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("expandable_segments", "expandable_segments must be True or False, got ''"),
        ("", "expected key:value, got nothing"),
        (
            "backend:cudaMallocAsync",
            "the model has no setting 'backend', or it moves no blocks; it has: expand",
        ),
        ("expandable_segments:true", "expandable_segments must be True or False, got 'true'"),
        ("max_split_size_mb:five", "max_split_size_mb must be an integer"),
        ("per_process_memory_fraction:2", "must be from 0 to 1"),
    ],
)
def test_a_setting_that_cannot_be_tried_is_refused(text, reason):
    with pytest.raises(ValueError, match=reason):
        read_setting(text)


def test_another_batch_is_estimated_by_category():
    """Weights, states and gradients stay; of temporaries those of the optimizer's step too."""
    (analysis,) = load(FIXTURES / "training_step.pickle").devices
    sizes, scaled = analysis.allocations.requested_bytes, scaled_requests(analysis, 2)
    category, phase = analysis.classification.category, analysis.features.alloc_phase
    fixed = np.isin(category, (Category.WEIGHT, Category.OPTIMIZER_STATE, Category.GRADIENT))
    temporary = (category == Category.TEMPORARY) & (phase >= 0)
    assert (scaled[fixed] == sizes[fixed]).all()
    assert (scaled == 2 * sizes)[category == Category.ACTIVATION].all()
    assert set((scaled // sizes)[temporary & (phase == Phase.OPTIMIZER)].tolist()) == {1}
    assert set((scaled // sizes)[temporary & (phase != Phase.OPTIMIZER)].tolist()) == {2}
    (trials,) = load(FIXTURES / "training_step.pickle").what_if(Request(), batch_scale=2)
    assert (
        trials.tried[0].outcome.ledger.max_allocated_bytes > 1.4 * trials.recorded["peak_allocated"]
    )


def test_a_trace_that_lost_events_gives_estimates(tried_on):
    builder = two_segments()
    builder.events[:] = [{**builder.events[1], "action": "free_completed"}, *builder.events]
    assert tried_on(builder, Request(is_search=True)).estimated != ()


def test_a_replay_unlike_the_record_proves_nothing(tried_on):
    found = tried_on(two_segments(), Request(("expandable_segments:True",)))
    assert found.unsure == ""
    unlike = replace(found, recorded={**found.recorded, "peak_reserved": 50 * MIB})
    assert "reserves 40.00 MiB, the program reserved 50.00 MiB" in unlike.unsure
    assert replace(unlike, capacity_bytes=45 * MIB).unsure == ""
    found = tried_on(two_segments().oom(22 * MIB, device_free=10 * MIB), Request())
    found.tried[0].outcome.served.append(6)
    assert "serves the request that failed at event 6" in found.unsure
