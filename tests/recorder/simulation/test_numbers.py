"""Computing under the simulation changes no value, and the counters agree with the events."""

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from snapconv.errors import RecorderError  # noqa: E402
from snapconv.simulation import SimulationOptions, simulated  # noqa: E402
from snapconv.torch_knowledge.allocator_options import release_key  # noqa: E402
from tests.recorder.simulation.support import (  # noqa: E402
    MIB,
    Transformer,
    cnn,
    language_step,
    recorded,
)

pytestmark = [
    pytest.mark.smoke("simulation"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


def train_cnn(device):
    torch.manual_seed(1)
    model = cnn().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    images, labels = torch.randn(4, 3, 16, 16).to(device), torch.randint(0, 10, (4,)).to(device)
    for _ in range(3):
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()
    return model


def train_transformer(device, **options):
    torch.manual_seed(2)
    model = Transformer(**options).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    tokens = torch.randint(0, 64, (2, 17)).to(device)
    for _ in range(3):
        language_step(model, optimizer, tokens)
    return model


def train_tied(device):
    return train_transformer(device, is_tied=True)


def train_lstm(device):
    torch.manual_seed(3)
    model = nn.LSTM(8, 16, num_layers=2, batch_first=True).to(device)
    x = torch.randn(3, 7, 8).to(device)
    for _ in range(2):  # gradients accumulate
        model(x)[0].square().sum().backward()
    return model


def train_checkpointed(device):
    torch.manual_seed(4)
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)).to(device)
    x = torch.randn(5, 8).to(device)
    for use_reentrant in (False, True):
        checkpoint(model, x.clone().requires_grad_(), use_reentrant=use_reentrant).sum().backward()
    return model


RUNS = [train_cnn, train_transformer, train_tied, train_lstm, train_checkpointed]


@pytest.mark.parametrize("train", RUNS, ids=lambda train: train.__name__)
def test_gradients_and_weights_are_bit_equal_to_those_of_plain_torch(train):
    plain = train("cpu")
    with simulated():
        model = train("cuda")
        assert all(parameter.is_cuda for parameter in model.parameters())
        gradients = [parameter.grad.cpu() for parameter in model.parameters()]
        weights = [parameter.detach().cpu() for parameter in model.parameters()]

    assert all(map(torch.equal, weights, plain.parameters()))
    assert all(map(torch.equal, gradients, (parameter.grad for parameter in plain.parameters())))


@pytest.mark.parametrize("trained", ["query", "key", "value"])
def test_attention_of_which_one_part_alone_is_trained_has_the_gradient_of_plain_torch(trained):
    def gradient(device):
        torch.manual_seed(3)
        parts = {
            name: torch.randn(2, 2, 8, 16).to(device).requires_grad_(name == trained)
            for name in ("query", "key", "value")
        }
        bias = torch.randn(2, 2, 8, 8).to(device)
        F.scaled_dot_product_attention(*parts.values(), attn_mask=bias).sum().backward()
        return parts[trained].grad.cpu()

    with simulated(SimulationOptions()):
        found = gradient("cuda")
    assert torch.allclose(found, gradient("cpu"), atol=1e-6)


@pytest.mark.parametrize("shape", [(1, 2, 3, 16), (4, 1, 3, 16)], ids=["samples", "heads"])
def test_attention_whose_query_is_broadcast_has_the_result_of_plain_torch(shape):
    """No fused kernel broadcasts, neither the CPU's nor CUDA's."""

    def attended(device):
        torch.manual_seed(3)
        query, key, value = (
            torch.randn(size).to(device) for size in (shape, (4, 2, 8, 16), (4, 2, 8, 16))
        )
        return F.scaled_dot_product_attention(query, key, value).cpu()

    with simulated(SimulationOptions()):
        found = attended("cuda")
    assert torch.allclose(found, attended("cpu"), atol=1e-6)
    with simulated(SimulationOptions(compute=False)):
        assert attended("cuda").shape == found.shape


