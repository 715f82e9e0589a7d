"""Faults and exceeded limits as SARIF 2.1.0, which editors and code scanning show at the line.

A result without a line of the project is at the file that was read. Nothing is a result that holds.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from snapconv.answers.advice.findings import Advice
from snapconv.answers.check import Check
from snapconv.stacks.paths import is_absolute, normal
from snapconv.stacks.project_lines import SourceLine
from snapconv.units import device_name, format_bytes
from snapconv.version import VERSION

_SCHEMA = (
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/os/schemas/sarif-schema-2.1.0.json"
)
_ROOT = "%SRCROOT%"


@dataclass(frozen=True, slots=True)
class Result:
    """A fault or a limit that does not hold; ``level`` is error, warning or note."""

    rule: str
    level: str
    message: str
    line: SourceLine | None


def fault_results(advices: Iterable[Advice]) -> list[Result]:
    """Return every fault of every device; one that is likely is a note."""
    results = []
    for advice in advices:
        for fault in advice.faults:
            size = format_bytes(fault.held_bytes)
            device = device_name(advice.device)
            peak_bytes = f"{size} at the peak of {device}"
            message = f"{fault.heading}: {fault.what} {peak_bytes}. {fault.how[0]}"
            level = "warning" if fault.is_certain else "note"
            line = fault.where or fault.line
            results.append(Result(f"fault/{fault.kind}", level, message, line))
    return results


def limit_results(checks: Iterable[Check]) -> list[Result]:
    """Return every limit that does not hold; one that cannot be checked is a warning."""
    results = []
    for check in checks:
        if not check.holds:
            rule = f"limit/{check.what.replace(' ', '-')}"
            level = "warning" if check.is_unknown else "error"
            results.append(Result(rule, level, f"{check.sentence}.", check.line))
    return results


def sarif_document(
    results: Sequence[Result], file: Path, remarks: Iterable[str] = ()
) -> dict[str, object]:
    """Return the log of one run about a file, as JSON-ready values.

    ``remarks`` say what could not be looked for: without them no result would look like no fault.
    """
    rule_ids = sorted({result.rule for result in results})
    rules = []
    for rule in rule_ids:
        description = rule.replace("/", ": ").replace("-", " ")
        rules.append({"id": rule, "shortDescription": {"text": description}})
    driver = {"name": "snapconv", "version": VERSION, "rules": rules}
    rows = [_result_values(result, rule_ids.index(result.rule), file) for result in results]
    notifications = [{"level": "note", "message": {"text": remark}} for remark in remarks]
    invocation = {"executionSuccessful": True, "toolExecutionNotifications": notifications}
    run = {"tool": {"driver": driver}, "invocations": [invocation], "results": rows}
    return {"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}


def _result_values(result: Result, rule_index: int, file: Path) -> Mapping[str, object]:
    location = {"artifactLocation": _artifact(file.as_posix())}
    if result.line is not None:
        location = {"artifactLocation": _artifact(result.line.file_path)}
        if result.line.line_number > 0:
            location["region"] = {"startLine": result.line.line_number}
    return {
        "ruleId": result.rule,
        "ruleIndex": rule_index,
        "level": result.level,
        "message": {"text": result.message},
        "locations": [{"physicalLocation": location}],
    }


def _artifact(path: str) -> dict[str, Any]:
    """Name a file by a URI, relative to the project's folder where the path is."""
    path = normal(path)
    if not is_absolute(path):
        return {"uri": quote(path), "uriBaseId": _ROOT}
    return {"uri": f"file:///{quote(path.lstrip('/'), safe='/:')}"}
