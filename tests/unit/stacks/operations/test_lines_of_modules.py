"""Lines of torch.nn that call C++: which module of a file a frame is of, where its line shows it."""

import inspect
import re
from pathlib import Path

import pytest

from snapconv.snapshot.stack_table import StackInterner
from snapconv.stacks.operations.lines_of_modules import name_of_line, releases_of
from tests.builders import name_operations

MODULES = "/venv/lib/python3.11/site-packages/torch/nn/modules"
# Of torch 2.6, as its own file has them: `_conv_forward` of Conv2d, and where a module is called.
CONV2D, CALLS_OF_2_6 = 549, (1739, 1750)


def table(*frames):
    """One stack; a frame is its function, its file in torch.nn.modules, and its line."""
    interner = StackInterner()
    raw = [
        {"name": name, "filename": f"{MODULES}/{file}", "line": line}
        for name, file, line in (*frames, ("main", "../../../../../../proj/train.py", 3))
    ]
    interner.ids([raw], str)
    return interner.table()


def calls(*lines):
    return [("_wrapped_call_impl", "module.py", line) for line in lines]


def test_the_line_shows_which_convolution_it_is():
    conv = ("_conv_forward", "conv.py", CONV2D)
    assert name_operations(table(conv, *calls(*CALLS_OF_2_6))) == ("conv2d",)


def test_without_a_known_release_the_generic_name_stays():
    conv = ("_conv_forward", "conv.py", CONV2D)
    assert name_operations(table(conv)) == ("conv",)
    assert name_operations(table(conv, *calls(99_001, 99_002))) == ("conv",)


def test_a_line_that_the_release_does_not_have_is_no_evidence():
    conv = ("_conv_forward", "conv.py", CONV2D + 1)
    assert name_operations(table(conv, *calls(*CALLS_OF_2_6))) == ("conv",)


def test_lines_of_another_release_are_no_evidence():
    # 459 is Conv2d in torch 2.0 only.
    conv = ("_conv_forward", "conv.py", 459)
    assert name_operations(table(conv, *calls(*CALLS_OF_2_6))) == ("conv",)
    assert name_operations(table(conv, *calls(1501))) == ("conv2d",)


def test_the_release_is_that_with_most_of_the_lines():
    stacks = table(("forward", "rnn.py", 1), *calls(1773, 1784, 4000))
    assert releases_of(stacks.frames) == {"2.8"}


def test_a_file_of_the_user_is_none_of_torch():
    interner = StackInterner()
    raw = [{"name": "forward", "filename": "/proj/conv.py", "line": CONV2D}]
    interner.ids([raw], str)
    assert name_of_line(interner.table().frames, 0, frozenset({"2.6"})) is None


@pytest.mark.parametrize(
    ("file", "call", "name"),
    [
        ("conv.py", r"F\.conv1d\($", "conv1d"),
        ("conv.py", r"F\.conv2d\($", "conv2d"),
        ("conv.py", r"F\.conv_transpose3d\(", "conv_transpose3d"),
        ("rnn.py", r"= _VF\.gru\(", "gru"),
        ("rnn.py", r"= _VF\.lstm\(", "lstm"),
        ("activation.py", r"return F\.gelu\(", "gelu"),
        ("activation.py", r"return torch\.tanh\(", "tanh"),
        ("pooling.py", r"return F\.avg_pool2d\($", "avg_pool2d"),
    ],
)
def test_the_installed_torch_has_these_lines(file, call, name):
    """As far as its release was read: a newer one is not known, which is no fault."""
    torch = pytest.importorskip("torch")
    folder = Path(inspect.getfile(torch.nn.Module)).parent
    module = (folder / "module.py").read_text(encoding="utf-8").splitlines()
    called = [
        n for n, text in enumerate(module, 1) if re.search(r"self\._call_impl\(|forward_call\(\*args", text)
    ]
    source = (folder / file).read_text(encoding="utf-8").splitlines()
    lines = [n for n, text in enumerate(source, 1) if re.search(call, text)]
    if not releases_of(table(*calls(*called)).frames):
        pytest.skip(f"torch {torch.__version__} is newer than the table")
    assert lines
    for line in lines:
        assert name_operations(table(("forward", file, line), *calls(*called))) == (name,)
