"""Entries that end early: the report has what there was."""

import pytest

from tests.entries import FOLDER, file_of, imports_from, weights_of
from tests.recordings import convert, record

pytest.importorskip("torch")

EARLY = """
import sys
import torch
from model import ResidualNet
model = ResidualNet().cuda()
sys.exit(4)
"""


def test_a_script_that_exits_early_leaves_what_there_was_and_keeps_its_exit_code(run):
    with imports_from(FOLDER / "cnn"):
        done = run(EARLY, before=f"import sys; sys.path.append({str(FOLDER / 'cnn')!r})")
    assert done.code == 4
    assert "train.py called sys.exit when 0 of 4 iterations were done" in done.err
    rows = convert(done.folder / "train.capture").rows(
        "SELECT name, size_bytes FROM weight_entries"
    )
    assert dict(rows) == {name: weight.size_bytes for name, weight in weights_of("cnn").items()}


def test_an_oom_leaves_the_state_in_which_the_allocator_gave_up(tmp_path):
    whole = record("transformer", "train", tmp_path, options=["--simulate", "--no-compute"])
    reserved = whole.metadata["devices"][0]["max_memory_reserved"]
    capacity = reserved // 2
    options = ["--simulate", "--no-compute", "--capacity", f"{capacity}B", "--force"]
    out = record("transformer", "train", tmp_path, options=options)
    assert out.code == 1
    assert "OutOfMemoryError" in out.said
    assert str(file_of("transformer", "train")) in out.said
    assert out.metadata["ended"]["how"] == "oom"
    assert out.metadata["ended"]["detail"].startswith("OutOfMemoryError: CUDA out of memory")
    trace = out.snapshot["device_traces"][0]
    (oom,) = [event for event in trace if event["action"] == "oom"]
    assert trace[-1]["action"] in ("oom", "snapshot")
    # Nothing was freed before the snapshot: what is reserved leaves too little for the request.
    held = sum(segment["total_size"] for segment in out.snapshot["segments"])
    assert held <= capacity < held + oom["size"]
    reports = convert(out.capture)
    (report,) = reports.values["reports"]
    assert report["peak_usage_bytes"] == out.metadata["devices"][0]["max_memory_allocated"]
    assert reports.rows("SELECT requested_bytes FROM snapconv_oom_events") == [(oom["size"],)]
    names = {name for (name,) in reports.rows("SELECT name FROM weight_entries")}
    assert names == set(weights_of("transformer"))


def test_a_model_that_fits_exactly_does_fit(tmp_path):
    whole = record("cnn", "train", tmp_path, options=["--simulate", "--no-compute"])
    reserved = whole.metadata["devices"][0]["max_memory_reserved"]
    options = ["--simulate", "--no-compute", "--force", "--capacity", f"{reserved}B"]
    assert record("cnn", "train", tmp_path, options=options).code == 0
