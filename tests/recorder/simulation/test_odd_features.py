"""Scripts need not know that their device is simulated, whatever they do with it."""

import ctypes

import pytest

torch = pytest.importorskip("torch")

from snapconv.errors import RecorderError  # noqa: E402
from snapconv.simulation import SimulationOptions, simulated  # noqa: E402
from tests.recorder.simulation.odd_features import CASES, TRAINING  # noqa: E402
from tests.recorder.simulation.support import events, recorded  # noqa: E402

# torch deprecates features that scripts still use, and warns of some choices of its own.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize("compute", [True, False], ids=["compute", "no-compute"])
@pytest.mark.parametrize("run", CASES + TRAINING, ids=lambda run: run.__name__)
def test_it_runs_unmodified(run, compute):
    with simulated(SimulationOptions(compute=compute)) as simulation:
        run()
    assert simulation.faults() == ()


@pytest.mark.parametrize("name", ["mm", "bmm", "addmm"])
def test_products_in_a_wider_type_are_as_a_gpu_makes_them(name):
    """Only CUDA has them; 3 products of 0.5 and 2 in each sum, and 1 that is added."""
    shape = (2, 3, 3) if name.startswith("b") else (3, 3)
    is_added = "add" in name
    with simulated():
        halves = torch.full(shape, 0.5, dtype=torch.bfloat16, device="cuda")
        factors = (halves, halves * 4)
        ones = torch.ones(shape, device="cuda")
        call = getattr(torch, name)
        arguments = (ones, *factors) if is_added else factors
        for out in (None, torch.empty(shape, device="cuda")):
            result = call(*arguments, out_dtype=torch.float32, out=out)
            assert result.dtype == torch.float32
            assert result.is_cuda
            assert result.unique().tolist() == [4 if is_added else 3]
            assert out is None or out.unique().tolist() == [4 if is_added else 3]


def test_what_a_graph_captures_runs_once_and_a_replay_does_nothing():
    with simulated() as simulation:
        x = torch.zeros(4, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=torch.cuda.graph_pool_handle()):
            x += 1
        graph.replay()
        assert x.tolist() == [1] * 4
        assert torch.cuda.current_stream().cuda_stream == 0
        [note] = simulation.notes()
        assert note.slug == "graphs-as-eager"
        assert "CUDA graphs" in simulation.values()["not_modelled"]
    assert torch.cuda.graph.default_capture_stream is None


def test_graphed_callables_are_called_as_they_are():
    with simulated() as simulation:
        model, x = torch.nn.Linear(2, 2).cuda(), torch.ones(1, 2, device="cuda")
        graphed = torch.cuda.make_graphed_callables(model, (x,))
        graphed(x).sum().backward()
        assert graphed.weight.grad.tolist() == [[1, 1], [1, 1]]
        assert [note.slug for note in simulation.notes()] == ["graphs-as-eager"]


def test_a_traced_module_runs_on_the_device_and_one_that_makes_tensors_there_is_refused():
    class Making(torch.nn.Module):
        def forward(self, x):
            return x + torch.zeros(1, device="cuda")

    with simulated() as simulation:
        model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4)).cuda()
        x = torch.ones(2, 3, 8, 8, device="cuda")
        result = torch.jit.trace(model, x)(x)
        assert result.is_cuda
        result.sum().backward()
        assert model[0].weight.grad.is_cuda
        assert "what torch.jit.trace runs" in simulation.values()["not_modelled"]
        with pytest.raises(RecorderError, match=r"torch\.jit\.trace: a simulation"):
            torch.jit.trace(Making(), x)


def test_a_graph_that_a_library_only_names_is_not_noted():
    with simulated() as simulation:
        assert not isinstance(3, torch.cuda.CUDAGraph)
        assert simulation.notes() == ()


