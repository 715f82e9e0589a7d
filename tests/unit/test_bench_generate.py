"""The benchmark's generated snapshots, replayed one event at a time by a slow allocator check of its own."""

import json
import pickle
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

GENERATE = Path(__file__).parents[2] / "scripts" / "bench" / "generate.py"
MIB = 1024 * 1024
N_EVENTS = 10_000


class PlainUnpickler(pickle.Unpickler):
    """Loads plain containers only."""

    def find_class(self, module, name):
        raise AssertionError(f"a snapshot needs no {module}.{name}")


def run_generator(path, stacks, seed=0):
    options = ["--events", str(N_EVENTS), "--stacks", stacks, "--seed", str(seed)]
    subprocess.run([sys.executable, str(GENERATE), *options, str(path)], check=True, capture_output=True)
    return path


@pytest.fixture(scope="module", params=["all", "python"])
def stacks(request):
    return request.param


@pytest.fixture(scope="module")
def generated(stacks, tmp_path_factory):
    return run_generator(tmp_path_factory.mktemp("generated") / "sample.pickle", stacks)


@pytest.fixture(scope="module")
def snapshot(generated):
    with generated.open("rb") as file:
        return PlainUnpickler(file).load()


@pytest.fixture(scope="module")
def trace(snapshot):
    (trace,) = snapshot["device_traces"]
    return trace


@pytest.fixture(scope="module")
def truth(generated):
    return json.loads(generated.with_suffix(".truth.json").read_text(encoding="utf-8"))


