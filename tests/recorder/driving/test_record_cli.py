"""What the command refuses before anything runs, and what it says; no test here needs torch."""

import sys
from pathlib import Path

import pytest

from snapconv.cli import terminal
from snapconv.cli.app import main
from snapconv.errors import OutputWriteError
from snapconv.notes import Note
from snapconv.recorder.record import RecordOutcome


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """An empty current folder with a script that must not run."""
    monkeypatch.chdir(tmp_path)
    for variable in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
        monkeypatch.delenv(variable, raising=False)
    (tmp_path / "train.py").write_text("raise AssertionError('it ran')")
    return tmp_path


@pytest.fixture
def recorded(monkeypatch):
    """Let the recorder return what a test wants; ``asked`` is what it was called with."""
    asked = []

    def answer(**values):
        result = RecordOutcome(**{"path": None, "exit_code": 0, **values})
        monkeypatch.setattr(
            "snapconv.recorder.record.record",
            lambda *arguments, **_: asked.append(arguments) or result,
        )
        return asked

    return answer


@pytest.mark.parametrize(
    ("argv", "option"),
    [
        (["--no-compute", "train.py"], "--no-compute"),
        (["--capacity", "1GiB", "train.py"], "--capacity"),
        (["--cublas-workspace", "train.py"], "--cublas-workspace"),
        (["--simulate", "--routing", "worst", "train.py"], "--routing"),
        (["--simulate", "--capacity", "24", "train.py"], "--capacity"),
        (["--batch-size", "3", "train.py"], "--batch-size"),
        (["--iterations", "0", "train.py"], "--iterations"),
        (["--stacks", "some", "train.py"], "--stacks"),
    ],
)
def test_options_that_make_no_sense_are_a_usage_error(argv, option, capsys):
    assert main(["record", *argv]) == 2
    assert option in capsys.readouterr().err


def test_a_missing_entry_is_told_first_of_all(capsys):
    assert main(["record", "missing.py"]) == 6
    assert "there is no entry file missing.py" in capsys.readouterr().err


