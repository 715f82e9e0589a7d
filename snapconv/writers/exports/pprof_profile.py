"""Live stacks -> a profile that pprof opens: gzipped protobuf, as a heap profile of Go has it.

The numbers of the fields are those of proto/profile.proto in github.com/google/pprof.
"""

import gzip
from collections.abc import Iterator
from pathlib import Path

from snapconv.answers.live_stacks import LiveStacks
from snapconv.units import device_name
from snapconv.writers.exports.protobuf_fields import bytes_field, number_field, packed_field, text_field

# Profile
_SAMPLE_TYPE, _SAMPLE, _LOCATION, _FUNCTION, _STRING = 1, 2, 4, 5, 6
_TIME_NANOS, _COMMENT, _DEFAULT_SAMPLE_TYPE = 9, 13, 14
# ValueType
_TYPE, _UNIT = 1, 2
# Sample, Label
_LOCATION_IDS, _VALUES, _LABEL = 1, 2, 3
_KEY, _STR = 1, 2
# Location, Line, and Function
_ID, _LINE = 1, 4
_FUNCTION_ID, _LINE_NUMBER = 1, 2
_NAME, _SYSTEM_NAME, _FILENAME = 2, 3, 4


def write_pprof(temporary: Path, found: LiveStacks) -> None:
    """Write the profile; the same stacks give the same bytes."""
    temporary.write_bytes(gzip.compress(profile_of(found), mtime=0))


def profile_of(found: LiveStacks) -> bytes:
    """The profile, not yet compressed."""
    texts = _Texts()
    content = b"".join(_fields(found, texts))
    return content + b"".join(text_field(_STRING, text) for text in texts.known)


class _Texts:
    """The profile's table of texts, of which the first is empty."""

    def __init__(self) -> None:
        self.known: dict[str, int] = {"": 0}

    def __call__(self, text: str) -> int:
        return self.known.setdefault(text, len(self.known))


def _fields(found: LiveStacks, texts: _Texts) -> Iterator[bytes]:
    for name, unit in (("inuse_objects", "count"), ("inuse_space", "bytes")):
        value_type = number_field(_TYPE, texts(name)) + number_field(_UNIT, texts(unit))
        yield bytes_field(_SAMPLE_TYPE, value_type)
    category = texts("category")
    for stack in found.stacks:
        label = number_field(_KEY, category) + number_field(_STR, texts(stack.category))
        yield bytes_field(
            _SAMPLE,
            packed_field(_LOCATION_IDS, [row + 1 for row in reversed(stack.frames)])
            + packed_field(_VALUES, [stack.n_blocks, stack.block_bytes])
            + bytes_field(_LABEL, label),
        )
    functions: dict[tuple[str, str], int] = {}
    for row, frame in enumerate(found.frames, 1):
        function = functions.setdefault((frame.function, frame.filename), len(functions) + 1)
        line = number_field(_FUNCTION_ID, function) + number_field(_LINE_NUMBER, frame.line)
        yield bytes_field(_LOCATION, number_field(_ID, row) + bytes_field(_LINE, line))
    for (function_name, filename), number in functions.items():
        names = number_field(_NAME, texts(function_name)) + number_field(_SYSTEM_NAME, texts(function_name))
        about = number_field(_ID, number) + names + number_field(_FILENAME, texts(filename))
        yield bytes_field(_FUNCTION, about)
    if found.time_us is not None:
        yield number_field(_TIME_NANOS, found.time_us * 1000)
    comment = f"{device_name(found.device)}, live at {found.moment}"
    yield number_field(_COMMENT, texts(comment)) + number_field(_DEFAULT_SAMPLE_TYPE, texts("inuse_space"))
