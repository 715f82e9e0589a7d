"""The campaign of scripts/fuzz sees what it is made to see, and does the same for the same seed."""

import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from tests.drawn_inputs import drawn

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="limits the memory of a process as Linux does"
)


@pytest.fixture
def campaign(monkeypatch):
    """The modules of the campaign, found as its script finds them."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    from fuzzing import file_mutations, file_targets, limited_try  # type: ignore[import-not-found]

    return file_mutations, file_targets, limited_try


def failures_with(campaign, tmp_path, monkeypatch, main) -> list[str]:
    """The places of what fails where every command does what ``main`` does."""
    _, targets, limited = campaign
    monkeypatch.setattr("snapconv.cli.app.main", main)
    found = limited.try_input(targets.TARGETS["message"], b"no message", tmp_path / "trial")
    assert not (tmp_path / "trial").exists()
    return sorted({failure.place for failure in found})


def test_commands_that_end_as_documented_are_no_failures(campaign, tmp_path, monkeypatch):
    for code in (0, 2, 3, 4, 7):
        assert not failures_with(campaign, tmp_path, monkeypatch, lambda _command, code=code: code)


def test_an_exception_is_a_failure(campaign, tmp_path, monkeypatch):
    (place,) = failures_with(campaign, tmp_path, monkeypatch, lambda _command: {}["missing"])
    assert place.startswith("KeyError")


def test_an_undocumented_code_is_a_failure(campaign, tmp_path, monkeypatch):
    assert failures_with(campaign, tmp_path, monkeypatch, lambda _command: 1) == ["code 1"]


@pytest.mark.parametrize("text", ["\x1b[2J", "\x9b31m", "\x7f", "\u202e", "\r"])
def test_what_a_terminal_may_obey_is_a_failure(campaign, tmp_path, monkeypatch, text):
    assert failures_with(campaign, tmp_path, monkeypatch, lambda _: sys.stdout.write(text) and 0) == [
        "text oom"
    ]


def test_too_much_printed_is_a_failure(campaign, tmp_path, monkeypatch):
    (place,) = failures_with(campaign, tmp_path, monkeypatch, lambda _: sys.stdout.write("a" * (2 << 20)))
    assert place.startswith("OutputTooLarge")


def test_too_much_written_is_a_failure(campaign, tmp_path, monkeypatch):
    def main(_command):
        Path("out").write_bytes(bytes(2 << 20))
        return 0

    (place,) = failures_with(campaign, tmp_path, monkeypatch, main)
    assert place.startswith("output")


def test_a_changed_input_is_a_failure(campaign, tmp_path, monkeypatch):
    def main(_command):
        Path("log.txt").write_bytes(b"")
        return 0

    assert failures_with(campaign, tmp_path, monkeypatch, main) == ["input"]


def test_the_same_seed_makes_the_same_inputs(campaign):
    mutations, targets, _ = campaign
    for target in targets.TARGETS.values():
        data, *_, other = target.inputs() * 2
        first, second = (
            [mutations.mutated(data, target.codec, Random(seed), other) for seed in range(5)]
            for _ in range(2)
        )
        assert first == second
        assert len({data, *first}) > 3


def test_the_seeds_of_small_targets_are_tried_without_a_failure(campaign, tmp_path):
    _, targets, limited = campaign
    for name in ("message", "params", "rules", "limits", "timing"):
        seeds = targets.TARGETS[name].inputs()
        for data in seeds[:: 3 if drawn(3) == 1 else 1]:
            assert not limited.try_input(targets.TARGETS[name], data, tmp_path / "trial")


def test_a_short_run_says_its_seed_and_how_much_was_tried(tmp_path):
    command = [sys.executable, str(ROOT / "scripts" / "fuzz"), "--target", "message"]
    done = subprocess.run(
        [*command, "--inputs", "3", "--seed", "7", "--folder", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "seed 7" in done.stdout
    assert "message: 3 inputs" in done.stdout
