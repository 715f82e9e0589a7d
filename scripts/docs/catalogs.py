"""The catalogues beside this file -> what the generated pages say of notes and keys.

They are data that only documentation needs, so they are no part of the installed package. Tests
compare them with what the program makes.
"""

import sys
from pathlib import Path
from typing import Any, NamedTuple

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_FOLDER = Path(__file__).parent


class NoteMeaning(NamedTuple):
    """A note's slug, and three texts for a person; ``touches_peak``: the peak may be wrong by it."""

    slug: str
    section: str
    means: str
    affects: str
    do: str
    touches_peak: bool = False


class JsonKey(NamedTuple):
    """One key: its path in the document, its type, and what it means."""

    path: str
    type: str
    meaning: str


class CaptureKeys(NamedTuple):
    """What a capture's two files hold; ``rows_of``: key of the rows, their keys, the meaning."""

    metadata: dict[str, str]
    rows: dict[str, str]
    rows_of: tuple[tuple[str, str, str], ...]
    timing: tuple[JsonKey, ...]


def note_meanings() -> tuple[NoteMeaning, ...]:
    """Every note, section by section."""
    return tuple(
        NoteMeaning(slug, **{key: _on_one_line(value) for key, value in meaning.items()})
        for slug, meaning in _catalogue("notes").items()
    )


def json_keys() -> dict[str, tuple[JsonKey, ...]]:
    """Every command whose JSON has a catalogue, and its keys."""
    return {command: _json_keys(keys) for command, keys in _catalogue("json_keys").items()}


def capture_keys() -> CaptureKeys:
    """Return the keys of the recorder's part of a snapshot, and of timing.json."""
    found = _catalogue("capture_keys")
    rows_of = tuple(
        (f"`{rows}`", keys, meaning)
        for rows, meanings in found["rows_of"].items()
        for keys, meaning in meanings.items()
    )
    return CaptureKeys(found["metadata"], found["rows"], rows_of, _json_keys(found["timing"]))


def _catalogue(name: str) -> dict[str, Any]:
    catalogue: dict[str, Any] = tomllib.loads(
        (_FOLDER / f"{name}.toml").read_text(encoding="utf-8")
    )
    return catalogue


def _json_keys(keys: dict[str, list[str]]) -> tuple[JsonKey, ...]:
    return tuple(JsonKey(path, *type_and_meaning) for path, type_and_meaning in keys.items())


def _on_one_line(value: Any) -> Any:
    return " ".join(value.split()) if isinstance(value, str) else value
