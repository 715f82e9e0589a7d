"""Source, shapes and names that torch-snapkit and stormlog add, in the forms in which they write them."""

import json
import pickle
from pathlib import Path

import pytest

import snapconv
from snapconv.cli.app import main
from snapconv.snapshot.recorded.additions import AddedTensor, Additions
from snapconv.units import HOST
from snapconv.writers.html.view_device import view_device
from snapconv.writers.text.explanation import explanation_lines
from tests.builders import ADDR, TraceBuilder, frame

FIXTURES = Path(__file__).parents[4] / "fixtures" / "additions"
FILE = "/home/me/project/train.py"
SOURCE = "import torch\n\n\ndef main():\n    x = torch.ones(64, 10)\n    y = x * 2  # <b>\n"
# Their ShapeLogger's: a function's name, a tuple and a type for each result, by the address in hex.
LOGS = {
    hex(ADDR): [
        ["aten.ones.default", (64, 10), "torch.float32"],
        ["aten.view.default", (640,), "torch.float32"],
        ["aten.ones.default", (64, 10), "torch.float32"],
        ["aten.empty.memory_format", (8,), "torch.int64"],
    ]
}
STORMLOG = {
    "device_index": 0,
    "storage_pointer_count": 1,
    "attributed_storage_pointers": [
        {
            "storage_ptr": hex(ADDR),
            "storage_ptr_int": ADDR,
            "names": ["layer.weight", "weight"],
            "tensor_count": 1,
            "tensors": [
                {
                    "shape": [64, 10],
                    "dtype": "torch.float32",
                    "device": "cuda:0",
                    "size_bytes": 2560,
                    "requires_grad": True,
                    "is_leaf": True,
                }
            ],
        }
    ],
}


def a_run(line=5):
    """One allocation of 64 x 10 float32 at the first address, live at the dump."""
    stack = [frame("main", FILE, line)]
    return TraceBuilder().segment().alloc(2560, frames=stack)


@pytest.fixture
def load(tmp_path):
    def load(builder, name="run.pickle", beside=None, **fields):
        path = tmp_path / name
        path.write_bytes(pickle.dumps(builder.snapshot(**fields)))
        if beside is not None:
            text = beside if isinstance(beside, str) else json.dumps(beside)
            (tmp_path / "cuda_tensor_attribution.json").write_text(text, encoding="utf-8")
        return snapconv.load(path)

    return load


def explained(session, address=ADDR):
    return session.explain(hex(address)).allocations[0]


def reasons(session):
    return [note.message for note in session.snapshot.notes if note.slug == "additions-left-out"]


def test_a_line_has_its_text_where_the_file_has_the_source(load):
    session = load(a_run(), source_code={FILE: SOURCE})
    (inner,) = explained(session)["origin"]["stack"]
    assert inner["source"] == "x = torch.ones(64, 10)"
    text = "\n".join(explanation_lines(session.explain(hex(ADDR))))
    assert "train.py:5 in main: x = torch.ones(64, 10)" in text
    assert reasons(session) == []


@pytest.mark.parametrize("line", [0, 3, 7, 1 << 30])
def test_a_line_that_is_not_in_the_source_or_is_empty_has_no_text(load, line):
    session = load(a_run(line), source_code={FILE: SOURCE})
    assert not explained(session)["origin"]["stack"][0]["source"]
    assert explained(load(a_run()))["origin"]["stack"][0]["source"] is None


def test_an_allocation_has_the_tensors_of_its_address_and_size(load):
    session = load(a_run(), shape_data=[LOGS])
    assert explained(session)["tensors"] == [
        {"operation": "aten.ones.default", "shape": [64, 10], "dtype": "torch.float32"},
        {"operation": "aten.view.default", "shape": [640], "dtype": "torch.float32"},
    ]
    text = "\n".join(explanation_lines(session.explain(hex(ADDR))))
    assert "tensor      [64, 10] of torch.float32, returned by aten.ones.default" in text


def test_a_form_feed_is_no_end_of_a_line(load):
    session = load(a_run(6), source_code={FILE: SOURCE.replace("\n\n", "\n\f\n")})
    (inner,) = explained(session)["origin"]["stack"]
    assert inner["source"] == "y = x * 2  # <b>"


