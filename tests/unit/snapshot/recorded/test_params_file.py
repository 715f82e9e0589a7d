"""A list of parameters is read in every shape that is described, and as a file that nobody has checked."""

import json
import os
import pickle
import zipfile

import pytest

from snapconv.errors import InputError, MalformedSnapshotError, SnapconvError, TruncatedFileError
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


def safetensors(tensors, *, data=b"", metadata=None):
    """A file as the safetensors library lays it out, without its data unless given.

    ``tensors`` are (name, dtype, shape, bytes).
    """
    header, begin = {"__metadata__": metadata} if metadata else {}, 0
    for name, dtype, shape, n_bytes in tensors:
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, begin + n_bytes]}
        begin += n_bytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + data


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


def test_of_a_safetensors_file_the_header_alone_is_read(tmp_path):
    # The bytes that the header speaks of are not there at all.
    content = safetensors([("w", "F32", [2, 3], 24), ("b", "I64", [3], 24)], metadata={"format": "pt"})
    found = read(tmp_path, content)
    assert found.names == ("w", "b")
    assert found.n_bytes.tolist() == [24, 24]
    assert found.is_floating.tolist() == [True, False]
    assert not found.is_ordered


def test_tensors_of_a_safetensors_file_stand_in_the_order_of_their_data(tmp_path):
    header = {
        "second": {"dtype": "F16", "shape": [2], "data_offsets": [8, 12]},
        "first": {"dtype": "F64", "shape": [1], "data_offsets": [0, 8]},
    }
    text = json.dumps(header).encode()
    assert read(tmp_path, len(text).to_bytes(8, "little") + text).names == ("first", "second")


def test_a_type_that_safetensors_will_have_one_day_has_the_bytes_of_its_data(tmp_path):
    found = read(tmp_path, safetensors([("w", "F4_E2M1", [2, 8], 8)]))
    assert (found.n_elements.tolist(), found.n_bytes.tolist()) == ([16], [8])


@pytest.mark.parametrize("length", [ord("{"), ord("[")])
def test_a_header_whose_length_looks_like_json_is_a_header(tmp_path, length):
    text = json.dumps({"w": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}}).encode().ljust(length)
    assert read(tmp_path, length.to_bytes(8, "little") + text).names == ("w",)


def test_an_index_gives_the_tensors_of_all_its_shards(tmp_path):
    write(tmp_path, safetensors([("a", "F32", [1], 4), ("c", "F32", [1], 4)]), "1-of-2.safetensors")
    write(tmp_path, safetensors([("b", "F16", [8], 16)]), "2-of-2.safetensors")
    weight_map = {"a": "1-of-2.safetensors", "b": "2-of-2.safetensors", "c": "1-of-2.safetensors"}
    found = load_params(write(tmp_path, {"metadata": {"total_size": 24}, "weight_map": weight_map}))
    assert sorted(zip(found.names, found.n_bytes.tolist(), strict=True)) == [("a", 4), ("b", 16), ("c", 4)]
    assert not found.is_ordered


def test_columns_are_read_only(tmp_path):
    with pytest.raises(ValueError, match="read-only"):
        read(tmp_path, {"w": [1]}).n_bytes[0] = 1


# --- what is refused


def test_a_checkpoint_is_refused_with_what_to_do_instead(tmp_path):
    zipped = tmp_path / "model.pt"
    with zipfile.ZipFile(zipped, "w") as archive:
        archive.writestr("model/data.pkl", pickle.dumps({}))
    for path in (zipped, write(tmp_path, pickle.dumps({"w": 1}), "old.pt")):
        message = refusal(path)
        assert "a checkpoint of torch.save" in message
        assert "docs/guide/better-names.md" in message
        assert "\n" not in message


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes")
def test_a_pipe_is_refused_before_it_is_opened(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    assert "expected a file" in refusal(tmp_path / "pipe")


def test_a_folder_and_a_missing_file_are_refused(tmp_path):
    assert "this is a folder: name the .safetensors file in it" in refusal(tmp_path)
    assert "No such file" in refusal(tmp_path / "nowhere.json")


@pytest.mark.parametrize("content", [b"", b"   \n"])
def test_an_empty_file_is_reported_to_be_empty(tmp_path, content):
    assert refused(tmp_path, content, TruncatedFileError) == "the file is empty"


def test_something_else_is_refused_with_what_is_read(tmp_path):
    assert "expected a safetensors file" in refused(tmp_path, b"name,shape\n", InputError)


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
        ({"weight_map": []}, "weight_map: expected dict, got list"),
        ({"weight_map": {"a": 1}}, "weight_map.a: expected str, got int"),
    ],
)
def test_the_message_names_the_place(tmp_path, content, place):
    assert refused(tmp_path, content).startswith(place)


