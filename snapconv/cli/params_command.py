"""``snapconv params``: build a model, and write the list of its parameters.

This module is loaded with the command line, and so imports the recorder only when the command runs.
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from snapconv.errors import OutputWriteError
from snapconv.units import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

_Source = Annotated[
    str,
    typer.Argument(
        metavar="ENTRY[:NAME]",
        help="A file with Skyline's or DeepView's providers; or FILE.py:NAME or MODULE:NAME, a class or a "
        "function that returns the model.",
    ),
]
_Output = Annotated[
    Path | None, typer.Option("--output", "-o", metavar="PATH", help="The list's file. Default: printed.")
]
_OnCpu = Annotated[
    bool,
    typer.Option("--on-cpu", help="Build the model with values: where the meta device, without any, fails."),
]
_Force = Annotated[bool, typer.Option("--force", help="Replace an existing list.")]
_Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but the list and errors.")]


def params(
    entry: _Source,
    output: _Output = None,
    on_cpu: _OnCpu = False,
    force: _Force = False,
    quiet: _Quiet = False,
) -> None:
    """Write the names, shapes and types of a model's parameters.

    `snapconv to-sqlite --params` reads the list. The model is built without memory for its parameters,
    and is not run. This needs torch.
    """
    from snapconv.recorder.program.listing import ModelSource, list_parameters

    if output is not None:
        _check(output, force=force)
    found = list_parameters(ModelSource.parse(entry), on_cpu=on_cpu)
    lines = list(_json_lines(found))
    if output is None:
        sys.stdout.writelines(lines)
        sys.stdout.flush()
        return
    _write(output, lines, force=force)
    if not quiet:
        print(f"{counted(len(found['parameters']), 'tensor')} of {found['model']}: {output}", file=sys.stderr)


def _json_lines(found: dict[str, Any]) -> "Iterator[str]":
    """Write a parameter a line, so that lists can be read and compared."""
    from snapconv.json_text import write_json

    head = {key: value for key, value in found.items() if key != "parameters"}
    yield write_json(head).decode().removesuffix("}") + ',"parameters":[\n'
    rows = [write_json(row).decode() for row in found["parameters"]]
    yield ",\n".join(rows) + "\n]}\n"


def _check(output: Path, *, force: bool) -> None:
    from snapconv.files import check_outputs

    if not output.name:
        raise OutputWriteError(f"{output} names no file: give --output FOLDER/params.json")
    check_outputs([output], force=force)


def _write(output: Path, lines: list[str], *, force: bool) -> None:
    from snapconv.files import new_files

    with new_files([output], force=force) as (temporary,):
        temporary.write_text("".join(lines), encoding="utf-8")
