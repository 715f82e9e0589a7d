"""fixtures/transformer.capture, as scripts/record_fixture.py made it: both reports come of it, without torch.

The numbers are counted by hand from the code of fixtures/entries/transformer.
"""

import json
import pickle
import shutil
from collections import Counter
from pathlib import Path

import pytest

from snapconv.cli.app import main
from tests.tables import ask

FOLDER = Path(__file__).parents[2] / "fixtures"
CAPTURE = FOLDER / "transformer.capture"
SOURCE = FOLDER / "entries" / "transformer"
ROOT = "/home/user/transformer"
# Folders that a recording on anyone's machine could show.
NEUTRAL = ("/home/user/", "/usr/lib/python3.")

VOCABULARY, LENGTH, WIDTH, LAYERS = 2000, 64, 256, 2


def linear(name, n_in, n_out):
    return {f"{name}.weight": n_in * n_out, f"{name}.bias": n_out}


def block(name):
    return {
        **linear(f"{name}.norm1", 1, WIDTH),
        **linear(f"{name}.attention.qkv", WIDTH, 3 * WIDTH),
        **linear(f"{name}.attention.out", WIDTH, WIDTH),
        **linear(f"{name}.norm2", 1, WIDTH),
        **linear(f"{name}.mlp.0", WIDTH, 4 * WIDTH),
        **linear(f"{name}.mlp.2", 4 * WIDTH, WIDTH),
    }


N_ELEMENTS = {
    "places": LENGTH * WIDTH,
    "tokens.weight": VOCABULARY * WIDTH,
    **block("blocks.0"),
    **block("blocks.1"),
    **linear("norm", 1, WIDTH),
    "head.weight": VOCABULARY * WIDTH,
}


@pytest.fixture(scope="module")
def snapshot():
    return pickle.loads((CAPTURE / "snapshot.pickle").read_bytes())


@pytest.fixture(scope="module")
def timing():
    return json.loads((CAPTURE / "timing.json").read_bytes())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the capture, converted; conftest's capfd is no use to a fixture of a module."""
    folder = tmp_path_factory.mktemp("converted")
    shutil.copytree(CAPTURE, folder / CAPTURE.name)
    output = folder / "transformer.memory.sqlite"
    assert (
        main(["to-sqlite", "--quiet", "--extended", "-o", str(output), str(folder / CAPTURE.name)])
        == 0
    )
    return folder


def texts(value, seen):
    """Every text in nested containers; shared ones are looked at once."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list | tuple) and id(value) not in seen:
        seen.add(id(value))
        for item in [*value, *value.values()] if isinstance(value, dict) else value:
            yield from texts(item, seen)


def test_no_text_names_a_folder_of_the_machine_it_was_made_on(snapshot, timing):
    found = [text for text in texts([snapshot, timing], set()) if text.startswith("/")]
    assert len(found) > 100
    assert [text for text in found if not text.startswith(NEUTRAL)] == []
    assert snapshot["snapconv"]["platform"].isalpha()


def test_the_memory_report_has_every_parameter_with_its_bytes_and_its_gradients(folder):
    found = ask(
        folder / "transformer.memory.sqlite",
        "SELECT name, size_bytes, grad_size_bytes FROM weight_entries",
    )
    assert {name: (size, gradient) for name, size, gradient in found} == {
        name: (4 * n, 4 * n) for name, n in N_ELEMENTS.items()
    }
    assert len(found) == 29


def test_weights_and_their_states_are_of_the_modules_that_have_them(folder):
    n_bytes = Counter()
    for name, n_elements in N_ELEMENTS.items():
        n_bytes[name.rpartition(".")[0] or "(model)"] += 4 * n_elements
    found = ask(
        folder / "transformer.memory.sqlite",
        "SELECT module, category, sum(requested_bytes) FROM snapconv_peak_allocations "
        "WHERE category = 'weight' OR category = 'optimizer_state' AND requested_bytes > 4 GROUP "
        "BY 1, 2",
    )
    of_weights = {module: size for module, category, size in found if category == "weight"}
    of_states = {module: size for module, category, size in found if category == "optimizer_state"}
    assert of_weights == n_bytes
    assert of_states == {
        module: 2 * size for module, size in n_bytes.items()
    }  # Adam has two of each


def test_the_peak_is_what_the_run_counted(folder, snapshot):
    (device,) = snapshot["snapconv"]["devices"]
    found = ask(
        folder / "transformer.memory.sqlite",
        "SELECT size_bytes FROM misc_sizes WHERE key = 'peak_usage_bytes'",
    )
    assert found == [(device["max_memory_allocated"],)]


def test_at_the_peak_the_model_is_there_and_two_states_of_it_and_nothing_is_unknown(folder):
    found = dict(
        ask(
            folder / "transformer.memory.sqlite",
            "SELECT category, sum(requested_bytes) FROM snapconv_peak_allocations GROUP BY "
            "category",
        )
    )
    n_bytes = 4 * sum(N_ELEMENTS.values())
    assert (found["weight"], found["optimizer_state"]) == (n_bytes, 2 * n_bytes)
    assert "unknown" not in found


def test_the_time_report_has_the_calls_of_the_forward_pass(folder):
    found = ask(folder / "transformer.time.sqlite", "SELECT operation_name FROM run_time_entries")
    calls = Counter(name for (name,) in found)
    expected = {
        "embedding": 1,
        "scaled_dot_product_attention": LAYERS,
        "gelu": LAYERS,
        "layer_norm": 2 * LAYERS + 1,
        "linear": 4 * LAYERS + 1,
        "cross_entropy": 1,
    }
    assert {name: calls[name] for name in expected} == expected


def test_the_summary_shows_the_peak_the_times_and_that_all_is_simulated(folder, snapshot, capfd):
    capfd.readouterr()
    output = folder / "transformer.memory.sqlite"
    assert main(["to-sqlite", "--force", "-o", str(output), str(folder / CAPTURE.name)]) == 0
    said = capfd.readouterr()
    (device,) = snapshot["snapconv"]["devices"]
    assert f"({device['max_memory_allocated']} bytes)" in said.out
    assert "optimizer_state" in said.out
    assert "forward" in said.out
    assert "backward" in said.out
    assert f"written: {folder / 'transformer.memory.sqlite'}" in said.out
    assert f"written: {folder / 'transformer.time.sqlite'}" in said.out
    assert "simulated" in said.err
