"""Skyline's and DeepView's own trackers beside our report of one program: docs/reference/skyline.md.

They run on a simulated device, under ``snapconv record``. Skipped where they are not installed:
``pip install --no-deps skyline-cli deepview-profile`` is enough.
"""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.drawn_inputs import named
from tests.tables import ask

pytest.importorskip("torch")

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).with_name("tracker_run.py")
# Skyline looks a tied weight up in a dictionary by its values, which fails with any torch. Its tracker
# gives no times of amp_accumulation in any reasonable time.
ENTRIES = {
    "skyline": ("cnn", "transformer", "lstm", "checkpointing"),
    "deepview_profile": ("cnn", "transformer", "lstm", "checkpointing", "tied_frozen"),
}
RUNS = {
    f"{package}-{entry}": (package, entry)
    for package, entries in ENTRIES.items()
    for entry in entries
}
# Its gradients are cleared at the end of a step, so none is there when a tracker looks.
CLEARED = ("lstm",)


def snapconv(folder, *arguments):
    path = os.pathsep.join((str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])))
    command = [sys.executable, "-m", "snapconv", *arguments]
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture(
    scope="module",
    params=named(
        {name: (run,) for name, run in RUNS.items()},
        always=("skyline-cnn", "deepview_profile-lstm"),
    ),
)
def reports(request, tmp_path_factory):
    """The entry, a tracker's report of it, and ours."""
    package, entry = request.param
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    folder = tmp_path_factory.mktemp(entry)
    shutil.copytree(ROOT / "fixtures" / "entries" / entry, folder / "entry")
    snapconv(
        folder / "entry", "record", "-q", "--simulate", "-o", "../ours.capture", "providers.py"
    )
    snapconv(folder, "to-sqlite", "-q", "ours.capture")
    run = [str(SCRIPT), package, "entry", f"{package}.sqlite"]
    snapconv(folder, "record", "-q", "--simulate", "-o", f"{package}.capture", *run)
    return entry, folder / f"{package}.sqlite", folder / "ours.memory.sqlite"


def test_the_peak_is_the_same_to_the_byte(reports):
    _, theirs, ours = reports
    peak = "SELECT size_bytes FROM misc_sizes WHERE key = 'peak_usage_bytes'"
    assert ask(ours, peak) == ask(theirs, peak)


def test_weights_are_the_same_and_named_by_their_whole_path(reports):
    _, theirs, ours = reports
    weights = "SELECT name, size_bytes FROM weight_entries"
    local = [(name.rpartition(".")[2], size) for name, size in ask(ours, weights)]
    assert sorted(local) == sorted(ask(theirs, weights))


def test_gradients_are_the_same_where_they_are_there_at_the_end(reports):
    entry, theirs, ours = reports
    gradients = "SELECT sum(grad_size_bytes) FROM weight_entries"
    ((their_bytes,),), ((our_bytes,),) = ask(theirs, gradients), ask(ours, gradients)
    assert their_bytes == (0 if entry in CLEARED else our_bytes)
    assert our_bytes


def test_the_tables_are_made_by_the_same_statements(reports):
    _, theirs, ours = reports
    statements = "SELECT type, name, sql FROM sqlite_master"
    assert ask(ours, statements) == ask(theirs, statements)
