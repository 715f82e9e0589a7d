"""Arguments and options of the commands, declared once by the name of their parameter.

A command is a function whose parameters have plain types; ``expanded`` adds what typer needs.
Options that belong together are the fields of a dataclass, which a command has as one parameter.
"""

import inspect
import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, get_args, get_origin

import typer
from typer.core import TyperCommand, TyperGroup

from snapconv.errors import InputError, OutputWriteError
from snapconv.units import parse_bytes, parse_device

if TYPE_CHECKING:
    from snapconv.analysis import AnalysisOptions

_Value = TypeVar("_Value")
# A size in units of 10^9 bytes and the like: a card of "80 GB" has about 80 GiB.
_DECIMAL_SIZE = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?) ?([KMGT])B", re.IGNORECASE)

# The metavar, if any, and the help of every argument and option by its parameter; those of one
# command by COMMAND.PARAMETER. An option of one command may have them in place: Annotated[int |
# None, "N | The help."].
_ARGUMENTS = {
    "snapshot": "SNAPSHOT | A snapshot (pickle, JSON, a page of torch's viewer or profiler; in "
    "gzip or zip too), a capture's folder, or - for the standard input.",
    "oom.snapshot": (
        "SNAPSHOT | A snapshot or a capture; without one, --message explains torch's own text."
    ),
    "newer": "NEWER | A second file, recorded later: both on one axis, with what differs.",
    "old": "OLD | The older file: a snapshot or a capture.",
    "new": "NEW | The newer file.",
    "question": "ADDR-OR-EVENT | An event such as '#1234' (the page of `snapconv view` shows it "
    "for every allocation), or an address such as 0x7f3c40001000, also inside a block.",
    "patterns": "PATTERN | Snapshots, captures, folders, globs in quotes, @LIST for a file with "
    "one a "
    "line; or URLs of a store (s3://, gs://, hf://, ssh://; pip install 'snapconv[remote]' and "
    "the store's "
    "package).",
    "folders": "FOLDER | A folder whose files may be read, with those below it.",
    "record.entry": "ENTRY | A training script, or a file with Skyline's or DeepView's providers; "
    "with -m, a module.",
    "entry": "ENTRY | A training script; with -m, a module.",
    "args": "ARGS | The script's own arguments, its options too.",
}
_OPTIONS = {
    # Reading a file.
    "project_root": "Count only what is below this folder as the project; as recorded, it need not "
    "exist here. Default: all Python files that are not installed.",
    "include": "PACKAGE_OR_PATH | Count a library as part of the project too: a package such as "
    "timm.models, "
    "or a folder as recorded. May be repeated. Always counted: transformers.models, "
    "diffusers.models.",
    "rules": "A TOML file with your own rules for categories; they come before snapconv's.",
    "certain": "Count only what is certain: what is likely becomes unknown.",
    "device": "N | This device only, or `host` for pinned memory. Default: each.",
    "device_total": "SIZE | The device's memory, such as 80GiB, where the file does not have it "
    "(nvidia-smi shows it).",
    # Printing and writing.
    "as_json": "Print JSON for machines instead of text.",
    "top": "N | Show the N largest of every table, and with --json the first N of every list.",
    "quiet": "Print nothing but errors.",
    "force": "Replace what is there already.",
    "extended": "Add snapconv's own tables; Skyline's stay as they are.",
    "to_sqlite.output": "PATH | The report's file. Default: SNAPSHOT.memory.sqlite, here. A "
    "capture with "
    "times becomes NAME.memory.sqlite and NAME.time.sqlite: name either, or NAME alone.",
    "view.output": (
        "PATH | The page's file. Default: SNAPSHOT.view.html, of two files NEWER.compare.html."
    ),
    "export.output": "PATH | The trace's file. Default: SNAPSHOT.trace.json, here.",
    "open_page": "Open the page in the browser.",
    # Questions.
    "at": "MOMENT | The moment: peak, start, end, worst (most unused memory), oom, oom:2, "
    "iteration:3, annotation:NAME, 'largest activations', or an event such as 1234. Default: peak.",
    "fragmentation.at": "MOMENT | A moment as in `snapconv summary`. Default: the failed request, "
    "the dump, the peak and the worst moment, with the details of the first.",
    "by": "WHAT | line, module, operation or category. Default: line.",
    "all_frames": "Show libraries and C++ too, not only the project's frames.",
    "capacity": "SIZE | The memory that torch may have, such as 78GiB.",
    "what_if.capacity": "SIZE | The memory that torch may have, such as 38GiB. Default: no limit, "
    "or, if a request failed, what it had then.",
    "card": "CARD | A card's name, such as H100 or A100-40GB, or its whole memory, such as 40GiB; "
    "minus memory outside PyTorch (recorded if a request failed, else 1 GiB).",
    "setting": "KEY:VALUE,… | Try these in place of the file's own, written as in "
    "PYTORCH_CUDA_ALLOC_CONF. May be repeated: each is an alternative.",
    "search": "Try the usual settings, and rank them by what they reserve.",
    "one_stream": "Try all work on one stream: no free waits for another, and all share one cache.",
    "batch_scale": "X | Estimate X times the batch size: categories that grow with it, times X.",
    "save": "SIZE | The bytes to save at the peak, such as 10GiB.",
    "stack": "Show whole stacks, also that of the free.",
    "message": "LOG | A file with torch's message, or the message itself; - is the standard input.",
    "no_replay": "Do not replay the trace to try what would have helped.",
    # Limits.
    "max_peak": "SIZE | The most that may be allocated at once, such as 38GiB.",
    "max_reserved": "SIZE | The most that may be reserved at once.",
    "max_category": "CATEGORY=SIZE | The most that a category may have at the peak, such as "
    "activation=20GiB. May be repeated.",
    "max_growth": "SIZE | The most that an iteration may add and never free, such as 0.",
    "no_faults_above": "SIZE | The most that a fault of `snapconv advise` may hold at the peak; "
    "with --baseline, only faults that it lacks count.",
    "fail_over": "PERCENT | Exit code 7 if a device's peak of allocated bytes is higher by more "
    "than this, such as 2%.",
    "baseline": "FILE | A file to compare with, for --fail-over and --no-faults-above.",
    "in_trace": "Check what the trace shows, although more may have been in use before it.",
    "format": "FORMAT | text or github (a table in Markdown for a job's summary). Default: text.",
    # Ranks of a job.
    "ranks.output": "PATH | Write an SQLite database; a name ending in .html gets a page.",
    "mesh": "AXES | The job's device mesh, outermost axis first, such as pp=4,dp=8,tp=2. Default: "
    "as recorded.",
    "scheduler": "ADDRESS | Let the workers of this Dask scheduler (tcp:// or tls://) read. "
    "Default: this machine's.",
    "workers": "N | Processes on this machine. Default: its processors, if memory suffices.",
    "reports": "FOLDER | Write each rank's memory report there too, also to a URL.",
    "no_cache": "Read every file anew, and keep nothing.",
    # Recording.
    "ranks": "LIST | Record these ranks of a job only, such as 0,8,16-23; a mesh such as "
    "pp=4,dp=8,tp=2 means one of each pipeline stage. Default: all.",
    "is_module": "ENTRY is a module's name, as in `python -m ENTRY`.",
    "record.output": "PATH | The capture, a folder; or the URL of a folder in a store, such as "
    "s3://bucket/run, to copy it to in the end. Default: the entry's name and .capture, here.",
    "watch.output": "FOLDER | The folder for captures, or the URL of one in a store, to which a "
    "thread copies them. Default: captures, here.",
    "warm_up": "Iterations before those of --iterations. Default: 1.",
    "iterations": (
        "Iterations to record the memory of; after one more, as many are timed. Default: 1."
    ),
    "stop": "End the script when all is recorded, instead of letting it run on.",
    "batch_size": "The batch size for a file with providers. Default: that of its input provider.",
    "record.device": "The CUDA device to make the current one, and to time. Default: time that of "
    "LOCAL_RANK where it is visible, or the one that is current when CUDA starts.",
    "record.project_root": "Count only what is below this folder as your own code. Default: all "
    "Python files that are not installed, shown from the current folder.",
    "record.stacks": "WHICH | Record C++ frames too (all), the only ones that backward has, or "
    "only Python's (python). Default: all.",
    "watch.stacks": "WHICH | Record Python's frames only (python), which costs least, or those of "
    "C++ too (all). Default: python.",
    "record.max_entries": "How many events torch keeps, the newest. Default: 1000000.",
    "watch.max_entries": "How many events torch keeps, the newest. Default: 100000.",
    "max_captures": "Write at most N captures. Default: 3.",
    "all_ranks": "When memory runs out in one rank, write captures of all: needs a shared FOLDER, "
    "or torch.distributed.",
    # Recording without a GPU.
    "simulate": "Record without a GPU: the unchanged script runs on the CPU.",
    "no_compute": "With --simulate: follow shapes only. Fast with a model of any size; no values, "
    "no times. "
    "Files with values not computed are not kept. Ends the script when all is recorded.",
    "routing": "HOW | With --no-compute: spread tokens evenly over experts (balanced), or send "
    "most to the same ones (worst). Default: balanced.",
    **dict.fromkeys(
        ("record.capacity", "watch.capacity"),
        "SIZE | With --simulate: the GPU's memory, such as 24GiB; it runs out as a GPU's would.",
    ),
    "cublas_workspace": "With --simulate: add the workspace that cuBLAS keeps by default.",
}
# The least values of numbers.
_LEAST = {
    **dict.fromkeys(
        ("top", "iterations", "batch_size", "max_entries", "max_captures", "workers"), 1
    ),
    **dict.fromkeys(("warm_up", "device"), 0),
}
_FLAGS = {
    "is_module": ("-m",),
    "as_json": ("--json",),
    "open_page": ("--open",),
    "output": ("--output", "-o"),
    "quiet": ("--quiet", "-q"),
}
# Files that are read twice, and that the tools of `snapconv mcp` may name.
SNAPSHOTS = ("snapshot", "newer", "old", "new", "baseline")


