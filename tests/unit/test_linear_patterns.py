"""Every regular expression that meets text of a file or a log takes time in proportion to it.

Names of functions, files, parameters and annotations are as long as whoever wrote a file likes: a
kilobyte of them must not cost a second. Each expression is tried, by the methods that its module
calls, on long runs made of its own literals and character classes; one that goes back over them
takes minutes. Expressions are found by walking the objects of every module, tables included; those
that are compiled when they are first needed are listed, and no other function may compile one.
"""

import ast
import importlib
import math
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path

import pytest

from snapconv.answers.oom import allocator_messages, message_kinds
from snapconv.answers.oom.message import explain_message
from snapconv.answers.oom.message_text import squeezed
from snapconv.errors import InputError
from snapconv.torch_knowledge.frame_patterns import FRAME_RULES
from tests.drawn_inputs import ALL_INPUTS, sample

try:
    from re import _constants, _parser
except ImportError:  # Python 3.10
    import sre_constants as _constants
    import sre_parse as _parser

PACKAGE = Path(importlib.import_module("snapconv").__file__).parent
# They run inside of the job, on texts of its own.
NOT_OF_FILES = ("guest", "recorder", "simulation", "integrations")
METHODS = ("search", "match", "fullmatch", "sub", "subn", "findall", "finditer", "split")
# From each character of a text a pattern may be matched in so many ways at most, each of them of a
# bounded length: then its time is in proportion to the text, and is not measured.
MOST_WAYS = 10_000
N_CHARACTERS = 8_000
# A quadratic one takes 4 ms and more for so many, and sixteen times as long for four times as many.
SUSPICIOUS_SECONDS, MAX_GROWTH = 0.002, 8
# Functions that compile a pattern when it is first needed: it is in ``later_patterns``, or in the
# tables that ``patterns`` begins with.
COMPILERS = {
    "answers.oom.message_text.squeezed",
    "stacks.stack_roles._finder",  # the patterns of FRAME_RULES, together
    "snapshot.readers.plain_pickle.check_pickle",  # one byte
}
# Parts of a pattern that match one character, or none, in one way.
ONE_WAY = (
    _constants.LITERAL,
    _constants.NOT_LITERAL,
    _constants.IN,
    _constants.ANY,
    _constants.AT,
)
# What meets no text of a file, or is bounded by what calls it.
BOUNDED = {
    "answers.oom.message_text._FIGURE": "it meets patterns of ours alone",
    "torch_knowledge.operation_catalog._OVERLOAD": (
        "it meets word characters alone, and takes all of them"
    ),
}


def patterns() -> Iterator[tuple[str, str, int, str]]:
    """Every pattern as (its name, its text, its flags, the method it is used with)."""
    for rule in FRAME_RULES:
        yield from (
            (f"{rule.slug} {part}", getattr(rule, part), 0, "search")
            for part in ("function", "file")
        )
    for pattern in map(squeezed, later_patterns()):
        yield f"message {pattern.pattern[:60]}", pattern.pattern, pattern.flags, "search"
    for module, tree in modules():
        called = list(_patterns_of(module, tree))
        yield from called
        known = {text for _, text, _, _ in called}
        for name, pattern in _walked(
            vars(importlib.import_module(f"snapconv.{module}")), module, set()
        ):
            if pattern.pattern not in known and isinstance(pattern.pattern, str):
                yield name, pattern.pattern, pattern.flags, "search"


def later_patterns() -> Iterator[str]:
    """Every pattern of messages that is compiled when it is first needed."""
    for kind in (message_kinds.ALLOCATOR, *message_kinds.MESSAGE_KINDS):
        yield from (*kind.seen, *kind.needs, *kind.unless, *kind.also)
    yield from (row[0] for row in (*allocator_messages.WORDS, *allocator_messages.PHASES))


def modules() -> Iterator[tuple[str, ast.Module]]:
    """Every module that may meet text of a file, and its code."""
    for path in sorted(PACKAGE.rglob("*.py")):
        module = path.relative_to(PACKAGE).with_suffix("").as_posix().replace("/", ".")
        if module.split(".")[0] not in NOT_OF_FILES and not module.endswith("__main__"):
            yield module, ast.parse(path.read_text(encoding="utf-8"))


