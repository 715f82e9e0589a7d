"""torch.distributed under the simulation: a job of one rank works, and of more ranks with gloo alone."""

import io
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from snapconv.errors import RecorderError  # noqa: E402
from snapconv.recorder.observe.observer import Observer  # noqa: E402
from snapconv.simulation import SimulationOptions, simulated  # noqa: E402
from tests.recorder.simulation.support import recorded  # noqa: E402

dist = torch.distributed
ROOT = Path(__file__).parents[3]

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*using the device under current context:UserWarning"),
    pytest.mark.skipif(not dist.is_available(), reason="this torch has no torch.distributed"),
]


@pytest.fixture(autouse=True)
def _no_group_is_left():
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


@pytest.fixture(params=[True, False], ids=["computed", "shapes"])
def simulation(request):
    with simulated(SimulationOptions(compute=request.param)) as running:
        yield running


@pytest.fixture
def group(simulation):
    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
    return simulation


def test_a_group_of_one_rank_is_nccls_and_noted(group):
    assert (dist.get_backend(), dist.get_world_size(), dist.get_rank()) == ("nccl", 1, 0)
    assert [note.slug for note in group.notes()] == ["simulated-nccl"]


def test_a_group_is_split(simulation):
    device = torch.device("cuda", 0)
    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1, device_id=device)
    assert dist.get_world_size(dist.split_group(split_ranks=[[0]])) == 1


def test_without_a_launchers_variables_the_error_is_torchs_own(simulation, monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ValueError, match="environment variable RANK expected"):
        dist.init_process_group("nccl")
    assert simulation.notes() == ()


@pytest.mark.parametrize(
    "arguments",
    [
        *({"backend": "nccl"}, {}),
        {"store": dist.HashStore(), "rank": 0, "world_size": 3},
        {"init_method": "tcp://localhost:1?rank=0&world_size=3"},
    ],
    ids=["nccl", "no backend", "store", "url"],
)
def test_more_ranks_are_refused_wherever_their_number_stands(simulation, monkeypatch, arguments):
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(RecorderError, match="job of 3 ranks: start it with --world-size 3 "):
        dist.init_process_group(**arguments)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    with pytest.raises(RecorderError, match="start it without torchrun with --world-size 3"):
        dist.init_process_group(**arguments)
    assert simulation.notes() == ()


def test_collectives_of_one_rank_leave_what_they_work_on_as_it_is():
    with simulated():
        dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
        numbers = torch.arange(4.0, device="cuda")
        dist.all_reduce(numbers)
        dist.broadcast(numbers, 0)
        dist.reduce(numbers, 0)
        work = dist.all_reduce(numbers, async_op=True)
        work.wait()
        dist.barrier()
        assert numbers.tolist() == [0, 1, 2, 3]
        assert work.get_future().value()[0] is not None


@pytest.mark.parametrize("on", ["cuda", "cpu"])
def test_collectives_into_another_place_copy(on):
    with simulated():
        dist.init_process_group("cpu:gloo,cuda:nccl", store=dist.HashStore(), rank=0, world_size=1)
        given = torch.arange(4.0, device=on)
        results = [torch.zeros(4, device=on) for _ in range(7)]
        dist.all_gather([results[0]], given)
        dist.all_gather_into_tensor(results[1], given)
        dist.reduce_scatter(results[2], [given])
        dist.reduce_scatter_tensor(results[3], given)
        dist.all_to_all([results[4]], [given])
        dist.all_to_all_single(results[5], given)
        dist.scatter(results[6], [given], src=0)
        assert [result.tolist() for result in results] == [[0, 1, 2, 3]] * 7
        assert {result.device.type for result in results} == {on}
        said = [None]
        dist.all_gather_object(said, {"rank": 0})
        assert said == [{"rank": 0}]


def _trained(model, n_steps=3):
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(n_steps):
        optimizer.zero_grad()
        model(torch.ones(8, 64, device="cuda")).pow(2).mean().backward()
        optimizer.step()


def _two_layers():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64)).cuda()


_WEIGHT_BYTES = 4 * (64 * 256 + 256 + 256 * 64 + 64)


