"""Profiles of a moment: speedscope, folded stacks and pprof, and stacks that a file shares too often."""

import gzip
import json
import pickle
import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest

import snapconv
from snapconv.answers.moments import find_moment, parse_moment
from snapconv.answers.views.live_stacks import find_live_stacks
from snapconv.cli.app import main
from snapconv.writers.exports.profiles import with_short_stacks
from tests.builders import MIB, TraceBuilder, frame

FIXTURES = Path(__file__).parents[4] / "fixtures"
SOURCE = FIXTURES / "training_step.pickle"
FORMATS = ("folded", "speedscope", "pprof")


def exported(tmp_path, name, *arguments, source=SOURCE):
    output = tmp_path / f"out.{name}"
    assert main(["export", str(source), "--format", name, "-o", str(output), "--quiet", *arguments]) == 0
    return output


def folded(path):
    """Bytes by stack, as a program that draws flame graphs reads a line: up to its last space."""
    rows = (line.rpartition(" ") for line in path.read_text(encoding="utf-8").splitlines())
    return {tuple(stack.split(";")): int(n_bytes) for stack, _, n_bytes in rows}


def wire_fields(content):
    """The fields of a protobuf message as (number, value), by the wire format alone."""
    at = 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = content[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(content):
        key = varint()
        if key & 7 == 0:
            yield key >> 3, varint()
            continue
        assert key & 7 == 2, "a kind of field that no profile of ours has"
        length = varint()
        yield key >> 3, content[at : at + length]
        at += length


def numbers(packed):
    """The integers of a packed field."""
    found, value, shift = [], 0, 0
    for byte in packed:
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            found.append(value)
            value = shift = 0
    return found


def pprof(path):
    """Bytes and blocks by stack (outermost first) and category, as proto/profile.proto of pprof has them."""
    fields = list(wire_fields(gzip.decompress(path.read_bytes())))
    texts = [value.decode() for number, value in fields if number == 6]
    assert texts[0] == ""
    functions = {}
    for number, value in fields:
        if number == 5:
            one = dict(wire_fields(value))
            functions[one[1]] = (texts[one[2]], texts[one[4]])
    locations = {}
    for number, value in fields:
        if number == 4:
            one = dict(wire_fields(value))
            line = dict(wire_fields(one[4]))
            locations[one[1]] = (*functions[line[1]], line[2])
    found = []
    for number, value in fields:
        if number == 2:
            one = dict(wire_fields(value))
            stack = tuple(locations[i] for i in reversed(numbers(one[1])))
            label = dict(wire_fields(one[3]))
            assert texts[label[1]] == "category"
            found.append((stack, texts[label[2]], *numbers(one[2])))
    types = [tuple(texts[i] for _, i in wire_fields(value)) for number, value in fields if number == 1]
    assert types == [("inuse_objects", "count"), ("inuse_space", "bytes")]
    return found


def total(path, name):
    if name == "folded":
        return sum(folded(path).values())
    if name == "pprof":
        return sum(n_bytes for _, _, _, n_bytes in pprof(path))
    whole = json.loads(path.read_text())["profiles"][0]
    assert whole["endValue"] == sum(whole["weights"])
    return whole["endValue"]


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("moment", ["peak", "iteration:0", "100", "end", "start"])
def test_a_profile_sums_to_the_allocated_bytes_of_its_moment(tmp_path, name, moment):
    session = snapconv.load(SOURCE)
    (state,) = session.at(moment)
    assert total(exported(tmp_path, name, "--at", moment), name) == state.allocated_bytes


def two_stacks():
    """1,024 bytes by b() in a(), 512 twice by a() itself, and 512 without a stack; one was walked in C++."""
    outer = frame("a", "/home/me/project/a.py", 3)
    inner = frame("b; c", "/home/me/project/b.py", 0)
    native = frame("at::empty", "??", 0)
    walk = [
        frame("torch::unwind::unwind()", "??", 0),
        frame("torch::CapturedTraceback::gather(bool)", "??", 0),
    ]
    trace = TraceBuilder().segment(2 * MIB).alloc(1024, frames=[*walk, native, inner, outer])
    trace.alloc(512, frames=[outer]).alloc(512, frames=[outer])
    return trace.alloc(512, frames=[]).snapshot()


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "two_stacks.pickle"
    path.write_bytes(pickle.dumps(two_stacks()))
    return path


def test_folded_lines_are_outermost_first_with_no_semicolon_in_a_name(tmp_path, source):
    assert folded(exported(tmp_path, "folded", source=source)) == {
        ("a (a.py:3)", "b, c (b.py)", "at::empty"): 1024,
        ("a (a.py:3)",): 1024,
        ("[no stack recorded]",): 512,
    }


def test_without_cpp_frames_their_bytes_are_those_of_the_frame_that_called_them(tmp_path, source):
    found = folded(exported(tmp_path, "folded", "--no-cpp-frames", source=source))
    assert found == {
        ("a (a.py:3)", "b, c (b.py)"): 1024,
        ("a (a.py:3)",): 1024,
        ("[no stack recorded]",): 512,
    }


def test_pprof_has_files_and_lines_as_recorded_and_the_number_of_blocks(tmp_path, source):
    found = {
        stack: (n, n_bytes) for stack, _, n, n_bytes in pprof(exported(tmp_path, "pprof", source=source))
    }
    a, b = ("a", "/home/me/project/a.py", 3), ("b; c", "/home/me/project/b.py", 0)
    assert found == {
        (a, b, ("at::empty", "??", 0)): (1, 1024),
        (a,): (2, 1024),
        (("[no stack recorded]", "", 0),): (1, 512),
    }


def test_pprof_has_the_category_of_every_sample(tmp_path):
    session = snapconv.load(SOURCE)
    (state,) = session.at("peak")
    found = Counter()
    for _, category, _, n_bytes in pprof(exported(tmp_path, "pprof")):
        found[category] += n_bytes
    assert found == {row.category: row.block_bytes for row in state.categories if row.n_allocations}


def test_pprof_itself_reads_the_same_bytes_by_function_and_by_category(tmp_path):
    if shutil.which("go") is None:
        pytest.skip("there is no Go with its pprof")
    profile = exported(tmp_path, "pprof", "--no-cpp-frames")

    def pprof_says(*arguments):
        command = ["go", "tool", "pprof", "-unit=bytes", "-nodefraction=0", "-nodecount=100000", *arguments]
        done = subprocess.run([*command, str(profile)], capture_output=True, text=True, check=True)
        return done.stdout

    (state,) = snapconv.load(SOURCE).at()
    top = pprof_says("-top")
    assert f"of {state.allocated_bytes}B total" in top
    rows = re.findall(r"^ *(\d+)B?(?: +\S+){4} +(.+)$", top, re.MULTILINE)
    expected = Counter()
    for stack, _, _, n_bytes in pprof(profile):
        expected[stack[-1][0]] += n_bytes
    assert {name: int(n_bytes) for n_bytes, name in rows if int(n_bytes)} == dict(expected)
    activations = next(row for row in state.categories if row.category == "activation")
    shown = pprof_says("-top", "-tagfocus=activation")
    assert f"Showing nodes accounting for {activations.block_bytes}B" in shown


def test_speedscope_has_what_its_schema_requires(tmp_path):
    document = json.loads(exported(tmp_path, "speedscope").read_text())
    assert document["$schema"] == "https://www.speedscope.app/file-format-schema.json"
    frames = document["shared"]["frames"]
    assert all(isinstance(frame["name"], str) for frame in frames)
    for profile in document["profiles"]:
        assert (profile["type"], profile["unit"], profile["startValue"]) == ("sampled", "bytes", 0)
        assert len(profile["samples"]) == len(profile["weights"])
        assert {row for sample in profile["samples"] for row in sample} <= set(range(len(frames)))
    whole, *parts = document["profiles"]
    assert sum(part["endValue"] for part in parts) == whole["endValue"]


def test_the_live_stacks_of_a_moment_are_the_largest_first():
    session = snapconv.load(SOURCE)
    (analysis,) = session.devices
    moment = find_moment(analysis, parse_moment("peak"))
    found = find_live_stacks(analysis, moment)
    sizes = [stack.block_bytes for stack in found.stacks]
    assert sizes == sorted(sizes, reverse=True)
    assert sum(stack.n_blocks for stack in found.stacks) == analysis.allocations.live_at(moment.event).sum()


@pytest.mark.parametrize("name", FORMATS)
def test_the_same_moment_gives_the_same_bytes(tmp_path, name):
    first = exported(tmp_path, name).read_bytes()
    assert exported(tmp_path, name, "--force").read_bytes() == first


@pytest.mark.parametrize("name", FORMATS)
def test_a_device_on_which_nothing_is_live_has_an_empty_profile(tmp_path, name):
    assert total(exported(tmp_path, name, source=FIXTURES / "empty_snapshot.pickle"), name) == 0


def folded_short(tmp_path, trace):
    file, output = trace.write(tmp_path / "x.pickle"), tmp_path / "out.txt"
    assert main(["export", str(file), "--format", "folded", "-o", str(output)]) == 0
    lines = [line.rpartition(" ") for line in output.read_text().splitlines()]
    return {stack: int(n_bytes) for stack, _, n_bytes in lines}, output.stat().st_size, file.stat().st_size


def test_a_stack_as_jobs_have_it_is_whole(tmp_path, capsys):
    stack = [frame("f" * 300, "/home/me/project/net.py", i + 1) for i in range(200)]
    found, *_ = folded_short(tmp_path, TraceBuilder().segment(2 * MIB).alloc(512, frames=stack))
    (whole,) = found
    assert whole.split(";") == [f"{'f' * 300} (net.py:{200 - i})" for i in range(200)]
    assert "left-out" not in capsys.readouterr().err


def test_of_deep_stacks_that_share_their_frames_the_ends_are_written(tmp_path, capsys):
    shared = [frame(f"f{i}", "/home/me/project/" + "a" * 100, i + 1) for i in range(2000)]
    trace = TraceBuilder().segment(40 * MIB)
    for i in range(60):
        trace.alloc(512, frames=[*shared, frame("main", "/home/me/project/train.py", i + 1)])
    found, n_written, n_bytes = folded_short(tmp_path, trace)
    assert n_written <= 20 * n_bytes + MIB
    assert sum(found.values()) == 60 * 512
    assert len(found) == 60  # whose outermost lines are different
    assert all("[frames left out]" in stack for stack in found)
    assert "note: left-out" in capsys.readouterr().err


def test_where_one_line_for_each_end_is_too_much_only_the_bytes_remain(tmp_path):
    name = "n" * 100_000
    trace = TraceBuilder().segment(40 * MIB)
    for i in range(8):
        trace.alloc(512, frames=[frame(name, "/home/me/project/net.py", i + 1)])
    found, n_written, n_bytes = folded_short(tmp_path, trace)
    assert n_written <= 20 * n_bytes + MIB
    assert sum(found.values()) == 8 * 512


def test_the_bound_grows_with_the_file(tmp_path):
    import snapconv
    from snapconv.answers.moments import END, find_moment
    from snapconv.answers.views.live_stacks import find_live_stacks

    stack = [frame("f" * 300, "/home/me/project/net.py", i + 1) for i in range(3000)]
    session = snapconv.load(TraceBuilder().segment(2 * MIB).alloc(512, frames=stack).write(tmp_path / "x"))
    (analysis,) = session.devices
    moment = find_moment(analysis, END)
    found = find_live_stacks(analysis, moment)
    n_frames = [len(with_short_stacks(found, n)[0].stacks[0].frames) for n in (0, 10_000, 1_000_000)]
    assert n_frames[0] < len(stack) == n_frames[2]
