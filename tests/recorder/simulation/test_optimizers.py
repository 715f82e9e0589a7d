"""Optimizers choose as on a GPU: foreach by default, so that temporaries exist for all parameters at once."""

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from snapconv.simulation import SimulationOptions, simulated  # noqa: E402
from tests.recorder.simulation.support import events, recorded  # noqa: E402

pytestmark = [
    pytest.mark.smoke("simulation"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

SIZES = [400, 40, 800, 80]


def second_step(make):
    """Run two steps of an optimizer on four parameters; return the events of the second."""
    with simulated(SimulationOptions(compute=False)):
        model = nn.Sequential(nn.Linear(10, 10), nn.Linear(10, 20)).cuda()
        optimizer = make(model.parameters())
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
        with recorded() as snapshot:
            optimizer.step()
    return [
        (entry["action"], entry["size"]) for entry in events(snapshot, "alloc", "free_requested")
    ]


def test_adam_takes_one_temporary_for_every_parameter_before_it_frees_the_first():
    step = second_step(torch.optim.Adam)

    # _multi_tensor_adam: exp_avg_sq_sqrt = torch._foreach_sqrt(…), all else is in place. A list
    # frees its last item first.
    assert step == [("alloc", n) for n in SIZES] + [("free_requested", n) for n in reversed(SIZES)]


def test_without_foreach_each_parameter_has_its_temporaries_alone():
    step = second_step(lambda parameters: torch.optim.Adam(parameters, foreach=False))

    # _single_tensor_adam: denom = (exp_avg_sq.sqrt() / …).add_(…); denom lives until the next one
    # is there.
    expected = []
    for i, n in enumerate(SIZES):
        expected += [("alloc", n), ("alloc", n), ("free_requested", n)]
        expected += [("free_requested", SIZES[i - 1])] if i else []
    assert step == [*expected, ("free_requested", SIZES[-1])]


@pytest.mark.parametrize(
    "make",
    [lambda p: torch.optim.SGD(p, lr=0.1), lambda p: torch.optim.AdamW(p, fused=True)],
    ids=["sgd", "fused"],
)
def test_steps_that_need_no_temporary_take_none(make):
    assert second_step(make) == []


def test_gradients_are_clipped_by_foreach_kernels():
    with simulated(SimulationOptions(compute=False)):
        model = nn.Sequential(nn.Linear(10, 10), nn.Linear(10, 20)).cuda()
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        with recorded(stacks="all") as snapshot:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)

    first = events(snapshot, "alloc")[: len(SIZES)]
    assert all(
        any("_foreach_norm" in frame["name"] for frame in entry["frames"]) for entry in first
    )
