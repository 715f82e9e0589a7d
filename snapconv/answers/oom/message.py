"""A text about memory that ran out, explained: its kind, its figures, and the verdict.

    1.0 to 1.3  Tried to allocate A (GPU 0; B total capacity; C already allocated; D free; E cached)
    1.4 to 2.0  … D free; [F allowed; ]E reserved in total by PyTorch)
    2.1 on      Tried to allocate A. GPU 0 has a total capacity of B of which D is free. [processes]
                [F allowed; ]Of the allocated memory C is allocated by PyTorch, [with P allocated in
                private pools, ]and U is reserved by PyTorch but unallocated.

HIP, XPU, NPU and others have the same words; cudaMallocAsync and MPS have their own. Sizes have two
decimals. message_kinds.py has the kinds as rows; the verdict on a request is that of files, by
verdict.py.
Nothing is inferred from a figure that a text does not have.
"""

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import astuple, dataclass, replace
from decimal import Decimal
from itertools import pairwise
from typing import Any

from snapconv.allocator.allocator_settings import (
    LARGE_SEGMENT_BYTES,
    MIN_OWN_SEGMENT_BYTES,
    SMALL_REQUEST_BYTES,
    SMALL_SEGMENT_BYTES,
)
from snapconv.answers.oom.allocator_messages import (
    BACKEND_NAMES,
    BEFORE_EXPANDABLE,
    BEFORE_SETTINGS,
    BEGINNINGS,
    CAME_BACK,
    FREE_ENOUGH,
    LARGE_BLOCK,
    LARGE_REQUEST,
    LARGER_THAN_OWN,
    LESS,
    MONITORS,
    MOVED_AT_ONCE,
    MOVING,
    MPS_LIMIT,
    MPS_OTHER,
    NEARLY_FULL,
    NEXT_STEPS,
    NOT_ON_WINDOWS,
    NOTHING_FREED,
    OF_NVIDIA,
    ON_WINDOWS,
    ONE_REQUEST,
    OUTSIDE_TOO,
    PAGE_FILE,
    PHASES,
    SAME_PROCESS,
    SHAPES,
    STOP_OTHER,
    STOP_OTHERS,
    WAITED,
    WEIGHTS_FIRST,
    WEIGHTS_IN_PARTS,
    WORDS,
    WORDS_AROUND,
    WRONG_SHAPE,
)
from snapconv.answers.oom.message_figures import FIGURES, ITEM_BYTES, SIZE, FigureName
from snapconv.answers.oom.message_kinds import (
    ALLOCATOR,
    LARGER_THAN_POOL,
    MESSAGE_KINDS,
    OF_ENOUGH,
    OF_ENOUGH_TOKENS,
    OF_WRONG_SIZE,
    REQUEST_AND_DEVICE,
    SUMMARY,
    MessageKind,
)
from snapconv.answers.oom.message_text import (
    Check,
    CompactText,
    compacted,
    no_check,
    squeezed,
    strip_margins,
)
from snapconv.answers.oom.other_sizes import excerpts
from snapconv.answers.oom.verdict import (
    FreePieces,
    OomCause,
    OomVerdict,
    Shortage,
    decide_oom,
)
from snapconv.errors import InputError
from snapconv.torch_knowledge.backends import BACKENDS, UNKNOWN_BACKEND, backend_of_kind
from snapconv.units import counted, format_bytes

# cudaMallocAsync writes the largest number where no limit was set, and so does torch on WSL for
# what a process holds.
_NO_LIMIT = 1 << 60
# A request may be of a size that was computed wrongly, up to the largest number of JSON.
_MOST_BYTES = {"tried": 1 << 64}
_PROCESS = squeezed(r"process (\d{1,9}) has <size> memory in use")
_AMOUNT = re.compile(r"([\d.,]+)([kmgtp]?)")
_POWERS = " kmgtp"
_GROUPED_BY_POINTS = re.compile(r"\d{1,3}(?:\.\d{3}){2,6}")
_LACKS = "torch's allocator found no memory; the text lacks the figures that would say why"
# Of the devices of 2025 most have less: a few have 128 to 288 GB.
_MOST_OF_DEVICES_BYTES = 100_000_000_000
_LARGER_THAN_MOST = (
    "one request of more than 100 GB, which is more than most devices have in all; the text lacks "
    "the figures of this one"
)
_LEAST_NOTABLE = 0.05
# What a program that only loads weights has reserved and free: of 14 public messages with so little
# at least 7 are of a model that was being loaded.
_LOADED_SHARE = 0.0003
# A context of CUDA takes up to so much; a process with no more has nothing else there.
_CONTEXT_BYTES = 600 << 20
# Lines before and after the one of a message whose other sizes are told.
_N_BESIDE = 20
# The causes that the next step of a row that leads, a setting of a server or of a kind of device,
# does not remove; by the backend of the row.
_NO_SERVER_CAUSES = (OomCause.OUTSIDE, OomCause.LIMIT, OomCause.TOO_LARGE)
_KEPT_CAUSES = {
    "GPU": _NO_SERVER_CAUSES,
    "device": _NO_SERVER_CAUSES,
    "HIP": (OomCause.LIMIT,),
    "XPU": (OomCause.OUTSIDE, OomCause.LIMIT),
}
# The longest text that torch writes has about 1500 characters, a traceback above it some thousands.
_TRACEBACK = "traceback(mostrecentcalllast)"
_OTHER_ERROR = re.compile("(?<!outofmemory)(?<!runtime)(?:error|exception):")
_MOST_OF_MESSAGE, _MOST_OF_TRACEBACK = 4000, 12_000
_ROUNDING_BYTES = 16 << 20
# A single tensor of that size is seldom what a program was meant to make.
_LARGE_REQUEST_BYTES = 8 << 30
_LARGE_XPU_BLOCK = 4 << 30
_WRONG_MULTIPLE = 1000
# AMD's cards have up to 64 GiB, or 192 and more (MI300X); between them are APUs.
_APU_BYTES = (65 << 30, 190 << 30)
# By the segment that small requests share: the largest request that gets one, and a note.
_SHARED_SEGMENTS = {
    SMALL_SEGMENT_BYTES: (
        SMALL_REQUEST_BYTES,
        "2 MiB is the segment for every request of up to 1 MiB: the request itself is smaller",
    ),
    LARGE_SEGMENT_BYTES: (
        MIN_OWN_SEGMENT_BYTES,
        "20 MiB is the segment for every request of 1 to 10 MiB: the request itself is smaller",
    ),
}
_WINDOWS_PATH = re.compile(r"(?<![a-z])[c-h]:\\{1,2}[\w.]")
_FRAME = squeezed(r"\"?,line\d{1,6}, in")
# Frames of a program that computes.
_COMPUTING = re.compile(r"inforward|torch[/\\]nn[/\\]functional\.py\"?,line")
_STEPS_OF_PHASES = frozenset(step for _, step in PHASES)
_LONGEST_PATH = 200
_NO_PATH = re.compile(r"[^\w./\\:-]")
_MIDDLE = squeezed(
    r"allocate \d|total capac|already allocated|is allocated by pytorch|reserved by pytorch"
)
# torch before 2.1 may have its figures on a line above the sentence, and none in it.
_FIGURES_ABOVE = squeezed(
    r"(?<!ib)(?<!bytes)(\((?:gpu|npu|mlu|gcu) \d{1,4};[^()]{1,400}\))(?:[\w.]{1,40}:)?$"
)
_MOST_ABOVE = 500
_MOST_READ_TWICE = 1 << 20