def test_host_memory_has_no_tensors_of_the_last_rank():
    logs = ({}, {ADDR: (AddedTensor("f", (4,), "torch.int8"),)})
    additions = Additions(tensors=logs)
    assert list(additions.tensors_of(1, ADDR, 4, is_dumped=False)) == [*logs[1][ADDR]]
    assert list(additions.tensors_of(HOST, ADDR, 4, is_dumped=False)) == []


def test_each_rank_has_the_shapes_of_its_own_device(load):
    session = load(a_run(), shape_data=[{}, LOGS])
    assert explained(session)["tensors"] == []


def test_stormlogs_names_and_shapes_are_read_beside_its_snapshot(load):
    session = load(a_run(), "cuda_allocator_snapshot.pickle", STORMLOG)
    allocation = explained(session)
    assert allocation["name"] == "layer.weight"
    assert allocation["tensors"] == [
        {"operation": None, "shape": [64, 10], "dtype": "torch.float32"}
    ]
    assert view_device(session.devices[0]).detail["tensor_names"] == ["layer.weight"]


def test_what_was_freed_before_the_dump_has_no_tensor_of_the_dump(load):
    run = a_run().free()
    session = load(run, "cuda_allocator_snapshot.pickle", STORMLOG)
    assert (explained(session)["name"], explained(session)["tensors"]) == (None, [])


def stored(addr, *shape):
    """What the file has of one storage."""
    tensors = [{"shape": list(shape), "dtype": "torch.float32"}]
    return {"storage_ptr_int": addr, "names": ["old.weight"], "tensors": tensors}


@pytest.mark.parametrize(
    "index",
    [
        # No block begins there; it is larger than the block; no block of the device.
        {"attributed_storage_pointers": [stored(ADDR + 4096, 64, 10)]},
        {"attributed_storage_pointers": [stored(ADDR, 64, 11)]},
        {"device_index": 1},
    ],
)
def test_a_file_whose_tensors_are_not_in_the_blocks_is_of_another_snapshot(index, load, capsys):
    session = load(a_run(), "cuda_allocator_snapshot.pickle", STORMLOG | index)
    sentence = (
        "cuda_tensor_attribution.json of another recorder is left out: only 0 of its 1 "
        "addresses are those of live blocks that have room for its tensors, as of another snapshot"
    )
    assert reasons(session) == [sentence]
    assert (explained(session)["name"], explained(session)["tensors"]) == (None, [])
    file = str(session.snapshot.path)
    assert main(["info", file]) == 0
    assert sentence in " ".join("".join(capsys.readouterr()).split())
    assert main(["explain", file, hex(ADDR)]) == 0
    assert "old.weight" not in capsys.readouterr().out
    assert main(["explain", file, hex(ADDR), "--json"]) == 0
    (shown,) = json.loads(capsys.readouterr().out)["allocations"]
    assert (shown["name"], shown["tensors"]) == (None, [])


def test_one_view_that_repeats_elements_is_no_sign_of_another_snapshot(load):
    run = a_run().alloc(4)
    second = run.events[-1]["addr"]
    rows = [*STORMLOG["attributed_storage_pointers"], stored(second, 1000, 1000)]
    file = STORMLOG | {"attributed_storage_pointers": rows}
    session = load(run, "cuda_allocator_snapshot.pickle", file)
    assert reasons(session) == []
    assert explained(session)["name"] == "layer.weight"


def test_a_file_beside_another_snapshot_is_not_read(load):
    assert explained(load(a_run(), beside=STORMLOG))["name"] is None


