"""`--format sarif`: what SARIF 2.1.0 requires of a log, and the lines of faults and limits."""

import json
from pathlib import Path

import pytest

from tests.builders import MIB, TraceBuilder, frame

FIXTURES = Path(__file__).parents[3] / "fixtures"
# Of the objects that are written: the properties that the published schema requires, and all that
# it allows of those here. Its objects allow no others.
REQUIRED = {
    "log": {"version", "runs"},
    "run": {"tool"},
    "driver": {"name"},
    "rule": {"id"},
    "result": {"message"},
    "invocation": {"executionSuccessful"},
    "notification": {"message"},
}
ALLOWED = {
    "log": {"$schema", "version", "runs"},
    "run": {"tool", "invocations", "results"},
    "driver": {"name", "version", "rules"},
    "rule": {"id", "shortDescription"},
    "result": {"ruleId", "ruleIndex", "level", "message", "locations"},
    "invocation": {"executionSuccessful", "toolExecutionNotifications"},
    "notification": {"level", "message"},
}
LEVELS = {"none", "note", "warning", "error"}


def checked(kind, value):
    assert REQUIRED[kind] <= value.keys() <= ALLOWED[kind]
    return value


def results_of(text):
    """The results of a log, each as rule, level, file, line and message."""
    log = checked("log", json.loads(text))
    assert log["version"] == "2.1.0"
    (run,) = log["runs"]
    checked("run", run)
    driver = checked("driver", run["tool"]["driver"])
    rules = [checked("rule", rule)["id"] for rule in driver["rules"]]
    assert len(set(rules)) == len(rules)
    for notification in checked("invocation", run["invocations"][0])["toolExecutionNotifications"]:
        assert checked("notification", notification)["message"]["text"]
    for result in run["results"]:
        checked("result", result)
        assert rules[result["ruleIndex"]] == result["ruleId"]
        assert result["level"] in LEVELS
        (location,) = result["locations"]
        place = location["physicalLocation"]
        assert place["artifactLocation"].keys() <= {"uri", "uriBaseId"}
        assert " " not in place["artifactLocation"]["uri"]
        line = place["region"]["startLine"] if "region" in place else None
        assert line is None or line >= 1
        yield (
            result["ruleId"],
            result["level"],
            place["artifactLocation"]["uri"],
            line,
            result["message"]["text"],
        )


def job(tmp_path, *frames):
    trace = TraceBuilder().segment(20 * MIB).alloc(2 * MIB, frames=list(frames))
    return trace.alloc(512).write(tmp_path / "run.pickle")


def test_a_fault_is_at_the_line_to_change(snapconv):
    code, out, _ = snapconv("advise", FIXTURES / "ranks/rank5.capture", "--format", "sarif")
    assert code == 0
    ((rule, level, file, line, message),) = results_of(out)
    assert (rule, level, file, line) == ("fault/growing", "note", "train.py", 27)
    assert message.startswith("likely fault: Each iteration adds 1.00 MiB at train.py:27.")


def test_a_limit_that_does_not_hold_is_at_the_line_with_most_of_it(tmp_path, snapconv):
    path = job(tmp_path, frame("load", "/home/me/project/a model.py", 31))
    limits = ("--max-peak", "1MiB", "--max-reserved", "1GiB", "--format", "sarif")
    code, out, err = snapconv("check", path, *limits)
    assert code == 7
    assert "1 of 2 limits did not hold" in err
    assert list(results_of(out)) == [
        (
            "limit/peak-allocated",
            "error",
            "a%20model.py",
            31,
            "peak allocated of cuda:0: 2.00 MiB, 1.00 MiB over the limit of 1.00 MiB.",
        )
    ]


def test_limits_that_hold_are_no_results(tmp_path, snapconv):
    code, out, _ = snapconv("check", job(tmp_path), "--max-peak", "1GiB", "--format", "sarif")
    assert (code, list(results_of(out))) == (0, [])


def test_a_limit_that_cannot_be_checked_is_a_warning(tmp_path, snapconv):
    trace = TraceBuilder().segment().alloc(512, traced=False)
    path = trace.free().alloc(1024).write(tmp_path / "late.pickle")
    _, out, _ = snapconv("check", path, "--max-peak", "1GiB", "--format", "sarif")
    ((rule, level, _, _, message),) = results_of(out)
    assert (rule, level) == ("limit/peak-allocated", "warning")
    assert "is not known" in message


def test_a_result_without_a_line_is_at_the_file_that_was_read(tmp_path, snapconv, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = TraceBuilder().segment(20 * MIB).alloc(2 * MIB, frames=[]).write(tmp_path / "no.pickle")
    command = ("check", path.name, "--max-peak", "1MiB", "--format", "sarif")
    ((_, _, file, line, _),) = results_of(snapconv(*command).out)
    assert (file, line) == ("no.pickle", None)


@pytest.mark.parametrize("name", ["segments_only.pickle", "host_only.pickle"])
def test_what_could_not_be_looked_for_is_said(name, snapconv):
    out = snapconv("advise", FIXTURES / name, "--format", "sarif").out
    assert list(results_of(out)) == []
    (notification,) = json.loads(out)["runs"][0]["invocations"][0]["toolExecutionNotifications"]
    assert ": " in notification["message"]["text"]


def test_a_log_is_not_broken_into_lines_for_a_terminal(snapconv, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    out = snapconv("advise", FIXTURES / "ranks/rank5.capture", "--format", "sarif").out
    assert len(list(results_of(out))) == 1