@dataclass(frozen=True, slots=True)
class OomMessage:
    """The figures of one message; None: it does not have them.

    ``allocated_bytes`` is what tensors hold, ``active_bytes`` also what streams still use, and
    ``reserved_bytes`` includes what is allocated. ``private_pool_bytes`` are free blocks of private
    pools, which torch counts as allocated in its text.
    ``metal_bytes`` is Metal memory outside torch's allocator (MPS). ``process_bytes`` is all that
    this process has on the device; where torch does not know its own process (in a container), all
    are in ``other_processes``, by their numbers.
    """

    device: int | None = None
    tried_bytes: int | None = None
    total_bytes: int | None = None
    free_bytes: int | None = None
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    private_pool_bytes: int | None = None
    allowed_bytes: int | None = None
    metal_bytes: int | None = None
    process_bytes: int | None = None
    active_bytes: int | None = None
    other_processes: tuple[tuple[int, int], ...] = ()

    @property
    def is_process_miscounted(self) -> bool:
        """Return whether the text gives this process less than torch alone has in it."""
        torch_bytes = max(self.reserved_bytes or 0, self.allocated_bytes or 0)
        return self.process_bytes is not None and self.process_bytes < torch_bytes


@dataclass(frozen=True, slots=True)
class MemorySummary:
    """The figures of a torch.cuda.memory_summary() table; None: a part that the text lacks.

    ``partly_used_bytes`` are free bytes in segments that also hold live blocks: the table's
    non-releasable memory. What is active is allocated, or was freed and waits for a stream.
    """

    allocated_bytes: int
    peak_allocated_bytes: int
    reserved_bytes: int
    peak_reserved_bytes: int
    device: int | None = None
    n_ooms: int | None = None
    n_retries: int | None = None
    partly_used_bytes: int | None = None
    peak_partly_used_bytes: int | None = None
    active_bytes: int | None = None
    peak_active_bytes: int | None = None
    requested_bytes: int | None = None
    peak_requested_bytes: int | None = None

    @property
    def waited_bytes(self) -> int:
        """The least bytes that were freed and waited for a stream when most was active."""
        return max((self.peak_active_bytes or 0) - self.peak_allocated_bytes, 0)

    @property
    def has_waited(self) -> bool:
        """Whether a notable part of what was active waited for a stream."""
        return self.waited_bytes >= _LEAST_NOTABLE * (self.peak_active_bytes or 1)

    @property
    def empty_segment_bytes(self) -> int:
        """The bytes in segments without any live block."""
        return max(
            self.reserved_bytes - self.allocated_bytes - (self.partly_used_bytes or 0), 0
        )


@dataclass(frozen=True, slots=True)
class MessageFigure:
    """A figure that OomMessage has no field for; the value of a shape is a text."""

    noun: str
    unit: str
    value: float | int | str


@dataclass(frozen=True, slots=True)
class MessageAnswer:
    """The answer of ``oom --message``.

    It is that of the first of ``n_messages`` that have figures; of another kind than torch's
    allocator, 0 where nothing distinguishes them.
    ``kind`` says whose text it is, ``meaning`` what a text without figures usually means, ``cause``
    why memory ran out in a word. ``outside_bytes`` are in use on the device outside torch's
    allocator, ``own_outside_bytes`` those of this process. ``verdict`` None: the figures do not say
    why. ``summary`` is that of a table in the text, if it has one. ``rank`` wrote the message,
    where the log says which did.
    ``others`` are the first messages of other devices and ranks, answers like this one. ``beside``
    quotes the other sizes in the text near the message, which are not among its figures, with the
    words around them.
    """

    kind: str
    backend: str
    meaning: str
    message: OomMessage
    next_step: str
    n_messages: int = 0
    unallocated_bytes: int | None = None
    outside_bytes: int | None = None
    own_outside_bytes: int | None = None
    verdict: OomVerdict | None = None
    notes: tuple[str, ...] = ()
    summary: MemorySummary | None = None
    cause: str = OomCause.UNKNOWN
    rank: str = ""
    figures: tuple[MessageFigure, ...] = ()
    others: tuple["MessageAnswer", ...] = ()
    beside: tuple[str, ...] = ()


def explain_message(text: str, *, check: Check = no_check) -> MessageAnswer:
    """Explain a text: its first message with figures, else another kind, else a memory summary.

    ``check`` is called all the time, and may raise to end it. Raises InputError where the text says
    nothing about memory that ran out.
    """
    reading = _best_reading(text, check)
    if reading is None:
        raise InputError(
            "no out-of-memory message is in the text: expected 'CUDA out of memory. "
            "Tried to allocate …', that of another backend or library, or a table of "
            "torch.cuda.memory_summary()"
        )
    answer = reading.answer
    summary = _read_summary(reading.log)
    if summary:
        next_step = answer.next_step
        if answer.kind == SUMMARY.name and summary.has_waited:
            next_step = WAITED
        notes = (*answer.notes, *_summary_notes(summary))
        return replace(answer, summary=summary, next_step=next_step, notes=notes)
    return replace(answer, beside=_beside(reading.log, reading.position, answer))


