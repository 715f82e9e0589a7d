"""The workflows of continuous integration: nothing unpinned, few rights, and what we say we support.

Nothing here runs them; it holds what they say to what the project says.
"""

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
TEST = ROOT / ".github" / "workflows" / "test.yml"
PINNED = re.compile(r"^[\w.-]+/[\w./-]+@[0-9a-f]{40}$")
# YAML 1.1 reads the key `on` as true.
ON = True


def parsed(path):
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def steps(path):
    """Every step of every job."""
    return [step for job in parsed(path)["jobs"].values() for step in job.get("steps", ())]


def name_of(path):
    return path.name


@pytest.mark.parametrize("path", WORKFLOWS, ids=name_of)
def test_a_workflow_has_a_trigger_few_rights_and_a_time_limit(path):
    workflow = parsed(path)
    assert workflow[ON]
    assert workflow["permissions"] == {"contents": "read"}
    assert all(job.get("timeout-minutes") for job in workflow["jobs"].values() if "uses" not in job)


@pytest.mark.parametrize("path", WORKFLOWS, ids=name_of)
def test_an_action_of_others_is_pinned_to_a_commit_with_its_version_beside_it(path):
    used = [step["uses"] for step in steps(path) if "uses" in step]
    assert [one for one in used if not one.startswith("./") and not PINNED.match(one)] == []
    lines = [
        line for line in path.read_text(encoding="utf-8").splitlines() if "uses: " in line and "@" in line
    ]
    assert [line for line in lines if not re.search(r"# v\d", line)] == []


@pytest.mark.parametrize("path", WORKFLOWS, ids=name_of)
def test_every_script_that_a_workflow_runs_is_there(path):
    named = {name for step in steps(path) for name in re.findall(r"\bscripts/[\w./-]+", step.get("run", ""))}
    assert [name for name in named if not (ROOT / name).is_file()] == []


@pytest.mark.parametrize("path", WORKFLOWS, ids=name_of)
def test_every_matrix_value_that_is_used_is_in_the_matrix(path):
    for job in parsed(path)["jobs"].values():
        matrix = job.get("strategy", {}).get("matrix", {})
        known = set(matrix) | {key for one in matrix.get("include", ()) for key in one}
        assert set(re.findall(r"matrix\.([\w-]+)", yaml.safe_dump(job))) <= known


def test_the_tests_run_on_three_systems_and_with_every_python_of_mypy_and_the_classifiers():
    matrix = parsed(TEST)["jobs"]["offline"]["strategy"]["matrix"]
    systems = {*matrix["system"], *(one["system"] for one in matrix["include"])}
    assert {system.split("-")[0] for system in systems} == {"ubuntu", "macos", "windows"}
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    named = re.findall(r"Python :: (3\.\d+)\"", project)
    checked = re.findall(
        r"mypy --python-version (3\.\d+)", (ROOT / "scripts" / "test").read_text(encoding="utf-8")
    )
    assert checked == [matrix["python"][0], matrix["python"][-1]]
    assert set(named) <= set(matrix["python"])
    for system in systems:
        tried = {one["python"] for one in matrix["include"] if one["system"] == system}
        assert not tried or tried == {matrix["python"][0], matrix["python"][-1]}
