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
OWN = [(100, [frame("forward", "/w/proj/net.py", line), MAIN]) for line in range(1, 13)]
BESIDE = [(100, [frame("forward", "/w/lib/net.py", line), MAIN]) for line in range(1, 6)]


def few(n_kib):
    return [(1000, [MAIN]), *((n_kib, made_at(f"nets/layers/net.py:{line}")) for line in range(1, 4))]


@pytest.mark.parametrize(
    ("stacks", "options", "named"),
    [
        pytest.param(LAYERS, {}, "nets/layers", id="the package whose lines split it"),
        pytest.param(BESIDE, {"project_root": "/w/proj"}, "/w/lib", id="a folder beside the one named"),
        pytest.param(few(100), {}, "nets/layers", id="a package that holds enough"),
        pytest.param(few(10), {}, None, id="a package that holds little"),
        pytest.param(LAYERS, {"includes": ["nets"]}, None, id="included already"),
        pytest.param([(100, made_at("launch/run.py:5"))] * 5, {}, None, id="calls all on one line"),
        pytest.param([(100, made_at(f"torch/nn/a.py:{n}")) for n in range(1, 6)], {}, None, id="torch"),
        pytest.param([*LAYERS, *OWN], {}, None, id="two lines with less than half of the peak"),
    ],
)
def test_the_package_is_named_whose_lines_split_the_memory_of_one_line(tmp_path, stacks, options, named):
    found = notes_of(tmp_path, *stacks, **options)
    assert len(found) == (named is not None)
    assert all(f"on one line of the project that calls a library: --include {named} " in one for one in found)
