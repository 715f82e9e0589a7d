"""`export --with`: the memory of a recording beside what torch.profiler wrote in the same run."""

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

ROOT = Path(__file__).parents[3]
TRAIN = """import sys

import torch
from torch.profiler import ProfilerActivity, profile, record_function

weight = torch.ones(1 << 18, device="cuda", requires_grad=True)
with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
    for step in range(3):
        with record_function(f"square {step}"):
            loss = (weight * weight).sum()
        with record_function(f"gradient {step}"):
            loss.backward()
profiler.export_chrome_trace(sys.argv[1])
"""


def snapconv(*words, cwd):
    command = [sys.executable, "-m", "snapconv", *words]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, encoding="utf-8", check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("profiled")
    (folder / "train.py").write_text(TRAIN)
    trace = "profile.json.gz"
    snapconv("record", "--simulate", "-o", "run.capture", "train.py", trace, cwd=folder)
    printed = snapconv("export", "run.capture", "--with", trace, "-o", "out.json", cwd=folder)
    assert "times: aligned by the clock" in printed
    return folder


def test_each_range_of_ours_lies_in_the_profilers_range_of_the_same_name(folder):
    """A range of ours is from its first event of memory to its last: within, not as long."""
    events = json.loads((folder / "out.json").read_text())["traceEvents"]
    slices = [event for event in events if event["ph"] == "X"]
    theirs = {e["name"]: e for e in slices if e.get("cat") == "user_annotation"}
    ours = [e for e in slices if "cat" not in e and e["name"].startswith(("square", "gradient"))]
    # The recording may end with the second step.
    assert {event["name"] for event in ours} >= {"square 0", "gradient 0", "square 1", "gradient 1"}
    for event in ours:
        span = theirs[event["name"]]
        # A time of ours is a whole microsecond, as the clock's is.
        assert span["ts"] - 2 <= event["ts"]
        assert event["ts"] + event["dur"] <= span["ts"] + span["dur"] + 2


def test_without_the_clock_annotations_give_the_same_axis(folder):
    trace = json.loads(gzip.decompress((folder / "profile.json.gz").read_bytes()))
    del trace["baseTimeNanoseconds"]
    (folder / "no_clock.json").write_text(json.dumps(trace))
    words = ("export", "run.capture", "--with", "no_clock.json", "-o", "by_names.json")
    assert "of annotations, which agree within" in snapconv(*words, cwd=folder)
    first_times = []
    for name in ("out.json", "by_names.json"):
        events = json.loads((folder / name).read_text())["traceEvents"]
        first_times.append(next(event["ts"] for event in events if event["ph"] == "C"))
    assert first_times[0] == pytest.approx(first_times[1], abs=1000)
