"""The text of a source file -> the operations that a line of it calls."""

import sys
import textwrap
import time

import pytest

from snapconv.stacks.operations.source_lines import read_source

IMPORTS = """
import math
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn import functional
from torch.nn.functional import gelu as smooth
"""


def names(body, line=None, *, function="forward", arguments="self, x, y, w, mask"):
    """The operations of a body's line (of its last one by default) that may allocate."""
    head = f"{IMPORTS}\ndef {function}({arguments}):\n"
    text = head + textwrap.indent(textwrap.dedent(body), "    ")
    number = head.count("\n") + (line or body.rstrip().count("\n") + 1)
    found = read_source(text).line(function, number)
    return [step.name for step in found.steps if step.most != 0]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("return torch.cat((x, y), 1)", ["cat"]),
        ("return F.gelu(x)", ["gelu"]),
        ("return functional.gelu(x)", ["gelu"]),
        ("return nn.functional.gelu(x)", ["gelu"]),
        ("return smooth(x)", ["gelu"]),
        ("return x.softmax(-1)", ["softmax"]),
        ("return torch.ops.mine.kernel(x)", ["kernel"]),
        ("return torch.linalg.norm(x)", ["linalg_norm"]),
        ("return x + y", ["add"]),
        ("return -x @ y", ["neg", "matmul"]),
        ("return x > 0", ["gt"]),
        ("return x[mask]", ["getitem"]),
        ("return x[y > 0]", ["gt", "getitem"]),
        ("return sum(losses)", ["add"]),
        ("total += x", ["add"]),
        ("x[mask] = y", ["setitem"]),
    ],
)
def test_calls_of_torch_and_operators_have_the_users_words(line, expected):
    assert names(line) == expected


@pytest.mark.parametrize(
    "line",
    [
        "return self.attention(x)",
        "return self.softmax(x)",
        "return helper(x)",
        "return np.exp(x)",
        "return math.sqrt(x)",
        "return super().exp(x)",
        "return nn.Linear(3, 4)",
        "return F.relu(x)",
        "return x.norm()",
        "return torch.einsum('ij,jk', x, y)",
        "return 1 - x",
        "return x ** 2",
        "return x is None",
        "return lambda: x + y",
        "return (z + y for z in x)",
    ],
)
def test_what_has_a_frame_of_its_own_does_not_count(line):
    assert names(line) == []


@pytest.mark.parametrize(
    "line",
    [
        "return x.view(3, -1).transpose(0, 1)[:, 2:].unsqueeze(0)",
        "return x.T",
        "return x[0]",
        "return x[..., None]",
        "x.add_(y)",
    ],
)
def test_views_and_what_writes_in_place_do_not_count(line):
    assert names(line) == []


def test_a_view_is_named_where_nothing_else_is_there():
    found = read_source("def f(x):\n    return x.expand(3, 4)\n").line("f", 2)
    assert [(step.name, step.most) for step in found.steps] == [("expand", 0)]


def test_operations_come_in_the_order_of_evaluation():
    assert names("return torch.relu(x @ w) + torch.tanh(y * 2).sum()") == [
        "matmul", "relu", "mul", "tanh", "sum", "add",
    ]  # fmt: skip
    assert names("z[mask] = x * y") == ["mul", "setitem"]
    assert names("return x.exp().clamp(min=y.sum())") == ["exp", "sum", "clamp"]


def test_arithmetic_of_sizes_and_numbers_is_none_of_tensors():
    body = """\
        n, length, width = x.shape
        head = width * 4
        return (x.reshape(n, length * 2, width + self.n) @ w) / math.sqrt(width * head)
    """
    assert names(body) == ["reshape", "matmul", "div"]


def test_a_name_that_once_held_a_tensor_is_no_number():
    assert names("scale = 1\nscale = x.sum()\nreturn scale * y") == ["mul"]
    assert names("scale = 1\nreturn scale * 3 + y") == ["add"]


def test_of_a_statement_on_several_lines_the_lines_own_operations_count():
    body = """\
        z = torch.cat(
            (torch.tanh(x),
             x * y),
        )
    """
    assert names(body, 1) == ["cat"]
    assert names(body, 2) == ["tanh"]
    assert names(body, 3) == ["mul"]
    # On a line of no operation all of the statement may be meant.
    assert names(body, 4) == ["tanh", "mul", "cat"]


def test_a_method_has_the_line_of_its_name():
    body = """\
        z = (x
             .exp()
             .sum())
    """
    assert names(body, 2) == ["exp"]
    assert names(body, 3) == ["sum"]
    # CPython before 3.10 says the line on which the expression begins.
    assert names(body, 1) == ["exp", "sum"]


def test_the_head_of_a_loop_is_not_its_body():
    body = """\
        for z in x.exp():
            y = z * w
    """
    assert names(body, 1) == ["exp"]
    assert names(body, 2) == ["mul"]


