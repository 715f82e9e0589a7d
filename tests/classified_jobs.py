"""What a program did to memory, as small as a test needs it, and how its allocations are classified."""

import pickle
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from scripts.fixtures.recorded_allocator import RecordedAllocator
from snapconv.classification.categories import Category, Certainty, Evidence
from snapconv.classification.classify import classify
from snapconv.classification.features import Features, find_features
from snapconv.phases.trace_phases import find_phases
from snapconv.replay.device_replay import replay
from snapconv.snapshot.load import load_snapshot
from snapconv.stacks.stack_roles import assign_roles

SITE = "/opt/venv/lib/python3.11/site-packages"
TORCH = f"{SITE}/torch"
SUBJECT, OTHER = 7000, 600  # bytes of the allocation that a test is about, and of its neighbours
WORKSPACE_BYTES = 8_519_680


Stack = list[dict[str, Any]]
Found = tuple[Category, Evidence, str]


def frames(*stack: tuple[str, str]) -> Stack:
    return [{"name": name, "filename": file, "line": 1} for name, file in stack]


def cpp(name: str) -> tuple[str, str]:
    return (name, "??")


MAIN = frames(("main", "/w/proj/train.py"))
LOAD = frames(("load_batch", "/w/proj/data.py")) + MAIN
COPY = frames(cpp("at::_ops::_to_copy::call(at::Tensor const&)")) + LOAD
INDEX = frames(cpp("at::_ops::index_Tensor::call(at::Tensor const&)")) + LOAD
LOSS = frames(("cross_entropy", f"{TORCH}/nn/functional.py")) + MAIN
CRITERION = frames(
    ("forward", f"{TORCH}/nn/modules/loss.py"), ("_call_impl", f"{TORCH}/nn/modules/module.py")
) + MAIN  # fmt: skip
CALL = frames(("_call_impl", f"{TORCH}/nn/modules/module.py")) + MAIN
FORWARD = frames(("forward", "/w/proj/model.py")) + CALL
LAYER = frames(("forward", f"{TORCH}/nn/modules/linear.py")) + CALL
LOAD_IN_FORWARD = LOAD[:1] + FORWARD
CACHE_UPDATE = frames(("update", f"{SITE}/transformers/cache_utils.py")) + FORWARD
REORDER_CACHE = frames(("reorder_cache", f"{SITE}/transformers/cache_utils.py")) + MAIN
ENGINE_FRAMES = (cpp("torch::autograd::Engine::evaluate_function(int)"),)
ENGINE = frames(*ENGINE_FRAMES)
RELEASE = frames(cpp("torch::autograd::generated::MulBackward0::release_variables()")) + ENGINE
ADD_TO_GRADIENT = (
    frames(cpp("torch::autograd::AccumulateGrad::apply(std::vector<at::Tensor>&&)")) + ENGINE
)
DESTROYED = frames(cpp("torch::autograd::generated::MulBackward0::~MulBackward0()")) + MAIN
LEAF_DROPPED = frames(cpp("torch::autograd::AccumulateGrad::release_resources()")) + DESTROYED
DESTROYED_IN_FORWARD = DESTROYED[:1] + FORWARD
STEP = frames(("_multi_tensor_adamw", f"{TORCH}/optim/adamw.py")) + MAIN
ZERO_GRAD = frames(("zero_grad", f"{TORCH}/optim/optimizer.py")) + MAIN
RELEASE_IN_ZERO_GRAD = RELEASE[:1] + ZERO_GRAD
COMPILED_FILE = f"/tmp/torchinductor_me/ab/c{'a' * 51}.py"
# A compiled backward; torch puts the lines that it was made of behind its frame.
COMPILED_LAYERS = frames(("call", COMPILED_FILE)) + CALL
COMPILED = frames(("call", COMPILED_FILE), ("forward", "/w/proj/model.py"), *ENGINE_FRAMES)
# A hook of a gradient, on the engine's own thread; and what steps in one.
HOOK = frames(("hook", "/w/proj/train.py"), *ENGINE_FRAMES)
HOOK_STEP = frames(("_multi_tensor_adamw", f"{TORCH}/optim/adamw.py")) + HOOK
CUSTOM_BACKWARD = frames(
    ("backward", "/w/proj/ops.py"), ("apply", f"{TORCH}/autograd/function.py"), *ENGINE_FRAMES
)
RECOMPUTE = frames(
    ("forward", "/w/proj/model.py"), ("recompute_fn", f"{TORCH}/utils/checkpoint.py")
)
# Modules that run again in backward, for a checkpoint.
RECOMPUTED = FORWARD[:2] + RECOMPUTE + ENGINE
RECOMPUTED_LAYER = LAYER[:1] + RECOMPUTE + ENGINE
NESTED = frames(
    ("backward", f"{TORCH}/autograd/__init__.py"), ("backward", f"{TORCH}/utils/checkpoint.py")
)
# The sizes of a model's parameters.
SHAPES = (7000, 9000)
CLONE = frames(cpp("at::_ops::clone::call(at::Tensor const&)")) + MAIN
ZEROS = frames(cpp("at::_ops::zeros_like::call(at::Tensor const&)")) + MAIN
APPLY = frames(("_apply", f"{TORCH}/nn/modules/module.py")) + MAIN
APPLY_IN_BACKWARD = APPLY[:1] + ENGINE
DROP = frames(("drop", "/w/proj/cache.py")) + MAIN
DIVIDE = frames(cpp("at::_ops::div_Tensor::call(at::Tensor const&, at::Tensor const&)")) + MAIN
MATMUL = frames(cpp("at::_ops::addmm::call(at::Tensor const&)"), ("mlp", "/w/proj/train.py")) + MAIN
BUILD_OPTIMIZER = frames(("__init__", f"{TORCH}/optim/adagrad.py")) + MAIN
NO_FRAMES: Stack = []
ANNOTATIONS = {
    "step": "Optimizer.step#AdamW.step",
    "zero_grad": "Optimizer.zero_grad#AdamW.zero_grad",
}
STACKS = {
    name: value for name, value in globals().items() if name.isupper() and isinstance(value, list)
}


