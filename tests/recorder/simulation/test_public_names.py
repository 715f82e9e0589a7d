"""Every public name of torch.cuda and torch.accelerator works as a device would, or says that it does not.

``WORKS`` has a check for each name that works: what a device of 80 GiB with nothing else on it
answers. ``REFUSES`` has a call for each that has no model. A name of this torch that is in neither
fails, so that a new release cannot bring a wrong answer unseen.
"""

import gzip
import sys
import tempfile
import types
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch.cuda.comm")

from snapconv.simulation import SimulationOptions, simulated  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")

GIB = 1 << 30
TOTAL_BYTES = 80 * GIB
# A block of up to 512 bytes in a small segment, as torch makes both.
BLOCK_BYTES, SEGMENT_BYTES = 512, 2 << 20

cuda, accelerator = torch.cuda, torch.accelerator


def public_names():
    """The dotted names that torch.cuda, torch.accelerator and their modules export, each object once."""
    names, known = [], set()
    for root in ("torch.cuda", "torch.accelerator"):
        below = sorted(name for name in sys.modules if name.startswith(f"{root}."))
        parts = [name for name in below if "._" not in name and ".amp." not in name]
        for module in (root, *parts):
            values = vars(sys.modules[module])
            own = {name for name in values if getattr(values[name], "__module__", "") == module}
            for name in sorted({*values.get("__all__", ()), *own}):
                value = values.get(name)
                is_named = not name.startswith("_") and value is not None
                if is_named and not isinstance(value, types.ModuleType):
                    key = (name, id(value))
                    if key not in known:
                        names.append(f"{module}.{name}".removeprefix("torch."))
                    known.add(key)
    return names


def ones(n=4, device="cuda", **options):
    return torch.ones(n, device=device, **options)


def of_block(ask, expected=BLOCK_BYTES):
    """One small tensor makes a figure: 512 bytes in use, a segment of 2 MiB reserved."""

    def check():
        kept = ones()
        assert ask() == expected
        assert kept.is_cuda

    return check


def equal(ask, expected):
    def check():
        assert ask() == expected

    return check


def of_type(name, dtype):
    def check():
        made = getattr(cuda, name)(3)
        assert (made.is_cuda, made.dtype, made.shape) == (True, dtype, (3,))
        assert isinstance(made, getattr(cuda, name))
        assert not isinstance(made.cpu(), getattr(cuda, name))

    return check


def of_storage(name, dtype):
    def check():
        made = getattr(cuda, name)(4)
        assert (made.device, made.dtype, made.size()) == (torch.device("cuda", 0), dtype, 4)
        assert cuda.memory_allocated() == BLOCK_BYTES

    return check


def allocating_raw_memory():
    addr = cuda.caching_allocator_alloc(1000, 1)
    assert addr > 0
    assert (cuda.memory_allocated(0), cuda.memory_allocated(1)) == (0, 1024)
    cuda.caching_allocator_delete(addr)
    assert cuda.memory_allocated(1) == 0


def enabling_the_allocator():
    cuda.caching_allocator_enable(True)
    with pytest.raises(NotImplementedError, match=r"caching_allocator_enable\(False\) is not mod"):
        cuda.caching_allocator_enable(False)


def errors_of_the_runtime():
    cuda.check_error(0)
    cuda.check_error(cuda.cudart().cudaError.success)
    with pytest.raises(cuda.CudaError, match=r"out of memory \(2\)"):
        cuda.check_error(2)


def functions_of_the_runtime():
    runtime = cuda.cudart()
    host = torch.ones(4)
    assert int(runtime.cudaHostRegister(host.data_ptr(), 16, 0)) == 0
    assert int(runtime.cudaHostUnregister(host.data_ptr())) == 0
    assert runtime.cudaMemGetInfo(0) == (TOTAL_BYTES, TOTAL_BYTES)
    assert runtime.cudaGetErrorString(runtime.cudaError(2)) == "out of memory"
    with pytest.raises(NotImplementedError, match="cudaStreamCreate is not modelled"):
        runtime.cudaStreamCreate(0)