def _beside(log: CompactText, position: int, answer: MessageAnswer) -> tuple[str, ...]:
    """Return the words around sizes near a message that are no figures of the answer."""
    values: list[object] = [figure.value for figure in answer.figures]
    for device_answer in (answer, *answer.others):
        message = device_answer.message
        # torch's own text counts the free blocks of private pools as allocated.
        allocated = (message.allocated_bytes or 0) + (message.private_pool_bytes or 0)
        values += astuple(message)
        values += (allocated, device_answer.unallocated_bytes, device_answer.outside_bytes)
        for process in message.other_processes:
            values += process[1:]
    sizes = {format_bytes(value) for value in values if isinstance(value, int)}

    def is_known(size: str) -> bool:
        n_bytes = _bytes_of("".join(size.lower().split()))
        return n_bytes >= _NO_LIMIT or format_bytes(n_bytes) in sizes

    return excerpts(log.lines_near(position, _N_BESIDE), is_known)


def is_message(text: str, *, check: Check = no_check) -> bool:
    """Return whether a text is about memory that ran out, by its words."""
    return _best_reading(text, check) is not None


@dataclass(frozen=True, slots=True)
class _Reading:
    """A log, its answer, the character at which its message begins, and the level of its kind."""

    log: CompactText
    answer: MessageAnswer
    position: int
    level: float

    @property
    def worth(self) -> tuple[int, float]:
        """How much is known by it: figures first, then the kind."""
        n_figures = sum(figure is not None for figure in astuple(self.answer.message))
        return n_figures + len(self.answer.figures), -self.level


def _best_reading(text: str, check: Check) -> _Reading | None:
    """Read a text as it is and without its loggers' words; return what says more."""
    texts = [text]
    if len(text) < _MOST_READ_TWICE:
        stripped = strip_margins(text)
        texts += [stripped] * (stripped != text)
    readings = (_explained(compacted(text, check)) for text in texts)
    return max(filter(None, readings), key=lambda reading: reading.worth, default=None)


def decode_log(data: bytes) -> str:
    """Decode a log; PowerShell writes UTF-16, whose mark is missing where only its end was read."""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return data.decode("utf-16", "replace")
    odd_bytes = data[1:2000:2]
    is_wide = odd_bytes.count(0) > 4 * len(odd_bytes) // 5 > 0
    return data.decode("utf-16-le" if is_wide else "utf-8", "replace")


def _explained(log: CompactText) -> _Reading | None:
    """Explain torch's message of each device, with a server around it, or another kind of text."""
    messages, n_repeated = _first_messages(log)
    # First the messages whose figures are complete: others may be a person's words about them.
    clear = [
        (answer, start)
        for answer, start in messages
        if answer.message.tried_bytes or answer.verdict
    ]
    clear.sort(key=lambda row: row[0].verdict is None)
    distinct = log.drop_repeats()
    best = _best_match(distinct, are_all_tried=not clear)
    # A message without figures says more than a text of a kind of level 2 and higher.
    if messages and not clear and (best is None or best[0].level >= 2):
        return _Reading(log, *messages[0], level=2)
    server = _explain_kind(*best, distinct) if best else None
    if clear:
        merged = _merge_devices([answer for answer, _ in clear], server)
        answer = replace(merged, n_messages=len(clear) + n_repeated)
        return _Reading(log, answer, clear[0][1], level=0)
    if server is None or best is None:
        return None
    return _Reading(log, server, _position(*best, log), best[0].level)


def _first_messages(log: CompactText) -> tuple[list[tuple[MessageAnswer, int]], int]:
    """Explain torch's messages, each with its first character, but for those that say nothing new.

    Of each rank and device, those after the first with a verdict are counted alone: a program that
    goes on after each failure writes thousands.
    """
    messages = []
    settled = set()
    n_repeated = 0
    for start, text in _messages(log):
        figures = _values(map(squeezed, REQUEST_AND_DEVICE), text)
        device = (log.rank_at(start), figures.get("device"))
        if device in settled and "tried_bytes" in figures:
            n_repeated += 1
            continue
        answer = _explain_allocator(log, start, text)
        messages.append((answer, start))
        if answer.verdict:
            settled.add(device)
    return messages, n_repeated


def _best_match(
    log: CompactText, *, are_all_tried: bool
) -> tuple[MessageKind, re.Match[str]] | None:
    """Find the kind of a text: of all kinds or those that lead, the first of the lowest level."""
    matches = []
    for kind in MESSAGE_KINDS:
        if are_all_tried or kind.leads:
            match = _first_match(kind, log)
            if match:
                matches.append((kind, match))
    return min(matches, key=lambda row: (row[0].level, row[1].start()), default=None)


def _merge_devices(
    messages: list[MessageAnswer], server: MessageAnswer | None
) -> MessageAnswer:
    """Return the first message of each device; a server around torch has the better next step."""
    devices: dict[object, MessageAnswer] = {}
    shown = set()
    for answer in messages:
        device = (answer.rank, answer.message.device)
        if answer.message not in shown and device not in devices:
            devices[device] = answer
            shown.add(answer.message)
    answers = []
    for answer in devices.values():
        if server:
            is_kept = answer.cause in _KEPT_CAUSES[server.backend]
            if not is_kept or answer.next_step == SAME_PROCESS:
                answer = _add_server(answer, server)
        answers.append(answer)
    return replace(answers[0], others=tuple(answers[1:]))


