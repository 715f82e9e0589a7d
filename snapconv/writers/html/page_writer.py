"""A page in one file: its style, its data, its program; nothing else may load, and nothing else may run.

The program comes from ``web/`` (TypeScript) as one built file. The page forbids everything but that file and
its style, by their hashes: what a name in a snapshot may contain, it is never run, and nothing is requested.
"""

import base64
import hashlib
import html
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from snapconv.files import new_files
from snapconv.writers.html.column_encoding import EncodedColumn, encode_values
from snapconv.writers.html.view_device import ViewDevice

_HERE = Path(__file__).parent
_PROGRAM, _STYLE = _HERE / "page.js", _HERE / "page.css"
_DATA_TYPE = "application/octet-stream"  # no type of a program: it is never run


@dataclass(frozen=True, slots=True)
class ViewFile:
    """One file of a page: plain values about it, and its devices."""

    facts: dict[str, object]
    devices: tuple[ViewDevice, ...]


def write_page(
    path: Path, files: Sequence[ViewFile], shared: dict[str, object], *, title: str, force: bool
) -> int:
    """Write the page whole or not at all; gives its size in bytes."""
    with new_files([path], force=force) as (temporary,), temporary.open("wb") as file:
        for part in _parts(files, shared, title):
            _write(file, part)
        return file.tell()


def _write(file: BinaryIO, part: bytes) -> None:
    file.write(part)


def _parts(files: Sequence[ViewFile], shared: dict[str, object], title: str) -> Iterator[bytes]:
    program, style = _PROGRAM.read_bytes(), _STYLE.read_bytes()
    devices = [(number, device) for number, file in enumerate(files) for device in file.devices]
    directory = {
        **shared,
        "files": [file.facts for file in files],
        "devices": [
            {
                "file": number,
                **device.facts,
                "columns": {name: c.entry() for name, c in (device.level | device.columns).items()},
            }
            for number, device in devices
        ],
    }
    yield _head(title, program, style).encode()
    yield b"<style>" + style + b"</style></head><body><div id=app></div>"
    yield b"<noscript>This page draws itself: allow it to run its own script.</noscript>\n"
    yield _data("page", encode_values(directory))
    for i, (_, device) in enumerate(devices):
        yield from _columns(i, device.level)
    yield b"<script>" + program + b"</script>\n"
    for i, (_, device) in enumerate(devices):
        yield _data(f"{i}.detail", encode_values(device.detail))
        yield from _columns(i, device.columns)
    yield b"</body></html>\n"


def _columns(number: int, columns: dict[str, EncodedColumn]) -> Iterator[bytes]:
    for name, column in columns.items():
        yield _data(f"{number}.{name}", column.base64)


def _data(name: str, encoded: bytes) -> bytes:
    return f'<script type="{_DATA_TYPE}" id="{name}">'.encode() + encoded + b"</script>\n"


def _head(title: str, program: bytes, style: bytes) -> str:
    policy = (
        f"default-src 'none'; script-src '{_hash(program)}'; style-src '{_hash(style)}'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark"><link rel="icon" href="data:,">'
        f"<title>{html.escape(title)}</title>"
    )


def _hash(content: bytes) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(content).digest()).decode()