class PlainWords:
    """Takes words as they are: typer would load pydantic, which takes longer than a small file."""

    def get_params(self, ctx: Any) -> Any:
        """Return the parameters, --help too."""
        parameters = super().get_params(ctx)  # type: ignore[misc]
        for parameter in parameters:
            parameter.process_value = partial(_process, parameter)
        return parameters


def _process(parameter: Any, ctx: Any, word: Any) -> Any:
    """Convert the word of a parameter: texts, paths and choices as they are, others by typer."""
    kind = parameter.type_descriptor.annotation
    if word is None and not parameter.required:
        value = () if parameter.multiple or parameter.nargs < 0 else None
    elif word is not None and kind in (str, Path, list[str]):
        value = kind(word)
    elif get_origin(kind) is Literal:
        if word not in get_args(kind):
            raise typer.BadParameter(f"expected {', '.join(get_args(kind))}", ctx, parameter)
        value = word
    else:
        return type(parameter).process_value(parameter, ctx, word)
    return parameter.callback(ctx, parameter, value) if parameter.callback else value


class Commands(PlainWords, TyperGroup):
    """What has the commands: ``snapconv`` itself."""


class Command(PlainWords, TyperCommand):
    """A command whose usage has no braces, which typer puts around what is required."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the parts of the usage line."""
        return [
            piece.replace("{", "").replace("}", "") for piece in super().collect_usage_pieces(ctx)
        ]