def _add_server(answer: MessageAnswer, server: MessageAnswer) -> MessageAnswer:
    """Return the answer to a message with the step of a server.

    Against fragmentation the allocator's setting comes first. Where enough was free, the step of
    the device stays.
    """
    # A server's graphs have pools of their own by design, and use their free memory again.
    cause = server.cause if answer.cause == OomCause.OTHER_POOL else answer.cause
    phase = next(filter(answer.next_step.__contains__, _STEPS_OF_PHASES), LESS)
    step = _step_of_server(answer, server, phase)
    if cause == OomCause.FRAGMENTED:
        setting = answer.next_step
        step = (
            setting.replace(phase, step) if phase in setting else f"{setting}; else {step}"
        )
    is_enough = (answer.message.free_bytes or 0) >= (answer.message.tried_bytes or math.inf)
    is_full = cause in (OomCause.FULL, OomCause.FRAGMENTED)
    if is_enough and not is_full and server.backend != answer.backend:
        step = answer.next_step
    return replace(
        answer,
        cause=cause,
        verdict=answer.verdict and replace(answer.verdict, cause=cause),
        next_step=step,
        notes=(*answer.notes, f"{server.kind}: {server.meaning}"),
        figures=server.figures,
    )


def _step_of_server(answer: MessageAnswer, server: MessageAnswer, phase: str) -> str:
    """Return the step of a server, that for its weights alone or first where they were loaded."""
    step, _, while_loading = server.next_step.partition("; while weights are loaded, ")
    if while_loading and phase == WEIGHTS_IN_PARTS:
        return while_loading
    if while_loading and answer.next_step.startswith(NOTHING_FREED):
        return f"{WEIGHTS_FIRST.format(fewer=while_loading)}; else {step}"
    return server.next_step


def _first_match(kind: MessageKind, log: CompactText) -> re.Match[str] | None:
    """Find the first words of a kind in a text that has what it needs and nothing it excludes."""
    matches = filter(None, map(log.search, kind.seen))
    first = min(matches, key=re.Match.start, default=None)
    if first and all(map(log.search, kind.needs)) and not any(map(log.search, kind.unless)):
        return first
    return None


# --- figures


def read_message(text: str) -> OomMessage:
    """Read the figures of one message, of any release; ``text`` is one of compacted()."""
    values = _values(map(squeezed, ALLOCATOR.also), text)
    allocated = values.get("allocated_bytes")
    unallocated = values.pop("unallocated_bytes", None)
    if allocated is not None:
        if unallocated is not None:
            values.setdefault("reserved_bytes", allocated + unallocated)
        values["allocated_bytes"] = max(allocated - values.get("private_pool_bytes", 0), 0)
    processes = []
    for pid, size in _PROCESS.findall(text):
        n_bytes = _bytes_of(size)
        if n_bytes < _NO_LIMIT:
            processes.append((int(pid), n_bytes))
    in_use = _minus(values.get("total_bytes"), values.get("free_bytes")) or math.inf
    # Its context takes 100 MiB or more: here less, since the figures are rounded.
    besides_torch = in_use - values.get("reserved_bytes", 0) - 4 * _ROUNDING_BYTES
    if "process_bytes" not in values:
        for process in processes:
            # In a container, torch does not know its own process: it is the one that holds more
            # than is left beside it.
            if process[1] > besides_torch:
                processes.remove(process)
                values["process_bytes"] = process[1]
                break
    return OomMessage(**values, other_processes=tuple(processes))


def _read_summary(log: CompactText) -> MemorySummary | None:
    """Read the first memory_summary() table."""
    table = _first_match(SUMMARY, log)
    values = _values_of_kind(SUMMARY, table, log) if table else {}
    is_whole = {"allocated_bytes", "reserved_bytes"} <= values.keys()
    return MemorySummary(**values) if is_whole else None


def _position(kind: MessageKind, match: re.Match[str], log: CompactText) -> int:
    """Return where a text of a kind is: a server's name may stand far above what it needs."""
    starts = [words.start() for words in map(log.search, kind.needs) if words]
    last = max(starts, default=0)
    return last if last > match.start() + _MOST_OF_TRACEBACK else match.start()


def _values_of_kind(
    kind: MessageKind, match: re.Match[str], log: CompactText
) -> dict[str, Any]:
    """Read the figures of another kind of text: first those of its first words, then those near.

    The shape and the type of a tensor are its request.
    """
    near = log.around(_position(kind, match, log), _MOST_OF_TRACEBACK)
    values = _values((match.re, *map(squeezed, (*kind.seen, *kind.also))), near)
    if "tried_mib" in values:
        values = {"tried": values.pop("tried_mib")} | values
    sizes = map(int, re.findall(r"\d+", values.get("shape", "")))
    n_bytes = math.prod(sizes) * ITEM_BYTES.get(values.get("type", ""), _NO_LIMIT)
    return values if n_bytes >= _NO_LIMIT else {"tried": n_bytes} | values


def _values(patterns: Iterable[re.Pattern[str]], text: str) -> dict[str, Any]:
    """Return the figures of a text by their names: numbers, and the texts of shapes and names."""
    values: dict[str, Any] = {}
    for pattern in patterns:
        match = pattern.search(text)
        for name, figure in match.groupdict().items() if match else ():
            value = _value_of(figure, FIGURES.get(name, SIZE)) if figure else math.inf
            if isinstance(value, str) or value < _MOST_BYTES.get(name, _NO_LIMIT):
                values.setdefault(name, value)
    return values


def _value_of(text: str, figure: FigureName) -> float | str:
    if figure.unit in ("shape", "name"):
        is_by_dimension = text.startswith("dim{")
        return f"[{','.join(re.findall(r'[0-9]+', text))}]" if is_by_dimension else text
    return (
        float(text)
        if figure.unit in ("share", "percent")
        else _bytes_of(text + figure.letter)
    )


def _bytes_of(number: str) -> int:
    """Return the bytes of a number, which may end with its unit; torch's GB of old are GiB.

    What is no number (`1.2.3`, a lone point) is more than every figure may be.
    """
    digits, letter = _AMOUNT.findall(number)[0]
    if _GROUPED_BY_POINTS.fullmatch(digits):
        digits = digits.replace(".", "")
    point = "." if digits[-3:-2] == "," and digits.count(",") == 1 else ""
    digits = digits.replace(",", point)
    if not digits.replace(".", "", 1).isdecimal():
        return max(_MOST_BYTES.values())
    return round(Decimal(digits) * (1 << 10 * _POWERS.index(letter or " ")))


def _minus(total: int | None, part: int | None) -> int | None:
    """Subtract; None where either is not known, or the part is larger."""
    return None if total is None or part is None or part > total else total - part


# --- a text of another kind


