"""What a snapshot holds under each argument of _record_memory_history."""

import inspect
import pickle
import threading
import time

import pytest

torch = pytest.importorskip("torch")

from snapconv.simulation import SimulationOptions, simulated  # noqa: E402
from snapconv.snapshot.load import load_snapshot  # noqa: E402
from tests.recorder.simulation.support import cnn, events  # noqa: E402

pytestmark = [
    pytest.mark.smoke("simulation"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

memory = torch.cuda.memory
PYTHON = {"stacks": "python"}
ACTIONS = ["segment_alloc", "alloc", "free_requested", "free_completed"]
CAN_SKIP = "skip_actions" in inspect.signature(memory._record_memory_history_impl).parameters


@pytest.fixture(autouse=True)
def _simulation():
    with simulated(SimulationOptions(compute=False)):
        yield


def make_it_here(n_bytes=4000):
    return torch.zeros(n_bytes // 4, device="cuda")


def names_of(entry):
    return [frame["name"] for frame in entry["frames"]]


def live_block(snapshot):
    return next(
        b for s in snapshot["segments"] for b in s["blocks"] if b["state"] == "active_allocated"
    )


@pytest.mark.parametrize("context", ["all", "alloc"])
def test_a_free_has_the_stack_of_what_caused_it_or_with_context_alloc_of_its_allocation(context):
    memory._record_memory_history(context=context, **PYTHON)
    x = make_it_here()
    del x
    trace = memory._snapshot()["device_traces"][0]

    assert [entry["action"] for entry in trace] == ACTIONS
    of_frees = [context == "alloc"] * 2
    assert ["make_it_here" in names_of(entry) for entry in trace] == [True, True, *of_frees]
    assert all(
        any(name.startswith("test_a_free_has") for name in names_of(entry)) for entry in trace
    )


@pytest.mark.parametrize(
    ("options", "n_events", "is_in_block", "is_in_events"),
    [
        ({"context": "state"}, 2, True, False),
        ({"context": None}, 2, False, False),
        ({"enabled": "state"}, 1, True, True),
    ],
    ids=["context state", "no context", "enabled state"],
)
def test_a_stack_is_kept_with_the_block_the_events_or_neither(
    options, n_events, is_in_block, is_in_events
):
    memory._record_memory_history(**PYTHON, **options)
    x = make_it_here()
    snapshot = memory._snapshot()

    assert ("make_it_here" in names_of(live_block(snapshot))) == is_in_block
    assert [("frames" in entry) for entry in snapshot["device_traces"][0]] == [
        is_in_events
    ] * n_events
    assert x.is_cuda


def test_enabled_none_forgets_the_trace_and_keeps_the_blocks_stacks():
    memory._record_memory_history(**PYTHON)
    x = make_it_here()
    memory._record_memory_history(enabled=None)
    snapshot = memory._snapshot()

    assert snapshot["device_traces"] == [[]]
    assert "make_it_here" in names_of(live_block(snapshot))
    assert x.is_cuda


def test_the_ring_keeps_the_newest_events():
    memory._record_memory_history(max_entries=4, **PYTHON)
    x = [make_it_here(4 * (i + 1)) for i in range(10)]
    trace = memory._snapshot()["device_traces"][0]

    assert [entry["size"] for entry in trace] == [28, 32, 36, 40]
    assert len(x) == 10


@pytest.mark.skipif(not CAN_SKIP, reason="this torch has no argument skip_actions")
def test_skipped_actions_are_not_recorded():
    memory._record_memory_history(skip_actions=["free_completed"], **PYTHON)
    x = make_it_here()
    del x

    assert [e["action"] for e in memory._snapshot()["device_traces"][0]] == ACTIONS[:3]


def test_the_signature_of_torch_2_0_still_works():
    memory._record_memory_history(
        True, trace_alloc_max_entries=100, trace_alloc_record_context=True
    )
    x = make_it_here()
    trace = memory._snapshot()["device_traces"][0]
    memory._record_memory_history(False)

    assert [entry["action"] for entry in trace] == ACTIONS[:2]
    assert "make_it_here" in names_of(trace[-1])
    assert memory._snapshot()["device_traces"] == [[]]
    assert x.is_cuda


@pytest.mark.parametrize("wrong", [{"enabled": "some"}, {"context": "most"}, {"stacks": "c"}])
def test_an_argument_that_torch_refuses_is_refused(wrong):
    with pytest.raises(RuntimeError, match="expected"):
        memory._record_memory_history(**wrong)


@pytest.mark.skipif(
    not hasattr(memory, "_set_memory_metadata"), reason="this torch keeps no metadata of users"
)
def test_user_metadata_is_on_every_event_while_it_is_set():
    memory._record_memory_history(**PYTHON)
    memory._set_memory_metadata("epoch 3")
    x = make_it_here()
    memory._set_memory_metadata("")
    del x

    trace = memory._snapshot()["device_traces"][0]
    assert [entry["user_metadata"] for entry in trace] == ["epoch 3", "epoch 3", "", ""]


@pytest.mark.skipif(
    not hasattr(memory, "_set_memory_metadata"), reason="this torch keeps no metadata of users"
)
def test_user_metadata_belongs_to_the_thread_that_set_it_and_backward_is_another():
    """As torch documents: what other threads allocate has none, autograd's among them."""
    model = torch.nn.Linear(3, 5, bias=False).cuda()
    x = torch.ones(2, 3, device="cuda", requires_grad=True)
    memory._record_memory_history(**PYTHON)
    memory._set_memory_metadata("mine")
    y = model(x).sum()
    y.backward()
    others = []
    thread = threading.Thread(target=lambda: others.append(torch.ones(7, device="cuda")))
    thread.start()
    thread.join()
    assert memory._get_memory_metadata() == "mine"
    memory._set_memory_metadata("")

    trace = memory._snapshot()["device_traces"][0]
    allocs = [entry for entry in trace if entry["action"] == "alloc"]
    metadata = {entry["size"]: entry["user_metadata"] for entry in allocs}
    # 2 x 5 outputs and a sum in forward; gradients of 5 x 3 weights and of 2 x 3 inputs.
    assert (metadata[40], metadata[4]) == ("mine", "mine")
    assert (metadata[60], metadata[24], metadata[28]) == ("", "", "")


@pytest.mark.skipif(not hasattr(memory, "_annotate_tensor"), reason="torch has it since 2.15")
def test_an_annotation_of_a_tensor_is_an_event_at_its_storage():
    memory._record_memory_history(**PYTHON)
    memory._set_memory_metadata("epoch 3")
    x = torch.ones(200, device="cuda")
    memory._annotate_tensor(x[100:], "rows")
    memory._set_memory_metadata("")
    with pytest.raises(ValueError, match="expected a CUDA tensor"):
        memory._annotate_tensor(x.cpu(), "rows")

    trace = memory._snapshot()["device_traces"][0]
    (alloc,) = [entry for entry in trace if entry["action"] == "alloc"]
    (annotation,) = [entry for entry in trace if entry["action"] == "annotate"]
    assert (annotation["addr"], annotation["user_metadata"]) == (alloc["addr"], "rows")
    assert alloc["user_metadata"] == "epoch 3"
    assert __file__ in [frame["filename"] for frame in annotation["frames"]]
    assert memory._memory_metadata_supported()


def test_pinned_memory_has_empty_keys_since_torch_2_14_and_its_history_is_refused():
    memory._record_memory_history(**PYTHON)
    snapshot = memory._snapshot()
    pinned = {key: snapshot.get(key) for key in ("host_segments", "host_traces")}
    options = inspect.signature(memory._record_memory_history_impl).parameters
    has_keys = "record_pinned_host_memory" in options
    assert pinned == dict.fromkeys(pinned, [] if has_keys else None)
    if has_keys:
        with pytest.raises(NotImplementedError, match="record_pinned_host_memory is not modelled"):
            memory._record_memory_history(**PYTHON, record_pinned_host_memory=True)
        memory._record_memory_history(**PYTHON, record_cuda=False)
        x = make_it_here()
        assert memory._snapshot()["device_traces"] == [[]]
        assert x.is_cuda


def test_a_snapshot_is_an_event_of_the_next_one():
    memory._record_memory_history(**PYTHON)
    x = make_it_here()
    first, second = memory._snapshot(), memory._snapshot()

    assert events(first, "snapshot") == []
    assert [entry["size"] for entry in events(second, "snapshot")] == [4096]
    assert x.is_cuda


def test_annotations_lie_around_the_events_inside_them():
    before_us = time.time_ns() // 1000
    memory._record_memory_history(**PYTHON)
    with torch.autograd.profiler.record_function("mine"):
        x = make_it_here()
    snapshot = memory._snapshot()

    start, end = snapshot["external_annotations"]
    assert [(a["name"], a["stage"], a["device"]) for a in (start, end)] == [
        ("mine", "START", 0),
        ("mine", "END", 0),
    ]
    (alloc,) = events(snapshot, "alloc")
    assert (
        before_us
        <= start["time_us"]
        <= alloc["time_us"]
        <= end["time_us"]
        <= time.time_ns() // 1000
    )
    assert x.is_cuda


def test_optimizers_annotate_their_steps_by_themselves():
    model = cnn().cuda()
    optimizer = torch.optim.SGD(model.parameters())
    memory._record_memory_history(**PYTHON)
    model(torch.randn(2, 3, 8, 8, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()

    names = {annotation["name"] for annotation in memory._snapshot()["external_annotations"]}
    assert names == {"Optimizer.step#SGD.step", "Optimizer.zero_grad#SGD.zero_grad"}


def test_a_dump_is_plain_data_that_snapconv_and_torchs_own_tools_read(tmp_path):
    from torch.cuda import _memory_viz

    memory._record_memory_history(stacks="all")
    model = cnn().cuda()
    model(torch.randn(2, 3, 8, 8, device="cuda")).sum().backward()
    path = tmp_path / "snapshot.pickle"
    memory._dump_snapshot(str(path))
    raw = pickle.loads(path.read_bytes())

    keys = {"segments", "device_traces", "allocator_settings", "external_annotations"}
    # Since torch 2.14.
    assert keys <= set(raw) <= keys | {"host_segments", "host_traces"}
    loaded = load_snapshot(path)
    assert len(loaded.devices[0].events) == len(raw["device_traces"][0])
    for show in (_memory_viz.trace_plot, _memory_viz.segment_plot):
        assert "base64" in show(raw)
    assert "total_reserved" in _memory_viz.segsum(raw)
    assert "TOTAL MEM" in _memory_viz.trace(raw)
