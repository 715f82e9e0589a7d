"""The verdict on a file: the first thing that somebody should look at, and the command that shows it."""

import lzma
import pickle
from pathlib import Path

import pytest

import snapconv
from snapconv.answers.advice.findings import advise, goal_of
from snapconv.answers.peak import CategoryTotal
from snapconv.answers.verdict import _shares, find_verdict
from snapconv.cli.app import main
from snapconv.writers.text.moment import verdict_lines
from tests.builders import MIB, TraceBuilder, frame
from tests.metadata_builder import metadata

ROOT = Path(__file__).parents[3]
FIXTURES, SHARED = ROOT / "fixtures", ROOT.parent / "shared"
FILES = [*sorted(FIXTURES.glob("*.pickle")), *sorted((SHARED / "snapshots").glob("*.pickle"))]
# One in ten: all take two minutes.
RECORDINGS = sorted((SHARED / "corpus").glob("*.pickle.xz"))[::10]
OTHER = [frame("load", "/home/me/project/data.py", 3)]


def verdict_of(source, tmp_path=None, **fields):
    if isinstance(source, TraceBuilder):
        path = tmp_path / "snapshot.pickle"
        path.write_bytes(pickle.dumps(source.snapshot(**fields)))
        source = path
    session = snapconv.load(source)
    return find_verdict(session.devices[0])


def causes(found):
    return [
        (cause.block_bytes // MIB, cause.n_allocations, cause.line.place) for cause in found.causes
    ]


def test_without_a_problem_the_verdict_is_the_peak_and_its_largest_causes(tmp_path):
    trace = (
        TraceBuilder().segment(20 * MIB).alloc(3 * MIB).alloc(2 * MIB).alloc(8 * MIB, frames=OTHER)
    )
    found = verdict_of(trace, tmp_path)
    assert (found.about, found.command) == ("peak", "tree")  # advise would find nothing
    assert found.sentence == "peak 13.00 MiB: 100 % unknown; PyTorch reserved at most 20.00 MiB"
    assert causes(found) == [(8, 1, "data.py:3"), (5, 2, "train.py:7")]


def test_a_peak_that_the_segments_contradict_is_called_approximate(tmp_path, capsys):
    snapshot = TraceBuilder().segment(20 * MIB).alloc(3 * MIB).alloc(16 * MIB).snapshot()
    snapshot["segments"][0]["total_size"] = 4 * MIB  # as where files of two runs were put together
    snapshot["segments"][0]["blocks"] = snapshot["segments"][0]["blocks"][:1]
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(snapshot))
    sentence = verdict_of(path).sentence
    assert "peak about 19.00 MiB" in sentence
    assert sentence.endswith("approximate, as its segments have only 4.00 MiB")
    assert main(["advise", str(path)]) == 0
    assert "the peak is about 19.00 MiB allocated\n" in capsys.readouterr().out


def test_a_failed_request_comes_first(tmp_path):
    trace = TraceBuilder().segment(20 * MIB).alloc(18 * MIB).oom(30 * MIB, 1 * MIB)
    found = verdict_of(trace, tmp_path)
    assert (found.about, found.command) == ("oom", "oom")
    assert (
        "30.00 MiB more were needed, 1.00 MiB were free on the device (18.00 MiB in use)"
        in found.sentence
    )
    assert causes(found) == [(18, 1, "train.py:7")]


def test_growth_comes_before_the_peak():
    """1.50 MiB in each of six iterations, as the program of the fixture keeps them."""
    path = FIXTURES / "growing.pickle"
    found = verdict_of(path)
    assert (found.about, found.command) == ("growth", "growth")
    assert found.sentence == "memory grows by 1.50 MiB per iteration, most of it at metrics.py:14"
    assert [(cause.block_bytes, cause.line.place) for cause in found.causes] == [
        (9 * MIB, "metrics.py:14")
    ]
    (fault,) = advise(snapconv.load(path).devices[0]).faults
    assert (fault.what, fault.is_certain) == (
        "Each iteration adds 1.50 MiB at metrics.py:14.",
        False,
    )
    assert fault.saved_bytes == 7.5 * MIB  # at the peak, which is within the last iteration


