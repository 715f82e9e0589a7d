"""What scripts do with a CUDA device, feature by feature: ordinary functions that know of no simulation."""

import copy
import io
import threading

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

DEVICE = "cuda"
CASES = []


def case(function):
    CASES.append(function)
    return function


def on_device(*shape, **options):
    return torch.randn(*shape, device=DEVICE, **options)


@case
def factories():
    for make in (torch.zeros, torch.randn, torch.ones, torch.empty, torch.rand):
        assert make(2, 3, device=DEVICE).device == torch.device("cuda:0")
    assert torch.arange(5, device=DEVICE).is_cuda
    assert torch.full((2,), 1.0, device="cuda:0").is_cuda
    assert torch.tensor([1, 2], device=DEVICE).is_cuda
    assert torch.as_tensor([1.0], device=DEVICE).is_cuda
    assert torch.eye(3, device=DEVICE).is_cuda
    assert torch.linspace(0, 1, 3, device=DEVICE).is_cuda
    assert not torch.zeros(3).is_cuda


@case
def factories_like_another():
    x = on_device(3)
    assert torch.zeros_like(x).is_cuda
    assert not torch.zeros_like(x, device="cpu").is_cuda
    assert x.new_zeros(4).is_cuda
    assert x.new_tensor([1.0]).is_cuda


@case
def results_are_where_their_arguments_are():
    x = on_device(4, 4)
    for y in (x + 1, x @ x, x.sum(), x[0], x > 0, torch.einsum("ij,kj->ik", x, x), torch.fft.rfft(x)):
        assert y.is_cuda
    assert F.one_hot(torch.zeros(4, dtype=torch.long, device=DEVICE), 5).is_cuda
    values, indices = x.topk(2)
    assert values.is_cuda
    assert indices.is_cuda


@case
def moves():
    x = torch.randn(4, 4)
    y = x.to(DEVICE)
    assert y.is_cuda
    assert not x.is_cuda
    assert y.to(DEVICE) is y.cuda() is y
    assert y.to(DEVICE, torch.float16).dtype == torch.float16
    for z in (y.half(), y.double(), x.to(y), y.to(torch.float16), y.to(device=DEVICE, dtype=torch.float64)):
        assert z.is_cuda
    for z in (y.cpu(), y.to("cpu"), y.to(x)):
        assert not z.is_cuda
    assert y.to(DEVICE, copy=True) is not y
    assert x.pin_memory().to(DEVICE, non_blocking=True).is_cuda
    assert not torch.empty(4, pin_memory=True).is_cuda


@case
def what_a_tensor_says():
    x = on_device(2)
    assert x.type() == "torch.cuda.FloatTensor"
    assert x.get_device() == x.device.index == 0
    assert "device='cuda:0'" in repr(x)
    assert isinstance(x, torch.cuda.FloatTensor)
    assert not isinstance(x.cpu(), torch.cuda.FloatTensor)


@case
def legacy_constructors():
    assert torch.cuda.FloatTensor([1.0, 2.0]).is_cuda
    assert torch.cuda.LongTensor(3).shape == (3,)
    assert torch.ones(3).type(torch.cuda.HalfTensor).is_cuda
    assert torch.ones(3).type("torch.cuda.DoubleTensor").dtype == torch.float64


@case
def numpy_wants_a_copy_on_the_cpu():
    x = on_device(2)
    for convert in (x.numpy, lambda: np.asarray(x)):
        with pytest.raises(TypeError, match="can't convert cuda:0 device type tensor to numpy"):
            convert()
    assert x.cpu().numpy().shape == (2,)
    assert len(x.tolist()) == 2


@case
def values_in_python():
    x = on_device(3).sum()
    assert isinstance(x.item(), float)
    assert isinstance(float(x), float)
    assert bool(x > 100) is False
    assert isinstance(torch.isnan(x).any().item(), bool)


@case
def modules_move_in_place():
    model = nn.Linear(4, 4)
    weight = model.weight
    assert model.to(DEVICE).weight is weight
    assert weight.is_cuda
    assert not model.half().cpu().weight.is_cuda
    assert nn.Linear(3, 3, device="meta").to_empty(device=DEVICE).weight.is_cuda


