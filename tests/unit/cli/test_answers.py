"""The commands that answer a question: one screen, for every file that can be read, and errors that help."""

import json
from pathlib import Path

import pytest

from snapconv.cli.app import main

FIXTURES = Path(__file__).parents[3] / "fixtures"
FILES = sorted(path for path in FIXTURES.iterdir() if ".pickle" in path.name or ".html" in path.name)
SCREEN = (40, 80)
COMMANDS = ("summary", "tree", "fragmentation")


def run(capsys, *arguments):
    code = main([str(argument) for argument in arguments])
    shown = capsys.readouterr()
    return code, shown.out, shown.err


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_device_of_every_file_is_answered_on_one_screen(command, path, capsys):
    code, out, err = run(capsys, command, path)
    assert (code, "Traceback" in err) == (0, False)
    devices = out.split("\n\n")
    for device in devices:
        lines = device.splitlines()
        assert 1 <= len(lines) <= SCREEN[0]
        # A history's reason is a sentence; everything else fits.
        assert max(len(line) for line in lines if not line.startswith("  history:")) <= SCREEN[1]


@pytest.mark.parametrize("command", COMMANDS)
def test_json_has_one_object_per_device(command, capsys):
    code, out, _ = run(capsys, command, FIXTURES / "several_devices.pickle", "--json")
    assert code == 0
    assert [found["device"] for found in json.loads(out)["devices"]] == [0, 2]
    code, out, _ = run(capsys, command, FIXTURES / "several_devices.pickle", "--json", "--device", "2")
    assert [found["device"] for found in json.loads(out)["devices"]] == [2]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_device_that_is_not_there_is_an_error_that_names_those_that_are(command, capsys):
    code, out, err = run(capsys, command, FIXTURES / "several_devices.pickle", "--device", "1")
    assert (code, out) == (3, "")
    assert "has nothing of device 1; it has: 0, 2" in err


@pytest.mark.parametrize("command", COMMANDS)
def test_what_is_no_moment_is_a_wrong_command_line(command, capsys):
    code, _, err = run(capsys, command, FIXTURES / "training_step.pickle", "--at", "noon")
    assert code == 2
    assert "iteration:3" in err


@pytest.mark.parametrize("command", COMMANDS)
def test_a_moment_that_a_file_does_not_have_is_an_error_that_says_what_it_has(command, capsys):
    code, _, err = run(capsys, command, FIXTURES / "training_step.pickle", "--at", "iteration:3")
    assert code == 3
    assert "cuda:0 has no iteration 3; it has iterations 0 to 2" in err


@pytest.mark.parametrize(
    "moment", ["peak", "start", "end", "worst", "largest activations", "iteration:1", "17"]
)
def test_every_moment_can_be_asked_for(moment, capsys):
    for command in COMMANDS:
        assert run(capsys, command, FIXTURES / "training_step.pickle", "--at", moment)[0] == 0


def test_a_capture_is_answered_as_a_snapshot_is(capsys):
    code, out, _ = run(capsys, "summary", FIXTURES / "transformer.capture")
    assert code == 0
    assert "blocks.*.mlp.2" in out
