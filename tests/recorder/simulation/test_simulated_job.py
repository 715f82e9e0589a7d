"""One rank of a job of several, simulated in one process: its variables, its group, its collectives."""

import json
import os
import pickle
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from snapconv.cli.app import main  # noqa: E402
from snapconv.errors import RecorderError  # noqa: E402
from snapconv.simulation import RankOfJob, SimulationOptions, simulated  # noqa: E402

dist = torch.distributed

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*using the device under current context:UserWarning"),
    pytest.mark.skipif(not dist.is_available(), reason="this torch has no torch.distributed"),
]

# Rank 5 of 8.
JOB = RankOfJob.create(5, 8, None)


@pytest.fixture(autouse=True)
def _no_group_is_left():
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


def rank_of_job(job=JOB, *, compute=True):
    return simulated(SimulationOptions(compute=compute, n_devices=job.n_ranks_per_node, job=job))


@pytest.fixture(params=[True, False], ids=["computed", "shapes"])
def simulation(request):
    with rank_of_job(compute=request.param) as running:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group("nccl")
        yield running


# --- the place, and what torchrun sets


@pytest.mark.parametrize(
    ("rank", "n_ranks", "n_each", "variables"),
    [
        (0, 1, None, {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "GROUP_RANK": "0"}),
        (3, 4, None, {"LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "4", "GROUP_WORLD_SIZE": "1"}),
        (21, 64, None, {"LOCAL_RANK": "5", "LOCAL_WORLD_SIZE": "8", "GROUP_RANK": "2"}),
        (7, 8, 4, {"LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "4", "GROUP_WORLD_SIZE": "2"}),
    ],
)
def test_the_variables_follow_from_the_place(rank, n_ranks, n_each, variables):
    present = RankOfJob.create(rank, n_ranks, n_each).variables()
    expected = {**variables, "RANK": str(rank), "WORLD_SIZE": str(n_ranks)}
    assert {name: present[name] for name in expected} == expected


def test_torchrun_sets_these_variables_and_no_others(tmp_path):
    script = tmp_path / "shown.py"
    script.write_text("import json, os; print(json.dumps(dict(os.environ)))")
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "1"]
    text = subprocess.run(
        [*launcher, "--rdzv-backend", "static", "--master-port", "0", str(script)],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    ).stdout
    added = json.loads(text).keys() - os.environ.keys() - {"OMP_NUM_THREADS"}
    # These two are about the process of torchrun, which is not there.
    of_agent = {"TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_SIGNALS_TO_HANDLE"}
    assert added - of_agent == RankOfJob.create(0, 1, None).variables().keys()


@pytest.mark.parametrize(("rank", "n_ranks", "n_each"), [(8, 8, None), (0, 12, None), (0, 8, 3)])
def test_a_job_that_cannot_be_is_refused(rank, n_ranks, n_each):
    with pytest.raises(ValueError, match=r"has the ranks 0 to 7|do not fill nodes"):
        RankOfJob.create(rank, n_ranks, n_each)


def test_the_variables_are_as_before_afterwards(monkeypatch):
    monkeypatch.setenv("RANK", "2")
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with rank_of_job():
        assert (os.environ["RANK"], os.environ["WORLD_SIZE"]) == ("5", "8")
    assert (os.environ["RANK"], os.environ.get("WORLD_SIZE")) == ("2", None)


# --- the group


def test_the_group_has_all_ranks_and_says_so(simulation):
    assert (dist.get_backend(), dist.get_rank(), dist.get_world_size()) == ("nccl", 5, 8)
    note = simulation.notes()[0]
    assert (note.slug, "rank 5 of 8" in note.message) == ("simulated-nccl", True)


def test_nothing_is_exchanged_where_there_is_nothing(simulation):
    received = torch.empty(0, 4, device="cuda")
    dist.all_to_all_single(received, torch.empty(0, 4, device="cuda"))
    assert received.shape == (0, 4)


def test_the_store_of_the_group_keeps_what_it_is_given(simulation):
    store = dist.distributed_c10d._get_default_store()
    store.set("key", "text")
    assert store.get("key") == b"text"
    assert (store.add("number", 2), store.add("number", 3)) == (2, 5)
    store.wait(["key"])
    n_keys = store.num_keys()
    assert (store.delete_key("key"), store.num_keys()) == (True, n_keys - 1)


def test_a_store_of_the_programs_own_is_a_tcp_store(simulation):
    store = dist.TCPStore("localhost", 0, 8, is_master=False)
    assert isinstance(store, dist.TCPStore)
    assert isinstance(store, dist.Store)
    store.set("key", "value")
    assert (store.get("key"), store.host) == (b"value", "localhost")


def test_a_store_compares_texts_as_torchs_does():
    with rank_of_job():
        stores = dist.TCPStore("localhost", 0, 8, is_master=True), dist.HashStore()
        answers = [
            (
                store.compare_set("key", "", "first"),
                store.compare_set("key", "other", "second"),
                store.compare_set("key", "first", "second"),
                store.get("key"),
            )
            for store in stores
        ]
    assert answers[0] == answers[1]


@pytest.mark.parametrize("backend", ["gloo", None, "cpu:gloo,cuda:nccl"])
def test_no_backend_waits_for_others(backend):
    with rank_of_job():
        dist.init_process_group(backend)
        for device in ("cpu", "cuda") if backend != "gloo" else ("cpu",):
            total = torch.ones(3, device=device)
            dist.all_reduce(total)
            assert total.tolist() == [8, 8, 8]
        dist.barrier()
        dist.destroy_process_group()
        dist.init_process_group(backend)


def test_a_torch_without_what_it_needs_is_refused_by_name(monkeypatch):
    monkeypatch.delattr(dist.ProcessGroup, "unbox")
    with simulated():
        pass
    with pytest.raises(RecorderError, match="unbox is not there"), rank_of_job():
        pass


def test_a_group_of_another_size_is_refused():
    with rank_of_job(), pytest.raises(RecorderError, match="give --world-size 4"):
        dist.init_process_group("nccl", rank=0, world_size=4)


def test_subgroups_have_the_place_in_them(simulation):
    assert dist.get_rank(dist.new_group([1, 5, 7])) == 1
    assert dist.new_group([0, 1]) == dist.GroupMember.NON_GROUP_MEMBER
    mesh = dist.device_mesh.init_device_mesh("cuda", (2, 4), mesh_dim_names=("dp", "tp"))
    assert tuple(mesh.get_coordinate()) == (1, 1)
    assert (mesh["dp"].size(), mesh["tp"].get_local_rank()) == (2, 1)


def test_meshes_of_a_group_on_one_device_have_their_groups():
    # torch splits the whole group then, as Lightning starts it.
    with rank_of_job():
        device = torch.device("cuda", 5)
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", device_id=device)
        mesh = dist.device_mesh.init_device_mesh("cuda", (4, 2), mesh_dim_names=("dp", "tp"))
        ranks = [dist.get_process_group_ranks(mesh.get_group(name)) for name in ("dp", "tp")]
        assert ranks == [[1, 3, 5, 7], [4, 5]]
        parts = dist.split_group(parent_pg=mesh.get_group("dp"), split_ranks=[[0, 1], [2, 3]])
        # The numbers are those in the group that is split.
        assert dist.get_process_group_ranks(parts) == [5, 7]


def test_the_store_of_the_job_keeps_what_is_set(simulation):
    store = dist.TCPStore("localhost", 1, 8, is_master=False)
    store.set("key", "value")
    store.wait(["another"])
    assert (store.get("key"), store.add("n", 2), store.add("n", 1)) == (b"value", 2, 3)


# --- collectives: each other rank holds what this one holds


def _numbers(*values):
    return torch.tensor(values, dtype=torch.int64, device="cuda")


def test_sums_count_every_rank_and_other_reductions_one(simulation):
    results = {}
    for operator in ("SUM", "AVG", "MAX", "MIN"):
        results[operator] = _numbers(3, 4)
        dist.all_reduce(results[operator], getattr(dist.ReduceOp, operator))
    assert {name: result.tolist() for name, result in results.items()} == {
        "SUM": [24, 32],
        "AVG": [3, 4],
        "MAX": [3, 4],
        "MIN": [3, 4],
    }


def test_a_gather_has_a_part_for_every_rank(simulation):
    whole = torch.empty(16, dtype=torch.int64, device="cuda")
    dist.all_gather_into_tensor(whole, _numbers(3, 4))
    parts = [_numbers(0, 0) for _ in range(8)]
    dist.all_gather(parts, _numbers(3, 4))
    assert whole.tolist() == [3, 4] * 8
    assert [part.tolist() for part in parts] == [[3, 4]] * 8


def test_a_scatter_gives_the_part_of_this_rank(simulation):
    part = _numbers(0, 0)
    dist.reduce_scatter_tensor(part, torch.arange(16, device="cuda"))
    assert part.tolist() == [10 * 8, 11 * 8]
    dist.reduce_scatter(part, [_numbers(i, i) for i in range(8)], dist.ReduceOp.MAX)
    assert part.tolist() == [5, 5]


def test_an_exchange_gives_what_this_rank_sends_to_itself(simulation):
    exchanged = torch.zeros(8, dtype=torch.int64, device="cuda")
    dist.all_to_all_single(exchanged, torch.arange(8, device="cuda"))
    assert exchanged.tolist() == [5] * 8
    sizes = list(range(8))
    uneven = torch.zeros(5 * 8, dtype=torch.int64, device="cuda")
    dist.all_to_all_single(uneven, torch.arange(28, device="cuda"), [5] * 8, sizes)
    assert uneven.tolist() == list(range(10, 15)) * 8


def test_functional_collectives_have_the_sizes_of_their_rules(simulation):
    from torch.distributed import _functional_collectives as functional

    group = dist.group.WORLD
    before = torch.cuda.memory_allocated()
    results = {
        "sum": functional.all_reduce(_numbers(1, 2), "sum", group),
        "gathered": functional.all_gather_tensor(_numbers(1, 2), 0, group),
        "scattered": functional.reduce_scatter_tensor(
            torch.arange(16, device="cuda"), "avg", 0, group
        ),
        "exchanged": functional.all_to_all_single(
            torch.arange(8, device="cuda"), [1] * 8, [1] * 8, group
        ),
        "sent": functional.broadcast(_numbers(1, 2), 0, group),
    }
    assert {name: result.tolist() for name, result in results.items()} == {
        "sum": [8, 16],
        "gathered": [1, 2] * 8,
        "scattered": [10, 11],
        "exchanged": [5] * 8,
        "sent": [1, 2],
    }
    assert torch.cuda.memory_allocated() - before == 512 * 5


def test_objects_of_all_ranks_are_this_ranks_own(simulation):
    objects = [None] * 8
    dist.all_gather_object(objects, {"rank": 5})
    assert objects == [{"rank": 5}] * 8


def test_objects_that_another_rank_sends_are_this_ranks_own_and_noted(simulation):
    objects = ["own"]
    dist.broadcast_object_list(objects, src=0)
    parts = [None]
    dist.scatter_object_list(parts, None, src=3)
    assert (objects, parts) == (["own"], [None])
    note = next(note for note in simulation.notes() if note.slug == "objects-of-other-ranks")
    assert "test_simulated_job.py" in note.message
    dist.broadcast_object_list(objects, src=5)
    dist.scatter_object_list(parts, list("abcdefgh"), src=5)
    assert (objects, parts) == (["own"], ["f"])


OF_OTHERS = """
import torch.distributed as dist


def own(flag):
    if flag.item():
        return 1


def summed(flag):
    dist.all_reduce(flag)
    if flag.item() > 3:
        return 1


def gathered(flag):
    flags = [torch.zeros_like(flag) for _ in range(8)]
    dist.all_gather(flags, flag)
    n_done = (flags[0].cpu() + 1).tolist()


def sent_from_here(flag):
    dist.broadcast(flag, 5)
    if flag.item():
        return 1


def overwritten(flag):
    dist.all_reduce(flag)
    flag.fill_(1)
    if flag.item():
        return 1


def sent_from_there(flag):
    dist.broadcast(flag, 0)
    while flag.item() > 10:
        pass
"""


@pytest.mark.parametrize(
    ("function", "read", "decides"),
    [
        ("own", None, None),
        ("summed", "12 (item())", "12"),
        ("gathered", "19 (tolist())", None),
        ("sent_from_here", None, None),
        ("overwritten", None, None),
        ("sent_from_there", "37 (item())", "37"),
    ],
)
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_read_of_what_other_ranks_have_is_a_note_with_its_line(
    simulation, tmp_path, function, read, decides, device
):
    """A gather that is followed by a sum, an overwritten sum, and what this rank itself sends."""
    script = tmp_path / "flags.py"
    script.write_text(OF_OTHERS)
    names = {"torch": torch}
    exec(compile(OF_OTHERS, str(script), "exec"), names)
    names[function](torch.ones(1, device=device))
    notes = [note for note in simulation.notes() if note.slug == "values-of-other-ranks"]
    assert [note.slug for note in notes] == (["values-of-other-ranks"] if read else [])
    if read:
        message = notes[0].message
        assert f"flags.py:{read}" in message
        assert ("may go another way" in message) == (decides is not None)
        if decides:
            assert message.endswith(f"flags.py:{decides}")


@pytest.mark.parametrize("target", [5, 0])
def test_states_of_zero_are_collected_from_this_rank_alone(simulation, target):
    from torch.distributed.optim import ZeroRedundancyOptimizer

    weights = [nn.Parameter(torch.ones(4, 4, device="cuda")) for _ in range(16)]
    optimizer = ZeroRedundancyOptimizer(weights, torch.optim.Adam, foreach=False)
    for weight in weights:
        weight.grad = torch.ones_like(weight)
    optimizer.step()
    optimizer.consolidate_state_dict(to=target)
    if target == 5:
        # Two of 16 equal weights have states here; what the others hold is not known.
        states = optimizer.state_dict()
        assert len(states["state"]) == 2
        assert states["param_groups"][0]["params"] == list(range(16))
    assert "objects-of-other-ranks" in {note.slug for note in simulation.notes()}


def test_stages_of_a_pipeline_are_refused(simulation):
    from torch.distributed.pipelining import PipelineStage

    with pytest.raises(RecorderError, match="take shapes from their neighbours"):
        PipelineStage(nn.Linear(4, 4), 0, 8, torch.device("cuda", 5))


def test_messages_between_two_ranks_wait_for_nobody(simulation):
    received = torch.ones(4, device="cuda")
    dist.send(received, 6)
    dist.recv(received, 4)
    assert received.shape == (4,)


# --- training


WEIGHTS = 4 * (64 * 256 + 256 + 256 * 64 + 64)


@pytest.mark.parametrize("is_view", [False, True])
def test_buckets_of_data_parallel_training_hold_every_gradient_once(simulation, is_view):
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64)).cuda()
    weights_alone = torch.cuda.memory_allocated()
    wrapped = nn.parallel.DistributedDataParallel(
        model, device_ids=[5], gradient_as_bucket_view=is_view
    )
    for _ in range(3):
        wrapped(torch.ones(8, 64, device="cuda")).pow(2).mean().backward()
    held = torch.cuda.memory_allocated() - weights_alone
    expected = WEIGHTS if is_view else 2 * WEIGHTS
    assert expected <= held < expected + 4096  # each block is rounded to 512


def test_gradients_that_all_ranks_have_alike_are_those_of_one():
    def gradients(wrap):
        torch.manual_seed(1)
        model = wrap(nn.Linear(16, 4).cuda())
        model(torch.ones(2, 16, device="cuda")).pow(2).mean().backward()
        return [parameter.grad.tolist() for parameter in model.parameters()]

    with rank_of_job():
        dist.init_process_group("nccl")
        assert gradients(nn.parallel.DistributedDataParallel) == gradients(nn.Sequential)


# --- the command line


SCRIPT = """
import os
import torch
torch.distributed.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
model = torch.nn.Linear(64, 8).cuda()
model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(4):
    model(torch.ones(2, 64, device="cuda")).sum().backward()
    optimizer.step()
torch.distributed.destroy_process_group()
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    return tmp_path


def record(*options):
    return main(["record", "--simulate", "--no-compute", *options, "train.py"])


def test_a_capture_is_of_the_rank_that_is_named(folder):
    assert record("--world-size", "16", "--ranks", "11") == 0
    with (folder / "train.rank11.capture" / "snapshot.pickle").open("rb") as file:
        metadata = pickle.load(file)["snapconv"]
    assert (metadata["rank"], metadata["world_size"]) == (11, 16)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--world-size", "8", "--ranks", "8"], "a job of 8 has the ranks 0 to 7, not 8"),
        (["--world-size", "8", "--ranks", "0,1"], "one rank runs at a time"),
        (["--world-size", "12"], "12 ranks do not fill nodes of 8"),
        (["--nproc-per-node", "4"], "it needs --world-size"),
    ],
)
def test_a_place_that_cannot_be_is_a_wrong_command_line(folder, capfd, options, message):
    assert record(*options) == 2
    assert message in capfd.readouterr().err


def test_a_rank_of_a_real_job_simulates_no_other(folder, capfd, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank, times in (("0", 1), ("1", 0)):  # one rank says it for all
        monkeypatch.setenv("RANK", rank)
        assert record("--world-size", "8") == 6
        assert capfd.readouterr().err.count("a rank of a job already") == times


# --- operations that torch has for GPUs alone


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_batch_norms_of_all_ranks_compute_what_one_of_all_samples_does(dtype):
    torch.manual_seed(1)
    samples = torch.randn(4, 3, 5, 5, dtype=dtype)
    plain = nn.BatchNorm2d(3)
    nn.init.uniform_(plain.weight)
    nn.init.uniform_(plain.bias)
    weights = {name: value.clone() for name, value in plain.state_dict().items()}
    # The other ranks hold the same: a batch of every sample eight times.
    batch = samples.float().repeat(8, 1, 1, 1).requires_grad_()
    plain(batch).square().sum().backward()

    with rank_of_job():
        torch.cuda.set_device(0)
        dist.init_process_group("nccl")
        norm = nn.SyncBatchNorm(3)
        norm.load_state_dict(weights)
        norm.cuda()
        inputs = samples.cuda().requires_grad_()
        outputs = norm(inputs)
        assert outputs.dtype == dtype
        outputs.float().square().sum().backward()
        found = {
            "mean": norm.running_mean,
            "variance": norm.running_var,
            "inputs": inputs.grad.float(),
            "weight": norm.weight.grad,
            "bias": norm.bias.grad,
        }
        found = {name: tensor.cpu() for name, tensor in found.items()}
    expected = {
        "mean": plain.running_mean,
        "variance": plain.running_var,
        "inputs": batch.grad[:4],
        # This rank's part of the sum over all.
        "weight": plain.weight.grad / 8,
        "bias": plain.bias.grad / 8,
    }
    tolerance = 1e-4 if dtype is torch.float32 else 5e-2
    for name, tensor in expected.items():
        torch.testing.assert_close(
            found[name], tensor.detach(), atol=tolerance, rtol=tolerance, msg=name
        )


def test_batch_norms_of_all_ranks_take_the_memory_of_their_results(simulation):
    norm = nn.SyncBatchNorm(3).cuda()
    samples = torch.randn(4, 3, 64, 64, device="cuda", dtype=torch.bfloat16)
    before = torch.cuda.memory_allocated()
    outputs = norm(samples)
    # The result of 98,304 bytes, and what backward needs: a block each for the mean, the inverse
    # deviation and the counts of ranks.
    assert torch.cuda.memory_allocated() - before == 98304 + 3 * 512
    assert outputs.shape == samples.shape


def test_an_operation_for_gpus_alone_gives_its_shapes_or_is_refused_by_name():
    def masked(tensor):
        return torch._masked_scale(tensor, torch.ones_like(tensor, dtype=torch.uint8), 2.0)

    with rank_of_job(compute=False):
        assert masked(torch.ones(3, device="cuda")).shape == (3,)
        with pytest.raises(RecorderError, match=r"cudnn_affine_grid_generator.*shape"):
            torch.cudnn_affine_grid_generator(torch.ones(1, 2, 3, device="cuda"), 1, 1, 4, 4)
    with rank_of_job(), pytest.raises(RecorderError, match=r"_masked_scale.*--no-compute"):
        masked(torch.ones(3, device="cuda"))
