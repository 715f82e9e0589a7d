"""Stacks look as on a GPU: nothing of the simulation, and backward on a thread of its own."""

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import snapconv.simulation as package  # noqa: E402
from snapconv.simulation import SimulationOptions, simulated  # noqa: E402
from tests.recorder.simulation.support import Block, events, recorded  # noqa: E402

pytestmark = [
    pytest.mark.smoke("simulation"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


@pytest.fixture(autouse=True)
def _simulation():
    with simulated(SimulationOptions(compute=False)):
        yield


def frames_of(snapshot, action="alloc"):
    """The stacks of some events."""
    return [entry["frames"] for entry in events(snapshot, action)]


def is_python(frame):
    return frame["filename"].endswith(".py")


def test_no_frame_is_the_simulations_own():
    block = Block(32, 4).cuda()
    x = torch.randn(2, 8, 32).cuda().requires_grad_()
    with recorded(stacks="all") as snapshot:
        block(x).sum().backward()
        torch.tensor([1.0], device="cuda").to(torch.float16)

    own = str(Path(package.__file__).parent)
    every = [frame for entry in snapshot["device_traces"][0] for frame in entry["frames"]]
    assert every
    assert not [frame for frame in every if frame["filename"].startswith(own)]
    assert not [
        f["name"] for f in every if f["name"] in ("__torch_dispatch__", "handle_torch_function")
    ]
    assert not [
        f["name"] for f in every if "pythonFallback" in f["name"] or "pybind11" in f["name"]
    ]


def test_what_a_node_saved_is_let_go_of_by_the_node():
    x = torch.randn(64, 64, device="cuda", requires_grad=True)
    with recorded(stacks="all") as snapshot:
        x.exp().sum().backward()

    # As in real snapshots, where the node is not being applied any more.
    released = [
        [
            name
            for frame in frames
            if (name := frame["name"].partition("(")[0]).startswith("torch::autograd")
        ]
        for frames in frames_of(snapshot, "free_requested")
        if any("ExpBackward0" in frame["name"] for frame in frames)
    ]
    assert released == [
        [
            "torch::autograd::SavedVariable::reset_data",
            "torch::autograd::generated::ExpBackward0::release_variables",
            "torch::autograd::Engine::evaluate_function",
            "torch::autograd::Engine::thread_main",
        ]
    ]


def test_forward_goes_from_the_operation_to_the_script():
    layer, x = nn.Linear(8, 8, device="cuda"), torch.randn(2, 8, device="cuda")
    with recorded(stacks="all") as snapshot:
        y = layer(x)

    (frames,) = frames_of(snapshot)
    names = [frame["name"] for frame in frames]
    assert names[0].startswith("at::_ops::addmm::")
    assert any(name.startswith("at::_ops::linear::call") for name in names)
    python = [frame["name"] for frame in frames if is_python(frame)]
    assert python[:3] == ["forward", "_call_impl", "_wrapped_call_impl"]
    assert python[3] == test_forward_goes_from_the_operation_to_the_script.__name__
    assert y.is_cuda


def test_backward_is_the_engines_alone():
    layer, x = nn.Linear(8, 8, device="cuda"), torch.randn(2, 8, device="cuda")
    loss = layer(x).relu().square().sum()
    with recorded(stacks="all") as snapshot:
        loss.backward()

    # All but the first, the gradient of the loss itself, which Python asks for.
    first, *others = frames_of(snapshot)
    assert any(is_python(frame) for frame in first)
    assert others
    for frames in others:
        assert not [frame for frame in frames if is_python(frame)]
        names = [frame["name"].partition("(")[0] for frame in frames]
        assert names[-1] == "torch::autograd::Engine::thread_main"
        assert names[-2] == "torch::autograd::Engine::evaluate_function"
    nodes = {
        name.split("::")[3]
        for frames in others
        for name in (frame["name"] for frame in frames)
        if name.startswith("torch::autograd::generated::") and "::apply(" in name
    }
    assert nodes == {"PowBackward0", "ReluBackward0", "AddmmBackward0"}
    freed = [f for f in frames_of(snapshot, "free_requested") if "thread_main" in f[-1]["name"]]
    assert freed
    assert not [frame for frames in freed for frame in frames if is_python(frame)]


def test_backward_has_no_frame_at_all_with_python_stacks():
    layer, x = nn.Linear(8, 8, device="cuda"), torch.randn(2, 8, device="cuda")
    loss = layer(x).square().sum()
    with recorded() as snapshot:
        loss.backward()

    first, *others = frames_of(snapshot)
    assert first
    assert others
    assert not any(others)


def test_recomputation_in_backward_shows_its_python_frames_up_to_the_engine():
    layer = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)).cuda()
    x = torch.randn(2, 8, device="cuda", requires_grad=True)
    loss = checkpoint(layer, x, use_reentrant=False).sum()
    with recorded(stacks="all") as snapshot:
        loss.backward()

    recomputed = [
        frames for frames in frames_of(snapshot) if any(f["name"] == "recompute_fn" for f in frames)
    ]
    # The first layer and the activation: torch stops before the last layer, whose output nobody
    # saved.
    assert len(recomputed) == 2
    for frames in recomputed:
        names = [frame["name"] for frame in frames]
        assert "_engine_run_backward" not in names
        assert names[-1].startswith("torch::autograd::Engine::thread_main")


def test_a_custom_functions_backward_shows_its_python_frames():
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            return gradient * 2

    x = torch.randn(100, device="cuda", requires_grad=True)
    loss = Double.apply(x).sum()
    with recorded(stacks="all") as snapshot:
        loss.backward()

    (frames,) = [
        frames for frames in frames_of(snapshot) if any(f["name"] == "backward" for f in frames[:8])
    ][1:]
    python = [frame["name"] for frame in frames if is_python(frame)]
    assert python == ["backward", "apply"]
    assert any(frame["name"].startswith("torch::autograd::PyNode::apply") for frame in frames)
