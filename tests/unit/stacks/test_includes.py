"""What ``--include`` names: a package wherever it is installed, or a folder."""

import pytest

from snapconv.cli.app import main
from snapconv.stacks.project_frames import parse_include
from tests.builders import TraceBuilder, frame

SITE = "/opt/venv/lib/python3.11/site-packages"


def holds(text, path, root="/w/proj"):
    return parse_include(text, root=root).contains(path)


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("timm", f"{SITE}/timm/layers/mlp.py"),
        ("timm.layers", f"{SITE}/timm/layers/mlp.py"),
        ("timm/layers", f"{SITE}/timm/layers/mlp.py"),
        ("timm/layers/", f"{SITE}/timm/layers/mlp.py"),
        ("timm.layers.mlp", f"{SITE}/timm/layers/mlp.py"),
        ("timm/layers/mlp.py", f"{SITE}/timm/layers/mlp.py"),
        ("timm.models", "/home/me/src/pytorch-image-models/timm/models/vit.py"),
        ("einops", f"{SITE}/einops.py"),
        ("json", "/usr/lib/python3.11/json/decoder.py"),
        ("timm\\models", "c:/Python311/Lib/site-packages/timm/models/vit.py"),
        (f"{SITE}/timm", f"{SITE}/timm/layers/mlp.py"),
        ("/w/lib/", "/w/lib/a.py"),
        ("/w/lib/a.py", "/w/lib/a.py"),
        ("../lib", "/w/lib/a.py"),
        ("./vendored", "/w/proj/vendored/a.py"),
    ],
)
def test_a_file_lies_in_what_is_included(text, path):
    assert holds(text, path)


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("timm", f"{SITE}/timmy/mlp.py"),
        ("layers", f"{SITE}/timm/layers/mlp.py"),
        ("mingpt", "/home/me/mingpt/.venv/lib/python3.11/site-packages/torch/x.py"),
        ("mingpt", "/home/me/mingpt/.venv/lib/python3.11/json/decoder.py"),
        ("/w/lib", "/w/lib2/a.py"),
        ("me", "/tmp/torchinductor_me/me/cabcdef.py"),
    ],
)
def test_a_file_is_outside_of_what_only_resembles_it(text, path):
    assert not holds(text, path)


def test_a_package_is_shown_as_it_was_named():
    assert parse_include("timm.layers", root=None).text == "timm.layers"


@pytest.mark.parametrize(("more", "is_mine"), [((), False), (("--include", "timm.layers"), True)])
def test_explain_shows_the_lines_of_what_is_included(tmp_path, capsys, more, is_mine):
    frames = [
        frame("forward", f"{SITE}/timm/layers/mlp.py", 7),
        frame("<module>", "/w/proj/train.py", 3),
    ]
    builder = TraceBuilder().segment().alloc(512, frames=frames)
    assert main(["explain", str(builder.write(tmp_path / "s.pickle")), "#1", *more]) == 0
    code = [
        line.split()[1:]
        for line in capsys.readouterr().out.splitlines()
        if line.startswith("  code")
    ]
    assert ("timm/layers/mlp.py:7" in code[0]) is is_mine
