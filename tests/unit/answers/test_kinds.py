"""Each kind of advice, found alone in a job of its own: a new kind without a job fails here."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import snapconv
from snapconv.answers.advice import findings
from snapconv.answers.advice.evidence import Kind
from snapconv.answers.advice.findings import KINDS
from tests.builders import MIB, frame
from tests.faulty_jobs import steps_that_collect
from tests.unit.answers.test_adapter_inputs import steps
from tests.unit.answers.test_advice import (
    CALL,
    ENGINE,
    TORCH,
    Loop,
    at,
    forwards,
    layer,
    outputs,
    training,
)
from tests.unit.answers.test_advice_copies import bucketed, gathered, loaded, saving
from tests.unit.answers.test_autocast_cache import run
from tests.unit.answers.test_concatenated_gradients import Steps
from tests.unit.answers.test_look_alikes import Built, batches, collected, copies, later
from tests.unit.answers.test_streams import calling, gathering, setting_up

FIXTURES = Path(__file__).parents[3] / "fixtures"


def backwards(*made: tuple[int, list[Any]]) -> Loop:
    """Steps that make some allocations, each of a size at a stack, and free them in backward."""
    loop = Loop()
    for _ in range(2):
        saved = [loop.alloc(size * MIB, stack) for size, stack in made]
        for addr in reversed(saved):
            loop.trace.free(addr, frames=ENGINE)
    return loop


def operation(name: str, *stack: Any) -> list[Any]:
    return [frame(f"at::_ops::{name}::call(at::Tensor const&)", "??"), *stack]


def in_functional(name: str, line: int) -> list[Any]:
    return [frame(name, f"{TORCH}/nn/functional.py", line), CALL, *at(20)]


def scores() -> Loop:
    inner = frame("attention", "/home/me/project/model.py", 13)
    sizes = (("linear", 6), ("clone", 2), ("bmm", 16), ("_softmax", 16), ("bmm", 2))
    return backwards(*((size, operation(name, inner, CALL, *at(20))) for name, size in sizes))


def silu(name: str = "silu", second: int = 8, *, is_kept: bool = True) -> Loop:
    """Steps of three layers that compute a sigmoid of 8 MiB and multiply it."""
    loop = Loop()
    stack = [frame(name, "/home/me/project/layers.py", 5), CALL, *at(20)]
    for _ in range(2):
        saved = []
        for _ in range(3):
            saved.append(loop.alloc(8 * MIB, operation("linear", CALL, *at(20))))
            sigmoid = loop.alloc(8 * MIB, operation("sigmoid", *stack))
            saved.append(loop.alloc(second * MIB, operation("mul_Tensor", *stack)))
            if is_kept:
                saved.append(sigmoid)
            else:
                loop.trace.free(sigmoid, frames=stack)
        for addr in reversed(saved):
            loop.trace.free(addr, frames=ENGINE)
    return loop


def masks() -> Loop:
    sizes = ((8, 6370), (2, 6400))
    function = "multi_head_attention_forward"
    return backwards(*((size, in_functional(function, line)) for size, line in sizes * 2))


def mask_copies(n_calls: int = 3) -> Loop:
    loop = Loop()
    attention = operation("scaled_dot_product_attention", CALL, *at(20))
    for _ in range(2):
        saved = []
        for _ in range(n_calls):
            saved.append(loop.alloc(8 * MIB, operation("zeros_like", *attention)))
            inverse = loop.alloc(2 * MIB, operation("logical_not", *attention))
            loop.trace.free(inverse, frames=attention)
            saved.append(loop.alloc(1 * MIB, attention))
        for addr in reversed(saved):
            loop.trace.free(addr, frames=ENGINE)
    return loop


def last_segment() -> Loop:
    file = f"{TORCH}/utils/checkpoint.py"
    segments = [CALL, frame("checkpoint_sequential", file, 640), *at(20)]
    loop = Loop()
    for _ in range(2):
        saved = [loop.alloc(4 * MIB, operation("linear", *segments)) for _ in range(4)]
        saved.append(loop.alloc(8 * MIB, operation("linear", CALL, *at(22))))
        for addr in reversed(saved):
            loop.trace.free(addr, frames=ENGINE)
    return loop


def logits() -> Loop:
    return backwards(
        (16, operation("linear", *at(20, *layer(1)))),
        (16, operation("log_softmax", *in_functional("cross_entropy", 3100))),
    )


def states() -> Loop:
    loop = Loop()
    for _ in range(4):
        loop.alloc(4 * MIB, at(31, frame("_init_group", f"{TORCH}/optim/adam.py")))
    return loop


def modules_with_names() -> Path:
    return FIXTURES / "transformer.capture"


class Job(NamedTuple):
    """A job, and the kind of advice that its detector finds there: a row for each of KINDS."""

    kind: str
    detector: str
    make: Callable[[], Any]


JOBS = (
    Job("weights-copied", "loaded_weights", loaded),
    Job("weights-copied", "cloned_weights", lambda: copies(validates=True)),
    Job("batches-early", "early_batches", batches),
    Job("previous-kept", "previous_kept", lambda: outputs(deletes=False)),
    Job("gradients-kept", "kept_gradients", lambda: training(zero_grad_after=False)),
    Job("gradient-views", "views_of_gradients", Steps),
    Job("unused-graph", "unused_graphs", lambda: forwards(keeps=False)),
    Job("graphs-kept", "kept_graphs", lambda: forwards(keeps=True)),
    Job("garbage", "garbage", steps_that_collect),
    Job("growing", "growing", collected),
    Job("open-graph", "open_graphs", lambda: later(1)),
    Job("autocast-cache", "autocast_cache", lambda: Built(run(cpp=True))),
    Job("autocast-cache-in-use", "autocast_cache", lambda: Built(run(cpp=True, again=1))),
    Job("late-frees", "late_frees", lambda: Built(gathering())),
    Job("idle-cache", "idle_caches", lambda: Built(setting_up())),
    Job("many-streams", "scattered_caches", lambda: Built(calling([1, 2, 3, 4]))),
    Job("buckets", "copied_gradients", bucketed),
    Job("unsharded", "gathered_shards", gathered),
    Job("logits", "full_logits", logits),
    Job("attention", "attention_scores", scores),
    Job("silu", "written_out_silu", silu),
    Job("masks", "merged_masks", masks),
    Job("mask-copies", "converted_masks", mask_copies),
    Job("adapter-inputs", "adapter_inputs", steps),
    Job(
        "foreach",
        "foreach_temporaries",
        lambda: training(zero_grad_after=True, temporaries=[3 * MIB] * 4),
    ),
    Job("checkpointing", "checkpointed_modules", modules_with_names),
    Job("last-segment", "last_segments", last_segment),
    Job("offloading", "offloaded", saving),
    Job("states", "full_states", states),
    Job("batch", "smaller_batch", lambda: outputs(deletes=True)),
)


def detector_of(kind: Kind) -> str:
    return getattr(kind.detect, "func", kind.detect).__name__


def test_every_kind_of_advice_has_a_job_in_which_it_is_found():
    jobs = [(job.kind, job.detector) for job in JOBS]
    assert jobs == [(kind.slug, detector_of(kind)) for kind in KINDS]


@pytest.mark.parametrize(
    ("job", "kind"),
    [
        pytest.param(job, kind, id=f"{job.kind}: {job.detector}")
        for job, kind in zip(JOBS, KINDS, strict=False)
    ],
)
def test_a_kind_of_advice_is_found_in_its_job_by_its_own_detector(job, kind, tmp_path, monkeypatch):
    monkeypatch.setattr(findings, "KINDS", (kind,))
    made = job.make()
    file = made if isinstance(made, Path) else made.trace.write(tmp_path / "s.pickle")
    (advice,) = snapconv.load(file).advise(goal_bytes=MIB)
    assert {finding.kind for finding in advice.findings} == {job.kind}
    assert all(finding.saved_bytes > 0 for finding in advice.findings)
