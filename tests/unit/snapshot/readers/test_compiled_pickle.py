"""What goes through the compiled core, and what it leaves to the twin; tests/fuzz has that both agree."""

import gzip
import io
import pickle
import time
from pathlib import Path

import pytest

from snapconv.native.library import core
from snapconv.snapshot.event_table import ACTION_CODES, Action
from snapconv.snapshot.readers import compiled_pickle
from snapconv.snapshot.readers.compiled_pickle import OddFile, read_compiled
from tests.builders import TraceBuilder, frame
from tests.fuzz.corpus import PLAIN, RICH, cpp_pickle
from tests.twins import assert_twins_agree, goes_through_core, needs_core

pytestmark = needs_core

ROOT = Path(__file__).parents[4]
FIXTURES = ROOT / "fixtures"
REAL = ROOT.parent / "shared" / "snapshots"
EXPECTED_TO_FAIL = FIXTURES / "bad"
# The core leaves frames to which another recorder has added keys to the twin.
OF_OTHER_RECORDERS = FIXTURES / "additions" / "snapkit.pickle"


def pickles_in(folder: Path) -> list[Path]:
    """All files whose events come to the core: pickles, packed or not, and those of captures."""
    found = (path for path in folder.rglob("*") if path.name.endswith((".pickle", ".pickle.gz")))
    return sorted(path for path in found if EXPECTED_TO_FAIL not in path.parents)


def read(content: bytes, *, n_at_once: int = 1 << 18):
    file = io.BytesIO(content)
    return read_compiled(
        core(), lambda window: file.readinto(window[:n_at_once]), ACTION_CODES, oom=Action.OOM
    )


@pytest.mark.parametrize("path", pickles_in(FIXTURES), ids=lambda path: path.name)
def test_only_additions_of_other_recorders_are_odd(path):
    assert goes_through_core(path) is (path != OF_OTHER_RECORDERS)


@pytest.mark.parametrize(
    "path", pickles_in(REAL) or [None], ids=lambda path: path.name if path else "none"
)
def test_no_real_file_is_odd(path):
    if path is None:
        pytest.skip("the real snapshots are not beside this checkout")
    assert goes_through_core(path)


@pytest.mark.parametrize("name", [name for name in PLAIN if name != "json"])
def test_every_writer_goes_through_the_core(name, tmp_path):
    path = tmp_path / "x.pickle"
    path.write_bytes(PLAIN[name])
    assert goes_through_core(path)


@pytest.mark.parametrize("n_at_once", [1, 2, 7, 1000])
@pytest.mark.parametrize("name", ["protocol-2", "protocol-4", "cpp-writer"])
def test_the_pieces_in_which_a_file_comes_change_nothing(name, n_at_once):
    assert repr(read(PLAIN[name], n_at_once=n_at_once)) == repr(read(PLAIN[name]))


def test_a_window_grows_for_a_text_that_does_not_fit(monkeypatch):
    monkeypatch.setattr(compiled_pickle, "_WINDOW_BYTES", 64)
    raw, _ = read(pickle.dumps({"segments": [], "x": "y" * 100_000}, 4))
    assert raw["x"] == "y" * 100_000


def test_a_text_that_is_larger_than_any_window_is_left_to_the_twin(monkeypatch):
    monkeypatch.setattr(compiled_pickle, "_MAX_WINDOW_BYTES", 1 << 18)
    with pytest.raises(OddFile):
        read(pickle.dumps({"segments": [], "x": "y" * 300_000}, 4))