def _explain_kind(
    kind: MessageKind, match: re.Match[str], log: CompactText
) -> MessageAnswer:
    """Explain a text of another kind."""
    values = _values_of_kind(kind, match, log)
    backend = values.pop("backend", kind.backend)
    row = _row_by_figures(kind, values)
    next_step = _next_step(row, values, backend_of_kind(backend).monitor)
    position = _position(kind, match, log)
    near = log.around(position, _MOST_OF_MESSAGE)
    if not squeezed(OF_NVIDIA).search(near):
        for words, monitor in MONITORS:
            if squeezed(words).search(near):
                next_step = next_step.replace("`nvidia-smi`", f"`{monitor}`")
    message = OomMessage(
        device=values.pop("device", None), tried_bytes=values.pop("tried", None)
    )
    figures = []
    for name, value in values.items():
        figure = FIGURES.get(name)
        if figure:
            figures.append(MessageFigure(figure.noun, figure.unit, value))
    return MessageAnswer(
        kind=kind.name,
        backend=BACKEND_NAMES.get(backend, backend),
        meaning=row.means,
        message=message,
        next_step=next_step,
        n_messages=_n_numbered(kind, log),
        cause=row.cause,
        rank=log.rank_at(position),
        figures=tuple(figures),
    )


def _n_numbered(kind: MessageKind, log: CompactText) -> int:
    """Count the messages of a kind, where something distinguishes them."""
    return len(set(squeezed(kind.numbered).findall(log.text))) if kind.numbered else 0


def _row_by_figures(kind: MessageKind, values: dict[str, Any]) -> MessageKind:
    """Return the row of a text: its kind's, unless its figures deny that memory was too small."""
    tried = values.get("tried", 0)
    # A program's own limit has its own reasons for sizes beyond it, such as damaged data.
    if tried >= _NO_LIMIT and kind.cause != OomCause.LIMIT:
        return OF_WRONG_SIZE
    if kind.cause == OomCause.FULL and 0 < tried <= values.get("free", 0):
        return OF_ENOUGH
    if kind.cause == OomCause.FULL and tried > values.get("allowed", math.inf):
        return LARGER_THAN_POOL
    if 0 < values.get("length", 0) <= values.get("fits", 0):
        return OF_ENOUGH_TOKENS
    return kind


def _next_step(kind: MessageKind, values: dict[str, Any], monitor: str) -> str:
    """Return the next step with the figures of a text, or without them where it lacks one."""
    shown = values | {"monitor": monitor}
    if "tried" in values:
        shown["tried"] = format_bytes(values["tried"])
    # With less than a tenth of a device, a server has no room for a model: that share is no advice.
    free = values.get("free_gib", -1)
    total = values.get("total") or math.inf
    if free <= total <= 10 * free:
        shown["share"] = f"{free * 100 // total / 100:.2f}"
    try:
        return (kind.exact or kind.next_step).format_map(shown)
    except KeyError:
        return kind.next_step.format_map(shown)


# --- messages of torch's allocator


def _messages(log: CompactText) -> Iterator[tuple[int, str]]:
    """Yield the begin and text of each of the allocator's messages, also where its begin is cut."""
    text = log.text
    starts = [match.start() for match in BEGINNINGS.finditer(text)]
    if not starts and (middle := _MIDDLE.search(text)):
        figures = read_message(text[middle.start() : middle.start() + _MOST_OF_MESSAGE])
        if figures.total_bytes is not None or figures.allocated_bytes is not None:
            starts = [max(middle.start() - 100, 0)]
    for start, end in pairwise([*starts, len(text)]):
        log.check()
        message = text[start : min(end, start + _MOST_OF_MESSAGE)]
        above = _FIGURES_ABOVE.search(text[max(start - _MOST_ABOVE, 0) : start])
        yield start, message + above[1] if above and "capac" not in message else message


def _explain_allocator(log: CompactText, start: int, text: str) -> MessageAnswer:
    """Explain a message of torch's allocator that begins at a character of a log."""
    begin = BEGINNINGS.search(text)
    name = "NPU" if "(npu" in text else "GPU"
    if begin:
        name = BACKEND_NAMES[begin["backend"] or "cuda"]
    backend = BACKENDS.get(name, UNKNOWN_BACKEND)
    message = read_message(text)
    unallocated = _minus(
        _minus(message.reserved_bytes, message.allocated_bytes),
        message.private_pool_bytes or 0,
    )
    own_outside = _minus(message.process_bytes, message.reserved_bytes)
    shortage = _shortage(message, unallocated, backend.why_free)
    verdict, step = _verdict_in_words(text) or _verdict(message, shortage, text)
    answer = MessageAnswer(
        kind=ALLOCATOR.name,
        backend=name,
        meaning="" if verdict else _what_is_lacking(message),
        message=message,
        n_messages=1,
        unallocated_bytes=unallocated,
        outside_bytes=_outside_bytes(message, unallocated),
        own_outside_bytes=own_outside,
        verdict=verdict,
        next_step=step,
        notes=tuple(_notes(message, name)),
        cause=verdict.cause if verdict else OomCause.UNKNOWN,
        rank=log.rank_at(start),
    )
    step = _step_where(answer, log, start, text).format(
        less=_less_where(answer, log, start), backend=backend
    )
    return replace(answer, verdict=_exact_verdict(answer), next_step=step)


def _outside_bytes(message: OomMessage, unallocated: int | None) -> int | None:
    """Return what is in use on the device outside torch's allocator; None: not known."""
    if message.metal_bytes is not None or unallocated is None:
        return message.metal_bytes
    in_use = _minus(message.total_bytes, message.free_bytes)
    return _minus(in_use, message.reserved_bytes)


def _what_is_lacking(message: OomMessage) -> str:
    """Say what follows from a text without the figures of its device."""
    is_huge = (message.tried_bytes or 0) >= _MOST_OF_DEVICES_BYTES
    return _LARGER_THAN_MOST if is_huge and message.total_bytes is None else _LACKS


