"""``growth``, ``diff`` and ``check`` as a user meets them: exit codes, limits, formats."""

import json
from pathlib import Path

import pytest

FIXTURES = Path(__file__).parents[3] / "fixtures"
GROWING, PERCEPTRON = str(FIXTURES / "growing.pickle"), str(FIXTURES / "perceptron.pickle")
# What the run on paper keeps in every one of its steps: scripts/fixtures/runs.py.
KEPT = 3 << 19


pytestmark = pytest.mark.usefixtures("folder")


def test_growth_names_the_line_and_what_it_adds(snapconv):
    shown = snapconv("growth", GROWING, "--json")
    (device,) = json.loads(shown.out)["devices"]
    (line,) = device["lines"]
    assert shown.code == 0
    assert line["frames"][0] == {"file": "metrics.py", "line": 14, "function": "remember"}
    assert (line["bytes_per_iteration"], line["n_iterations"], line["fate"]) == (
        KEPT,
        6,
        "never freed",
    )


def test_growth_says_why_it_is_not_known(snapconv):
    shown = snapconv("growth", PERCEPTRON)
    assert shown.code == 0
    assert "the trace has 2 iterations, and 3 are needed" in shown.out


def test_a_difference_alone_is_no_failure(snapconv):
    shown = snapconv("diff", PERCEPTRON, GROWING)
    assert shown.code == 0
    assert "metrics.py:14 in remember" in shown.out


def test_a_note_on_one_of_two_files_names_it(snapconv):
    assert "note: new: growth (cuda:0)" in snapconv("diff", PERCEPTRON, GROWING).err
    assert "note: old: growth (cuda:0)" in snapconv("diff", GROWING, PERCEPTRON).err
    assert snapconv("diff", GROWING, GROWING).err == ""  # nothing new


def test_a_file_compared_with_itself_shows_no_difference(snapconv):
    shown = snapconv("diff", GROWING, GROWING, "--json")
    (device,) = json.loads(shown.out)["devices"]
    assert shown.code == 0
    assert device["peak_allocated"]["change_bytes"] == 0
    rows = [
        row for name in ("categories", "lines", "modules", "operations") for row in device[name]
    ]
    assert {row["difference"] for row in rows} == {"same"}


def test_limits_that_hold_end_with_0_and_others_with_7(snapconv):
    assert snapconv("check", GROWING, "--max-peak", "1GiB", "--max-reserved", "1GiB").code == 0
    shown = snapconv("check", GROWING, "--max-peak", "1GiB", "--max-growth", "0")
    assert shown.code == 7
    assert [line[:4] for line in shown.out.splitlines()[:2]] == ["ok  ", "FAIL"]
    assert "1 of 2 limits did not hold" in shown.err
    assert "did not hold" not in shown.out  # not twice


def test_limits_of_categories_are_added_up(snapconv):
    shown = snapconv(
        "check", GROWING, "--max-category", "weight=1KiB", "--max-category", "input=1GiB"
    )
    assert shown.code == 7
    assert [line[:4] for line in shown.out.splitlines()[:2]] == ["FAIL", "ok  "]


def test_a_baseline_is_a_limit_too(snapconv):
    assert snapconv("check", GROWING, "--baseline", PERCEPTRON, "--fail-over", "2%").code == 7
    assert snapconv("check", GROWING, "--baseline", PERCEPTRON, "--fail-over", "50%").code == 0
    assert snapconv("check", PERCEPTRON, "--baseline", GROWING, "--fail-over", "0%").code == 0


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("--max-peak", "38"),
        ("--max-category", "weight"),
        ("--max-category", "weights=1GiB"),
        ("--max-growth", "1"),
        ("--fail-over", "2", "--baseline", PERCEPTRON),
        ("--fail-over", "2%"),
        ("--baseline", PERCEPTRON),
        ("--max-peak", "1GiB", "--format", "json"),
    ],
)
def test_a_wrong_command_line_ends_with_2(snapconv, arguments):
    assert snapconv("check", GROWING, *arguments).code == 2


def test_every_format_has_every_limit(snapconv):
    limits = ("--max-peak", "1GiB", "--max-growth", "0")
    assert len(json.loads(snapconv("check", GROWING, *limits, "--json").out)["checks"]) == 2
    assert snapconv("check", GROWING, *limits, "--format", "github").out.count("\n| ") == 3


@pytest.mark.parametrize("name", ["no_devices", "empty_snapshot", "host_only"])
def test_a_file_without_memory_of_a_gpu_passes_no_check(snapconv, name):
    """Such as a recording leaves that was never switched on."""
    shown = snapconv("check", FIXTURES / f"{name}.pickle", "--max-peak", "1GiB")
    assert shown.code in (3, 7)
    assert "ok" not in shown.out
