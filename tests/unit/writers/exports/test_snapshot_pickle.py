"""A smaller snapshot gives, read again, the figures of its window; redacted, it has no name of the job."""

import pickle
import pickletools
from pathlib import Path

import numpy as np
import pytest

import snapconv
from snapconv.answers.event_window import Range, find_window
from snapconv.cli.app import main
from snapconv.writers.exports.snapshot_pickle import SnapshotOptions, snapshot_of, write_snapshot
from tests.builders import MIB, START_US, TraceBuilder, frame

pytestmark = pytest.mark.usefixtures("in_its_folder")

FIXTURES = Path(__file__).parents[4] / "fixtures"
REAL = Path(__file__).parents[5] / "shared" / "snapshots"
CURVES = ("requested", "allocated", "active", "reserved")
# What these have been given back and was not of its rounded size cannot be known from a part.
SIZES_LOST = {"roundup_power2_divisions.pickle", "torch_npu.pickle"}


def again(tmp_path, session, analysis, window, **options):
    path = tmp_path / "window.pickle"
    write_snapshot(path, analysis, window, SnapshotOptions(**options), force=True)
    found = snapconv.load(path)
    return next(one for one in found.devices if one.device.device == analysis.device.device)


def differences(whole, window, part):
    """The most by which a curve differs, at any event of the window and just before it."""
    rows = np.concatenate(([window.first - 1], window.rows[window.n_earlier :]))
    most = 0
    for name in CURVES:
        before, after = getattr(whole.replay, name), getattr(part.replay, name)
        expected = [before.at(row) for row in rows.tolist()]
        found = [after.at(row) for row in range(window.n_earlier - 1, len(window.rows))]
        most = max(most, *np.abs(np.array(expected) - np.array(found)).tolist())
    return most


def snapshots():
    own = [p for p in sorted(FIXTURES.glob("*.pickle")) if p.name not in SIZES_LOST]
    return [*own, *sorted(REAL.glob("*.pickle"))]


