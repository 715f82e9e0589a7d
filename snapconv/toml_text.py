"""TOML of the user as plain values, at a cost in proportion to its length.

Rules of their own and limits in pyproject.toml are small, and come from repositories that anybody writes to.
The standard library's reader takes memory and time by the square of the parts of a dotted key, and raises
RecursionError where brackets nest deep. Imports NumPy and torch nowhere.
"""

import re
import sys
from typing import Any

MOST_TOML_BYTES = 4 << 20
# Far more than people write; a key of so many parts takes 2 kB at most.
_MOST_PARTS, _MOST_DIGITS = 16, 1000
# Strings and comments, each to its end or to where it should have ended, so that none is looked at twice.
_STRING_OR_COMMENT = re.compile(
    r'''"""(?:\\.|[^\\])*?(?:"{3,5}|\Z)|"(?:\\.|[^"\\\n])*(?:"|(?=\n)|\Z)'''
    r"""|'''.*?(?:'{3,5}|\Z)|'[^'\n]*(?:'|(?=\n)|\Z)|\#[^\n]*""",
    re.DOTALL,
)
# A key of bare words and of strings, which are "x" here; a number; and words between other signs.
_RUN = re.compile(r"[\w. \t-]+")
_DIGITS = re.compile(r"[\d_]+")


def read_toml(text: bytes) -> dict[str, Any]:
    """Read a text as TOML; raises ValueError where it is damaged, or far beyond what people write."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    if len(text) > MOST_TOML_BYTES:
        raise ValueError(f"it may have {MOST_TOML_BYTES >> 20} MiB, and has more")
    decoded = text.decode()
    _refuse_costly_words(decoded)
    try:
        values: dict[str, Any] = tomllib.loads(decoded)
    except RecursionError:
        raise ValueError("nested too deep") from None
    return values


def _refuse_costly_words(text: str) -> None:
    without_strings = _STRING_OR_COMMENT.sub(lambda found: "x" + "\n" * found[0].count("\n"), text)
    for run in _RUN.finditer(without_strings):
        has_parts = run[0].count(".") >= _MOST_PARTS
        if has_parts or max(map(len, _DIGITS.findall(run[0])), default=0) > _MOST_DIGITS:
            line = without_strings.count("\n", 0, run.start()) + 1
            most = f"a key may have {_MOST_PARTS} parts" if has_parts else f"a number {_MOST_DIGITS} digits"
            raise ValueError(f"line {line}: {most}, and this has more")
