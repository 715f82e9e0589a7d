"""The recorder's metadata, under the key ``snapconv``: plain values -> columns, or a note why not.

The snapshot beside it is good without it. So whatever is wrong here is a note that names the place, and
the metadata is left out; nothing here is an error.
"""

import re
from dataclasses import dataclass, replace
from enum import IntEnum
from itertools import islice

import numpy as np

from snapconv.columns import BoolColumn, Int8Column, Int32Column, Int64Column, read_only
from snapconv.errors import MalformedSnapshotError
from snapconv.notes import Note
from snapconv.snapshot.fields import ADDRESS
from snapconv.snapshot.recorded.metadata_rows import ITERATION, RecordedMemory, Rows, check_size, texts_of
from snapconv.snapshot.stack_table import StackInterner

VERSION = 1
KEY = "snapconv"
_MAX_FACTS = 100


class RecordedPhase(IntEnum):
    """The phases that a recorder marks; the values are those of PhaseTable.phase."""

    OTHER = 0
    FORWARD = 1
    BACKWARD = 2
    OPTIMIZER = 3


@dataclass(frozen=True, slots=True)
class ParameterTable:
    """Parameters and buffers in the order of ``named_parameters``; tied ones once, with all their names.

    ``stack_ids`` are where they were registered, -1 where that is not known.
    """

    names: tuple[str, ...]
    all_names: tuple[tuple[str, ...], ...]
    modules: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    is_buffer: BoolColumn
    requires_grad: BoolColumn
    stack_ids: Int32Column
    memory: RecordedMemory


@dataclass(frozen=True, slots=True)
class GradientTable:
    """Gradients as they were recorded; ``parameter`` is a row of the ParameterTable."""

    parameter: Int64Column
    iteration: Int64Column
    memory: RecordedMemory


@dataclass(frozen=True, slots=True)
class EarlierTable:
    """Earlier places of parameters and buffers; ``parameter`` is a position in theirs, -1 for none."""

    parameter: Int64Column
    memory: RecordedMemory


@dataclass(frozen=True, slots=True)
class StateTable:
    """Tensors of optimizers; ``parameter`` is -1 for those of no parameter of the model."""

    parameter: Int64Column
    states: tuple[str, ...]
    memory: RecordedMemory


@dataclass(frozen=True, slots=True)
class InputTable:
    """Tensors that a model was called with."""

    iteration: Int64Column
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    memory: RecordedMemory


@dataclass(frozen=True, slots=True)
class SavedTable:
    """Tensors that autograd saved for backward; a module is empty where none ran, or for the model itself.

    ``without_history``: no operation that has a gradient made it.
    """

    iteration: Int64Column
    modules: tuple[str, ...]
    without_history: BoolColumn
    dtypes: tuple[str, ...]
    memory: RecordedMemory


@dataclass(frozen=True, slots=True)
class AttributeTable:
    """Tensors that modules have as plain attributes; ``is_written``: since they were made."""

    modules: tuple[str, ...]
    names: tuple[str, ...]
    is_written: BoolColumn
    memory: RecordedMemory


@dataclass(frozen=True, slots=True)
class CopyTable:
    """Copies that ``deepcopy`` made of tensors; ``originals`` were on the same devices at the same times."""

    originals: RecordedMemory
    memory: RecordedMemory


@dataclass(frozen=True, slots=True)
class PhaseTable:
    """Phases as they were marked, on the trace's clock; ``ended_us`` is -1 for one that lasted to the end."""

    phase: Int8Column
    iteration: Int64Column
    began_us: Int64Column
    ended_us: Int64Column


@dataclass(frozen=True, slots=True)
class RecordedProject:
    """The project's folder; whether it was named, so that nothing else counts; libraries that count too."""

    root: str | None = None
    is_given: bool = False
    includes: tuple[str, ...] = ()


NOT_RECORDED = RecordedProject()