@pytest.mark.parametrize("is_view", [False, True])
def test_buckets_of_gradients_are_on_the_device(group, is_view):
    """The reducer's buckets hold every gradient once; as views the gradients lie in them and nowhere else."""
    model = _two_layers()
    weights_alone = torch.cuda.memory_allocated()
    wrapped = nn.parallel.DistributedDataParallel(
        model, device_ids=[0], gradient_as_bucket_view=is_view
    )
    _trained(wrapped)

    held = torch.cuda.memory_allocated() - weights_alone
    expected = _WEIGHT_BYTES if is_view else 2 * _WEIGHT_BYTES
    assert expected <= held < expected + 4096  # each gradient's block is rounded to 512


def test_a_wrapped_model_trains_as_the_model_alone():
    with simulated():
        alone = _two_layers()
        _trained(alone)
        dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
        wrapped = nn.parallel.DistributedDataParallel(_two_layers(), device_ids=[0])
        _trained(wrapped)
        for one, other in zip(alone.parameters(), wrapped.module.parameters(), strict=True):
            assert torch.equal(one.cpu(), other.cpu())


def test_a_hook_on_communication_is_run(group):
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

    wrapped = nn.parallel.DistributedDataParallel(_two_layers(), device_ids=[0])
    wrapped.register_comm_hook(None, fp16_compress_hook)
    with recorded() as snapshot:
        _trained(wrapped, 1)
    sizes = [entry["size"] for entry in snapshot["device_traces"][0] if entry["action"] == "alloc"]
    assert _WEIGHT_BYTES // 2 in sizes  # the bucket in half the bytes


def test_gradients_in_buckets_are_recorded_where_they_lie(group):
    observer = Observer()
    observer.start()
    wrapped = nn.parallel.DistributedDataParallel(
        _two_layers(), device_ids=[0], gradient_as_bucket_view=True
    )
    with recorded() as snapshot:
        wrapped(torch.ones(8, 64, device="cuda")).sum().backward()
        observer.note_now()
    observer.stop()
    facts = observer.facts(snapshot)
    gradients = {row["addr"] for row in facts["gradients"]}
    assert len(facts["gradients"]) == 4
    assert len(gradients) == 1  # one bucket


def _sharded(model):
    fully_shard = pytest.importorskip("torch.distributed.fsdp").fully_shard
    for layer in model:
        fully_shard(layer)
    return fully_shard(model)


def _sharded_as_before(model):
    from torch.distributed.fsdp import FullyShardedDataParallel

    return FullyShardedDataParallel(model, use_orig_params=True)


def _parallel(model):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    return parallelize_module(model, init_device_mesh("cuda", (1,)), plan)


@pytest.mark.filterwarnings("ignore:.*NO_SHARD:UserWarning")
@pytest.mark.parametrize("shard", [_sharded, _sharded_as_before, _parallel])
def test_a_model_sharded_over_one_rank_trains_as_the_model_alone(shard):
    with simulated():
        alone = _two_layers()
        _trained(alone)
        dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
        before = torch.cuda.memory_allocated()
        model = shard(_two_layers())
        assert _WEIGHT_BYTES <= torch.cuda.memory_allocated() - before < _WEIGHT_BYTES + 4096
        _trained(model)
        for one, other in zip(alone.parameters(), model.parameters(), strict=True):
            assert other.is_cuda
            assert torch.equal(one.cpu(), getattr(other, "_local_tensor", other).cpu())
        torch.save(dict(model.named_parameters()), io.BytesIO())


def test_gathered_parameters_are_freed_after_use(group):
    """In the forward of several layers, one at a time is gathered beside the shards."""
    torch.manual_seed(1)
    model = _sharded(nn.Sequential(*[nn.Linear(512, 512, bias=False) for _ in range(4)]).cuda())
    shards = torch.cuda.memory_allocated()
    with torch.no_grad():
        model(torch.ones(1, 512, device="cuda"))
    at_most = torch.cuda.max_memory_allocated() - shards
    assert 512 * 512 * 4 <= at_most < 4 * 512 * 512 * 4


def test_subgroups_are_made_as_with_nccl(simulation):
    dist.init_process_group(
        "nccl", store=dist.HashStore(), rank=0, world_size=1, device_id=torch.device("cuda", 0)
    )
    options = dist.ProcessGroupNCCL.Options(is_high_priority_stream=True)
    for group in (dist.new_group([0]), dist.new_group([0], pg_options=options)):
        dist.all_reduce(torch.ones(4, device="cuda"), group=group)
        assert (dist.get_backend(group), dist.get_world_size(group)) == ("nccl", 1)


