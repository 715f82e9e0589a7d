"""The recorder's metadata, under the key ``snapconv``: plain values -> columns, or a note why not.

The snapshot beside it is good without it. So whatever is wrong here is a note that names the place,
and the metadata is left out; nothing here is an error.
"""

import math
import re
from dataclasses import dataclass, replace
from enum import IntEnum
from itertools import islice
from pathlib import Path

import numpy as np

from snapconv.columns import (
    BoolColumn,
    Int8Column,
    Int32Column,
    Int64Column,
    plain_rows,
    read_only,
    unknown_column,
)
from snapconv.errors import InputError, MalformedSnapshotError
from snapconv.files import ENDING_NAME, SNAPSHOT_NAME
from snapconv.notes import Note
from snapconv.snapshot.fields import (
    ADDRESS,
    BYTES,
    DEVICE,
    TIME,
    Bounds,
    Rows,
    check_total,
    expect,
    read_json_file,
)
from snapconv.snapshot.recorded.additions import read_sources
from snapconv.snapshot.stack_table import Stacks

VERSION = 1
KEY = "snapconv"
_ITERATION = Bounds(0, 1 << 31, "0 to 2^31")
_DIMENSION = Bounds(0, 1 << 62, "0 to 2^62")
# torch counts the values of a tensor in int64; with so many, a few bytes for each still fit.
_VALUES = Bounds(0, 1 << 60, "dimensions with a product of at most 2^60")
# A name may stand in a file very many times, and so may a list of names.
_MAX_TEXT, _MAX_LIST = 2000, 100
# What the rows take together, each with its texts, for a byte of the file; a recorder's take less
# than one.
_BYTES_PER_BYTE, _FREE_BYTES, _ROW_BYTES = 4, 512 << 10, 50
# The peak of each device, and a note.
_MAX_ENDING_BYTES = 1 << 20
_SLUG = r"[a-z][a-z-]{2,40}"
# The lists of tensors of a parameter or none, and their keys.
_LISTS = {
    "earlier": "earlier_parameters",
    "gradients": "gradients",
    "states": "optimizer_states",
    **{key: key for key in ("inputs", "saved", "copies", "attributes")},
    "gathered": "gathered_weights",
    "unreduced": "unreduced_gradients",
    "buffers": "communication_buffers",
}
# The columns of numbers of a tensor: the key, the bounds, and what a missing one is; None: it may
# not miss.
_NUMBERS = (
    ("device", "device", DEVICE, None),
    ("addr", "addr", ADDRESS, None),
    ("n_bytes", "bytes", BYTES, None),
    ("recorded_us", "noted_us", TIME, None),
    ("original_addr", "original", ADDRESS, 0),
    ("iteration", "iteration", _ITERATION, 0),
)
_ENDINGS = {
    "finished": "ended",
    "exception": "was ended by an exception",
    "interrupted": "was interrupted",
    "oom": "ran out of memory",
    "exit": "left",
}


class RecordedPhase(IntEnum):
    """The phases that a recorder marks; the values are those of PhaseTable.phase."""

    OTHER = 0
    FORWARD = 1
    BACKWARD = 2
    OPTIMIZER = 3


_PHASE_CODES = {phase.name.lower(): int(phase) for phase in RecordedPhase if phase}


@dataclass(frozen=True, slots=True)
class RecordedTensors:
    """Tensors of one kind, a row each, and where their memory was; read-only.

    ``addr`` is the base of the storage, ``original_addr`` that of what a copy was made of, on the
    same device; ``n_bytes`` is what the tensor itself has, ``recorded_us`` a time of the trace's
    clock. ``parameter`` is a row of the parameters, -1 for none. ``names`` are those of parameters,
    of attributes, or of states of optimizers. ``modules`` are empty where none ran, or for the
    model itself; ``layers`` are the classes of torch.nn whose forward ran. ``without_history``: no
    operation that has a gradient made it; ``is_written``: since it was made. ``stack_ids`` are
    where parameters were registered, -1 where that is not known. What a kind does not have is 0,
    False or empty.
    """

    device: Int64Column
    addr: Int64Column
    n_bytes: Int64Column
    recorded_us: Int64Column
    original_addr: Int64Column
    parameter: Int64Column
    iteration: Int64Column
    names: tuple[str, ...]
    modules: tuple[str, ...]
    layers: tuple[str, ...]
    dtypes: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    is_buffer: BoolColumn
    without_history: BoolColumn
    is_written: BoolColumn
    stack_ids: Int32Column

    def __len__(self) -> int:
        return len(self.addr)


