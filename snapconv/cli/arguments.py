"""Arguments and options that several commands share, and how their texts are parsed.

Options that belong together are the fields of a dataclass. A command has such a group as one parameter, and
``expanded`` shows its fields to typer.
"""

import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from typer.core import TyperCommand

from snapconv.errors import InputError
from snapconv.units import parse_bytes, parse_device

if TYPE_CHECKING:
    from snapconv.analysis import AnalysisOptions
    from snapconv.answers.moments import MomentQuestion

_Value = TypeVar("_Value")


class Command(TyperCommand):
    """A command whose usage has no braces, which typer puts around what is required."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the parts of the usage line."""
        return [piece.strip("{}") for piece in super().collect_usage_pieces(ctx)]


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
        help="A snapshot (pickle, JSON, a page of torch's viewer; in gzip or zip too), "
        "a capture's folder, or - for the standard input.",
        callback=no_pipe,
        readable=False,
    ),
]
Output = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="PATH", help="Default: named after both, in the current folder."),
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
        help="Your own patterns of frames for categories (TOML), evaluated before snapconv's rules.",
        readable=False,
    ),
]
Certain = Annotated[
    bool, typer.Option("--certain", help="Count only what is certain: what is likely becomes unknown.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for machines instead of text.")]
Top = Annotated[
    int | None,
    typer.Option(
        "--top",
        metavar="N",
        min=1,
        help="Show the N largest of every table, and with --json the first N of every list.",
    ),
]
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
Ranks = Annotated[
    str | None,
    typer.Option(
        "--ranks",
        metavar="LIST",
        help="Record these ranks of a job only, such as 0,8,16-23; a mesh such as pp=4,dp=8,tp=2 means one "
        "of each pipeline stage. Default: all.",
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
class PathOptions:
    """Options of reading a file: what belongs to the project, and where its files are now."""

    project_root: ProjectRoot = None
    include: Includes = None
    path_map: PathMaps = None

    def analysis(self, params: Path | None = None) -> "AnalysisOptions":
        """Return the options as the library takes them; raises BadParameter for a text that is wrong."""
        from snapconv.analysis import AnalysisOptions
        from snapconv.stacks.paths import parse_path_map

        path_maps = (parsed(text, parse_path_map, "--path-map") for text in self.path_map or ())
        return AnalysisOptions(
            project_root=self.project_root,
            includes=tuple(self.include or ()),
            path_maps=tuple(path_maps),
            params=params,
        )


@dataclass(frozen=True, slots=True)
class ReadOptions(PathOptions):
    """Options of reading a file whose categories are shown too."""

    rules: Rules = None
    certain: Certain = False

    def analysis(self, params: Path | None = None) -> "AnalysisOptions":
        """Return the options as the library takes them; raises BadParameter for a text that is wrong."""
        return replace(PathOptions.analysis(self, params), rules=self.rules or (), certain=self.certain)


def expanded(function: Callable[..., _Value]) -> Callable[..., _Value]:
    """Return a function with the fields of its option groups as parameters of its own, in their place."""
    parameters = list(inspect.signature(function).parameters.values())
    groups: dict[str, Any] = {one.name: one.annotation for one in parameters if is_dataclass(one.annotation)}

    def run(**given: Any) -> _Value:
        for name, group in groups.items():
            given[name] = group(**{field.name: given.pop(field.name) for field in fields(group)})
        return function(**given)

    flat = [each for one in parameters for each in _fields(one)]
    return with_parameters(run, flat, of=function)


def _fields(parameter: inspect.Parameter) -> Iterator[inspect.Parameter]:
    if not is_dataclass(parameter.annotation):
        yield parameter
        return
    for field in fields(parameter.annotation):
        default = inspect.Parameter.empty if field.default is MISSING else field.default
        yield parameter.replace(name=field.name, default=default, annotation=field.type)


def with_parameters(
    run: Callable[..., _Value], parameters: Iterable[inspect.Parameter], *, of: Callable[..., Any]
) -> Callable[..., _Value]:
    """Give a function the name and help of another, and the parameters that typer and the docs see."""
    keywords = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in parameters]
    run.__name__, run.__doc__ = of.__name__, of.__doc__
    run.__annotations__ = {one.name: one.annotation for one in keywords}
    run.__signature__ = inspect.Signature(keywords)  # type: ignore[attr-defined]
    return run


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


def chosen_ranks(text: str | None) -> frozenset[int]:
    """Read ``--ranks``; none for all."""
    from snapconv.recorder.job_place import parse_ranks

    return frozenset() if text is None else parsed(text, parse_ranks, "--ranks")


def moment_question(text: str) -> "MomentQuestion":
    """Read ``--at``."""
    from snapconv.answers.moments import parse_moment

    return parsed(text, parse_moment, "--at")