def _step_where(answer: MessageAnswer, log: CompactText, start: int, text: str) -> str:
    """Return the next step, by the figures of a message and by what stands around it."""
    above = log.before(start, _MOST_OF_TRACEBACK)
    step = _exact_step(answer, above + text)
    is_own_request = answer.cause == OomCause.TOO_LARGE or step.startswith(SHAPES)
    if is_own_request and squeezed(MOVING).search(above):
        return MOVED_AT_ONCE
    phase = _phase_step(log.text, start)
    if answer.cause == OomCause.FRAGMENTED:
        step = _step_beside_pieces(answer, step, phase)
    is_cut = answer.verdict is None and phase == LESS
    return "{less}" if is_cut and _words_around(log, start) else step


def _step_beside_pieces(answer: MessageAnswer, step: str, phase: str) -> str:
    """Return the step against pieces, with the setting last where little is cached.

    Next to no memory comes free while weights are loaded: a setting gains as little.
    """
    cached_bytes = answer.unallocated_bytes or 0
    if cached_bytes >= _LEAST_NOTABLE * (answer.message.reserved_bytes or 0):
        return step
    return "{less}" if phase == WEIGHTS_IN_PARTS else NEARLY_FULL.get(step, step)


def _less_where(answer: MessageAnswer, log: CompactText, start: int) -> str:
    """Return what makes a program need less memory, by its frames, figures and words around."""
    step = _phase_step(log.text, start)
    if step != LESS:
        return step
    # A line of the program itself computes; torch's own last frame may be of either.
    path = _last_path(log.before(start, _MOST_OF_TRACEBACK))
    is_own_line = bool(path) and "torch" not in path
    is_computing = bool(_COMPUTING.search(log.text))
    if _is_nothing_freed(answer) and not is_computing and not is_own_line:
        return NOTHING_FREED
    around = _words_around(log, start)
    return around.format(less=LESS) if around else LESS


def _last_path(traceback: str) -> str:
    """Return the path of the last frame of a traceback, ``""`` where it has none."""
    path = ""
    for frame in _FRAME.finditer(traceback):
        before = traceback[max(frame.start() - _LONGEST_PATH, 0) : frame.start()]
        path = _NO_PATH.split(before)[-1]
    return path


def _words_around(log: CompactText, start: int) -> str | None:
    """Return the step that fits what a person says around a message of when it came."""
    near = log.around(start, _MOST_OF_MESSAGE)
    matches = (step for words, step in WORDS_AROUND if squeezed(words).search(near))
    return next(matches, None)


def _exact_verdict(answer: MessageAnswer) -> OomVerdict | None:
    """Return the verdict, which blames no other process for what this one holds."""
    verdict = answer.verdict
    if verdict is None or answer.cause != OomCause.OUTSIDE:
        return verdict
    if _is_outside_own(answer):
        outside = format_bytes(answer.own_outside_bytes or 0)
        reason = (
            f"{outside} of it are this process's own: its context, NCCL, and libraries with "
            "allocators of their own"
        )
        return replace(verdict, reason=reason)
    if _do_others_hold(answer):
        return replace(verdict, reason=_others_reason(answer.message), is_inferred=False)
    return verdict


def _exact_step(answer: MessageAnswer, text: str) -> str:
    """Return the next step that the figures ask for, else the usual one of the cause."""
    step = None
    if answer.cause == OomCause.OUTSIDE:
        step = _step_outside(answer)
    elif answer.cause == OomCause.FULL:
        step = _step_full(answer)
    elif answer.cause == OomCause.FRAGMENTED:
        step = _step_fragmented(answer, text)
    elif answer.cause == OomCause.UNKNOWN:
        step = _step_unknown(answer, text)
    elif answer.cause == OomCause.TOO_LARGE:
        step = _step_too_large(answer.message)
    return step or answer.next_step


def _step_too_large(message: OomMessage) -> str | None:
    total = message.total_bytes or math.inf
    return WRONG_SHAPE if (message.tried_bytes or 0) > _WRONG_MULTIPLE * total else None


def _step_unknown(answer: MessageAnswer, text: str) -> str | None:
    message = answer.message
    tried = message.tried_bytes or 0
    total = message.total_bytes or math.inf
    if tried > total:
        return LARGER_THAN_OWN
    # What the text lacks is then a tenth at most: torch's cache and the context.
    if 10 * (message.allocated_bytes or 0) > 9 * total:
        return NEXT_STEPS[OomCause.FULL]
    free = message.free_bytes or 0
    if answer.backend in ("CUDA", "HIP") and 0 < tried <= free:
        return _step_free_enough(answer, tried, free, text)
    return LARGE_REQUEST if tried > free + _LARGE_REQUEST_BYTES else None


def _step_free_enough(answer: MessageAnswer, tried: int, free: int, text: str) -> str:
    """Return the next step where the text calls more free than was requested."""
    if _do_others_hold(answer):
        return f"{_step_others(answer.message)}; {CAME_BACK}"
    if 10 * tried > 9 * free and tried > (answer.message.reserved_bytes or math.inf):
        return ONE_REQUEST
    is_of_windows = _is_of_windows(text, has_processes=answer.backend == "CUDA")
    return PAGE_FILE if is_of_windows else FREE_ENOUGH


def _is_of_windows(text: str, *, has_processes: bool) -> bool:
    """Return whether a path is of Windows, or torch lists no process, not even its own.

    From 2.1 on it asks NVML for them, which it does not on Windows.
    """
    is_whole = "hasatotalcapac" in text and "allocatedbypytorch" in text
    are_missing = has_processes and is_whole and "memoryinuse" not in text
    return bool(_WINDOWS_PATH.search(text)) or are_missing


def _is_outside_own(answer: MessageAnswer) -> bool:
    """Return whether most of what is held outside torch's allocator is this process's."""
    return 2 * (answer.own_outside_bytes or 0) > (answer.outside_bytes or 0)


def _step_outside(answer: MessageAnswer) -> str | None:
    message = answer.message
    if _is_outside_own(answer) and not _do_others_hold_enough(message):
        return SAME_PROCESS
    if _do_others_hold(answer):
        return _step_others(message)
    is_mostly_torchs = 2 * (message.allocated_bytes or 0) > (
        message.total_bytes or math.inf
    )
    return f"{answer.next_step}; else {{less}}" if is_mostly_torchs else None


def _do_others_hold_enough(message: OomMessage) -> bool:
    """Return whether the request would have been served with what other processes hold."""
    missing_bytes = (message.tried_bytes or 0) - (message.free_bytes or 0)
    return max(missing_bytes, 1) <= _others_bytes(message)