@dataclass(frozen=True, slots=True)
class PhaseTable:
    """Phases as they were marked, on the trace's clock; ``ended_us`` is -1 without an end."""

    phase: Int8Column
    iteration: Int64Column
    began_us: Int64Column
    ended_us: Int64Column


@dataclass(frozen=True, slots=True)
class RecordedProject:
    """The project's folder, and libraries that count too; ``is_given``: a user named the folder."""

    root: str | None = None
    is_given: bool = False
    includes: tuple[str, ...] = ()


NOT_RECORDED = RecordedProject()


@dataclass(frozen=True, slots=True)
class Metadata:
    """Everything that a recorder wrote. ``facts`` are its plain values as text, for reports.

    ``sources`` are the lines of the project's files by their paths, where the user had them kept.

    ``earlier`` are earlier places of parameters, ``inputs`` what a model was called with, ``saved``
    what autograd saved for backward, ``copies`` those of ``deepcopy``, ``attributes`` plain ones of
    modules. Of FSDP, ``gathered`` are whole weights, ``unreduced`` their gradients, ``buffers``
    those of collectives.
    """

    project: RecordedProject
    is_simulated: bool
    not_modelled: tuple[str, ...]
    recorder_notes: tuple[Note, ...]
    ended: str
    ended_detail: str
    overflowed: bool | None
    device_bytes: dict[int, int]
    facts: tuple[tuple[str, str], ...]
    sources: dict[str, list[str]]
    parameters: RecordedTensors
    earlier: RecordedTensors
    gradients: RecordedTensors
    states: RecordedTensors
    inputs: RecordedTensors
    saved: RecordedTensors
    copies: RecordedTensors
    attributes: RecordedTensors
    gathered: RecordedTensors
    unreduced: RecordedTensors
    buffers: RecordedTensors
    phases: PhaseTable
    iterations: PhaseTable

    def notes(self) -> tuple[Note, ...]:
        """Return the notes on all figures of this file."""
        notes = []
        if self.is_simulated:
            operations = "; ".join(self.not_modelled)
            missing = (
                f"not modelled: {operations}" if operations else "a GPU needs somewhat more"
            )
            notes.append(Note("simulated", f"recorded without a GPU; {missing}"))
        if self.ended != "complete":
            # After two sentences torch adds only advice and an address.
            sentences = re.split(r"(?<=[.!?])\s+", self.ended_detail, maxsplit=2)[:2]
            detail = f" ({' '.join(sentences)})" if self.ended_detail else ""
            ending = _ENDINGS.get(self.ended, "ended")
            message = (
                f"the program {ending}{detail} before everything was recorded; the report covers "
                "what was recorded until then"
            )
            notes.append(Note("ended-early", message))
        return (*notes, *self.recorder_notes)


def read_metadata(
    raw: object, stacks: Stacks, *, n_bytes: int
) -> tuple[Metadata | None, tuple[Note, ...]]:
    """Read the value under KEY; None if there is none, None and a note if it cannot be used.

    ``n_bytes`` is the size of the file, unpacked.
    """
    if raw is None:
        return None, ()
    try:
        metadata = _read(expect(raw, dict, KEY), stacks, n_bytes)
    except MalformedSnapshotError as error:
        return None, (
            Note("metadata-left-out", f"what the recorder wrote was left out: {error}"),
        )
    return metadata, metadata.notes()


