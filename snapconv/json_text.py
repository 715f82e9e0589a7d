"""JSON as bytes <-> plain values: every JSON that snapconv reads or writes goes through here.

orjson does it. What it refuses and others write is handled here too: NaN and lone surrogates in
torch's own files, whole numbers of more than 64 bits. Imports NumPy and torch nowhere, since the
recorder writes JSON.
"""

import json
import mmap
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict, is_dataclass
from functools import cache
from types import NoneType
from typing import Any, NoReturn, TypeVar, cast, get_args, get_origin, get_type_hints

import orjson

from snapconv.errors import MalformedSnapshotError
from snapconv.units import shown

# A list takes 60 bytes of memory and may take 2 of the text. torch's containers and ours have, with
# what is in them, 8 characters each at least.
_MIN_CONTAINER_BYTES, _FEW_CONTAINERS = 8, 1_000_000
_OPTIONS = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS
_INT64_MIN = -(1 << 63)
_UINT64_MAX = (1 << 64) - 1
# A short text takes 51 bytes, and its place in a list 8.
_VALUE_BYTES = 60
_TOO_DEEP = "nested too deep"
_Dataclass = TypeVar("_Dataclass")


class JsonError(ValueError):
    """A text that is not JSON; the message has the reason and the byte.

    ``is_truncated``: the text is right as far as it goes.
    """

    def __init__(self, reason: str, *, is_truncated: bool = False) -> None:
        super().__init__(reason)
        self.is_truncated = is_truncated


def read_json(text: bytes, *, is_lenient: bool = False) -> Any:
    """Read a text as JSON is defined; a whole number of more than 64 bits becomes a float.

    ``is_lenient``: also as Python's own ``json.dump`` writes it, with NaN, infinities and lone
    surrogates, as torch's own files have them. Raises JsonError, MalformedSnapshotError for a text
    that would take far more memory than its length suggests, and MemoryError.
    """
    _refuse_empty_lists(text)
    if not _has_room(text):
        return _read_slowly(text, JsonError("not JSON"), is_lenient=is_lenient)
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        fault = _fault(error, text)
        # orjson also names memory where a text breaks off within some hundred open lists.
        if (is_lenient and not fault.is_truncated) or "memory" in error.msg:
            return _read_slowly(text, fault, is_lenient=is_lenient)
        raise fault from error


def _has_room(text: bytes) -> bool:
    """Return whether orjson has the memory that it may need, without which it ends the process.

    It takes 12 bytes for each of the text's at once, and each value then is an object. The memory
    that is requested here is never touched. The standard library needs less, and raises
    MemoryError.
    """
    n_values = text.count(b",") + text.count(b":")
    n_bytes = 12 * len(text) + _VALUE_BYTES * n_values
    try:
        mmap.mmap(-1, n_bytes + mmap.PAGESIZE).close()
    except (OSError, OverflowError):
        return False
    return True


def _read_slowly(text: bytes, fault: JsonError, *, is_lenient: bool) -> Any:
    """Read a text by the standard library; if it fails too, raise the fault that orjson found."""
    try:
        return json.loads(text, parse_constant=None if is_lenient else _refuse_constant)
    except RecursionError as error:
        raise JsonError(_TOO_DEEP) from error
    except json.JSONDecodeError as error:
        if error.pos >= len(error.doc) or error.msg.startswith("Unterminated string"):
            raise JsonError(str(fault), is_truncated=True) from error
        raise fault from error
    except ValueError as error:
        raise fault from error


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")


