"""What scripts do while they train on a CUDA device, feature by feature."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

DEVICE = "cuda"
CASES = []


def case(function):
    CASES.append(function)
    return function


def on_device(*shape, **options):
    return torch.randn(*shape, device=DEVICE, **options)


@case
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


@case
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


@case
def optimizers():
    kinds = [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop, torch.optim.Adagrad]
    makers = [lambda p, kind=kind: kind(p, lr=0.1) for kind in kinds]
    makers.append(lambda p: torch.optim.AdamW(p, fused=True))
    makers.append(lambda p: torch.optim.Adam(p, capturable=True))
    for make in makers:
        model = nn.Linear(8, 8).to(DEVICE)
        optimizer = make(model.parameters())
        model(on_device(2, 8)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


@case
def lbfgs():
    model = nn.Linear(8, 8).to(DEVICE)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)

    def closure():
        optimizer.zero_grad()
        loss = model(torch.ones(2, 8, device=DEVICE)).square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)


@case
def checkpointing():
    for use_reentrant in (False, True):
        model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)).to(DEVICE)
        checkpoint(model, on_device(2, 8, requires_grad=True), use_reentrant=use_reentrant).sum().backward()
        assert model[0].weight.grad.is_cuda


@case
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


@case
def recurrent_layers():
    model = nn.LSTM(8, 16, 2, batch_first=True).to(DEVICE)
    model(on_device(2, 5, 8))[0].sum().backward()
    assert model.weight_ih_l0.grad.is_cuda
    packed = nn.utils.rnn.pack_padded_sequence(torch.randn(5, 2, 8).to(DEVICE), [5, 3])
    nn.GRU(8, 16).to(DEVICE)(packed)[0].data.sum().backward()


@case
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


@case
def dropouts():
    F.dropout(on_device(64, 64, requires_grad=True), 0.5).sum().backward()
    nn.Dropout2d(0.5)(on_device(2, 3, 4, 4))
    F.dropout(on_device(3), 0.5, inplace=True)
    with torch.inference_mode():
        assert F.dropout(on_device(3), 0.5).is_cuda


@case
def normalisations():
    model = nn.BatchNorm2d(3).to(DEVICE)
    x = on_device(2, 3, 4, 4)
    model(x).sum().backward()
    model.eval()(x)
    assert model.running_mean.is_cuda
    F.group_norm(x, 3)
    F.instance_norm(x)


@case
def convolutions():
    cases = [
        (nn.Conv1d(3, 4, 3), (2, 3, 9)),
        (nn.ConvTranspose2d(3, 4, 3), (2, 3, 9, 9)),
        (nn.Conv3d(3, 4, 3), (1, 3, 5, 5, 5)),
        (nn.Conv2d(4, 4, 3, groups=4), (1, 4, 8, 8)),
    ]
    for model, shape in cases:
        model.to(DEVICE)(on_device(*shape)).sum().backward()


@case
def channels_last():
    model = nn.Conv2d(3, 8, 3).to(DEVICE, memory_format=torch.channels_last)
    y = model(on_device(2, 3, 8, 8).to(memory_format=torch.channels_last))
    assert y.is_contiguous(memory_format=torch.channels_last)
    y.sum().backward()


@case
def resampling():
    x = on_device(1, 3, 8, 8, requires_grad=True)
    for mode in ("nearest", "bilinear", "bicubic"):
        F.interpolate(x, scale_factor=2, mode=mode).sum().backward()
    F.pad(x, (1, 1, 1, 1), mode="reflect").sum().backward()
    F.avg_pool2d(x, 2).sum().backward()


@case
def losses():
    x, target = on_device(4, 5, requires_grad=True), torch.randint(0, 5, (4,), device=DEVICE)
    zeros = torch.zeros_like(x)
    for loss in (
        F.cross_entropy(x, target),
        F.mse_loss(x, zeros),
        F.binary_cross_entropy_with_logits(x, zeros),
        F.smooth_l1_loss(x, zeros),
        F.kl_div(x.log_softmax(-1), zeros),
    ):
        loss.backward()


@case
def module_hooks():
    model = nn.Linear(4, 4).to(DEVICE)
    model.register_full_backward_hook(lambda *_: None)
    model(on_device(2, 4, requires_grad=True)).sum().backward()


@case
def gradients_of_gradients():
    x = on_device(3, requires_grad=True)
    (gradient,) = torch.autograd.grad((x**2).sum(), x, create_graph=True)
    gradient.sum().backward()
    assert x.grad.is_cuda


@case
def lazy_modules():
    for move in (nn.Module.cuda, lambda model: model.to(DEVICE)):
        model = move(nn.Sequential(nn.Flatten(), nn.LazyLinear(4)))
        model(on_device(2, 3, 5)).sum().backward()
        (_, layer) = model
        assert layer.weight.shape == (4, 15)
        assert layer.weight.is_cuda
        assert layer.weight.grad.is_cuda
