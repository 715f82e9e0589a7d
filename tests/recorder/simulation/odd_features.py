"""What scripts do with a CUDA device, feature by feature: ordinary functions that know of no simulation."""

import copy
import io
import threading

import numpy as np
import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F

DEVICE = "cuda"
CASES, TRAINING = [], []


def case(function):
    CASES.append(function)
    return function


def training(function):
    TRAINING.append(function)
    return function


def on_device(*shape, **options):
    return torch.randn(*shape, device=DEVICE, **options)


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
    for y in (
        x + 1,
        x @ x,
        x.sum(),
        x[0],
        x > 0,
        torch.einsum("ij,kj->ik", x, x),
        torch.fft.rfft(x),
    ):
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
    for z in (
        y.half(),
        y.double(),
        x.to(y),
        y.to(torch.float16),
        y.to(device=DEVICE, dtype=torch.float64),
    ):
        assert z.is_cuda
    for z in (y.cpu(), y.to("cpu"), y.to(x)):
        assert not z.is_cuda
    assert y.to(DEVICE, copy=True) is not y
    assert x.pin_memory().to(DEVICE, non_blocking=True).is_cuda
    assert not torch.empty(4, pin_memory=True).is_cuda
    weight = torch.ones(3, 3, device=DEVICE, requires_grad=True)
    with torch.autograd.graph.save_on_cpu(
        pin_memory=True
    ):  # its hooks run within the call on the GPU
        before, kept = torch.cuda.memory_allocated(), torch.nn.functional.linear(weight, weight)
    assert torch.cuda.memory_allocated() == before + 512
    kept.sum().backward()
    del weight, kept


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
    assert torch.cuda.FloatTensor(torch.zeros(2, 3).numpy()).shape == (2, 3)
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
def data_loaders():
    data = torch.utils.data.TensorDataset(torch.randn(16, 4), torch.randn(16))
    for options in ({"pin_memory": True}, {"num_workers": 2}):
        for x, _ in torch.utils.data.DataLoader(data, 4, **options):
            assert x.to(DEVICE, non_blocking=True).is_cuda


@case
def threads():
    seen = []
    thread = threading.Thread(
        target=lambda: seen.append((on_device(3) + torch.ones(3).to(DEVICE)).is_cuda)
    )
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
    assert torch.accelerator.current_accelerator().type == "cuda"
    torch.accelerator.synchronize()
    torch.cuda.ipc_collect()
    torch.cuda.nvtx.range_push("a")
    torch.cuda.nvtx.range_pop()


# --- training


@training
def autocast():
    model = nn.Linear(8, 8).to(DEVICE)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        y = model(on_device(2, 8))
        normed, shares, total = F.layer_norm(y, (8,)), torch.softmax(y, -1), y.sum()
    assert y.dtype == torch.bfloat16
    # On CUDA these run in float32; on a CPU they would not.
    assert normed.dtype == shares.dtype == total.dtype == torch.float32
    with torch.autocast("cuda", dtype=torch.bfloat16):
        # A type that the caller requests is the result's.
        assert F.softmax(y, dim=-1, dtype=torch.float32).dtype == torch.float32
        assert F.log_softmax(y, dim=-1, dtype=torch.bfloat16).dtype == torch.bfloat16
    y.float().sum().backward()
    assert model.weight.grad.dtype == torch.float32


@training
def gradient_scaler():
    model = nn.Linear(8, 8).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    assert scaler.is_enabled()
    for _ in range(2):
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = model(on_device(2, 8)).square().mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()


@training
def optimizers():
    kinds = [
        torch.optim.SGD,
        torch.optim.Adam,
        torch.optim.AdamW,
        torch.optim.RMSprop,
        torch.optim.Adagrad,
    ]
    makers = [lambda p, kind=kind: kind(p, lr=0.1) for kind in kinds]
    makers.append(lambda p: torch.optim.AdamW(p, fused=True))
    makers.append(lambda p: torch.optim.Adam(p, capturable=True))
    for make in makers:
        model = nn.Linear(8, 8).to(DEVICE)
        optimizer = make(model.parameters())
        model(on_device(2, 8)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


@training
def lbfgs():
    model = nn.Linear(8, 8).to(DEVICE)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)

    def closure():
        optimizer.zero_grad()
        loss = model(torch.ones(2, 8, device=DEVICE)).square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)


