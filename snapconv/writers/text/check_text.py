"""What ``snapconv check`` prints: for people, for machines, for a job's summary on GitHub, and as JUnit XML.

Names out of files are escaped for each: text for a terminal, Markdown, XML.
"""

import re
from collections.abc import Iterator, Sequence
from xml.sax.saxutils import escape, quoteattr

from snapconv.answers.budgets import Check
from snapconv.units import counted, printable


def check_lines(checks: Sequence[Check], file: str) -> Iterator[str]:
    """One line for each limit, and what came of them all."""
    for check in checks:
        yield f"{'ok  ' if check.holds else 'FAIL'}  {check.sentence}"
    yield verdict(checks, file)


def verdict(checks: Sequence[Check], file: str) -> str:
    """What came of all limits."""
    n_failed = sum(not check.holds for check in checks)
    limits = counted(len(checks), "limit")
    return f"{file}: {n_failed} of {limits} did not hold" if n_failed else f"{file}: {limits} held"


def check_values(checks: Sequence[Check], file: str) -> dict[str, object]:
    """The same for machines; docs/reference/json.md has the schema."""
    return {
        "file": file,
        "holds": all(check.holds for check in checks),
        "checks": [
            {
                "what": check.what,
                "device": check.device,
                "holds": check.holds,
                "limit_bytes": check.limit_bytes,
                "actual_bytes": None if check.unknown else check.actual_bytes,
                "unknown": check.unknown or None,
                "remark": check.remark or None,
            }
            for check in checks
        ],
    }


def github_lines(checks: Sequence[Check], file: str) -> Iterator[str]:
    """A table in Markdown for ``$GITHUB_STEP_SUMMARY``."""
    yield f"### {_markdown(verdict(checks, file))}"
    yield ""
    yield "| | limit |"
    yield "|---|---|"
    for check in checks:
        yield f"| {'✅' if check.holds else '❌'} | {_markdown(check.sentence)} |"


def fenced(lines: Sequence[str]) -> Iterator[str]:
    """Lines as a block of code in Markdown, which nothing in them can end."""
    text = [printable(line) for line in lines]
    longest = max((len(run) for line in text for run in re.findall("`+", line)), default=0)
    fence = "`" * max(3, longest + 1)
    yield from (f"{fence}text", *text, fence)


def junit_text(checks: Sequence[Check], file: str) -> str:
    """The checks as the test cases of one suite, as build servers read them."""
    n_failed = sum(not check.holds for check in checks)
    suite = f'name="snapconv check" tests="{len(checks)}" failures="{n_failed}" errors="0"'
    cases = "".join(f"    {_case(check, file)}\n" for check in checks)
    return (
        '<?xml version="1.0" encoding="utf-8"?>\n'
        f"<testsuites>\n  <testsuite {suite}>\n{cases}  </testsuite>\n</testsuites>\n"
    )


def _case(check: Check, file: str) -> str:
    name = quoteattr(printable(f"{check.what} (device {check.device})"))
    opened = f"<testcase classname={quoteattr(printable(file))} name={name}"
    if check.holds:
        return f"{opened}/>"
    message = printable(check.sentence)
    return f"{opened}><failure message={quoteattr(message)}>{escape(message)}</failure></testcase>"


def _markdown(text: str) -> str:
    """Text as Markdown shows it, with everything escaped that could be markup."""
    return re.sub(r"([\\`*_{}\[\]<>()#+!|~&@-])", r"\\\1", printable(text))
