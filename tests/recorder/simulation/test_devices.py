"""However a program names the simulated device, what it makes there is tracked."""

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from snapconv.guest import locations  # noqa: E402
from snapconv.recorder.observe import tensors  # noqa: E402
from snapconv.simulation import SimulationOptions, simulated  # noqa: E402
from snapconv.simulation.patches import Calls  # noqa: E402
from snapconv.simulation.placements import DeviceChoice  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*set_default_tensor_type.*:UserWarning"),
]


@pytest.fixture(autouse=True, params=[True, False], ids=["computed", "shapes"])
def _simulation(request):
    with simulated(SimulationOptions(compute=request.param, n_devices=2)):
        yield
    torch.set_default_device(None)
    torch.set_default_dtype(torch.float32)


def where(tensor):
    """The device on which a tensor's memory is tracked; None for memory that nobody tracks."""
    location = locations.locate(tensor)
    assert location is None or location.addr
    return None if location is None else location.device


def test_the_accelerator_is_the_simulated_device_for_whoever_asks():
    assert torch.accelerator.current_accelerator() == torch.device("cuda")
    assert torch.get_device_module() is torch.cuda
    for name in ("_get_accelerator", "_accelerator_getAccelerator"):
        assert getattr(torch._C, name, lambda: torch.device("cuda"))() == torch.device("cuda")


BY_NUMBER = {
    "zeros": lambda n: torch.zeros(3, device=n),
    "tensor": lambda n: torch.tensor([1.0], device=n),
    "arange": lambda n: torch.arange(3, device=n),
    "as_tensor": lambda n: torch.as_tensor([1.0], device=n),
    "torch.device": lambda n: torch.zeros(3, device=torch.device(n)),
    "to": lambda n: torch.zeros(3).to(n),
    "to, by name": lambda n: torch.zeros(3).to(device=n),
    "a module to the device of a tensor": lambda n: (
        nn.Linear(3, 3).to(torch.zeros(3, device=n)).weight
    ),
    "a module to the device of a tensor, by name": lambda n: (
        nn.Linear(3, 3).to(tensor=torch.zeros(3, device=n)).weight
    ),
    "cuda": lambda n: torch.zeros(3).cuda(n),
    "new_zeros": lambda n: torch.zeros(3).new_zeros(3, device=n),
    "zeros_like": lambda n: torch.zeros_like(torch.zeros(3), device=n),
    "module": lambda n: nn.Linear(3, 3, device=n).weight,
    "module.to": lambda n: nn.Linear(3, 3).to(n).weight,
    "module.cuda": lambda n: nn.Linear(3, 3).cuda(n).weight,
    "meta": lambda n: nn.Linear(3, 3, device="meta").to_empty(device=n).weight,
}


@pytest.mark.parametrize("make", BY_NUMBER.values(), ids=BY_NUMBER)
@pytest.mark.parametrize("device", [0, 1, "cuda:1", torch.device("cuda")], ids=str)
def test_a_device_is_the_simulated_one_by_number_or_name_or_as_the_accelerator(make, device):
    made, index = make(device), 0 if isinstance(device, torch.device) else int(str(device)[-1])
    assert (made.device, where(made)) == (torch.device("cuda", index), index)


UNNAMED = {
    "zeros": lambda: torch.zeros(3),
    "tensor": lambda: torch.tensor([1.0]),
    "empty": lambda: torch.empty(3),
    "module": lambda: nn.Linear(3, 3).weight,
}


@pytest.mark.parametrize("make", UNNAMED.values(), ids=UNNAMED)
def test_what_is_made_on_the_default_device_is_tracked(make):
    with torch.device("cuda"):
        assert where(make()) == 0
    with torch.device("cuda:1"):
        assert where(make()) == 1
    with torch.device(1):
        assert where(make()) == 1
    torch.set_default_device("cuda")
    assert where(make()) == 0
    torch.set_default_device(None)
    assert where(make()) is None


def test_a_default_type_of_cuda_is_a_default_device():
    torch.set_default_tensor_type("torch.cuda.FloatTensor")
    assert where(torch.zeros(3)) == 0
    torch.set_default_tensor_type(torch.cuda.DoubleTensor)
    assert (where(torch.zeros(3)), torch.zeros(3).dtype) == (0, torch.float64)


def test_a_file_is_loaded_to_where_a_function_moves_its_storages(tmp_path):
    torch.save(torch.ones(4), tmp_path / "ones.pt")
    loaded = torch.load(tmp_path / "ones.pt", map_location=lambda storage, _: storage.cuda(1))
    assert where(loaded) == 1


