"""The workflow of a release calls what is there; the workflow itself was not seen on a forge."""

import re
from pathlib import Path

import pytest

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")

ROOT = Path(__file__).parents[2]
WORKFLOWS = ROOT / ".github" / "workflows"


def workflow(name):
    return yaml.safe_load((WORKFLOWS / name).read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", sorted(WORKFLOWS.glob("*.yml")), ids=lambda path: path.stem)
def test_every_action_of_others_is_pinned_by_its_commit(path):
    for used in re.findall(r"uses: (\S+)", path.read_text(encoding="utf-8")):
        assert used.startswith("./") or re.search(r"@[0-9a-f]{40}$", used), used


def test_a_release_runs_scripts_and_workflows_that_are_there():
    release = workflow("release.yml")["jobs"]
    called = [job["uses"] for job in release.values() if "uses" in job]
    assert called
    for path in called:
        # YAML 1.1 reads the key `on` as a truth value.
        assert "workflow_call" in workflow(Path(path).name)[True]
    commands = " ".join(step.get("run", "") for job in release.values() for step in job.get("steps", ()))
    scripts = re.findall(r"scripts/[\w.]+", commands)
    assert scripts
    assert [name for name in scripts if not (ROOT / name).exists()] == []


def test_nothing_is_published_before_the_tests_have_passed_and_everything_is_built():
    release = workflow("release.yml")["jobs"]
    assert (release["publish"]["needs"], release["build"]["needs"]) == ("build", "check")
    rights = {name: job.get("permissions", {}) for name, job in release.items()}
    assert [name for name, right in rights.items() if "id-token" in right] == ["publish"]
