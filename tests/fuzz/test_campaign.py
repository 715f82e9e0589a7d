"""The campaign of scripts/fuzz sees what it is made to see, and does the same for the same seed."""

import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from tests.drawn_inputs import drawn

ROOT = Path(__file__).parents[2]
# What a terminal may obey.
TEXTS_TO_OBEY = ("\x1b[2J", "\x9b31m", "\x7f", "\u202e", "\r")
pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="limits the memory of a process as Linux does"
)


@pytest.fixture
def campaign(monkeypatch):
    """The modules of the campaign, found as its script finds them."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    from fuzzing import file_mutations, file_targets, limited_try  # type: ignore[import-not-found]

    return file_mutations, file_targets, limited_try


def write_file(name: str, n_bytes: int) -> int:
    Path(name).write_bytes(bytes(n_bytes))
    return 0


@pytest.mark.parametrize(
    ("main", "place"),
    [
        *((lambda _, code=code: code, None) for code in (0, 2, 3, 4, 7)),
        (lambda _: 1, "code 1"),
        (lambda _: {}["missing"], "KeyError"),
        *((lambda _, text=text: sys.stdout.write(text) and 0, "text oom") for text in TEXTS_TO_OBEY),
        (lambda _: sys.stdout.write("a" * (2 << 20)), "OutputTooLarge"),
        (lambda _: write_file("out", 2 << 20), "output"),
        (lambda _: write_file("log.txt", 0), "input"),
    ],
)
def test_a_command_fails_by_its_code_its_exception_or_what_it_writes(
    campaign, tmp_path, monkeypatch, main, place
):
    _, targets, limited = campaign
    monkeypatch.setattr("snapconv.cli.app.main", main)
    found = limited.try_input(targets.TARGETS["message"], b"no message", tmp_path / "trial")
    assert not (tmp_path / "trial").exists()
    places = {failure.place for failure in found}
    assert len(places) == (place is not None)
    assert all(found.startswith(place) for found in places)


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
    for name in ("message", "rules", "timing"):
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


def test_parts_of_real_files_are_small_seeds_and_always_the_same(campaign, tmp_path, monkeypatch):
    mutations, targets, _ = campaign
    from fuzzing.real_seeds import write_seeds  # type: ignore[import-not-found]

    for file in ("fixtures/training_step.pickle", "fixtures/several_streams.pickle", "README.md"):
        (tmp_path / "files" / Path(file).name).parent.mkdir(exist_ok=True)
        (tmp_path / "files" / Path(file).name).write_bytes((ROOT / file).read_bytes())
    for out in ("a", "b"):
        write_seeds(tmp_path / "files", tmp_path / out)
    made = {file.name: file.read_bytes() for file in (tmp_path / "a").iterdir()}
    assert made == {file.name: file.read_bytes() for file in (tmp_path / "b").iterdir()}
    assert len(made) > 12  # windows of both, and parts of both in one
    assert all(len(mutations.from_pickle(data)["device_traces"][0]) <= 60 for data in made.values())
    monkeypatch.setenv(targets.REAL_SEEDS, str(tmp_path / "a"))
    assert set(made.values()) <= set(targets.TARGETS["snapshot"].inputs())
    assert not set(made.values()) & set(targets.TARGETS["metadata"].inputs())
