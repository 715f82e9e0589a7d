"""Folded stacks are in proportion to the file: hand-made files that share one stack or one name."""

from snapconv.cli.app import main
from snapconv.writers.exports.short_stacks import with_short_stacks
from tests.builders import MIB, TraceBuilder, frame


def folded(tmp_path, trace):
    file, output = trace.write(tmp_path / "x.pickle"), tmp_path / "out.txt"
    assert main(["export", str(file), "--format", "folded", "-o", str(output)]) == 0
    lines = [line.rpartition(" ") for line in output.read_text().splitlines()]
    return {stack: int(n_bytes) for stack, _, n_bytes in lines}, output.stat().st_size, file.stat().st_size


def test_a_stack_as_jobs_have_it_is_whole(tmp_path, capsys):
    stack = [frame("f" * 300, "/home/me/project/net.py", i + 1) for i in range(200)]
    found, *_ = folded(tmp_path, TraceBuilder().segment(2 * MIB).alloc(512, frames=stack))
    (whole,) = found
    assert whole.split(";") == [f"{'f' * 300} (net.py:{200 - i})" for i in range(200)]
    assert "left-out" not in capsys.readouterr().err


def test_of_deep_stacks_that_share_their_frames_the_ends_are_written(tmp_path, capsys):
    shared = [frame(f"f{i}", "/home/me/project/" + "a" * 100, i + 1) for i in range(2000)]
    trace = TraceBuilder().segment(40 * MIB)
    for i in range(60):
        trace.alloc(512, frames=[*shared, frame("main", "/home/me/project/train.py", i + 1)])
    found, n_written, n_bytes = folded(tmp_path, trace)
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
    found, n_written, n_bytes = folded(tmp_path, trace)
    assert n_written <= 20 * n_bytes + MIB
    assert sum(found.values()) == 8 * 512


def test_the_bound_grows_with_the_file(tmp_path):
    import snapconv
    from snapconv.answers.live_stacks import find_live_stacks
    from snapconv.answers.moments import END, find_moment

    stack = [frame("f" * 300, "/home/me/project/net.py", i + 1) for i in range(3000)]
    session = snapconv.load(TraceBuilder().segment(2 * MIB).alloc(512, frames=stack).write(tmp_path / "x"))
    (analysis,) = session.devices
    moment = find_moment(analysis, END)
    found = find_live_stacks(analysis, moment)
    n_frames = [len(with_short_stacks(found, n)[0].stacks[0].frames) for n in (0, 10_000, 1_000_000)]
    assert n_frames[0] < len(stack) == n_frames[2]
