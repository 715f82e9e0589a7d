"""Arguments and options that several commands share, and how a command line becomes values.

An option of one command is declared in that command. Options that belong together are the fields
of a dataclass, which a command has as one parameter: ``flat`` puts the fields in its place.
"""

import inspect
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, get_args, get_origin

import typer
from typer.core import TyperCommand

from snapconv.errors import InputError
from snapconv.units import parse_bytes, parse_device

if TYPE_CHECKING:
    from snapconv.analysis import AnalysisOptions
    from snapconv.recorder.program.entry import Entry

_Value = TypeVar("_Value")
# A size in units of 10^9 bytes and the like: a card of "80 GB" has about 80 GiB.
_DECIMAL_SIZE = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?) ?([KMGT])B", re.IGNORECASE)


def refuse_pipe(path: Path | None) -> Path | None:
    """Refuse a pipe before it is opened, which may wait for ever: a snapshot is read twice."""
    with suppress(OSError):  # what cannot be looked at has its error when it is read
        if path is not None and path.is_fifo():
            raise InputError(
                f"{path} is a pipe, and a snapshot is read twice: save it to a file first"
            )
    return path


# --- arguments and options of several commands

# Whether a file can be read is seen when it is read: typer's own look at it would end with the code
# of a wrong command line.
SnapshotArgument = Annotated[
    Path,
    typer.Argument(
        metavar="SNAPSHOT",
        help="A snapshot (pickle, JSON, a page of torch's viewer or profiler; in gzip "
        "or zip too), a capture's folder, or - for the standard input.",
        readable=False,
        callback=refuse_pipe,
    ),
]
ProjectRootOption = Annotated[
    str | None,
    typer.Option(
        help="Count only what is below this folder as the project; as recorded, it "
        "need not exist here. Default: all Python files that are not installed."
    ),
]
IncludeOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PACKAGE_OR_PATH",
        help="Count a library as part of the project too: a package such as "
        "timm.models, or a folder as recorded. May be repeated. Always counted: "
        "transformers.models, diffusers.models.",
    ),
]
CertainOption = Annotated[
    bool,
    typer.Option(
        "--certain", help="Count only what is certain: what is likely becomes unknown."
    ),
]
DeviceTotalOption = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE",
        help="The device's memory, such as 80GiB, where the file does not have it "
        "(nvidia-smi shows it).",
    ),
]
TopOption = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Show the N largest of every table, and with --json the first N of every list.",
        min=1,
    ),
]
ColorOption = Annotated[
    Literal["auto", "always", "never"],
    typer.Option(
        metavar="WHEN",
        help="Colour categories, with bars: auto (on a terminal, without NO_COLOR), always or "
        "never. Default: auto.",
        show_default=False,
    ),
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print JSON for machines instead of text.")
]
QuietOption = Annotated[
    bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")
]
ForceOption = Annotated[
    bool, typer.Option("--force", help="Replace what is there already.")
]


def output_option(
    help_text: str, *, metavar: str = "PATH", show_default: bool = True
) -> Any:
    """Return the option of a command that names what is written."""
    return typer.Option(
        "--output", "-o", metavar=metavar, help=help_text, show_default=show_default
    )


RanksOption = Annotated[
    str | None,
    typer.Option(
        metavar="LIST",
        help="Record these ranks of a job only, such as 0,8,16-23; a mesh such as "
        "pp=4,dp=8,tp=2 means one of each pipeline stage. Default: all.",
    ),
]
# Files that are read twice, and that the tools of `snapconv mcp` may name.
SNAPSHOTS = ("snapshot", "newer", "old", "new", "baseline")
# Folders of source that these tools may name too.
SOURCE = "source"


