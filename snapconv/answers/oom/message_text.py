"""A log or a pasted text as small letters without white space, and the rank of each line.

White space goes since terminals break lines anywhere, in words and numbers too. To search a long
log takes long: what is far from every word that texts about memory have is left out, and a check
between the lines and between the searches may end it.
"""

import html
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, pairwise

from snapconv.answers.oom.message_figures import FIGURES, NUMBERS, SIZE

Check = Callable[[], None]

# Plain words of which every text about memory has one; the last are the shell's "Killed" in
# Chinese, Russian, German and Korean.
_SIGNS = (
    "/dev/shm|/torch_|1455|8007000e|=error 2|_create|algorithm|alloc fail|alloc:|alloc_|allocate |"
    "allocating|allocation|allocator|already allocated|arrayallocat|available memory|backend "
    "failed|"
    "dst tensor|% utilization:|system memory low|job violates|maxresultsize|instance type|no "
    "space left|"
    "non-zero code|suspended|887a000|mach_vm_map|sigterm|vkallocate|"
    "bad_alloc|buffer size|bus error|calloc|crashed|cuda execution|cuda graph|device memory|"
    "dimension sizes|dispatched on|dnn library|el0004|enough|error (2)|error code|error: 39|"
    "error: 40|error=2|died|exceed|excessive|exhaust|exit|handle|sufficient|is allocated|kill|kv "
    "cache|"
    "in allocate: 2|lack of|larger than buffer|llama runner|memory slot|signal 7|sigbus|-byte "
    "buffer|"
    "large alloc|limit|low on |make_resident|malloc|memlimit|memory error|memory on device|"
    "memory on node|memory on the node|mem_buffer|be allocated|"
    "request too large|more gpu memory|vram usage|recommended size|swap space|"
    "memory pressure|memory prof|memory summary|allocated memory|memoryerror|ndarray|nrt_|nvmap|"
    "object store|"
    "objectstore|oom|out of |out_of_|outof|paging file|profiled value|return code|returncode|"
    "shared memory|shortage|size found|status_|system memory|terminated|than requested|to "
    "reserve|thcuda|"
    "but only|but you|nokvslot|pages (only|disk offload|to the disk|"
    "to alloc|to malloc|alloc request|data too large|to execute this|too little|too many|unable to|"
    "new thread|thread creation|no child|errno 11|resource temporarily|disassociated|heartbeat|"
    "number of blocks|interactivity|hostregister|too low|vram_allocated|for the available|"
    "generationstatus|memory is full|"
    "working set|thrashing|running out|used more than|page size|hbm usage|is more than|illegal|"
    "\u65e0\u6cd5\u5206\u914d|\u5df2\u6740\u6b7b|\u5df2\u6bba\u6b7b|\u0443\u0431\u0438\u0442\u043e|"
    "get\u00f6tet|\uc8fd\uc5c8\uc74c|longer alive|errno 12|gpu free memory|exhausted|"
    "auslagerungsdatei|paginaci|pagination|"
    "pagina\u00e7|file di paging|\u043f\u043e\u0434\u043a\u0430\u0447\u043a\u0438|"
    "\u9875\u9762\u6587\u4ef6|\u30da\u30fc\u30b8\u30f3\u30b0|\ud398\uc774\uc9d5"
).split("|")

