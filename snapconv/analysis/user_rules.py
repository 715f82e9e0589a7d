"""A user's own frame rules: from a file to rules, and from rules to the stacks that they match.

They are asked before every rule of our own. The file is TOML or JSON, described in docs/rules.md; what
is wrong in it is an InputError that names the rule, the key and the position.
"""

import json
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from snapconv.analysis.categories import Category
from snapconv.analysis.columns import read_only
from snapconv.analysis.reasons import DECISION_RULES
from snapconv.analysis.replay import AllocationTable
from snapconv.analysis.rules import FRAME_RULES, FrameRule, Role
from snapconv.analysis.stack_roles import matching_frames
from snapconv.errors import InputError
from snapconv.notes import Note
from snapconv.snapshot.stacks import StackTable

_Word = TypeVar("_Word", Category, Role)
BoolColumn = NDArray[np.bool_]

_TEXTS = ("slug", "reason", "category", "role", "function", "file", "operation")
_KEYS = (*_TEXTS, "free_site")
_SLUG = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_CATEGORIES = {category.label: category for category in Category if category is not Category.UNKNOWN}
_ROLES = {role.name.lower(): role for role in Role}
# What FrameRule.seen says of our own rules: the releases of torch.
_SEEN = "a rule of the user"


@dataclass(frozen=True, slots=True)
class UserRule:
    """One rule of the user; ``slug`` stands in every output as those of our own rules do.

    ``function`` and ``file`` are searched as in a FrameRule. It gives a matching allocation its
    ``category``, its ``operation``, or both; ``role`` instead says what its stack is. With
    ``is_free_site`` the stack that freed the allocation is looked at, not the one that made it.
    """

    slug: str
    reason: str
    function: str
    file: str
    category: Category | None
    role: Role | None
    operation: str | None
    is_free_site: bool


@dataclass(frozen=True, slots=True)
class UserRules:
    """Rules in the order in which they are asked; ``has[rule, stack]`` says which stack each matches."""

    rules: tuple[UserRule, ...]
    has: BoolColumn

    def of(self, number: int, stack_ids: NDArray[np.int32]) -> BoolColumn:
        """Whether a rule matches each of these stacks; False for -1."""
        if not self.has.shape[1]:
            return np.zeros(len(stack_ids), np.bool_)
        return np.asarray((stack_ids >= 0) & self.has[number][stack_ids])

    def matches(self, number: int, allocations: AllocationTable, *, free_sites_known: bool) -> BoolColumn:
        """The allocations that a rule is about: by the stack that made them, or that freed them.

        Where the file does not say who freed what, a rule about that matches nothing.
        """
        if not self.rules[number].is_free_site:
            return self.of(number, allocations.stack_id)
        return self.of(number, allocations.free_stack_id) & free_sites_known

    def about(self, row: int, allocations: AllocationTable, *, free_sites_known: bool) -> Iterator[UserRule]:
        """The rules that match one allocation."""
        for number, rule in enumerate(self.rules):
            if self.matches(number, allocations, free_sites_known=free_sites_known)[row]:
                yield rule


NO_RULES = UserRules((), np.zeros((0, 0), np.bool_))


def match_rules(rules: Sequence[UserRule], stacks: StackTable) -> UserRules:
    """Search the frames of every stack, each distinct frame once per rule."""
    stack_of_frame = np.repeat(np.arange(len(stacks)), np.diff(stacks.offsets))
    has = np.zeros((len(rules), len(stacks)), np.bool_)
    for number, rule in enumerate(rules):
        has[number, stack_of_frame[matching_frames(stacks.frames, rule)[stacks.frame_ids]]] = True
    return read_only(UserRules(tuple(rules), has))


def rule_notes(user: UserRules, *, free_sites_known: bool) -> Iterator[Note]:
    """A note for every rule that cannot have any effect: its author should hear of a wrong pattern."""
    for rule, has in zip(user.rules, user.has, strict=True):
        if not has.any():
            yield Note("unused-rule", f"your rule {rule.slug} matches no frame: check its function and file")
        elif rule.is_free_site and not free_sites_known:
            yield Note(
                "unused-rule",
                f"your rule {rule.slug} is about frees, and the file does not say who freed what: record "
                "with context='all'",
            )


def frame_rules(rules: Sequence[UserRule]) -> tuple[FrameRule, ...]:
    """The rules that give roles, and after them our own: an earlier one goes on record."""
    mine = [
        FrameRule(rule.slug, rule.role, rule.function, rule.file, rule.reason, _SEEN)
        for rule in rules
        if rule.role is not None
    ]
    return (*mine, *FRAME_RULES)


def read_rules(path: str | Path) -> tuple[UserRule, ...]:
    """Read a file of rules; raises InputError that names the file and the place in it."""
    path = Path(path)
    try:
        return parse_rules(_values(path))
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def parse_rules(values: object) -> tuple[UserRule, ...]:
    """Turn what a file of rules holds into rules; raises InputError that names the place."""
    raw = values.get("rules") if isinstance(values, dict) else None
    if not isinstance(values, dict) or not isinstance(raw, list):
        raise InputError('no list of rules in this: begin each with [[rules]], or in JSON {"rules": [...]}')
    if unknown := [key for key in values if key != "rules"]:
        raise InputError(f"{unknown[0]}: no such key; there is only: rules")
    rules = tuple(_rule(item, f"rules[{i}]") for i, item in enumerate(raw))
    _check_slugs(rules)
    return rules


def _values(path: Path) -> object:
    """What the file says, in plain values."""
    readers: dict[str, Callable[[str], object]] = {".json": json.loads, ".toml": _read_toml}
    if path.suffix.lower() not in readers:
        raise InputError("rules are read from a file whose name ends in .toml or .json")
    try:
        if path.exists() and not path.is_file():  # opening a pipe may wait for ever, a device never ends
            raise InputError("expected a file, not a folder, pipe or device: save it to a file first")
        text = path.read_bytes().decode("utf-8-sig")
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


def _read_toml(text: str) -> object:
    if sys.version_info >= (3, 11):
        import tomllib

        return tomllib.loads(text)
    raise InputError("TOML needs Python 3.11 or newer: write the same rules as JSON")


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
        raise read.wrong("role", "a rule says either role, or category and operation")
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
        """An error about one key; it names the rule, if the rule has a usable name."""
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
        """A regular expression that compiles; empty where the rule does not say."""
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


def _check_slugs(rules: tuple[UserRule, ...]) -> None:
    """A slug names one rule: neither two of the user's nor one of ours."""
    taken = {ours.slug for ours in FRAME_RULES} | {ours.slug for ours in DECISION_RULES}
    for i, rule in enumerate(rules):
        if rule.slug in taken:
            raise InputError(f"rules[{i}].slug: there is another rule {rule.slug}: choose another name")
        taken.add(rule.slug)
