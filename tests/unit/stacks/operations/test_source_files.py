"""Which files below --source are read, and which are believed."""

import ast
import os
import sys

import pytest

from snapconv.cli.app import main
from snapconv.errors import InputError
from snapconv.session import load
from snapconv.snapshot.load import load_snapshot
from snapconv.stacks.operations.source_files import source_lines
from snapconv.stacks.project_frames import find_project
from tests.builders import MIB, TraceBuilder, frame

ROOT = "/home/me/project"
MODEL = "import torch\n\n\ndef forward(x):\n    return torch.relu(x)\n"
IN_MODEL = frame("forward", f"{ROOT}/model.py", 5)
MAIN = frame("<module>", f"{ROOT}/train.py", 9)


def snapshot(tmp_path, *frames, name="snapshot.pickle"):
    """A file with one allocation per frame, each called from the script."""
    builder = TraceBuilder().segment(2 * MIB)
    for one in frames:
        builder.alloc(512, frames=[one, MAIN])
    return builder.write(tmp_path / name)


def folder(tmp_path, **files):
    """A folder of sources; `a__b` stands for a/b.py."""
    for name, text in files.items():
        path = tmp_path / "sources" / (name.replace("__", "/") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return tmp_path / "sources"


def names(path, *folders):
    """The operations of the allocations, in their order."""
    (device,) = load(path, sources=folders).devices
    return [device.operations[number] for number in device.operation_id.tolist()]


def notes(path, *folders):
    return [note.slug for note in load(path, sources=folders).notes]


def test_a_file_is_found_by_its_path_below_the_project_root(tmp_path):
    path = snapshot(tmp_path, IN_MODEL)
    assert names(path) == ["forward"]
    assert names(path, folder(tmp_path, model=MODEL)) == ["relu"]


def test_a_file_is_found_below_what_holds_the_project_too(tmp_path):
    path = snapshot(tmp_path, frame("forward", f"{ROOT}/model.py", 5))
    assert names(path, folder(tmp_path, project__model=MODEL)) == ["relu"]


def test_a_file_of_a_package_is_found_by_what_follows_site_packages(tmp_path):
    installed = frame("forward", "/venv/lib/python3.11/site-packages/net/model.py", 5)
    path = snapshot(tmp_path, installed)
    assert names(path, folder(tmp_path, model=MODEL)) == ["forward"]
    assert names(path, folder(tmp_path, net__model=MODEL)) == ["relu"]


def test_of_several_folders_the_first_that_has_the_file_counts(tmp_path):
    path = snapshot(tmp_path, IN_MODEL)
    first = folder(tmp_path / "a", model=MODEL.replace("relu", "tanh"))
    second = folder(tmp_path / "b", model=MODEL)
    (tmp_path / "empty").mkdir()
    assert names(path, first, second) == ["tanh"]
    assert names(path, tmp_path / "empty", second) == ["relu"]


def test_the_next_folder_counts_where_the_first_has_another_file(tmp_path):
    path = snapshot(tmp_path, IN_MODEL)
    first = folder(tmp_path / "a", model="def other():\n    pass\n")
    second = folder(tmp_path / "b", model=MODEL)
    broken = folder(tmp_path / "c", model="def forward(:\n")
    assert names(path, first, broken, second) == ["relu"]
    assert notes(path, first, second) == []
    assert names(path, first) == ["forward"]


def test_a_folder_is_searched_before_the_next_one(tmp_path):
    path = snapshot(tmp_path, frame("forward", f"{ROOT}/model.py", 5))
    # What holds the project comes after the project itself, but the first folder before the second.
    outer = folder(tmp_path / "a", project__model=MODEL)
    inner = folder(tmp_path / "b", model=MODEL.replace("relu", "tanh"))
    assert names(path, outer, inner) == ["relu"]
    assert names(path, inner, outer) == ["tanh"]


def test_a_file_that_has_many_names_is_read_once(tmp_path, monkeypatch):
    frames = [frame("forward", f"/v{n}/site-packages/net/model.py", 5) for n in range(20)]
    path, sources = snapshot(tmp_path, *frames), folder(tmp_path, net__model=MODEL)
    parsed, parse = [], ast.parse
    with monkeypatch.context() as patch:
        patch.setattr(ast, "parse", lambda text: parsed.append(text) or parse(text))
        found = names(path, sources)
    assert found == ["relu"] * 20
    assert parsed == [MODEL]


def test_windows_paths_are_found_too(tmp_path):
    builder = TraceBuilder().segment(2 * MIB)
    stack = [frame("forward", "C:\\proj\\model.py", 5), frame("<module>", "C:\\proj\\train.py", 1)]
    path = builder.alloc(512, frames=stack).write(tmp_path / "snapshot.pickle")
    assert names(path, folder(tmp_path, model=MODEL)) == ["relu"]


@pytest.mark.parametrize(
    "place",
    [
        f"{ROOT}/../../../secret.py",
        f"{ROOT}/sub/../../secret.py",
        "../secret.py",
        "sub/../../secret.py",
        "/venv/lib/python3.11/site-packages/../secret.py",
        "/venv/lib/python3.11/site-packages//secret.py",
        "C:/../secret.py",
        "..\\secret.py",
    ],
)
def test_no_name_leads_out_of_the_folder(tmp_path, place):
    (tmp_path / "secret.py").write_text(MODEL)
    (tmp_path / "sources" / "sub").mkdir(parents=True)
    path = snapshot(tmp_path, frame("forward", place, 5))
    assert names(path, tmp_path / "sources") == ["forward"]


def test_an_absolute_name_is_not_looked_up_where_it_says(tmp_path):
    outside = tmp_path / "secret.py"
    outside.write_text(MODEL)
    (tmp_path / "sources").mkdir()
    path = snapshot(tmp_path, frame("forward", str(outside), 5))
    assert names(path, tmp_path / "sources") == ["forward"]


@pytest.mark.skipif(sys.platform == "win32", reason="links need rights there")
def test_a_link_out_of_the_folder_is_not_followed_and_one_within_is(tmp_path):
    outside = tmp_path / "secret.py"
    outside.write_text(MODEL)
    sources = folder(tmp_path, real=MODEL)
    path = snapshot(tmp_path, IN_MODEL)
    (sources / "model.py").symlink_to(outside)
    assert names(path, sources) == ["forward"]
    (sources / "model.py").unlink()
    (sources / "model.py").symlink_to(sources / "real.py")
    assert names(path, sources) == ["relu"]
    (sources / "model.py").unlink()
    (sources / "model.py").symlink_to("model.py")
    assert names(path, sources) == ["forward"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes")
def test_what_is_no_file_is_not_opened(tmp_path):
    sources = folder(tmp_path, other="")
    os.mkfifo(sources / "model.py")
    assert names(snapshot(tmp_path, IN_MODEL), sources) == ["forward"]
    (sources / "model.py").unlink()
    (sources / "model.py").mkdir()
    assert names(snapshot(tmp_path, IN_MODEL), sources) == ["forward"]


@pytest.mark.parametrize("name", ["a\0b.py", "x" * 3000 + ".py", "\ud800.py", ".py", "/.py", "<stdin>"])
def test_odd_names_find_nothing(tmp_path, name):
    assert names(snapshot(tmp_path, frame("forward", name, 5)), folder(tmp_path, model=MODEL)) == ["forward"]


def test_a_file_of_another_version_is_not_accepted(tmp_path):
    # The line is within a function of that name, but another frame of the file says that it was moved.
    moved = "import torch\n\n\ndef other(x):\n    return x\n\n\n"
    moved += "def forward(x):\n    y = x\n    return torch.tanh(y)\n"
    frames = (frame("forward", f"{ROOT}/model.py", 10), frame("other", f"{ROOT}/model.py", 12))
    path = snapshot(tmp_path, *frames)
    sources = folder(tmp_path, model=moved)
    assert names(path, sources) == ["forward", "other"]
    assert "other-sources" in notes(path, sources)
    assert names(snapshot(tmp_path, frames[0]), sources) == ["tanh"]


def test_a_file_without_a_frames_function_is_not_accepted(tmp_path):
    path = snapshot(tmp_path, IN_MODEL, frame("encode", f"{ROOT}/model.py", 812))
    sources = folder(tmp_path, model=MODEL)
    assert names(path, sources) == ["forward", "encode"]
    assert "other-sources" in notes(path, sources)


@pytest.mark.parametrize(
    "text",
    [
        "def forward(:\n",
        "x = " + "(" * 5000 + ")" * 5000,
        MODEL + "\0",
        b"\xff\xfe" + MODEL.encode("utf-16-le"),
    ],
)
def test_what_is_no_python_is_left_out_with_a_note(tmp_path, text):
    path = snapshot(tmp_path, IN_MODEL)
    sources = folder(tmp_path, model=text)
    assert names(path, sources) == ["forward"]
    (note,) = [note for note in load(path, sources=[sources]).notes if note.slug == "other-sources"]
    assert note.message == "1 file of --source could not be parsed by this Python: model.py"


@pytest.mark.parametrize(
    "head", ["\ufeffimport torch".encode(), "import torch # Gr\xf6\xdfe".encode("latin-1")]
)
def test_marks_and_comments_in_other_encodings_do_no_harm(tmp_path, head):
    text = MODEL.encode().replace(b"import torch", head)
    assert names(snapshot(tmp_path, IN_MODEL), folder(tmp_path, model=text)) == ["relu"]


def test_a_huge_file_is_not_read(tmp_path):
    text = MODEL + "#" * (MIB)
    path = snapshot(tmp_path, IN_MODEL)
    assert names(path, folder(tmp_path, model=text)) == ["forward"]
    assert notes(path, folder(tmp_path, model=text)) == ["no-sources"]
    assert names(path, folder(tmp_path, model=text[:MIB])) == ["relu"]


def test_nothing_of_a_source_is_run(tmp_path):
    ran = tmp_path / "ran"
    text = MODEL + f"\nopen({str(ran)!r}, 'w')\n"
    assert names(snapshot(tmp_path, IN_MODEL), folder(tmp_path, model=text)) == ["relu"]
    assert not ran.exists()
    assert "model" not in sys.modules


def test_a_folder_without_any_of_the_files_has_a_note(tmp_path):
    path = snapshot(tmp_path, IN_MODEL)
    assert notes(path, folder(tmp_path, other=MODEL)) == ["no-sources"]
    assert notes(path) == []


@pytest.mark.parametrize("name", ["missing", "file.txt"])
def test_a_folder_that_is_none_is_refused(tmp_path, name, capsys):
    (tmp_path / "file.txt").write_text("")
    path = snapshot(tmp_path, IN_MODEL)
    with pytest.raises(InputError, match="cannot look for sources"):
        names(path, tmp_path / name)
    assert main(["to-sqlite", str(path), "--source", str(tmp_path / name)]) == 3
    assert "cannot look for sources" in capsys.readouterr().err
    assert not list(tmp_path.glob("*.sqlite"))


def test_an_empty_name_is_not_the_current_folder(tmp_path, capsys):
    path = snapshot(tmp_path, IN_MODEL)
    with pytest.raises(InputError, match="names no folder"):
        load(path, sources=[""])
    for command in (["to-sqlite", str(path)], ["explain", str(path), "#1"]):
        assert main([*command, "--source", ""]) == 3
        assert "names no folder" in capsys.readouterr().err
    assert not list(tmp_path.glob("*.sqlite"))


def test_without_folders_nothing_is_looked_for(tmp_path):
    found = load_snapshot(snapshot(tmp_path, IN_MODEL))
    assert source_lines([], found.stacks, find_project(found.stacks)) is None


def test_the_command_line_names_by_the_source_and_reports_it(tmp_path, capsys):
    path, sources = snapshot(tmp_path, IN_MODEL), folder(tmp_path, model=MODEL)
    assert main(["explain", str(path), "#1", "--source", str(sources)]) == 0
    assert "relu (what its line of source calls)" in capsys.readouterr().out
    assert (
        main(["to-sqlite", str(path), "--source", str(sources), "--source", str(tmp_path), "--extended"]) == 0
    )