@pytest.mark.parametrize("p", [0.1, 0.5])
def test_dropout_draws_the_same_mask_as_plain_torch(p):
    def run(device):
        torch.manual_seed(0)
        x = torch.randn(1000, requires_grad=True)
        torch.manual_seed(0)  # of all devices: each has a generator of its own
        F.dropout(x.to(device), p).square().sum().backward()
        return x.grad

    plain = run("cpu")
    with simulated():
        gradient = run("cuda").cpu()

    assert torch.equal(gradient, plain)


def running_maximum(snapshot):
    """The highest sum of live blocks, from the events and the sizes that 512-byte rounding gives."""
    now = highest = 0
    for entry in snapshot["device_traces"][0]:
        rounded = -(-entry["size"] // 512) * 512
        if entry["action"] == "alloc":
            now += rounded
            highest = max(highest, now)
        elif entry["action"] == "free_requested":
            now -= rounded
    return highest


@pytest.mark.parametrize("compute", [True, False], ids=["compute", "no-compute"])
def test_the_peak_is_that_of_the_events(compute):
    with simulated(SimulationOptions(compute=compute)), recorded() as snapshot:
        model = train_transformer("cuda")
        peak = torch.cuda.max_memory_allocated()
        del model

    # All requests are below 1 MiB, where nothing but the rounding makes a block larger than its
    # request.
    assert peak == running_maximum(snapshot)


def test_both_targets_allocate_the_same_in_the_same_order():
    traces = []
    for compute in (True, False):
        with simulated(SimulationOptions(compute=compute)), recorded() as snapshot:
            for train in (train_cnn, train_transformer, train_checkpointed):
                train("cuda")
        traces.append([(e["action"], e["size"], e["addr"]) for e in snapshot["device_traces"][0]])

    assert traces[0] == traces[1]


@pytest.fixture
def _simulation():
    with simulated(SimulationOptions(compute=False)):
        yield


@pytest.mark.usefixtures("_simulation")
class TestCounters:
    def test_they_count_blocks_and_segments(self):
        small = torch.empty(1000, dtype=torch.uint8, device="cuda")
        large = torch.empty(3 * MIB, dtype=torch.uint8, device="cuda")

        stats = torch.cuda.memory_stats()
        assert (
            torch.cuda.memory_allocated() == 1024 + 3 * MIB == stats["allocated_bytes.all.current"]
        )
        assert (
            torch.cuda.memory_reserved()
            == 2 * MIB + 20 * MIB
            == stats["reserved_bytes.all.current"]
        )
        assert stats["requested_bytes.all.current"] == small.nbytes + large.nbytes
        assert stats["allocation.small_pool.current"] == stats["allocation.large_pool.current"] == 1
        assert stats["segment.all.current"] == 2
        assert stats["inactive_split_bytes.all.current"] == (2 * MIB - 1024) + 17 * MIB

    def test_peaks_last_until_they_are_reset(self):
        x = torch.empty(50 * MIB, dtype=torch.uint8, device="cuda")
        del x
        y = torch.empty(10 * MIB, dtype=torch.uint8, device="cuda")

        assert torch.cuda.max_memory_allocated() == 50 * MIB
        torch.cuda.reset_peak_memory_stats()
        assert torch.cuda.max_memory_allocated() == 10 * MIB == y.nbytes
        assert torch.cuda.max_memory_reserved() == 50 * MIB

    def test_empty_cache_gives_segments_back(self):
        x = torch.empty(50 * MIB, dtype=torch.uint8, device="cuda")
        del x
        torch.cuda.empty_cache()

        assert torch.cuda.memory_reserved() == 0
        assert torch.cuda.memory_stats()["segment.all.freed"] == 1

    def test_the_summary_for_people_can_be_written(self):
        x = torch.empty(50 * MIB, dtype=torch.uint8, device="cuda")

        assert "51200 KiB" in torch.cuda.memory_summary()
        assert x.is_cuda


def test_the_settings_in_the_environment_hold(monkeypatch):
    monkeypatch.setenv(
        "PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True,roundup_power2_divisions:4"
    )
    with simulated(SimulationOptions(compute=False)), recorded() as snapshot:
        x = torch.empty(1300, dtype=torch.uint8, device="cuda")
        allocated = torch.cuda.memory_allocated()

    assert allocated == 1300 - 1300 % 512 + 512 == 1536
    assert snapshot["device_traces"][0][0]["action"] == "segment_map"
    assert snapshot["segments"][0]["is_expandable"]
    assert snapshot["allocator_settings"]["expandable_segments"]
    assert x.shape == (1300,)


@pytest.mark.skipif(
    not hasattr(torch._C, "_accelerator_setAllocatorSettings"),
    reason="this torch has another function for it",
)
def test_settings_can_change_on_the_way():
    with simulated(SimulationOptions(compute=False)):
        torch._C._accelerator_setAllocatorSettings("expandable_segments:True")
        x = torch.empty(100, dtype=torch.uint8, device="cuda")
        snapshot = torch.cuda.memory._snapshot()

    assert snapshot["segments"][0]["is_expandable"]
    assert x.shape == (100,)


def test_settings_of_the_program_leave_what_they_do_not_name_as_torch_does(monkeypatch):
    """Only limits of splitting and collection, and divisions, return to their defaults (torch 2.15)."""
    conf = "expandable_segments:True,max_split_size_mb:64,garbage_collection_threshold:0.8"
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", conf)
    with simulated(SimulationOptions(compute=False)) as simulation:
        machine = simulation.machine
        machine.set_settings("roundup_power2_divisions:4")
        found = machine.settings.as_snapshot()
        with pytest.raises(ValueError, match="no option 'foo'"):
            machine.set_settings("foo:1")
    assert found["PYTORCH_CUDA_ALLOC_CONF"] == "roundup_power2_divisions:4"
    assert found["expandable_segments"] is True
    assert (found["max_split_size"], found["garbage_collection_threshold"]) == (-1, 0.0)
    assert found["roundup_power2_divisions"]["1"] == 4


def test_a_refused_text_of_the_program_leaves_what_stands_before_the_fault(monkeypatch):
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "pinned_num_register_threads:8")
    conf = "max_split_size_mb:64,foo:1,expandable_segments:True"
    with simulated(SimulationOptions(compute=False)) as simulation:
        machine = simulation.machine
        with pytest.raises((ValueError, RuntimeError), match="no option 'foo'"):
            machine.set_settings(conf)
        found = torch.cuda.memory._snapshot()["allocator_settings"]
        allocator = machine.device(0).allocator
    assert (found["PYTORCH_CUDA_ALLOC_CONF"], found["max_split_size"]) == (conf, 64 << 20)
    assert (found["expandable_segments"], found["pinned_num_register_threads"]) == (False, 8)
    assert allocator.settings.max_split_size_bytes == 64 << 20


