"""The sizes of a text that none of its figures is, each in the words that stand around it."""

import re
from collections.abc import Callable, Iterable

# A size, and neither a rate, nor a part of a name or of a longer number, nor what a copy or a
# download counts; what servers count; a long number of bytes.
_SIZE = re.compile(
    r"(?<![\w.,/-])((?:\d[\d.,]{0,12}-)?\d[\d,]{0,20}(?:\.\d{1,9})?\s?\(?"
    r"(?:bytes|[KMGT]i(?:B|$)|[KMGT]B)|"
    r"\d{4,20}\s?B)(?![\w/]|[\d\s.,()KMGTiB]{0,30}\s(?:copied|transferred|downloaded))|"
    r"(?:(?:tokens|(?:available|evictable)_size_?|slots|pages|blocks)\s?[=:]\s?(?=\d)|"
    r"(?:mem\w{0,8}|alloc\w{0,8}|bytes?|size|use[d]?|free|pool|limit|total|peak|cache|heap)\"?"
    r"\s?[=:/]\s{0,8}(?=\d{7}))(\d{1,15})(?![\d.:-]|[KMGT]i?B)|"
    # XLA's sizes have no B.
    r"(?:allocate|reserve|are)\s(\d{1,9}\.\d{1,2}[KMGT])(?!\w)|"
    # Nor have those that programs print of their use.
    r"(?:memory|vram|usage|utili[sz]ation|used)[^\d\n]{0,40}(\d{1,9}\.\d{1,3}[KMGT])(?!\w)",
    re.IGNORECASE,
)
_BEFORE, _AFTER, _LONGEST_WORD = 50, 25, 80
_MOST_CHARACTERS, _MOST_EXCERPTS = 180, 10


def excerpts(lines: Iterable[str], is_known: Callable[[str], bool]) -> tuple[str, ...]:
    """Return the words around sizes that are not known: the first, each once.

    The sizes of a line are quoted together.
    """
    texts: dict[str, None] = {}
    for line in lines:
        start, stop = 0, 0
        for size in _SIZE.finditer(line):
            if is_known(size[size.lastindex or 0]):
                continue
            if stop and size.end() > start + _MOST_CHARACTERS:
                texts[_excerpt(line, start, stop)] = None
                stop = 0
            if not stop:
                start = size.start()
            stop = size.end()
        if stop:
            texts[_excerpt(line, start, stop)] = None
    return tuple(texts)[:_MOST_EXCERPTS]


def _excerpt(line: str, start: int, stop: int) -> str:
    """Return the words of a line from some before its first size to some after its last."""
    first_word = line.rfind(" ", 0, max(start - _BEFORE, 0)) + 1
    begin = max(first_word, start - _LONGEST_WORD)
    earliest_end = stop + _AFTER
    latest_end = earliest_end + _LONGEST_WORD
    end = line.find(" ", earliest_end, latest_end)
    words = line[begin : latest_end if end < 0 else end]
    ellipsis = "… " if begin > 0 else ""
    is_cut = begin + len(words) < len(line)
    return f"{ellipsis}{words}{' …' if is_cut else ''}"