def test_sizes_that_no_machine_has_are_refused(tmp_path):
    rows = {f"w{i}": {"shape": [1 << 48], "dtype": "float64"} for i in range(2000)}
    assert "2^61" in refused(tmp_path, rows)


@pytest.mark.parametrize(
    ("row", "place"),
    [
        ({"dtype": "F32", "shape": [2]}, "header.w.data_offsets: expected two"),
        (
            {"dtype": "F32", "shape": [2], "data_offsets": [0, -8]},
            "header.w.data_offsets: expected two",
        ),
        (
            {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]},
            "header.w.data_offsets: 4 bytes for 2",
        ),
        ({"dtype": "F9", "shape": [2], "data_offsets": [4, 0]}, "header.w.data_offsets: -4 bytes"),
        ({"dtype": 1, "shape": [2], "data_offsets": [0, 8]}, "header.w.dtype: expected str"),
        ({"dtype": "F32", "data_offsets": [0, 8]}, "header.w.shape: expected list"),
        ([], "header.w: expected dict"),
    ],
)
def test_a_header_that_contradicts_itself_is_refused(tmp_path, row, place):
    text = json.dumps({"w": row}).encode()
    assert refused(tmp_path, len(text).to_bytes(8, "little") + text).startswith(place)


def test_a_header_that_breaks_off_or_is_endless_is_refused(tmp_path):
    whole = safetensors([("w", "F32", [1], 4)])
    assert "ends after" in refused(tmp_path, whole[:-8], TruncatedFileError)
    endless = (1 << 62).to_bytes(8, "little") + b"{" + b" " * 16
    assert "the header has" in refused(tmp_path, endless)


def test_a_file_of_empty_lists_is_not_parsed(tmp_path):
    assert "empty lists" in refused(tmp_path, b"[" + b"[]," * 1_000_001 + b"1]")


@pytest.mark.parametrize("shard", ["../secret", "/etc/passwd", "a\\b", "..", ""])
def test_an_index_sends_its_reader_nowhere_else(tmp_path, shard):
    assert "expected files beside the index" in refused(tmp_path, {"weight_map": {"w": shard}})


def test_a_shard_that_is_missing_or_something_else_is_named(tmp_path):
    index = {"weight_map": {"w": "one.safetensors"}}
    assert "there is no one.safetensors beside the index" in refused(tmp_path, index, InputError)
    write(tmp_path, b"something else altogether", "one.safetensors")
    assert "one.safetensors: expected a safetensors file" in refused(tmp_path, index)
    write(tmp_path, b"PK\x03\x04 and so on, as zip files have", "one.safetensors")
    assert "a checkpoint of torch.save" in refused(tmp_path, index, InputError)
    write(tmp_path, safetensors([("v", "F32", [1], 4)]), "one.safetensors")
    assert refused(tmp_path, index) == "weight_map: w is not in one.safetensors"


def test_only_our_own_errors_come_of_damage(tmp_path):
    whole = safetensors([("w", "F32", [2, 3], 24), ("b", "F16", [3], 6)])
    for position in range(len(whole)):
        for damaged in (whole[:position], whole[:position] + b"\xff" + whole[position + 1 :]):
            try:
                read(tmp_path, damaged)
            except SnapconvError:
                continue