@dataclass(frozen=True, slots=True)
class Metadata:
    """Everything that a recorder wrote. ``facts`` are its plain values as text, for reports."""

    project: RecordedProject
    is_simulated: bool
    not_modelled: tuple[str, ...]
    recorder_notes: tuple[Note, ...]
    ended: str
    ended_detail: str
    overflowed: bool | None
    max_allocated_bytes: dict[int, int]
    device_bytes: dict[int, int]
    facts: tuple[tuple[str, str], ...]
    parameters: ParameterTable
    earlier: EarlierTable
    gradients: GradientTable
    states: StateTable
    inputs: InputTable
    saved: SavedTable
    copies: CopyTable
    attributes: AttributeTable
    phases: PhaseTable
    iterations: PhaseTable

    def notes(self) -> tuple[Note, ...]:
        """Return the notes on all figures of this file."""
        found = []
        if self.is_simulated:
            met = "" if _EVERY_SIMULATION.issubset(self.not_modelled) else "; ".join(self.not_modelled)
            missing = f"not modelled, and met: {met}" if met else "what a GPU needs beyond it"
            found.append(
                Note(
                    "simulated",
                    f"recorded without a GPU, by a model of torch's allocator; {missing}: {_LIMITS}",
                )
            )
        if self.ended != "complete":
            detail = f" ({_shortened(self.ended_detail)})" if self.ended_detail else ""
            found.append(
                Note(
                    "ended-early",
                    f"the program {_HOW.get(self.ended, 'ended')}{detail} before everything was recorded: "
                    "the report covers what was recorded until then",
                )
            )
        return (*found, *self.recorder_notes)


_MAX_NOTES = 100
_SLUG = r"[a-z][a-z-]{2,40}"
# The first captures list all that no simulation models, whether the program met it or not.
_EVERY_SIMULATION = {"scratch memory inside kernels", "CUDA graphs", "NCCL"}
_LIMITS = "docs/guide/simulate.md#what-is-not-modelled"

_HOW = {
    "finished": "came to its end",
    "exception": "was ended by an exception",
    "interrupted": "was interrupted",
    "oom": "ran out of memory",
    "exit": "left",
}


def read_metadata(
    raw: object, stacks: StackInterner, *, n_bytes: int
) -> tuple[Metadata | None, tuple[Note, ...]]:
    """Read the value under KEY; None with a note where it cannot be used, without a note where none is.

    ``n_bytes`` is the size of the file, unpacked.
    """
    if raw is None:
        return None, ()
    try:
        metadata = _read(raw, stacks, n_bytes)
    except MalformedSnapshotError as error:
        return None, (Note("metadata-left-out", f"what the recorder wrote was left out: {error}"),)
    return metadata, metadata.notes()


def _read(raw: object, stacks: StackInterner, n_bytes: int) -> Metadata:
    if type(raw) is not dict:
        raise MalformedSnapshotError(f"{KEY}: expected dict, got {type(raw).__name__}")
    version = raw.get("version")
    if type(version) is not int or version != VERSION:
        got = _plain(version) or type(version).__name__
        raise MalformedSnapshotError(
            f"{KEY}.version: expected {VERSION}, got {got}; look for a newer snapconv"
        )
    check_size(raw, n_bytes)
    parameters = _parameters(Rows.of(raw, "parameters"), stacks)
    n_parameters = len(parameters.names)
    how, detail = _ended(raw.get("ended"))
    simulated = raw.get("simulated")
    return Metadata(
        project=RecordedProject(
            _text(raw, "project_root") or None,
            raw.get("project_root_given") is True,
            texts_of(raw.get("include")),
        ),
        is_simulated=simulated is not None,
        not_modelled=_not_modelled(simulated),
        recorder_notes=_recorder_notes(raw.get("notes")),
        ended=how,
        ended_detail=detail,
        overflowed=raw["overflowed"] if type(raw.get("overflowed")) is bool else None,
        max_allocated_bytes=_of_devices(Rows.of(raw, "devices"), "max_memory_allocated"),
        device_bytes=_of_devices(Rows.of(raw, "devices"), "total_bytes"),
        facts=tuple(_facts(raw)),
        parameters=parameters,
        earlier=_earlier(Rows.of(raw, "earlier_parameters"), n_parameters),
        gradients=_gradients(Rows.of(raw, "gradients"), n_parameters),
        states=_states(Rows.of(raw, "optimizer_states"), n_parameters),
        inputs=_inputs(Rows.of(raw, "inputs")),
        saved=_saved(Rows.of(raw, "saved")),
        copies=_copies(Rows.of(raw, "copies")),
        attributes=_attributes(Rows.of(raw, "attributes")),
        phases=_phases(Rows.of(raw, "phases"), "phase", _PHASE_CODES),
        iterations=_phases(Rows.of(raw, "iterations"), "kind", {}),
    )


_PHASE_CODES = {phase.name.lower(): int(phase) for phase in RecordedPhase if phase}


def _parameters(rows: Rows, stacks: StackInterner) -> ParameterTable:
    names = rows.texts("name")
    return ParameterTable(
        names=names,
        all_names=tuple(
            found or (name,) for found, name in zip(rows.text_lists("names"), names, strict=True)
        ),
        modules=rows.texts("module", missing=""),
        shapes=rows.shapes("shape"),
        dtypes=rows.texts("dtype", missing=""),
        is_buffer=np.array([kind == "buffer" for kind in rows.texts("kind", missing="parameter")], np.bool_),
        requires_grad=rows.bools("requires_grad"),
        # Where nothing else has a stack, these would look like all the stacks that the program had.
        stack_ids=rows.stacks("frames", stacks if stacks.has_frames else None),
        memory=rows.memory(),
    )


