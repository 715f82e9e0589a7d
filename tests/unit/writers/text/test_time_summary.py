"""What the terminal and the JSON say of a run time report."""

from pathlib import Path

import pytest

from snapconv.writers.text.summary import summary_lines
from tests.timing_builder import ROOT, small_trace, time_report

OUTPUT = Path("run.time.sqlite")


@pytest.fixture
def report_of(tmp_path):
    def build(root=ROOT, **changes):
        return time_report(tmp_path, root=root, **changes)

    return build


def lines_of(report):
    return list(summary_lines((), (OUTPUT, report)))[1:]


def test_the_summary_has_phases_coverage_and_what_took_longest(report_of):
    assert lines_of(report_of()) == [
        "cuda:1  forward 10.0 ms, backward 20.0 ms, optimizer 4.0 ms, in iteration 3",
        "  the median of 3 timed iterations; its operations are 95.0 % of forward and 97.5 % of backward",
        "  operations, forward and backward",
        "         16.0 ms  linear, 1 call",
        "          7.5 ms  cross_entropy, 1 call",
        "          5.0 ms  relu, 1 call",
        "          500 us  MulBackward0, 1 call",
        f"  project lines, below {ROOT}",
        "         16.0 ms  model/net.py:12 in forward, 1 call",
        "          7.5 ms  train.py:41 in step, 1 call",
        "          5.0 ms  model/net.py:13 in forward, 1 call",
        f"  written: {OUTPUT.absolute()}",
    ]


def test_a_phase_that_did_not_happen_is_not_mentioned(report_of):
    empty = {name: [] for name in small_trace()["calls"]}
    lines = lines_of(report_of(iterations=[{"iteration": 2, "forward_ms": 8}], calls=empty))
    assert lines[0] == "cuda:1  forward 8.0 ms, in iteration 2"
    assert lines[1] == "  the median of 1 timed iteration; its operations are 0.0 % of forward"
    lines = lines_of(report_of(iterations=[{"iteration": 2}], calls=empty))
    assert lines[0] == "cuda:1  nothing was timed, in iteration 2"
    assert lines[1] == "  the median of 1 timed iteration; it has no forward and no backward"


def test_a_report_without_lines_of_the_project_is_named_as_such(report_of):
    assert "    none: no timed operation was called from a file of the project" in lines_of(
        report_of("/else")
    )


def test_the_values_are_those_of_the_report(report_of):
    values = report_of(clock="cpu", simulated=True).to_json(OUTPUT)
    assert (values["output"], values["device"], values["clock"]) == ("run.time.sqlite", 1, "cpu")
    assert (values["is_simulated"], values["iteration"], values["n_entries"]) == (True, 3, 3)
    assert values["iterations"][0] == {
        "iteration": 3,
        "forward_ms": 10.0,
        "backward_ms": 20.0,
        "optimizer_ms": 4.0,
        "forward_coverage": 0.95,
        "backward_coverage": 0.975,
    }
    assert values["operations"][0] == {"name": "linear", "n_calls": 1, "forward_ms": 4.0, "backward_ms": 12.0}
    assert values["lines"][0]["file"] == "model/net.py"
    assert [note["slug"] for note in values["notes"]] == ["simulated-times"]
