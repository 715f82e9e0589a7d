"""Savings that need more than the change itself, and savings that reach further than it seems."""

import pytest

import snapconv
from snapconv.answers.advice import findings
from tests.builders import MIB, TraceBuilder, frame
from tests.faulty_jobs import BACKWARD, PLACEMENT, STEP, TORCH, Job, at, layer
from tests.metadata_builder import memory_row, metadata, parameter

CAST = frame("at::autocast::cached_cast(c10::ScalarType, at::Tensor const&)", "??", 0)
CHECKPOINT = frame("checkpoint", f"{TORCH}/utils/checkpoint.py", 519)
ENGINE = at(30, *reversed(BACKWARD))
SIZE = 10 * MIB
BY_POSITION = "pass the tensors to checkpoint() by position. Keywords do not reach these hooks."


def steps_with_a_gradient(*, is_set_to_none):
    """Steps of a model with one large weight; backward adds to the gradient that is there."""
    job, gradient = Job(TraceBuilder().segment(1 << 30, traced=False)), None
    job.alloc(SIZE, at(5, PLACEMENT))
    for _ in range(3):
        loss = job.forward(20, [MIB])
        job.free(loss, ENGINE)
        incoming = job.alloc(SIZE, ENGINE)
        if gradient is None:
            gradient = incoming
        else:
            job.free([incoming], ENGINE)
        job.trace.alloc(512, frames=STEP).free(frames=STEP)
        if is_set_to_none:
            job.free([gradient], at(31, frame("zero_grad", f"{TORCH}/optim/optimizer.py")))
            gradient = None
    return job


def advice_with_names(job, path):
    """Advice on a recording that names the weight and its gradients."""
    weight, *gradients = (
        one for one in job.trace.events if (one["action"], one["size"]) == ("alloc", SIZE)
    )
    rows = [
        memory_row(one["addr"], SIZE, one["time_us"], parameter=0, iteration=0)
        for one in gradients[:1]
    ]
    names = [parameter("weight", weight["addr"], SIZE, weight["time_us"])]
    (advice,) = snapconv.load(
        job.trace.write(path, snapconv=metadata(parameters=names, gradients=rows))
    ).advise()
    return advice


def test_without_a_gradient_backward_does_not_hold_it_twice(tmp_path):
    """Autograd takes over the incoming gradient where there is none: a large embedding has it once."""
    kept, cleared = (
        advice_with_names(steps_with_a_gradient(is_set_to_none=one), tmp_path / f"{one}.pickle")
        for one in (False, True)
    )
    (fault,) = kept.faults
    assert (fault.kind, fault.held_bytes, kept.peak.n_bytes) == ("gradients-kept", SIZE, 3 * SIZE)
    assert (fault.peak.n_bytes, cleared.faults) == (cleared.peak.n_bytes, ())


def casts_and_temporaries():
    """A step whose temporaries are nearly as much as what autocast caches in forward."""
    job = Job()
    for i in range(4):
        job.alloc(6 * MIB, at(5, PLACEMENT, frame("build", line=i)))
    copies = [job.alloc(3 * MIB, at(20, *layer(i), CAST)) for i in range(4)]
    job.free(copies, at(20, frame("__exit__", f"{TORCH}/amp/autocast_mode.py", 349)))
    temporaries = [job.alloc(5 * MIB // 2, STEP) for _ in range(4)]
    job.free(temporaries, STEP)
    return job


def test_what_a_saving_is_beside_is_shown_though_alone_it_is_small(advice_on, monkeypatch):
    """Each hides the saving of the other."""
    monkeypatch.setattr(findings, "_LEAST_SHARE", 0.1)
    advice = advice_on(casts_and_temporaries())
    shown = {
        one.kind: (advice.peak.n_bytes - one.peak.n_bytes, one.saved_bytes)
        for one in advice.findings
    }
    assert shown == {"foreach": (0, 7 * MIB), "autocast-cache": (2 * MIB, 2 * MIB)}


def checkpointed_blocks(*inner):
    """A step of eight blocks, each called by ``checkpoint``, which keeps its input for backward."""
    job = Job()
    job.alloc(MIB, at(5, PLACEMENT))
    outputs = [job.alloc(4 * MIB, at(20, *inner, *layer(i))) for i in range(8)]
    for addr in outputs[::-1]:
        job.trace.alloc(4 * MIB, frames=ENGINE).free(frames=ENGINE)
        job.free([addr], ENGINE)
    job.trace.alloc(512, frames=STEP).free(frames=STEP)
    return job, outputs


def hints_of(advice):
    (trade,) = (finding for finding in advice.findings if finding.kind == "offloading")
    return [line for line in trade.how if "checkpoint()" in line]


@pytest.mark.parametrize(
    ("inner", "hint"),
    [
        ((), []),
        (
            (CHECKPOINT,),
            [
                (
                    f"Before that, if they are passed by keyword, which the file does not show: "
                    f"{BY_POSITION}"
                )
            ],
        ),
    ],
)
def test_inputs_of_checkpoints_reach_hooks_by_position_alone(advice_on, inner, hint):
    job, _ = checkpointed_blocks(*inner)
    assert hints_of(advice_on(job, trades=True)) == hint


@pytest.mark.parametrize("is_saved", [True, False])
def test_a_recording_shows_whether_inputs_of_checkpoints_are_passed_by_keyword(tmp_path, is_saved):
    job, outputs = checkpointed_blocks(CHECKPOINT)
    allocs = [event for event in job.trace.events if event["action"] == "alloc"]
    times = {event["addr"]: event["time_us"] for event in reversed(allocs)}
    wanted = outputs if is_saved else outputs[-1:]
    saved = [memory_row(addr, 4 * MIB, times[addr], iteration=0, module=None) for addr in wanted]
    path = job.trace.write(tmp_path / "s.pickle", snapconv=metadata(saved=saved, phases=[]))
    (advice,) = snapconv.load(path).advise(trades=True)
    assert hints_of(advice) == ([] if is_saved else [f"Before that, {BY_POSITION}"])