class Job:
    """What a program did. A free without a stack has that of its alloc, as with context='alloc'."""

    def __init__(self) -> None:
        ticks = count(1000)
        self.now: Callable[[], int] = lambda: next(ticks)
        self.model = RecordedAllocator(clock=self.now)
        self.annotations: list[dict[str, Any]] = []

    def alloc(self, stack: Stack | None, size: int = SUBJECT) -> int:
        return self.model.malloc(size, frames=stack)

    def older(self, stack: Stack, size: int = SUBJECT) -> int:
        """Allocate before recording began."""
        self.model.stop_recording()
        addr = self.model.malloc(size, frames=stack)
        self.model.start_recording()
        return addr

    def free(self, addr: int, stack: Stack | None = None) -> None:
        """Free on the next line of the code that the stack names."""
        self.model.free(addr, frames=stack and [{**frame, "line": 2} for frame in stack])

    def does(self, *stacks: Stack) -> None:
        """Show these phases, by an allocation of each that is freed by the same code."""
        for stack in stacks:
            self.free(self.alloc(stack, OTHER), stack)

    def note(self, name: str, stage: str) -> None:
        self.annotations.append({"name": name, "stage": stage, "device": 0, "time_us": self.now()})

    def snapshot(self) -> dict[str, Any]:
        return {**self.model.snapshot(), "external_annotations": self.annotations}


def with_copies(
    *stacks: Stack | None,
    factor: int = 1,
    shapes: tuple[int, ...] = SHAPES,
    is_late: bool = False,
    engine: Stack = ENGINE,
) -> Job:
    """A model whose weights have gradients, and what lines make beside every one of them."""
    job = Job()

    def make() -> None:
        for stack in stacks:
            for size in shapes:
                job.alloc(stack, factor * size)

    for size in SHAPES:
        job.alloc(APPLY, size)
    if not is_late:
        make()
    job.does(FORWARD)
    gradients = [job.alloc(engine, size) for size in SHAPES]
    if is_late:
        make()
    for addr in gradients:
        job.free(addr, ZERO_GRAD)
    return job


