"""A pattern that lists names finds what the regular expression finds."""

import re
from types import SimpleNamespace

import numpy as np
import pytest

from snapconv.snapshot.stack_table import FrameTable
from snapconv.stacks.frame_matching import FrameMatcher
from snapconv.torch_knowledge.frame_patterns import FRAME_RULES

NAMES = (
    *("forward", "forward\n", "forwards", "backward", "my.forward", "", "|", "(backward|grad)", "^forward$"),
    *("__init__", "call", "call\n\n", "grad\r", "größe", "FORWARD", "forward|backward"),
)
FILES = tuple(f"C:\\torch\\file_{i % 2}.py" for i in range(len(NAMES)))
PATTERNS = (
    *("^forward$", "^(backward|grad)$", "^(forward)$", "^(forward|)$", "^größe$", "^forward|backward$"),
    *(
        "^(forward$",
        "forward$",
        "^forward",
        "^()$",
        "^$",
        "^for.ard$",
        "^(?i:forward)$",
        "^(forward|b+ackward)$",
    ),
)


def frames() -> FrameTable:
    return FrameTable(NAMES, FILES, np.zeros(len(NAMES), np.int64))


def matches(function: str, file: str = "") -> list[bool]:
    return FrameMatcher(frames()).matches(SimpleNamespace(function=function, file=file)).tolist()


@pytest.mark.parametrize("pattern", sorted({*PATTERNS, *(rule.function for rule in FRAME_RULES)}))
def test_a_pattern_for_functions_is_searched_in_every_name(pattern):
    try:
        search = re.compile(pattern).search
    except re.error:
        with pytest.raises(re.error):
            matches(pattern)
        return
    assert matches(pattern) == [bool(search(name)) for name in NAMES]


def test_the_file_has_to_fit_too_with_forward_slashes():
    assert matches("^forward$", r"torch/file_0\.py$") == [name == "forward" for name in NAMES]
    assert not any(matches("^forward$", r"torch/file_1\.py$")[:1])


def test_a_file_s_pattern_is_searched_again_for_another_function():
    matcher = FrameMatcher(frames())
    for name in ("forward", "backward"):
        rule = SimpleNamespace(function=f"^{name}$", file=r"_[01]\.py$")
        found = [NAMES[i].strip() for i in np.flatnonzero(matcher.matches(rule))]
        assert set(found) == {name}
