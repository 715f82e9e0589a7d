"""Live stacks -> profiles of a moment: speedscope's JSON, folded text for flame graphs, pprof's protobuf.

The numbers of pprof's fields are those of proto/profile.proto in github.com/google/pprof. A format that
repeats the names of frames in every stack gets fewer of them where a file shares one deep stack, or one long
name, for two bytes each time. No real file comes near the bound: of these, all frames are written.
"""

import gzip
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from snapconv.answers.views.live_stacks import LiveStacks, StackFrame
from snapconv.files import most_bytes_of_part
from snapconv.json_text import write_json
from snapconv.notes import Note
from snapconv.stacks.project_lines import MAX_LINES_OF_AN_END, both_ends
from snapconv.units import device_name, printable, shortened
from snapconv.version import VERSION
from snapconv.writers.exports.protobuf_fields import bytes_field, number_field, packed_field, text_field

_MOST_OF_NAME = 200
# Of the frames of a stack, how many of each of its ends are tried.
_NUMBERS = (MAX_LINES_OF_AN_END, 32, 16, 8, 4, 2, 1, 0)
_MIDDLE = StackFrame("[frames left out]", "", "", 0)


def with_short_stacks(found: LiveStacks, n_bytes: int) -> tuple[LiveStacks, tuple[Note, ...]]:
    """Shorten the names of frames, and leave out the middles of stacks, where all would be too much.

    ``n_bytes`` is the size of the file, unpacked. The note names what was left out.
    """
    allowed = most_bytes_of_part(n_bytes)
    if _length(found.frames, [stack.frames for stack in found.stacks]) <= allowed:
        return found, ()
    short = [_short(frame) for frame in found.frames]
    for n in _NUMBERS:
        stacks = [_ends(stack.frames, n, middle=len(short)) for stack in found.stacks]
        if _length([*short, _MIDDLE], stacks) <= allowed:
            break
    which = f"the {n} innermost and the {n} outermost frames" if n else "no frames"
    message = (
        f"of a stack {which} are written, with short names: all would be many times the size of the file"
    )
    shortened_stacks = [
        replace(stack, frames=frames) for stack, frames in zip(found.stacks, stacks, strict=True)
    ]
    bounded = replace(found, frames=(*short, _MIDDLE), stacks=tuple(shortened_stacks))
    return bounded, (Note("left-out", message, found.device),)


def _length(frames: Sequence[StackFrame], stacks: Sequence[Sequence[int]]) -> int:
    """Return the characters of all stacks as text; escaped, a character takes a few more."""
    lengths = [1 + len(frame.label) for frame in frames]
    return sum(lengths[row] for stack in stacks for row in stack)


def _short(frame: StackFrame) -> StackFrame:
    return StackFrame(shortened(frame.label, _MOST_OF_NAME), "", "", 0)


def _ends(frames: tuple[int, ...], n: int, *, middle: int) -> tuple[int, ...]:
    kept = both_ends(frames, n)
    return frames if len(kept) == len(frames) else (*kept[:n], middle, *kept[n:])


def write_folded(temporary: Path, found: LiveStacks) -> None:
    """Write the lines into a file, most bytes first."""
    names = [_folded_name(frame.label) for frame in found.frames]
    lines: Counter[str] = Counter()
    for stack in found.stacks:
        lines[";".join(names[row] for row in stack.frames)] += stack.block_bytes
    with temporary.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(f"{line} {n_bytes}\n" for line, n_bytes in lines.most_common())


def _folded_name(label: str) -> str:
    """Write a frame for a folded line: without semicolons, which separate frames, and ends of lines."""
    return printable(label).replace(";", ",") or "?"


_SCHEMA = "https://www.speedscope.app/file-format-schema.json"


def write_speedscope(temporary: Path, found: LiveStacks) -> None:
    """Write the file; with a profile of all, and one of every category."""
    categories = list(dict.fromkeys(stack.category for stack in found.stacks))
    whole = f"{device_name(found.device)}, live at {found.moment}"
    profiles = [_speedscope_profile(found, whole, None)]
    profiles += [_speedscope_profile(found, category, category) for category in categories]
    document = {
        "$schema": _SCHEMA,
        "exporter": f"snapconv {VERSION}",
        "name": whole,
        "activeProfileIndex": 0,
        "shared": {
            "frames": [_speedscope_frame(frame.label, frame.filename, frame.line) for frame in found.frames]
        },
        "profiles": profiles,
    }
    temporary.write_bytes(write_json(document) + b"\n")


def _speedscope_profile(found: LiveStacks, name: str, category: str | None) -> dict[str, object]:
    stacks = [stack for stack in found.stacks if category in (None, stack.category)]
    weights = [stack.block_bytes for stack in stacks]
    return {
        "type": "sampled",
        "name": name,
        "unit": "bytes",
        "startValue": 0,
        "endValue": sum(weights),
        "samples": [list(stack.frames) for stack in stacks],
        "weights": weights,
    }


def _speedscope_frame(name: str, filename: str, line: int) -> dict[str, object]:
    place: dict[str, object] = {"file": filename} if filename not in ("", "??") else {}
    return {"name": name, **place, **({"line": line} if line else {})}


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
    """Return the profile, not yet compressed."""
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
