"""From a training script on a simulated device to the report: names, sizes, categories, peak."""

import pickle
from math import prod
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402  # after the check that torch is there
from torch.nn import functional  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from snapconv.classification.categories import Evidence  # noqa: E402
from snapconv.recorder.memory_history import SpanLog  # noqa: E402
from snapconv.recorder.observe.observer import Observer  # noqa: E402
from snapconv.session import load  # noqa: E402
from snapconv.simulation import SimulationOptions, simulated  # noqa: E402
from tests.metadata_builder import metadata  # noqa: E402

pytestmark = pytest.mark.smoke("metadata")


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return x + functional.dropout(self.down(functional.gelu(self.up(self.norm(x)))), 0.1)


class Transformer(nn.Module):
    """Tied, frozen and checkpointed."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(100, 64)
        self.blocks = nn.ModuleList(Block(64) for _ in range(2))
        self.head = nn.Linear(64, 100, bias=False)
        self.head.weight = self.embedding.weight
        self.blocks[0].norm.weight.requires_grad_(False)

    def forward(self, tokens):
        x = self.blocks[0](self.embedding(tokens))
        return self.head(checkpoint(self.blocks[1], x, use_reentrant=False))

    def batch(self):
        return torch.randint(0, 100, (8, 16)).cuda()

    def loss(self, tokens):
        return functional.cross_entropy(self(tokens).flatten(0, 1), tokens.flatten())


class Convolutions(nn.Sequential):
    def __init__(self):
        super().__init__(
            nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Flatten(),
            nn.Linear(8 * 9, 10),
        )  # fmt: skip

    def batch(self):
        return torch.randn(4, 3, 8, 8, device="cuda")

    def loss(self, images):
        return self(images).square().mean()


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.head = nn.LSTM(8, 16, batch_first=True), nn.Linear(16, 2)

    def forward(self, x):
        return self.head(self.lstm(x)[0])

    def batch(self):
        return torch.randn(4, 6, 8, device="cuda")

    def loss(self, x):
        return self(x).square().mean()


HERE = Path(__file__)
MODELS = [Transformer, Convolutions, Recurrent]


def steps(model, optimizer, observer=None, iterations=None, *, n_parts=2, autocast=True):
    """Two iterations with accumulated gradients."""
    for iteration in range(2):
        if observer:
            iterations.begin("snapconv:iteration", is_range=False, iteration=iteration, kind="memory")
            observer.iteration_began(iteration)
        for _ in range(n_parts):
            batch = model.batch()
            with torch.autocast("cuda", dtype=torch.bfloat16, enabled=autocast):
                loss = model.loss(batch)
            (loss / n_parts).backward()
        optimizer.step()
        optimizer.zero_grad()
        if observer:
            observer.iteration_ended(iteration)
            iterations.end()


def record(make_model, observer=None, *, autocast=True):
    """The snapshot with the observer's facts, the model, and the device's own peak."""
    torch.manual_seed(3)
    iterations = SpanLog(100)
    with simulated(SimulationOptions()):
        torch.cuda.memory._record_memory_history(max_entries=100_000)
        if observer:
            observer.start()
        model = make_model().cuda()
        optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad])
        steps(model, optimizer, observer, iterations, autocast=autocast)
        snapshot = torch.cuda.memory._snapshot()
        peak = torch.cuda.max_memory_allocated()
        convert = iterations.clock.to_trace(snapshot.get("external_annotations"))
        facts = observer.facts(snapshot) | {"iterations": iterations.facts(convert)} if observer else {}
        if observer:
            observer.stop()
            assert observer.failure is None, repr(observer.failure)
        torch.cuda.memory._record_memory_history(enabled=None)
    return {**snapshot, "snapconv": metadata(project_root=str(HERE.parent), **facts)}, model, peak


def events_of(snapshot):
    """The trace, but for times and stacks."""
    entries = snapshot["device_traces"][0]
    return [tuple(e.get(key) for key in ("action", "addr", "size", "stream")) for e in entries]


@pytest.mark.parametrize("make_model", MODELS)
def test_no_allocation_is_another_with_the_observer_than_without(make_model):
    without, _, _ = record(make_model, autocast=False)
    watched, _, _ = record(make_model, Observer(), autocast=False)
    assert len(events_of(without)) > 100
    assert events_of(watched) == events_of(without)


def test_under_autocast_no_allocation_is_another_either():
    # autocast drops its copies in the order of their addresses on the host, which no two runs share.
    without, _, _ = record(Transformer)
    watched, _, _ = record(Transformer, Observer())
    assert sorted(events_of(watched)) == sorted(events_of(without))


@pytest.fixture(params=MODELS, scope="module")
def recorded(request, tmp_path_factory):
    """The analysed capture, the model, and the peak that the device itself counted."""
    snapshot, model, peak = record(request.param, Observer())
    folder = tmp_path_factory.mktemp("train.capture")
    (folder / "snapshot.pickle").write_bytes(pickle.dumps(snapshot, 4))
    return load(folder), model, peak


def test_the_peak_is_that_of_the_device(recorded):
    session, _, peak = recorded
    assert session.report().peak_usage_bytes == peak


def test_every_parameter_is_a_weight_with_its_name_its_size_and_its_gradient(recorded):
    session, model, _ = recorded
    expected = {
        name: (4 * prod(p.shape), 4 * prod(p.shape) * p.requires_grad) for name, p in model.named_parameters()
    }
    weights = session.report().weights
    assert {w.name: (w.size_bytes, w.grad_size_bytes) for w in weights} == expected
    assert len(weights) == len(expected)


def test_the_frames_of_a_weight_begin_where_its_layer_was_made(recorded):
    session, _, _ = recorded
    for weight in session.report().weights:
        # Layers of torch are made by the __init__ of the model, or by that of one of its parts.
        assert weight.frames[0].function in ("__init__", "<genexpr>")
        assert weight.frames[0].file_path == HERE.name


def test_memory_of_a_step_has_its_category_from_the_metadata(recorded):
    session, model, _ = recorded
    trainable = sum(4 * prod(p.shape) for p in model.parameters() if p.requires_grad)
    analysis = session.devices[0]
    held = {total.category: total.requested_bytes for total in session.report().peak.categories}
    last = session.snapshot.metadata.iterations.iteration.max()
    notes = session.snapshot.metadata.states
    assert notes.n_bytes.sum() == 2 * trainable + 4 * notes.names.count("step")
    assert held["weight"] == sum(
        t.numel() * t.element_size() for t in [*model.parameters(), *model.buffers()]
    )
    assert held["unknown"] == 0
    assert last == 1
    found = analysis.classification
    # What a checkpoint makes again in backward is inferred from its frames; everything else was recorded.
    by_frames = {found.reasons[i] for i in found.reason_id[found.evidence != Evidence.METADATA].tolist()}
    assert by_frames <= {"recompute"}


def without_snapshots():
    """The trace so far; taking it leaves an event of its own."""
    return [event for event in events_of(torch.cuda.memory._snapshot()) if event[0] != "snapshot"]


def test_noting_at_an_out_of_memory_allocates_nothing():
    with simulated(SimulationOptions(capacity_bytes=64 << 20)):
        torch.cuda.memory._record_memory_history(max_entries=10_000)
        observer = Observer()
        observer.start()
        traces = []

        def out_of_memory(*_):
            traces.append(without_snapshots())
            observer.note_now()
            traces.append(without_snapshots())

        torch._C._cuda_attach_out_of_memory_observer(out_of_memory)
        model = nn.Linear(512, 512).cuda()
        model(torch.ones(1, 512, device="cuda")).sum().backward()
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(80 << 20, device="cuda")
        facts = observer.facts({})
        observer.stop()
        torch.cuda.memory._record_memory_history(enabled=None)
    assert traces[0] == traces[1] != []
    assert len(facts["gradients"]) == len(facts["parameters"]) == 2
