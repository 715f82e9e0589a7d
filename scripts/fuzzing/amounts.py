"""Output of a command -> amounts of memory that cannot be: negative bytes, and shares above 100 %.

Differences keep their sign: their keys in JSON, and the commands that print them, are listed here.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

# Keys of JSON whose numbers are differences, and may be negative.
DIFFERENCES = frozenset({"change_bytes"})
# The kind of a finding about a job whose `n_bytes` is the difference from the median of the ranks.
DIFFERENT_RANK = "outlier"
# Commands whose text shows differences, with their sign.
SIGNED = ("diff",)
_AMOUNT = re.compile(r"(?<![\w.])-\d[\d.]* (?:B|[KMGT]iB)\b")
_SHARE = re.compile(r"(?<![\w.])(-?\d+(?:\.\d+)?) ?%")
_SIZE_KEY = re.compile(
    r"bytes|size|reserved|allocated|peak|total|free|active|requested|capacity|limit"
)
_SHARE_KEY = re.compile(r"share|percent|fraction")


def impossible_text(text: str) -> Iterator[str]:
    """Yield the lines that show a negative amount of memory, or a share above 100 %."""
    for line in text.splitlines():
        shares = map(float, _SHARE.findall(line))
        if _AMOUNT.search(line) or any(not 0 <= share <= 100 for share in shares):
            yield line


def impossible_json(text: str) -> Iterator[str]:
    """Yield the places of such numbers in a JSON document."""
    yield from impossible_values(json.loads(text))


def impossible_values(value: Any) -> Iterator[str]:
    """Yield the places of such numbers in plain values."""
    yield from _impossible(value, "", "")


def _impossible(value: Any, key: str, place: str) -> Iterator[str]:
    if isinstance(value, dict):
        is_difference = value.get("kind") == DIFFERENT_RANK
        for name, inner in value.items():
            if not (is_difference and name == "n_bytes"):
                yield from _impossible(inner, name, f"{place}.{name}")
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            yield from _impossible(inner, key, f"{place}[{i}]")
    elif isinstance(value, int | float) and _is_impossible(value, key):
        yield f"{place} = {value}"


def _is_impossible(value: float, key: str) -> bool:
    if isinstance(value, bool) or key in DIFFERENCES or key.endswith("event"):
        return False
    return (value < 0 and _SIZE_KEY.search(key) is not None) or (
        value > 1 and _SHARE_KEY.search(key) is not None
    )