def at_line(stack: Stack, line: int) -> Stack:
    """The same code, with its innermost frame at another line."""
    return [{**stack[0], "line": line}, *stack[1:]]


def job_of(life: str) -> Job:
    """Live a life, whose steps are separated by commas; "3 x (…)" repeats some.

    alloc STACK, older STACK   SUBJECT bytes, with "+1" and so on more, as few as OTHER with "other"
    does STACK…, passes STACK… others allocate and free; without a stack of the free
    free STACK, drop STACK     the oldest block, on the next line of the stack or on the same
    begin step, end zero_grad  annotations
    A word in small letters names a block; "free" it without a stack, and the free has that of its
    alloc.
    """
    job, blocks = Job(), dict[str, int]()
    life = re.sub(r"(\d+) x \((.*?)\)", lambda found: ", ".join([found[2]] * int(found[1])), life)
    for number, step in enumerate(life.split(", ")):
        verb, *words = step.split()
        stacks = [STACKS[word] for word in words if word in STACKS]
        stack = stacks[0] if stacks else None
        name = next((word for word in words if word.islower() and word != "other"), None)
        match verb:
            case "begin" | "end":
                job.note(ANNOTATIONS[words[0]], "START" if verb == "begin" else "END")
            case "does":
                job.does(*stacks)
            case "passes":
                for one in stacks:
                    job.free(job.alloc(one, OTHER))
            case "alloc" | "older":
                more = sum(int(word) for word in words if word.startswith("+"))
                size = OTHER if "other" in words else SUBJECT + more
                blocks[name or str(number)] = {"alloc": job.alloc, "older": job.older}[verb](
                    stack or [], size
                )
            case "free":
                job.free(blocks.pop(name or next(iter(blocks))), stack)
            case "drop":
                job.model.free(blocks.pop(name or next(iter(blocks))), frames=stack)
    return job


def classified(
    job: Job, path: Path, size: int | None = SUBJECT, *, has_marked_phases: bool = False
) -> list[Found]:
    """Category, evidence and reason of a job's allocations of a size, older ones first: if they are certain.

    Without a size of all but OTHER. ``has_marked_phases``: as if a recorder had marked what the
    stacks show.
    """
    features = features_of(job, path, has_marked_phases=has_marked_phases)
    made = classify(features)
    return [
        (Category(made.category[i]), Evidence(made.evidence[i]), made.reasons[made.reason_id[i]])
        if made.is_certain[i] or not made.category[i]
        else (Category.UNKNOWN, Evidence.NONE, "likely")
        for i in np.flatnonzero(features.sizes != OTHER if size is None else features.sizes == size)
    ]


def likely(job: Job, path: Path, size: int = SUBJECT) -> list[tuple[Category, float]]:
    """Category and probability of a job's allocations of a size that are likely, older ones first."""
    features = features_of(job, path)
    made = classify(features)
    return [
        (Category(made.category[i]), round(float(made.probability[i]), 2))
        for i in np.flatnonzero((features.sizes == size) & (made.certainty == Certainty.LIKELY))
    ]


def features_of(job: Job, path: Path, *, has_marked_phases: bool = False) -> Features:
    """What the rules see of a job's allocations."""
    path.write_bytes(pickle.dumps(job.snapshot()))
    snapshot = load_snapshot(path)
    device = snapshot.devices[0]
    found, roles = replay(snapshot, device), assign_roles(snapshot.stacks)
    phases = find_phases(snapshot, device, found.allocations, roles)
    return find_features(found, replace(phases, is_recorded=has_marked_phases), roles)


def categories(rows: Iterable[Found]) -> list[Category]:
    return [category for category, *_ in rows]
