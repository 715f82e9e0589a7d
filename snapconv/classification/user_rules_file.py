"""A file of a user's own rules -> rules. The file is TOML or JSON, described in docs/reference/rules-file.md.

What is wrong in it is an InputError that names the rule, the key and the position.
"""

import re
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from snapconv.classification.categories import Category
from snapconv.classification.classify import REASONS
from snapconv.classification.user_rules import UserRule
from snapconv.errors import InputError
from snapconv.files import open_input
from snapconv.json_text import read_json
from snapconv.snapshot.stack_table import FrameTable
from snapconv.toml_text import read_toml
from snapconv.torch_knowledge.frame_patterns import FRAME_RULES
from snapconv.torch_knowledge.frame_roles import Role

_Word = TypeVar("_Word", Category, Role)

_TEXTS = ("slug", "reason", "category", "role", "function", "file", "operation")
_KEYS = (*_TEXTS, "free_site")
# Of all patterns together, and of rules: what a small file may cost, far more than people write.
_MOST_CHARACTERS, _MOST_RULES = 10_000, 200
_SLUG = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_CATEGORIES = {category.label: category for category in Category if category is not Category.UNKNOWN}
_ROLES = {role.name.lower(): role for role in Role}


def read_rules(path: str | Path) -> tuple[UserRule, ...]:
    """Read a file of rules; raises InputError that names the file and the place in it."""
    path = Path(path)
    try:
        return parse_rules(_values(path))
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def parse_rules(values: object) -> tuple[UserRule, ...]:
    """Turn a file of rules into rules; raises InputError that names the place."""
    raw = values.get("rules") if isinstance(values, dict) else None
    if not isinstance(values, dict) or not isinstance(raw, list):
        raise InputError('there are no rules in it: begin each with [[rules]], or in JSON {"rules": [...]}')
    if unknown := [key for key in values if key != "rules"]:
        raise InputError(f"{unknown[0]}: no such key; there is only: rules")
    if len(raw) > _MOST_RULES:
        raise InputError(f"there are {len(raw)} rules, and may be {_MOST_RULES}: join patterns by |")
    _check_lengths(raw)
    rules = tuple(_rule(item, f"rules[{i}]") for i, item in enumerate(raw))
    _check_slugs(rules)
    return rules


def _values(path: Path) -> object:
    """Read the contents of the file as plain values."""
    readers: dict[str, Callable[[bytes], object]] = {".json": read_json, ".toml": read_toml}
    if path.suffix.lower() not in readers:
        raise InputError("rules are read from a file whose name ends in .toml or .json")
    try:
        with open_input(path) as file:
            text = file.read().removeprefix(b"\xef\xbb\xbf")
        text.decode()
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}; check the path") from error
    except UnicodeDecodeError as error:
        raise InputError(f"this is no text in UTF-8: byte {error.start} cannot be right") from error
    try:
        return readers[path.suffix.lower()](text)
    except ValueError as error:
        raise InputError(f"this is no {path.suffix[1:].upper()}: {error}") from error
    except RecursionError as error:
        raise InputError("this is nested too deep for rules") from error


def _rule(raw: object, where: str) -> UserRule:
    if not isinstance(raw, dict):
        raise InputError(f"{where}: expected a table of keys, got {type(raw).__name__}")
    read = _Keys(raw, where)
    category, role = read.word("category", _CATEGORIES), read.word("role", _ROLES)
    rule = UserRule(
        slug=read.slug(),
        reason=read.needed("reason"),
        function=read.pattern("function"),
        file=read.pattern("file"),
        category=category,
        role=role,
        operation=read.text("operation"),
        is_free_site=read.flag("free_site"),
    )
    if not rule.function and not rule.file:
        raise read.wrong("function", "a rule needs function or file, or it would match every frame")
    if role is not None and (category is not None or rule.operation is not None):
        raise read.wrong("role", "a rule has either role, or category and operation")
    if role is not None and rule.is_free_site:
        raise read.wrong("free_site", "a role is that of any stack; free_site is for category and operation")
    if role is None and category is None and rule.operation is None:
        raise read.wrong("category", "a rule needs category, role or operation")
    return rule


