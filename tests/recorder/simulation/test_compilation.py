"""What torch.compile makes of a program, with a simulated GPU's memory and without kernels."""

import subprocess
import sys
import threading

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from snapconv.recorder.observe.observer import Observer  # noqa: E402
from snapconv.simulation import SimulationOptions, simulated  # noqa: E402
from snapconv.simulation.operations.compilation import can_compile  # noqa: E402
from snapconv.stacks.paths import is_generated  # noqa: E402
from tests.recorder.simulation.support import MIB, events, recorded, sizes_allocated  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*global hooks:UserWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"),
    pytest.mark.skipif(not can_compile(), reason="this torch does not compile beneath a mode"),
]


@pytest.fixture(autouse=True)
def _simulation():
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    with simulated(SimulationOptions(compute=False)):
        yield
    torch._dynamo.reset()


def names_of(entry):
    return [frame["name"] for frame in entry["frames"]]


def of_compiled_code(entry):
    """Whether a file that torch.compile wrote requested it, not further out than Python's innermost frame."""
    python = [frame for frame in entry["frames"] if frame["filename"].endswith(".py")]
    return bool(python) and is_generated(python[0]["filename"])


def chain(x):
    return torch.relu(torch.sigmoid(x * 2 + 1) - 0.5)


def test_a_chain_of_operations_is_one_kernel_with_one_result():
    x = torch.zeros(MIB, device="cuda")
    compiled = torch.compile(chain)
    compiled(x)

    assert sizes_allocated(lambda: chain(x)) == [4 * MIB] * 5
    assert sizes_allocated(lambda: compiled(x)) == [4 * MIB]


def test_stacks_are_those_of_a_gpu():
    x = torch.zeros(MIB, device="cuda")
    compiled = torch.compile(chain)
    compiled(x)
    with recorded(stacks="all") as snapshot:
        compiled(x)
    (entry,) = events(snapshot, "alloc")

    assert of_compiled_code(entry)
    assert any(name.startswith("at::detail::empty_strided_cuda(") for name in names_of(entry))
    # The lines that the code was made of stand behind its frame, as torch puts them there.
    python = [frame for frame in entry["frames"] if frame["filename"].endswith(".py")]
    assert [frame["name"] for frame in python[:2]] == ["call", "chain"]
    assert "simulation/operations/compilation.py" not in str(entry["frames"])