def _do_others_hold(answer: MessageAnswer) -> bool:
    """Return whether processes that the text lists hold most of what is not torch's.

    Where torch did not recognise its own process, one of them may be it.
    """
    message = answer.message
    is_most = 2 * _others_bytes(message) > (answer.outside_bytes or 0)
    return message.process_bytes is not None and is_most and _do_others_hold_enough(message)


def _others_reason(message: OomMessage) -> str:
    numbers = _other_numbers(message)
    subject = f"process {numbers[0]} holds"
    if len(numbers) > 1:
        subject = f"{len(numbers)} other processes hold"
    return f"{subject} {format_bytes(_others_bytes(message))} of it"


def _step_others(message: OomMessage) -> str:
    numbers = _other_numbers(message)
    size = format_bytes(_others_bytes(message))
    if len(numbers) > 1:
        return STOP_OTHERS.replace("{size}", size)
    return STOP_OTHER.replace("{size}", size).replace("{number}", str(numbers[0]))


def _other_numbers(message: OomMessage) -> list[int]:
    """Return the numbers of the other processes that hold more than a context."""
    return [number for number, size in message.other_processes if size > _CONTEXT_BYTES]


def _step_full(answer: MessageAnswer) -> str | None:
    message = answer.message
    if (message.tried_bytes or 0) > (message.reserved_bytes or math.inf):
        return ONE_REQUEST
    is_quarter = 4 * (answer.outside_bytes or 0) >= (message.total_bytes or math.inf)
    return OUTSIDE_TOO if is_quarter and not _is_outside_own(answer) else None


def _is_nothing_freed(answer: MessageAnswer) -> bool:
    """Return whether torch has most of a device and freed next to nothing, as weights do."""
    message = answer.message
    reserved = message.reserved_bytes or 0
    unallocated = answer.unallocated_bytes
    return (
        unallocated is not None
        and unallocated < _LOADED_SHARE * reserved
        and 5 * reserved > 4 * (message.total_bytes or math.inf)
    )


def _step_fragmented(answer: MessageAnswer, text: str) -> str | None:
    if answer.backend not in ("CUDA", "HIP"):
        return None if answer.backend == "XPU" else NOT_ON_WINDOWS
    if "totalcapacity;" not in text:
        return ON_WINDOWS if _WINDOWS_PATH.search(text) else None
    return BEFORE_SETTINGS if "ibcached" in text else BEFORE_EXPANDABLE


def _phase_step(text: str, start: int) -> str:
    """Return what makes a program need less memory, by the last frames of the traceback.

    It stands before the message; a person who asks may show the message first.
    """
    traceback = text[max(start - _MOST_OF_TRACEBACK, 0) : start]
    if _TRACEBACK in traceback:
        traceback = traceback.rpartition(_TRACEBACK)[2]
    else:
        below = text[start : start + _MOST_OF_TRACEBACK]
        if _FRAME.search(traceback) or _TRACEBACK in below:
            below = below.partition(_TRACEBACK)[2]
        traceback += "" if _OTHER_ERROR.search(below) else below
    steps = []
    for words, step in PHASES:
        for match in squeezed(words).finditer(traceback):
            steps.append((match.end(), step))
    return max(steps, default=(0, LESS))[1]


def _verdict_in_words(text: str) -> tuple[OomVerdict, str] | None:
    """Return the verdict that torch's own words have, and the next step."""
    for words, cause, sentence, next_step in WORDS:
        if squeezed(words).search(text):
            basis = "torch's own words"
            return OomVerdict(cause, sentence, basis, is_inferred=False), next_step
    return None


def _verdict(
    message: OomMessage, shortage: Shortage, text: str
) -> tuple[OomVerdict | None, str]:
    """Return the verdict on a message, and the next step."""
    verdict = decide_oom(shortage)
    tried = message.tried_bytes
    figures = {message.free_bytes, shortage.live_bytes, message.reserved_bytes}
    is_full_unproven = verdict.cause == OomCause.FULL and figures == {None}
    if tried is None or is_full_unproven:
        return _verdict_without_figures(message, shortage)
    if verdict.cause == OomCause.UNKNOWN and "xpu" in text and tried >= _LARGE_XPU_BLOCK:
        _, cause, sentence, next_step = LARGE_BLOCK
        return OomVerdict(cause, sentence, verdict.sentence, is_inferred=True), next_step
    if verdict.cause == OomCause.LIMIT and message.metal_bytes is not None:
        return _limit_of_mps(verdict, message)
    return verdict, NEXT_STEPS[verdict.cause]


def _verdict_without_figures(
    message: OomMessage, shortage: Shortage
) -> tuple[OomVerdict | None, str]:
    """Return the verdict on a request whose size is cut off: it was larger than what was free.

    Whether pieces that torch had cached would have been enough is then not known. Without any other
    figure there is no verdict.
    """
    free = message.free_bytes
    if message.tried_bytes is not None or free is None:
        is_large = (message.tried_bytes or 0) >= _LARGE_REQUEST_BYTES
        return None, LARGE_REQUEST if is_large else NEXT_STEPS[OomCause.UNKNOWN]
    verdict = decide_oom(replace(shortage, block_bytes=free + 1, segment_bytes=free + 1))
    is_decided = verdict.cause in (OomCause.FULL, OomCause.OUTSIDE)
    if shortage.usable is None or not is_decided:
        return None, NEXT_STEPS[OomCause.UNKNOWN]
    if verdict.cause == OomCause.FULL:
        sentence = (
            f"more than {format_bytes(free)} were needed: so much was free on the device; the text "
            "lacks the size of the request"
        )
        verdict = replace(verdict, sentence=sentence, is_inferred=True)
    is_large = verdict.cause == OomCause.FULL and free >= _LARGE_REQUEST_BYTES
    return verdict, LARGE_REQUEST if is_large else NEXT_STEPS[verdict.cause]