def no_pipe(path: Path | None) -> Path | None:
    """Refuse a pipe before it is opened, which may wait for ever."""
    with suppress(OSError):  # what cannot be looked at has its error when it is read
        if path is not None and path.is_fifo():
            raise InputError(
                f"{path} is a pipe, and a snapshot is read twice: save it to a file first"
            )
    return path


def declared(command: str, parameter: inspect.Parameter) -> inspect.Parameter:
    """Return a parameter with typer's annotation; its help is in its own, or in a table above."""
    name = parameter.name
    kind = parameter.annotation
    table = _ARGUMENTS if name in _ARGUMENTS else _OPTIONS
    kind, text = get_args(kind) if get_origin(kind) is Annotated else (kind, "")
    text = text or table.get(f"{command}.{name}") or table[name]
    is_number = int in (kind, *get_args(kind))
    settings: dict[str, Any] = {"min": _LEAST[name]} if is_number and name in _LEAST else {}
    if Path in (kind, *get_args(kind)):
        # Whether a file can be read is seen when it is read: typer's own look at it would end with
        # the code of a wrong command line.
        settings = {"readable": False, "callback": no_pipe if name in SNAPSHOTS else None}
    metavar, _, settings["help"] = text.rpartition(" | ")
    settings["metavar"] = metavar or None
    if table is _ARGUMENTS:
        info = typer.Argument(**settings)
    else:
        flags = _FLAGS.get(name, (f"--{name.replace('_', '-')}",))
        info = typer.Option(*flags, show_default=False, **settings)
    return parameter.replace(annotation=Annotated[kind, info])


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Options of reading a file."""

    device: str | None = None
    project_root: str | None = None
    include: list[str] | None = None
    rules: Path | None = None
    certain: bool = False

    def analysis(self) -> "AnalysisOptions":
        """Return the options as the library takes them."""
        from snapconv.analysis import AnalysisOptions

        return AnalysisOptions(
            self.project_root, tuple(self.include or ()), self.rules or (), self.certain
        )


def expanded(function: Callable[..., _Value]) -> Callable[..., _Value]:
    """Return a function whose parameters typer knows, with the fields of groups in their place."""
    groups: dict[str, Any] = {}
    flat = []
    for parameter in inspect.signature(function).parameters.values():
        if is_dataclass(parameter.annotation):
            groups[parameter.name] = parameter.annotation
        for option in _fields(parameter):
            flat.append(declared(function.__name__, option))

    def run(**values: Any) -> _Value:
        for name, group in groups.items():
            values[name] = group(**{field.name: values.pop(field.name) for field in fields(group)})
        return function(**values)

    return give_signature(run, flat, of=function)


def _fields(parameter: inspect.Parameter) -> Iterator[inspect.Parameter]:
    if not is_dataclass(parameter.annotation):
        yield parameter
        return
    for field in fields(parameter.annotation):
        default = inspect.Parameter.empty if field.default is MISSING else field.default
        yield parameter.replace(name=field.name, default=default, annotation=field.type)


def give_signature(
    run: Callable[..., _Value], parameters: Iterable[inspect.Parameter], *, of: Callable[..., Any]
) -> Callable[..., _Value]:
    """Give a function the name and help of another, and parameters that typer and the docs see."""
    keywords = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters]
    run.__name__ = of.__name__
    run.__doc__ = of.__doc__
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in keywords}
    run.__signature__ = inspect.Signature(keywords)  # type: ignore[attr-defined]
    return run


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
                f"note: {option} {size[0]} is read as {size[1]} {size[2].upper()}iB", err=True
            )
    return value


def device_number(text: str | None) -> int | None:
    """Read ``--device``; None where none is named."""
    return None if text is None else parsed(text, parse_device, "--device")


def size_of(text: str | None, option: str) -> int | None:
    """Read a size such as 38GiB; None where it is not given."""
    return None if text is None else parsed(text, parse_bytes, option)


def output_file(text: str | None) -> Path | None:
    """Refuse what is no file's name, before it becomes a Path, which loses the slash at its end."""
    if text == "-":
        raise OutputWriteError("cannot write -: an output is a file and no stream; name a file")
    if text and text.endswith(("/", os.sep)) and text.strip("/" + os.sep):
        raise OutputWriteError(
            f"cannot write {text}: it is a folder's name; give --output {text}NAME"
        )
    return None if text is None else Path(text)


def chosen_ranks(text: str | None) -> frozenset[int]:
    """Read ``--ranks``; none for all."""
    from snapconv.recorder.job import parse_ranks

    return frozenset() if text is None else parsed(text, parse_ranks, "--ranks")


def moment(text: str) -> str:
    """Check ``--at`` before a file is read."""
    from snapconv.answers.moments import parse_moment

    parsed(text, parse_moment, "--at")
    return text
