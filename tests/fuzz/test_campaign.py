"""The campaign of scripts/fuzz sees what it is made to see, and does the same for the same seed."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from random import Random

import pytest

from tests.drawn_inputs import drawn

ROOT = Path(__file__).parents[2]
# What a terminal may obey.
TEXTS_TO_OBEY = ("\x1b[2J", "\x9b31m", "\x7f", "\u202e", "\r")
pytestmark = [
    pytest.mark.skipif(
        sys.platform != "linux", reason="limits the memory of a process as Linux does"
    ),
    # Those threads are OpenBLAS's, which no command calls.
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning"),
]


@pytest.fixture
def campaign(monkeypatch):
    """The modules of the campaign, found as its script finds them."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    from fuzzing import file_mutations, file_targets, limited_try  # type: ignore[import-not-found]

    return file_mutations, file_targets, limited_try


@pytest.fixture
def roomy(campaign, monkeypatch):
    """Allow a child the memory that this process has from all tests before; that of a campaign has none."""
    _, _, limited = campaign
    monkeypatch.setattr(limited, "_FREE_BYTES", limited.resident_bytes() + (150 << 20))


def write_file(name: str, n_bytes: int) -> int:
    Path(name).write_bytes(bytes(n_bytes))
    return 0


@pytest.mark.parametrize(
    ("main", "place"),
    [
        *((lambda _, code=code: code, None) for code in (0, 2, 3, 4, 7)),
        (lambda _: 1, "code 1"),
        (lambda _: {}["missing"], "KeyError"),
        *(
            (lambda _, text=text: sys.stdout.write(text) and 0, "text oom")
            for text in TEXTS_TO_OBEY
        ),
        (lambda _: sys.stdout.write("peak -2.00 MiB") and 0, "amount oom"),
        (lambda _: sys.stdout.write("got '-2.00 MiB'") and 2, None),
        (lambda _: sys.stdout.write("a" * (2 << 20)), "OutputTooLarge"),
        (lambda _: write_file("out", 2 << 20), "output"),
        (lambda _: write_file("log.txt", 0), "input"),
    ],
)
@pytest.mark.usefixtures("roomy")
@pytest.mark.parametrize("way", ["run_in_child", "run_here"])
def test_a_command_fails_by_its_code_its_exception_or_what_it_writes(
    campaign, tmp_path, monkeypatch, main, place, way
):
    _, targets, limited = campaign
    monkeypatch.setattr("snapconv.cli.app.main", main)
    target = targets.TARGETS["message"]
    runs = limited.try_input(target, b"no message", tmp_path / "trial", getattr(limited, way))
    assert not (tmp_path / "trial").exists()
    assert [run.command for run in runs] == ["oom", "oom"]
    places = {failure.place for run in runs for failure in run.failures}
    assert len(places) == (place is not None)
    assert all(found.startswith(place) for found in places)


def compute(seconds: float) -> int:
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass
    return 0


def fill(n_bytes: int) -> int:
    bytearray(n_bytes).find(1)  # reads every page
    return 0


def die(number: int) -> int:
    os.kill(os.getpid(), number)
    time.sleep(60)
    return 0


@pytest.mark.parametrize(
    ("main", "place"),
    [
        (lambda _: compute(0.01), None),
        (lambda _: compute(0.4), "time oom"),
        (lambda _: fill(1 << 20), None),
        # By more than what this process has of libraries' files, which a fork does not count.
        (lambda _: fill(600 << 20), "memory oom"),
        (lambda _: fill(2 << 30), "MemoryError"),
        (lambda _: write_file("out", 2 << 20) or die(signal.SIGKILL), "ended by SIGKILL oom"),
        (lambda _: die(signal.SIGXCPU), "ended by SIGXCPU oom"),
        (lambda _: sys.exit(0), "ended without a report oom"),
        (lambda _: os._exit(0), "ended without a report oom"),
    ],
)
@pytest.mark.usefixtures("roomy")
def test_a_child_is_held_to_the_time_and_memory_of_its_input(
    campaign, tmp_path, monkeypatch, main, place
):
    _, _, limited = campaign
    monkeypatch.setattr(limited, "_FREE_SECONDS", 0.2 if place == "time oom" else 9)
    monkeypatch.setattr("snapconv.cli.app.main", main)
    (tmp_path / "trial").mkdir()
    monkeypatch.chdir(tmp_path / "trial")
    run = limited.run_in_child(["oom"], tmp_path / "trial", 1000)
    assert [failure.place.startswith(place) for failure in run.failures] == [True] * (
        place is not None
    )
    assert not list((tmp_path / "trial").iterdir())