def test_a_class_is_a_class_wherever_a_library_annotates_checks_or_subclasses_it():
    kinds = ("CUDAGraph", "Stream", "Event", "ExternalStream", "FloatTensor")
    with simulated():
        for kind in [getattr(torch.cuda, name) for name in kinds] + [
            torch.Generator,
            torch.Stream,
            torch.Event,
        ]:
            assert (kind | None) == (None | kind)
            assert not isinstance(3, kind)
        assert isinstance(torch.default_generator, torch.Generator)
        assert isinstance(torch.cuda.current_stream(), torch.Stream)
        assert isinstance(torch.cuda.Event(), torch.Event)
        assert not isinstance(torch.cuda.Stream(), torch.cuda.ExternalStream)
        assert isinstance(torch.cuda.ExternalStream(64), torch.cuda.Stream)
        assert torch.cuda.ExternalStream(64).cuda_stream == 64


def test_a_subclass_of_a_stream_or_an_event_is_made_as_torchs_are():
    with simulated(SimulationOptions(n_devices=2)):

        class Side(torch.cuda.Stream):
            def __new__(cls, device=None, priority=-1, **kwargs):
                return super().__new__(cls, device, priority=priority, **kwargs)

        class Mark(torch.cuda.Event):
            def __new__(cls):
                return super().__new__(cls, enable_timing=True)

        assert (Side("cuda:1").device_index, Side().priority) == (1, -1)
        first, last = Mark(), Mark()
        first.record(Side())
        last.record()
        assert first.elapsed_time(last) >= 0


def test_a_device_that_is_not_there_is_refused():
    with simulated(SimulationOptions(n_devices=2)):
        x = torch.ones(3, device="cuda:1")
        assert (x + 1).device == torch.device("cuda:1")
        assert torch.cuda.memory_allocated(1) > 0 == torch.cuda.memory_allocated(0)
        for ask in (lambda: torch.ones(2, device="cuda:2"), lambda: x.to("cuda:2")):
            with pytest.raises(RuntimeError, match="invalid device ordinal"):
                ask()


def test_memory_on_another_stream_is_free_when_that_stream_is_done():
    with simulated():
        torch.cuda.memory._record_memory_history(stacks="python")
        x = torch.ones(1000, device="cuda")
        side = torch.cuda.Stream()
        x.record_stream(side)
        del x
        pending = torch.cuda.memory._snapshot()
        torch.cuda.synchronize()
        done = torch.cuda.memory._snapshot()

    assert pending["segments"][0]["blocks"][0]["state"] == "active_pending_free"
    assert len(events(pending, "free_requested")) == 1 > len(events(pending, "free_completed")) == 0
    assert len(events(done, "free_completed")) == 1


def test_memory_that_waits_for_another_stream_is_free_at_the_next_allocation():
    with simulated():
        torch.cuda.memory._record_memory_history(stacks="python")
        for _ in range(8):
            x = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
            x.record_stream(torch.cuda.Stream())
            del x
        snapshot = torch.cuda.memory._snapshot()
        # Nothing is computed later here: eight blocks of 64 MiB, one after the other.
        assert torch.cuda.memory_reserved() == 64 << 20
    actions = [event["action"] for event in snapshot["device_traces"][0]]
    assert actions == [
        *["segment_alloc", "alloc", "free_requested"],
        *["free_completed", "alloc", "free_requested"] * 7,
    ]


def test_blocks_belong_to_the_stream_that_was_current():
    with simulated():
        torch.cuda.memory._record_memory_history(stacks="python")
        side = torch.cuda.Stream()
        x = torch.ones(10, device="cuda")
        with torch.cuda.stream(side):
            y = torch.ones(10, device="cuda")
        snapshot = torch.cuda.memory._snapshot()

    assert [entry["stream"] for entry in events(snapshot, "alloc")] == [0, side.cuda_stream]
    assert {segment["stream"] for segment in snapshot["segments"]} == {0, side.cuda_stream}
    assert x.shape == y.shape


# lbfgs goes another way with other values; in evaluation the CPU's batch normalisation, unlike
# CUDA's, keeps no statistics.
DIFFERENT = ("lbfgs", "normalisations")
BY_SHAPE = [run for run in TRAINING if run.__name__ not in DIFFERENT]


