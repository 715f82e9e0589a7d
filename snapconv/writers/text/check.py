"""Texts for ``snapconv check``: for a terminal, a job's summary on GitHub, and as JUnit XML.

Names out of files are escaped for each: text for a terminal, Markdown, XML.
"""

import re
from collections.abc import Iterator, Sequence
from xml.sax.saxutils import escape, quoteattr

from snapconv.answers.check import Check, CheckedFile
from snapconv.units import printable


def check_lines(found: CheckedFile) -> Iterator[str]:
    """Show one line for each limit, and the overall result."""
    for check in found.checks:
        yield f"{'ok  ' if check.holds else 'FAIL'}  {check.sentence}"
    yield found.sentence


def github_lines(found: CheckedFile) -> Iterator[str]:
    """Write a table in Markdown for ``$GITHUB_STEP_SUMMARY``."""
    yield f"### {_markdown(found.sentence)}"
    yield ""
    yield "| | limit |"
    yield "|---|---|"
    for check in found.checks:
        yield f"| {'✅' if check.holds else '❌'} | {_markdown(check.sentence)} |"


def fenced(lines: Sequence[str]) -> Iterator[str]:
    """Lines as a block of code in Markdown, which nothing in them can end."""
    text = [printable(line) for line in lines]
    longest = max((len(run) for line in text for run in re.findall("`+", line)), default=0)
    fence = "`" * max(3, longest + 1)
    yield from (f"{fence}text", *text, fence)


def junit_text(found: CheckedFile) -> str:
    """Write the checks as the test cases of one suite, as build servers read them."""
    n_failed = sum(not check.holds for check in found.checks)
    suite = f'name="snapconv check" tests="{len(found.checks)}" failures="{n_failed}" errors="0"'
    cases = "".join(f"    {_case(check, found.file)}\n" for check in found.checks)
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