def _walked(values, name: str, seen: set[int]) -> Iterator[tuple[str, re.Pattern]]:
    """Every compiled pattern in an object of ours, by where it is: in tables, tuples and dataclasses too."""
    if id(values) in seen:
        return
    seen.add(id(values))
    if isinstance(values, re.Pattern):
        yield name, values
    elif isinstance(values, Mapping):
        for key, value in list(values.items()):
            yield from _walked(value, f"{name}.{key}", seen)
    elif isinstance(values, (list, tuple, set, frozenset)):
        for index, value in enumerate(values):
            yield from _walked(value, f"{name}[{index}]", seen)
    elif is_dataclass(values) and not isinstance(values, type):
        for field in fields(values):
            yield from _walked(getattr(values, field.name), f"{name}.{field.name}", seen)


def _patterns_of(module: str, tree: ast.Module) -> Iterator[tuple[str, str, int, str]]:
    loaded = None
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        method, owner = node.func.attr, node.func.value
        if method not in METHODS or not isinstance(owner, ast.Name):
            continue
        name = (
            owner.id
            if owner.id != "re"
            else node.args[0].id
            if isinstance(node.args[0], ast.Name)
            else ""
        )
        if owner.id == "re" and isinstance(node.args[0], ast.Constant):
            yield f"{module}:{node.lineno}", node.args[0].value, 0, method
        elif name:
            loaded = loaded or importlib.import_module(f"snapconv.{module}")
            found = getattr(loaded, name, None)
            if isinstance(found, re.Pattern):
                text = (
                    found.pattern
                    if isinstance(found.pattern, str)
                    else found.pattern.decode("latin-1")
                )
                yield f"{module}.{name}", text, found.flags, method
            elif owner.id == "re" and isinstance(found, str):
                yield f"{module}.{name}", found, 0, method


ALL = sorted(
    {(name, text, flags, method) for name, text, flags, method in patterns() if text}, key=str
)


def n_ways(parsed) -> float:
    """In how many ways a pattern may go on from one character, at most; infinite where it has no bound."""
    ways = 1.0
    for operation, value in parsed:
        if operation in (_constants.MAX_REPEAT, _constants.MIN_REPEAT):
            least, most, repeated = value
            ways *= n_ways_repeated(least, most, n_ways(repeated))
        elif operation is _constants.SUBPATTERN:
            ways *= n_ways(value[-1])
        elif operation is _constants.BRANCH:
            ways *= sum(map(n_ways, value[1]))
        elif operation in (_constants.ASSERT, _constants.ASSERT_NOT):
            ways *= n_ways(value[1])
        elif operation not in ONE_WAY:
            ways = math.inf
    return ways


def n_ways_repeated(least: int, most: int, ways: float) -> float:
    if most == _constants.MAXREPEAT or (ways > 1 and most > 20):
        return math.inf
    return sum(ways**n for n in range(least, most + 1))


def pieces(parsed) -> Iterator[str]:
    """Short texts that parts of a pattern match: its literal runs, and members of its classes."""
    literal = ""
    for operation, value in parsed:
        if operation is _constants.LITERAL:
            literal += chr(value)
            continue
        if literal:
            yield literal
        literal = ""
        if operation is _constants.IN:
            yield from (character for character in "a0_A/ .-:" if _is_in(value, character))
        elif operation is _constants.ANY:
            yield "a"
        elif operation in (_constants.MAX_REPEAT, _constants.MIN_REPEAT):
            yield from pieces(value[2])
        elif operation is _constants.SUBPATTERN:
            yield from pieces(value[-1])
        elif operation is _constants.BRANCH:
            for branch in value[1]:
                yield from pieces(branch)
        elif operation in (_constants.ASSERT, _constants.ASSERT_NOT):
            yield from pieces(value[1])
    if literal:
        yield literal


def _is_in(members, character: str) -> bool:
    found = False
    for operation, value in members:
        if operation is _constants.LITERAL:
            found |= chr(value) == character
        elif operation is _constants.RANGE:
            found |= value[0] <= ord(character) <= value[1]
        elif operation is _constants.CATEGORY:
            name = str(value).rpartition("_")[2].lower()
            is_not = "NOT" in str(value)
            member = {
                "word": character.isalnum() or character == "_",
                "digit": character.isdigit(),
                "space": character.isspace(),
            }[name]
            found |= member != is_not
    return found != (members[0][0] is _constants.NEGATE)


