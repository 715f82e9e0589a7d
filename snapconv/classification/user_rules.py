"""A user's own rules: a TOML file of frame patterns for each category.

They come before all rules of ours.

    kv_cache = ["serving/cache.py:allocate_*"]

docs/reference/rules-file.md describes it. A mistake in it is an InputError that names the place.
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import translate
from pathlib import Path
from typing import Any

import numpy as np

from snapconv.classification.categories import Category
from snapconv.columns import BoolColumn, read_only
from snapconv.errors import InputError
from snapconv.files import open_input
from snapconv.notes import Note
from snapconv.snapshot.stack_table import StackTable
from snapconv.stacks.stack_roles import fitting_rules

# Every pattern is tried on every name of a file, at a cost in proportion to both: far more than
# people write.
_MOST_RULES, _MOST_CHARACTERS = 200, 10_000
# tomllib takes memory and time by the square of the parts of a dotted key, which stands on one
# line.
_MOST_BYTES, _MOST_DOTS = 256 << 10, 500
_CATEGORIES = {
    category.label: category for category in Category if category is not Category.UNKNOWN
}


@dataclass(frozen=True, slots=True)
class UserRule:
    """A category, and a pattern of the frames that make such memory.

    ``FILE.py:FUNCTION``, or one of both. ``*`` stands for any text and ``?`` for a character; a
    file may lack its first folders.
    """

    category: Category
    pattern: str

    @property
    def slug(self) -> str:
        """The name in every output, which no rule of ours has."""
        return f"user:{self.pattern}"

    @property
    def function(self) -> str:
        """The regular expression of functions, empty for any.

        ``translate`` makes none that backtracks.
        """
        if self.pattern.endswith(".py"):
            return ""
        function = self.pattern.partition(".py:")[2] or self.pattern
        return "" if function == "*" else rf"\A{translate(function)}"

    @property
    def file(self) -> str:
        """The regular expression of files, empty for any."""
        file, is_both, _ = self.pattern.partition(".py:")
        if is_both:
            file += ".py"
        elif not file.endswith(".py"):
            return ""
        return rf"\A(?:{translate(file)}|{translate(f'*/{file}')})"


@dataclass(frozen=True, slots=True)
class UserRules:
    """Rules in the order of evaluation; ``has[rule, stack]``: the stacks that each matches."""

    rules: tuple[UserRule, ...]
    has: BoolColumn


NO_RULES = read_only(UserRules((), np.zeros((0, 0), bool)))


def match_rules(rules: Sequence[UserRule], stacks: StackTable) -> UserRules:
    """Search the frames of every stack, each distinct name and file once per rule."""
    has = np.zeros((len(rules), len(stacks)), bool)
    if rules:
        patterns = [(rule.function, rule.file) for rule in rules]
        frame_bits = fitting_rules(stacks.frames, patterns)
        for number, row in enumerate(has):
            is_fitting = np.array([bits >> number & 1 for bits in frame_bits], bool)
            row[stacks.owners[stacks.mark_entries(is_fitting)]] = True
    return read_only(UserRules(tuple(rules), has))


def rule_notes(user: UserRules) -> Iterator[Note]:
    """Yield a note for every rule that matches nothing.

    Its author should hear of a wrong pattern.
    """
    for rule, has in zip(user.rules, user.has, strict=True):
        if not has.any():
            yield Note(
                "unused-rule",
                f"your rule {rule.pattern} ({rule.category.label}) matches no frame: check it",
            )


def read_rules(path: Path) -> tuple[UserRule, ...]:
    """Read a file of rules; raises InputError that names the file and the place in it."""
    try:
        with open_input(path) as file:
            values = read_toml(file.read(_MOST_BYTES + 4).removeprefix(b"\xef\xbb\xbf"))
        rules: list[UserRule] = []
        for label, patterns in values.items():
            rules += _rules(label, patterns)
        n_characters = sum(len(rule.pattern) for rule in rules)
        if len(rules) > _MOST_RULES or n_characters > _MOST_CHARACTERS:
            raise InputError(
                f"its {len(rules)} patterns have {n_characters} characters; {_MOST_RULES} with "
                f"{_MOST_CHARACTERS} may be: write * for what they have in common"
            )
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    except OSError as error:
        raise InputError(
            f"{path}: cannot be read: {error.strerror or error}; check the path"
        ) from error
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path}: this is no text in UTF-8: byte {error.start} cannot be right"
        ) from error
    except ValueError as error:
        raise InputError(f"{path}: this is no TOML: {error}") from error
    return tuple(rules)


def read_toml(text: bytes) -> dict[str, Any]:
    """Read a text as TOML.

    Raises ValueError where it is damaged, or far beyond what people write.
    """
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    if len(text) > _MOST_BYTES:
        raise ValueError(f"it may have {_MOST_BYTES >> 10} KiB, and has more")
    for number, line in enumerate(text.split(b"\n"), 1):
        if line.count(b".") > _MOST_DOTS:
            raise ValueError(
                f"line {number} has more than {_MOST_DOTS} dots: write one pattern a line"
            )
    try:
        values: dict[str, Any] = tomllib.loads(text.decode())
    except RecursionError:
        raise ValueError("nested too deep") from None
    return values


def _rules(label: str, patterns: object) -> Iterator[UserRule]:
    """Yield the rules of one category."""
    if label not in _CATEGORIES:
        raise InputError(f"{label}: no such category; there are: {', '.join(_CATEGORIES)}")
    if not isinstance(patterns, list):
        raise InputError(
            f'{label}: expected a list of patterns, such as {label} = ["model.py:allocate_*"]'
        )
    for number, pattern in enumerate(patterns):
        if not isinstance(pattern, str):
            raise InputError(
                f"{label}[{number}]: expected text, got {type(pattern).__name__}"
            )
        if not pattern.strip("*"):
            raise InputError(f"{label}[{number}]: it would fit every frame")
        yield UserRule(_CATEGORIES[label], pattern)
