"""Print what torch_knowledge knows of lines, in module_lines.py and optimizers.py, from torch's sources.

    python scripts/read_torch_lines.py FOLDER

FOLDER has a folder per release (`2.0.1`, `2.13`), each with what an unpacked wheel has: torch/nn/modules and
torch/optim. Of modules only what Python leaves no frame of is of interest: the functions of torch that are
written in C++, as NAMES has them.
"""

import ast
import re
import sys
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import TypeGuard

NAMES = {
    "activation.py": "gelu hardshrink logsigmoid prelu sigmoid softplus softshrink tanh",
    "channelshuffle.py": "channel_shuffle",
    "conv.py": "conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d",
    "distance.py": "cosine_similarity pairwise_distance",
    "flatten.py": "flatten",
    "linear.py": "bilinear",
    "pixelshuffle.py": "pixel_shuffle pixel_unshuffle",
    "pooling.py": "adaptive_avg_pool1d avg_pool1d avg_pool2d avg_pool3d",
    "rnn.py": "gru gru_cell index_select lstm lstm_cell rnn_relu rnn_relu_cell rnn_tanh rnn_tanh_cell zeros",
    "transformer.py": "add logical_not to triu",
}
ADAM = re.compile(r"^_(single|multi)_tensor_adamw?$")
ROOT = re.compile(r"^(_foreach_)?sqrt$")
CALLS = re.compile(r"forward_call\(\*args|return self\._call_impl\(|self\._slow_forward\(\*|return inner\(\)")


def main(folder: Path) -> None:
    """Print both tables; releases with the same lines share a row."""
    releases = sorted(folder.iterdir(), key=lambda path: [int(part) for part in path.name.split(".")])
    for path in releases:
        text = (path / "torch/nn/modules/module.py").read_text(encoding="utf-8").splitlines()
        print(f'    "{path.name}": {tuple(n for n, line in enumerate(text, 1) if CALLS.search(line))},')
    for file in NAMES:
        rows: dict[str, list[str]] = {}
        for path in releases:
            row = str(_lines(path / "torch/nn/modules" / file))
            rows[row] = [*rows.get(row, []), path.name]
        print(f'    "{file}": (')
        for row, same in rows.items():
            print(f'        ("{" ".join(same)}", {row}),')
        print("    ),")
    for function, lines in sorted(_amsgrad(releases).items()):
        print(f'    "{function}": frozenset({tuple(sorted(lines))}),')


def _amsgrad(releases: list[Path]) -> dict[str, set[int]]:
    """By function of Adam, the lines of roots that only amsgrad computes, in none of the releases another."""
    only: dict[str, set[int]] = {}
    others: dict[str, set[int]] = {}
    for path in chain.from_iterable(
        sorted((release / "torch/optim").glob("adam*.py")) for release in releases
    ):
        for function in ast.parse(path.read_text(encoding="utf-8")).body:
            if not (isinstance(function, ast.FunctionDef) and ADAM.match(function.name)):
                continue
            for branch in filter(_is_amsgrad, ast.walk(function)):
                only.setdefault(function.name, set()).update(_roots(branch.body))
                others.setdefault(function.name, set()).update(_roots(branch.orelse))
    return {name: lines - others[name] for name, lines in only.items()}


def _is_amsgrad(node: ast.AST) -> TypeGuard[ast.If]:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "amsgrad"


def _roots(body: list[ast.stmt]) -> Iterator[int]:
    for node in chain.from_iterable(map(ast.walk, body)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and ROOT.match(node.func.attr):
            yield node.lineno


def _lines(path: Path) -> dict[str, tuple[int, ...]]:
    """By operation, the lines of one module's file that call it and no other."""
    wanted = set(NAMES[path.name].split())
    called: dict[int, set[str]] = {}
    for function in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(function, ast.FunctionDef) and function.name not in ("__init__", "reset_parameters"):
            for name, line in chain.from_iterable(map(_called, ast.walk(function))):
                if name in wanted:
                    called.setdefault(line, set()).add(name)
    found: dict[str, tuple[int, ...]] = {}
    for line, names in sorted(called.items()):
        if len(names) == 1:
            name = names.pop()
            found[name] = (*found.get(name, ()), line)
    return found


def _called(node: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield the operation of a call or of a sum, at the line that CPython gives to it: that of its name.

    A sum has a name at its left, ``x + self.block(x)``: what begins with a call is one of numbers.
    """
    match node:
        case ast.Call(func=ast.Attribute(attr=name) as called) if called.end_lineno:
            yield name, called.end_lineno
        case ast.BinOp(left=ast.Name() | ast.Attribute(), op=ast.Add()):
            yield "add", node.lineno


if __name__ == "__main__":
    main(Path(sys.argv[1]))
