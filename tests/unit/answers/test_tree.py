"""The tree of live memory: hand-counted sums, and what every tree has."""

import pickle
from pathlib import Path

import pytest

import snapconv
from tests.builders import MIB, TraceBuilder, frame

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


@pytest.mark.parametrize("by", ["line", "module", "operation", "category"])
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