def _refuse_empty_lists(text: bytes) -> None:
    n_containers = text.count(b"[") + text.count(b"{")
    if n_containers > max(len(text) // _MIN_CONTAINER_BYTES, _FEW_CONTAINERS):
        raise MalformedSnapshotError(
            "the JSON text is little more than empty lists, which would take 20 times "
            "the memory: not read"
        )


def _fault(error: json.JSONDecodeError, text: bytes) -> JsonError:
    if "depth" in error.msg:
        return JsonError(_TOO_DEEP)
    try:
        text.decode()
    except UnicodeDecodeError as wrong:  # orjson does not say where
        return JsonError(
            shown(str(wrong)), is_truncated=wrong.reason == "unexpected end of data"
        )
    byte = len(error.doc[: error.pos].encode("utf-8", "surrogatepass"))
    is_truncated = error.msg == "unexpected end of data" or not text.strip()
    position = f"line {error.lineno} column {error.colno} (byte {byte})"
    return JsonError(f"{error.msg}: {position}", is_truncated=is_truncated)


def write_json(value: object, *, is_indented: bool = False) -> bytes:
    """Write plain values and NumPy's as JSON.

    NaN becomes null, lone surrogates are escaped, whole numbers are written in full.
    """
    options = _OPTIONS | orjson.OPT_INDENT_2 if is_indented else _OPTIONS
    try:
        return orjson.dumps(value, default=_plain, option=options)
    except orjson.JSONEncodeError:
        return orjson.dumps(_writable(value), default=_plain, option=options)


def _plain(value: Any) -> object:
    """Return a list for what orjson refuses: an array with gaps, and a named tuple."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, tuple):
        return list(value)
    raise TypeError(f"{type(value).__name__} has no JSON")


def _writable(value: object) -> object:
    """Return equal values without what orjson refuses: surrogates, and numbers beyond 64 bits."""
    if is_dataclass(value):
        value = asdict(cast(Any, value))
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, int) and not _INT64_MIN <= value <= _UINT64_MAX:
        return orjson.Fragment(str(value))
    if isinstance(value, dict):
        return {_writable(str(key)): _writable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_writable(item) for item in value]
    return value


def picked(row: object, names: Iterable[str]) -> dict[str, Any]:
    """Return some attributes of a row, by name."""
    return {name: getattr(row, name) for name in names}


def dataclass_from(kind: type[_Dataclass], values: object) -> _Dataclass:
    """Build a dataclass, and those in it, from the JSON of its fields.

    Raises ValueError for anything else.
    """
    try:
        return cast(_Dataclass, _builder(cast(Any, kind))(values))
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not the values of {kind.__name__}: {error!r}") from error


@cache
def _builder(kind: Any) -> Callable[[Any], Any]:
    """Return a function from JSON to a type: a dataclass, tuple, dict or plain one, or None."""
    if isinstance(kind, type) and is_dataclass(kind):
        return _dataclass_builder(kind)
    builders = [_builder(part) for part in get_args(kind) if part not in (NoneType, ...)]
    if get_origin(kind) is tuple:
        return lambda values: tuple(map(builders[0], values))
    if get_origin(kind) is dict:
        build_key, build_value = builders
        return lambda values: {
            build_key(key): build_value(value) for key, value in values.items()
        }
    if builders:
        return lambda value: None if value is None else builders[0](value)
    return _interned if kind is str else cast("Callable[[Any], Any]", kind)


def _dataclass_builder(kind: type[Any]) -> Callable[[Any], Any]:
    builders = {name: _builder(hint) for name, hint in get_type_hints(kind).items()}

    def build(values: Any) -> Any:
        return kind(**{name: builder(values[name]) for name, builder in builders.items()})

    return build


def _interned(value: object) -> str:
    """Return a text that is stored once: thousands of rows have the same names."""
    return sys.intern(str(value))


def escape_unprintable(text: str) -> str:
    """Return equal JSON with everything escaped that a terminal might obey.

    Only the strings in it have such characters.
    """
    if text.replace("\n", "").isprintable():
        return text
    return "".join(c if c == "\n" or c.isprintable() else _escape(c) for c in text)


def _escape(character: str) -> str:
    digits = character.encode("utf-16-be", "surrogatepass").hex()
    units = [digits[i : i + 4] for i in range(0, len(digits), 4)]
    return "".join(f"\\u{unit}" for unit in units)
