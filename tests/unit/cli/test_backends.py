"""Every output names the kind of device that wrote a file, and only what its allocator and recorder have."""

import base64
import json
import pickle
import re
import sqlite3
import zlib

import pytest

from snapconv import Request, load
from snapconv.answers.oom.message import explain_message
from snapconv.answers.what_if.setting_trials import SEARCHED
from snapconv.torch_knowledge.backends import BACKENDS, backend_of_kind
from tests.builders import MIB, TraceBuilder, frame
from tests.unit.cli.test_mcp_command import served

NPU = frame("_record", "/opt/torch_npu/npu/memory.py")
XPU = frame("malloc", "/pytorch/torch/xpu/memory.py")


def program(*frames):
    """A trace that fails, with free memory that another setting could have used."""
    builder = TraceBuilder().segment(20 * MIB)
    for _ in range(4):
        builder.alloc(3 * MIB, frames=[frame(), *frames]).alloc(
            2 * MIB, frames=[frame(), *frames]
        ).free()
    return builder.oom(30 * MIB, device_free=MIB)


@pytest.fixture
def files(tmp_path):
    return {
        "npu": program(NPU).write(tmp_path / "npu.pickle"),
        "xpu": program(XPU).write(tmp_path / "xpu.pickle"),
        "cuda": program().write(tmp_path / "cuda.pickle"),
    }


@pytest.mark.parametrize("kind", ["npu", "xpu", "cuda"])
@pytest.mark.parametrize(
    "command",
    [
        ("verdict",),
        ("summary",),
        ("info",),
        ("oom",),
        ("advise",),
        ("growth",),
        ("fragmentation",),
        ("tree",),
        ("what-if", "--search"),
        ("check", "--max-peak", "1GiB"),
        ("explain", "#1"),
    ],
    ids=" ".join,
)
def test_text_and_json_name_the_device_as_torch_does(snapconv, files, kind, command):
    name, *rest = command
    done = snapconv(*([] if name == "verdict" else [name]), files[kind], *rest)
    assert f"{kind}:0" in done.out
    others = {"npu:", "xpu:", "cuda:", "CUDA", "cudaMalloc"} - {f"{kind}:"}
    assert kind == "cuda" or not [word for word in others if word in done.out + done.err]
    values = json.loads(snapconv(name, files[kind], *rest, "--json").out)
    assert values["json_version"] == 4
    devices = values.get("devices", [])
    assert [device["kind"] for device in devices if "kind" in device] == [kind] * len(devices)


@pytest.mark.parametrize("kind", ["npu", "xpu", "cuda"])
def test_reports_pages_traces_and_ranks_name_the_device(snapconv, files, kind, tmp_path):
    report, page, trace = (
        tmp_path / f"out{ending}" for ending in (".sqlite", ".html", ".perfetto.json")
    )
    assert snapconv("to-sqlite", files[kind], "--extended", "-o", report).code == 0
    with sqlite3.connect(report) as database:
        assert database.execute("SELECT device, device_kind FROM snapconv_report").fetchall() == [
            (0, kind)
        ]
    assert snapconv("view", files[kind], "-o", page).code == 0
    parts = re.findall(r'octet-stream" id="[^"]*">([A-Za-z0-9+/=]+)<', page.read_text())
    assert any(f'"{kind}:0"'.encode() in zlib.decompress(base64.b64decode(part)) for part in parts)
    assert snapconv("export", files[kind], "-o", trace).code == 0
    assert f"{kind}:0 memory" in trace.read_text()
    folder = tmp_path / "job"
    folder.mkdir()
    for rank in (0, 1):
        (folder / f"rank{rank}.pickle").write_bytes(files[kind].read_bytes())
    done = snapconv("ranks", folder, "--no-cache")
    assert f"{kind}:0" in done.out
    devices = json.loads(snapconv("ranks", folder, "--no-cache", "--json").out)["files"][0][
        "devices"
    ]
    assert [device["kind"] for device in devices] == [kind]


def test_an_agent_reads_the_kind_of_the_device(files):
    answers = served([files["npu"].parent], ("verdict", {"snapshot": "npu.pickle"}))[1]
    assert json.loads(answers[0][1])["devices"][0]["kind"] == "npu"


