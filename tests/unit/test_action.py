"""The action for GitHub: its file is as GitHub reads it, and its script does what it says, run by bash."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")

ROOT = Path(__file__).parents[2]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
GROWING, PERCEPTRON = (ROOT / "fixtures" / f"{name}.pickle" for name in ("growing", "perceptron"))
_, CHECK = ACTION["runs"]["steps"]


def run(folder, **inputs):
    """Run the script with these inputs, the others as their defaults; return its code and the summary."""
    folder.mkdir(exist_ok=True)
    python = folder / "python"
    if not python.exists():
        python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
        python.chmod(0o755)
    values = {
        name: inputs.get(name.replace("-", "_"), spec.get("default", ""))
        for name, spec in INPUTS.items()
    }
    variables = {
        name: str(values[re.fullmatch(r"\$\{\{ inputs\.([a-z-]+) \}\}", text)[1]])
        for name, text in CHECK["env"].items()
    }
    summary = folder / "summary.md"
    done = subprocess.run(
        ["bash", "--noprofile", "--norc", "-e", "-o", "pipefail", "-c", CHECK["run"]],
        env={
            "PATH": f"{folder}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "GITHUB_STEP_SUMMARY": str(summary),
            **variables,
        },
        cwd=folder,
        capture_output=True,
        encoding="utf-8",
        timeout=120,
    )
    assert not re.search(r"line \d+:", done.stderr), done.stderr
    return done.returncode, summary.read_text(encoding="utf-8") if summary.exists() else ""


INPUTS = ACTION["inputs"]
NEEDS_BASH = pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")


def test_every_input_is_described_and_used():
    assert all(spec["description"] for spec in INPUTS.values())
    assert [name for name, spec in INPUTS.items() if spec.get("required")] == ["file"]
    assert set(re.findall(r"inputs\.([a-z-]+)", str(CHECK["env"]))) == set(INPUTS)


def test_no_input_is_a_part_of_a_script():
    """It could hold a command."""
    for step in ACTION["runs"]["steps"]:
        assert step["shell"] == "bash"
        assert "${{" not in step["run"]


@NEEDS_BASH
def test_a_limit_that_does_not_hold_fails_the_job_with_a_table(tmp_path):
    code, summary = run(tmp_path, file=GROWING, max_peak="1GiB", max_growth="0")
    assert code == 7
    assert summary.count("\n| ") == 3
    assert "❌" in summary


@NEEDS_BASH
def test_limits_that_hold_pass(tmp_path):
    code, summary = run(
        tmp_path, file=GROWING, max_peak="1GiB", max_category="weight=1GiB input=1GiB"
    )
    assert (code, summary.count("✅")) == (0, 3)


@NEEDS_BASH
def test_a_baseline_is_compared_and_fails_only_beyond_what_is_allowed(tmp_path):
    code, summary = run(tmp_path / "a", file=GROWING, baseline=PERCEPTRON, fail_over="50%")
    assert code == 0
    assert "metrics.py:14 in remember" in summary
    assert run(tmp_path / "b", file=GROWING, baseline=PERCEPTRON, fail_over="2%")[0] == 7


@NEEDS_BASH
@pytest.mark.parametrize("inputs", [{"file": "--help"}, {"file": GROWING, "baseline": "--help"}])
def test_a_file_that_is_named_like_an_option_is_a_file(tmp_path, inputs):
    assert run(tmp_path, **inputs, max_peak="1GiB")[0] == 3


@NEEDS_BASH
def test_a_module_of_the_workspace_is_not_taken_for_ours(tmp_path):
    for name in ("snapconv", "sysconfig", "pathlib"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit(0)\n")
    code, summary = run(tmp_path, file=GROWING, max_peak="1MiB")
    assert (code, summary.count("❌")) == (7, 1)


@NEEDS_BASH
def test_an_input_is_never_run(tmp_path):
    code, _ = run(tmp_path, file='$(touch "run") `touch run`; touch run', max_peak="1GiB")
    assert code == 3
    assert not (tmp_path / "run").exists()