def within(context, inside, outside):
    """A context in which something is so; outside of it, it is not."""

    def check():
        assert ask() == outside
        with context():
            assert ask() == inside
        assert ask() == outside

    ask = cuda.current_device
    return check


def setting_a_device(set_device):
    def check():
        set_device(1)
        try:
            assert (cuda.current_device(), ones().device.index) == (1, 1)
        finally:
            set_device(0)

    return check


def seeding(seed):
    def check():
        drawn = []
        for _ in range(2):
            seed(7)
            drawn.append(torch.rand(4, device="cuda").tolist())
        assert drawn[0] == drawn[1]
        assert cuda.initial_seed() == 7

    return check


def seeding_by_chance(seed):
    def check():
        cuda.manual_seed(7)
        seed()
        assert cuda.initial_seed() != 7

    return check


def states_of_the_generator(read, write):
    def check():
        state = read()
        drawn = torch.rand(4, device="cuda").tolist()
        write(state)
        assert torch.rand(4, device="cuda").tolist() == drawn

    return check


def no_graph():
    graph = cuda.CUDAGraph()
    assert graph.pool() in getattr(graph, "pools", lambda: [graph.pool()])()
    x = ones()
    with cuda.graph(graph):
        x += 1
    graph.replay()
    assert x.tolist() == [2] * 4
    for name in ("register_replay_start_hook", "get_graph_data"):
        if hasattr(graph, name):
            with pytest.raises(NotImplementedError, match=f"CUDAGraph.{name} is not modelled"):
                getattr(graph, name)()


def a_graph_of_the_accelerator():
    x = ones()
    with accelerator.Graph() as graph:
        x += 1
    assert graph is None
    assert x.tolist() == [2] * 4
    accelerator.Graph().replay()


def callables_of_graphs():
    model = torch.nn.Linear(2, 2).cuda()
    assert cuda.make_graphed_callables(model, (ones(2),)) is model


def streams():
    side = cuda.Stream()
    assert cuda.current_stream() == cuda.default_stream() != side
    with cuda.stream(side), cuda.StreamContext(side):
        assert cuda.current_stream() == side
    cuda.set_stream(side)
    assert cuda.current_stream() == side
    cuda.set_stream(cuda.default_stream())
    external = cuda.get_stream_from_external(64, 0)
    assert (external.cuda_stream, external.device) == (64, torch.device("cuda", 0))
    assert cuda.ExternalStream(64) == external


def stream_of_the_accelerator():
    side = torch.Stream("cuda")
    accelerator.set_stream(side)
    assert accelerator.current_stream() == side
    accelerator.set_stream(cuda.default_stream())


def events():
    first, last = (cuda.Event(enable_timing=True) for _ in range(2))
    first.record()
    last.record()
    assert first.elapsed_time(last) >= 0
    assert last.query()


def sync_debug_mode():
    cuda.set_sync_debug_mode("warn")
    assert cuda.get_sync_debug_mode() == 1
    cuda.set_sync_debug_mode("default")
    assert cuda.get_sync_debug_mode() == 0


def memory_pool():
    pool = cuda.MemPool()
    with cuda.use_mem_pool(pool):
        x = torch.zeros(BLOCK_BYTES, dtype=torch.uint8, device="cuda")
    [segment] = pool.snapshot()
    assert (segment["segment_pool_id"], segment["active_size"]) == ((0, 1), x.nbytes)


def fraction():
    cuda.set_per_process_memory_fraction(0.25, 1)
    assert cuda.get_per_process_memory_fraction(1) == 0.25
    assert cuda.mem_get_info(1) == (TOTAL_BYTES, TOTAL_BYTES)
    with pytest.raises(cuda.OutOfMemoryError, match=r"of 80.00 GiB of which 80.00 GiB is free"):
        torch.empty(21 * GIB, dtype=torch.uint8, device="cuda:1")


def peaks(reset, ask):
    def check():
        kept = ones()
        more = ones()
        del more
        assert ask() == 2 * BLOCK_BYTES
        reset()
        assert ask() == BLOCK_BYTES
        assert kept.is_cuda

    return check


