"""Arguments and options that several commands share, and how their texts are parsed."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from snapconv.errors import InputError
from snapconv.units import parse_device

if TYPE_CHECKING:
    from snapconv.stacks.paths import PathMap


def no_pipe(path: Path | None) -> Path | None:
    """Refuse a pipe before it is opened, which may wait for ever."""
    with suppress(OSError):  # what cannot be looked at has its error when it is read
        if path is not None and path.is_fifo():
            raise InputError(f"{path} is a pipe, and a snapshot is read twice: save it to a file first")
    return path


# Whether a file can be read is seen when it is read: typer's own look at it would end with the code of a
# wrong command line.
Snapshot = Annotated[
    Path,
    typer.Argument(
        metavar="SNAPSHOT",
        help="A snapshot (a pickle, its gzip, JSON, a page of torch's viewer), or a capture's folder.",
        callback=no_pipe,
        readable=False,
    ),
]
ProjectRoot = Annotated[
    str | None,
    typer.Option(
        "--project-root",
        help="Count only what is below this folder as the project; as recorded, it need not exist here. "
        "Default: all Python files that are not installed.",
    ),
]
Includes = Annotated[
    list[str] | None,
    typer.Option(
        "--include",
        metavar="PACKAGE_OR_PATH",
        help="Count a library as part of the project too: a package such as timm.models, or a folder as the "
        "file has it. May be repeated. Always counted: transformers.models, diffusers.models.",
    ),
]
PathMaps = Annotated[
    list[str] | None,
    typer.Option("--path-map", metavar="OLD=NEW", help="Show files below OLD as below NEW. May be repeated."),
]
Rules = Annotated[
    Path | None,
    typer.Option(
        "--rules",
        help="Your own rules for categories (TOML or JSON), evaluated before snapconv's.",
        readable=False,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for machines instead of text.")]
Force = Annotated[bool, typer.Option("--force", help="Replace what is there already.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]


def device_number(text: str | None) -> int | None:
    """Read the number of a device, or None where none is named."""
    try:
        return None if text is None else parse_device(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--device") from error


def path_maps_of(texts: Sequence[str]) -> "tuple[PathMap, ...]":
    """Read every ``OLD=NEW``."""
    from snapconv.stacks.paths import parse_path_map

    try:
        return tuple(parse_path_map(text) for text in texts)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--path-map") from error
