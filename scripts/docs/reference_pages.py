"""What the program describes of itself -> pages of docs/reference, or parts of them."""

import inspect
import re
import typing
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from itertools import chain, groupby
from pathlib import Path

import snapconv
from scripts.docs import catalogs
from snapconv.answers.advice.findings import Advice
from snapconv.answers.fragmentation import Fragmentation
from snapconv.answers.oom.failed_allocation import OutOfMemory
from snapconv.answers.oom.message import MessageAnswer
from snapconv.answers.oom.remedies import Remedies
from snapconv.answers.peak import MomentState
from snapconv.answers.tree import MemoryTree
from snapconv.answers.verdict import FileVerdict
from snapconv.cli.terminal import JSON_VERSION
from snapconv.json_text import read_json
from snapconv.snapshot.recorded import metadata, timing_file
from snapconv.writers.sqlite.extended_memory import SCHEMA_VERSION
from snapconv.writers.sqlite.extended_times import TIME_SCHEMA_VERSION
from snapconv.writers.sqlite.job_database import JOB_SCHEMA_VERSION

ROOT = Path(__file__).parents[2]
# The dataclasses whose fields are the keys of a command's JSON, in the order of the commands.
DOCUMENTS: dict[str, tuple[type, ...]] = {
    "verdict": (FileVerdict,),
    "summary": (MomentState,),
    "tree": (MemoryTree,),
    "oom": (OutOfMemory, Remedies, MessageAnswer),
    "fragmentation": (Fragmentation,),
    "advise": (Advice,),
}
_KINDS = {int: "integer", str: "string", bool: "boolean", float: "number", type(None): "null"}


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; what would end a cell is escaped by who makes the cell."""
    lines = [columns, ["-"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def code(text: str) -> str:
    """Set a text as code; a bar would end the cell of a table."""
    return f"`{text}`".replace("|", "\\|")


def simulated_operations() -> str:
    """Describe how the simulation's memory compares with plain torch, by operation."""
    results = read_json((ROOT / "scripts" / "bench" / "operations.json").read_bytes())
    modes = results["modes"]
    counts = [
        (
            mode,
            *(f"{of[key]:,}" for key in ("n_operations", "n_samples", "n_equal", "n_scratch")),
            str(len(of["others"])),
        )
        for mode, of in modes.items()
    ]
    columns = ("mode", "operations", "samples", "equal", "own memory of a kernel", "others")
    reasons = {
        (name, what): _OPERATION_REASONS.get(name, "")
        for of in modes.values()
        for name, other in of["others"].items()
        for what in [_found(other)]
    }
    rows = [
        (
            code(name),
            what,
            ", ".join(mode for mode, of in modes.items() if name in of["others"]),
            reason,
        )
        for (name, what), reason in sorted(reasons.items())
    ]
    listed = table(("operation", "difference", "mode", "reason"), rows)
    return f"torch {results['torch']}:\n\n{table(columns, counts)}\n\n{listed}"


def _found(other: dict[str, typing.Any]) -> str:
    return ", ".join(other["found"])


_OUT_OF_PLACE = "the derivative is computed out of place where torch sees a mode"
_OPERATION_REASONS = {
    "argwhere": "as many as there can be",
    "masked.normalize": "as many as there can be",
    "clamp": _OUT_OF_PLACE,
    "cov": "refused, as weights read as 0",
    "cumprod": _OUT_OF_PLACE,
    "prod": _OUT_OF_PLACE,
    "linalg.vander": _OUT_OF_PLACE,
    "linalg.matrix_rank": _OUT_OF_PLACE,
    "masked.cumprod": _OUT_OF_PLACE,
    "sgn": "a gradient of zeros without memory gets memory",
    "nn.functional.dropout": "as on a GPU: a mask of one byte an element",
    "nn.functional.scaled_dot_product_attention": "as on a GPU: fused kernels",
    "linalg.lstsq": "the number of residuals depends on values",
    "linalg.lstsq.grad_oriented": "the number of residuals depends on values",
    "nn.functional.ctc_loss": "lengths on the device are needed",
    "nn.functional.multi_head_attention_forward": "as on a GPU: dropout",
    "nn.functional.embedding_bag": "its own shapes without values",
    "nn.functional.linear_cross_entropy.chunked": "what a function written in Python keeps",
    "sparse.sampled_addmm": "compressed sparse tensors are not modelled",
    "sparse.mm.reduce": "compressed sparse tensors are not modelled",
}


def notes() -> str:
    """Describe every note, by sections."""
    parts = []
    for section, meanings in groupby(catalogs.note_meanings(), lambda meaning: meaning.section):
        parts += [f"## {section}", *map(_note, meanings)]
    return "\n\n".join(parts)


