"""The benchmark's programs of an earlier commit come out of git, or an error says what to do."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PLACE = "scripts/bench/classification"
SCRIPT = "from programs import end_of_step\nend_of_step()\n"


@pytest.fixture(scope="module")
def past_programs():
    sys.path.insert(0, str(ROOT / PLACE))
    try:
        import past_programs

        return past_programs
    finally:
        sys.path.remove(str(ROOT / PLACE))


def git(folder, *arguments):
    identity = ["-c", "user.name=somebody", "-c", "user.email=somebody@example.org"]
    done = subprocess.run(
        ["git", *identity, *arguments], cwd=folder, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path):
    """A repository whose first commit has a program, and whose second one has not."""
    root = tmp_path / "repository"
    program = root / PLACE / "second_blind" / "few_shots.py"
    program.parent.mkdir(parents=True)
    program.write_text(SCRIPT)
    git(root, "init", "-q", "-b", "main")
    git(root, "add", "-A")
    git(root, "commit", "-q", "-m", "one")
    program.unlink()
    (root / "README.md").write_text("")
    git(root, "add", "-A")
    git(root, "commit", "-q", "-m", "two")
    return root


def test_programs_of_a_commit_are_brought_once_and_whole(past_programs, repository, tmp_path):
    cache = tmp_path / "cache"
    folder = past_programs.programs_at("HEAD~1", root=repository, cache=cache)
    assert (folder / "second_blind" / "few_shots.py").read_text() == SCRIPT
    assert [path.name for path in cache.iterdir()] == [git(repository, "rev-parse", "HEAD~1")]
    (folder / "kept").write_text("")
    assert (past_programs.programs_at("HEAD~1", root=repository, cache=cache) / "kept").exists()


def test_a_shallow_clone_is_told_to_fetch_the_rest(past_programs, repository, tmp_path):
    commit = git(repository, "rev-parse", "HEAD~1")
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "-q", "--depth", "1", f"file://{repository}", str(clone))
    with pytest.raises(past_programs.NoSuchCorpusError, match="git fetch --unshallow"):
        past_programs.programs_at(commit, root=clone, cache=tmp_path / "cache")


def test_an_unpacked_source_distribution_is_told_to_clone(past_programs, tmp_path):
    with pytest.raises(past_programs.NoSuchCorpusError, match="clone the repository, or leave out --corpus"):
        past_programs.programs_at("HEAD", root=tmp_path, cache=tmp_path / "cache")


def test_an_unknown_commit_and_one_without_programs_are_named(past_programs, repository, tmp_path):
    with pytest.raises(past_programs.NoSuchCorpusError, match="nothing cannot be found: run `git fetch`"):
        past_programs.programs_at("nothing", root=repository, cache=tmp_path / "cache")
    with pytest.raises(past_programs.NoSuchCorpusError, match=f"has no folder {PLACE}"):
        past_programs.programs_at("HEAD", root=repository, cache=tmp_path / "cache")
