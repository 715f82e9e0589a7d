"""Pinned host memory (torch 2.14 on): a device of its own kind, from the file to every output."""

import json
import pickle

import pytest

import snapconv
from snapconv.answers.info import describe
from snapconv.answers.notes import device_notes
from snapconv.convert import ConvertOptions, to_sqlite
from snapconv.errors import InputError, MalformedSnapshotError
from snapconv.units import HOST, device_kind, device_name, parse_device
from snapconv.writers.text.info import info_lines
from tests.builders import START_US, TraceBuilder, frame
from tests.tables import ask

pytestmark = pytest.mark.usefixtures("in_its_folder")

SITE = "/opt/venv/lib/python3.11/site-packages"
MINE = [frame("stage", "/home/me/project/serve.py", 8)]
PINNED = [frame("pin_memory", f"{SITE}/torch/utils/data/_utils/pin_memory.py", 57)]
SAVED = [frame("pack_to_cpu", f"{SITE}/torch/autograd/graph.py", 447)]


def pinned(*sizes, frames=MINE):
    """Pinned memory of these sizes, each a segment and its one block."""
    host = TraceBuilder(device=HOST)
    for size in sizes:
        host.segment(size).alloc(size, frames=frames)
    return host


def cuda():
    return TraceBuilder().segment().alloc(1000, frames=MINE)


@pytest.fixture
def written(tmp_path):
    """Write a snapshot, ``run.pickle``."""

    def write(raw):
        path = tmp_path / "run.pickle"
        path.write_bytes(pickle.dumps(raw))
        return path

    return write


@pytest.fixture
def both(written):
    """1,024 bytes on cuda:0 and 12,288 of pinned memory."""
    return written(cuda().snapshot(**pinned(4096, 8192).as_host()))


def devices_of(path):
    return {found.device.device: found for found in snapconv.load(path).devices}


def main(capsys, *argv):
    from snapconv.cli.app import main

    code = main([str(word) for word in argv])
    return code, *capsys.readouterr()


def test_pinned_memory_is_a_device_and_no_part_of_a_cuda_device(both):
    found = devices_of(both)
    assert list(found) == [0, HOST]
    assert [found[0].replay.allocated.peak, found[0].replay.reserved.peak] == [1024, 2 << 20]
    assert [found[HOST].replay.allocated.peak, found[HOST].replay.reserved.peak] == [12_288, 12_288]


def test_an_address_of_both_is_looked_up_on_each(both):
    """The host's addresses and those of a device are different spaces: here they are the same numbers."""
    session = snapconv.load(both)
    address = hex(session.devices[1].allocations.addr[0])
    assert [explained["device"] for explained in session.explain(address).allocations] == [0, HOST]
    assert [
        explained["device"] for explained in session.explain(address, device=HOST).allocations
    ] == [HOST]


@pytest.mark.parametrize("others", [{}, {"segments": [], "device_traces": [[]]}])
def test_a_file_with_host_memory_only_has_no_cuda_device(written, others):
    found = devices_of(written({**others, **pinned(4096).as_host()}))
    assert list(found) == [HOST]
    assert "empty-snapshot" not in {note.slug for note in device_notes(found[HOST])}


def test_host_traces_without_segments_are_read_with_a_note(written):
    raw = cuda().snapshot(host_traces=pinned(4096).events)
    host = devices_of(written(raw))[HOST]
    assert host.replay.allocated.end == 4096
    assert "missing-from-segments" in {note.slug for note in device_notes(host)}


def test_host_segments_without_a_trace_are_what_is_there_at_the_dump(written):
    raw = cuda().snapshot(host_segments=pinned(4096, 512).as_host()["host_segments"])
    host = devices_of(written(raw))[HOST]
    assert (host.replay.allocated.start, len(host.device.events)) == (4608, 0)
    assert host.history.verdict.value == "no trace"


def test_empty_host_keys_are_no_device(written):
    """torch 2.14 writes both keys always, empty unless host memory is recorded."""
    assert list(devices_of(written(cuda().snapshot(host_segments=[], host_traces=[])))) == [0]


