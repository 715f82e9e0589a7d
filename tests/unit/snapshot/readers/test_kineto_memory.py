"""A Chrome trace of torch.profiler given alone: its memory events, from zero, as what they are."""

import gzip
import json
from contextlib import suppress
from pathlib import Path

import pytest

from snapconv import load
from snapconv.cli.app import main
from snapconv.errors import InputError, NotASnapshotError, SnapconvError
from snapconv.phases.trace_phases import Phase
from snapconv.replay.history_verdict import Verdict
from tests.builders import MIB

PROFILES = Path(__file__).parents[4] / "fixtures" / "profiles"
REAL = PROFILES / "trace.json.gz"
EXPECTED = json.loads((PROFILES / "expected.json").read_text(encoding="utf-8"))
GIB = 1 << 30
CPU, CUDA, XPU = 0, 1, 12


def memory(time, n_bytes, addr=4096, *, total=None, reserved=0, kind=CUDA, number=0, tid=1):
    args = {"Device Type": kind, "Device Id": number, "Addr": addr, "Bytes": n_bytes}
    if total is not None:
        args |= {"Total Allocated": total, "Total Reserved": reserved}
    names = {"cat": "cpu_instant_event", "name": "[memory]", "s": "t"}
    return {"ph": "i", "pid": 7, "tid": tid, "ts": time, "args": args} | names


def call(name, begin, end, *, cat="cpu_op", tid=1):
    times = {"ts": begin, "dur": end - begin}
    return {"ph": "X", "cat": cat, "name": name, "pid": 7, "tid": tid, "args": {}} | times


def python(name, begin, end, **values):
    return call(name, begin, end, cat="python_function", **values)


def trace(tmp_path, *events, **values):
    raw = {"schemaVersion": 1, "traceEvents": [*events]} | values
    (tmp_path / "trace.json").write_text(json.dumps(raw), encoding="utf-8")
    return load(tmp_path / "trace.json")


def profile_note(session):
    (note,) = [note for note in session.notes if note.slug == "profile"]
    return note.message


# --- what torch wrote


def events_of_the_real_one():
    return json.loads(gzip.decompress(REAL.read_bytes()))["traceEvents"]


def test_the_peak_is_torchs_own_without_what_was_there_before():
    """The profiler's sums have the parameters, which were made before the trace began."""
    (device,) = load(REAL).devices
    peak = EXPECTED["peak"]
    assert device.replay.allocated.peak == EXPECTED["trace_peak"]
    assert device.replay.allocated.peak == sum(peak.values()) - peak["parameter"]
    found = {row.category: row.block_bytes for row in load(REAL).at("peak")[0].summary_rows}
    scalar = 4  # the loss, which both call another thing
    assert (found["optimizer_state"], found["input"]) == (peak["optimizer_state"], peak["input"])
    assert found["activation"] == peak["activation"] - scalar
    assert found["temporary"] == peak["autograd_detail"] + scalar


def test_the_curve_is_the_totals_of_the_trace():
    rows = [event for event in events_of_the_real_one() if event["name"] == "[memory]"]
    rows.sort(key=lambda event: event["ts"])
    (device,) = load(REAL).devices
    totals = [event["args"]["Total Allocated"] for event in rows]
    assert device.replay.allocated.after.tolist() == totals


def test_a_line_has_what_was_allocated_within_its_function():
    """Counted from the file alone: memory events within a slice of forward, in use at the peak."""
    events = events_of_the_real_one()
    slices = [
        (event["tid"], event["ts"], event["ts"] + event["dur"])
        for event in events
        if event.get("cat") == "python_function"
        and event["name"].endswith("record_profiles.py(32): forward")
    ]
    live = {}
    at_peak = None
    for event in sorted(events, key=lambda event: event["ts"]):
        if event["name"] == "[memory]" and event["args"]["Bytes"] < 0:
            del live[event["args"]["Addr"]]
        elif event["name"] == "[memory]":
            moment, args = event["ts"], event["args"]
            is_inside = any(
                tid == event["tid"] and begin <= moment <= end for tid, begin, end in slices
            )
            live[args["Addr"]] = args["Bytes"] * is_inside
            if args["Total Allocated"] == EXPECTED["trace_peak"]:
                at_peak = sum(live.values())
                break
    lines = {row.line.place: row.block_bytes for row in load(REAL).at("peak")[0].lines}
    assert lines["record_profiles.py:32"] == at_peak > 0


def test_steps_are_those_of_the_optimizers_annotations():
    session = load(REAL)
    assert len(session.devices[0].iterations) == 2
    assert any("Optimizer.step#Adam.step" in text for text in session.snapshot.texts)


