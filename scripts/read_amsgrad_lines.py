"""Print AMSGRAD, the lines of torch's Adam that torch_knowledge/optimizers.py has, from torch's sources.

    python scripts/read_amsgrad_lines.py FOLDER

FOLDER has a folder per release (`2.0.1`, `2.13`), each with what an unpacked wheel has in torch/optim.
"""

import ast
import re
import sys
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import TypeGuard

ADAM = re.compile(r"^_(single|multi)_tensor_adamw?$")
ROOT = re.compile(r"^(_foreach_)?sqrt$")


def main(folder: Path) -> None:
    """Print the table."""
    for function, lines in sorted(_amsgrad(sorted(folder.iterdir())).items()):
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


if __name__ == "__main__":
    main(Path(sys.argv[1]))