@training
def custom_functions():
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            ctx.device = x.device
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            (x,) = ctx.saved_tensors
            assert x.is_cuda
            assert torch.zeros(3, device=ctx.device).is_cuda
            return gradient * 2

    x = on_device(2, requires_grad=True)
    Double.apply(x).sum().backward()
    assert x.grad.is_cuda


@training
def recurrent_layers():
    model = nn.LSTM(8, 16, 2, batch_first=True).to(DEVICE)
    model(on_device(2, 5, 8))[0].sum().backward()
    assert model.weight_ih_l0.grad.is_cuda
    packed = nn.utils.rnn.pack_padded_sequence(torch.randn(5, 2, 8).to(DEVICE), [5, 3])
    nn.GRU(8, 16).to(DEVICE)(packed)[0].data.sum().backward()


@training
def attention():
    model = nn.MultiheadAttention(16, 2, dropout=0.1, batch_first=True).to(DEVICE)
    x = on_device(2, 6, 16)
    model(x, x, x, need_weights=False)[0].sum().backward()
    q = on_device(2, 4, 32, 16, requires_grad=True)
    mask = torch.ones(32, 32, dtype=torch.bool, device=DEVICE).tril()
    for options in ({"is_causal": True}, {"dropout_p": 0.1}, {"attn_mask": mask}):
        y = F.scaled_dot_product_attention(q, q, q, **options)
        y.sum().backward()
        assert y.is_cuda
        assert q.grad.is_cuda


@training
def dropouts():
    F.dropout(on_device(64, 64, requires_grad=True), 0.5).sum().backward()
    nn.Dropout2d(0.5)(on_device(2, 3, 4, 4))
    F.dropout(on_device(3), 0.5, inplace=True)
    with torch.inference_mode():
        assert F.dropout(on_device(3), 0.5).is_cuda


@training
def normalisations():
    model = nn.BatchNorm2d(3).to(DEVICE)
    x = on_device(2, 3, 4, 4)
    model(x).sum().backward()
    model.eval()(x)
    assert model.running_mean.is_cuda
    F.group_norm(x, 3)
    F.instance_norm(x)


@training
def convolutions():
    cases = [
        (nn.Conv1d(3, 4, 3), (2, 3, 9)),
        (nn.ConvTranspose2d(3, 4, 3), (2, 3, 9, 9)),
        (nn.Conv3d(3, 4, 3), (1, 3, 5, 5, 5)),
        (nn.Conv2d(4, 4, 3, groups=4), (1, 4, 8, 8)),
    ]
    for model, shape in cases:
        model.to(DEVICE)(on_device(*shape)).sum().backward()


@training
def channels_last():
    model = nn.Conv2d(3, 8, 3).to(DEVICE, memory_format=torch.channels_last)
    y = model(on_device(2, 3, 8, 8).to(memory_format=torch.channels_last))
    assert y.is_contiguous(memory_format=torch.channels_last)
    y.sum().backward()


@training
def module_hooks():
    model = nn.Linear(4, 4).to(DEVICE)
    model.register_full_backward_hook(lambda *_: None)
    model(on_device(2, 4, requires_grad=True)).sum().backward()


@training
def gradients_of_gradients():
    x = on_device(3, requires_grad=True)
    (gradient,) = torch.autograd.grad((x**2).sum(), x, create_graph=True)
    gradient.sum().backward()
    assert x.grad.is_cuda


@training
def lazy_modules():
    for move in (nn.Module.cuda, lambda model: model.to(DEVICE)):
        model = move(nn.Sequential(nn.Flatten(), nn.LazyLinear(4)))
        model(on_device(2, 3, 5)).sum().backward()
        (_, layer) = model
        assert layer.weight.shape == (4, 15)
        assert layer.weight.is_cuda
        assert layer.weight.grad.is_cuda


@case
def an_exported_program_of_a_trained_module():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten()).to(DEVICE)
    x = on_device(2, 3, 8, 8)
    model(x).sum().backward()
    exported = torch.export.export(model, (x,))
    assert all(parameter.is_cuda for parameter in exported.parameters())
    exported.module()(x).sum().backward()


@case
def fake_tensors_that_require_gradients():
    with FakeTensorMode():
        assert (on_device(4, requires_grad=True) * 2).is_cuda