def test_it_is_called_what_it_is_and_counts_from_zero():
    session = load(REAL)
    said = profile_note(session)
    assert said.startswith("the file is a Chrome trace of torch.profiler (export_chrome_trace)")
    assert "counted from zero" in said
    assert "what was reserved, and rounding, is not known" in said
    (device,) = session.devices
    assert (device.device.device.kind, device.history.verdict) == ("cpu", Verdict.STARTED_LATE)
    assert device.history.reason == (
        "torch.profiler does not see what the CPU had allocated before it began"
    )


def test_every_command_answers_or_says_what_is_missing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for command in ("verdict", "info", "summary", "tree", "annotate", "growth", "oom", "advise"):
        assert main([command, str(REAL)]) == 0
        assert "--device-total" not in "".join(capsys.readouterr())
    for command in ("view", "export", "to-sqlite"):
        assert main([command, str(REAL)]) == 0
    main(["cut", str(REAL), "--to", "9"])
    assert "no allocator's snapshot: it cannot be cut" in capsys.readouterr().err
    main(["fragmentation", str(REAL)])
    assert "has tensors and not the allocator" in capsys.readouterr().err


# --- by hand: devices, and what was there before


def test_devices_are_those_of_the_events_and_the_cpu_is_last(tmp_path):
    session = trace(
        tmp_path,
        memory(1, 64, kind=CPU, number=-1),
        memory(2, 2 * MIB, number=1, total=2 * MIB),
        memory(3, MIB, number=0, total=MIB),
    )
    kinds = [(device.device.device.kind, device.n_events) for device in session.devices]
    assert kinds == [("cuda", 1), ("cuda", 1), ("cpu", 1)]
    assert [device.replay.allocated.peak for device in session.devices] == [MIB, 2 * MIB, 64]


def test_an_accelerator_that_has_another_name_has_it_here(tmp_path):
    (device,) = trace(tmp_path, memory(1, 64, kind=XPU, total=64)).devices
    assert repr(device.device).startswith("xpu:0 ")


def test_what_a_device_had_before_is_known_by_its_totals(tmp_path):
    """3 GiB were there: 1 GiB of it is freed in the trace, 2 GiB stay."""
    session = trace(
        tmp_path,
        memory(1, MIB, addr=4096, total=3 * GIB + MIB, reserved=4 * GIB),
        memory(2, -GIB, addr=8192, total=2 * GIB + MIB, reserved=4 * GIB),
        memory(3, -MIB, addr=4096, total=2 * GIB, reserved=3 * GIB),
    )
    (device,) = session.devices
    curve = device.replay.allocated.after[-3:].tolist()
    assert curve == [3 * GIB + MIB, 2 * GIB + MIB, 2 * GIB]
    assert device.history.verdict is Verdict.STARTED_LATE
    assert device.history.reason == "3.00 GiB were allocated before its first event"
    said = profile_note(session)
    assert "cuda:0 had 2.00 GiB from before in use all the time" in said
    assert "cuda:0 reserved 4.00 GiB at most" in said
    assert "events are missing" not in said


def test_totals_that_begin_with_the_first_alloc_show_that_it_is_complete(tmp_path):
    (device,) = trace(tmp_path, memory(1, MIB, total=MIB)).devices
    assert device.history.verdict is Verdict.COMPLETE


def test_a_trace_without_totals_is_not_called_complete(tmp_path):
    (device,) = trace(tmp_path, memory(1, MIB)).devices
    assert device.history.reason == "it has no totals, which would show what was there before"


def test_totals_that_contradict_the_events_are_said(tmp_path):
    session = trace(
        tmp_path, memory(1, MIB, total=MIB), memory(2, MIB, addr=1 << 20, total=9 * MIB)
    )
    assert "the totals of cuda:0 do not follow from its events in 1 place" in profile_note(session)


def test_a_failed_request_is_said_without_what_was_free(tmp_path):
    failed = memory(2, 3 * GIB, total=MIB) | {"name": "[OutOfMemory]"}
    session = trace(tmp_path, memory(1, MIB, total=MIB), failed)
    assert "memory ran out 1 time, the largest request was 3.00 GiB" in profile_note(session)
    assert session.devices[0].n_events == 1


def test_times_are_those_of_its_clock(tmp_path):
    session = trace(tmp_path, memory(12.75, 64), baseTimeNanoseconds=1_700_000_000_000_000_999)
    assert session.devices[0].device.events.time_us.tolist() == [1_700_000_000_000_012]


# --- by hand: stacks