def test_a_lambda_and_a_comprehension_have_frames_of_their_own():
    text = "import torch\ndef f(x):\n    g = lambda y: y + 1\n    return [z * 2 for z in torch.exp(x)]\n"
    source = read_source(text)
    assert [step.name for step in source.line("<lambda>", 3).steps] == ["add"]
    assert [step.name for step in source.line("<listcomp>", 4).steps] == ["mul"]
    # In line since CPython 3.12: then the function's own frame has it.
    assert [step.name for step in source.line("f", 4).steps] == ["exp", "mul"]


def test_the_rest_of_a_function_after_a_graph_break_is_that_function():
    source = read_source("def forward(x):\n    return x + 1\n")
    assert source.line("torch_dynamo_resume_in_forward_at_2", 2) is not None
    assert not source.contradicts("torch_dynamo_resume_in_forward_at_2", 2)


def test_relative_imports_of_an_installed_module_lead_to_torch():
    text = "from .. import functional as F\ndef forward(x):\n    return F.gelu(x)\n"
    assert [step.name for step in read_source(text, "torch.nn.modules.mine").line("forward", 3).steps] == [
        "gelu"
    ]
    # Of the user's own package it is not known what they are.
    assert read_source(text).line("forward", 3).steps == ()


def test_a_line_is_accepted_only_in_a_function_of_the_frames_name():
    source = read_source("def f(x):\n    return x + 1\n\ndef g(x):\n    return x * 2\n")
    assert [step.name for step in source.line("g", 5).steps] == ["mul"]
    assert source.line("f", 5) is None
    assert source.contradicts("f", 5)
    assert source.line("h", 5) is None


@pytest.mark.parametrize(
    ("function", "contradicts"),
    [
        ("h", True),
        ("f", False),
        ("<lambda>", False),
        ("<generic parameters of f>", False),
        ("torch_dynamo_resume_in_f_at_2", False),
        ("torch_dynamo_resume_in_<lambda>_at_2", False),
    ],
)
def test_a_function_that_the_file_does_not_have_contradicts_it(function, contradicts):
    assert read_source("def f(x):\n    return x + 1\n").contradicts(function, 2) == contradicts


def test_a_decorator_is_a_line_of_its_function():
    assert not read_source("@cache\ndef f(x):\n    return x + 1\n").contradicts("f", 1)


@pytest.mark.parametrize(
    ("line", "function", "expected"),
    [
        ("f, h = lambda x: x.relu(), lambda x: x.exp()", "<lambda>", None),
        ("f, h = lambda x: x.relu(), lambda y: y.relu()", "<lambda>", ["relu"]),
        ("z = max(x.relu() for x in a), max(x.exp() for x in b)", "<genexpr>", None),
        # The outer one makes the list that the inner one runs over.
        ("z = [[x.relu() for x in y.exp()] for y in a]", "<listcomp>", None),
        ("z = [[x.relu() for x in y] for y in a]", "<listcomp>", ["relu"]),
    ],
)
def test_of_several_scopes_of_a_name_on_a_line_none_is_taken_for_the_other(line, function, expected):
    found = read_source(line + "\n").line(function, 1)
    assert (found and [step.name for step in found.steps]) == expected


def test_a_scope_within_another_of_its_name_has_its_own_lines():
    source = read_source("f = lambda x: g(\n    lambda y: y + 1,\n) * 2\n")
    assert [step.name for step in source.line("<lambda>", 2).steps] == ["add"]
    assert [step.name for step in source.line("<lambda>", 1).steps] == ["mul"]


@pytest.mark.parametrize(
    "body",
    [
        "def f(x, cat):\n    return cat(x)",
        "def f(x, *cat):\n    return cat(x)",
        "def f(x):\n    cat = x.y\n    return cat(x)",
        "def f(x):\n    for cat in x:\n        return cat(x)",
        "def f(x):\n    def cat(y): pass\n    return cat(x)",
        "def f(x):\n    return [cat(x) for cat in x]",
        "def f(x, cat):\n    def g():\n        pass\n    return [cat(y) for y in x]",
        "def g():\n    from torch import tanh\ndef f(x):\n    return tanh(x)",
    ],
)
def test_what_hides_an_import_is_not_what_was_imported(body):
    text = f"from torch import cat\n{body}\n"
    assert read_source(text).line("f", text.count("\n")).steps == ()


@pytest.mark.parametrize(
    "body",
    [
        "def f(x):\n    return cat(x)",
        "def f(x):\n    y = [cat for cat in x]\n    return cat(x)",
        "def f(x):\n    def g(cat): pass\n    return cat(x)",
        "def f(x):\n    global cat\n    cat = cat\n    return cat(x)",
        "def f(x):\n    import torch\n    return torch.cat(x)",
        "class C:\n  cat = 1\n  def f(x):\n    return cat(x)",
        "try:\n  from torch import cat\nexcept ImportError:\n  cat = None\ndef f(x):\n    return cat(x)",
    ],
)
def test_what_hides_it_elsewhere_does_not_matter(body):
    text = f"from torch import cat\n{body}\n"
    assert [step.name for step in read_source(text).line("f", text.count("\n")).steps] == ["cat"]


