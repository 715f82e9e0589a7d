"""Tensors of two devices in one operation: what CUDA refuses is refused in its words, what it takes is taken.

**Keep this file and what it tests.** A forgotten ``.cuda()`` is the commonest error of a program
for a GPU. Nothing but this notices that a simulation lets it pass: no type, no other test, no
program that is correct. It was refused once, until a clean-up dropped code and test together, and
every such program was recorded without a word. ``tests/unit/test_promises.py`` therefore looks for
the tests of this file by name.

What is refused and what is taken is that of torch's sources (2.13):
aten/src/ATen/core/adaption.cpp, TensorIterator.cpp, native/TensorAdvancedIndexing.cpp,
native/Convolution.cpp. The sentence is that of TensorIterator.cpp for all; what follows it names
the argument and the operation.
"""

import warnings

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from snapconv.simulation import SimulationOptions, simulated  # noqa: E402

START = "Expected all tensors to be on the same device, but"
TWO = f"{START} found at least two devices, cuda:0 and cpu!"


@pytest.fixture(params=[True, False], ids=["compute", "no-compute"], autouse=True)
def _simulation(request):
    with simulated(SimulationOptions(compute=request.param, n_devices=2)):
        yield


def on_cpu(*shape):
    return torch.ones(shape or (4, 4))


def on_gpu(*shape):
    return torch.ones(shape or (4, 4), device="cuda")


def longs(*values, device="cpu"):
    return torch.tensor(values, device=device)