def frames_of(session, event=0):
    (device,) = session.devices
    table = session.snapshot.stacks.frames
    ids = session.snapshot.stacks.frames_of(int(device.device.events.stack_id[event])).tolist()
    return [(table.names[i], table.filenames[i], int(table.lines[i])) for i in ids]


def test_a_stack_is_the_calls_of_the_thread_that_are_open(tmp_path):
    session = trace(
        tmp_path,
        memory(5, 64),
        call("aten::empty", 4, 6),
        call("aten::linear", 3, 8),
        call("aten::relu", 1, 2),  # it is over
        call("aten::mm", 4, 6, tid=2),  # it is of another thread
        python("model.py(9): forward", 3, 9),
        python("train.py(20): <module>", 0, 10),
    )
    assert frames_of(session) == [
        ("at::_ops::empty::call", "??", 0),
        ("at::_ops::linear::call", "??", 0),
        ("forward", "model.py", 9),
        ("<module>", "train.py", 20),
    ]
    (state,) = session.at("peak")
    assert [row.line.place for row in state.lines] == ["model.py:9"]
    assert "a line in its stacks is the one where the function begins" in profile_note(session)


def test_calls_of_backward_are_those_of_the_engine(tmp_path):
    name = "autograd::engine::evaluate_function: MmBackward0"
    session = trace(
        tmp_path, memory(3, 64), call("aten::mm", 2, 4), call("MmBackward0", 1, 5), call(name, 0, 6)
    )
    assert [name for name, _, _ in frames_of(session)] == [
        "at::_ops::mm::call",
        "torch::autograd::generated::MmBackward0::apply(",
        "torch::autograd::Engine::evaluate_function",
    ]
    assert session.devices[0].phases.phase.tolist() == [Phase.BACKWARD]
    assert "no lines, which with_stack=True records" in profile_note(session)
    (note,) = [note for note in session.notes if note.slug == "no-project-frames"]
    assert note.message == "no stack has a Python frame: operations are known, and no lines"


def test_a_built_in_function_within_a_step_is_no_closure_of_the_program(tmp_path):
    session = trace(
        tmp_path,
        memory(5, 64),
        python("<built-in method zeros_like of type object at 0x7f>", 4, 6),
        python("torch/optim/adam.py(139): _init_group", 3, 7),
        python("train.py(20): <module>", 0, 10),
    )
    assert session.devices[0].phases.phase.tolist() == [Phase.OPTIMIZER]


def test_a_range_of_record_function_is_a_moment(tmp_path):
    step = call("step 1", 4, 8, cat="user_annotation")
    session = trace(tmp_path, memory(1, 64), memory(5, 32, addr=1), memory(9, -64), step)
    (state,) = session.at("annotation:step 1")
    assert state.allocated_bytes == 96


# --- what it is not


def test_a_trace_without_memory_is_refused_with_what_records_it(tmp_path):
    with pytest.raises(NotASnapshotError) as refused:
        trace(tmp_path, call("aten::mm", 1, 2))
    said = str(refused.value)
    assert "a Chrome trace without torch.profiler's memory events" in said
    assert "torch.profiler.profile(profile_memory=True, with_stack=True)" in said
    assert "snapconv export SNAPSHOT --with TRACE" in said


def changed(event, **values):
    return event | {"args": event["args"] | values}


@pytest.mark.parametrize(
    ("event", "said"),
    [
        (memory("1", 64), "traceEvents[0].ts: expected int, got str"),
        (memory(1, 1 << 49), "traceEvents[0].args.Bytes: expected at most 2^48 bytes"),
        (memory(1, 64, addr="0x1"), "traceEvents[0].args.Addr: expected int, got str"),
        (memory(1, 64, number=128), "traceEvents[0].args.Device Id: expected a device from 0"),
        (memory(1, 64) | {"args": None}, "traceEvents[0].args: expected dict, got nothing"),
        (
            changed(memory(1, 64), **{"Total Allocated": 1.5}),
            "traceEvents[0].args.Total Allocated: expected int, got float",
        ),
    ],
)
def test_a_damaged_trace_is_refused_with_its_place(tmp_path, event, said):
    with pytest.raises(InputError) as wrong:
        trace(tmp_path, event)
    assert said in str(wrong.value)


@pytest.mark.parametrize("seed", range(40))
def test_a_trace_with_bytes_changed_is_read_or_refused(tmp_path, seed):
    data = gzip.decompress(REAL.read_bytes())
    place = len(data) * seed // 40
    (tmp_path / "changed").write_bytes(
        data[:place] + bytes([data[place] ^ 1 << seed % 8]) + data[place + 1 :]
    )
    with suppress(SnapconvError):
        load(tmp_path / "changed").at("peak")