def test_the_numbers_of_a_module_are_not_those_of_its_functions():
    text = "scale = load()\ndef g():\n    scale = 2\n    return [size for size in range(3)]\n"
    text += "size = load()\ny = make(scale * 3, size * 2)\n"
    assert [step.name for step in read_source(text).line("<module>", 6).steps] == ["mul", "mul"]
    text = "def g():\n    scale = load()\nscale = 2\ny = scale * 3 + load()\n"
    assert [step.name for step in read_source(text).line("<module>", 4).steps] == ["add"]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("parts = []\nreturn parts[0] * 2", ["mul"]),
        ("parts = []\nreturn [part.exp() for part in parts]", ["exp"]),
        ("parts = {}\nreturn parts[x]", []),
        ("parts = {}\nparts[x] = y", []),
        ("parts = []\nreturn parts + [x]", []),
        ("sizes = [3, 4]\nreturn make(sizes[0] * 2)", []),
        ("sizes = x.shape\nreturn [make(size * 2) for size in sizes]", []),
    ],
)
def test_of_what_is_in_an_empty_list_nothing_is_known(body, expected):
    assert names(body) == expected


def test_a_comprehension_has_the_numbers_around_it():
    text = "def f(x, n: int):\n    return [make(n * i, y * i) for i, y in enumerate(x)]\n"
    for function in ("f", "<listcomp>"):
        assert [step.name for step in read_source(text).line(function, 2).steps] == ["mul"]


def test_the_names_of_a_long_script_are_found_in_time():
    text = "".join(f"y{n} = {n}\n" for n in range(20_000)) + "z = x @ w\n"
    began = time.process_time()
    assert [step.name for step in read_source(text).line("<module>", 20_001).steps] == ["matmul"]
    assert time.process_time() - began < 4


@pytest.mark.parametrize(
    "text",
    [
        "def f(:\n",
        "print 'Python 2'\n",
        "x = '\0'\n",
        "(" * 5000,
        "x = " + "-" * 200_000 + "1",
        "\ufeff\ufeff\ufeffdef f(): pass",
    ],
)
def test_what_is_no_python_is_no_source(text):
    assert read_source(text) is None


def test_odd_escapes_in_texts_warn_of_nothing():
    assert read_source("x = '\\d'\n") is not None


def test_an_empty_file_has_no_lines():
    assert read_source("").line("<module>", 1) is None


@pytest.mark.parametrize("n_terms", [100, 300, 500, 900, 3000])
def test_deep_expressions_end_without_an_error(n_terms):
    source = read_source("def f(x):\n    return " + " + ".join(["x"] * n_terms) + "\n")
    line = source.line("f", 2) if source else None
    assert line is None or len(line.steps) == n_terms - 1


def noting(name):
    def method(self, *_, **__):
        self.found.append((name, sys._getframe(1).f_lineno))
        return self

    return method


class Recorder:
    """Stands for a tensor, and for torch: notes each operation with the line that CPython is at."""

    def __init__(self):
        self.found = []

    __add__, __mul__, __matmul__, __truediv__ = map(noting, ("add", "mul", "matmul", "div"))
    __neg__, __gt__, __getitem__ = map(noting, ("neg", "gt", "getitem"))
    exp, sum, softmax, cat, tanh, where = map(noting, ("exp", "sum", "softmax", "cat", "tanh", "where"))


EVALUATED = """\
def forward(x, y, w):
    a = torch.cat((x.exp(), y * w), 1) + x @ w
    b = (
        x.exp()
        + torch.tanh(
            y * w,
        ).sum()
    )
    c = (x
         .softmax(-1)
         .sum(
             dim=y > w,
         ))
    d = torch.where(
        x > y,
        -x,
        w / y,
    ) * torch.cat(
        [x, y],
        dim=1,
    )
    z = x[y > w].exp() * (
        y
        @ w
    )
    return a + b, (
        c
        + d * z
    )
"""


def test_order_and_lines_are_those_of_the_running_cpython():
    tensor = Recorder()
    space = {"torch": tensor}
    exec(EVALUATED, space)  # the text above, and no other
    space["forward"](tensor, tensor, tensor)
    source = read_source(EVALUATED + "import torch\n")
    assert len(tensor.found) == 27
    for number in {line for _, line in tensor.found}:
        ran = [name for name, line in tensor.found if line == number]
        said = [step.name for step in source.line("forward", number).steps]
        # A method with keywords is at the line where its expression begins, on CPython 3.10.
        assert said == ran or (sys.version_info < (3, 11) and set(ran) <= set(said)), number
