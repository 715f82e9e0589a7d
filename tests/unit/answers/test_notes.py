"""Where one or two lines hold most of the peak, a note names the package whose lines distinguish it."""

import pytest

from snapconv import load
from tests.builders import TraceBuilder, frame

SITE = "/opt/venv/lib/python3.11/site-packages"
MAIN = frame("<module>", "/w/proj/train.py", 9)
KIB = 1024


def made_at(*places):
    """A stack, leaf first: places are FILE:LINE below site-packages, then the script's line."""
    pairs = (place.split(":") for place in places)
    return [*(frame("forward", f"{SITE}/{file}", int(line)) for file, line in pairs), MAIN]


def notes_of(tmp_path, *stacks, **options):
    builder = TraceBuilder().segment(size=1 << 21)
    for n_kib, stack in stacks:
        builder.alloc(n_kib * KIB, frames=stack)
    found = load(builder.write(tmp_path / "s.pickle"), **options).notes
    return [note.message for note in found if note.slug == "dominant-lines"]


LAYERS = [(100, made_at(f"nets/layers/net.py:{line}", "nets/run.py:5")) for line in range(1, 6)]


def test_the_package_whose_lines_split_it_is_named(tmp_path):
    (message,) = notes_of(tmp_path, *LAYERS)
    assert message.startswith("100.0 % of the peak is on one line of the project")
    assert "--include nets/layers " in message


def test_a_package_that_is_included_is_not_named_again(tmp_path):
    assert notes_of(tmp_path, *LAYERS, includes=["nets"]) == []


def test_a_library_that_calls_everything_on_one_line_is_not_named(tmp_path):
    assert notes_of(tmp_path, *[(100, made_at("launch/run.py:5")) for _ in range(5)]) == []


def test_torch_is_not_named(tmp_path):
    assert notes_of(tmp_path, *[(100, made_at(f"torch/nn/layers.py:{n}")) for n in range(1, 6)]) == []


def test_two_lines_that_hold_less_than_half_of_the_peak_give_no_note(tmp_path):
    own = [(100, [frame("forward", "/w/proj/net.py", line), MAIN]) for line in range(1, 13)]
    assert notes_of(tmp_path, *LAYERS, *own) == []


@pytest.mark.parametrize(("n_kib", "is_said"), [(300, True), (30, False)])
def test_a_package_that_holds_little_is_not_named(tmp_path, n_kib, is_said):
    layers = [(n_kib // 3, made_at(f"nets/layers/net.py:{line}")) for line in range(1, 4)]
    assert bool(notes_of(tmp_path, (1000, [MAIN]), *layers)) is is_said


def test_a_folder_beside_the_one_that_was_named_is_named_by_its_path(tmp_path):
    stacks = [(100, [frame("forward", "/w/lib/net.py", line), MAIN]) for line in range(1, 6)]
    (message,) = notes_of(tmp_path, *stacks, project_root="/w/proj")
    assert "--include /w/lib " in message