@dataclass(frozen=True, slots=True)
class ProgramOptions:
    """The program that a recording runs, as its command line has it behind the entry."""

    args: Annotated[
        list[str] | None,
        typer.Argument(metavar="ARGS", help="The script's own arguments, its options too."),
    ] = None
    is_module: Annotated[
        bool,
        typer.Option("-m", help="ENTRY is a module's name, as in `python -m ENTRY`."),
    ] = False

    def find(self, entry: str) -> "Entry":
        """Return the script or module that is named."""
        from snapconv.recorder.program.entry import find_file, find_module

        return find_module(entry) if self.is_module else find_file(entry)


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Options of reading a file."""

    device: Annotated[
        str | None,
        typer.Option(
            metavar="N",
            help="This device only, or `host` for pinned memory. Default: each.",
        ),
    ] = None
    project_root: ProjectRootOption = None
    include: IncludeOption = None
    rules: Annotated[
        Path | None,
        typer.Option(
            help="A TOML file with your own rules for categories; they come before snapconv's.",
            readable=False,
        ),
    ] = None
    certain: CertainOption = False

    def analysis(self) -> "AnalysisOptions":
        """Return the options as the library takes them."""
        from snapconv.analysis import AnalysisOptions

        return AnalysisOptions(
            self.project_root, tuple(self.include or ()), self.rules or (), self.certain
        )


@dataclass(frozen=True, slots=True)
class RangeOptions:
    """The range of events that an answer is about."""

    begin: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="BOUND",
            help="Where the range begins: an event such as 1234, iteration:3, annotation:NAME, or "
            "seconds from the trace's beginning such as 1.5s. Default: the beginning.",
        ),
    ] = None
    end: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="BOUND",
            help="Where the range ends, with this. Default: the trace's end.",
        ),
    ] = None

    def check(self) -> None:
        """Refuse a text that is no bound, before a file is read."""
        from snapconv.answers.event_range import parse_bound

        for bound, option in ((self.begin, "--from"), (self.end, "--to")):
            if bound is not None:
                parsed(bound, parse_bound, option)


# --- from a function to a command


class Command(TyperCommand):
    """A command that takes texts, paths and choices as they are.

    typer (0.29) converts every word by pydantic, whose import takes longer than reading a small
    file. Numbers that are given are typer's.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Set the parameters; typer itself does it where words are missing or too many."""
        if ctx.resilient_parsing:  # a shell completes the line
            return super().parse_args(ctx, args)
        words, extra_words, order = self.make_parser(ctx).parse_args(args=list(args))

        def position(parameter: Any) -> tuple[bool, int]:
            is_absent = parameter not in order
            return not parameter.is_eager, len(order) if is_absent else order.index(
                parameter
            )

        kinds = _kinds(self.callback)
        for parameter in sorted(self.get_params(ctx), key=position):
            name = parameter.name
            if words.get(name) is None:
                if parameter.required:
                    return super().parse_args(ctx, args)
                is_list = parameter.multiple or parameter.nargs < 0
                value: object = () if is_list else parameter.default
            elif _is_plain(kinds.get(name)):
                value = _plain_value(kinds[name], words[name], ctx, parameter)
            else:
                parameter.handle_parse_result(ctx, words, [])
                continue
            if parameter.expose_value:
                ctx.params[name] = value
        return super().parse_args(ctx, args) if extra_words else []

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the parts of the usage line without the braces around what is required."""
        return [
            piece.replace("{", "").replace("}", "")
            for piece in super().collect_usage_pieces(ctx)
        ]


def _kinds(command: Any) -> dict[str, Any]:
    """Return the type of every parameter of a command, without None."""
    kinds = {}
    for parameter in inspect.signature(command).parameters.values():
        kind = get_args(parameter.annotation)[0]
        kinds[parameter.name] = get_args(kind)[0] if isinstance(kind, UnionType) else kind
    return kinds


def _is_plain(kind: Any) -> bool:
    return kind in (str, Path, list[str]) or get_origin(kind) is Literal


def _plain_value(kind: Any, word: Any, ctx: Any, parameter: Any) -> object:
    if get_origin(kind) is not Literal:
        value = kind(word)
    elif word in get_args(kind):
        value = word
    else:
        choices = ", ".join(get_args(kind))
        raise typer.BadParameter(f"expected {choices}", ctx, parameter)
    return parameter.callback(ctx, parameter, value) if parameter.callback else value


def flat(function: Callable[..., _Value]) -> Callable[..., _Value]:
    """Return a function that has the fields of each group of options in place of the group.

    An option that is not given has its default.
    """
    groups: dict[str, Any] = {}
    options: list[inspect.Parameter] = []
    for parameter in inspect.signature(function).parameters.values():
        if not is_dataclass(parameter.annotation):
            options.append(parameter)
            continue
        groups[parameter.name] = parameter.annotation
        for field in fields(parameter.annotation):
            option = parameter.replace(name=field.name, default=field.default)
            options.append(option.replace(annotation=field.type))

    def run(**values: Any) -> _Value:
        for name, group in groups.items():
            names = {field.name for field in fields(group)} & values.keys()
            values[name] = group(**{option: values.pop(option) for option in names})
        return function(**values)

    return give_signature(run, options, of=function)


def give_signature(
    run: Callable[..., _Value],
    parameters: Iterable[inspect.Parameter],
    *,
    of: Callable[..., Any],
) -> Callable[..., _Value]:
    """Give a function the name and help of another, and parameters that typer and the docs see."""
    keywords = [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters
    ]
    run.__name__ = of.__name__
    run.__doc__ = of.__doc__
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in keywords}
    run.__signature__ = inspect.Signature(keywords)  # type: ignore[attr-defined]
    return run


# --- from texts to values


def parsed(text: Any, parse: Callable[[Any], _Value], option: str) -> _Value:
    """Parse the text of an option; its ValueError is a wrong command line.

    A size in decimal units is read as people mean it of a GPU, and a note says so.
    """
    try:
        value = parse(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from error
    for word in text if isinstance(text, list) else [text]:
        size = _DECIMAL_SIZE.fullmatch(str(word).rpartition("=")[2].strip())
        if size:
            typer.echo(
                f"note: {option} {size[0]} is read as {size[1]} {size[2].upper()}iB",
                err=True,
            )
    return value


def device_number(text: str | None) -> int | None:
    """Read ``--device``; None where none is named."""
    return None if text is None else parsed(text, parse_device, "--device")


def size_of(text: str | None, option: str) -> int | None:
    """Read a size such as 38GiB; None where it is not given."""
    return None if text is None else parsed(text, parse_bytes, option)


def chosen_ranks(text: str | None) -> frozenset[int]:
    """Read ``--ranks``; none for all."""
    from snapconv.recorder.job import parse_ranks

    return frozenset() if text is None else parsed(text, parse_ranks, "--ranks")


def moment(text: str) -> str:
    """Check ``--at`` before a file is read."""
    from snapconv.answers.moments import parse_moment

    parsed(text, parse_moment, "--at")
    return text