def test_parts_of_a_wrapper_are_tracked_through_training():
    """A tensor of two tensors of 16 floats: weight, gradient and both states of Adam are twice 64 bytes."""
    two_tensor = pytest.importorskip("torch.testing._internal.two_tensor").TwoTensor
    parts = (torch.randn(4, 4, device="cuda"), torch.randn(4, 4, device="cuda"))
    model = nn.Linear(4, 4, bias=False, device="cuda")
    before = torch.cuda.memory_allocated()
    model.weight = nn.Parameter(two_tensor(*parts))
    assert torch.cuda.memory_allocated() == before - 512  # the former weight's
    optimizer = torch.optim.Adam(model.parameters())
    result = model(torch.ones(2, 4, device="cuda"))
    result.sum().backward()
    optimizer.step()

    state = optimizer.state[model.weight]
    for tensor in (model.weight, model.weight.grad, state["exp_avg"], state["exp_avg_sq"]):
        pieces = [locations.locate(piece) for piece in tensors.plain_tensors(tensor)]
        assert tensor.device == torch.device("cuda", 0)
        assert [(piece.device, piece.n_bytes) for piece in pieces] == [(0, 64), (0, 64)]
        assert pieces[0].addr != pieces[1].addr
    assert [where(piece) for piece in tensors.plain_tensors(result)] == [0, 0]


class HalfTensor(torch.Tensor):
    """A matrix of floats that is kept in half, and multiplied as torchao emulates 8 bits."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, part):
        options = {"dtype": torch.float32, "device": part.device}
        return torch.Tensor._make_wrapper_subclass(cls, part.shape, **options)

    def __init__(self, part):
        self.part = part

    @classmethod
    def __torch_dispatch__(cls, func, types, args, kwargs=None):
        assert func is torch.ops.aten.mm.default
        return torch.mm(args[0].part.float(), args[1]).to(torch.float64)


def test_conversions_in_the_code_of_a_wrapper_stay_on_the_device():
    product = HalfTensor(torch.ones(4, 4, device="cuda").half()) @ torch.ones(4, 2, device="cuda")

    location = locations.locate(product)
    assert (location.device, location.n_bytes) == (0, 4 * 2 * 8)
    assert (product + torch.ones(4, 2, device="cuda")).device == torch.device("cuda", 0)


def test_data_parallel_copies_the_model_and_half_of_the_batch_to_the_second_device():
    model = nn.DataParallel(nn.Linear(256, 256, bias=False).cuda())
    output = model(torch.ones(8, 256, device="cuda"))
    # The copy of the weight; four rows of 1,024 bytes, and four of the result.
    assert torch.cuda.max_memory_allocated(1) == 4 * 256 * 256 + 2 * 4 * 1024
    assert (output.shape, where(output)) == ((8, 256), 0)
    output.sum().backward()
    assert where(model.module.weight.grad) == 0
    del output
    assert torch.cuda.memory_allocated(1) == 0


def test_layers_that_a_program_puts_on_two_devices_train_there():
    first, second = nn.Linear(64, 64, bias=False).to("cuda:0"), nn.Linear(64, 64).to("cuda:1")
    optimizer = torch.optim.AdamW([*first.parameters(), *second.parameters()], foreach=False)
    before = [torch.cuda.memory_allocated(device) for device in (0, 1)]
    second(first(torch.ones(2, 64, device="cuda:0")).to("cuda:1")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    held = [torch.cuda.memory_allocated(device) for device in (0, 1)]
    # Two states of each weight, and of the second layer's bias.
    assert held == [before[0] + 2 * 4 * 64 * 64, before[1] + 2 * 4 * 64 * 64 + 2 * 512]


def test_a_copy_of_one_thread_does_not_go_where_that_of_another_does():
    choice, copying = DeviceChoice(None, None, Calls()), SimpleNamespace(name="_to_copy")
    with choice.during(target=1), ThreadPoolExecutor(1) as other:
        assert other.submit(choice.resolve, copying, [], {}).result() == (None, {})
        assert choice.resolve(copying, [], {}) == (1, {})


@pytest.mark.filterwarnings("ignore:To copy construct from a tensor")
@pytest.mark.parametrize("name", ["as_tensor", "asarray", "tensor"])
def test_a_factory_brings_a_tensor_of_the_device_to_the_cpu(name):
    indices = torch.arange(5, device="cuda")
    moved = getattr(torch, name)(indices, device="cpu")
    assert moved.device.type == "cpu"
    # torch refuses indices of another device.
    assert torch.zeros(5)[moved].device.type == "cpu"
    assert getattr(torch, name)(indices).is_cuda


def test_a_factory_shares_the_memory_of_its_device_unless_a_copy_is_requested():
    numbers = torch.arange(5, device="cuda")
    assert torch.as_tensor(numbers, device="cuda").data_ptr() == numbers.data_ptr()
    assert torch.asarray(numbers, copy=True).data_ptr() != numbers.data_ptr()
    assert torch.asarray(numbers * 0.5, requires_grad=True).requires_grad


def test_a_program_may_replace_what_makes_tensors(monkeypatch):
    # As DeepSpeed's zero.Init does, within which models are made in its type and on its device.
    def replaced(real):
        return lambda *args, **kwargs: real(*args, **kwargs).bfloat16().cuda()

    tensor = torch.ones(8, 4, device="cuda")
    for name in ("empty", "zeros", "ones", "full", "arange"):
        monkeypatch.setattr(torch, name, replaced(getattr(torch, name)))
    total = tensor @ tensor.t() + 1
    assert (total.dtype, total.shape) == (torch.float32, (8, 8))
    assert tensor[tensor > 0].dtype == torch.float32