def hostile_runs(pattern: str, flags: int) -> list[tuple[str, str]]:
    """Return beginnings and what is repeated after each: every piece, and some of two together.

    A pair is repeated, or its second piece after the first, which a match may need.
    """
    parts = list(dict.fromkeys(pieces(_parser.parse(pattern, flags))))[:12]
    pairs = [(first, second) for first in parts for second in parts if first != second]
    of_two = [("", first + second) for first, second in pairs] + pairs
    return [("", part) for part in parts] + sample(of_two, 36)


def run_of(beginning: str, repeated: str, n_characters: int) -> str:
    return beginning + repeated * (n_characters // len(repeated)) + "\x01"


def seconds(pattern: re.Pattern[str], method: str, text: str, *, tries: int = 1) -> float:
    """How long a method of a pattern takes for a text, at best."""
    taken = []
    for _ in range(tries):
        began = time.process_time()
        if method in ("sub", "subn"):
            pattern.sub("", text)
        elif method == "finditer":
            for _match in pattern.finditer(text):
                pass
        else:
            getattr(pattern, method)(text)
        taken.append(time.process_time() - began)
    return min(taken)


def least_growth(
    pattern: re.Pattern[str], method: str, short: str, long: str, taken: float
) -> float:
    """How many times as long the long text takes, measured again where a busy machine may have been slow.

    What goes back takes sixteen times as long however often it is measured, and what does not four
    times. ``taken`` is how long the short text took.
    """
    taken = min(taken, seconds(pattern, method, short))
    growth = seconds(pattern, method, long) / taken
    for tries in (2, 4, 8):
        if growth >= MAX_GROWTH:
            taken, taken_by_long = (
                seconds(pattern, method, text, tries=tries) for text in (short, long)
            )
            growth = taken_by_long / taken
    return growth


# What is not timed has a proof by counting; scripts/test --all times that too.
TIMED = [
    (name, text, flags, method)
    for name, text, flags, method in ALL
    if ALL_INPUTS or n_ways(_parser.parse(text, flags)) > MOST_WAYS
]


@pytest.mark.parametrize(
    ("name", "pattern", "flags", "method"), TIMED, ids=[f"{n} {m}" for n, _, _, m in TIMED]
)
def test_a_pattern_takes_time_in_proportion_to_the_text(name, pattern, flags, method):
    if name in BOUNDED:
        pytest.skip(BOUNDED[name])
    compiled = re.compile(pattern, flags)
    for run in hostile_runs(pattern, flags):
        short = run_of(*run, N_CHARACTERS)
        taken = seconds(compiled, method, short)
        if taken > SUSPICIOUS_SECONDS:
            growth = least_growth(compiled, method, short, run_of(*run, 4 * N_CHARACTERS), taken)
            assert growth < MAX_GROWTH, f"{growth:.0f} times as long for four times {short[:60]!r}…"


@pytest.mark.parametrize(
    ("pattern", "ways"),
    [
        ("out of memory", 1),
        (r"\d{1,9} of (?:gpu|npu)", 18),
        (r"a{0,3}(?=b{2,3})", 8),
        (r"(?:ab|c){1,2}", 6),
        ("cudnn_rnn.*workspace", math.inf),
        (r"(?:\w{1,9} ){1,40}", math.inf),
        (r"(a)?\1", math.inf),
    ],
)
def test_the_ways_of_a_pattern_are_counted(pattern, ways):
    assert n_ways(_parser.parse(pattern)) == ways


def test_no_function_compiles_a_pattern_unseen():
    found = set()
    for module, tree in modules():
        for function in ast.walk(tree):
            if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
                continue
            for node in ast.walk(function):
                called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
                if called == "re.compile":
                    found.add(f"{module}.{function.name}")
    assert found == COMPILERS


def test_patterns_in_tables_are_walked():
    names = {name for name, *_ in ALL}
    assert {"answers.oom.message._MIDDLE", "answers.oom.message_text._RANK"} <= names
    assert len([name for name in names if name.startswith("message ")]) > 180


def test_the_trial_finds_a_pattern_that_goes_back(monkeypatch):
    monkeypatch.setitem(globals(), "N_CHARACTERS", 3_000)
    with pytest.raises(AssertionError, match="times as long"):
        test_a_pattern_takes_time_in_proportion_to_the_text(
            "slow", "cudnn_rnn.*[Ww]orkspace", 0, "search"
        )


def test_a_run_of_an_ascend_call_costs_no_more_than_its_length():
    text = "aclrtMalloc" * 2_000
    began = time.process_time()
    with pytest.raises(InputError):
        explain_message(text)
    assert time.process_time() - began < 1