def _note(meaning: catalogs.NoteMeaning) -> str:
    title = f"### `{meaning.slug}`" + (" (peak)" if meaning.touches_peak else "")
    texts = (("Means", meaning.means), ("Affects", meaning.affects), ("Do", meaning.do))
    return f"{title}\n\n" + "\n".join(f"* **{word}**: {text}" for word, text in texts)


# Every end of a command: what it means, and what to do. 129 and above: 128 and the number of a
# signal.
EXIT_CODES: dict[int, tuple[str, str]] = {
    0: ("done", ""),
    1: ("a bug in snapconv, with a traceback", "report the traceback"),
    2: ("the command line is wrong", "the message names the option"),
    3: (
        (
            "the input cannot be used: not there, no snapshot, damaged, cut off, or without the "
            "requested device"
        ),
        "the message names what and where",
    ),
    4: (
        "the pickle contains code, or requests more memory than allowed",
        "do not load it with anything else either",
    ),
    5: (
        "the report or stdout cannot be written, or the report is there already",
        "another `-o`, or `--force`",
    ),
    6: (
        "the recording could not begin, or recorded nothing",
        "the message gives the reason; without a GPU: `--simulate`",
    ),
    7: ("a limit of `check` does not hold", "[limits](../guide/ci.md)"),
    129: ("the terminal was closed (SIGHUP); without effect under `nohup`", ""),
    130: ("stopped with Ctrl-C", ""),
    141: ("the reader of a pipe went away, as `head -1` does; a report is whole all the same", ""),
    143: ("stopped with SIGTERM", ""),
}


def exit_codes() -> str:
    """Return the table of exit codes."""
    rows = ((str(number), meaning, remedy) for number, (meaning, remedy) in EXIT_CODES.items())
    return table(("code", "meaning", "what to do"), rows)


def json_keys() -> str:
    """Describe the JSON of every command that has its keys in a catalogue."""
    parts = []
    for command, keys in catalogs.json_keys().items():
        parts += [f"## JSON of `{command}`", _key_table(keys)]
    return "\n\n".join(parts)


def _key_table(keys: Iterable[catalogs.JsonKey]) -> str:
    return table(
        ("path", "type", "meaning"), ((f"`{key.path}`", key.type, key.meaning) for key in keys)
    )


def answer_keys() -> str:
    """Describe the JSON of the commands whose keys are the fields of one dataclass, and of those within."""
    parts, described = [], set()
    for command, documents in DOCUMENTS.items():
        parts.append(f"## JSON of `{command}`")
        for shape in chain.from_iterable(map(_with_inner, documents)):
            if shape not in described:
                described.add(shape)
                parts += [f"### {_title(shape)}", _doc(shape), _fields(shape)]
    return "\n\n".join(parts)


def _with_inner(shape: type) -> Iterator[type]:
    """Return a dataclass, then those that its fields are made of."""
    yield shape
    hints = typing.get_type_hints(shape)
    for each in fields(shape):
        for part in _parts_of(hints[each.name]) if each.metadata.get("json", True) else ():
            if is_dataclass(part) and isinstance(part, type) and part is not shape:
                yield from _with_inner(part)


def _parts_of(hint: object) -> Iterator[object]:
    inner = typing.get_args(hint)
    if not inner:
        yield hint
    for part in inner:
        yield from _parts_of(part)


def _title(shape: type) -> str:
    """``CategoryVerdict`` as ``Category verdict``."""
    words = "".join(
        f" {letter.lower()}" if letter.isupper() else letter for letter in shape.__name__
    )
    return words.strip().capitalize()


def _doc(item: object) -> str:
    return (inspect.getdoc(item) or "").replace("``", "`")


def _fields(shape: type) -> str:
    hints = typing.get_type_hints(shape)
    shown = [field.name for field in fields(shape) if field.metadata.get("json", True)]
    rows = ((f"`{name}`", kind_of(hints[name])) for name in shown)
    return table(("key", "type"), rows)


def kind_of(hint: object) -> str:
    """Return the words for a type in JSON."""
    parts = typing.get_args(hint)
    if type(None) in parts:
        return f"{' or '.join(kind_of(part) for part in parts if part is not type(None))} or null"
    if typing.get_origin(hint) is tuple:
        return f"array of {kind_of(parts[0])}s"
    if parts:
        return "object" if typing.get_origin(hint) is dict else " or ".join(map(kind_of, parts))
    if isinstance(hint, type) and issubclass(hint, Enum):
        return "string"
    if hint in _KINDS:
        return _KINDS[hint]  # a type, as all keys are
    return _title(hint).lower() if isinstance(hint, type) else str(hint)