# A long log is read in blocks of so many lines: those with a sign, the block before each and the
# one after it.
_NEAR = 400
# What stands before every line of a rank, a quotation, a container, a logger: `[rank0]: `,
# `(Worker pid=12) `, `E   `, `ERROR 10-25 13:12:42 [core.py:842] `.
_PREFIX = re.compile(
    r"\A(\s{0,200}(?:(?:\[(?!requested|largestC|totalF)[^\[\]\n]{1,80}\]:?|"
    r"\([A-Za-z][\w.-]{0,40}(?: [\w.]{1,20}=[^)\n]{1,60})?\)|\d{1,4}:|"
    r"[E#>|]|[\w.-]{1,40} {1,4}\||(?:DEBUG|INFO|WARN|WARNING|ERROR|CRITICAL)[:|]?|"
    r"(?:\d{4}[-/])?\d\d[-/]\d\d[T _-]{1,2}[\d:.,]{5,20}Z?:?|\d\d:\d\d:\d\d[\d.,]{0,8})"
    r"(?:[ \t]{1,40}|$)){0,8})"
)
_RANK = re.compile(r"(rank|(?<![A-Za-z])[DPTE]P)[ _:=]{0,2}(\d{1,6})", re.IGNORECASE)
# What only one program writes before lines: the names of vLLM's processes, and its files that
# log errors.
# Many programs have a core.py: vLLM writes a level and a date without a year before it.
_PROGRAM = re.compile(
    r"vllmworker|\[(?:worker_base|multiproc_worker_utils)\.py:|"
    r"\((?:enginecore|worker_[dtpe]p|apiserver)|"
    r"\[(?:multiproc_executor|gpu_worker|gpu_model_runner|(?:async_)?llm_engine|async_llm|"
    r"core_client)\.py:|"
    r"(?:info|warning|error) \d\d-\d\d \d\d:\d\d:\d\d \[core\.py:"
)
# Colours of terminals, frames of boxes, control characters; line breaks that were escaped, and
# empty lines, beyond which the parts of a number were not told apart.
_NOISE = re.compile(r"\x1b\[[0-9;]{0,20}[A-Za-z]|[\u2500-\u257f]|[\x00-\x08\x0e-\x1f]")
_ESCAPED = re.compile(r"\\[nrt]|\n(?:[ \t\r]{0,200}\n)+")
# Two numbers of a line stay two, and a number before a time; a "memory error" of any device is no
# MemoryError of Python.
_APART = re.compile(
    r"(?<=\d)[ \t]{1,200}(?=\d)|(?<=\d)(?=\d{4}-\w{2,3}-\d\d|\d\d:\d\d:\d\d)|"
    r"(?<=memory)[ \t]{1,200}(?=error)",
    re.IGNORECASE,
)
_SEPARATOR = "\x00"
# How much of a line's begin or end may be a logger's, and what ends that.
_LONGEST_MARGIN = 160
_PIECE = re.compile(r"\d{1,160}|\D")
_ENDS_OF_MARGINS = " \t:|>])=\"'-"
_MOST_MARGINS = 8
# A program that goes on after each failure writes the same lines thousands of times.
_LONG_LOG, _MOST_REPEATS = 4000, 100
_NUMBER = re.compile(r"\d{1,160}")
# In a pattern, in place of the number of a figure.
_FIGURE = re.compile(r"(?<!\?P)<(\w{1,30})>")


def no_check() -> None:
    """Let a search go on."""


@cache
def squeezed(pattern: str) -> re.Pattern[str]:
    """Compile a pattern for texts in small letters without white space, when first needed.

    Its spaces are for the reader; ``<name>`` stands for the number of a figure, a size with its
    unit where FIGURES does not have the name.
    """
    compact = pattern.replace(" ?", "").replace(" ", "")
    return re.compile(_FIGURE.sub(_number, compact))


def _number(figure: re.Match[str]) -> str:
    name = figure[1]
    return f"(?P<{name}>{NUMBERS[FIGURES.get(name, SIZE).unit]})"


@dataclass(slots=True)
class CompactText:
    """Small letters without white space; its ``lines``, their ``ends`` and ``ranks``."""

    text: str
    check: Check
    ends: list[int]
    ranks: list[str]
    lines: list[str]

    def rank_at(self, position: int) -> str:
        """Return the rank that wrote a character, ``""`` where the log does not say."""
        return self.ranks[bisect_right(self.ends, position)]

    def lines_near(self, position: int, n_lines: int) -> list[str]:
        """Return so many lines before the line of a character, the line, and as many after it."""
        line = bisect_right(self.ends, position)
        return self.lines[max(line - n_lines, 0) : line + n_lines + 1]

    def before(self, position: int, n_characters: int) -> str:
        """Return at most so many characters before a position."""
        return self.text[max(position - n_characters, 0) : position]

    def around(self, position: int, n_characters: int) -> str:
        """Return at most so many characters before a position, and as many from it on."""
        return self.text[max(position - n_characters, 0) : position + n_characters]

    def drop_repeats(self) -> "CompactText":
        """Leave out of a long log the lines that differ in digits alone from many before them."""
        if len(self.lines) < _LONG_LOG:
            return self
        n_seen: Counter[str] = Counter()
        parts, ranks, lines = [], [], []
        for begin, end, rank, line in zip(
            [0, *self.ends], self.ends, self.ranks, self.lines, strict=False
        ):
            part = self.text[begin:end]
            shape = _NUMBER.sub("0", part)
            n_seen[shape] += 1
            if n_seen[shape] <= _MOST_REPEATS:
                parts.append(part)
                ranks.append(rank)
                lines.append(line)
        ends = list(accumulate(map(len, parts)))
        return CompactText("".join(parts), self.check, ends, ranks, lines)

    def search(self, pattern: str) -> re.Match[str] | None:
        """Find the first match of a pattern."""
        self.check()
        return squeezed(pattern).search(self.text)