@pytest.mark.parametrize("path", snapshots(), ids=lambda path: path.name)
def test_a_window_of_a_file_has_the_figures_that_the_file_has_there(tmp_path, path):
    session = snapconv.load(path)
    for analysis in session.devices:
        n = len(analysis.device.events)
        if analysis.device.is_host:
            continue
        window = find_window(analysis, events=Range(n // 3, 2 * n // 3)) if n > 2 else find_window(analysis)
        part = again(tmp_path, session, analysis, window)
        assert differences(analysis, window, part) == 0


@pytest.mark.parametrize("name", ["training_step", "several_streams", "torch_npu_expandable", "torch_2_15"])
def test_redacted_or_not_the_figures_are_the_same(tmp_path, name):
    session = snapconv.load(FIXTURES / f"{name}.pickle")
    analysis = session.devices[0]
    part = again(tmp_path, session, analysis, find_window(analysis), redact=True)
    assert differences(analysis, find_window(analysis), part) == 0


def test_shifted_times_and_addresses_begin_at_fixed_values_and_keep_their_distances(tmp_path):
    path, output = tmp_path / "one.pickle", tmp_path / "public.pickle"
    path.write_bytes(pickle.dumps(secret_snapshot()))
    arguments = ["export", str(path), "--format", "snapshot", "-o", str(output), "--quiet", "--redact"]
    assert main(arguments) == 0
    raw = pickle.loads(output.read_bytes())
    (trace,), (segment,) = raw["device_traces"], raw["segments"]
    assert [event["addr"] for event in trace] == [2 * MIB, 2 * MIB, 2 * MIB + 512]
    assert [event["time_us"] for event in trace] == [1_000_000, 1_000_001, 1_000_002]
    assert [segment["address"], segment["blocks"][1]["address"]] == [2 * MIB, 2 * MIB + 512]
    assert {note["time_us"] for note in raw["external_annotations"]} == {1_000_000}


def test_the_handles_of_streams_become_numbers(tmp_path):
    handle = 94_233_121_536
    builder = TraceBuilder().segment(2 << 20).alloc(512).segment(2 << 20, stream=handle)
    session = snapconv.load(builder.write(tmp_path / "one.pickle"))
    raw = snapshot_of(session.devices[0], find_window(session.devices[0]), SnapshotOptions(redact=True))
    assert handle not in {event["stream"] for event in raw["device_traces"][0]}
    assert {segment["stream"] for segment in raw["segments"]} == {0, 1}


def test_a_whole_file_keeps_its_categories(tmp_path):
    session = snapconv.load(FIXTURES / "training_step.pickle")
    (analysis,) = session.devices
    part = again(tmp_path, session, analysis, find_window(analysis))
    assert part.classification.category.tolist() == analysis.classification.category.tolist()


def test_iterations_of_a_file_are_those_of_the_window(tmp_path):
    session = snapconv.load(FIXTURES / "training_step.pickle")
    (analysis,) = session.devices
    path = tmp_path / "one.pickle"
    source = str(FIXTURES / "training_step.pickle")
    assert (
        main(["export", source, "--format", "snapshot", "--iterations", "1", "-o", str(path), "--quiet"]) == 0
    )
    (part,) = snapconv.load(path).devices
    assert max(one.peak_bytes for one in part.iterations) == analysis.iterations[1].peak_bytes


def test_a_block_is_in_use_or_waits_for_a_stream_as_it_was_then(tmp_path):
    # Events: 0 segment, 1 alloc A, 2 alloc B, 3 free_requested of B, 4 alloc C.
    trace = TraceBuilder().segment(2 * MIB).alloc(512).alloc(1000).free(completed=False).alloc(2000)
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(trace.snapshot()))
    session = snapconv.load(path)
    (analysis,) = session.devices
    raw = snapshot_of(analysis, find_window(analysis, events=Range(0, 3)), SnapshotOptions())
    (segment,) = raw["segments"]
    assert [(block["state"], block["size"], block["requested_size"]) for block in segment["blocks"]] == [
        ("active_allocated", 512, 512),
        ("active_pending_free", 1024, 1000),
        ("inactive", 2 * MIB - 1536, 0),
    ]
    assert (segment["allocated_size"], segment["active_size"]) == (512, 1536)
    assert [event["action"] for event in raw["device_traces"][0]] == [
        "segment_alloc",
        "alloc",
        "alloc",
        "free_requested",
    ]


def test_an_annotation_that_is_over_before_the_window_or_begins_after_it_is_left_out(tmp_path):
    def ranges(name, start, end):
        times = (("START", start), ("END", end))
        return [{"name": name, "stage": stage, "device": 0, "time_us": START_US + at} for stage, at in times]

    notes = ranges("before", 0, 0) + ranges("around", 0, 4) + ranges("within", 2, 2) + ranges("after", 4, 4)
    notes.sort(key=lambda note: note["time_us"])
    trace = TraceBuilder().segment(2 * MIB).alloc(512).alloc(512).alloc(512).alloc(512)
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(trace.snapshot(external_annotations=notes)))
    session = snapconv.load(path)
    (analysis,) = session.devices
    window = find_window(analysis, events=Range(1, 3))
    raw = snapshot_of(analysis, window, SnapshotOptions())
    assert {note["name"] for note in raw["external_annotations"]} == {"around", "within"}
    assert len(raw["external_annotations"]) == 4


def test_the_file_is_of_protocol_4_and_has_only_what_the_viewer_reads(tmp_path):
    output = tmp_path / "new.pickle"
    source = str(FIXTURES / "protocol_5.pickle")
    assert main(["export", source, "--format", "snapshot", "-o", str(output), "--quiet"]) == 0
    found = list(pickletools.genops(output.read_bytes()))
    assert (found[0][0].name, found[0][1]) == ("PROTO", 4)
    assert not {op.name for op, _, _ in found} & {"GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD", "PERSID"}


def secret_snapshot():
    """A snapshot that has the word secret wherever a job can put one."""
    secret = frame("secret_function", "/home/secret/secret_project/secret_file.py", 3)
    traced = secret | {
        "fx_node_op": "call_function",
        "fx_node_target": "secret_ops.secret.default",
        "fx_original_trace": 'File "/home/secret/x.py", line 1, in f\n  secret_source()',
        "fx_node_name": "secret_node",
    }
    cpp = frame("secret::kernel<at::Tensor>(at::Tensor)", "/home/secret/libsecret.so", 0)
    torchs = frame(
        "_call_impl", "/home/secret/venv/lib/python3.11/site-packages/torch/nn/modules/module.py", 9
    )
    trace = TraceBuilder().segment(2 * MIB)
    texts = {"user_metadata": "secret metadata", "compile_context": "secret context"}
    trace.alloc(512, frames=[cpp, torchs, secret], **texts).alloc(1024, frames=[traced], **texts)
    trace.alloc(512, traced=False, frames=[secret])
    at = {"device": 0, "time_us": START_US}
    return trace.snapshot(
        external_annotations=[{"name": "secret range", "stage": stage, **at} for stage in ("START", "END")],
        allocator_settings={
            "PYTORCH_CUDA_ALLOC_CONF": "secret:1",
            "secret_key": "secret",
            "max_split_size": -1,
        },
        snapconv={"secret": "secret"},
        secret_key="secret",
    )