def metadata_keys() -> str:
    """Describe the recorder's key in a snapshot."""
    keys = catalogs.capture_keys()
    return "\n\n".join(
        (
            table(("key", "what it holds"), keys.metadata.items()),
            "Every row that is about memory has",
            table(("key", "meaning"), keys.rows.items()),
            "and besides",
            table(("rows of", "key", "meaning"), keys.rows_of),
        )
    )


def timing_keys() -> str:
    """Describe timing.json."""
    return _key_table(catalogs.capture_keys().timing)


def action_inputs() -> str:
    """Return the table of the inputs of the GitHub action, out of the plain lines of its file."""
    text = (
        (ROOT / "action.yml")
        .read_text(encoding="utf-8")
        .partition("\ninputs:\n")[2]
        .partition("\nruns:")[0]
    )
    inputs = re.findall(
        r"^  ([\w-]+):\n    description: (.+)\n    (required: true|default:)", text, re.MULTILINE
    )
    rows = (
        (f"`{name}`", meaning, "" if rest == "default:" else "required")
        for name, meaning, rest in inputs
    )
    return table(("input", "meaning", ""), rows)


def plugin() -> str:
    """Return what the pytest plugin says of itself."""
    from snapconv import pytest_plugin

    return f"```text\n{inspect.getdoc(pytest_plugin)}\n```"


def library() -> str:
    """Describe the public names by their docstrings, and a session by its methods."""
    parts = []
    for name in ("load", "to_sqlite", "read_job", "fit", "recording", "step"):
        function = getattr(snapconv, name)
        parts += [
            f"### `snapconv.{name}`",
            _signature(function, f"snapconv.{name}"),
            _doc(function),
        ]
    for name in ("ConvertOptions", "JobOptions", "FitOptions", "Budgets", "Request"):
        shape = getattr(snapconv, name)
        parts += [f"### `snapconv.{name}`", _signature(shape, f"snapconv.{name}"), _doc(shape)]
        if hasattr(shape, "read"):
            parts += [_signature(shape.read, f"snapconv.{name}.read"), _doc(shape.read)]
    session = snapconv.Session
    parts += ["### `Session`", _doc(session)]
    for name, member in vars(session).items():
        if name.startswith("_") or not callable(member):
            continue
        parts += [f"#### `Session.{name}`", _signature(member, f"session.{name}"), _doc(member)]
    return "\n\n".join(parts)


def _signature(function: typing.Callable[..., object], name: str) -> str:
    signature = inspect.signature(function)
    kept = [parameter for parameter in signature.parameters.values() if parameter.name != "self"]
    names = []
    has_star = False
    for parameter in kept:
        if parameter.kind is parameter.KEYWORD_ONLY and not has_star:
            names.append("*")
            has_star = True
        default = "" if parameter.default is parameter.empty else f"={_value(parameter.default)}"
        stars = "*" * (
            (parameter.kind is parameter.VAR_POSITIONAL)
            + 2 * (parameter.kind is parameter.VAR_KEYWORD)
        )
        has_star = has_star or bool(stars)
        names.append(f"{stars}{parameter.name}{default}")
    return f"```text\n{name}({', '.join(names)})\n```"


def _value(default: object) -> str:
    """Write a default; one that is made anew for each object has no text of its own."""
    return "…" if "factory" in repr(default) else repr(default)


def versions() -> str:
    """Return the table of what is stable, with the version that each has."""
    rows = (
        ("commands and their options", f"{snapconv.__version__}", "[commands](cli.md)"),
        ("exit codes", f"{snapconv.__version__}", "[commands](cli.md#exit-codes)"),
        ("JSON of `--json`", f"{JSON_VERSION}, key `json_version`", "[JSON](json.md)"),
        ("slugs of notes", f"{snapconv.__version__}", "[notes](notes.md)"),
        (
            "Skyline's tables",
            "1, `PRAGMA user_version`",
            "[memory](schema.md), [time](time-schema.md)",
        ),
        (
            "tables of `--extended`",
            (
                f"memory {SCHEMA_VERSION}, time {TIME_SCHEMA_VERSION}, `schema_version` in "
                f"`snapconv_report`"
            ),
            "[memory](schema.md), [time](time-schema.md)",
        ),
        (
            "tables of `snapconv ranks`",
            f"{JOB_SCHEMA_VERSION}, `PRAGMA user_version`",
            "[ranks](ranks-schema.md)",
        ),
        (
            "a capture",
            f"metadata {metadata.VERSION}, `timing.json` {timing_file.VERSION}, key `version`",
            "[capture](capture.md)",
        ),
        ("public names of `snapconv`", f"{snapconv.__version__}", "[library](library.md)"),
    )
    return table(("what", "version", "described in"), rows)