def test_an_existing_capture_is_told_before_torch_is_needed(here, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    (here / "train.capture").mkdir()
    assert main(["record", "train.py"]) == 5
    assert "replace it with --force" in capsys.readouterr().err


def test_without_torch_the_command_says_so_and_runs_nothing(here, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    assert main(["record", "train.py"]) == 6
    assert "pip install torch" in capsys.readouterr().err
    assert [path.name for path in here.iterdir()] == ["train.py"]


PROVIDERS = """
def skyline_model_provider(): ...
def skyline_input_provider(batch_size=2): ...
def skyline_iteration_provider(model): ...
"""


def test_what_follows_a_file_of_providers_is_refused_and_not_dropped(here, capsys):
    (here / "entry.py").write_text(PROVIDERS)
    assert main(["record", "--simulate", "entry.py", "--batch-size", "64"]) == 2
    assert "put snapconv's own options before it" in " ".join(capsys.readouterr().err.split())


def test_a_program_that_computes_nothing_is_ended_when_all_is_recorded_and_warned_of(
    recorded, capsys
):
    asked = recorded(path=Path("train.capture"))
    assert main(["record", "--simulate", "--no-compute", "train.py"]) == 0
    _entry, _arguments, options = asked[0]
    assert options.stop
    assert "only shapes are computed" in capsys.readouterr().err
    assert main(["record", "--simulate", "train.py"]) == 0
    assert not asked[1][2].stop


def test_what_follows_the_entry_is_the_scripts(recorded):
    asked = recorded()
    assert main(["record", "-q", "train.py", "--force", "-q", "--", "x"]) == 0
    ((entry, args, options),) = asked
    assert (entry.path, args) == ("train.py", ["--force", "-q", "--", "x"])
    assert not options.force


@pytest.mark.parametrize(
    "argv",
    [
        ["train.py", "--simulate"],
        ["--simulate", "train.py", "--lr", "1", "--no-compute"],
        ["train.py", "--stacks=python"],
        ["-m", "train", "--stop"],
    ],
)
def test_options_of_ours_behind_the_script_are_refused_with_the_order_that_works(
    recorded, capsys, argv
):
    asked = recorded()
    assert main(["record", *argv]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "options of snapconv stand before the script" in said
    assert argv[-1].partition("=")[0] in said
    assert asked == []


@pytest.mark.parametrize(
    ("argv", "args"),
    [
        (["--", "train.py", "--simulate"], ["--simulate"]),
        (["-q", "--", "train.py", "x", "--stop"], ["x", "--stop"]),
        (["train.py", "--", "--simulate"], ["--", "--simulate"]),
        (["train.py", "simulate", "--simulated", "-x"], ["simulate", "--simulated", "-x"]),
    ],
)
def test_a_script_can_have_options_of_the_same_names(recorded, argv, args):
    asked = recorded()
    assert main(["record", *argv]) == 0
    assert asked[0][1] == args
    assert asked[0][2].simulation is None


@pytest.mark.parametrize(
    ("argv", "kind", "args"),
    [
        (["--", "python", "train.py", "-x"], "script", ["-x"]),
        (["--simulate", "--", "/usr/bin/python3.11", "train.py"], "script", []),
        (["--", "python3", "-m", "package.train", "-x"], "module", ["-x"]),
    ],
)
def test_an_interpreter_before_the_program_is_left_out(recorded, argv, kind, args):
    asked = recorded()
    assert main(["record", *argv]) == 0
    assert (asked[0][0].kind, asked[0][1]) == (kind, args)


def test_what_else_python_is_given_stands_before_us(recorded, capsys):
    asked = recorded()
    assert main(["record", "--simulate", "--", "python", "-i", "train.py"]) == 6
    assert "python -i -m snapconv record --simulate SCRIPT" in capsys.readouterr().err
    assert asked == []


@pytest.mark.parametrize(
    ("argv", "rank", "says"),
    [([], "0", True), ([], "1", False), (["--ranks", "1"], "1", True)],
)
def test_one_of_several_ranks_says_how_far_it_is(recorded, monkeypatch, capsys, argv, rank, says):
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("WORLD_SIZE", "2")
    recorded()
    assert main(["record", "--simulate", "--no-compute", *argv, "train.py"]) == 0
    assert bool(capsys.readouterr().err) == says


@pytest.mark.parametrize(
    ("argv", "environment", "name"),
    [
        (["train.py"], {}, "train.capture"),
        (["-m", "package.train"], {}, "package.train.capture"),
        (["train.py"], {"RANK": "3", "WORLD_SIZE": "8"}, "train.rank3.capture"),
        (["train.py"], {"RANK": "0", "WORLD_SIZE": "1"}, "train.capture"),
        (["-o", "elsewhere", "train.py"], {"RANK": "3", "WORLD_SIZE": "8"}, "elsewhere.rank3"),
    ],
)
def test_the_default_output_is_named_after_the_entry_and_its_rank(
    recorded, monkeypatch, argv, environment, name
):
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)
    asked = recorded()
    main(["record", *argv])
    assert asked[0][2].output == Path(name)


@pytest.mark.parametrize(
    ("argv", "local_rank", "n_devices"),
    [([], None, 1), ([], "2", 3), (["--device", "1"], "2", 2)],
)
def test_a_simulation_has_the_devices_up_to_the_requested_one_or_that_of_the_rank(
    recorded, monkeypatch, argv, local_rank, n_devices
):
    if local_rank:
        monkeypatch.setenv("LOCAL_RANK", local_rank)
    asked = recorded()
    main(["record", "--simulate", *argv, "train.py"])
    options = asked[0][2]
    # None becomes the current one: without a choice of the program's that is the first.
    assert options.device is None
    assert options.simulation.n_devices == n_devices


def test_the_project_root_is_the_current_folder(recorded, here):
    asked = recorded()
    main(["record", "train.py"])
    assert asked[0][2].project_root == here


def test_the_closing_lines_name_the_capture_and_the_next_command(recorded, capsys):
    recorded(path=Path("train.capture"), n_bytes=2048, notes=(Note("ended-early", "too early"),))
    assert main(["record", "train.py"]) == 0
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.splitlines() == [
        "snapconv: note: too early",
        f"snapconv: the capture is {Path('train.capture').absolute()} (2.00 KiB). Next:",
        "snapconv:     snapconv train.capture",
    ]


def test_quiet_says_nothing(recorded, capsys):
    recorded(path=Path("train.capture"), notes=(Note("ended-early", "too early"),))
    assert main(["record", "-q", "train.py"]) == 0
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(("exit_code", "expected"), [(0, 5), (3, 3)])
def test_the_programs_exit_code_comes_before_ours(recorded, capsys, exit_code, expected):
    recorded(exit_code=exit_code, failure=OutputWriteError("the disk is full"))
    assert main(["record", "train.py"]) == expected
    assert "snapconv: error: the disk is full" in capsys.readouterr().err


def test_a_fault_of_ours_is_shown_as_ours(recorded, capsys):
    recorded(failure=ZeroDivisionError("ours"), report="Traceback …\nZeroDivisionError: ours\n")
    assert main(["record", "train.py"]) == 1
    err = capsys.readouterr().err
    assert "a fault of snapconv ended the recording" in err
    assert "ZeroDivisionError: ours" in err


@pytest.mark.parametrize(
    ("raised", "shown"),
    [
        (ValueError("theirs"), "ValueError: theirs\n"),
        (SystemExit("a last word"), "a last word\n"),
        (SystemExit(4), ""),
        (SystemExit(None), ""),
    ],
)
def test_what_ended_the_program_is_shown_as_python_shows_it(recorded, capsys, raised, shown):
    recorded(exit_code=7, raised=raised)
    assert main(["record", "train.py"]) == 7
    about_the_capture, _, rest = capsys.readouterr().err.partition("\n")
    assert "there is no capture: train.py ended before" in about_the_capture
    assert rest == shown


def test_the_last_line_is_that_of_the_programs_exception(recorded, capsys):
    recorded(exit_code=1, path=Path("train.capture"), raised=ValueError("theirs"))
    assert main(["record", "train.py"]) == 1
    assert capsys.readouterr().err.splitlines()[-1] == "ValueError: theirs"


def test_a_forked_child_says_nothing_of_the_capture(recorded, capsys):
    recorded(exit_code=5, is_child=True)
    assert main(["record", "train.py"]) == 5
    assert capsys.readouterr().err == ""


def test_a_terminal_that_went_away_does_not_end_the_recording(monkeypatch):
    class Gone:
        def write(self, text):
            raise BrokenPipeError

        flush = write

    monkeypatch.setattr(sys, "stderr", Gone())
    terminal.say("anything")


def test_without_a_named_root_all_that_is_not_installed_counts(recorded, here):
    asked = recorded()
    main(["record", "train.py"])
    main(["record", "--project-root", "src", "train.py"])
    assert [options.project_root for *_, options in asked] == [here, here / "src"]
    assert [options.is_root_given for *_, options in asked] == [False, True]


def test_paths_of_a_script_that_lies_elsewhere_are_shown_from_its_folder(
    recorded, here, monkeypatch
):
    (here / "elsewhere").mkdir()
    monkeypatch.chdir(here / "elsewhere")
    asked = recorded()
    main(["record", str(here / "train.py")])
    assert asked[0][2].project_root == here


def test_an_included_folder_is_kept_in_full_and_a_package_by_its_name(recorded, here):
    asked = recorded()
    main(
        [
            "record",
            "--include",
            "../lib",
            "--include",
            "timm.models",
            "--include",
            "/data/lib",
            "train.py",
        ]
    )
    assert asked[0][2].includes == (str(here.parent / "lib"), "timm.models", "/data/lib")