def _read(raw: dict[object, object], stacks: Stacks, n_bytes: int) -> Metadata:
    _check_version(raw.get("version"))
    _check_size(raw, n_bytes)
    # Without frames of the trace, those of parameters alone would look like the whole program's.
    parameters = _tensors(
        _rows(raw, "parameters"), 0, stacks if stacks.has_frames else None
    )
    if "" in parameters.names:
        raise MalformedSnapshotError(f"{KEY}.parameters: expected a name for each")
    device_bytes = _device_bytes(_rows(raw, "devices"))
    tensors = {}
    for name, key in _LISTS.items():
        tensors[name] = _tensors(_rows(raw, key), len(parameters), None)
    simulated = raw.get("simulated")
    overflowed = raw.get("overflowed")
    ended = _dictionary(raw.get("ended"))
    return Metadata(
        project=_project(raw),
        is_simulated=simulated is not None,
        not_modelled=_texts_of(_dictionary(simulated).get("not_modelled")),
        recorder_notes=_recorder_notes(raw.get("notes")),
        ended=_text(ended, "how") or "complete",
        ended_detail=_text(ended, "detail"),
        overflowed=overflowed if isinstance(overflowed, bool) else None,
        device_bytes=device_bytes,
        facts=_facts(raw),
        sources=_sources(raw, n_bytes),
        parameters=parameters,
        **tensors,
        phases=_phases(_rows(raw, "phases"), "phase"),
        iterations=_phases(_rows(raw, "iterations"), "kind"),
    )


def _check_version(version: object) -> None:
    if type(version) is not int or version != VERSION:
        actual = _plain(version) or type(version).__name__
        raise MalformedSnapshotError(
            f"{KEY}.version: expected {VERSION}, got {actual}; look for a newer snapconv"
        )


def _project(raw: dict[object, object]) -> RecordedProject:
    is_given = raw.get("project_root_given") is True
    root = _text(raw, "project_root") or None
    return RecordedProject(root, is_given, _texts_of(raw.get("include")))


def _sources(raw: dict[object, object], n_bytes: int) -> dict[str, list[str]]:
    files = _dictionary(raw.get("source")).get("files")
    return read_sources(files, f"{KEY}.source.files", n_bytes)


def _dictionary(value: object) -> dict[object, object]:
    """Return a dictionary as it is, and an empty one for anything else."""
    return value if isinstance(value, dict) else {}


def read_ending(path: Path) -> tuple[Note, ...]:
    """Return the notes that a recorder wrote when the program ended; none if they cannot be read.

    ``path`` is the snapshot of a capture.
    """
    file = path.with_name(ENDING_NAME)
    if path.name != SNAPSHOT_NAME or not file.is_file():
        return ()
    try:
        raw, _ = read_json_file(file, _MAX_ENDING_BYTES)
    except (InputError, OSError):
        return ()
    return _recorder_notes(raw.get("notes")) if isinstance(raw, dict) else ()


def _rows(raw: dict[object, object], key: str) -> Rows:
    return Rows.of(raw.get(key), f"{KEY}.{key}")


def _tensors(rows: Rows, n_parameters: int, stacks: Stacks | None) -> RecordedTensors:
    state_names = _names(rows, "state")
    numbers = {}
    for name, key, bounds, missing in _NUMBERS:
        numbers[name] = rows.ints(key, bounds, missing=missing)
    index = Bounds(0, n_parameters - 1, f"an index below {n_parameters}")
    table = RecordedTensors(
        **numbers,
        parameter=rows.ints("parameter", index, missing=-1),
        # A row of an optimizer's state has its name under a key of its own.
        names=state_names if any(state_names) else _names(rows, "name"),
        modules=_names(rows, "module"),
        layers=_names(rows, "layer"),
        dtypes=_names(rows, "dtype"),
        shapes=_shapes(rows),
        is_buffer=rows.flags("kind", value="buffer"),
        without_history=rows.flags("without_history"),
        is_written=rows.flags("written"),
        stack_ids=unknown_column(len(rows), np.int32),
    )
    check_total(table.n_bytes, KEY)
    if stacks is not None:
        table = replace(table, stack_ids=stacks.ids(rows.values("frames"), rows.row_path))
    return read_only(table)


def _names(rows: Rows, key: str) -> tuple[str, ...]:
    """Return texts, empty where one is missing, and cut where they are too long to be names.

    Many rows may share a long text: it is cut once, so that they share that too.
    """
    values = rows.texts(key)
    cut = {value: (value or "")[:_MAX_TEXT] for value in dict.fromkeys(values)}
    return tuple(cut[value] for value in values)