class _Keys:
    """The keys of one rule, read with a place in every error."""

    def __init__(self, raw: dict[str, object], where: str) -> None:
        self._raw, self._where = raw, where
        for key in raw:
            if key not in _KEYS:
                raise self.wrong(key, f"no such key; there are: {', '.join(_KEYS)}")

    def wrong(self, key: str, what: str) -> InputError:
        """Make an error about one key; it names the rule, if the rule has a usable name."""
        slug = self._raw.get("slug")
        name = f" (rule {slug})" if isinstance(slug, str) and slug else ""
        return InputError(f"{self._where}.{key}: {what}{name}")

    def text(self, key: str) -> str | None:
        value = self._raw.get(key)
        if value is None:
            return None
        if not isinstance(value, str):
            raise self.wrong(key, f"expected text, got {type(value).__name__}")
        if not value:
            raise self.wrong(key, "expected text, got nothing; leave the key out")
        return value

    def needed(self, key: str) -> str:
        value = self.text(key)
        if value is None:
            raise self.wrong(key, "every rule needs it")
        return value

    def slug(self) -> str:
        value = self.needed("slug")
        if not _SLUG.fullmatch(value):
            raise self.wrong("slug", f"expected small letters, digits and single dashes, got {value!r}")
        return value

    def word(self, key: str, words: Mapping[str, _Word]) -> _Word | None:
        value = self.text(key)
        if value is not None and value not in words:
            raise self.wrong(key, f"expected one of {', '.join(words)}; got {value!r}")
        return None if value is None else words[value]

    def flag(self, key: str) -> bool:
        value = self._raw.get(key, False)
        if not isinstance(value, bool):
            raise self.wrong(key, f"expected true or false, got {type(value).__name__}")
        return value

    def pattern(self, key: str) -> str:
        """Compile a regular expression; empty where the rule has none."""
        value = self.text(key) or ""
        try:
            with warnings.catch_warnings():
                # What a later Python may read otherwise is no pattern to rely on.
                warnings.simplefilter("error", FutureWarning)
                re.compile(value)
        except re.error as error:
            raise self.wrong(
                key, f"no regular expression: {error.msg} at position {error.pos} of {value!r}"
            ) from error
        except (FutureWarning, OverflowError, RecursionError) as error:
            raise self.wrong(key, f"no usable regular expression: {error}") from error
        return value


def _check_lengths(raw: list[object]) -> None:
    """Before any pattern is compiled, which takes up to a millisecond for each of its characters."""
    rules = [item for item in raw if isinstance(item, dict)]
    patterns = [item.get(key) for item in rules for key in ("function", "file")]
    n_characters = sum(len(value) for value in patterns if isinstance(value, str))
    if n_characters > _MOST_CHARACTERS:
        raise InputError(f"its patterns have {n_characters} characters, and may have {_MOST_CHARACTERS}")


def _check_slugs(rules: tuple[UserRule, ...]) -> None:
    """Refuse a slug that names two rules of the user, or one of ours."""
    taken = {ours.slug for ours in FRAME_RULES} | set(REASONS)
    for i, rule in enumerate(rules):
        if rule.slug in taken:
            raise InputError(f"rules[{i}].slug: there is another rule {rule.slug}: choose another name")
        taken.add(rule.slug)


# --- patterns, tried on the names of a file in a process of their own, ended where they take long

# Python's ``re`` cannot be interrupted, and ``(a|a)*b`` takes for ever on forty letters. So each pattern that
# may take long is searched once by another Python, on every system and thread alike; what that did in time is
# then searched here. Another engine would need a package more, and patterns would mean other things.

# Of the wall clock, for a machine that is busy: a trial takes some hundredths of a second. For every 50 MiB
# of names, which are more than any file has, as much again.
_SECONDS = 10.0
_CHARACTERS = 50 << 20
# No repetition, alternative or group: such a pattern looks at every character of a text a few times at most.
_TAKES_LITTLE = re.compile(r"(?:[^\\*+?{|(]|\\.)*", re.DOTALL)
# Prints the number of every pattern before its search. Without the user's site and environment: -I -S.
_CHILD = r"""
import re, sys
n, *texts = sys.stdin.buffer.read().decode("utf-8", "surrogatepass").split("\0")
for i in range(int(n)):
    print(i, flush=True)
    search = re.compile(texts[i]).search
    for text in texts[int(n):]:
        search(text)
"""


def try_patterns(rules: Sequence[UserRule], frames: FrameTable) -> None:
    """Raise InputError that names the first rule whose pattern takes too long on these frames."""
    _try_key("function", [(rule.slug, rule.function) for rule in rules], frames.names)
    _try_key("file", [(rule.slug, rule.file) for rule in rules], frames.filenames)


def seconds_for(n_characters: int) -> float:
    """How long a search of so many characters may take."""
    return _SECONDS * (1 + n_characters / _CHARACTERS)


def _try_key(key: str, patterns: Iterable[tuple[str, str]], texts: Sequence[str]) -> None:
    doubtful = [(slug, pattern) for slug, pattern in patterns if not _TAKES_LITTLE.fullmatch(pattern)]
    if not doubtful or not sys.executable or getattr(sys, "frozen", False):
        return  # where Python is inside another program, there is no Python to start
    distinct = [text.replace("\\", "/").replace("\0", "") for text in dict.fromkeys(texts)]
    shown = [pattern.replace("\0", r"\x00") for _, pattern in doubtful]
    given = "\0".join([str(len(shown)), *shown, *distinct])
    seconds = seconds_for(len(given))
    try:
        subprocess.run(
            [sys.executable, "-I", "-S", "-c", _CHILD],
            input=given.encode("utf-8", "surrogatepass"),
            capture_output=True,
            timeout=seconds,
            check=False,
            creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),  # of Windows
        )
    except subprocess.TimeoutExpired as error:
        number = max(len((error.stdout or b"").split()) - 1, 0)
        raise InputError(
            f"the pattern of {key} takes more than {seconds:.0f} s on the frames of this file (rule "
            f"{doubtful[number][0]}): write it without one repetition inside another, such as (a+)+"
        ) from error
    except OSError:
        return  # no process can be started here