def big_trace(n_events: int):
    builder = TraceBuilder().segment()
    frames = [frame(f"f{i}", "/x/a.py", i) for i in range(30)]
    for i in range(n_events // 3):
        builder.alloc(512, frames=frames[i % 7 :]).free()
    return builder.snapshot()


@pytest.mark.parametrize(
    "writer", [lambda raw: pickle.dumps(raw, 4), cpp_pickle], ids=["python", "torch"]
)
def test_lists_beyond_one_batch_of_the_pickler_are_one_trace(writer, tmp_path):
    path = tmp_path / "x.pickle"
    path.write_bytes(writer(big_trace(4500)))
    assert goes_through_core(path)
    (tables, _) = assert_twins_agree(path)
    assert len(tables["devices"][0]["events"]["action"][1]) == 4501


LONG = "\u00e9" * 4096
FRAMES = {
    "texts longer than are kept": [
        frame(LONG, LONG),
        frame(LONG + "a", LONG),
        frame(LONG, LONG + "b"),
    ],
    "lines that are none": [
        frame(line=line) for line in (-1, 0, 1, 2**31 - 1, 2**31, 2**63, 2**64 - 1)
    ],
    "what is missing": [
        {"filename": "a"},
        {"filename": None, "name": None, "line": None},
        frame("", "", 0),
    ],
    "other keys": [
        frame(),
        frame() | {"fx_node_op": "output"},
        frame() | {"fx_node_op": "placeholder"},
    ],
}


@pytest.mark.parametrize("name", FRAMES)
def test_frames_that_say_the_same_are_one(name, tmp_path):
    builder = TraceBuilder().segment()
    for one in FRAMES[name]:
        builder.alloc(512, frames=[one, one]).free(frames=[one, frame()])
    path = tmp_path / "x.pickle"
    path.write_bytes(pickle.dumps(builder.snapshot(), 4))
    assert goes_through_core(path)
    assert_twins_agree(path)


def with_frame(one) -> bytes:
    event = {"action": "alloc", "addr": 1, "size": 1, "frames": [one]}
    return pickle.dumps({"segments": [], "device_traces": [[event]]}, 4)


ODD = {
    "a frame that is in no stack": pickle.dumps(RICH | {"x": frame()}, 4),
    "a stack in another place": pickle.dumps(RICH | {"x": [frame()]}, 4),
    "a frame without a file name": with_frame({"name": "f"}),
    "a line that is no integer": with_frame(frame(line=True)),
    "a name that is no text": with_frame(frame(name=5)),
    "cut off": pickle.dumps(RICH, 4)[:-1],
    "an event that stands twice": pickle.dumps(
        {
            "segments": [],
            "device_traces": [[event := {"action": "alloc", "addr": 1, "size": 1}, event]],
        },
        4,
    ),
    "an empty dictionary that is filled with nothing": b"\x80\x04}(\x8c\x08segments](}(ueu.",
    "an event in no trace": pickle.dumps(
        {"segments": [{"action": "alloc"}], "device_traces": []}, 4
    ),
    "a trace in another place": pickle.dumps({"segments": [], "x": [{"action": "alloc"}]}, 4),
    "an event without an action": pickle.dumps(
        {"segments": [], "device_traces": [[{"addr": 1}, event]]}, 4
    ),
    "bytes": pickle.dumps({"segments": [], "x": b"y"}, 4),
    "a set": pickle.dumps({"segments": [], "x": {1}}, 4),
    "a key that is no text": pickle.dumps({"segments": [], 5: 5}, 4),
    "a list that holds itself": pickle.dumps(RICH | {"x": (own := [1]), "y": own.append(own)}, 4),
    "a name that is no UTF-8": pickle.dumps(RICH, 4).replace(b"train.py", b"\xff\xfe\xfdin.py"),
    "two events where one is appended": b"\x80\x04}(\x8c\x08segments]\x8c\x0ddevice_traces]]"
    + b"}\x8c\x06action\x8c\x05allocs" * 2
    + b"aau.",
    "a global": b"\x80\x04cos\nsystem\n.",
}


@pytest.mark.parametrize("name", ODD)
def test_what_is_odd_is_left_to_the_twin(name, tmp_path):
    path = tmp_path / "x.pickle"
    path.write_bytes(ODD[name])
    assert not goes_through_core(path)
    assert_twins_agree(path)


def test_a_gzip_file_is_read_to_its_checksum(tmp_path):
    path = tmp_path / "x.pickle.gz"
    content = bytearray(gzip.compress(pickle.dumps(RICH, 4)))
    path.write_bytes(content)
    assert goes_through_core(path)
    content[-6] ^= 1
    path.write_bytes(content)
    assert not goes_through_core(path)
    assert "gzip file is damaged" in assert_twins_agree(path)


def test_frames_that_come_one_by_one_take_linear_time(tmp_path):
    one = pickle.dumps({"filename": "a.py", "name": "f", "line": 1}, 4)[11:-1]
    trace = (
        b"](}(\x8c\x06action\x8c\x05alloc\x8c\x06frames]("
        + one
        + b"e"
        + (one + b"a") * 20_000
        + b"uee"
    )
    path = tmp_path / "x.pickle"
    path.write_bytes(b"\x80\x04}(\x8c\x08segments]\x8c\x0ddevice_traces](" + trace + b"u.")
    started = time.process_time()
    goes_through_core(path)
    assert time.process_time() - started < 5


def test_an_interruption_between_two_windows_frees_the_reader():
    def interrupted(_window):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        read_compiled(core(), interrupted, ACTION_CODES, oom=Action.OOM)