REFUSED = {
    "add": (lambda: on_gpu() + on_cpu(), TWO),
    "add, the other way": (lambda: on_cpu() + on_gpu(), TWO),
    "in place": (lambda: on_gpu().mul_(on_cpu()), TWO),
    "in place on the CPU": (lambda: on_cpu().mul_(on_gpu()), TWO),
    "a number of the device": (lambda: on_cpu() + on_gpu().sum(), TWO),
    "compare": (lambda: on_gpu() > on_cpu(), TWO),
    "a view": (lambda: on_gpu() - on_cpu(16)[:4], TWO),
    "where": (lambda: torch.where(on_cpu().bool(), on_gpu(), on_gpu()), TWO),
    "mean squared error": (lambda: F.mse_loss(on_gpu(), on_cpu()), TWO),
    "binary cross entropy": (lambda: F.binary_cross_entropy_with_logits(on_gpu(), on_cpu()), TWO),
    "values that are set": (lambda: on_gpu().index_put_((longs(0, 1),), on_cpu(2, 4)), TWO),
    "values of a mask": (lambda: on_gpu().__setitem__(on_gpu().bool(), on_cpu(16)), TWO),
    "mm": (lambda: on_gpu() @ on_cpu(), f"{TWO} (argument mat2 of aten::mm)"),
    "mm, the other way": (lambda: on_cpu() @ on_gpu(), f"{TWO} (argument mat2 of aten::mm)"),
    "mv": (lambda: on_gpu() @ on_cpu(4), TWO),
    "linear": (lambda: nn.Linear(4, 4).cuda()(on_cpu()), f"{TWO} (argument mat1 of aten::addmm)"),
    "a model on the CPU": (
        lambda: nn.Linear(4, 4)(on_gpu()),
        f"{TWO} (argument mat1 of aten::addmm)",
    ),
    "a forgotten bias": (
        lambda: F.linear(on_gpu(), on_gpu(), on_cpu(4)),
        f"{TWO} (argument mat1 of aten::addmm)",
    ),
    "embedding": (
        lambda: nn.Embedding(8, 4).cuda()(longs(1, 2)),
        TWO,
    ),
    "cross entropy": (
        lambda: F.cross_entropy(on_gpu(), longs(0, 1, 2, 3)),
        f"{TWO} (argument target of aten::nll_loss_forward)",
    ),
    "cat": (lambda: torch.cat([on_gpu(), on_cpu()]), f"{TWO} (argument tensors of aten::cat)"),
    "stack": (lambda: torch.stack([on_gpu(), on_cpu()]), TWO),
    "gather": (
        lambda: on_gpu().gather(1, longs([0], [1], [2], [3])),
        f"{TWO} (argument index of aten::gather)",
    ),
    "scatter": (
        lambda: on_gpu().scatter_(1, longs([0], [1]), 1.0),
        f"{TWO} (argument index of aten::scatter_.value)",
    ),
    "layer norm": (
        lambda: nn.LayerNorm(4)(on_gpu()),
        f"{TWO} (argument weight of aten::native_layer_norm)",
    ),
    "convolution": (
        lambda: nn.Conv2d(3, 4, 3)(on_gpu(1, 3, 8, 8)),
        TWO,
    ),
    "convolution of the CPU": (
        lambda: nn.Conv2d(3, 4, 3).cuda()(on_cpu(1, 3, 8, 8)),
        TWO,
    ),
    "a bias of a convolution": (
        lambda: F.conv2d(on_gpu(1, 3, 8, 8), on_gpu(4, 3, 3, 3), on_cpu(4)),
        TWO,
    ),
    "a recurrent layer": (
        lambda: nn.LSTM(4, 4).cuda()(on_cpu(3, 2, 4)),
        TWO,
    ),
    "a hidden state": (
        lambda: nn.LSTM(4, 4).cuda()(on_gpu(3, 2, 4), (on_cpu(1, 2, 4), on_cpu(1, 2, 4))),
        TWO,
    ),
    "a mask that fills": (lambda: on_gpu().masked_fill(on_cpu().bool(), -1.0), TWO),
    "a mask of attention": (
        lambda: F.scaled_dot_product_attention(
            *[on_gpu(1, 2, 8, 4) for _ in range(3)], attn_mask=on_cpu(8, 8)
        ),
        f"{TWO} (argument attn_bias of aten::_scaled_dot_product_efficient_attention)",
    ),
    "without gradients": (
        lambda: torch.no_grad()(lambda: on_gpu() @ on_cpu())(),
        f"{TWO} (argument mat2 of aten::mm)",
    ),
    "two GPUs": (
        lambda: on_gpu() @ torch.ones(4, 4, device="cuda:1"),
        f"{TWO} (argument mat2 of aten::mm)".replace("cuda:0 and cpu", "cuda:1 and cuda:0"),
    ),
}
TAKEN = {
    "a number from the CPU": lambda: on_gpu() * torch.tensor(2.0),
    "a Python number": lambda: 1 - on_gpu(),
    "indices": lambda: on_gpu()[longs(0, 2)],
    "a mask": lambda: on_gpu()[on_cpu().bool()],
    "a row for an index": lambda: on_gpu().__setitem__(longs(0), on_gpu(4)),
    "a row of the CPU for an index": lambda: on_gpu().__setitem__(longs(0), on_cpu(1)),
    "a number of the device for an index": lambda: on_cpu().__setitem__(longs(0), on_gpu().sum()),
    "filling": lambda: on_cpu().fill_(on_gpu().sum()),
    "chances": lambda: on_gpu().bernoulli_(on_cpu() / 2),
    "a sum of the device": lambda: torch.tensor(0.0) + on_gpu().sum(),
    "an optimizer's steps": lambda: torch._foreach_add([on_cpu(), on_gpu()], 1),
    "a number for a mask": lambda: on_gpu().masked_fill_(on_gpu().bool(), torch.tensor(1.0)),
    "a slice": lambda: on_gpu().__setitem__(slice(0, 2), on_cpu(2, 4)),
    "copy to": lambda: on_gpu().copy_(on_cpu()),
    "copy from": lambda: on_cpu().copy_(on_gpu()),
    "to": lambda: on_cpu().to(on_gpu()),
    "where": lambda: torch.where(on_gpu().bool(), on_gpu(), torch.tensor(0.0)),
    "clamp": lambda: on_gpu().clamp(min=torch.tensor(0.0)),
    "packing": lambda: nn.utils.rnn.pack_padded_sequence(on_gpu(5, 2, 3), longs(5, 3)),
    "ctc": lambda: F.ctc_loss(
        on_gpu(6, 2, 4).log_softmax(-1), longs([1, 2], [1, 2]), longs(6, 6), longs(2, 2)
    ),
    "the same values elsewhere": lambda: (on_gpu().cpu() + on_cpu()).cuda() + on_gpu(),
    "like": lambda: torch.zeros_like(on_gpu()) + torch.full_like(on_cpu(), 2.0, device="cuda"),
    "nothing": lambda: torch.cat([on_gpu(), torch.empty(0)]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_operation_on_two_devices_is_refused_in_the_words_of_torch(name):
    operate, words = REFUSED[name]
    with pytest.raises(RuntimeError) as error:
        operate()
    assert str(error.value).startswith(words)
    assert " (argument " in str(error.value)
    assert type(error.value) is RuntimeError


@pytest.mark.parametrize("name", TAKEN)
def test_an_operation_that_cuda_takes_is_taken(name):
    TAKEN[name]()


def scripted(function):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # newer ones of torch advise against it
        return torch.jit.script(function)


@scripted
def script_positions(x: torch.Tensor):
    return torch.arange(x.size(1), device=x.device)


@scripted
def script_moved(x: torch.Tensor, y: torch.Tensor):
    return y.to(x.device)


class ScriptedTable(nn.Module):
    def forward(self, x):
        return torch.ones(4, 4, device=x.device).cumsum(0)


def positions(row):
    return torch.arange(4, device=row.device)


# All of these are on the device there, by what torch documents of each function.
ON_THE_DEVICE = {
    "type_as": lambda: on_cpu().type_as(on_gpu()),
    "new, of a size": lambda: on_gpu().new(4, 4).zero_(),
    "type, of a class": lambda: on_cpu().type(torch.cuda.FloatTensor),
    "type, of an element type": lambda: on_gpu().type(torch.float64),
    "vmap": lambda: torch.vmap(lambda row: row + positions(row))(on_gpu()),
    "what vmap moves": lambda: torch.vmap(lambda row: on_cpu(4).to(row.device) + row)(on_gpu()),
    "what vmap returns": lambda: torch.vmap(lambda row: on_cpu(4).to(row.device), out_dims=None)(
        on_gpu()
    ),
    "grad": lambda: torch.func.grad(lambda x: (x * torch.ones(4, device=x.device)).sum())(on_gpu()),
}
# The simulation has them on the CPU: C++ code puts them where it takes its arguments to be.
ANYWHERE = {
    "new, of data": lambda: on_gpu().new([1.0, 2.0, 3.0, 4.0]),
    "a capsule": lambda: torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(on_gpu())),
    "a capsule of a method": lambda: torch.from_dlpack(on_gpu().__dlpack__()),
    "through DLPack without a capsule": lambda: torch.utils.dlpack.from_dlpack(on_gpu()),
    "a script": lambda: script_positions(on_gpu()),
    "what a script moves": lambda: script_moved(on_gpu(), on_cpu()),
    "a scripted module": lambda: scripted(ScriptedTable())(on_gpu()),
    "made of a script's result": lambda: script_positions(on_gpu()).float().exp()[None] * 2,
}


@pytest.mark.parametrize("name", ON_THE_DEVICE)
def test_what_torch_puts_beside_a_tensor_of_the_device_is_there(name):
    made = ON_THE_DEVICE[name]()
    assert made.device == torch.device("cuda:0")
    assert (made + on_gpu(4)).is_cuda


@pytest.mark.parametrize("name", ANYWHERE)
def test_a_tensor_that_may_be_on_the_device_is_never_refused(name):
    assert (ANYWHERE[name]() + on_gpu()).is_cuda
    assert ANYWHERE[name]()[longs(0, device="cuda")].is_cuda


def test_a_vectorised_function_sees_that_its_rows_are_on_the_device():
    seen = []
    torch.vmap(lambda row: seen.append((row.device, row.is_cuda)) or row)(on_gpu())
    assert seen == [(torch.device("cuda:0"), True)]


@pytest.mark.parametrize("kind", [torch.FloatTensor, "torch.FloatTensor", torch.Tensor])
def test_a_type_of_the_cpu_leads_back_to_the_cpu(kind):
    assert (on_gpu().double().type(kind) + on_cpu()).type() == "torch.FloatTensor"
    with pytest.raises(RuntimeError, match=TWO):
        on_gpu().type(kind) + on_gpu()


def batch_of_a_loader():
    rows = torch.utils.data.TensorDataset(on_cpu())
    return next(iter(torch.utils.data.DataLoader(rows, batch_size=4)))[0]


OWN = {
    "of data": lambda: torch.tensor([1.0, 2.0, 3.0, 4.0]),
    "of data, of the old class": lambda: torch.FloatTensor([1.0, 2.0, 3.0, 4.0]),
    "a batch": batch_of_a_loader,
    "computed": lambda: on_cpu().mul(2).exp()[:, :2].sum(1),
    "copied back": lambda: on_gpu().cpu(),
    "copied back by name": lambda: on_gpu().to("cpu") * 2,
    "like one of the device": lambda: torch.zeros_like(on_gpu(), device="cpu"),
    "a parameter": lambda: nn.Linear(4, 4).weight,
    "a detached copy": lambda: nn.Linear(4, 4).weight.detach().clone(),
}


@pytest.mark.parametrize("name", OWN)
def test_a_tensor_that_the_program_put_on_the_cpu_is_refused(name):
    with pytest.raises(RuntimeError, match=TWO):
        OWN[name]() + on_gpu()


def test_an_index_on_the_device_does_not_index_what_is_on_the_cpu():
    with pytest.raises(RuntimeError, match=TWO):
        on_cpu()[longs(0, device="cuda")]


def test_training_with_every_optimizer_is_refused_nothing():
    for name in "SGD Adam AdamW Adagrad Adadelta RMSprop Adamax NAdam RAdam ASGD".split():
        model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)).cuda()
        for options in ({"foreach": True}, {"foreach": False}):
            optimizer = getattr(torch.optim, name)(model.parameters(), lr=0.1, **options)
            for _ in range(2):
                model(on_gpu()).sum().backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
