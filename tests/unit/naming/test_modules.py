"""Which module an allocation is of, from hand-made stacks and notes; event ``i`` is at START_US + i."""

import pytest

from snapconv.analysis import analyze_device
from snapconv.classification.categories import Evidence
from snapconv.snapshot.load import load_snapshot
from snapconv.stacks.project_frames import find_project
from snapconv.stacks.stack_facts import StackFacts
from tests.builders import ADDR, START_US, TraceBuilder, frame
from tests.metadata_builder import memory_row, metadata, parameter

TORCH = "/opt/venv/lib/python3.11/site-packages/torch"
LINEAR = frame("forward", f"{TORCH}/nn/modules/linear.py", 125)
IN_SEQUENTIAL = frame("forward", f"{TORCH}/nn/modules/container.py", 250)
CALL = [
    frame("_call_impl", f"{TORCH}/nn/modules/module.py", 1784),
    frame("_wrapped_call_impl", f"{TORCH}/nn/modules/module.py", 1773),
]
CPP = frame("_PyEval_EvalFrameDefault", "??", 0)
MAIN = frame("main", "/home/me/project/train.py", 53)


def forward(line: int, file: str = "/home/me/project/net/model.py"):
    return frame("forward", file, line)


def called(*frames):
    """These frames, innermost first, with a call of a module behind each but the last."""
    return [part for one in frames for part in (one, *CALL)][: -len(CALL)]


@pytest.fixture
def modules_of(tmp_path):
    """The module of each allocation, in order, with its evidence; None where it has none."""

    def modules_of(builder, **fields):
        snapshot = load_snapshot(builder.write(tmp_path / "s.pickle", **fields))
        project = find_project(snapshot.stacks, root="/home/me/project")
        found = analyze_device(
            snapshot, snapshot.devices[0], StackFacts(snapshot.stacks, project)
        ).modules
        return [
            (found.names[i], found.evidence[i]) if i >= 0 else None
            for i in found.module_id.tolist()
        ]

    return modules_of


@pytest.mark.parametrize(
    ("frames", "name"),
    [
        ([MAIN], None),
        ([], None),
        (called(forward(9), MAIN), "train.py:53"),
        (called(LINEAR, forward(35), MAIN), "net/model.py:35 < train.py:53"),
        ([LINEAR, CPP, *CALL, CPP, forward(35), *CALL, MAIN], "net/model.py:35 < train.py:53"),
        # Module.to is in the same file as the call of a module.
        ([frame("_apply", f"{TORCH}/nn/modules/module.py"), MAIN], None),
        (
            called(forward(9), forward(35), forward(61), MAIN),
            "net/model.py:35 < net/model.py:61 < train.py:53",
        ),
        # A Sequential calls all its modules on one line, which is no evidence.
        (called(LINEAR, IN_SEQUENTIAL, forward(35), MAIN), "net/model.py:35 < train.py:53"),
        # Functions between a module and the call of another are no modules.
        ([LINEAR, *CALL, forward(20), forward(35), *CALL, MAIN], "net/model.py:20 < train.py:53"),
        (
            called(LINEAR, forward(7, "/x/site-packages/hf/bert.py"), MAIN),
            "hf/bert.py:7 < train.py:53",
        ),
        (called(LINEAR, forward(0), MAIN), "net/model.py < train.py:53"),
        # A function of that name elsewhere is no call of a module.
        ([forward(9), frame("_call_impl", "/home/me/project/own.py", 3), MAIN], None),
    ],
)
def test_a_module_is_named_by_the_lines_that_call_it_and_those_around_it(modules_of, frames, name):
    found = modules_of(TraceBuilder().segment().alloc(512, frames=frames))
    assert found == [name and (name, Evidence.FRAMES)]


def test_of_a_deep_recursion_the_innermost_calls_are_kept(modules_of):
    frames = called(LINEAR, *(forward(line) for line in range(1, 100)), MAIN)
    ((name, _),) = modules_of(TraceBuilder().segment().alloc(512, frames=frames))
    assert name.split(" < ")[:2] == ["net/model.py:1", "net/model.py:2"]
    assert len(name.split(" < ")) == 12


def test_a_workspace_is_of_no_module(modules_of):
    blas = frame("at::cuda::getCurrentCUDABlasHandle()", "??", 0)
    frames = called(LINEAR, forward(35), MAIN)
    found = modules_of(
        TraceBuilder().segment().alloc(512, frames=[blas, *frames]).alloc(512, frames=frames)
    )
    assert found == [None, ("net/model.py:35 < train.py:53", Evidence.FRAMES)]


def test_gradients_and_states_are_of_the_module_of_their_parameter(modules_of):
    builder = TraceBuilder().segment()
    for size in (512, 1024, 512, 512, 1024):
        builder.alloc(size)
    places = [event["addr"] for event in builder.events[1:]]
    now = START_US + 9
    recorded = metadata(
        parameters=[
            parameter("blocks.3.attn.weight", places[0], 512, now),
            parameter("places", places[1], 1024, now),
        ],
        gradients=[memory_row(places[2], 512, now, parameter=0, iteration=0)],
        optimizer_states=[
            memory_row(places[3], 512, now, parameter=0, state="exp_avg"),
            memory_row(places[4], 1024, now, parameter=None, state="own"),
        ],
    )
    of_block = ("blocks.3.attn", Evidence.METADATA)
    of_model = ("(model)", Evidence.METADATA)
    assert modules_of(builder, snapconv=recorded) == [of_block, of_model, of_block, of_block, None]


def test_what_was_saved_is_of_the_module_that_saved_it_first_unless_it_is_a_parameter(modules_of):
    frames = called(LINEAR, forward(35), MAIN)
    builder = (
        TraceBuilder().segment().alloc(512).alloc(512, frames=frames).alloc(512, frames=frames)
    )
    now = START_US + 9
    recorded = metadata(
        parameters=[parameter("head.weight", ADDR, 512, now)],
        saved=[
            memory_row(ADDR + 512, 512, now, iteration=0, module="mlp.0"),
            memory_row(ADDR + 512, 512, now, iteration=0, module="mlp.1"),
            memory_row(ADDR, 512, now, iteration=0, module="mlp.1"),
            memory_row(ADDR + 1024, 512, now, iteration=0, module=None),
        ],
    )
    assert modules_of(builder, snapconv=recorded) == [
        ("head", Evidence.METADATA),
        ("mlp.0", Evidence.METADATA),
        ("net/model.py:35 < train.py:53", Evidence.FRAMES),
    ]