def accumulated(reset, stats):
    def check():
        kept = ones()
        assert stats()["allocation.all.allocated"] == 1
        reset()
        assert stats()["allocation.all.allocated"] == 0
        assert stats()["allocation.all.current"] == 1
        assert kept.is_cuda

    return check


def emptying(empty):
    def check():
        x = ones()
        del x
        assert cuda.memory_reserved() == SEGMENT_BYTES
        empty()
        assert cuda.memory_reserved() == 0

    return check


def properties():
    of_device = cuda.get_device_properties(0)
    assert (of_device.major, of_device.minor) == cuda.get_device_capability() == (9, 0)
    assert of_device.total_memory == TOTAL_BYTES
    assert of_device.name == cuda.get_device_name()
    # NVIDIA's H100 SXM: 1,980 MHz, 5,120 bits of HBM3, 228 KiB of shared memory a processor.
    assert (of_device.clock_rate, of_device.memory_bus_width) == (1_980_000, 5120)
    assert of_device.shared_memory_per_multiprocessor == 228 << 10
    with pytest.raises(AssertionError, match="Invalid device id"):
        cuda.get_device_properties(2)


def of_amp():
    model = torch.nn.Linear(2, 2).cuda()
    with cuda.amp.autocast():
        assert model(ones(2)).dtype == torch.float16
    assert cuda.amp.GradScaler().is_enabled()
    assert not cuda.amp.common.amp_definitely_not_available()

    class Twice(torch.autograd.Function):
        @staticmethod
        @cuda.amp.custom_fwd
        def forward(ctx, x):
            return x * 2

        @staticmethod
        @cuda.amp.custom_bwd
        def backward(ctx, gradient):
            return gradient * 2

    x = ones(requires_grad=True)
    Twice.apply(x).sum().backward()
    assert x.grad.tolist() == [2] * 4


def ranges():
    assert cuda.nvtx.range_push("a") == 0
    assert cuda.nvtx.range_pop() == 0
    cuda.nvtx.range_end(cuda.nvtx.range_start("b"))
    cuda.nvtx.mark("c")
    with cuda.nvtx.range("d"):
        pass


def profiler():
    with cuda.profiler.profile():
        cuda.profiler.stop()
        cuda.profiler.start()


def both():
    return [ones(device="cuda:0"), ones(device="cuda:1")]


def devices_of(tensors):
    return [str(tensor.device) for tensor in tensors]


def copies_to_devices():
    comm = cuda.comm
    assert devices_of(comm.broadcast(ones(), [0, 1])) == ["cuda:0", "cuda:1"]
    coalesced = comm.broadcast_coalesced([ones(), ones()], [0, 1])
    assert [devices_of(tensors) for tensors in coalesced] == [["cuda:0"] * 2, ["cuda:1"] * 2]
    pieces = comm.scatter(torch.arange(4.0), [0, 1])
    assert devices_of(pieces) == ["cuda:0", "cuda:1"]
    assert [piece.tolist() for piece in pieces] == [[0, 1], [2, 3]]
    assert comm.gather(pieces, destination=1).tolist() == [0, 1, 2, 3]
    total = comm.reduce_add(both(), 1)
    assert (str(total.device), total.tolist()) == ("cuda:1", [2] * 4)
    (sums,) = comm.reduce_add_coalesced([[tensor] for tensor in both()], 0)
    assert (str(sums.device), sums.tolist()) == ("cuda:0", [2] * 4)


def device_of_a_tensor():
    with cuda.device_of(ones(device="cuda:1")):
        assert cuda.current_device() == 1


def the_snapshot():
    kept = ones()
    (segment,) = cuda.memory_snapshot()
    assert (segment["total_size"], segment["allocated_size"]) == (SEGMENT_BYTES, BLOCK_BYTES)
    assert kept.is_cuda


def the_summary():
    assert "| Allocated memory      |      0 B   |" in cuda.memory_summary()


