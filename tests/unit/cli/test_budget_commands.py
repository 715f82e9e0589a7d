"""``growth``, ``diff`` and ``check`` as a user meets them: exit codes, limits from a file, formats."""

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from snapconv.cli.app import main

FIXTURES = Path(__file__).parents[3] / "fixtures"
GROWING, PERCEPTRON = str(FIXTURES / "growing.pickle"), str(FIXTURES / "perceptron.pickle")
# What the run on paper keeps in every one of its steps: scripts/fixtures/runs.py.
KEPT = 3 << 19


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        code = main([*map(str, arguments)])
        return code, capsys.readouterr()

    return run


def write_limits(folder, text):
    (folder / "pyproject.toml").write_text(f"[tool.snapconv.check]\n{text}\n", encoding="utf-8")


def test_growth_names_the_line_and_what_it_adds(run):
    code, shown = run("growth", GROWING, "--json")
    (device,) = json.loads(shown.out)["devices"]
    (line,) = device["lines"]
    assert code == 0
    assert line["frames"][0] == {"file": "metrics.py", "line": 14, "function": "remember"}
    assert (line["bytes_per_iteration"], line["n_iterations"], line["fate"]) == (KEPT, 6, "never freed")


def test_growth_says_why_it_is_not_known(run):
    code, shown = run("growth", PERCEPTRON)
    assert code == 0
    assert "the file has 2 iterations, and growth shows from 3 on" in shown.out


def test_a_difference_alone_is_no_failure(run):
    code, shown = run("diff", PERCEPTRON, GROWING)
    assert code == 0
    assert "metrics.py:14 in remember" in shown.out


def test_a_note_on_one_of_two_files_names_it(run):
    assert "note: new: growth (cuda:0)" in run("diff", PERCEPTRON, GROWING)[1].err
    assert "note: old: growth (cuda:0)" in run("diff", GROWING, PERCEPTRON)[1].err
    assert "note: growth (cuda:0)" in run("diff", GROWING, GROWING)[1].err


def test_a_peak_over_the_allowance_ends_with_7(run):
    assert run("diff", PERCEPTRON, GROWING, "--fail-over", "2%")[0] == 7
    assert run("diff", PERCEPTRON, GROWING, "--fail-over", "50%")[0] == 0
    assert run("diff", GROWING, PERCEPTRON, "--fail-over", "0%")[0] == 0


def test_a_file_compared_with_itself_shows_no_difference(run):
    code, shown = run("diff", GROWING, GROWING, "--fail-over", "0%", "--json")
    (device,) = json.loads(shown.out)["devices"]
    assert code == 0
    assert device["peak_allocated"]["change_bytes"] == 0
    rows = [row for name in ("categories", "lines", "modules", "operations") for row in device[name]]
    assert {row["difference"] for row in rows} == {"same"}


def test_limits_that_hold_end_with_0_and_others_with_7(run):
    assert run("check", GROWING, "--max-peak", "1GiB", "--max-reserved", "1GiB")[0] == 0
    code, shown = run("check", GROWING, "--max-peak", "1GiB", "--max-growth", "0")
    assert code == 7
    assert [line[:4] for line in shown.out.splitlines()[:2]] == ["ok  ", "FAIL"]
    assert "1 of 2 limits did not hold" in shown.err


def test_a_baseline_is_a_limit_too(run):
    assert run("check", GROWING, "--baseline", PERCEPTRON, "--fail-over", "2%")[0] == 7
    assert run("check", PERCEPTRON, "--baseline", GROWING, "--fail-over", "2%")[0] == 0


def test_limits_may_stand_in_pyproject_of_a_folder_above(run, tmp_path, monkeypatch):
    write_limits(tmp_path, 'max-peak = "1GiB"\nmax-growth = 0\nmax-category = { weight = "1KiB" }')
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    code, shown = run("check", GROWING)
    assert code == 7
    assert [line[:4] for line in shown.out.splitlines()[:3]] == ["ok  ", "FAIL", "FAIL"]


def test_the_command_line_comes_before_the_file(run, tmp_path):
    write_limits(tmp_path, 'max-peak = "1KiB"\nfail-over = "50%"')
    assert run("check", GROWING)[0] == 7
    assert run("check", GROWING, "--max-peak", "1GiB")[0] == 0
    assert run("check", GROWING, "--max-peak", "1GiB", "--baseline", PERCEPTRON)[0] == 0
    assert run("check", GROWING, "--max-peak", "1GiB", "--baseline", PERCEPTRON, "--fail-over", "1%")[0] == 7


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('max-peek = "1GiB"', "there is no 'max-peek'"),
        ("max-peak = 38", "max-peak: expected text"),
        ('max-peak = "38"', "max-peak: expected a size with its unit"),
        ('fail-over = "2"', "fail-over: expected a part in per cent"),
        ("max-category = 3", "max-category: expected a table"),
        ('max-category = { weights = "1GiB" }', "max-category: there is no category 'weights'"),
        ("max-peak =", "is no TOML"),
        ("max-growth = true", "max-growth: expected text"),
    ],
)
def test_a_mistake_in_the_file_is_named(run, tmp_path, text, message):
    write_limits(tmp_path, text)
    code, shown = run("check", GROWING, "--baseline", PERCEPTRON)
    assert code == 3
    assert message in shown.err


def test_another_project_file_is_left_alone(run, tmp_path):
    (tmp_path / "pyproject.toml").write_text("[tool.other\n", encoding="utf-8")
    assert run("check", GROWING, "--max-peak", "1GiB")[0] == 0


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("--max-peak", "38"),
        ("--max-category", "weight"),
        ("--max-category", "weights=1GiB"),
        ("--fail-over", "2%"),
        ("--baseline", PERCEPTRON),
        ("--max-peak", "1GiB", "--format", "xml"),
    ],
)
def test_a_wrong_command_line_ends_with_2(run, arguments):
    assert run("check", GROWING, *arguments)[0] == 2


def test_every_format_has_every_limit(run):
    limits = ("--max-peak", "1GiB", "--max-growth", "0")
    assert len(json.loads(run("check", GROWING, *limits, "--format", "json")[1].out)["checks"]) == 2
    (suite,) = ElementTree.fromstring(run("check", GROWING, *limits, "--format", "junit")[1].out)
    assert len(suite) == 2
    assert run("check", GROWING, *limits, "--format", "github")[1].out.count("\n| ") == 3


def test_a_comparison_in_markdown_is_a_block_of_code(run):
    shown = run("diff", PERCEPTRON, GROWING, "--markdown")[1].out.splitlines()
    assert (shown[0], shown[-1]) == ("```text", "```")


@pytest.mark.parametrize("name", ["no_devices", "empty_snapshot", "host_only"])
def test_a_file_without_memory_of_a_gpu_passes_no_check(run, name):
    """Such as a recording leaves that was never switched on."""
    code, shown = run("check", FIXTURES / f"{name}.pickle", "--max-peak", "1GiB")
    assert code in (3, 7)
    assert "ok" not in shown.out
