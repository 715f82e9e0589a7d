"""The pages of the documentation -> how many words of each a person wrote, and which pages have too many.

Left out is what the program makes (pages, parts between marks, the commands that are run) and the
recorded sessions, which stand between marks too. A word is what stands between blanks and has a
letter or a digit.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from scripts.docs.sessions import PART

ROOT = Path(__file__).resolve().parents[2]
GENERATED_PAGES = tuple(f"docs/reference/{name}schema.md" for name in ("", "time-", "ranks-"))
# A page of the guide, the guide, and all pages.
MOST_OF_A_PAGE, MOST_OF_THE_GUIDE, MOST = 1_200, 9_000, 19_000
_MARKED = re.compile(r"<!-- (?P<name>[\w-]+):begin -->.*?<!-- (?P=name):end -->", re.DOTALL)
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
# A page that another script makes says so.
_MADE = "Made by `scripts/"
_TARGET = re.compile(r"\]\([^)\s]+\)")


def words_of_pages() -> dict[str, int]:
    """Return the words of every page that people write."""
    found = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    names = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in found}
    return {
        name: _words(text)
        for name, text in names.items()
        if name not in GENERATED_PAGES and _MADE not in text
    }


def faults() -> Iterator[str]:
    """Say where the documentation is longer than people read."""
    counts = words_of_pages()
    guide = {name: n_words for name, n_words in counts.items() if name.startswith("docs/guide/")}
    for name, n_words in guide.items():
        if n_words > MOST_OF_A_PAGE:
            yield f"{name}: {n_words:,} words, more than {MOST_OF_A_PAGE:,}"
    if sum(guide.values()) > MOST_OF_THE_GUIDE:
        yield f"docs/guide: {sum(guide.values()):,} words, more than {MOST_OF_THE_GUIDE:,}"
    if sum(counts.values()) > MOST:
        yield (
            f"docs/, README.md, CONTRIBUTING.md: {sum(counts.values()):,} words, more than {MOST:,}"
        )


def _words(text: str) -> int:
    for made in (PART, _MARKED, _COMMENT, _TARGET):
        text = made.sub(" ", text)
    return sum(any(letter.isalnum() for letter in word) for word in text.split())
