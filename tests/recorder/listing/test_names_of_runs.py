"""A run recorded from its start, its metadata taken away: the list of its model gives the names back."""

import pickle
import sys
from pathlib import Path

import pytest

from snapconv import load
from snapconv.cli.app import main

pytestmark = pytest.mark.smoke("names")

ENTRIES = Path(__file__).parents[3] / "fixtures" / "entries"


def forget_entries():
    """All entries call their modules alike."""
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None) or "").startswith(str(ENTRIES)):
            del sys.modules[name]


@pytest.fixture
def recorded(tmp_path, monkeypatch):
    """Record an entry's providers, and list its model: the capture, the bare snapshot and the list."""
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)

    def record(entry):
        source = str(ENTRIES / entry / "providers.py")
        assert main(["params", source, "-q", "-o", "list.json"]) == 0
        forget_entries()
        assert main(["record", "--simulate", "--no-compute", "-q", "-o", "run.capture", source]) == 0
        raw = pickle.loads((tmp_path / "run.capture" / "snapshot.pickle").read_bytes())
        del raw["snapconv"]
        (tmp_path / "bare.pickle").write_bytes(pickle.dumps(raw))
        return load("run.capture"), load("bare.pickle", params="list.json")

    yield record
    forget_entries()


@pytest.mark.parametrize("entry", ["cnn", "lstm", "tied_frozen", "transformer"])
def test_names_and_gradients_are_those_that_were_noted(recorded, entry):
    captured, bare = recorded(entry)
    truth = {w.name: (w.size_bytes, w.grad_size_bytes) for w in captured.report().weights}
    parameters = captured.snapshot.metadata.parameters
    buffers = {name for name, is_it in zip(parameters.names, parameters.is_buffer, strict=True) if is_it}
    found = {w.name: (w.size_bytes, w.grad_size_bytes) for w in bare.report().weights}
    right = sum(size for name, (size, _) in found.items() if name in truth and truth[name][0] == size)
    assert right >= 0.99 * sum(size for size, _ in truth.values())
    assert set(found) <= set(truth) | buffers
    assert {name: found[name] for name in truth} == truth
    assert sum(grad for _, grad in found.values()) == sum(grad for _, grad in truth.values())
