"""JSON text -> values, checked against a type; or an error that names the place and what was expected.

The types are msgspec's: a Struct for an object with known keys, ``Annotated[int, Meta(ge=0)]`` for a bound.
"""

import json
import re
from contextlib import suppress
from typing import Any, TypeVar

import msgspec
from msgspec.json import Decoder

from snapconv.errors import MalformedSnapshotError, NotASnapshotError, TruncatedFileError
from snapconv.snapshot.fields import shown

T = TypeVar("T")
ANYTHING: Decoder[Any] = Decoder()

# A list takes 60 bytes of memory and may take 2 of the text. torch's containers and ours have, with what is
# in them, 8 characters each at least.
_MIN_CONTAINER_BYTES, _FEW_CONTAINERS = 8, 1_000_000
_MISSING = re.compile(r"Object missing required field `(\w+)`")
_STEP = re.compile(r"\.(\w+)|\[(\d+)\]")


def read_json(text: bytes, decoder: Decoder[T]) -> T:
    """Read a text as the type of the decoder; raises MalformedSnapshotError or TruncatedFileError."""
    refuse_empty_lists(text)
    try:
        return decoder.decode(text)
    except msgspec.ValidationError as error:
        raise MalformedSnapshotError(_fault(str(error), text)) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if is_truncated(error):
            raise TruncatedFileError.of("the JSON text", len(text)) from error
        raise MalformedSnapshotError(f"no JSON text: {reason_of(error)}") from error


def read_any_json(data: bytes) -> object:
    """Read a snapshot's text, of no certain type; raises NotASnapshotError or TruncatedFileError."""
    refuse_empty_lists(data)
    try:
        return ANYTHING.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        # The standard library reads NaN and lone surrogates; msgspec is faster.
        try:
            return json.loads(data)
        except (ValueError, RecursionError):
            pass
        if is_truncated(error):
            raise TruncatedFileError.of("the JSON text", len(data)) from error
        raise NotASnapshotError(
            f"this is not a memory snapshot: it begins like JSON but is not: {reason_of(error)}"
        ) from error


def refuse_empty_lists(text: bytes) -> None:
    """Refuse a text that takes far more memory than its length suggests."""
    if text.count(b"[") + text.count(b"{") > max(len(text) // _MIN_CONTAINER_BYTES, _FEW_CONTAINERS):
        raise MalformedSnapshotError(
            "the JSON text is little more than empty lists, which would take 20 times the memory: not read"
        )


def is_truncated(error: Exception) -> bool:
    """Whether the text is right as far as it goes."""
    return str(error) == "Input data was truncated"


def reason_of(error: Exception) -> str:
    """Why a text cannot be read, with the byte where msgspec reports it."""
    if isinstance(error, RecursionError):
        return "nested too deep"
    return shown(str(error).removeprefix("JSON is malformed: "))


def json_of(value: object) -> str:
    """A value as a message may show it."""
    return shown(msgspec.json.encode(value).decode())


def _fault(message: str, text: bytes) -> str:
    """Put msgspec's ``Expected `int` >= 0 - at `$.calls.stack[2]` `` into our order, with what is there."""
    what, _, path = message.partition(" - at `$")
    path = path.removesuffix("`")
    if missing := _MISSING.fullmatch(what):
        path, what = f"{path}.{missing[1]}", "is missing"
    elif what.startswith("Expected") and ", got" not in what:
        what += f", got {_found(text, path)}"
    return f"{path.removeprefix('.') or 'the file'}: {what[:1].lower()}{what[1:].replace('`', '')}"


def _found(text: bytes, path: str) -> str:
    """What stands at a path: read once more, since msgspec does not contain it."""
    with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        value = ANYTHING.decode(text)
        for key, place in _STEP.findall(path):
            value = value[key] if key else value[int(place)]
        return json_of(value)
    return "something else"
