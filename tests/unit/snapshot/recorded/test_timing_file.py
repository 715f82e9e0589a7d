"""timing.json is read as it is described, and as a file that nobody has checked."""

import json
import random
from contextlib import suppress

import numpy as np
import pytest

from snapconv.errors import InputError, MalformedSnapshotError, SnapconvError, TruncatedFileError
from snapconv.snapshot.recorded import timing_file as reader
from snapconv.snapshot.recorded.timing_file import PHASES, load_timing
from tests.timing_builder import ROOT, small_trace, write_trace


def loaded(tmp_path, **changes):
    timing, _ = load_timing(write_trace(tmp_path / "timing.json", **changes))
    assert timing is not None
    return timing


def refused(tmp_path, trace):
    path = tmp_path / "timing.json"
    path.write_bytes(trace if isinstance(trace, bytes) else json.dumps(trace).encode())
    with pytest.raises(MalformedSnapshotError) as caught:
        load_timing(path)
    assert str(caught.value).startswith(f"{path}: ")
    return str(caught.value).removeprefix(f"{path}: ")


# --- what is read


def test_the_calls_are_columns_in_the_order_of_the_file(tmp_path):
    timing = loaded(tmp_path)
    calls = timing.calls
    assert len(calls) == 15
    assert [timing.texts[i] for i in calls.name_id[:3]] == ["linear", "relu", "cross_entropy"]
    assert calls.iteration.tolist() == [3] * 5 + [4] * 5 + [5] * 5
    assert [PHASES[i] for i in calls.phase[:5]] == ["forward"] * 3 + ["optimizer", "backward"]
    assert calls.stack_id[:5].tolist() == [0, 1, 2, 3, -1]


def test_what_is_null_is_nan_or_minus_1(tmp_path):
    calls = loaded(tmp_path).calls
    assert np.isnan(calls.backward_ms[:5]).tolist() == [False, True, False, True, False]
    assert np.isnan(calls.forward_ms[:5]).tolist() == [False] * 4 + [True]
    assert [module < 0 for module in calls.module_id[:5]] == [False, False, True, True, True]


def test_the_path_of_the_model_itself_is_empty_and_not_missing(tmp_path):
    timing = loaded(tmp_path)
    assert timing.texts[timing.calls.module_id[1]] == ""


def test_stacks_are_leaf_first_with_frames_that_know_of_modules(tmp_path):
    timing = loaded(tmp_path)
    frames = timing.stacks.frames
    shown = [
        (frames.names[i], int(frames.lines[i]), bool(timing.is_of_module[i]))
        for i in timing.stacks.frames_of(0)
    ]
    assert shown == [("forward", 116, True), ("forward", 12, True), ("step", 40, False)]
    assert len(frames) == 7


def test_every_column_is_read_only(tmp_path):
    timing = loaded(tmp_path)
    columns = [
        timing.is_of_module,
        timing.stacks.offsets,
        timing.stacks.frame_ids,
        timing.stacks.frames.lines,
    ]
    columns += [getattr(timing.calls, name) for name in timing.calls.__slots__]
    assert [column.flags.writeable for column in columns] == [False] * len(columns)


def test_the_rest_is_as_written(tmp_path):
    timing = loaded(tmp_path)
    about = (timing.clock, timing.is_simulated, timing.device, timing.device_name)
    assert about == ("cuda", False, 1, "A GPU")
    assert (timing.project_root, timing.written_by) == (ROOT, ("0.1.0", "2.13.0"))
    assert [iteration.forward_ms for iteration in timing.iterations] == [10.0, 12.0, 9.0]
    assert [(row.phase, row.n_calls, row.n_waited_for) for row in timing.launch_bound] == [
        ("forward", 9, 4),
        ("backward", 9, 0),
    ]


def test_a_trace_of_the_processors_clock_has_no_launches(tmp_path):
    assert loaded(tmp_path, clock="cpu", launch_bound=None).launch_bound == ()


def test_a_phase_that_did_not_happen_is_none(tmp_path):
    trace = small_trace()
    trace["iterations"][0]["optimizer_ms"] = None
    assert loaded(tmp_path, iterations=trace["iterations"]).iterations[0].optimizer_ms is None


def test_an_unknown_version_is_a_note_and_no_error(tmp_path):
    timing, notes = load_timing(write_trace(tmp_path / "timing.json", version=2, calls="whatever"))
    assert timing is None
    assert [note.slug for note in notes] == ["unknown-timing-version"]
    assert "version 2" in notes[0].message


