"""What a simulation finds in a program: compiled code that ran uncompiled, and what is not modelled."""

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from snapconv.simulation import SimulationOptions, simulated  # noqa: E402
from snapconv.simulation.tracker import Tracker  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture
def simulation():
    torch._dynamo.reset()
    with simulated() as running:
        yield running


def slugs(simulation):
    return [note.slug for note in simulation.notes()]


def doubled(x):
    return x.sin() * 2


def compiled_in_place():
    model = nn.Linear(4, 4).cuda()
    model.compile()
    return model


COMPILED = {
    "a function": lambda: torch.compile(doubled),
    "a module": lambda: torch.compile(nn.Linear(4, 4).cuda()),
    "a module in place": compiled_in_place,
}


@pytest.mark.parametrize("compute", [True, False], ids=["compute", "no-compute"])
@pytest.mark.parametrize("make", COMPILED.values(), ids=COMPILED)
def test_what_was_to_be_compiled_and_ran_as_written_gives_a_note(make, compute):
    torch._dynamo.reset()
    with simulated(SimulationOptions(compute=compute)) as simulation:
        compiled = make()
        assert slugs(simulation) == []
        compiled(torch.ones(2, 4, device="cuda"))
        assert slugs(simulation) == ["compiled-as-eager"]
        assert "compiled code" in simulation.values()["not_modelled"]


def test_what_is_never_called_or_has_nothing_on_the_device_is_not_noted(simulation):
    compiled = torch.compile(doubled)
    compiled(torch.ones(4))
    doubled(torch.ones(4, device="cuda"))
    assert slugs(simulation) == []


def not_modelled(run, **options):
    with simulated(SimulationOptions(**options)) as simulation:
        run()
        return simulation.values()["not_modelled"]


def test_what_a_gpu_takes_besides_is_named_where_the_program_meets_it():
    def convolve():
        nn.Conv2d(3, 4, 3, device="cuda")(torch.ones(1, 3, 8, 8, device="cuda"))

    assert not_modelled(convolve) == ["workspaces of cuDNN"]
    assert not_modelled(lambda: torch.ones(4, device="cuda").sort()) == [
        "scratch memory inside kernels"
    ]
    norm = lambda: nn.BatchNorm1d(4, device="cuda")(torch.ones(2, 4, device="cuda"))  # noqa: E731
    assert not_modelled(norm) == ["cuDNN's reserves for recurrent layers and batch norm"]


def test_what_only_the_cpu_does_is_not_named():
    assert not_modelled(lambda: torch.ones(4).sort()) == []
    assert not_modelled(lambda: torch.ones(4, device="cuda") + 1) == []


def test_a_workspace_that_is_modelled_is_not_named():
    def multiply():
        torch.ones(2, 2, device="cuda") @ torch.ones(2, 2, device="cuda")

    assert not_modelled(multiply) == ["workspaces of cuBLAS"]
    assert not_modelled(multiply, cublas_workspace=True) == []


def test_a_fault_of_ours_in_an_operation_is_noted_and_its_results_are_allocated(
    simulation, monkeypatch
):
    account = Tracker._account

    def fail(tracker, call, result, **has_values):
        if call.operation.name == "relu":
            raise ZeroDivisionError
        account(tracker, call, result, **has_values)

    monkeypatch.setattr(Tracker, "_account", fail)
    x = torch.full((128,), -1.0, device="cuda")
    y = x.relu()
    assert (y.is_cuda, y.sum().item(), torch.cuda.memory_allocated()) == (True, 0, 1024)
    [fault] = simulation.faults()
    assert "the results of aten.relu.default are allocated without a check" in fault.message
