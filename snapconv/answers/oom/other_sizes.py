"""The sizes of a text that none of its figures is, each in the words that stand around it."""

import re
from collections.abc import Callable, Iterable

# A size, no rate and no part of a name or of a longer number; what servers count; a long number of
# bytes.
_SIZE = re.compile(
    r"(?<![\w.,/-])(\d[\d,]{0,20}(?:\.\d{1,9})?\s?\(?(?:bytes|[KMGT]i?B)|\d{4,20}\s?B)(?![\w/])|"
    r"(?:(?:tokens|(?:available|evictable)_size_?|slots|pages|blocks)\s?[=:]\s?(?=\d)|"
    r"(?<!pid)(?<!\d)[=:/]\s?(?=\d{7}))(\d{1,15})(?![\d.:-]|[KMGT]i?B)",
    re.IGNORECASE,
)
_BEFORE, _AFTER, _LONGEST_WORD = 50, 25, 80
_MOST_CHARACTERS, _MOST_EXCERPTS = 180, 10


def excerpts(lines: Iterable[str], is_known: Callable[[str], bool]) -> tuple[str, ...]:
    """Return the words around sizes that are not known: the first, each once; those of a line together."""
    texts: dict[str, None] = {}
    for line in lines:
        start, stop = 0, 0
        for size in _SIZE.finditer(line):
            if is_known(size[1] or size[2]):
                continue
            if stop and size.end() > start + _MOST_CHARACTERS:
                texts[_excerpt(line, start, stop)] = None
                stop = 0
            start, stop = (start if stop else size.start()), size.end()
        if stop:
            texts[_excerpt(line, start, stop)] = None
    return tuple(texts)[:_MOST_EXCERPTS]


def _excerpt(line: str, start: int, stop: int) -> str:
    """Return the words of a line from some before its first size to some after its last."""
    begin = max(line.rfind(" ", 0, max(start - _BEFORE, 0)) + 1, start - _LONGEST_WORD)
    most = stop + _AFTER + _LONGEST_WORD
    end = line.find(" ", stop + _AFTER, most)
    words = line[begin : most if end < 0 else end]
    return f"{'… ' if begin > 0 else ''}{words}{' …' if begin + len(words) < len(line) else ''}"