def test_without_any_stack_the_next_command_records_them():
    found = verdict_of(FIXTURES / "no_stacks.pickle")
    *_, command = verdict_lines(found, "a b.pickle")
    assert (
        command == "  next: snapconv record train.py  (records the stacks, which this file lacks)"
    )


@pytest.mark.parametrize(
    ("reserved", "total", "about", "n_also"),
    [
        (1000, 1100, "fragmentation", 0),
        (1000, 2000, "peak", 1),
        (1000, None, "peak", 1),
        (850, 900, "peak", 0),
    ],
)
def test_much_that_is_never_used_comes_first_only_where_the_device_is_full(
    tmp_path, reserved, total, about, n_also
):
    devices = (
        [{"device": 0, "total_bytes": total * MIB, "max_memory_allocated": 1}] if total else []
    )
    trace = TraceBuilder().segment(reserved * MIB).alloc(600 * MIB)
    found = verdict_of(trace, tmp_path, snapconv=metadata(devices=devices))
    assert (found.about, len(found.also)) == (about, n_also)
    says = (
        "PyTorch reserved 1000.00 MiB and used at most 600.00 MiB. "
        "While it used most, 400.00 MiB in partly used segments lay unused"
    )
    assert any(says in text for text in (found.sentence, *found.also)) == (reserved == 1000)


def test_memory_that_is_reserved_only_after_the_most_use_is_unused_at_its_event(tmp_path):
    trace = TraceBuilder().segment(300 * MIB).alloc(300 * MIB)
    trace.free(trace.events[-1]["addr"]).segment(700 * MIB)
    (unused,) = verdict_of(trace, tmp_path).also
    assert unused.endswith(
        f"At event {len(trace.events) - 1} 1000.00 MiB in empty segments "
        "(`empty_cache()` returns them) lay unused"
    )


def test_what_the_program_returns_first_was_unused_before_the_first_event(tmp_path):
    trace = TraceBuilder().segment(700 * MIB, traced=False)
    segment = trace.segments.pop()
    end = segment["address"] + segment["total_size"]
    trace.event("segment_free", addr=segment["address"], size=segment["total_size"])
    trace.segment(300 * MIB, address=end).alloc(300 * MIB)
    (unused,) = verdict_of(trace, tmp_path).also
    assert "used at most 300.00 MiB in this trace. Before the first event 700.00 MiB in" in unused


def test_a_peak_is_that_of_the_trace_where_this_is_a_part_of_the_run(tmp_path):
    trace = TraceBuilder().segment(20 * MIB, traced=False).alloc(MIB, traced=False).alloc(MIB)
    assert verdict_of(trace, tmp_path).sentence.startswith("peak 2.00 MiB in this trace: ")


def test_unknown_comes_last_however_much_it_is():
    sizes = {"unknown": 50, "weight": 20, "optimizer_state": 41, "input": 1}
    rows = [
        CategoryTotal(name, 1, 0, n * MIB, likely_bytes=MIB * 20 * (name == "weight"))
        for name, n in sizes.items()
    ]
    assert _shares(rows, 112 * MIB) == ": 37 % optimizer state, 18 % weights (likely), 45 % unknown"


def test_pinned_memory_and_empty_files_have_a_verdict_too():
    assert verdict_of(FIXTURES / "host_only.pickle").device == -1
    assert verdict_of(FIXTURES / "empty_snapshot.pickle").command == "info"


@pytest.mark.parametrize("path", [*FILES, *RECORDINGS], ids=lambda path: path.name)
def test_the_first_fault_is_that_of_advise_and_advise_is_named_only_where_it_finds_something(
    path, tmp_path
):
    if path.suffix == ".xz":
        (tmp_path / path.stem).write_bytes(lzma.decompress(path.read_bytes()))
        path = tmp_path / path.stem
    for analysis in snapconv.load(path).devices:
        found, goal = find_verdict(analysis), goal_of(analysis, capacity=None, save=None)
        asked, unasked = (advise(analysis, goal_bytes=one) for one in (goal, None))
        for advice in (asked, unasked):
            first = [(one.what.removesuffix("."), one.held_bytes) for one in advice.faults]
            assert list(found.faults.items())[:1] == first[:1]
        assert found.command != "advise" or unasked.findings
        (also,) = [
            text for text in found.also if text.startswith(("fault: ", "likely fault: "))
        ] or [""]
        assert all(
            also.startswith(f"{'' if one.is_certain else 'likely '}fault: {one.what[:-1]}")
            and one.how[0] in also
            for one in asked.faults[:1]
        )


