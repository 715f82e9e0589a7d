"""What the timer gives is what the catalogue of its keys describes, and what the reader takes."""

import json

import pytest

torch = pytest.importorskip("torch")

from scripts.docs import catalogs  # noqa: E402
from snapconv.snapshot.recorded.timing_file import load_timing  # noqa: E402
from tests.recorder.timing.timed import trace_of  # noqa: E402
from tests.timing_builder import small_trace  # noqa: E402

W = torch.ones(4, requires_grad=True)


@pytest.fixture
def trace():
    def step():
        x = W * 2
        (gradient,) = torch.autograd.grad(x.pow(3).sum(), x, create_graph=True)
        gradient.sum().backward()

    return json.loads(json.dumps(trace_of(step)))


def described():
    return [key.path for key in catalogs.capture_keys().timing]


def paths(value, path=""):
    """All paths of a JSON value, as the page writes them."""
    if isinstance(value, dict):
        for key, item in value.items():
            below = f"{path}.{'*' if path == 'launch_bound' else key}".lstrip(".")
            if below != "launch_bound.*":
                yield below
            yield from paths(item, below)
    elif isinstance(value, list) and not path.startswith("calls."):
        for item in value:
            if isinstance(item, list) and path == "stacks[]":
                yield "stacks[][]"
            yield from paths(item, f"{path}[]")


def test_the_catalogue_describes_every_key_of_a_trace(trace):
    assert set(paths(small_trace())) == set(described())
    assert set(paths(trace)) == {
        path for path in described() if not path.startswith("launch_bound.")
    }


def test_a_trace_is_read_back_as_it_was(trace, tmp_path):
    path = tmp_path / "timing.json"
    path.write_bytes(json.dumps(trace).encode())
    timing, notes = load_timing(path)
    assert notes == ()
    names = [timing.texts[name] for name in timing.calls.name_id]
    assert names == trace["calls"]["name"]
    assert timing.calls.stack_id.tolist() == trace["calls"]["stack"]
    assert (timing.clock, timing.is_simulated) == ("cpu", True)