def test_a_block_freed_in_the_trace_and_preexisting_has_its_exact_size(written):
    """Every event has the block's size, here 3,000 bytes, as above max_round_threshold."""
    host = TraceBuilder(device=HOST)
    for action in ("free_requested", "free_completed", "segment_free"):
        host.event(action, addr=0x5000, size=3000)
    found = devices_of(written(cuda().snapshot(**host.as_host())))[HOST]
    assert [found.replay.allocated.start, found.replay.reserved.start] == [3000, 3000]
    assert found.allocations.is_exact.all()
    assert "inexact-block-sizes" not in {note.slug for note in device_notes(found)}


def test_a_registration_inside_of_a_block_changes_no_size(written):
    """cudaHostRegister is recorded beside the allocator's own blocks, and may lie within one."""
    host = pinned(8192)
    inner = {"addr": host.segments[0]["address"] + 4096, "size": 100}
    host.event("segment_alloc", **inner).event("alloc", **inner)
    found = devices_of(written(cuda().snapshot(**host.as_host())))[HOST]
    assert found.allocations.block_bytes.tolist() == [8192, 100]
    assert "trace-contradicts-segments" not in {note.slug for note in device_notes(found)}


def test_events_of_several_threads_are_put_in_order_without_a_note(written):
    host = pinned(4096, 8192)
    host.events[1]["time_us"], host.events[2]["time_us"] = START_US + 2, START_US + 1
    found = devices_of(written(cuda().snapshot(**host.as_host())))[HOST]
    assert found.device.events.time_us.tolist() == sorted(found.device.events.time_us.tolist())
    assert "reordered-ring" not in {note.slug for note in device_notes(found)}


@pytest.mark.parametrize(
    ("frames", "category"),
    [(PINNED, "input"), (SAVED, "activation"), (MINE, "unknown"), ([], "unknown")],
)
def test_only_its_own_stack_shows_what_pinned_memory_is_for(written, frames, category):
    """A stack without frames is the engine's on a device; on the host it may be any thread's."""
    raw = cuda().snapshot(**pinned(4096, frames=frames).as_host())
    totals = snapconv.load(written(raw)).report(HOST).peak.categories
    assert [total.category for total in totals if total.n_allocations] == [category]


def test_a_rule_of_ones_own_counts_for_pinned_memory(written, tmp_path):
    rules = tmp_path / "mine.toml"
    rules.write_text('input = ["stage"]')
    raw = cuda().snapshot(**pinned(4096).as_host())
    report = snapconv.load(written(raw), rules=rules).report(HOST)
    assert [total.category for total in report.peak.categories if total.n_allocations] == ["input"]


def test_what_is_unknown_of_pinned_memory_is_no_failure_and_gives_no_note(both):
    slugs = {note.slug for note in device_notes(devices_of(both)[HOST])}
    assert "much-unknown" not in slugs
    assert "host-sizes" in slugs


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({}, ["run.memory.sqlite", "run.host.memory.sqlite"]),
        ({"output": "r.sqlite"}, ["r.sqlite", "r.host.sqlite"]),
        ({"device": HOST}, ["run.host.memory.sqlite"]),
        ({"device": HOST, "output": "r.sqlite"}, ["r.sqlite"]),
        ({"device": 0}, ["run.memory.sqlite"]),
    ],
)
def test_pinned_memory_changes_the_name_of_no_other_report(both, options, names):
    output = both.with_name(options.pop("output")) if "output" in options else None
    done = to_sqlite(both, ConvertOptions(output=output, **options))
    assert [path.name for path, _ in done.reports] == names
    assert all(path.exists() for path, _ in done.reports)


def test_two_devices_beside_pinned_memory_have_their_ordinals(written):
    second = TraceBuilder(device=1).segment().alloc(512)
    done = to_sqlite(written(cuda().snapshot(second, **pinned(4096).as_host())), ConvertOptions())
    assert [path.name for path, _ in done.reports] == [
        "run.cuda0.memory.sqlite",
        "run.cuda1.memory.sqlite",
        "run.host.memory.sqlite",
    ]


