"""Small valid snapshots in every container, to be damaged; and how a damaged one is tried."""

import base64
import gzip
import io
import json
import pickle
import struct
import zipfile
from pathlib import Path
from typing import Any

import snapconv
from snapconv.errors import SnapconvError
from tests.builders import MIB, START_US, Raw, TraceBuilder, frame, write_anew

FORWARD = [
    frame("linear", "/x/site-packages/torch/nn/functional.py", 2300),
    frame("_call_impl", "/x/site-packages/torch/nn/modules/module.py", 1500),
    frame("main", "/home/me/project/train.py", 40),
]
BACKWARD = [
    frame("at::_ops::mm::call(at::Tensor const&, at::Tensor const&)", "??", 0),
    frame("torch::autograd::Engine::evaluate_function(std::shared_ptr<GraphTask>&)", "??", 0),
]
STEP = [
    frame("step", "/x/site-packages/torch/optim/adam.py", 200),
    frame("main", "/home/me/project/train.py", 42),
]


def rich_snapshot() -> Raw:
    """Two devices and pinned memory with all that a snapshot of torch 2.15 can hold, in some fifty events."""
    fields = {"compile_context": "N/A", "user_metadata": "", "pool_id": (0, 0)}
    first = TraceBuilder().segment(2 * MIB).segment(20 * MIB, is_expandable=True, traced=False)
    first.event("segment_map", addr=first.segments[1]["address"], size=2 * MIB)
    first.alloc(4096, traced=False).alloc(300_000, frames=FORWARD, **fields)
    for step in range(3):
        first.alloc(3 * MIB, frames=FORWARD, **fields).alloc(4096, frames=BACKWARD, **fields)
        first.alloc(4096, frames=STEP).free(frames=STEP).free(frames=BACKWARD).free(
            frames=BACKWARD, **fields
        )
        first.event("snapshot", size=300_544 + 4096 + step).event("teleport", colour="red")
    first.alloc(1000, frames=[]).free(completed=False).oom(1 << 35, device_free=1 << 30)
    second = (
        TraceBuilder(device=1).segment(stream=7, segment_pool_id=(0, 3)).alloc(512, frames=FORWARD)
    )
    first.event("annotate", user_metadata="rows", internal_metadata="mallocWithAddress")
    host = TraceBuilder(device=-1).segment(4096).alloc(4096, frames=FORWARD, compile_context="")
    host.segment(8192).alloc(8192).free(completed=False).segment(512, traced=False).alloc(
        512, traced=False
    )
    return first.snapshot(
        second,
        **host.as_host(),
        allocator_settings={
            "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
            "max_split_size": -1,
            "garbage_collection_threshold": 0.0,
            "expandable_segments": True,
            "roundup_power2_divisions": {str(1 << i): 0 for i in range(16)},
            "graph_capture_record_stream_reuse": False,
        },
        external_annotations=[
            {
                "name": "Optimizer.step#Adam.step",
                "stage": stage,
                "device": 0,
                "time_us": START_US + at,
            }
            for stage, at in (("START", 5), ("END", 9), ("START", 30))
        ],
    )


def old_snapshot() -> Raw:
    """The shape of torch 2.0: no addresses, times or pools, and occupants under ``history``."""
    raw = TraceBuilder().segment().alloc(1000).alloc(5000).free().snapshot()
    for block in raw["segments"][0]["blocks"]:
        del block["address"]
        block["history"] = [
            {"addr": 0, "real_size": block.pop("requested_size"), "frames": block.pop("frames")}
        ]
    for event in raw["device_traces"][0]:
        del event["time_us"]
    return raw


def html(pickled: bytes) -> bytes:
    """A page of torch's viewer; its pickle is padded with NULs."""
    text = base64.b64encode(pickled + bytes(2)).decode()
    return f'<!DOCTYPE html><script>init([{{"name": "s", "base64": "{text}"}}])</script>'.encode()


def cpp_pickle(value: Any) -> bytes:
    """Pickle as torch's C++ writer does: protocol 2, BINPUT after objects, LONG1 always of 8 bytes."""
    out, n_memo = [b"\x80\x02"], 0

    def put() -> None:
        nonlocal n_memo
        out.append(b"q" + bytes([n_memo]) if n_memo < 256 else b"r" + struct.pack("<I", n_memo))
        n_memo += 1

    def save(value: Any) -> None:
        match value:
            case bool():
                out.append(b"\x88" if value else b"\x89")
            case int() if -(1 << 31) <= value < 1 << 31:
                out.append(b"J" + struct.pack("<i", value))
            case int():
                out.append(b"\x8a\x08" + struct.pack("<q", value))
            case float():
                out.append(b"G" + struct.pack(">d", value))
            case str():
                text = value.encode()
                out.append(b"X" + struct.pack("<I", len(text)) + text)
                put()
            case list() | tuple() | dict():
                save_container(value)

    def save_container(value: Any) -> None:
        start, end = {list: (b"]", b"e"), dict: (b"}", b"u"), tuple: (b"(", b"t")}[type(value)]
        out.append(start)
        if end != b"t":
            put()
            out.append(b"(")
        for part in value.items() if isinstance(value, dict) else ((part,) for part in value):
            for item in part:
                save(item)
        out.append(end)

    save(value)
    return b"".join([*out, b"."])


RICH, OLD = rich_snapshot(), old_snapshot()
PICKLED = pickle.dumps(RICH, 4)
PLAIN = {f"protocol-{protocol}": pickle.dumps(RICH, protocol) for protocol in (2, 3, 4, 5)} | {
    "cpp-writer": cpp_pickle(RICH),
    "torch-2.0": pickle.dumps(OLD, 4),
    "bare-list": pickle.dumps(RICH["segments"], 4),
    "json": json.dumps(RICH).encode(),
}


def zipped(*contents: bytes) -> bytes:
    """Pack files into a zip, always the same bytes."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for i, content in enumerate(contents):
            archive.writestr(zipfile.ZipInfo(f"{i}.pickle"), content, zipfile.ZIP_DEFLATED)
    return made.getvalue()


CONTAINERS = PLAIN | {
    "gzip": gzip.compress(PICKLED, mtime=0),
    "html": html(PICKLED),
    "zip": zipped(PICKLED),
    "one of several": pickle.dumps({"rank": 0, "snapshot": RICH}, 4),
}


def verdict(path: Path, content: bytes) -> str:
    """Run the whole analysis of a file: "read", or the name of the error that is ours."""
    write_anew(path, content)
    try:
        snapconv.load(path).report()
    except SnapconvError as error:
        return type(error).__name__
    return "read"