def test_the_page_has_the_text_of_lines_as_data(load):
    detail = view_device(load(a_run(6), source_code={FILE: SOURCE}).devices[0]).detail
    frames = detail["frames"]
    assert [frames["sources"][i] for i in frames["source"]] == ["y = x * 2  # <b>"]


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"source_code": [SOURCE]}, "source_code: expected dict, got list"),
        ({"source_code": {FILE: b"x"}}, "expected str, got bytes"),
        ({"source_code": {7: SOURCE}}, "a file's name: expected str, got int"),
        ({"shape_data": LOGS}, "shape_data: expected list, got dict"),
        ({"shape_data": [{"7f": []}]}, "expected an address such as 0x7f3c40001000, got 7f"),
        ({"shape_data": [{7: []}]}, "expected an address"),
        ({"shape_data": [{hex(ADDR): [["a", (1,)]]}]}, "an operation, a shape and a type"),
        ({"shape_data": [{hex(ADDR): [["a", (-1,), "f"]]}]}, "expected 0 to 2^62, got -1"),
        ({"shape_data": [{hex(ADDR): [["a", (1,) * 65, "f"]]}]}, "at most 64 dimensions"),
        ({"shape_data": [{"0x" + "f" * 16: []}]}, "an address of at most 62 bits"),
    ],
)
def test_what_cannot_be_right_is_left_out_with_a_note(load, fields, place):
    session = load(a_run(), **fields)
    (reason,) = reasons(session)
    assert place in reason
    assert explained(session)["tensors"] == []
    assert explained(session)["requested_bytes"] == 2560


@pytest.mark.parametrize(
    "wrong", ["", "{", "[]", '{"device_index": 0}', json.dumps(STORMLOG | {"device_index": 300})]
)
def test_a_file_beside_it_that_cannot_be_right_is_left_out_with_a_note(load, wrong):
    session = load(a_run(), "cuda_allocator_snapshot.pickle", wrong)
    (reason,) = reasons(session)
    assert reason.startswith("cuda_tensor_attribution.json of another recorder is left out")
    assert explained(session)["name"] is None


def test_a_small_file_cannot_make_much_of_one_text_or_list_by_its_name(load):
    text = "\n" * 100_000
    many = load(a_run(), source_code={str(i): text for i in range(1000)})
    assert "one text many times" in reasons(many)[0]
    rows = [["a", (1,), "torch.int8"]] * 1000
    logs = {hex(ADDR + 512 * i): rows for i in range(1000)}
    assert "one list many times" in reasons(load(a_run(), shape_data=[logs]))[0]


def with_bytes(session, n_bytes):
    """Explanations of the allocations of so many bytes, in order."""
    table = session.devices[0].allocations
    rows = [row for row in range(len(table)) if table.requested_bytes[row] == n_bytes]
    return [explained(session, int(table.addr[row])) for row in rows]


def test_a_file_of_torch_snapkit_has_the_text_and_the_shapes_of_a_forward():
    """train.py: 32 inputs, 48 hidden units and 10 outputs in 64 rows of float32."""
    session = snapconv.load(FIXTURES / "snapkit.pickle")
    assert reasons(session) == []
    source = (FIXTURES / "train.py").read_text(encoding="utf-8").splitlines()
    line = 1 + source.index('    inputs = torch.randn(64, 32, device="cuda")')
    (inputs,) = [
        found
        for found in with_bytes(session, 64 * 32 * 4)
        if any(frame["line"] == line for frame in found["origin"]["stack"])
    ]
    sources = [frame["source"] for frame in inputs["origin"]["stack"]]
    assert 'inputs = torch.randn(64, 32, device="cuda")' in sources
    assert [tensor["shape"] for tensor in inputs["tensors"]] == [[64, 32]]
    (outputs,) = with_bytes(session, 64 * 10 * 4)
    assert outputs["tensors"] == [
        {"operation": "aten.addmm.default", "shape": [64, 10], "dtype": "torch.float32"}
    ]


def test_files_of_stormlog_have_the_names_of_a_models_weights():
    session = snapconv.load(FIXTURES / "cuda_allocator_snapshot.pickle")
    assert reasons(session) == []
    shapes = {"0.weight": [48, 32], "0.bias": [48], "2.weight": [10, 48], "2.bias": [10]}
    explanations = [row for n in (48 * 32, 48, 480, 10) for row in with_bytes(session, n * 4)]
    named = {row["name"]: row["tensors"][0]["shape"] for row in explanations if row["tensors"]}
    assert named.items() >= shapes.items()