def test_more_bytes_may_take_more_time_and_memory(campaign):
    _, _, limited = campaign
    assert limited.most_seconds(0) == 1
    assert limited.most_seconds(2_000_000) == 7
    assert limited.most_bytes(0) == 150 << 20
    assert limited.most_bytes(1 << 20) == 158 << 20


@pytest.mark.usefixtures("roomy")
def test_a_command_that_other_work_slowed_down_once_has_not_failed(campaign, tmp_path, monkeypatch):
    _, _, limited = campaign
    monkeypatch.setattr(limited, "_FREE_SECONDS", 0.4)
    times = tmp_path / "times"

    def slow_at_first(_):
        with times.open("a") as file:
            file.write("1")
        return compute(0.6 if times.stat().st_size == 1 else 0)

    monkeypatch.setattr("snapconv.cli.app.main", slow_at_first)
    (tmp_path / "trial").mkdir()
    run = limited.run_in_child(["oom"], tmp_path / "trial", 1000)
    assert not run.failures
    assert run.seconds < 0.4
    assert times.read_text() == "11"


def test_the_memory_that_a_fork_begins_with_is_the_commands_too(campaign, tmp_path, monkeypatch):
    _, _, limited = campaign
    monkeypatch.setattr(limited, "_FREE_BYTES", limited.resident_bytes() + (100 << 20))
    monkeypatch.setattr("snapconv.cli.app.main", lambda _: 0)
    (tmp_path / "trial").mkdir()
    assert not limited.run_in_child(["oom"], tmp_path / "trial", 0).failures
    of_the_parent = bytearray(b"x") * (600 << 20)
    (failure,) = limited.run_in_child(["oom"], tmp_path / "trial", 0).failures
    del of_the_parent
    assert failure.place == "memory oom"
    assert "the fork began with" in failure.text


@pytest.mark.usefixtures("roomy")
def test_a_campaign_goes_on_with_the_input_at_which_it_was_stopped(campaign, tmp_path, monkeypatch):
    _, targets, limited = campaign
    from fuzzing import counted_runs as counted

    monkeypatch.setattr(
        "snapconv.cli.app.main", lambda command: {}["no JSON"] if "--json" in command else 0
    )
    chosen = [targets.TARGETS[name] for name in ("message", "timing")]

    def of(folder: Path, n_runs: int) -> list[tuple[object, ...]]:
        folder.mkdir(exist_ok=True)
        counted.count_runs(folder, n_runs, chosen, "7")
        runs = counted.runs_of(folder)
        return [(run.number, run.target, run.command, run.n_bytes, run.failures) for run in runs]

    whole = of(tmp_path / "whole", 12)
    assert [run[:3] for run in whole[:3]] == [
        (0, "message", "oom"),
        (0, "message", "oom"),
        (1, "timing", "info"),
    ]
    assert len(whole) == 12
    stopped = tmp_path / "stopped"
    tried = []

    def stopped_at_an_output(command, folder, n_bytes):
        tried.append(command)
        if len(tried) == 7:
            raise KeyboardInterrupt
        return limited.run_in_child(command, folder, n_bytes)

    with monkeypatch.context() as patch:
        patch.setattr(counted, "run_in_child", stopped_at_an_output)
        assert of(stopped, 12) == whole[:5]  # and nothing of the third input
    with (stopped / "runs.jsonl").open("a") as file:
        file.write('{"number": 2, "targ')  # as a full disk leaves it
    (stopped / "trial").mkdir()  # as kill -9 leaves it
    assert of(stopped, 12) == whole
    assert of(stopped, 12) == whole  # nothing is left to do
    assert list(counted.table_lines(list(counted.runs_of(stopped))))[-1].split()[:3] == [
        "all",
        "12",
        "7",
    ]
    assert len(list((stopped / "message" / "failed").glob("*.txt"))) == 3  # enough of its kind