def test_two_devices_of_one_file_have_reports_of_their_own_names(snapconv, tmp_path):
    second = TraceBuilder(1).segment().alloc(512, frames=[NPU])
    path = TraceBuilder().segment().alloc(512, frames=[NPU]).write(tmp_path / "two.pickle", second)
    assert snapconv("to-sqlite", path, "-o", tmp_path / "two.sqlite").code == 0
    assert {one.name for one in tmp_path.glob("*.sqlite")} == {"two.npu0.sqlite", "two.npu1.sqlite"}
    assert snapconv("summary", path, "--device", "npu:1").out.startswith("npu:1")


def test_only_settings_that_every_release_of_the_file_accepts_are_tried(files):
    """torch_npu 2.1 to 2.8 refuse roundup_power2_divisions, 2.1 to 2.10 per_process_memory_fraction."""
    trials = load(files["npu"]).what_if(Request.read(search=True))[0]
    tried = {one.name for one in trials.tried}
    assert tried & set(SEARCHED) == {
        conf for conf in SEARCHED if conf.startswith(("expandable", "max_split"))
    }
    assert trials.variable == "PYTORCH_NPU_ALLOC_CONF"
    _, remedies = load(files["npu"]).explain_oom()
    assert not [
        one.name for one in remedies.tried if "roundup" in one.name or "fraction" in one.name
    ]


def test_an_npu_refuses_a_split_limit_beside_expandable_segments():
    npu = backend_of_kind("npu")
    given, both = ["max_split_size_mb"], ["max_split_size_mb", "expandable_segments"]
    assert (
        npu.refusal(given, both, release="2.6")
        == "torch_npu refuses max_split_size_mb beside expandable_segments"
    )
    assert npu.refusal(given, given, release="2.6") == ""
    assert backend_of_kind("cuda").refusal(given, both, release="2.6") == ""


def test_events_with_pools_show_a_release_that_accepts_all(tmp_path):
    builder = program(NPU)
    for event in builder.events:
        event["pool_id"] = (0, 0)
    snapshot = load(builder.write(tmp_path / "new.pickle")).snapshot
    assert str(snapshot.era) == "torch 2.13 or newer (npu)"
    assert (
        snapshot.backend.refusal(
            ["per_process_memory_fraction"], [], release=snapshot.earliest_release
        )
        == ""
    )


@pytest.mark.parametrize(("n_padded", "kind"), [(3, "npu"), (2, "cuda"), (0, "cuda")])
def test_padded_blocks_show_an_npu_without_any_frame_of_it(tmp_path, n_padded, kind):
    """torch_npu adds 32 bytes to every request, which torch never does: one block without them is torch's."""
    raw = TraceBuilder().segment().alloc(512).alloc(1024).alloc(1536).snapshot()
    *blocks, rest = raw["segments"][0]["blocks"]
    address = end = blocks[0]["address"]
    for number, block in enumerate(blocks):
        block["address"], block["size"] = end, block["requested_size"] + 512 * (number < n_padded)
        end += block["size"]
    rest["address"], rest["size"] = end, 2 * MIB - (end - address)
    raw["device_traces"] = []
    (tmp_path / "blocks.pickle").write_bytes(pickle.dumps(raw))
    assert load(tmp_path / "blocks.pickle").snapshot.era.backend == kind


@pytest.mark.parametrize("name", BACKENDS)
def test_a_message_says_what_records_on_its_device_and_nothing_else(name):
    text = (
        f"{name} out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 61.00 "
        f"GiB of "
        "which 1.00 GiB is free. Of the allocated memory 58.00 GiB is allocated by PyTorch, and "
        "1.00 GiB is "
        "reserved by PyTorch but unallocated."
    )
    found, backend = explain_message(text), BACKENDS[name]
    assert ("snapconv watch" in found.next_step) == backend.is_recorded
    assert backend.is_recorded or not backend.record or backend.record in found.next_step
    assert backend.record or backend.is_recorded or "no recorder" in found.next_step