@pytest.mark.parametrize("run", BY_SHAPE, ids=lambda run: run.__name__)
def test_shapes_alone_allocate_what_the_kernels_do(run):
    allocated, freed = [], []
    for compute in (True, False):
        with simulated(SimulationOptions(compute=compute)), recorded() as snapshot:
            run()
        allocated.append([entry["size"] for entry in events(snapshot, "alloc")])
        # In no order: autocast frees its copies by their addresses.
        freed.append(sorted(entry["size"] for entry in events(snapshot, "free_requested")))

    assert allocated[0] == allocated[1]
    assert freed[0] == freed[1]


@pytest.mark.parametrize("key", ["CPU", "CompositeExplicitAutograd"])
def test_native_code_of_a_librarys_kernel_works_on_the_cpus_memory(key):
    """As bitsandbytes has it: a kernel in Python, with buffers of its own and native code."""
    library = torch.library.Library(f"snapconv_odd_{key}", "DEF")
    library.define("filled(Tensor a) -> Tensor")

    def filled(a):
        result = torch.empty(a.shape, device=a.device, dtype=torch.uint8)
        ctypes.memset(result.data_ptr(), 7, result.numel())
        ctypes.memset(a.data_ptr(), 0, a.numel() * a.element_size())
        return result

    library.impl("filled", filled, key)
    with simulated() as simulation:
        x = torch.ones(300, device="cuda")
        result = getattr(torch.ops, library.ns).filled(x)
        assert result.is_cuda
        assert result.data_ptr() != x.data_ptr()
        assert result.sum() == 2100
        assert x.sum() == 0
        assert simulation.faults() == ()


def test_of_overlapping_boxes_half_are_taken_and_the_line_is_noted():
    library = torch.library.Library("snapconv_boxes", "DEF")
    library.define("nms(Tensor boxes, Tensor scores, float iou_threshold) -> Tensor")
    with simulated(SimulationOptions(compute=False)) as simulation:
        boxes, scores = torch.rand(9000, 4, device="cuda"), torch.rand(9000, device="cuda")
        kept = torch.ops.snapconv_boxes.nms(boxes, scores, 0.5)
        assert kept.shape == (4500,)
        assert kept.is_cuda
        [message] = [note.message for note in simulation.notes() if note.slug == "sizes-assumed"]
        assert "test_odd_features.py" in message
        assert simulation.faults() == ()


@pytest.mark.parametrize("compute", [True, False])
def test_a_librarys_operation_for_cuda_alone_runs_with_its_own_allocations(compute):
    library = torch.library.Library("snapconv_cuda_alone", "DEF")
    library.define("twice(Tensor a) -> Tensor")
    library.define("rows(int n, Device device) -> Tensor")
    library.impl("twice", lambda a: torch.cat((a, a, a))[: 2 * len(a)].clone(), "CUDA")
    library.impl("rows", lambda n, device: torch.ones(n, 256, device=device), "CUDA")
    with simulated(SimulationOptions(compute=compute)) as simulation:
        a = torch.ops.snapconv_cuda_alone.rows(64, torch.device("cuda"))
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        result = torch.ops.snapconv_cuda_alone.twice(a)
        assert result.is_cuda
        # Two rows of a are kept of three: its three copies are a temporary of the implementation.
        row_bytes = 64 * 256 * 4
        assert torch.cuda.memory_allocated() - before == 2 * row_bytes
        assert torch.cuda.max_memory_allocated() - before == 5 * row_bytes
        if compute:
            assert result.sum() == 2 * 64 * 256
        with pytest.raises(NotImplementedError, match="CPU"):
            torch.ops.snapconv_cuda_alone.twice(torch.ones(3))
        assert simulation.faults() == ()


def test_a_custom_operation_for_cuda_alone_has_its_gradient():
    @torch.library.custom_op("snapconv_cuda_alone_2::tripled", mutates_args=(), device_types="cuda")
    def tripled(a: torch.Tensor) -> torch.Tensor:
        return a + 2 * a

    tripled.register_autograd(lambda _, gradient: 3 * gradient)
    with simulated() as simulation:
        a = torch.ones(4, device="cuda", requires_grad=True)
        tripled(a).sum().backward()
        assert a.grad.tolist() == [3.0] * 4
        assert simulation.faults() == ()