def segment_size(rounded):
    if rounded <= MIB:
        return 2 * MIB
    if rounded < 10 * MIB:
        return 20 * MIB
    return -(-rounded // (2 * MIB)) * 2 * MIB


class SlowReplay:
    """Segments and their live blocks as intervals; every event must be one that the allocator may make."""

    def __init__(self):
        self.segments = {}  # address -> (end, is it small?)
        self.live = defaultdict(dict)  # segment address -> {block address: (end, requested bytes)}
        self.pending = None
        self.allocated = self.requested = self.reserved = 0
        self.totals = [(0, 0, 0)]

    def apply(self, event):
        getattr(self, event["action"])(event["addr"], event["size"])
        self.totals.append((self.allocated, self.requested, self.reserved))

    def segment_of(self, addr):
        (start,) = [start for start, (end, _) in self.segments.items() if start <= addr < end]
        return start

    def gaps(self, start):
        """Free intervals of a segment, in order; overlapping blocks would make one negative."""
        gap_start = start
        for addr, (end, _) in sorted(self.live[start].items()):
            assert gap_start <= addr
            if gap_start < addr:
                yield gap_start, addr - gap_start
            gap_start = end
        segment_end = self.segments[start][0]
        assert gap_start <= segment_end
        if gap_start < segment_end:
            yield gap_start, segment_end - gap_start

    def segment_alloc(self, addr, size):
        assert all(addr + size <= start or end <= addr for start, (end, _) in self.segments.items())
        self.segments[addr] = (addr + size, size == 2 * MIB)
        self.reserved += size
        self.pending = addr

    def alloc(self, addr, size):
        rounded = -(-size // 512) * 512
        is_small = rounded <= MIB
        fitting = [
            (length, gap_addr)
            for start, (_, is_small_segment) in self.segments.items()
            if is_small_segment == is_small
            for gap_addr, length in self.gaps(start)
            if length >= rounded
        ]
        length, best_addr = min(fitting)
        assert addr == best_addr
        if self.pending is not None:
            expected = segment_size(rounded)
            assert (fitting, length) == ([(expected, self.pending)], expected)
            self.pending = None
        is_split = length - rounded >= 512 if is_small else length - rounded > MIB
        block_bytes = rounded if is_split else length
        self.live[self.segment_of(addr)][addr] = (addr + block_bytes, size)
        self.allocated += block_bytes
        self.requested += size

    def free_requested(self, addr, size):
        assert self.live[self.segment_of(addr)][addr][1] == size
        self.pending_free = addr

    def free_completed(self, addr, size):
        assert addr == self.pending_free
        end, requested = self.live[self.segment_of(addr)].pop(addr)
        self.allocated -= end - addr
        self.requested -= requested
        assert requested == size


@pytest.fixture(scope="module")
def replay(trace):
    replay = SlowReplay()
    for event in trace:
        replay.apply(event)
    return replay


def test_the_file_is_what_pickle_would_write(generated, snapshot):
    assert pickle.dumps(snapshot, protocol=4) == generated.read_bytes()


def test_the_keys_are_torchs_in_torchs_order(snapshot, trace):
    assert list(snapshot) == ["segments", "device_traces", "allocator_settings", "external_annotations"]
    entry = ["action", "addr", "size", "stream", "time_us", "compile_context", "user_metadata", "frames"]
    assert {tuple(event) for event in trace} == {tuple(entry)}
    assert {tuple(sorted(frame)) for event in trace for frame in event["frames"]} == {
        ("filename", "line", "name")
    }


def test_blocks_tile_their_segments(snapshot):
    for segment in snapshot["segments"]:
        addr = segment["address"]
        for block in segment["blocks"]:
            assert block["address"] == addr
            addr += block["size"]
        assert addr == segment["address"] + segment["total_size"]
        live = [block for block in segment["blocks"] if block["state"] == "active_allocated"]
        assert segment["allocated_size"] == segment["active_size"] == sum(block["size"] for block in live)
        assert segment["requested_size"] == sum(block["requested_size"] for block in live)


def test_the_replay_ends_in_the_final_segments(snapshot, replay):
    for segment in snapshot["segments"]:
        start = segment["address"]
        assert replay.segments[start] == (start + segment["total_size"], segment["segment_type"] == "small")
        live = {
            block["address"]: (block["address"] + block["size"], block["requested_size"])
            for block in segment["blocks"]
            if block["state"] == "active_allocated"
        }
        assert live == replay.live[start]
        free = [(b["address"], b["size"]) for b in segment["blocks"] if b["state"] == "inactive"]
        assert free == list(replay.gaps(start))
    assert len(snapshot["segments"]) == len(replay.segments)


def test_the_truth_equals_a_recount(replay, truth, trace):
    allocated, requested, reserved = zip(*replay.totals, strict=True)
    for name, totals in [("allocated", allocated), ("requested", requested), ("reserved", reserved)]:
        stated = [truth[f"{moment}_{name}_bytes"] for moment in ("start", "peak", "end")]
        assert stated == [totals[0], max(totals), totals[-1]]
    assert truth["peak_event"] == allocated.index(max(allocated)) - 1
    assert truth["events"] == len(trace)
    assert truth["steps"] >= 3
    assert N_EVENTS - 1 <= len(trace) <= N_EVENTS


def test_some_blocks_are_larger_than_the_rounded_request(replay):
    blocks = [(addr, block) for live in replay.live.values() for addr, block in live.items()]
    assert any(end - addr > -(-size // 512) * 512 for addr, (end, size) in blocks)


def test_a_list_of_frames_is_shared_as_torch_shares_it(snapshot, trace):
    actions = defaultdict(list)
    for event in trace:
        actions[id(event["frames"])].append(event["action"])
    kinds = {("alloc",), ("segment_alloc", "alloc"), ("free_requested", "free_completed")}
    assert {tuple(shared) for shared in actions.values()} == kinds
    blocks = [block for segment in snapshot["segments"] for block in segment["blocks"]]
    live = [block for block in blocks if block["state"] == "active_allocated"]
    alloc_of = {event["addr"]: event["frames"] for event in trace if event["action"] == "alloc"}
    assert all(block["frames"] is alloc_of[block["address"]] for block in live)
    assert len({id(block["frames"]) for block in blocks if block["state"] == "inactive"}) == 1
    assert len({id(event["compile_context"]) for event in trace}) == len(trace)


def test_frames_are_shared_between_stacks(trace, truth):
    frames = {id(frame): tuple(frame.values()) for event in trace for frame in event["frames"]}
    lists = {id(event["frames"]): event["frames"] for event in trace}
    stacks = {tuple(id(frame) for frame in frames) for frames in lists.values()}
    assert len(frames) < 1_000
    assert truth["distinct_stacks"] - 1 <= len(stacks) <= truth["distinct_stacks"]


def test_backward_has_no_python_frames(stacks, trace):
    lists = {id(event["frames"]): event["frames"] for event in trace}.values()
    is_python = {id(frames): [frame["filename"].endswith(".py") for frame in frames] for frames in lists}
    if stacks == "python":
        assert all(all(flags) for flags in is_python.values())
        assert not all(is_python.values())
        return
    assert all(is_python.values())
    for frames in lists:
        names = [frame["name"] for frame in frames]
        in_backward = any("Engine::thread_main" in name for name in names)
        assert in_backward != any(is_python[id(frames)])
        if any("Backward0::apply" in name for name in names):
            assert in_backward


def test_time_does_not_run_backwards(snapshot, trace):
    times = [event["time_us"] for event in trace]
    assert times == sorted(times)
    annotations = snapshot["external_annotations"]
    marks = [(mark["name"].split("#")[0], mark["stage"]) for mark in annotations]
    stages = [("Optimizer.step", "START"), ("Optimizer.step", "END")]
    stages += [("Optimizer.zero_grad", "START"), ("Optimizer.zero_grad", "END")]
    assert marks == (stages * len(marks))[: len(marks)]
    assert times[0] < annotations[0]["time_us"] <= annotations[-1]["time_us"] <= times[-1]


def test_the_same_seed_gives_the_same_bytes(generated, stacks, tmp_path):
    again = run_generator(tmp_path / "again.pickle", stacks)
    other = run_generator(tmp_path / "other.pickle", stacks, seed=1)
    assert again.read_bytes() == generated.read_bytes()
    assert other.read_bytes() != generated.read_bytes()


def test_an_irregular_snapshot_is_one_that_holds_its_own_live_blocks(tmp_path):
    path = tmp_path / "irregular.pickle"
    subprocess.run([sys.executable, str(GENERATE.with_name("irregular.py")), "3000", str(path)], check=True)
    with path.open("rb") as file:
        snapshot = PlainUnpickler(file).load()
    (events,) = snapshot["device_traces"]
    live = {}
    for event in events:
        if event["action"] == "alloc":
            live[event["addr"]] = event["size"]
        elif event["action"] == "free_requested":
            assert live.pop(event["addr"]) == event["size"]
    blocks = [block for segment in snapshot["segments"] for block in segment["blocks"]]
    assert 2999 <= len(events) <= 3001
    assert {b["address"]: b["size"] for b in blocks if b["state"] == "active_allocated"} == live