class Layers(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(64, 128), nn.Linear(128, 64)

    def forward(self, x):
        return self.second(F.dropout(F.gelu(self.first(x)), 0.1))


def test_backward_is_compiled_too_and_gives_every_parameter_its_gradient():
    model = Layers().cuda()
    compiled = torch.compile(model)
    compiled(torch.zeros(16, 64, device="cuda")).sum().backward()
    model.zero_grad()
    with recorded(stacks="all") as snapshot:
        compiled(torch.zeros(16, 64, device="cuda")).sum().backward()
    addresses = {parameter.grad.data_ptr() for parameter in model.parameters()}
    made = [entry for entry in events(snapshot, "alloc") if entry["addr"] in addresses]

    assert sorted(entry["size"] for entry in made[-4:]) == [256, 512, 4 * 64 * 128, 4 * 64 * 128]
    assert all(of_compiled_code(entry) for entry in made[-4:])
    for entry in made[-4:]:
        assert any("torch::autograd::Engine::thread_main" in name for name in names_of(entry))


class WithRecurrence(Layers):
    """Not all of it is compiled: a recurrent layer breaks the graph, and its operations run one by one."""

    def __init__(self):
        super().__init__()
        self.recurrent = nn.LSTM(64, 64)

    def forward(self, x):
        return super().forward(self.recurrent(x)[0])


def what_is_compiled(make_model, observer):
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    compiled = torch.compile(make_model().cuda())
    if observer is not None:
        observer.start()
    for iteration in range(2):
        if observer is not None:
            observer.iteration_began(iteration)
        compiled(torch.zeros(4, 16, 64, device="cuda")).sum().backward()
    if observer is not None:
        observer.stop()
        assert observer.failure is None
    counters = torch._dynamo.utils.counters
    return {key: dict(counters[key]) for key in ("graph_break", "stats")}


@pytest.mark.parametrize("make_model", [Layers, WithRecurrence])
def test_an_observer_changes_nothing_of_what_is_compiled(make_model):
    assert what_is_compiled(make_model, Observer()) == what_is_compiled(make_model, None)


def test_attention_in_compiled_code_is_a_gpu_s():
    def attend(x):
        return F.scaled_dot_product_attention(x, x, x, is_causal=True)

    x = torch.zeros(2, 4, 64, 16, device="cuda", dtype=torch.bfloat16)
    compiled = torch.compile(attend)
    compiled(x)

    # Flash attention's logarithms of sums, one float32 per row; the CPU's way has them in another layout.
    eager, ours = sizes_allocated(lambda: attend(x)), sizes_allocated(lambda: compiled(x))
    assert sorted(ours) == sorted(eager)


def test_what_names_a_device_runs_as_it_is_written():
    def add_on_device(x):
        return x + torch.ones(MIB, device="cuda")

    x = torch.zeros(MIB, device="cuda")
    compiled = torch.compile(add_on_device)
    compiled(x)

    assert sizes_allocated(lambda: compiled(x)) == [4 * MIB, 4 * MIB]


def test_code_after_a_break_of_the_graph_is_seen_as_well():
    def broken(x):
        y = torch.sigmoid(x) + 1
        torch._dynamo.graph_break()
        return torch.sigmoid(y) + 2

    x = torch.zeros(MIB, device="cuda")
    compiled = torch.compile(broken)
    compiled(x)

    assert sizes_allocated(lambda: compiled(x)) == [4 * MIB, 4 * MIB]


def test_results_that_are_given_are_resized_and_not_computed():
    n = 1 << 15
    a = torch.empty(n, n, device="cuda")
    out = torch.empty(0, device="cuda")

    assert sizes_allocated(lambda: torch.mm(a, a, out=out)) == [4 * n * n]
    assert out.shape == (n, n)
    assert sizes_allocated(lambda: torch.mm(a, a, out=out)) == []


def test_compiled_products_of_large_matrices_take_no_time():
    n = 1 << 15
    a = torch.empty(n, n, device="cuda")
    product = torch.compile(lambda x: (x @ x) @ x)
    product(a)

    assert sizes_allocated(lambda: product(a)) == [4 * n * n] * 2


def test_a_compiled_optimizer_has_its_states_on_the_device():
    model = nn.Linear(256, 256).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    step = torch.compile(optimizer.step)
    model(torch.zeros(4, 256, device="cuda")).sum().backward()
    step()
    moments = [state[name] for state in optimizer.state.values() for name in ("exp_avg", "exp_avg_sq")]

    assert len(moments) == 4
    assert all(moment.is_cuda for moment in moments)


def test_attention_in_a_compiled_checkpoint_runs():
    def attend(x):
        return F.scaled_dot_product_attention(x, x, x)

    compiled = torch.compile(lambda x: checkpoint(attend, x, use_reentrant=False))
    x = torch.zeros(2, 4, 64, 16, device="cuda", requires_grad=True)
    compiled(x).sum().backward()

    assert x.grad.is_cuda


def test_what_has_nothing_on_the_device_keeps_its_values():
    compiled = torch.compile(lambda x: x.sigmoid() + 1)

    assert compiled(torch.zeros(3)).tolist() == [1.5] * 3
    assert not compiled(torch.zeros(3)).is_cuda


def test_a_graph_that_must_not_break_may_do_so_here():
    @torch.compile(fullgraph=True)
    def add_on_device(x):
        return x + torch.ones(4, device="cuda")

    assert add_on_device(torch.zeros(4, device="cuda")).is_cuda


def test_modes_of_the_program_stay_where_they_are():
    class Counting(torch.overrides.TorchFunctionMode):
        n_seen = 0

        def __torch_function__(self, func, types, args=(), kwargs=None):
            Counting.n_seen += 1
            return func(*args, **(kwargs or {}))

    @torch.compiler.disable
    def apart(x):
        return x + torch.ones(4)

    compiled = torch.compile(lambda x: apart(x) * 2)
    with torch.device("cuda"), Counting():
        assert compiled(torch.zeros(4)).is_cuda
    assert Counting.n_seen


def test_another_thread_sees_the_device_meanwhile():
    x, seen = torch.zeros(4, device="cuda"), []

    def look(graph, inputs):
        thread = threading.Thread(target=lambda: seen.append(x.is_cuda))
        thread.start()
        thread.join()
        return graph.forward

    torch.compile(lambda y: y * 2, backend=look)(x)

    assert seen == [True]


def test_nothing_that_was_compiled_here_is_used_afterwards(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(AFTERWARDS, encoding="utf-8")
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["cuda:1", "[1.5,", "1.5]"], done.stderr


# A process of its own: what is compiled afterwards needs no compiler with a backend that runs it as it is.
AFTERWARDS = """
import torch
from snapconv.simulation import SimulationOptions, simulated

compiled = torch.compile(lambda x: x.sigmoid() + 1)
with simulated(SimulationOptions(compute=False, n_devices=2)):
    print(compiled(torch.zeros(2, device="cuda:1")).device)
with torch.compiler.set_stance("eager_on_recompile"):
    print(compiled(torch.zeros(2)).tolist())
"""