def the_processes():
    kept = torch.empty(20 << 20, dtype=torch.uint8, device="cuda")
    first, process = cuda.list_gpu_processes().splitlines()
    assert first == "GPU:0"
    assert "20.000 MB GPU memory" in process
    assert kept.is_cuda


def marked_kernels():
    with cuda.graph_annotations.mark_kernels("a"):
        assert ones().is_cuda
    assert dict(cuda.graph_annotations.get_kernel_annotations()) == {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "stacks.json.gz")
        cuda.graph_annotations.dump_kernel_py_stacks(str(path))
        assert gzip.decompress(path.read_bytes()) == b"{}"


def nothing_of_a_lazy_call():
    assert issubclass(cuda.DeferredCudaCallError, Exception)


DTYPES = {
    "BFloat16": torch.bfloat16,
    "Bool": torch.bool,
    "Byte": torch.uint8,
    "Char": torch.int8,
    "ComplexDouble": torch.complex128,
    "ComplexFloat": torch.complex64,
    "Double": torch.float64,
    "Float": torch.float32,
    "Half": torch.float16,
    "Int": torch.int32,
    "Long": torch.int64,
    "Short": torch.int16,
}
WORKS = {
    **{f"cuda.{name}Tensor": of_type(f"{name}Tensor", dtype) for name, dtype in DTYPES.items()},
    **{f"cuda.{name}Storage": of_storage(f"{name}Storage", kind) for name, kind in DTYPES.items()},
    **dict.fromkeys(["cuda.CUDAGraph", "cuda.graph", "cuda.graph_pool_handle"], no_graph),
    "cuda.is_current_stream_capturing": equal(lambda: cuda.is_current_stream_capturing(), False),
    "cuda.make_graphed_callables": callables_of_graphs,
    "accelerator.Graph": a_graph_of_the_accelerator,
    **dict.fromkeys(
        [
            *("cuda.Stream", "cuda.StreamContext", "cuda.stream", "cuda.set_stream"),
            *("cuda.current_stream", "cuda.default_stream", "cuda.ExternalStream"),
            "cuda.get_stream_from_external",
        ],
        streams,
    ),
    **dict.fromkeys(
        ["accelerator.current_stream", "accelerator.set_stream"], stream_of_the_accelerator
    ),
    "cuda.Event": events,
    **dict.fromkeys(
        ["cuda.caching_allocator_alloc", "cuda.caching_allocator_delete"], allocating_raw_memory
    ),
    "cuda.caching_allocator_enable": enabling_the_allocator,
    "cuda.can_device_access_peer": equal(lambda: cuda.can_device_access_peer(0, 1), True),
    **dict.fromkeys(["cuda.check_error", "cuda.CudaError"], errors_of_the_runtime),
    "cuda.cudart": functions_of_the_runtime,
    "cuda.cudaStatus": equal(lambda: cuda.cudaStatus.SUCCESS, 0),
    "cuda.DeferredCudaCallError": nothing_of_a_lazy_call,
    # Handles of libraries that are not there: any number but 0, which a program only passes on.
    "cuda.current_blas_handle": equal(lambda: cuda.current_blas_handle() > 0, True),
    "cuda.current_solver_handle": equal(lambda: cuda.current_solver_handle() > 0, True),
    "cuda.current_device": equal(lambda: cuda.current_device(), 0),
    "cuda.device": within(lambda: cuda.device(1), 1, 0),
    "cuda.device_of": device_of_a_tensor,
    "cuda.set_device": setting_a_device(lambda index: cuda.set_device(index)),
    "accelerator.set_device_idx": setting_a_device(lambda index: accelerator.set_device_idx(index)),
    "accelerator.set_device_index": setting_a_device(
        lambda index: accelerator.set_device_index(index)
    ),
    "accelerator.device_index": within(lambda: accelerator.device_index(1), 1, 0),
    "accelerator.current_device_idx": equal(lambda: accelerator.current_device_idx(), 0),
    "accelerator.current_device_index": equal(lambda: accelerator.current_device_index(), 0),
    "accelerator.current_accelerator": equal(
        lambda: accelerator.current_accelerator(), torch.device("cuda")
    ),
    "cuda.device_count": equal(lambda: cuda.device_count(), 2),
    "accelerator.device_count": equal(lambda: accelerator.device_count(), 2),
    "accelerator.is_available": equal(lambda: accelerator.is_available(), True),
    "cuda.is_available": equal(lambda: cuda.is_available(), True),
    "cuda.is_initialized": equal(lambda: cuda.is_initialized(), True),
    "cuda.is_bf16_supported": equal(lambda: cuda.is_bf16_supported(), True),
    "cuda.is_tf32_supported": equal(lambda: cuda.is_tf32_supported(), True),
    "cuda.has_half": equal(lambda: cuda.has_half, True),
    "cuda.has_magma": equal(lambda: cuda.has_magma, torch._C._has_magma),
    "cuda.init": equal(lambda: cuda.init(), None),
    "cuda.ipc_collect": equal(lambda: cuda.ipc_collect(), None),
    "cuda.synchronize": equal(lambda: cuda.synchronize(), None),
    "accelerator.synchronize": equal(lambda: accelerator.synchronize(), None),
    "cuda.get_arch_list": equal(lambda: cuda.get_arch_list(), ["sm_90"]),
    "cuda.get_gencode_flags": equal(
        lambda: cuda.get_gencode_flags(), "-gencode compute=compute_90,code=sm_90"
    ),
    **dict.fromkeys(
        ["cuda.get_device_capability", "cuda.get_device_name", "cuda.get_device_properties"],
        properties,
    ),
    "cuda.get_allocator_backend": equal(lambda: cuda.get_allocator_backend(), "native"),
    "cuda.mem_get_info": of_block(
        lambda: cuda.mem_get_info(), (TOTAL_BYTES - SEGMENT_BYTES, TOTAL_BYTES)
    ),
    "accelerator.get_memory_info": of_block(
        lambda: accelerator.get_memory_info(), (TOTAL_BYTES - SEGMENT_BYTES, TOTAL_BYTES)
    ),
    "cuda.device_memory_used": of_block(lambda: cuda.device_memory_used(), SEGMENT_BYTES),
    "cuda.list_gpu_processes": the_processes,
    **dict.fromkeys(
        ["cuda.set_per_process_memory_fraction", "cuda.get_per_process_memory_fraction"], fraction
    ),
    **dict.fromkeys(["cuda.MemPool", "cuda.use_mem_pool"], memory_pool),
    "cuda.memory_allocated": of_block(lambda: cuda.memory_allocated()),
    "cuda.max_memory_allocated": of_block(lambda: cuda.max_memory_allocated()),
    "cuda.memory_reserved": of_block(lambda: cuda.memory_reserved(), SEGMENT_BYTES),
    "cuda.max_memory_reserved": of_block(lambda: cuda.max_memory_reserved(), SEGMENT_BYTES),
    "cuda.memory_cached": of_block(lambda: cuda.memory_cached(), SEGMENT_BYTES),
    "cuda.max_memory_cached": of_block(lambda: cuda.max_memory_cached(), SEGMENT_BYTES),
    "accelerator.memory_allocated": of_block(lambda: accelerator.memory_allocated()),
    "accelerator.max_memory_allocated": of_block(lambda: accelerator.max_memory_allocated()),
    "accelerator.memory_reserved": of_block(lambda: accelerator.memory_reserved(), SEGMENT_BYTES),
    "accelerator.max_memory_reserved": of_block(
        lambda: accelerator.max_memory_reserved(), SEGMENT_BYTES
    ),
    "cuda.memory_stats": of_block(lambda: cuda.memory_stats()["allocated_bytes.all.current"]),
    "accelerator.memory_stats": of_block(
        lambda: accelerator.memory_stats()["allocated_bytes.all.current"]
    ),
    "cuda.memory_stats_as_nested_dict": of_block(
        lambda: cuda.memory_stats_as_nested_dict()["allocated_bytes"]["all"]["current"]
    ),
    "cuda.memory_snapshot": the_snapshot,
    "cuda.memory_summary": the_summary,
    "cuda.empty_cache": emptying(lambda: cuda.empty_cache()),
    "accelerator.empty_cache": emptying(lambda: accelerator.empty_cache()),
    "accelerator.empty_host_cache": equal(lambda: accelerator.empty_host_cache(), None),
    **{
        f"cuda.{name}": peaks(lambda name=name: getattr(cuda, name)(), cuda.max_memory_allocated)
        for name in ("reset_peak_memory_stats", "reset_max_memory_allocated")
    },
    "cuda.reset_max_memory_cached": peaks(
        lambda: cuda.reset_max_memory_cached(), cuda.max_memory_allocated
    ),
    "accelerator.reset_peak_memory_stats": peaks(
        lambda: accelerator.reset_peak_memory_stats(), cuda.max_memory_allocated
    ),
    "cuda.reset_accumulated_memory_stats": accumulated(
        lambda: cuda.reset_accumulated_memory_stats(), lambda: cuda.memory_stats()
    ),
    "accelerator.reset_accumulated_memory_stats": accumulated(
        lambda: accelerator.reset_accumulated_memory_stats(), lambda: accelerator.memory_stats()
    ),
    # There is nothing to reset: what would read it refuses.
    "cuda.reset_peak_host_memory_stats": equal(lambda: cuda.reset_peak_host_memory_stats(), None),
    "cuda.reset_accumulated_host_memory_stats": equal(
        lambda: cuda.reset_accumulated_host_memory_stats(), None
    ),
    **dict.fromkeys(["cuda.get_sync_debug_mode", "cuda.set_sync_debug_mode"], sync_debug_mode),
    **dict.fromkeys(
        ["cuda.manual_seed", "cuda.initial_seed"], seeding(lambda seed: cuda.manual_seed(seed))
    ),
    "cuda.manual_seed_all": seeding(lambda seed: cuda.manual_seed_all(seed)),
    "cuda.seed": seeding_by_chance(lambda: cuda.seed()),
    "cuda.seed_all": seeding_by_chance(lambda: cuda.seed_all()),
    **dict.fromkeys(
        ["cuda.get_rng_state", "cuda.set_rng_state"],
        states_of_the_generator(
            lambda: cuda.get_rng_state(), lambda state: cuda.set_rng_state(state)
        ),
    ),
    **dict.fromkeys(
        ["cuda.get_rng_state_all", "cuda.set_rng_state_all"],
        states_of_the_generator(
            lambda: cuda.get_rng_state_all(), lambda states: cuda.set_rng_state_all(states)
        ),
    ),
    "cuda.default_generators": states_of_the_generator(
        lambda: cuda.default_generators[0].get_state(),
        lambda state: cuda.default_generators[0].set_state(state),
    ),
    "accelerator.random.get_rng_state": states_of_the_generator(
        lambda: accelerator.random.get_rng_state(), lambda state: cuda.set_rng_state(state)
    ),
    "accelerator.random.get_rng_state_all": states_of_the_generator(
        lambda: accelerator.random.get_rng_state_all(),
        lambda states: cuda.set_rng_state_all(states),
    ),
    "accelerator.random.initial_seed": equal(
        lambda: (cuda.manual_seed(5), accelerator.random.initial_seed())[1], 5
    ),
    **dict.fromkeys(
        [
            *("cuda.amp.autocast_mode.autocast", "cuda.amp.autocast", "cuda.amp.GradScaler"),
            *(
                "cuda.amp.custom_fwd",
                "cuda.amp.custom_bwd",
                "cuda.amp.amp_definitely_not_available",
            ),
        ],
        of_amp,
    ),
    **{f"cuda.nvtx.{name}": ranges for name in ("range", "range_push", "range_pop", "mark")},
    **{f"cuda.nvtx.{name}": ranges for name in ("range_start", "range_end")},
    **{f"cuda.profiler.{name}": profiler for name in ("profile", "start", "stop")},
    **{
        f"cuda.comm.{name}": copies_to_devices
        for name in (
            "broadcast broadcast_coalesced reduce_add reduce_add_coalesced scatter gather".split()
        )
    },
    # As with a build without them.
    "cuda.nccl.is_available": equal(lambda: cuda.nccl.is_available(both()), False),
    "cuda.nccl.version": equal(lambda: len(cuda.nccl.version()), 3),
    "cuda.gds.is_available": equal(lambda: cuda.gds.is_available(), False),
    # As with a driver of CUDA before 13.1: what is marked is not kept, and a program can ask.
    "cuda.graph_annotations.is_available": equal(
        lambda: cuda.graph_annotations.is_available(), False
    ),
    "cuda.graph_annotations.get_kernel_annotations": equal(
        lambda: dict(cuda.graph_annotations.get_kernel_annotations()), {}
    ),
    "cuda.graph_annotations.get_kernel_py_stacks": equal(
        lambda: dict(cuda.graph_annotations.get_kernel_py_stacks()), {}
    ),
    **{
        f"cuda.graph_annotations.{name}": marked_kernels
        for name in ("mark_kernels", "dump_kernel_py_stacks")
    },
    "cuda.graph_annotations.clear_kernel_annotations": equal(
        lambda: cuda.graph_annotations.clear_kernel_annotations(), None
    ),
}