def test_a_redacted_file_has_nothing_of_what_names_the_job(tmp_path):
    path, output = tmp_path / "secret.pickle", tmp_path / "public.pickle"
    path.write_bytes(pickle.dumps(secret_snapshot()))
    arguments = ["export", str(path), "--format", "snapshot", "-o", str(output), "--quiet"]
    assert main(arguments) == 0
    assert b"secret" in output.read_bytes()
    assert main([*arguments, "--redact", "--force"]) == 0
    assert b"secret" not in output.read_bytes()
    assert b"torch/nn/modules/module.py" in output.read_bytes()


@pytest.mark.parametrize(
    ("text", "value"),
    [("-1", -1), ("0.8", 0.8), ("--5", "--5"), ("-", "-"), (".", "."), ("9" * 1500, "9" * 1500)],
)
def test_a_setting_that_is_no_number_stays_a_text(tmp_path, text, value):
    path = TraceBuilder().segment().alloc(512).write(tmp_path / "s.pickle", allocator_settings={"odd": text})
    (analysis,) = snapconv.load(path).devices
    raw = snapshot_of(analysis, find_window(analysis), SnapshotOptions())
    assert raw["allocator_settings"]["odd"] == value


def test_without_cpp_frames_there_is_none(tmp_path):
    session = snapconv.load(FIXTURES / "training_step.pickle")
    (analysis,) = session.devices
    raw = snapshot_of(analysis, find_window(analysis), SnapshotOptions(cpp_frames=False))
    files = {f["filename"] for event in raw["device_traces"][0] for f in event.get("frames", ())}
    assert files
    assert all(file.endswith(".py") for file in files)


def test_what_cannot_be_had_from_the_window_alone_is_said(tmp_path, capsys):
    output = tmp_path / "part.pickle"
    source = str(FIXTURES / "roundup_power2_divisions.pickle")
    assert main(["export", source, "--format", "snapshot", "--events", "276:", "-o", str(output)]) == 0
    assert "note: inexact-window (cuda:0): read again" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--format", "nothing"], 2, "is not one of"),
        (["--format", "snapshot", "--events", "x"], 2, "expected A:B"),
        (["--format", "perfetto", "--redact"], 2, "it is for --format snapshot only"),
        (["--format", "snapshot", "--events", "1:2", "--iterations", "0"], 2, "not both"),
        (["--format", "snapshot", "--events", "99999999:"], 3, "has no event 99999999"),
    ],
)
def test_a_wrong_wish_has_a_clear_error(tmp_path, capsys, arguments, code, message):
    source = str(FIXTURES / "perceptron.pickle")
    assert main(["export", source, "-o", str(tmp_path / "x"), *arguments]) == code
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_of_several_devices_one_has_to_be_named(tmp_path, capsys):
    source = str(FIXTURES / "several_devices.pickle")
    arguments = ["export", source, "--format", "snapshot", "-o", str(tmp_path / "x.pickle")]
    assert main(arguments) == 3
    assert "name one with --device" in capsys.readouterr().err
    assert main([*arguments, "--device", "2"]) == 0
    assert [one.device.device for one in snapconv.load(tmp_path / "x.pickle").devices] == [2]


def test_a_file_that_exists_and_the_input_itself_are_not_replaced(tmp_path, capsys):
    path = tmp_path / "a.pickle"
    path.write_bytes((FIXTURES / "perceptron.pickle").read_bytes())
    assert main(["export", str(path), "--format", "snapshot", "-o", str(path), "--force"]) == 5
    assert main(["export", str(path), "--format", "snapshot"]) == 0
    assert (tmp_path / "a.window.pickle").exists()
    assert main(["export", str(path), "--format", "snapshot"]) == 5
    assert "--force" in capsys.readouterr().err