ENGINE = [
    frame(
        "torch::autograd::Engine::evaluate_function(std::shared_ptr<torch::autograd::GraphTask>&)",
        "engine.cpp",
        0,
    )
]
LOSS = [
    frame("at::_ops::cross_entropy_loss::call(at::Tensor const&)", "ops.cpp", 0),
    frame("cross_entropy", "/usr/lib/python3/site-packages/torch/nn/functional.py", 3030),
    frame("main", "/home/me/project/train.py", 43),
]


def node(name):
    return [frame(f"torch::autograd::generated::{name}::apply()", "??", 0), *ENGINE]


def loss_at(line):
    return [
        frame("at::_ops::_log_softmax::call(at::Tensor const&, long, bool)", "ops.cpp", 0),
        *LOSS[:2],
        frame("main", "/home/me/project/train.py", line),
    ]


DIVIDED = [
    frame("at::_ops::div_Tensor::call(at::Tensor const&, at::Tensor const&)", "ops.cpp", 0),
    frame("main", "/home/me/project/train.py", 50),
]


@pytest.mark.parametrize(
    ("forward", "backward", "label"),
    [
        # The only line that ran the node's operation, though another one ran later.
        (
            [loss_at(43), DIVIDED],
            [(8, "LogSoftmaxBackward0")],
            "backward of cross_entropy (train.py:43)",
        ),
        # It may be either line.
        ([loss_at(43), loss_at(44)], [(8, "LogSoftmaxBackward0")], "backward of log_softmax"),
        # A view allocates nothing in the forward, and `div` may work in place at another line.
        ([loss_at(43), DIVIDED], [(8, "SelectBackward0")], "backward of select"),
        ([loss_at(43), DIVIDED], [(8, "DivBackward0")], "backward of div"),
        (
            [DIVIDED],
            [(4, "MeanBackward0"), (8, "PowBackward0")],
            "backward of pow and mean",
        ),
        (
            [DIVIDED],
            [(4, "MeanBackward0"), (8, "PowBackward0"), (5, "ExpBackward0")],
            "backward of pow and exp and 1 more",
        ),
        ([DIVIDED], [(99, "PowBackward0"), (1, "MeanBackward0")], "backward of pow and mean"),
        ([DIVIDED], [(250, "PowBackward0"), (1, "MeanBackward0")], "backward of pow"),
        # The engine itself adds gradients: what was differentiated does not show.
        ([loss_at(43)], [(8, None)], "backward (line not known)"),
        ([loss_at(43)], [(8, None), (4, "PowBackward0")], "backward (line not known)"),
    ],
)
def test_memory_of_library_code_in_backward_is_named_by_its_nodes(
    tmp_path, forward, backward, label
):
    """The project's last line before a backward need not be what is differentiated."""
    trace = TraceBuilder().segment(256 * MIB)
    for stack in forward:
        trace.alloc(MIB // 2, frames=stack)
    for n_mib, name in backward:
        trace.alloc(n_mib * MIB, frames=node(name) if name else ENGINE)
    cause = verdict_of(trace, tmp_path).causes[0]
    assert (cause.block_bytes, cause.line) == (sum(n for n, _ in backward) * MIB, None)
    assert cause.library == label


def test_as_many_causes_are_shown_as_were_requested(tmp_path):
    trace = TraceBuilder().segment(40 * MIB)
    for number in range(5):
        trace.alloc((number + 2) * MIB, frames=[frame("load", "/home/me/project/data.py", number)])
    path = trace.write(tmp_path / "snapshot.pickle")
    device = snapconv.load(path).devices[0]
    assert [len(find_verdict(device, n_causes=n).causes) for n in (1, 3, 5)] == [1, 3, 5]
