"""Reports of training runs say what the run knows of its own allocations (``NAME.truth.json``).

The truth was written down by the training loop that made the events: it knows what each tensor is
for, and neither stacks nor lifetimes.
"""

import json
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

import snapconv
from snapconv.classification.categories import Category
from snapconv.convert import ConvertOptions, to_sqlite

FIXTURES = Path(__file__).parents[2] / "fixtures"
# A snapshot, the truth about it, and whether it has the C++ frames that name operations.
RUNS = (
    ("training_step.pickle", "training_step.truth.json", True),
    ("training_step_python.pickle", "training_step.truth.json", False),
    ("perceptron.pickle", "perceptron.truth.json", True),
)
# What has no sure sign may stay unknown, as long as it is next to nothing.
FEW_BYTES = 4096


class Run:
    """One fixture with its report and its truth; ``column`` has one value per true allocation."""

    def __init__(self, snapshot, truth, has_native_frames, folder):
        self.has_native_frames = has_native_frames
        self.analysis = snapconv.load(FIXTURES / snapshot).devices[0]
        self.truth = json.loads((FIXTURES / truth).read_text(encoding="utf-8"))
        self.report = folder / "report.sqlite"
        to_sqlite(FIXTURES / snapshot, ConvertOptions(output=self.report, extended=True))
        traced = {
            int(event): row for row, event in enumerate(self.analysis.allocations.alloc_event)
        }
        self.rows = np.array([traced[event] for event in self.column("alloc_event")])

    def column(self, name):
        place = self.truth["columns"].index(name)
        return [row[place] for row in self.truth["allocations"]]

    def ask(self, sql):
        with closing(sqlite3.connect(self.report)) as connection:
            return connection.execute(sql).fetchall()

    def live(self, event):
        """Which true allocations hold memory just after an event."""
        begun, freed = np.array(self.column("alloc_event")), np.array(self.column("free_event"))
        return (begun <= event) & ((freed < 0) | (freed > event))

    def true_bytes(self, category, event):
        is_one = np.array(self.column("category")) == category
        return int(np.array(self.column("block_bytes"))[is_one & self.live(event)].sum())


@pytest.fixture(scope="module", params=RUNS, ids=lambda names: names[0])
def run(request, tmp_path_factory):
    snapshot, truth, has_native_frames = request.param
    return Run(snapshot, truth, has_native_frames, tmp_path_factory.mktemp("report"))


def test_every_allocation_has_its_true_sizes_and_its_true_end(run):
    allocations = run.analysis.allocations
    assert len(allocations) == len(run.rows)
    for column, name in (
        (allocations.requested_bytes, "requested_bytes"),
        (allocations.block_bytes, "block_bytes"),
        (allocations.free_requested_event, "free_event"),
    ):
        assert column[run.rows].tolist() == run.column(name)


def test_no_allocation_has_a_wrong_category_and_next_to_none_has_no_category(run):
    found = [
        Category(code).label for code in run.analysis.classification.category[run.rows].tolist()
    ]
    pairs = list(zip(run.column("category"), found, run.column("block_bytes"), strict=True))
    wrong = Counter((true, said) for true, said, _ in pairs if said not in (true, "unknown"))
    assert not wrong
    assert sum(n_bytes for _, said, n_bytes in pairs if said == "unknown") <= FEW_BYTES


def test_the_categories_at_the_peak_are_the_true_ones(run):
    said = dict(
        run.ask(
            "SELECT category, sum(block_bytes) FROM snapconv_peak_allocations GROUP BY category"
        )
    )
    event = run.truth["peak"]["event"]
    assert run.analysis.peak_event == event
    unknown = said.pop("unknown", 0)
    assert unknown <= FEW_BYTES
    for category, n_bytes in said.items():
        true = run.true_bytes(category, event)
        assert true == run.truth["peak"]["block_bytes"].get(category, 0)
        assert 0 <= true - n_bytes <= unknown, category


def test_the_weights_are_the_models_parameters_and_buffers(run):
    sizes = [size for (size,) in run.ask("SELECT size_bytes FROM weight_entries")]
    true = [
        n_bytes
        for category, n_bytes in zip(
            run.column("category"), run.column("requested_bytes"), strict=True
        )
        if category == "weight"
    ]
    assert sorted(sizes) == sorted(true)
    assert sum(sizes) == run.truth["parameters_bytes"] + run.truth["buffers_bytes"]


def test_every_parameter_has_a_gradient_of_its_size_and_no_buffer_has_one(run):
    rows = run.ask("SELECT size_bytes, grad_size_bytes FROM weight_entries")
    assert all(grad in (0, size) for size, grad in rows)
    assert sum(grad for _, grad in rows) == run.truth["gradients_bytes_per_step"]


def test_the_activations_are_those_of_the_true_high_water_mark(run):
    ((total,),) = run.ask("SELECT sum(size_bytes) FROM activation_entries")
    around = next(
        iteration
        for iteration in run.analysis.iterations
        if iteration.first_event <= run.analysis.peak_event <= iteration.last_event
    )
    events = range(around.first_event, around.last_event + 1)
    assert total == max(run.true_bytes("activation", event) for event in events)


def test_an_activation_has_the_name_of_the_operation_that_its_user_called(run):
    live = run.live(run.analysis.activation_event) & (
        np.array(run.column("category")) == "activation"
    )
    true = Counter(np.array(run.column("operation"))[live].tolist())
    said = dict(run.ask("SELECT operation_name, count(*) FROM activation_entries GROUP BY 1"))
    if run.has_native_frames:
        assert said == true
    else:
        # Without C++ frames, what has no Python function of torch's own goes by the user's
        # function.
        assert all(said.get(name, 0) in (0, n) for name, n in true.items())
        assert sum(said.values()) == sum(true.values())