def test_functional_collectives_make_copies():
    from torch.distributed import _functional_collectives as functional

    with simulated():
        dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
        whole, given = dist.group.WORLD, torch.arange(4.0, device="cuda")
        results = (
            functional.all_reduce(given, "sum", whole),
            functional.all_gather_tensor(given, 0, whole),
            functional.reduce_scatter_tensor(given, "sum", 0, whole),
            functional.all_to_all_single(given, [4], [4], whole),
            functional.broadcast(given, 0, whole),
        )
        for result in results:
            assert result.tolist() == [0, 1, 2, 3]
            assert result.is_cuda
            assert result.data_ptr() != given.data_ptr()


def test_a_storage_that_is_resized_has_a_new_block(simulation):
    tensor = torch.ones(1 << 20, device="cuda")
    storage = tensor.untyped_storage()
    storage.resize_(0)
    assert (torch.cuda.memory_allocated(), storage.size()) == (0, 0)
    storage.resize_(4 << 20)
    assert (torch.cuda.memory_allocated(), storage.nbytes()) == (4 << 20, 4 << 20)
    del tensor, storage
    assert torch.cuda.memory_allocated() == 0


GLOO = """
import os, sys
import torch
from snapconv.simulation import SimulationOptions, simulated

rank = int(os.environ["RANK"])
with simulated(SimulationOptions()):
    torch.distributed.init_process_group("gloo", rank=rank, world_size=2)
    on_gpu = torch.full((1 << 20,), float(rank), device="cuda")
    total = torch.tensor([rank + 1.0])
    torch.distributed.all_reduce(total)
    everyone = [torch.zeros(1) for _ in range(2)]
    torch.distributed.all_gather(everyone, torch.tensor([float(rank)]))
    torch.distributed.barrier()
    print(total.item(), [one.item() for one in everyone], torch.cuda.memory_allocated())
    torch.distributed.destroy_process_group()
"""


ON_GPUS = """
import os, sys
import torch
from torch.distributed.fsdp import fully_shard
from snapconv.simulation import SimulationOptions, simulated

dist = torch.distributed
rank = int(os.environ["RANK"])
with simulated(SimulationOptions(compute=sys.argv[1] == "computed")) as simulation:
    dist.init_process_group("gloo", rank=rank, world_size=2)
    device = torch.device("cuda", 0)
    total = torch.full((3,), rank + 1.0, device=device)
    dist.all_reduce(total)
    both = torch.empty(2, device=device)
    dist.all_gather_into_tensor(both, torch.tensor([rank + 1.0], device=device))
    mesh = dist.device_mesh.init_device_mesh("cuda", (2,))
    model = torch.nn.Linear(4, 2, bias=False, device=device)
    torch.nn.init.ones_(model.weight)
    fully_shard(model, mesh=mesh)
    model(torch.full((1, 4), rank + 1.0, device=device)).sum().backward()
    gradient = model.weight.grad.to_local()
    slugs = [note.slug for note in simulation.notes()]
    print(total.tolist(), both.tolist(), gradient.tolist(), "simulated-nccl" in slugs)
    dist.destroy_process_group()
"""


def output_of_two_ranks(script, *args):
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    environment = {
        **os.environ,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": "2",
    }
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", script, *args],
            env={**environment, "RANK": str(rank), "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    said = [one.communicate(timeout=300) for one in ranks]
    assert all(out for out, _ in said), said
    return [out for out, _ in said]


@pytest.mark.long
def test_processes_with_a_simulated_gpu_each_talk_by_gloo():
    assert output_of_two_ranks(GLOO) == ["3.0 [0.0, 1.0] 4194304\n"] * 2


def test_gloo_sends_what_was_computed_on_simulated_gpus():
    """The gradient of a sum is the input, whose mean over both ranks is 1.5."""
    expected = "[3.0, 3.0, 3.0] [1.0, 2.0] [[1.5, 1.5, 1.5, 1.5]] False\n"
    assert output_of_two_ranks(ON_GPUS, "computed") == [expected] * 2


@pytest.mark.long
def test_gloo_sends_nothing_of_gpus_where_nothing_is_computed_and_a_note_says_so():
    for line in output_of_two_ranks(ON_GPUS, "shapes"):
        assert line.endswith(" True\n")