def _earlier(rows: Rows, n_parameters: int) -> EarlierTable:
    return EarlierTable(rows.indices("parameter", n_parameters), rows.memory())


def _gradients(rows: Rows, n_parameters: int) -> GradientTable:
    parameter = rows.indices("parameter", n_parameters)
    return GradientTable(parameter, rows.ints("iteration", ITERATION, missing=0), rows.memory())


def _states(rows: Rows, n_parameters: int) -> StateTable:
    return StateTable(rows.indices("parameter", n_parameters), rows.texts("state", missing=""), rows.memory())


def _inputs(rows: Rows) -> InputTable:
    return InputTable(
        rows.ints("iteration", ITERATION, missing=0),
        rows.shapes("shape"),
        rows.texts("dtype", missing=""),
        rows.memory(),
    )


def _saved(rows: Rows) -> SavedTable:
    return SavedTable(
        rows.ints("iteration", ITERATION, missing=0),
        rows.texts("module", missing=""),
        rows.bools("without_history"),
        rows.texts("dtype", missing=""),
        rows.memory(),
    )


def _attributes(rows: Rows) -> AttributeTable:
    return AttributeTable(
        rows.texts("module", missing=""), rows.texts("name", missing=""), rows.bools("written"), rows.memory()
    )


def _copies(rows: Rows) -> CopyTable:
    memory = rows.memory()
    return CopyTable(replace(memory, addr=rows.ints("original", ADDRESS)), memory)


def _phases(rows: Rows, key: str, codes: dict[str, int]) -> PhaseTable:
    """Return phases in the order in which they began; words that are not known are OTHER."""
    began, ended = rows.times("began_us"), rows.times("ended_us", missing=-1)
    words = rows.texts(key, missing="")
    phase = np.array([codes.get(word, 0) for word in words], np.int8)
    order = np.argsort(began, kind="stable")
    iteration = rows.ints("iteration", ITERATION, missing=0)
    return read_only(PhaseTable(phase[order], iteration[order], began[order], ended[order]))


def _recorder_notes(raw: object) -> tuple[Note, ...]:
    """Return the notes that the recorder wrote about the program; anything else is left out."""
    rows = [row for row in islice(raw, _MAX_NOTES) if isinstance(row, dict)] if isinstance(raw, list) else []
    texts = [(_text(row, "slug"), _text(row, "message")) for row in rows]
    return tuple(Note(slug, message) for slug, message in texts if re.fullmatch(_SLUG, slug) and message)


def _ended(raw: object) -> tuple[str, str]:
    if not isinstance(raw, dict):
        return "complete", ""
    return _text(raw, "how") or "complete", _text(raw, "detail")


def _shortened(detail: str) -> str:
    """Return the first two sentences: after them torch adds only advice and an address."""
    return " ".join(re.split(r"(?<=[.!?])\s+", detail, maxsplit=2)[:2])


def _not_modelled(raw: object) -> tuple[str, ...]:
    return texts_of(raw.get("not_modelled")) if isinstance(raw, dict) else ()


def _of_devices(rows: Rows, key: str) -> dict[int, int]:
    """Return a figure of every device that has it."""
    devices = rows.ints("device", ITERATION, missing=0)
    n_bytes = rows.ints(key, None, missing=-1)
    return {d: n for d, n in zip(devices.tolist(), n_bytes.tolist(), strict=True) if n >= 0}


def _text(raw: dict[object, object], key: str) -> str:
    value = raw.get(key)
    return "".join(texts_of([value])) if type(value) is str else ""


def _facts(raw: dict[object, object]) -> list[tuple[str, str]]:
    """Return the plain values at the top, by their keys, and the command line."""
    facts = [
        (key, text)
        for key, value in raw.items()
        if type(key) is str and key != "version" and (text := _plain(value))
    ]
    command = " ".join(texts_of(raw.get("command")))
    return [*facts[:_MAX_FACTS], *([("command", command)] if command else [])]


def _plain(value: object) -> str:
    """Return a single value as text; empty for everything else, and for numbers too large to be meant."""
    if type(value) is int:
        return str(value) if abs(value) < 1 << 63 else ""
    return "".join(texts_of([value if type(value) is str else str(value)])) if _is_single(value) else ""


def _is_single(value: object) -> bool:
    return type(value) in (str, float, bool)
