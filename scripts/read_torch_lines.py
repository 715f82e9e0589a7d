"""Print what torch_knowledge knows of lines, in module_lines.py and optimizer_lines.py, from torch's sources.

    python scripts/read_torch_lines.py FOLDER

FOLDER has a folder per release (`2.0.1`, `2.13`), each with what an unpacked wheel has: torch/nn/modules and
torch/optim. Of modules only what Python leaves no frame of is of interest: the functions of torch that are
written in C++.
"""

import ast
import re
import sys
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import TypeGuard

from snapconv.stacks.operations.source_lines import SourceFile, read_source

FILES = (
    "activation.py channelshuffle.py conv.py distance.py flatten.py linear.py pixelshuffle.py pooling.py "
    "rnn.py transformer.py"
).split()
# What makes no memory to speak of: the checks of arguments, and sizes.
LEFT_OUT = re.compile(
    r"^(ne|eq|gt|lt|ge|le|mul|sub|equal|getitem|setitem|contiguous|empty_like|full|linear|pad)$"
)
ADAM = re.compile(r"^_(single|multi)_tensor_adamw?$")
ROOT = re.compile(r"^(_foreach_)?sqrt$")
CALLS = re.compile(r"forward_call\(\*args|return self\._call_impl\(|self\._slow_forward\(\*|return inner\(\)")


def main(folder: Path) -> None:
    """Print both tables; releases with the same lines share a row."""
    releases = sorted(folder.iterdir(), key=lambda path: [int(part) for part in path.name.split(".")])
    for path in releases:
        text = (path / "torch/nn/modules/module.py").read_text(encoding="utf-8").splitlines()
        print(f'    "{path.name}": {tuple(n for n, line in enumerate(text, 1) if CALLS.search(line))},')
    for file in FILES:
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
    source = read_source(path.read_text(encoding="utf-8"), f"torch.nn.modules.{path.stem}")
    assert source is not None, path
    found: dict[str, tuple[int, ...]] = {}
    for name, line in _named(source):
        # Elsewhere what looks like a sum is one of numbers or of texts.
        if not LEFT_OUT.match(name) and (name != "add" or path.name == "transformer.py"):
            found[name] = (*found.get(name, ()), line)
    return found


def _named(source: SourceFile) -> Iterator[tuple[str, int]]:
    for scope in sorted(chain.from_iterable(source.scopes.values()), key=lambda scope: scope.first_line):
        if isinstance(scope.node, ast.FunctionDef) and scope.name not in ("__init__", "reset_parameters"):
            for number in range(scope.first_line, scope.last_line + 1):
                line = source.line(scope.name, number)
                here = [step for step in line.steps if step.most != 0 and step.line == number] if line else []
                if len({step.name for step in here}) == 1:
                    yield here[0].name, number


if __name__ == "__main__":
    main(Path(sys.argv[1]))