@pytest.mark.parametrize(
    ("conf", "error"),
    [
        ("expandable_segments:true", ValueError),
        ("max_split_size_mb:", RuntimeError),
        # What is no number at all is another error at run time than in the environment.
        ("max_split_size_mb:few", ValueError),
    ],
)
def test_a_text_of_the_program_is_refused_with_the_error_of_torch(conf, error):
    """As the tables of torch's own answers have it (settings_of_torch.tsv)."""
    if release_key(torch.__version__) < (2, 10):
        error = RuntimeError
    refused = pytest.raises((ValueError, RuntimeError))
    with simulated(SimulationOptions(compute=False)) as simulation, refused as caught:
        simulation.machine.set_settings(conf)
    assert type(caught.value) is error


def test_an_empty_variable_of_cuda_hides_the_general_one(monkeypatch):
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "")
    with simulated(SimulationOptions(compute=False)) as simulation:
        assert not simulation.machine.settings.expandable_segments


def test_settings_that_torch_would_refuse_are_refused_before_anything_is_patched(monkeypatch):
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:few")
    with pytest.raises(RecorderError, match="max_split_size_mb must be an integer"), simulated():
        pass
    assert not hasattr(torch._C, "_cuda_memorySnapshot") or torch.backends.cuda.is_built()