def test_the_extended_report_of_pinned_memory_is_of_device_minus_one(both):
    done = to_sqlite(both, ConvertOptions(extended=True))
    report = done.reports[1][0]
    assert ask(report, "SELECT device, peak_usage_bytes FROM snapconv_report") == [(-1, 12_288)]
    assert ask(report, "SELECT size_bytes FROM misc_sizes")[0] == (12_288,)
    sizes = ask(report, "SELECT requested_bytes, block_bytes FROM snapconv_allocations ORDER BY id")
    assert sizes == [(4096, 4096), (8192, 8192)]


def test_info_names_it_beside_the_devices_and_counts_it_as_none(both):
    facts, _ = describe(both)
    assert facts["n_visible_devices"] == 1
    assert [(one["device"], one["kind"], one["reserved_bytes"]) for one in facts["devices"]] == [
        (0, "cuda", 2 << 20),
        (HOST, "host", 12_288),
    ]
    assert any(line.startswith("  host  4 events") for line in info_lines(facts))


def test_the_summary_the_notes_and_the_json_call_it_host(both, capsys):
    code, out, err = main(capsys, "to-sqlite", both)
    assert (code, "\nhost  peak allocated 12.00 KiB (12288 bytes)" in out) == (0, True)
    assert "note: host-sizes (host): " in err
    code, out, _ = main(capsys, "to-sqlite", both, "--json", "--force")
    assert [(one["device"], one["kind"]) for one in json.loads(out)["reports"]] == [
        (0, "cuda"),
        (-1, "host"),
    ]


@pytest.mark.parametrize("command", [["to-sqlite"], ["explain", "#0"]])
def test_a_device_that_is_none_is_a_usage_error(both, capsys, command):
    code, _, err = main(capsys, command[0], both, *command[1:], "--device", "gpu")
    assert code == 2
    assert "host" in err


def test_host_memory_that_a_file_does_not_have_is_refused(written, capsys):
    path = written(cuda().snapshot())
    with pytest.raises(InputError, match="nothing of device host; it has: 0"):
        to_sqlite(path, ConvertOptions(device=HOST))
    assert main(capsys, "explain", path, "#1", "--device", "host")[0] == 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"host_segments": {}}, "host_segments: expected list, got dict"),
        ({"host_segments": ["a"]}, "host_segments[0]: expected dict, got str"),
        (
            {"host_segments": [{"address": 1}]},
            "host_segments[0].total_size: expected int, got nothing",
        ),
        ({"host_traces": 7}, "host_traces: expected list, got int"),
        ({"host_traces": [[]]}, "host_traces[0]: expected dict, got list"),
        ({"host_traces": [{"action": 3}]}, "host_traces[0].action: expected str, got int"),
        (
            {"host_traces": [{"action": "alloc", "addr": 1, "size": 1 << 60}]},
            "host_traces[0].size: expected 0 to 2^48 bytes",
        ),
        (
            {"host_traces": [{"action": "alloc", "addr": 1, "size": 1, "internal_metadata": 3}]},
            "host_traces[0].internal_metadata: expected str, got int",
        ),
    ],
)
def test_a_wrong_value_is_named_with_its_place(written, changes, message):
    with pytest.raises(MalformedSnapshotError) as caught:
        snapconv.load(written(cuda().snapshot(**changes)))
    assert message in str(caught.value)


def test_one_list_as_trace_of_a_device_and_of_the_host_is_refused(written):
    raw = cuda().snapshot()
    with pytest.raises(MalformedSnapshotError, match="is the same list as"):
        snapconv.load(written(raw | {"host_traces": raw["device_traces"][0]}))


@pytest.mark.parametrize(("text", "device"), [("0", 0), ("cuda:3", 3), ("host", HOST)])
def test_a_device_is_read_as_it_is_written(text, device):
    assert parse_device(text) == device
    assert device_name(device).endswith(text)
    assert device_kind(device) in ("cuda", "host")


@pytest.mark.parametrize("text", ["", "-1", "gpu", "cuda:", "cuda:x", "1.0", "٣", "1" * 30])
def test_what_names_no_device_is_refused(text):
    with pytest.raises(ValueError, match="expected a device's number"):
        parse_device(text)
