"""The scripts that record the entries: for a fixture, and to see what recording costs."""

import json
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

ROOT = Path(__file__).parents[3]


def run(script, *arguments):
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / script, *map(str, arguments)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_capture_that_becomes_a_fixture_names_no_folder_of_this_machine(tmp_path):
    said = run("record_fixture.py", "--folder", tmp_path, "tied_frozen")
    capture = tmp_path / "tied_frozen.capture"
    assert said.startswith(f"wrote {capture}, ")
    snapshot = pickle.loads((capture / "snapshot.pickle").read_bytes())
    assert snapshot["snapconv"]["project_root"] == "/home/user/tied_frozen"
    for file in capture.iterdir():
        content = file.read_bytes()
        assert (b"/home/user/tied_frozen/model.py" in content) is (file.name != "ending.json")
        for folder in (ROOT, sys.prefix, sys.base_prefix):
            assert f"{folder}/".encode() not in content


def test_the_cost_of_recording_is_measured_against_steps_of_the_same_run():
    (case,) = json.loads(run("bench/recording.py", "--json", "--simulate", "tied_frozen"))
    assert case["entry"] == "tied_frozen"
    assert case["is_right"] is True
    assert case["capture_bytes"] > 10_000
    # Another program may take the processor away from any of these, but not so much of it.
    assert 0.1 < case["memory_ratio"] < 20
    assert 0.1 < case["timing_ratio"] < 20