# --- what is refused


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"version": "1"}, "version: expected int, got str"),
        ({"version": None}, "version: expected int, got nothing"),
        ({"clock": "sundial"}, "clock: expected cuda or cpu, got sundial"),
        ({"simulated": 1}, "simulated: expected bool, got int"),
        ({"device": -1}, "device: expected 0 to 2^62 - 1, got -1"),
        ({"iterations": []}, "iterations: expected one at least"),
        ({"iterations": [3]}, "iterations[0]: expected dict, got int"),
        (
            {"iterations": [{"iteration": 3}, {"iteration": 3}]},
            "iterations: two have the same number",
        ),
        (
            {"iterations": [{"iteration": 9}]},
            "calls.iteration[0]: expected the number of one of the iterations, got 3",
        ),
        (
            {"iterations": [{"iteration": 3, "forward_ms": -1}]},
            "iterations[0].forward_ms: expected 0 to 10^12 milliseconds, got -1",
        ),
        ({"calls": None}, "calls: expected dict, got nothing"),
        ({"stacks": [[["f.py", 1, "f"]]]}, "stacks[0][0]: expected 4 values, got 3"),
        (
            {"stacks": [[["f.py", -1, "f", True]]]},
            "stacks[0][0][1]: expected 0 to 2^31 - 1, got -1",
        ),
        ({"stacks": [7]}, "stacks[0]: expected list, got int"),
        ({"launch_bound": {"forward": 3}}, "launch_bound.forward: expected dict, got int"),
        (
            {"launch_bound": {"forward": {"n": True}}},
            "launch_bound.forward.n: expected int, got bool",
        ),
    ],
)
def test_a_wrong_value_is_refused_with_its_place(tmp_path, change, said):
    assert refused(tmp_path, small_trace(**change)).startswith(said)


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        ("iteration", -1, "calls.iteration[2]: expected 0 to 2^62 - 1, got -1"),
        ("iteration", True, "calls.iteration[2]: expected int, got bool"),
        (
            "iteration",
            2**63,
            "calls.iteration[2]: expected 0 to 2^62 - 1, got 9223372036854775808",
        ),
        ("name", None, "calls.name[2]: expected str, got nothing"),
        ("name", 5, "calls.name[2]: expected str, got int"),
        (
            "phase",
            "sleeping",
            "calls.phase[2]: expected one of forward, backward, optimizer, other, got",
        ),
        ("phase", [], "calls.phase[2]: expected str, got list"),
        ("module", 5, "calls.module[2]: expected str, got int"),
        ("stack", 4, "calls.stack[2]: expected -1 or one of 4 stacks, got 4"),
        ("stack", -2, "calls.stack[2]: expected -1 to 2^31 - 1, got -2"),
        ("stack", 1.0, "calls.stack[2]: expected int, got float"),
        ("forward_ms", None, "calls.forward_ms[2]: expected a number, got None"),
        ("forward_ms", -0.5, "calls.forward_ms[2]: expected 0 to 10^12 milliseconds, got -0.5"),
        (
            "backward_ms",
            1e300,
            "calls.backward_ms[2]: expected 0 to 10^12 milliseconds, got 1e+300",
        ),
        ("host_ms", "1", "calls.host_ms[2]: expected float, got str"),
        ("host_ms", None, "calls.host_ms[2]: expected a number, got None"),
    ],
)
def test_a_wrong_value_of_a_call_is_refused_with_its_place(tmp_path, column, value, said):
    trace = small_trace()
    trace["calls"][column][2] = value
    assert refused(tmp_path, trace).startswith(said)


def test_a_column_of_another_length_is_refused(tmp_path):
    trace = small_trace()
    trace["calls"]["phase"].pop()
    assert (
        refused(tmp_path, trace) == "calls.phase: expected 15 values as in calls.iteration, got 14"
    )


def test_a_missing_column_is_refused(tmp_path):
    trace = small_trace()
    del trace["calls"]["host_ms"]
    assert refused(tmp_path, trace) == "calls.host_ms: expected list, got nothing"


@pytest.mark.parametrize("value", [[], 7, None, "text"])
def test_a_file_of_something_else_is_refused(tmp_path, value):
    assert refused(tmp_path, json.dumps(value).encode()).startswith("the file: expected dict, got ")


def test_a_file_that_is_no_json_is_refused(tmp_path):
    assert refused(tmp_path, b"{'version': 1} and more").startswith(
        "no JSON text: unexpected character, expected a string key: line 1 column 2 (byte 1)"
    )


def test_a_file_that_breaks_off_is_reported(tmp_path):
    path = tmp_path / "timing.json"
    whole = json.dumps(small_trace()).encode()
    path.write_bytes(whole[:400])
    with pytest.raises(TruncatedFileError, match="breaks off at byte 400"):
        load_timing(path)
    path.write_bytes(b"\n")
    with pytest.raises(TruncatedFileError, match="the file is empty"):
        load_timing(path)


def test_a_file_that_is_not_there_is_reported(tmp_path):
    with pytest.raises(InputError, match="cannot be read: No such file"):
        load_timing(tmp_path / "timing.json")


def test_a_file_too_large_for_a_trace_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr(reader, "_MAX_BYTES", 1 << 20)
    assert (
        refused(tmp_path, b" " * (1 << 20) + b"1")
        == "the file is larger than 1 MiB, as none of its kind is"
    )


def test_a_small_file_of_many_lists_is_not_read(tmp_path):
    assert refused(tmp_path, b"[" * 1_100_000).startswith(
        "the JSON text is little more than empty lists"
    )


def test_a_file_nested_too_deep_is_refused(tmp_path):
    deep = b"[" * 500_000 + b"]" * 500_000
    assert (
        refused(tmp_path, b'{"version": 1, "else": ' + deep + b"}")
        == "no JSON text: nested too deep"
    )


@pytest.mark.parametrize("seed", range(40))
def test_of_a_damaged_file_only_our_own_errors_come_out(tmp_path, seed):
    chance = random.Random(seed)
    data = bytearray(json.dumps(small_trace()).encode())
    for _ in range(chance.randint(1, 4)):
        data[chance.randrange(len(data))] = chance.choice(b'0123456789-.,:"[]{}ntx\x00\xff')
    path = tmp_path / "timing.json"
    path.write_bytes(data)
    with suppress(SnapconvError):
        load_timing(path)
