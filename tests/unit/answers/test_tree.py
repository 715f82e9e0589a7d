"""The tree of live memory: hand-counted sums, and what every tree has."""

import pickle
from pathlib import Path

import pytest

import snapconv
from snapconv.answers.tree_levels import LEVELS
from tests.builders import MIB, START_US, TraceBuilder, frame

FIXTURES = Path(__file__).parents[3] / "fixtures"
MAIN = frame("main", "/home/me/project/train.py", 9)
FORWARD = frame("forward", "/home/me/project/model.py", 5)
LINEAR = frame("linear", "/site-packages/torch/nn/functional.py", 100)


def tree_of(tmp_path, trace, **options):
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(trace.snapshot()))
    (tree,) = snapconv.load(path).tree("end", **options)
    return tree


def rows(tree):
    return [
        (n.depth, n.name, n.block_bytes // MIB, n.self_bytes // MIB, n.n_blocks) for n in tree.nodes
    ]


def a_model():
    trace = TraceBuilder().segment(40 * MIB)
    trace.alloc(MIB, frames=[LINEAR, FORWARD, MAIN]).alloc(2 * MIB, frames=[FORWARD, MAIN])
    trace.alloc(4 * MIB, frames=[MAIN]).alloc(8 * MIB, frames=[LINEAR])
    return trace.alloc(16 * MIB, frames=[])


def test_a_line_has_what_it_called_and_apart_what_is_its_own(tmp_path):
    assert rows(tree_of(tmp_path, a_model())) == [
        (0, "no stack recorded", 16, 16, 1),
        (0, "library code only", 8, 8, 1),
        (0, "train.py:9 in main", 7, 4, 3),
        (1, "model.py:5 in forward", 3, 3, 2),
    ]


def test_all_frames_show_libraries_too(tmp_path):
    found = rows(tree_of(tmp_path, a_model(), all_frames=True))
    assert (2, "/site-packages/torch/nn/functional.py:100 in linear", 1, 1, 1) in found
    assert (0, "/site-packages/torch/nn/functional.py:100 in linear", 8, 8, 1) in found


def test_recursion_is_a_level_for_every_call(tmp_path):
    trace = TraceBuilder().segment(2 * MIB).alloc(MIB, frames=[FORWARD] * 500)
    found = tree_of(tmp_path, trace).nodes
    assert [node.depth for node in found] == list(range(500))
    assert [node.self_bytes for node in found] == [0] * 499 + [MIB]


@pytest.mark.parametrize("by", [*LEVELS, "module,category", "annotation,size"])
@pytest.mark.parametrize(
    "file", ["training_step.pickle", "transformer.capture", "no_stacks.pickle"]
)
def test_every_node_is_itself_and_what_is_below_it(by, file):
    for tree in snapconv.load(FIXTURES / file).tree(by=by):
        roots = sum(node.block_bytes for node in tree.nodes if node.depth == 0)
        assert roots == tree.allocated_bytes > 0
        for number, node in enumerate(tree.nodes):
            below = 0
            for other in tree.nodes[number + 1 :]:
                if other.depth <= node.depth:
                    break
                below += other.block_bytes * (other.depth == node.depth + 1)
            assert node.block_bytes == node.self_bytes + below


def test_modules_of_a_capture_are_within_their_parents():
    (tree,) = snapconv.load(FIXTURES / "transformer.capture").tree(by="module")
    names = {node.name: node for node in tree.nodes}
    assert names["blocks.0"].depth == names["blocks"].depth + 1
    assert (
        names["blocks"].block_bytes == names["blocks.0"].block_bytes + names["blocks.1"].block_bytes
    )


def test_categories_are_the_roots_of_their_lines():
    session = snapconv.load(FIXTURES / "training_step.pickle")
    (tree,), (state,) = session.tree(by="category"), session.at("peak")
    roots = {node.name: node.block_bytes for node in tree.nodes if node.depth == 0}
    assert roots == {row.category: row.block_bytes for row in state.categories if row.n_allocations}


def test_a_tree_that_would_be_many_times_the_file_has_all_memory_and_not_all_lines(tmp_path):
    shared = [frame(f"f{i}", "/home/me/project/deep.py", i + 1) for i in range(2000)]
    trace = TraceBuilder().segment(40 * MIB)
    for i in range(60):
        trace.alloc(512, frames=[*shared, frame("main", "/home/me/project/train.py", i + 1)])
    tree = tree_of(tmp_path, trace)
    size = (tmp_path / "snapshot.pickle").stat().st_size
    assert 0 < tree.n_cut_stacks < 60
    assert 1000 < len(tree.nodes) < (12 * size + (1 << 20)) / 250
    assert sum(node.block_bytes for node in tree.nodes if node.depth == 0) == 60 * 512
    assert sum(node.self_bytes for node in tree.nodes) == 60 * 512


LOAD = frame("load", "/home/me/project/data.py", 3)
START = [frame("_bootstrap", "/usr/lib/python3.12/threading.py", 1030)]
ENGINE = frame("torch::autograd::Engine::thread_init(int)", "??", 0)
ENGINE_MAIN = frame("torch::autograd::Engine::thread_main(std::shared_ptr<T> const&)", "??", 0)
TOP = frame("<module>", "/home/me/project/train.py", 20)


def roots(tmp_path, trace, by):
    tree = tree_of(tmp_path, trace, by=by)
    return {node.name: node.block_bytes // MIB for node in tree.nodes if node.depth == 0}


def test_sizes_streams_and_pools_are_roots_with_their_blocks(tmp_path):
    trace = TraceBuilder().segment(40 * MIB, segment_pool_id=(0, 0))
    trace.alloc(MIB).alloc(MIB).alloc(4 * MIB)
    assert roots(tmp_path, trace, "size") == {
        f"blocks of 1.00 MiB ({MIB} bytes)": 2,
        f"blocks of 4.00 MiB ({4 * MIB} bytes)": 4,
    }
    assert roots(tmp_path, trace, "stream") == {"stream 0": 6}
    assert roots(tmp_path, trace, "pool") == {"default pool": 6}


def test_pools_and_streams_sum_to_those_of_the_summary():
    for file in ("private_pools.pickle", "several_streams.pickle"):
        session = snapconv.load(FIXTURES / file)
        for tree, state in zip(session.tree(by="pool,stream"), session.at(), strict=True):
            pools = sorted(node.block_bytes for node in tree.nodes if node.depth == 1)
            assert pools == sorted(row.block_bytes for row in state.pools)


def test_compiled_regions_are_named_and_what_is_outside(tmp_path):
    trace = TraceBuilder().segment(40 * MIB)
    trace.alloc(MIB, compile_context="0/1").alloc(2 * MIB, compile_context="N/A")
    trace.alloc(4 * MIB, compile_context="0/1")
    assert roots(tmp_path, trace, "compile-context") == {"0/1": 5, "outside compiled code": 2}


def test_annotations_are_nested_as_the_program_nests_them(tmp_path):
    trace = TraceBuilder().segment(40 * MIB)  # event 0
    for n_mib in (1, 2, 4, 8):
        trace.alloc(n_mib * MIB, frames=[MAIN])  # events 1 to 4, a microsecond apart
    times = {"step": (2, 4), "load": (3, 3), "Optimizer.step#SGD.step": (1, 4)}
    rows = [
        {"stage": stage, "name": name, "device": 0, "time_us": START_US + time}
        for name, ends in times.items()
        for stage, time in zip(("START", "END"), ends, strict=True)
    ]
    path = trace.write(tmp_path / "run.pickle", external_annotations=rows)
    (tree,) = snapconv.load(path).tree("end", by="annotation,size")
    shown = [(n.depth, n.name.partition(" (")[0], n.block_bytes // MIB) for n in tree.nodes]
    assert shown[:2] == [(0, "step", 14), (1, "blocks of 8.00 MiB", 8)]
    assert (1, "load", 4) in shown
    assert (0, "outside every annotation", 1) in shown


def test_threads_are_named_by_where_their_stacks_begin(tmp_path):
    trace = TraceBuilder().segment(80 * MIB)
    trace.alloc(MIB, frames=[MAIN, TOP]).alloc(2 * MIB, frames=[LOAD, *START])
    trace.alloc(4 * MIB, frames=[ENGINE_MAIN, ENGINE]).alloc(8 * MIB, frames=[FORWARD])
    trace.alloc(16 * MIB, frames=[])
    assert roots(tmp_path, trace, "thread") == {
        "main thread": 1,
        "thread of data.py: load": 2,
        "autograd engine's thread": 4,
        "thread not known": 24,
    }


def test_levels_stand_in_the_given_order_and_lines_below_them(tmp_path):
    tree = tree_of(tmp_path, a_model(), by="size, stream")
    names = [node.name for node in tree.nodes if node.block_bytes == 4 * MIB]
    assert names == [f"blocks of 4.00 MiB ({4 * MIB} bytes)", "stream 0", "train.py:9 in main"]
    modules = tree_of(tmp_path, a_model(), by="module,stream")
    assert {node.name for node in modules.nodes if node.depth == 1} == {"stream 0"}
    assert not any(node.name == "train.py:9 in main" for node in modules.nodes)


@pytest.mark.parametrize("by", ["colour", "", "size,size", "module,"])
def test_a_level_that_there_is_not_is_refused(by, tmp_path):
    with pytest.raises(ValueError, match=r"expected line, module|name each level once"):
        tree_of(tmp_path, a_model(), by=by)