def _shapes(rows: Rows) -> tuple[tuple[int, ...], ...]:
    """Return shapes, empty where one is missing, and cut where they are very long."""
    shapes = []
    for i, value in enumerate(rows.values("shape")):
        path = f"{rows.row_path(i)}.shape"
        sizes = () if value is None else value
        if not isinstance(sizes, tuple):  # pickle has tuples, JSON lists
            expect(sizes, list, path)
        shape = tuple(expect(size, _DIMENSION, path) for size in islice(sizes, _MAX_LIST))
        expect(math.prod(shape), _VALUES, path)
        shapes.append(shape)
    return tuple(shapes)


def _phases(rows: Rows, key: str) -> PhaseTable:
    """Return phases in the order in which they began; words that are not known are OTHER."""
    began = rows.ints("began_us", TIME)
    codes = [_PHASE_CODES.get(word, 0) for word in _names(rows, key)]
    phase = np.array(codes, np.int8)
    order = np.argsort(began, kind="stable")
    iteration = rows.ints("iteration", _ITERATION, missing=0)
    ended = rows.ints("ended_us", TIME, missing=-1)
    return read_only(PhaseTable(phase[order], iteration[order], began[order], ended[order]))


def _device_bytes(rows: Rows) -> dict[int, int]:
    """Return the memory of every device that has it."""
    devices = rows.ints("device", _ITERATION, missing=0)
    n_bytes = rows.ints("total_bytes", missing=-1)
    return {device: size for device, size in plain_rows(devices, n_bytes) if size >= 0}


def _check_size(raw: dict[object, object], n_bytes: int) -> None:
    """Refuse lists that repeat rows or texts until all are many times the size of the file.

    A pickle repeats either for two bytes, and reports have them for every row.
    """
    list_sizes: dict[int, int] = {}

    def size(value: object) -> int:
        if type(value) is str:
            return min(len(value), _MAX_TEXT)
        if type(value) is not list:
            return 0
        if id(value) not in list_sizes:
            texts = (item for item in islice(value, _MAX_LIST) if type(item) is str)
            list_sizes[id(value)] = min(len(value), _MAX_LIST) + sum(map(size, texts))
        return list_sizes[id(value)]

    total = 0
    for rows in raw.values():
        for row in rows if isinstance(rows, list) else ():
            if isinstance(row, dict):
                # Stacks have bounds of their own.
                values = (value for key, value in row.items() if key != "frames")
                total += _ROW_BYTES + sum(map(size, values))
    if total > _BYTES_PER_BYTE * n_bytes + _FREE_BYTES:
        raise MalformedSnapshotError(
            f"{KEY}: the entries are together many times the size of the file"
        )


# --- single values


def _recorder_notes(raw: object) -> tuple[Note, ...]:
    """Return the notes that the recorder wrote about the program; anything else is left out."""
    notes = []
    for row in islice(raw, _MAX_LIST) if isinstance(raw, list) else ():
        values = _dictionary(row)
        slug = _text(values, "slug")
        message = _text(values, "message")
        if re.fullmatch(_SLUG, slug) and message:
            notes.append(Note(slug, message))
    return tuple(notes)


def _facts(raw: dict[object, object]) -> tuple[tuple[str, str], ...]:
    """Return the plain values at the top, by their keys, and the command line."""
    facts = []
    for key, value in raw.items():
        text = _plain(value)
        if type(key) is str and key != "version" and text:
            facts.append((key, text))
    facts = facts[:_MAX_LIST]
    command = " ".join(_texts_of(raw.get("command")))
    if command:
        facts.append(("command", command))
    return tuple(facts)


def _plain(value: object) -> str:
    """Return a single value as text; an empty text for anything else, and for absurd numbers."""
    if type(value) is int:
        return str(value) if abs(value) < 1 << 63 else ""
    return str(value)[:_MAX_TEXT] if type(value) in (str, float, bool) else ""


def _text(raw: dict[object, object], key: str) -> str:
    value = raw.get(key)
    return value[:_MAX_TEXT] if type(value) is str else ""


def _texts_of(values: object) -> tuple[str, ...]:
    """Return the texts in a list, cut as names are; of anything else nothing."""
    if not isinstance(values, (list, tuple)):
        return ()
    return tuple(
        text[:_MAX_TEXT] for text in islice(values, _MAX_LIST) if type(text) is str
    )
