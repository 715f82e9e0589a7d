"""After a simulation torch is as it was, whatever happened inside."""

import threading
from contextlib import suppress

import pytest

torch = pytest.importorskip("torch")

from snapconv.errors import RecorderError  # noqa: E402
from snapconv.guest.guard import Guard  # noqa: E402
from snapconv.recorder.observe import tensors  # noqa: E402
from snapconv.simulation import simulated  # noqa: E402
from snapconv.simulation.patches import Patches  # noqa: E402

pytestmark = [
    pytest.mark.smoke("simulation"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


def state_of_torch():
    """Every attribute that a simulation might touch, by identity."""
    owners = [
        torch,
        torch._C,
        torch.cuda,
        torch.cuda.memory,
        torch.cuda.streams,
        torch.cuda.graphs,
        torch.accelerator,
        torch.autograd.profiler.record_function,
        torch.backends.cuda,
        torch.backends.cudnn,
        torch.serialization,
        torch.distributed.distributed_c10d,
        torch.Tensor,
        torch.nn.parameter.UninitializedTensorMixin,
        torch.UntypedStorage,
        threading.Thread,
        tensors,
    ]
    # What a module imports or makes lazily comes without our doing.
    return [
        {k: id(v) for k, v in vars(owner).items() if not k.startswith("__")} for owner in owners
    ]


def work():
    x = torch.randn(8, 8).cuda()
    with torch.autocast("cuda"):
        torch.nn.functional.dropout(x @ x, 0.5).softmax(-1)
    torch.cuda.Event().record()


@pytest.mark.parametrize(
    "error", [None, ZeroDivisionError], ids=["at the end", "after an exception"]
)
def test_every_attribute_is_put_back(error):
    def simulate():
        with simulated():
            work()
            if error is not None:
                raise error

    with suppress(ZeroDivisionError):
        simulate()
    before = state_of_torch()
    with suppress(ZeroDivisionError):
        simulate()
    after = state_of_torch()

    assert after == before


def test_cuda_is_gone_afterwards():
    had_cuda = torch.cuda.is_available()
    with simulated():
        assert torch.cuda.is_available()
        x = torch.ones(3, device="cuda")

    assert torch.cuda.is_available() == had_cuda
    assert x.device.type == "cpu"
    assert x.sum().item() == 3
    assert torch.utils._python_dispatch._get_current_dispatch_mode() is None
    assert len(torch.overrides._get_current_function_mode_stack()) == 0


def test_kernels_are_taken_out_again():
    x = torch.randn(4, 4).to(torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        before = torch.nn.functional.softmax(x, -1).dtype
        with simulated():
            inside = torch.nn.functional.softmax(x, -1).dtype
        after = torch.nn.functional.softmax(x, -1).dtype

    assert inside == torch.float32
    assert after == before


def test_a_second_simulation_starts_from_nothing():
    with simulated():
        kept = torch.ones(1000, device="cuda")
    with simulated():
        assert torch.cuda.memory_allocated() == torch.cuda.max_memory_allocated() == 0
        assert not kept.is_cuda
    del kept


def test_only_one_simulation_runs_at_a_time():
    with simulated():
        with pytest.raises(RecorderError, match="running already"), simulated():
            pass
        assert torch.ones(1, device="cuda").is_cuda


def test_what_torch_compile_is_set_to_is_what_it_was():
    from torch._dynamo import config

    with simulated():
        work()
    assert config.disable is False
    assert torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2)).tolist() == [2.0, 2.0]


class Owner:
    there = 1


class Derived(Owner):
    pass


def test_patches_put_back_what_was_there_and_take_away_what_was_not():
    with suppress(KeyError), Patches(Guard()) as patches:
        patches.set(Owner, "there", 2)
        patches.set(Owner, "there", 3)
        patches.set(Owner, "added", 4)
        patches.set(Derived, "there", 5)
        assert (Owner.there, Owner.added, Derived.there) == (3, 4, 5)
        raise KeyError

    assert Owner.there == 1
    assert not hasattr(Owner, "added")
    assert "there" not in vars(Derived)


def test_what_is_not_there_is_not_wrapped():
    with Patches(Guard()) as patches:
        patches.wrap(Owner, "absent", lambda real: real)
        patches.set_existing(Owner, "absent", 1)
        assert not hasattr(Owner, "absent")