def compacted(text: str, check: Check = no_check) -> CompactText:
    """Remove white space from a text, and what terminals and launchers put between its words."""
    if "&" in text:
        text = html.unescape(text)
    lines = _near_signs(_ESCAPED.sub("\n", text).split("\n"), check)
    width = max(map(len, lines))
    between = " "
    program = _PROGRAM.search(text.lower())
    parts = [_squeeze(program[0]) if program else ""]
    ranks = [""]
    shown = [""]
    line_parts: dict[str, tuple[str, str, str]] = {}
    for raw in lines:
        check()
        if raw not in line_parts:
            line_parts[raw] = _read_line(raw)
        words, line, rank = line_parts[raw]
        if _APART.search(f"{parts[-1][-6:]}{between}{words[:11]}"):
            words = _SEPARATOR + words
        # A terminal breaks the longest lines alone: elsewhere a number has ended.
        is_number_cut = len(raw) == width and words[-1:].isdigit()
        between = "" if is_number_cut else " "
        parts.append(words)
        shown.append(line)
        ranks.append(rank)
    ends = list(accumulate(map(len, parts)))
    return CompactText("".join(parts), check, ends, ranks, shown)


def _read_line(raw: str) -> tuple[str, str, str]:
    """Return the words of a line, the line as it is shown, and the rank that wrote it."""
    _, prefix, line = _PREFIX.split(_NOISE.sub(" ", raw), maxsplit=1)
    words = _squeeze(_APART.sub(_SEPARATOR, line)).lower()
    rank = " ".join(map(" ".join, _RANK.findall(prefix)))
    return words, " ".join(line.split()), rank


def strip_margins(text: str) -> str:
    """Remove what several lines begin or end with, but for its digits: a logger's words.

    They part a message that was written over several lines, each of them a line of the log.
    """
    lines = _strip_beginnings(text.split("\n"))
    # What ends several lines may be a figure of theirs, unless it is the end of an object in JSON.
    mirrored = _strip_beginnings([line[::-1] for line in lines], mark='"')
    return "\n".join(line[::-1] for line in mirrored)


def _shape(pieces: list[str]) -> str:
    """Join pieces with one character for each: a number has as many digits as it likes."""
    return "".join("0" if piece.isdigit() else piece for piece in pieces)


def _strip_beginnings(lines: list[str], mark: str = "") -> list[str]:
    """Remove the beginnings that lines share with the next one, of each line the longest.

    Those without the character ``mark`` stay.
    """
    pieces = [_PIECE.findall(line[:_LONGEST_MARGIN]) for line in lines]
    shapes = [_shape(row) for row in pieces]
    shared: Counter[str] = Counter()
    for neighbours in pairwise(filter(None, shapes)):
        beginning = _common_beginning(*neighbours)
        while beginning and beginning[-1] not in _ENDS_OF_MARGINS:
            beginning = beginning[:-1]
        shared[beginning] += 1
    min_pairs = min(2, len(lines) // 2)
    margins = [
        beginning
        for beginning, n_pairs in shared.most_common(_MOST_MARGINS)
        if n_pairs >= min_pairs and beginning.strip() and mark in beginning
    ]
    margins.sort(key=len, reverse=True)
    stripped = []
    for line, row, shape in zip(lines, pieces, shapes, strict=True):
        margin = next(filter(shape.startswith, margins), "")
        stripped.append(line[sum(map(len, row[: len(margin)])) :])
    return stripped


def _common_beginning(first: str, second: str) -> str:
    """Return the characters with which both begin."""
    for index, characters in enumerate(zip(first, second, strict=False)):
        if characters[0] != characters[1]:
            return first[:index]
    return min(first, second, key=len)


def _squeeze(text: str) -> str:
    return "".join(text.split())


def _near_signs(lines: list[str], check: Check) -> list[str]:
    """Leave out of a long log the lines far from every word that texts about memory have."""
    near = lines[:_NEAR]
    end = _NEAR
    for begin in range(0, len(lines), _NEAR):
        check()
        block = "\n".join(lines[begin : begin + _NEAR]).lower()
        if any(sign in block for sign in _SIGNS):
            first = max(end, begin - _NEAR)
            end = begin + 2 * _NEAR
            near += lines[first:end]
    return near
