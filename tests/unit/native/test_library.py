import ctypes
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from snapconv.cli.app import main
from snapconv.errors import SnapconvError
from snapconv.hypotheses import compiled_replay
from snapconv.hypotheses.allocator_calls import find_calls
from snapconv.hypotheses.trial_outcome import Trial
from snapconv.hypotheses.trial_requests import requests_of
from snapconv.native import library
from snapconv.replay.device_replay import replay
from snapconv.snapshot.load import load_snapshot
from snapconv.snapshot.readers import compiled_pickle
from tests.twins import needs_core, twin

FIXTURE = Path(__file__).parents[3] / "fixtures" / "training_step.pickle"
HEADER = Path(library.__file__).parent / "src" / "core.h"


@pytest.fixture
def another_library(monkeypatch, tmp_path):
    """Let another file stand in the place of the core."""
    library._load.cache_clear()
    monkeypatch.setattr(library, "FILE", tmp_path / library.FILE.name)
    yield tmp_path / library.FILE.name
    library._load.cache_clear()


def test_python_and_c_have_the_same_version_of_the_interface():
    assert f"#define SNAPCONV_ABI {library.ABI}\n" in HEADER.read_text(encoding="utf-8")


def test_every_function_of_the_header_is_declared_with_as_many_arguments():
    text = " ".join(HEADER.read_text(encoding="utf-8").split())
    declared = {}
    for part in text.split("EXPORT ")[3:]:  # the first two are the macro's own definitions
        head, _, arguments = part.split(";")[0].partition("(")
        name = head.split()[-1].lstrip("*")
        declared[name] = 0 if arguments.strip(") ") == "void" else arguments.count(",") + 1
    assert declared.pop("snapconv_abi", None) == 0
    assert declared == {name: len(types) - 1 for name, types in library._FUNCTIONS.items()}


def names_of(enum):
    """Return the names in an enum of the header, in lower case and without what all of them begin with."""
    text = re.sub(r"/\*.*?\*/", "", HEADER.read_text(encoding="utf-8"), flags=re.DOTALL)
    body = text.split(f"enum {enum} {{")[1].split("}")[0]
    return [name.removeprefix(f"{enum.upper()}_").lower() for name in re.findall(r"\w+", body)]


def test_keys_of_events_have_the_same_numbers_in_python_and_c():
    _, *names, _ = names_of("field")  # all but FIELD_UNKNOWN and N_FIELDS
    assert len(names) == len(compiled_pickle._FIELDS)
    for name, word in zip(names, compiled_pickle._FIELDS, strict=True):
        assert name == "ignored" or word.startswith(name)


def test_columns_of_events_have_the_same_numbers_and_sizes_in_python_and_c():
    *names, _ = names_of("column")
    assert len(names) == len(compiled_pickle._COLUMNS)
    kinds = ["int8"] * names.index("addr") + ["int64"] * (
        names.index("frames") - names.index("addr")
    )
    kinds += ["int32"] * (len(names) - len(kinds))
    for name, kind, (column, dtype) in zip(names, kinds, compiled_pickle._COLUMNS, strict=True):
        assert column.startswith(name)
        assert np.dtype(dtype) == kind


def test_a_replay_has_the_same_settings_and_figures_in_python_and_c():
    snapshot = load_snapshot(FIXTURE)
    calls = find_calls(snapshot, snapshot.devices[0], replay(snapshot, snapshot.devices[0]))
    settings = list(compiled_replay._settings(requests_of(calls, Trial(calls.file_settings))))
    assert len(names_of("replay_setting")) - 1 == len(settings)
    assert len(names_of("replay_figure")) - 1 == compiled_replay._N_FIGURES
    figures = [name.removeprefix("figure_") for name in names_of("replay_figure")]
    expected = [name.removesuffix("_bytes").removeprefix("n_") for name in compiled_replay._LEDGER]
    assert figures[: len(expected)] == expected


def test_no_leaves_the_core_out():
    with twin("no"):
        assert library.core() is None
        assert library.kind() == "pure Python"


@needs_core
def test_the_core_was_built_after_the_last_change_of_its_sources():
    newest = max(HEADER.parent.iterdir(), key=lambda path: path.stat().st_mtime)
    is_newer = newest.stat().st_mtime > library.FILE.stat().st_mtime
    assert not is_newer, (
        f"{newest.name} is newer than {library.FILE.name}: run pip install -e . again"
    )


@needs_core
def test_require_takes_the_core():
    with twin("require"):
        assert isinstance(library.core(), ctypes.CDLL)
        assert library.kind() == "compiled core"


def test_without_the_file_auto_is_the_twin_and_require_an_error(another_library):
    with twin("auto"):
        assert library.core() is None
    with (
        twin("require"),
        pytest.raises(SnapconvError, match=r"there is no compiled core: .* C compiler"),
    ):
        library.core()


def test_a_file_that_is_no_library_is_named(another_library):
    another_library.write_bytes(b"no library")
    with twin("require"), pytest.raises(SnapconvError, match=r"core\..* cannot be loaded"):
        library.core()


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_a_library_of_another_version_is_not_used(another_library, tmp_path):
    source = tmp_path / "other.c"
    source.write_text("int snapconv_abi(void) { return 0; }\n", encoding="utf-8")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", another_library, source], check=True)
    with twin("auto"):
        assert library.core() is None
    with (
        twin("require"),
        pytest.raises(SnapconvError, match=f"another version \\(0, not {library.ABI}\\)"),
    ):
        library.core()


def test_another_word_is_an_error_with_the_words_that_there_are(capsys):
    with twin("maybe"):
        assert main(["--version"]) == 1
    assert (
        capsys.readouterr().err
        == "error: SNAPCONV_NATIVE=maybe: expected one of auto, no, require\n"
    )