@case
def streams_and_events():
    side, main = torch.cuda.Stream(), torch.cuda.current_stream()
    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    with torch.cuda.stream(side):
        assert torch.cuda.current_stream() == side
        before.record()
        x = on_device(8)
        after.record()
    side.wait_stream(main)
    main.wait_stream(side)
    x.record_stream(main)
    torch.cuda.synchronize()
    assert before.elapsed_time(after) >= 0
    assert torch.cuda.current_stream() == torch.cuda.default_stream() == main


@case
def default_devices():
    with torch.device(DEVICE):
        assert torch.zeros(2).is_cuda
        assert torch.tensor(1.0).is_cuda
        assert nn.Linear(2, 2).weight.is_cuda
    torch.set_default_device(DEVICE)
    try:
        assert torch.zeros(2).is_cuda
        assert torch.tensor([1.0]).is_cuda
    finally:
        torch.set_default_device(None)
    assert not torch.zeros(2).is_cuda


@case
def random_numbers():
    generator = torch.Generator(device=DEVICE)
    generator.manual_seed(1)
    assert generator.device.type == "cuda"
    assert on_device(3, generator=generator).is_cuda
    torch.cuda.manual_seed_all(1)
    torch.cuda.set_rng_state(torch.cuda.get_rng_state())
    with torch.random.fork_rng():
        torch.manual_seed(0)


@case
def files():
    model, file = nn.Linear(4, 4).to(DEVICE), io.BytesIO()
    torch.save(model.state_dict(), file)
    for location, is_cuda in (("cuda", True), (torch.device("cuda:0"), True), ("cpu", False)):
        file.seek(0)
        state = torch.load(file, map_location=location)
        assert state["weight"].is_cuda == is_cuda
        model.load_state_dict(state)
    file.seek(0)
    assert torch.load(file)["weight"].is_cuda


@case
def copies():
    model = copy.deepcopy(nn.Linear(4, 4).to(DEVICE))
    assert model.weight.is_cuda
    torch.optim.swa_utils.AveragedModel(model).update_parameters(model)


@case
def compiled_code_runs_as_written():
    model = torch.compile(nn.Linear(4, 4).to(DEVICE))
    model(on_device(2, 4)).sum().backward()
    assert torch.compile(lambda x: x.sin() + 1)(on_device(3)).is_cuda


@case
def mask_index():
    x = on_device(8, 8)
    assert x[x > 0].is_cuda


@case
def data_loaders():
    data = torch.utils.data.TensorDataset(torch.randn(16, 4), torch.randn(16))
    for options in ({"pin_memory": True}, {"num_workers": 2}):
        for x, _ in torch.utils.data.DataLoader(data, 4, **options):
            assert x.to(DEVICE, non_blocking=True).is_cuda


@case
def threads():
    seen = []
    thread = threading.Thread(target=lambda: seen.append((on_device(3) + torch.ones(3).to(DEVICE)).is_cuda))
    thread.start()
    thread.join()
    assert seen == [True]


@case
def function_transforms():
    x = on_device(3, 4)
    assert torch.func.vmap(lambda row: row.sum())(x).is_cuda
    torch.func.grad(lambda y: (y**2).sum())(x)


@case
def sparse_tensors():
    indices = torch.tensor([[0, 1], [1, 0]], device=DEVICE)
    torch.sparse_coo_tensor(indices, torch.ones(2, device=DEVICE), (2, 2)).to_dense()


@case
def replaced_data():
    parameter = nn.Parameter(torch.randn(3))
    parameter.data = parameter.data.to(DEVICE)
    assert parameter.is_cuda


@case
def single_device_data_parallel():
    nn.DataParallel(nn.Linear(4, 4)).to(DEVICE)(on_device(2, 4)).sum().backward()


@case
def what_the_device_says():
    assert torch.cuda.is_available()
    assert torch.cuda.is_bf16_supported()
    assert torch.cuda.get_device_capability() >= (8, 0)
    if hasattr(torch, "accelerator"):  # since torch 2.6
        assert torch.accelerator.current_accelerator().type == "cuda"
        torch.accelerator.synchronize()
    torch.cuda.ipc_collect()
    torch.cuda.nvtx.range_push("a")
    torch.cuda.nvtx.range_pop()
