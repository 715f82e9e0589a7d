"""Random numbers: each device has a generator of its own, as torch's notes on reproducibility say.

``torch.manual_seed`` seeds all of them, ``torch.cuda.manual_seed`` the current device's.
"""

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional as F  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from snapconv.simulation import SimulationOptions, simulated  # noqa: E402


@pytest.fixture(params=[True, False], ids=["compute", "no-compute"])
def _devices(request):
    with simulated(SimulationOptions(compute=request.param, n_devices=2)):
        yield


@pytest.fixture
def _computing_devices():
    with simulated(SimulationOptions(n_devices=2)):
        yield


def draw(device, n=4):
    return torch.rand(n, device=device).tolist()


@pytest.mark.usefixtures("_devices")
def test_what_devices_draw_does_not_change_what_the_cpu_draws():
    torch.manual_seed(0)
    alone = [torch.rand(3).tolist() for _ in range(3)]
    torch.manual_seed(0)
    drawn = []
    for _ in range(3):
        drawn.append(torch.rand(3).tolist())
        F.dropout(torch.ones(100_000, device="cuda"), 0.5)
        torch.randint(9, (5,), device="cuda:1")
        torch.randperm(7, device="cuda")
    assert drawn == alone


def test_a_seed_that_was_given_before_a_device_started_is_that_of_devices():
    torch.manual_seed(5)
    with simulated():
        first = draw("cuda")
        torch.manual_seed(5)
        assert draw("cuda") == first


@pytest.mark.usefixtures("_computing_devices")
class TestOfDevices:
    def test_one_seed_seeds_all_and_each_draws_on_alone(self):
        torch.manual_seed(5)
        first = draw("cuda:0")
        more = draw("cuda:0")
        assert draw("cuda:1") == first
        assert more != first
        torch.cuda.manual_seed(5)
        assert draw("cuda:0") == first
        assert draw("cuda:1") == more

    def test_a_state_that_was_kept_is_drawn_from_again(self):
        state = torch.cuda.get_rng_state()
        first = draw("cuda")
        torch.rand(3)
        torch.cuda.set_rng_state(state)
        assert draw("cuda") == first

    def test_a_fork_leaves_the_states_of_all_devices(self):
        torch.manual_seed(1)
        with torch.random.fork_rng(devices=[0, 1]):
            first = draw("cuda:1")
        assert draw("cuda:1") == first

    def test_a_generator_that_is_given_is_drawn_from(self):
        generator = torch.Generator("cuda").manual_seed(3)
        state = torch.cuda.get_rng_state()
        first = torch.rand(4, device="cuda", generator=generator)
        assert torch.equal(torch.cuda.get_rng_state(), state)
        assert torch.equal(torch.rand(4, device="cuda", generator=generator.manual_seed(3)), first)

    def test_the_second_forward_of_a_checkpoint_draws_the_mask_of_the_first(self):
        x = torch.ones(1000, device="cuda", requires_grad=True)
        kept = checkpoint(lambda x: F.dropout(x, 0.5), x, use_reentrant=False)
        kept.sum().backward()
        # The gradient is the mask, scaled by 2, which times ones is the output.
        assert torch.equal(x.grad, kept.detach())
