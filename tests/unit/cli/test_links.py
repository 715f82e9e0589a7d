"""A link under an output's name: somebody else's is not followed, the user's own is."""

import shutil
from pathlib import Path

import pytest

from snapconv.cli.app import main

FIXTURES = Path(__file__).parents[3] / "fixtures"
DEFAULT_NAMES = {
    "to-sqlite": "run.memory.sqlite",
    "view": "run.view.html",
    "export": "run.trace.json",
}


@pytest.fixture(autouse=True)
def shared_folder(tmp_path, monkeypatch):
    """A folder with a snapshot, in which others may lay links."""
    folder = tmp_path / "shared"
    folder.mkdir()
    shutil.copy(FIXTURES / "training_step.pickle", folder / "run.pickle")
    monkeypatch.chdir(folder)


@pytest.mark.parametrize("force", [(), ("--force",)], ids=["", "force"])
@pytest.mark.parametrize("is_there", [False, True], ids=["to nothing", "to a file"])
@pytest.mark.parametrize("command", DEFAULT_NAMES)
def test_no_default_name_follows_a_link(tmp_path, capsys, command, is_there, force):
    victim = tmp_path / "authorized_keys"
    if is_there:
        victim.write_text("precious")
    Path(DEFAULT_NAMES[command]).symlink_to(victim)
    assert main([command, "run.pickle", "-q", *force]) == 5
    assert "it is a link; name a file with --output" in capsys.readouterr().err
    assert victim.read_text() == "precious" if is_there else not victim.exists()


@pytest.mark.parametrize("command", DEFAULT_NAMES)
def test_a_link_that_the_user_names_is_followed(tmp_path, command):
    Path("latest").symlink_to(tmp_path / "report")
    assert main([command, "run.pickle", "-q", "-o", "latest"]) == 0
    assert (tmp_path / "report").stat().st_size
    assert Path("latest").is_symlink()


def test_no_name_that_is_made_of_a_given_one_follows_a_link(tmp_path, capsys):
    shutil.copy(FIXTURES / "several_devices.pickle", "two.pickle")
    victim = tmp_path / "authorized_keys"
    Path("two.cuda2.sqlite").symlink_to(victim)
    assert main(["to-sqlite", "two.pickle", "-q", "-o", "two.sqlite"]) == 5
    assert "two.cuda2.sqlite: it is a link" in capsys.readouterr().err
    assert not victim.exists()
