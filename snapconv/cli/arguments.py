"""Arguments and options that several commands share, and how their texts are parsed."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from snapconv.errors import InputError
from snapconv.units import parse_bytes, parse_device

if TYPE_CHECKING:
    from snapconv.analysis import AnalysisOptions
    from snapconv.answers.moments import MomentQuestion

_Value = TypeVar("_Value")


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
Certain = Annotated[
    bool, typer.Option("--certain", help="Count only what is certain: what is likely becomes unknown.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for machines instead of text.")]
Force = Annotated[bool, typer.Option("--force", help="Replace what is there already.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]
At = Annotated[
    str,
    typer.Option(
        "--at",
        metavar="MOMENT",
        help="The moment: peak, start, end, worst (most reserved and not in use), oom, oom:2, iteration:3, "
        "annotation:NAME, 'largest activations', or an event such as 1234.",
    ),
]
FailOver = Annotated[
    str | None,
    typer.Option(
        "--fail-over",
        metavar="PERCENT",
        help="End with 7 where a device's peak of allocated bytes is higher by more than this, such as 2%.",
    ),
]
OneDevice = Annotated[
    str | None,
    typer.Option(
        "--device", metavar="N", help="This device only, or `host` for pinned memory. Default: each."
    ),
]
DeviceTotal = Annotated[
    str | None,
    typer.Option(
        "--device-total",
        metavar="SIZE",
        help="The device's memory, such as 80GiB, where the file does not have it (nvidia-smi shows it).",
    ),
]


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Options of reading a file: the project, and the names of what is in it."""

    project_root: str | None = None
    include: "list[str] | None" = None
    path_map: "list[str] | None" = None
    rules: Path | None = None
    params: Path | None = None
    certain: bool = False

    def analysis(self) -> "AnalysisOptions":
        """Return the options as the library takes them; raises BadParameter for a text that is wrong."""
        from snapconv.analysis import AnalysisOptions
        from snapconv.stacks.paths import parse_path_map

        path_maps = (parsed(text, parse_path_map, "--path-map") for text in self.path_map or ())
        return AnalysisOptions(
            project_root=self.project_root,
            includes=tuple(self.include or ()),
            path_maps=tuple(path_maps),
            rules=self.rules or (),
            params=self.params,
            certain=self.certain,
        )


def parsed(text: str, parse: Callable[[str], _Value], option: str) -> _Value:
    """Parse the text of an option; its ValueError is a wrong command line."""
    try:
        return parse(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from error


def device_number(text: str | None) -> int | None:
    """Read ``--device``; None where none is named."""
    return None if text is None else parsed(text, parse_device, "--device")


def size_of(text: str | None, option: str) -> int | None:
    """Read a size such as 38GiB; None where it is not given."""
    return None if text is None else parsed(text, parse_bytes, option)


def moment_question(text: str) -> "MomentQuestion":
    """Read ``--at``."""
    from snapconv.answers.moments import parse_moment

    return parsed(text, parse_moment, "--at")
