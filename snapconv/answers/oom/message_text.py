"""A log or a pasted text -> its characters without white space, and the rank that wrote each.

White space goes since terminals break lines anywhere, in words and numbers too. One search of a long log
takes seconds that nothing can interrupt: it is read and searched in pieces, with a check between them that
may end it.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache

Check = Callable[[], None]

# Characters that are searched at once, and the longest match.
_PIECE, _LONGEST = 1 << 16, 1 << 13
# What stands before every line of a rank, a quotation, a container, a logger: `[rank0]: `,
# `(Worker pid=12) `, `E   `, `ERROR 10-25 13:12:42 [core.py:842] `.
_PREFIX = re.compile(
    r"\s{0,200}(?:(?:\[[^\]\n]{1,80}\]:?|\([A-Za-z][\w.-]{0,40}(?: [\w.]{1,20}=[^)\n]{1,60})?\)|\d{1,4}:|"
    r"[E#>|]|[\w.-]{1,40} {1,4}\||(?:DEBUG|INFO|WARN|WARNING|ERROR|CRITICAL)[:|]?|"
    r"(?:\d{4}[-/])?\d\d[-/]\d\d[T _-]{1,2}[\d:.,]{5,20}Z?:?|\d\d:\d\d:\d\d[\d.,]{0,8})"
    r"(?:[ \t]{1,40}|$)){1,8}"
)
_RANK = re.compile(r"(rank|[DPTE]P)[ _:=]{0,2}(\d{1,6})", re.IGNORECASE)
# Colours of terminals, frames of boxes, control characters; line breaks that were escaped.
_NOISE = re.compile(r"\x1b\[[0-9;]{0,20}[A-Za-z]|[\u2500-\u257f]|[\x00-\x08\x0e-\x1f]")
_ESCAPED = re.compile(r"\\[nrt]")
# Two numbers of a line stay two.
_BETWEEN_DIGITS, _SEPARATOR = re.compile(r"(?<=\d)[ \t]{1,200}(?=\d)"), "\x00"
# Innermost groups of a pattern, and all else of it that is no plain letter, or one that may be missing.
_GROUP = re.compile(r"(?<!\\)\((?:[^()\\]|\\.){0,400}\)(?:[?*+]|\{[\d,]{1,9}\})?\??")
_NOT_PLAIN = re.compile(r"\\[A-Za-z]|\[(?:\\.|[^\]\\]){0,200}\]|\\?.(?=[?*+{])|\{[\d,]{1,9}\}|[.?*+^$\x00]")


def no_check() -> None:
    """Let a search go on."""


@cache
def squeezed(pattern: str) -> re.Pattern[str]:
    """Compile a pattern for texts without white space, when it is first needed.

    Its spaces are for the reader.
    """
    return re.compile(pattern.replace(" ?", "").replace(" ", ""), re.IGNORECASE)


@cache
def literals(pattern: str) -> tuple[str, ...]:
    """Return the longest run of plain letters of each alternative: every match has one of them.

    To look for one first is some fifty times as fast as the pattern.
    """
    flat, grouped = squeezed(pattern).pattern.lower(), ""
    while flat != grouped:
        grouped, flat = flat, _GROUP.sub("\x00", flat)
    runs = (_NOT_PLAIN.split(alternative) for alternative in flat.split("|"))
    return tuple(max(plain, key=len).replace("\\", "") for plain in runs)


@dataclass(slots=True)
class CompactText:
    """A text without white space; ``ranks`` has where another rank begins to write, and its name."""

    text: str
    lower: str
    check: Check
    ranks: list[tuple[int, str]] = field(default_factory=list)

    def rank_at(self, position: int) -> str:
        """Return the rank that wrote a character, ``""`` where the log does not say."""
        return next((rank for begin, rank in reversed(self.ranks) if begin <= position), "")

    def search(self, pattern: str) -> re.Match[str] | None:
        """Find the first match of a pattern, which is no longer than 8 KiB."""
        self.check()
        if not any(literal in self.lower for literal in literals(pattern)):
            return None
        return next(self.every(squeezed(pattern)), None)

    def every(self, pattern: re.Pattern[str]) -> Iterator[re.Match[str]]:
        """Find every match of a pattern, with a check before each piece."""
        for begin in range(0, len(self.text), _PIECE):
            self.check()
            for match in pattern.finditer(self.text, begin, begin + _PIECE + _LONGEST):
                if match.start() >= begin + _PIECE:
                    break
                yield match


def compacted(text: str, check: Check = no_check) -> CompactText:
    """Remove white space from a text, and what terminals and launchers put between its words."""
    parts, length, ranks = [""], 0, [(0, "")]
    lines = _ESCAPED.sub("\n", text).split("\n")
    width, is_broken = max(map(len, lines)), False
    for raw in lines:
        check()
        line = _NOISE.sub(" ", raw)
        prefix = _PREFIX.match(line)
        rank = " ".join(f"{word} {number}" for word, number in _RANK.findall(prefix[0])) if prefix else ""
        if rank != ranks[-1][1]:
            ranks.append((length, rank))
        words = _BETWEEN_DIGITS.sub(_SEPARATOR, line[prefix.end() if prefix else 0 :])
        words = "".join(words.split())
        # A terminal breaks the longest lines alone: elsewhere a number has ended.
        if not is_broken and words[:1].isdigit() and parts[-1][-1:].isdigit():
            words = _SEPARATOR + words
        is_broken = len(raw) == width
        parts.append(words)
        length += len(parts[-1])
    whole = "".join(parts)
    return CompactText(whole, whole.lower(), check, ranks)