def test_a_negative_amount_is_seen_and_a_difference_keeps_its_sign(campaign):
    from fuzzing.amounts import impossible_json  # type: ignore[import-not-found]

    findings = [{"kind": "outlier", "n_bytes": -512}, {"kind": "out_of_memory", "n_bytes": -512}]
    text = json.dumps({"change_bytes": -1, "peak_bytes": -1, "findings": findings})
    assert list(impossible_json(text)) == [".peak_bytes = -1", ".findings[1].n_bytes = -512"]


def test_every_call_of_the_server_is_answered_for_a_whole_file(campaign, tmp_path, capsys):
    _, targets, limited = campaign
    (tmp_path / "x.pickle").write_bytes((ROOT / "fixtures/torch_2_13.pickle").read_bytes())
    for tool, given in targets.CALLS:
        arguments = given if tool == "files" else {"snapshot": "x.pickle", **given}
        assert limited._call_tool(str(tmp_path), tool, json.dumps(arguments)) == 0, tool
        assert "untrusted" in json.loads(capsys.readouterr().out)


def test_the_same_seed_makes_the_same_inputs(campaign):
    mutations, targets, _ = campaign
    for target in targets.TARGETS.values():
        data, *_, other = target.inputs() * 2
        first, second = (
            [
                mutations.mutated(
                    data, target.codec, Random(seed), other, most_bytes=target.most_bytes
                )
                for seed in range(5)
            ]
            for _ in range(2)
        )
        assert first == second
        assert len({data, *first}) > 3


def test_the_seeds_of_small_targets_are_tried_without_a_failure(campaign, tmp_path):
    _, targets, limited = campaign
    for name in ("message", "rules", "timing"):
        seeds = targets.TARGETS[name].inputs()
        for data in seeds[:: 3 if drawn(3) == 1 else 1]:
            runs = limited.try_input(
                targets.TARGETS[name], data, tmp_path / "trial", limited.run_here
            )
            assert not [run for run in runs if run.failures]


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


def test_what_an_input_needs_to_be_made_is_limited_too(campaign, tmp_path, monkeypatch):
    _, targets, limited = campaign
    monkeypatch.setattr(limited, "MEMORY_BYTES", 100 << 20)
    target = targets.Target("x", None, lambda: [bytes(1000)], lambda _folder, _data: [])
    changed = limited.changed_input(target, "7", tmp_path / "input")
    assert changed == limited.changed_input(target, "7", tmp_path / "input") != b""
    too_large = targets.Target("x", None, lambda: [bytes(200 << 20)], lambda _folder, _data: [])
    assert limited.changed_input(too_large, "7", tmp_path / "input") == b""


def test_runs_are_counted_in_the_folder_and_told_in_a_table(tmp_path):
    command = [
        sys.executable,
        str(ROOT / "scripts" / "fuzz"),
        "--target",
        "message",
        "--target",
        "ranks",
    ]
    for n_runs, said in ((1, "0 of 1 runs are done"), (4, "2 of 4 runs are done")):
        done = subprocess.run(
            [*command, "--runs", str(n_runs), "--folder", str(tmp_path)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert said in done.stdout
    table = {line.split()[0]: line.split()[1:] for line in done.stdout.splitlines()}
    assert [table[name][0] for name in ("oom", "ranks", "all")] == ["2", "3", "5"]
    assert table["all"][-2:] == ["2", "3"]


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
    monkeypatch.setenv(targets.REAL_FILES, str(tmp_path / "files"))
    whole = (tmp_path / "files" / "several_streams.pickle").read_bytes()
    assert whole in targets.TARGETS["whole"].inputs()
    assert (ROOT / "README.md").read_bytes() not in targets.TARGETS["whole"].inputs()