def _limit_of_mps(verdict: OomVerdict, message: OomMessage) -> tuple[OomVerdict, str]:
    """Return the verdict on a limit of MPS with its source, and the next step."""
    limit = format_bytes(message.allowed_bytes or 0)
    sentence = f"over the MPS limit of {limit} (by default 1.7 times the recommended size)"
    is_other_larger = (message.metal_bytes or 0) > (message.reserved_bytes or 0)
    return replace(verdict, sentence=sentence), MPS_OTHER if is_other_larger else MPS_LIMIT


def _shortage(message: OomMessage, unallocated: int | None, why_free: str) -> Shortage:
    """Put the figures of a text in the form in which files have theirs."""
    total = message.total_bytes
    tried = message.tried_bytes or 0
    is_shared = (message.free_bytes or 0) > (total or math.inf)
    is_limited = (message.allowed_bytes or 0) < (total or math.inf)
    # Before torch 1.4 the text has the request itself: not the segment that a small one needs.
    is_small = 0 < tried <= SMALL_REQUEST_BYTES and message.metal_bytes is None
    return Shortage(
        block_bytes=_SHARED_SEGMENTS.get(tried, (tried, ""))[0],
        segment_bytes=SMALL_SEGMENT_BYTES if is_small else tried,
        device_free_bytes=message.free_bytes,
        device_total_bytes=None if is_shared else total,
        reserved_bytes=message.reserved_bytes,
        live_bytes=_live_bytes(message),
        usable=None if unallocated is None else FreePieces(unallocated),
        elsewhere=FreePieces(message.private_pool_bytes or 0),
        allowed_bytes=message.allowed_bytes if is_limited else None,
        counted_bytes=_counted_bytes(message),
        rounding_bytes=_ROUNDING_BYTES,
        has_pieces=False,
        others_bytes=_others_bytes(message),
        why_free=why_free,
    )


def _live_bytes(message: OomMessage) -> int | None:
    """Return what tensors hold, else the least that contains it."""
    if message.allocated_bytes is not None:
        return message.allocated_bytes
    if message.reserved_bytes is not None:
        return message.reserved_bytes
    return message.process_bytes


def _counted_bytes(message: OomMessage) -> int | None:
    """Return what counts against a limit: torch's memory, and on MPS what else Metal holds."""
    if message.reserved_bytes is None:
        return _live_bytes(message)
    return message.reserved_bytes + (message.metal_bytes or 0)


def _others_bytes(message: OomMessage) -> int:
    """Return what other processes hold; those with a context only would not leave much."""
    sizes = [size for _, size in message.other_processes if size > _CONTEXT_BYTES]
    return sum(sizes)


# --- notes


def _notes(message: OomMessage, backend: str) -> Iterator[str]:
    """Explain the figures that are easily misread."""
    tried = message.tried_bytes or 0
    private = message.private_pool_bytes or 0
    allocated = message.allocated_bytes or 0
    if tried in _SHARED_SEGMENTS and backend != "MPS":
        yield _SHARED_SEGMENTS[tried][1]
    if private and allocated:
        yield (
            f"torch's {format_bytes(allocated + private)} includes {format_bytes(private)} free "
            "in private pools"
        )
    if backend == "HIP":
        yield from _apu_notes(message)
    yield from _free_memory_notes(message)
    yield from _cached_memory_notes(message)
    yield from _process_notes(message)


def _process_notes(message: OomMessage) -> Iterator[str]:
    """Explain what the text gives to each process."""
    n_contexts = sum(size <= _CONTEXT_BYTES for _, size in message.other_processes)
    if n_contexts > 1:
        yield (
            f"{counted(n_contexts, 'process', 'processes')} with no more than a context: ranks of "
            "one job have one here if they called torch.cuda.set_device() too late, or not at all"
        )
    if message.is_process_miscounted:
        yield (
            f"the text gives this process {format_bytes(message.process_bytes or 0)}, less than "
            "torch has in it: the driver may not know the processes of a container"
        )
    if message.process_bytes is None and message.other_processes:
        yield (
            "torch did not recognise its own process (a container): one of those "
            "listed may be this one"
        )


def _apu_notes(message: OomMessage) -> Iterator[str]:
    """Explain the size of a device that is part of a processor."""
    if _APU_BYTES[0] < (message.total_bytes or 0) < _APU_BYTES[1]:
        yield (
            "a device of AMD with so much memory is most likely an APU, whose memory is the "
            "host's: what other programs have of that counts as held outside torch"
        )


def _cached_memory_notes(message: OomMessage) -> Iterator[str]:
    """Explain that what torch had cached was of no use, where it looks as if it had been."""
    allocated = message.allocated_bytes or 0
    cached = (message.reserved_bytes or 0) - allocated - (message.private_pool_bytes or 0)
    tried = message.tried_bytes or math.inf
    if allocated and min(cached, message.free_bytes or 0) > tried:
        yield (
            f"the {format_bytes(cached)} that torch had cached had no piece that served the "
            "request either"
        )


def _free_memory_notes(message: OomMessage) -> Iterator[str]:
    """Explain free memory that the device cannot have beside torch's."""
    total = message.total_bytes
    if total is None:
        return
    free = message.free_bytes or 0
    torch_bytes = max(message.reserved_bytes or 0, message.allocated_bytes or 0)
    if free > total:
        yield "more is free than the device has: it shares the host's memory, and torch counts both"
    elif torch_bytes + free > total + _ROUNDING_BYTES:
        yield (
            "torch's memory and the free memory add up to more than the device has: "
            "the driver moved some to the host's memory (Windows), or the figures are "
            "from two moments or were changed"
        )


def _summary_notes(summary: MemorySummary) -> Iterator[str]:
    if summary.n_ooms:
        yield f"memory ran out {counted(summary.n_ooms, 'time')} before the table was printed"
    if summary.n_retries and summary.n_retries > (summary.n_ooms or 0):
        yield (
            f"torch emptied its cache {counted(summary.n_retries, 'time')} to serve a request: "
            "the device was nearly full, which is slow"
        )
    if summary.has_waited:
        yield (
            f"when most was active, at least {format_bytes(summary.waited_bytes)} were freed and "
            "waited for another stream (record_stream)"
        )
    if (summary.partly_used_bytes or 0) >= _LEAST_NOTABLE * (summary.reserved_bytes or 1):
        yield (
            "fragmentation: free memory in partly used segments serves only requests "
            "that fit into a gap"
        )
