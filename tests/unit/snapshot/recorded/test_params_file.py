"""A list of parameters is read in every shape that is described, and as a file that nobody has checked."""

import json
import os
import pickle
import zipfile

import pytest

from snapconv.errors import InputError, MalformedSnapshotError, TruncatedFileError
from snapconv.snapshot.recorded.params_file import load_params


def write(tmp_path, content, name="params.json"):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return path


def read(tmp_path, content):
    return load_params(write(tmp_path, content))


def refusal(path, kind=InputError):
    with pytest.raises(kind) as caught:
        load_params(path)
    assert str(caught.value).startswith(f"{path}: ")
    return str(caught.value).removeprefix(f"{path}: ")


def refused(tmp_path, content, kind=MalformedSnapshotError):
    return refusal(write(tmp_path, content), kind)


# --- what is read


@pytest.mark.parametrize(
    "content",
    [
        {"b.weight": {"shape": [2, 3], "dtype": "float32"}, "a": {"shape": [], "dtype": "float16"}},
        {
            "b.weight": {"shape": [2, 3], "dtype": "torch.float32"},
            "a": {"shape": [], "dtype": "torch.bfloat16"},
        },
    ],
    ids=["name to shape and dtype", "torch's names"],
)
def test_every_shape_of_json_gives_the_same_rows(tmp_path, content):
    found = read(tmp_path, content)
    assert found.names == ("b.weight", "a")
    assert found.n_elements.tolist() == [6, 1]
    assert found.n_bytes.tolist() == [24, 2]
    assert found.is_floating.all()


@pytest.mark.parametrize("content", [{"w": [2, 3]}, {"w": {"shape": [2, 3], "dtype": None}}])
def test_without_a_dtype_the_bytes_are_not_known(tmp_path, content):
    found = read(tmp_path, content)
    assert (found.n_elements.tolist(), found.n_bytes.tolist()) == ([6], [-1])


@pytest.mark.parametrize(
    ("names", "is_ordered"),
    [(("b", "a"), True), (("a", "b"), False), (("a",), True), (("l.10.w", "l.2.w"), False)],
)
def test_names_that_are_sorted_are_no_order_of_a_model(tmp_path, names, is_ordered):
    assert read(tmp_path, {name: [1] for name in names}).is_ordered is is_ordered


# --- what is refused


def test_a_checkpoint_is_refused_with_what_to_do_instead(tmp_path):
    zipped = tmp_path / "model.pt"
    with zipfile.ZipFile(zipped, "w") as archive:
        archive.writestr("model/data.pkl", pickle.dumps({}))
    header = b'{"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}'
    tensors = write(tmp_path, len(header).to_bytes(8, "little") + header + bytes(4), "w.safetensors")
    for path in (zipped, tensors, write(tmp_path, pickle.dumps({"w": 1}), "old.pt")):
        message = refusal(path)
        assert "a checkpoint" in message
        assert "docs/guide/better-names.md" in message
        assert "\n" not in message


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes")
def test_a_pipe_is_refused_before_it_is_opened(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    assert "expected a file" in refusal(tmp_path / "pipe")


def test_a_folder_and_a_missing_file_are_refused(tmp_path):
    assert "this is a folder: name the list in it" in refusal(tmp_path)
    assert "No such file" in refusal(tmp_path / "nowhere.json")


@pytest.mark.parametrize("content", [b"", b"   \n"])
def test_an_empty_file_is_reported_to_be_empty(tmp_path, content):
    assert refused(tmp_path, content, TruncatedFileError) == "the file is empty"


def test_something_else_is_refused_with_what_is_read(tmp_path):
    assert "expected a JSON object" in refused(tmp_path, b"name,shape\n", InputError)


@pytest.mark.parametrize(
    ("content", "place"),
    [
        (b"[1; 2]", "no JSON text"),
        ([], "the file: expected dict, got list"),
        ({}, "expected 1 to 1000000 tensors, got 0"),
        ({"a": [-1]}, "a.shape: expected a list of sizes"),
        ({"a": [True]}, "a.shape: expected a list of sizes"),
        ({"a": [1.0]}, "a.shape: expected a list of sizes"),
        ({"a": [1] * 65}, "a.shape: expected a list of sizes"),
        ({"a": [1 << 30, 1 << 30]}, "a.shape: more than 2^48 elements"),
        ({"a": {"shape": [1], "dtype": 4}}, "a.dtype: expected str, got int"),
        ({"a": {"shape": [1], "dtype": "float33"}}, "a.dtype: expected such as float32, got float33"),
        ({"": [1]}, ": expected a name of 1 to 2000 characters"),
        ({"a" * 2001: [1]}, "a" * 80 + "…: expected a name of 1 to 2000 characters"),
        ({"a": 1}, "a: expected dict, got int"),
        ({"a": {}}, "a.shape: expected list, got nothing"),
    ],
)
def test_the_message_names_the_place(tmp_path, content, place):
    assert refused(tmp_path, content).startswith(place)


def test_sizes_that_no_machine_has_are_refused(tmp_path):
    rows = {f"w{i}": {"shape": [1 << 48], "dtype": "float64"} for i in range(2000)}
    assert "2^61" in refused(tmp_path, rows)


def test_a_file_of_empty_lists_is_not_parsed(tmp_path):
    assert "empty lists" in refused(tmp_path, b"[" + b"[]," * 1_000_001 + b"1]")
