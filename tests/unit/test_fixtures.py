"""Every file of fixtures/ is what its script makes, and reads as the model that made it says.

The expected figures are the counters of the allocator model in expected.json, never our reader's
answer.
"""

import hashlib
import json
import pickle
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import snapconv
from snapconv import errors
from snapconv.convert import ConvertOptions, to_sqlite

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "fixtures"
EXPECTED = json.loads((FOLDER / "expected.json").read_text(encoding="utf-8"))
GOOD, BAD = EXPECTED["good"], EXPECTED["bad"]
CURVES = ("requested", "allocated", "active", "reserved")
# These notes judge how well a file could be classified; what they say is compared with the truth
# files.
ABOUT_CATEGORIES = {"much-unknown", "unmatched-gradients"}
INEXACT = "inexact-block-sizes"


@cache
def session_of(name):
    """A fixture, read once."""
    return snapconv.load(FOLDER / name)


def test_a_fixture_is_what_its_script_makes():
    script = ROOT / "scripts" / "make_fixtures.py"
    done = subprocess.run(
        [sys.executable, "-W", "error", script, "--check"],
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def events(raw):
    return [event for trace in raw["device_traces"] for event in trace]


def actions(raw):
    return {event["action"] for event in events(raw)}


def live(raw):
    blocks = [block for segment in raw["segments"] for block in segment["blocks"]]
    return [block for block in blocks if block["state"] != "inactive"]


def waste(block):
    return block["size"] - block["requested_size"]


def frees_repeat_the_stack(raw):
    stacks = {}
    for event in events(raw):
        if event["action"] == "alloc":
            stacks[event["addr"]] = event["frames"]
        elif event["action"] == "free_requested" and event["frames"] is not stacks[event["addr"]]:
            return False
    return True


# What makes each of these files worth having, where no note, device or release in expected.json
# says it.
SPECIAL = {
    "expandable_segments": lambda raw: {"segment_map", "segment_unmap"} <= actions(raw),
    "roundup_power2_divisions": lambda raw: any(waste(block) > 1 << 20 for block in live(raw)),
    "max_split_size": lambda raw: any(
        block["size"] >= 24 << 20 and waste(block) > 1 << 20 for block in live(raw)
    ),
    "several_streams": lambda raw: len({event["stream"] for event in events(raw)}) == 3,
    "private_pools": lambda raw: (
        {event["pool_id"] for event in events(raw)} == {(0, 0), (1, 0), (0, 2)}
        and "segment_free" in actions(raw)
    ),
    "out_of_memory": lambda raw: (
        [event["size"] % 512 for event in events(raw) if "device_free" in event] == [0]
        and events(raw)[-1]["action"] != "oom"
    ),
    "earlier_snapshots": lambda raw: (
        [event["action"] for event in events(raw)].count("snapshot") == 3
    ),
    "torch_npu": lambda raw: {"workspace_snapshot", "empty_cache"} <= actions(raw),
    "torch_npu_expandable": lambda raw: (
        "allocator_settings" not in raw
        and "segment_map" in actions(raw)
        and all(waste(block) < 512 + 512 + 32 for block in live(raw))
    ),
    "torch_xpu": lambda raw: all(event["addr"] > 1 << 63 for event in events(raw)),
    "torch_xpu_cpp_writer": lambda raw: all(event["addr"] < 0 for event in events(raw)),
    "no_line_numbers": lambda raw: any(
        frame["line"] == 2**64 - 1 for block in live(raw) for frame in block["frames"]
    ),
    "context_alloc": frees_repeat_the_stack,
}


@pytest.mark.parametrize("name", SPECIAL)
def test_a_fixture_has_what_makes_it_special(name):
    assert SPECIAL[name](pickle.loads((FOLDER / f"{name}.pickle").read_bytes()))


@pytest.mark.parametrize("name", GOOD)
def test_the_curves_are_those_of_the_model(name):
    for ordinal, figures in GOOD[name]["devices"].items():
        replay = device_of(session_of(name), ordinal).replay
        for curve in CURVES:
            if curve in figures:
                check_curve(getattr(replay, curve), figures, curve)


def check_curve(found, figures, curve):
    expected = figures[curve]
    unknown = figures["inexact_bytes"] if curve in ("allocated", "active") else 0
    # A free whose first half is lost shows when it completes, not before.
    late = figures["half_freed_bytes"] if curve == "allocated" else 0
    assert found.end == expected["end"]
    assert -unknown <= found.start - late - expected["start"] <= 0
    assert -unknown <= found.peak - expected["peak"] <= late
    if unknown == late == 0:
        digest = hashlib.sha256(found.after.astype("<i8").tobytes()).hexdigest()[:16]
        assert (found.peak_event, digest) == (expected["peak_event"], expected["sha256"])


@pytest.mark.parametrize("name", GOOD)
def test_devices_history_torch_and_project_are_those_of_the_model(name):
    session, expected = session_of(name), GOOD[name]
    found = {
        str(analysis.device.device): len(analysis.device.events) for analysis in session.devices
    }
    assert found == {
        ordinal: figures["n_events"] for ordinal, figures in expected["devices"].items()
    }
    assert {analysis.history.verdict.value for analysis in session.devices} == {expected["history"]}
    assert [session.snapshot.era.first, session.snapshot.era.last] == expected["torch"]
    assert session.analysis.project.root == expected["project_root"]


@pytest.mark.parametrize("name", GOOD)
def test_a_file_has_the_notes_that_it_deserves_and_no_other(name):
    expected, notes = GOOD[name], {note.slug for note in session_of(name).notes}
    assert notes - ABOUT_CATEGORIES - {INEXACT} == set(expected["notes"]) - {INEXACT}
    # Whether a size can be worked out is the reader's business: it says so where a figure is off.
    is_off = any(
        "active" in figures
        and device_of(session_of(name), ordinal).replay.active.start != figures["active"]["start"]
        for ordinal, figures in expected["devices"].items()
    )
    assert is_off <= (INEXACT in notes)
    assert (INEXACT in expected["notes"]) <= (INEXACT in notes)


@pytest.mark.parametrize("name", GOOD)
def test_a_fixture_becomes_a_report_per_device(name, tmp_path):
    done = to_sqlite(
        FOLDER / name, ConvertOptions(output=tmp_path / "report.sqlite", extended=True)
    )
    assert all(path.stat().st_size for path, _ in done.reports)
    assert [str(report.peak.device) for _, report in done.reports] == list(GOOD[name]["devices"])
    for _, report in done.reports:
        figures = GOOD[name]["devices"][str(report.peak.device)]
        slack = figures["inexact_bytes"] + figures["half_freed_bytes"]
        if "allocated" in figures:
            assert abs(report.peak.allocated_bytes - figures["allocated"]["peak"]) <= slack


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_refused_with_its_error(name):
    with pytest.raises(errors.SnapconvError) as caught:
        snapconv.load(FOLDER / "bad" / name)
    assert type(caught.value).__name__ == BAD[name]["error"]
    assert BAD[name]["says"] in str(caught.value)
    assert str(caught.value).startswith(str(FOLDER / "bad" / name))


def device_of(session, ordinal):
    return next(analysis for analysis in session.devices if analysis.device.device == int(ordinal))