REFUSES = [
    "cuda.CUDAPluggableAllocator",
    "cuda.GreenContext",
    "cuda.caching_allocator_disabled",
    "cuda.change_current_allocator",
    "cuda.clock_rate",
    "cuda.export_dot",
    "cuda.export_graph_data",
    "cuda.host_memory_stats",
    "cuda.host_memory_stats_as_nested_dict",
    "cuda.memory_usage",
    "cuda.power_draw",
    "cuda.temperature",
    "cuda.utilization",
    "cuda.gds.GdsFile",
    "cuda.gds.gds_deregister_buffer",
    "cuda.gds.gds_register_buffer",
    *(f"cuda.graphs.register_graph_{moment}_hook" for moment in ("instantiate", "destroy")),
    *(f"cuda.graphs.register_graph_capture_{moment}_hook" for moment in ("start", "end")),
    *(f"cuda.graphs.register_graph_replay_{moment}_hook" for moment in ("start", "end")),
    *(f"cuda.green_contexts.{name}" for name in getattr(cuda.green_contexts, "__all__", ())),
    *(f"cuda.nccl.{name}" for name in cuda.nccl.__all__),
    "cuda.nccl.init_rank",
    "cuda.nccl.unique_id",
    *(f"cuda.sparse.{name}Tensor" for name in DTYPES),
    *(f"cuda.tunable.{name}" for name in cuda.tunable.__all__),
    "accelerator.get_device_capability",
]
NAMES = public_names()


def named(name):
    value = torch
    for part in name.split("."):
        value = getattr(value, part)
    return value


@pytest.fixture(autouse=True)
def simulation():
    before = torch.get_rng_state()
    with simulated(SimulationOptions(n_devices=2)) as running:
        yield running
    torch.set_rng_state(before)


def test_every_public_name_is_in_one_of_the_tables():
    assert sorted(set(NAMES) - WORKS.keys() - set(REFUSES)) == []
    assert sorted(WORKS.keys() & set(REFUSES)) == []


@pytest.mark.parametrize("name", [name for name in NAMES if name in WORKS])
def test_it_works_as_a_device_does(name, simulation):
    WORKS[name]()
    assert simulation.faults() == ()


@pytest.mark.parametrize("name", [name for name in NAMES if name in REFUSES])
def test_what_has_no_model_says_so_in_one_sentence_with_its_name(name):
    with pytest.raises(NotImplementedError) as refused:
        named(name)(torch.ones(1))
    short = name.removeprefix("cuda.green_contexts.") if "GreenContext" in name else name
    assert str(refused.value).endswith(" is not modelled by the simulated device")
    assert short.rpartition(".")[2] in str(refused.value)
    assert str(refused.value).startswith("torch.")
