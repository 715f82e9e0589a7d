"""The command line as a user meets it: exit codes, messages, files, streams."""

import gzip
import json
import os
import pickle
from pathlib import Path

import pytest

from scripts.fixtures.recorded_allocator import RecordedAllocator
from snapconv.cli.app import COMMANDS, GROUPS, main
from snapconv.cli.terminal import unobeyed
from snapconv.native.library import kind
from snapconv.version import VERSION
from tests.builders import TraceBuilder, frame
from tests.tables import ask

pytestmark = pytest.mark.usefixtures("in_its_folder")

FIXTURES = Path(__file__).parents[3] / "fixtures"
NEEDS_UNIX = pytest.mark.skipif(os.name != "posix", reason="needs a device that is a file")
FRAMES = [
    {"name": "forward", "filename": "/home/me/project/net.py", "line": 7},
    {"name": "<module>", "filename": "/home/me/project/train.py", "line": 3},
]
# Two reports of run.pickle, by what is said; an ordinal stands in the name where there are several.
NAMES = [
    ("run.pickle", [], "run.memory.sqlite"),
    ("run.pickle.gz", [], "run.memory.sqlite"),
    ("run.7.PKL", [], "run.7.memory.sqlite"),
    ("run", [], "run.memory.sqlite"),
    (".pickle", [], ".pickle.memory.sqlite"),
    ("run.pickle", ["-o", "r.sqlite"], "r.sqlite"),
    ("run.pickle", ["--output", "r.memory.sqlite"], "r.memory.sqlite"),
    ("run.pickle", ["-o", "r"], "r"),
]


def raw_snapshot(n_devices=1, frames=FRAMES):
    """Device n allocates n + 1 blocks of 1000 bytes (1024 each) in one segment of 2 MiB."""
    raw = {
        "segments": [],
        "device_traces": [],
        "allocator_settings": {},
        "external_annotations": [],
    }
    for device in range(n_devices):
        model = RecordedAllocator(device=device, base_addr=(device + 1) << 40)
        for _ in range(device + 1):
            model.malloc(1000, frames=frames)
        raw["device_traces"].append(model.trace())
        raw["segments"] += model.segments()
    return raw


def write(name="run.pickle", **options):
    data = pickle.dumps(raw_snapshot(**options))
    Path(name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def peak_in(report):
    return ask(report, "SELECT size_bytes FROM misc_sizes")[0][0]


# --- help and version


@pytest.mark.parametrize("columns", ["50", "80", "200"])
def test_help_describes_in_a_whole_sentence_what_every_command_does(snapconv, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", columns)
    done = snapconv("--help")
    assert (done.code, done.err) == (0, "")
    help_text = " ".join(done.out.split(f"{next(iter(GROUPS))}:")[1].split())
    assert "to-sqlite Convert a snapshot" in help_text
    assert "info Show what" in help_text
    assert "explain Show what" in help_text
    assert "..." not in help_text
    assert help_text.count(".") == len(COMMANDS)


@pytest.mark.parametrize("line", [["help", "oom"], ["oom", "-h"], ["oom", "--help"]])
def test_each_way_to_ask_for_help_shows_the_options_of_a_command(snapconv, line):
    code, out, _ = snapconv(*line)
    assert (code, out) == (0, snapconv("oom", "--help").out)
    assert "--device-total" in out


def test_help_without_a_command_lists_the_commands(snapconv):
    assert snapconv("help") == snapconv("--help")


def test_a_help_option_behind_a_script_is_the_scripts(folder, snapconv):
    done = snapconv("record", "missing.py", "-h")
    assert (done.code, "missing.py" in done.err) == (6, True)


@pytest.mark.parametrize(
    ("typed", "completed"), [("snapconv gro", "growth"), ("snapconv oom --dev", "--device")]
)
def test_a_shell_completes_commands_and_options(snapconv, monkeypatch, typed, completed):
    monkeypatch.setenv("_SNAPCONV_COMPLETE", "complete_zsh")
    monkeypatch.setenv("_TYPER_COMPLETE_ARGS", typed)
    code, out, _ = snapconv()
    assert code == 0
    assert completed in out


def test_without_a_command_the_help_is_shown_and_the_code_is_2(snapconv):
    done = snapconv()
    assert done.code == 2
    assert "to-sqlite" in done.out + done.err


def test_the_version_is_shown(snapconv):
    assert snapconv("--version") == (0, f"snapconv {VERSION} ({kind()})\n", "")


# --- wrong command lines, inputs and outputs


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        (["frobnicate"], "frobnicate"),
        (["to-sqlite"], "SNAPSHOT"),
        (["info"], "SNAPSHOT"),
        (["info", "run.pickle", "other.pickle"], "other.pickle"),
        (["to-sqlite", "run.pickle", "--nonsense"], "--nonsense"),
        (["to-sqlite", "run.pickle", "--device", "one"], "--device"),
    ],
)
def test_a_wrong_command_line_ends_with_2_and_is_named(folder, snapconv, argv, named):
    write()
    done = snapconv(*argv)
    assert (done.code, done.out) == (2, "")
    assert named in done.err
    assert "--help" in done.err
    assert names(folder) == ["run.pickle"]


BAD = FIXTURES / "bad"
EXPECTED = json.loads((FIXTURES / "expected.json").read_text(encoding="utf-8"))["bad"]
INPUTS = {name: ((BAD / name).read_bytes(), about["says"]) for name, about in EXPECTED.items()} | {
    "list.pickle": (pickle.dumps([1, 2, 3]), "a list of 3 int"),
    "packed.pickle": (b"PK\x03\x04" + bytes(26), "cannot be unpacked"),
}


@pytest.mark.parametrize("command", ["to-sqlite", "info"])
@pytest.mark.parametrize("name", INPUTS)
def test_an_input_that_cannot_be_used_ends_with_3_and_shows_why_and_an_unsafe_one_with_4(
    folder, snapconv, name, command
):
    data, shown = INPUTS[name]
    Path(name).write_bytes(data)
    done = snapconv(command, name)
    is_unsafe = name in EXPECTED and EXPECTED[name]["error"] == "UnsafePickleError"
    assert (done.code, done.out) == (4 if is_unsafe else 3, "")
    assert done.err.startswith(f"error: {name}: ")
    assert shown in done.err
    assert names(folder) == [name]


@pytest.mark.parametrize(
    ("path", "advice"), [("missing.pickle", "check the path"), (".", "name one of its files")]
)
def test_a_file_that_cannot_be_opened_is_named_with_advice(folder, snapconv, path, advice):
    done = snapconv("to-sqlite", path, "-o", "r.sqlite")
    assert done.code == 3
    assert done.err.startswith(f"error: {path}: ")
    assert advice in done.err


@pytest.mark.parametrize(
    ("line", "code", "kind", "words"),
    [
        (
            ["summary", "missing.pickle", "--json"],
            3,
            "InputError",
            "missing.pickle: cannot be read",
        ),
        (["missing.pickle", "--json"], 3, "InputError", "check the path"),
        (["check", "missing.pickle", "--max-peak", "1GiB", "--json"], 3, "InputError", "missing"),
        (
            ["to-sqlite", "run.pickle", "-o", "no/r.sqlite", "--json"],
            5,
            "OutputWriteError",
            "create it first",
        ),
        (["oom", "--json"], 2, "UsageError", "give a SNAPSHOT"),
        (["tree", "run.pickle", "--top", "0", "--json"], 2, "UsageError", "--top"),
    ],
)
def test_with_json_an_error_is_one_document_on_stdout(folder, snapconv, line, code, kind, words):
    write()
    done = snapconv(*line)
    error = json.loads(done.out)["error"]
    assert (done.code, error["exit_code"], error["kind"]) == (code, code, kind)
    assert words in error["message"]
    assert words in " ".join(done.err.split())
    assert snapconv(*(word for word in line if word != "--json")).out == ""


def test_a_limit_that_does_not_hold_leaves_the_answer_as_the_one_document(folder, snapconv):
    write()
    done = snapconv("check", "run.pickle", "--max-peak", "1B", "--json")
    assert (done.code, json.loads(done.out)["holds"]) == (7, False)


def test_top_is_how_many_rows_each_table_of_the_text_has(snapconv):
    def n_lines(*words):
        return snapconv(words[0], FIXTURES / "training_step.pickle", *words[1:]).out.count(" in ")

    assert n_lines("summary", "--top", "1") < n_lines("summary") < n_lines("summary", "--top", "40")
    assert n_lines("oom", "--top", "1") < n_lines("oom")


def test_top_shortens_lists_by_size_and_leaves_every_device_and_category(folder, snapconv):
    write("run.pickle", n_devices=2)
    whole, short = (
        json.loads(snapconv("summary", FIXTURES / "perceptron.pickle", "--json", *top).out)[
            "devices"
        ][0]
        for top in ([], ["--top", "2"])
    )
    assert len(whole["lines"]) > 2
    assert short["lines"] == whole["lines"][:2]
    assert short["categories"] == whole["categories"]
    devices = json.loads(snapconv("summary", "run.pickle", "--json", "--top", "1").out)["devices"]
    assert [one["device"] for one in devices] == [0, 1]


class Asks:
    """Pickles into a request to make a folder."""

    def __reduce__(self):
        return os.mkdir, ("made-by-the-pickle",)


@pytest.mark.parametrize("command", ["to-sqlite", "info"])
def test_a_pickle_that_requests_code_ends_with_4_names_it_and_runs_nothing(
    folder, snapconv, command
):
    Path("run.pickle").write_bytes(
        pickle.dumps({"segments": [], "device_traces": [], "extra": Asks()})
    )
    done = snapconv(command, "run.pickle")
    assert (done.code, done.out) == (4, "")
    assert f"{os.mkdir.__module__}.mkdir" in done.err
    assert "at byte " in done.err
    assert names(folder) == ["run.pickle"]


def test_a_report_that_exists_ends_with_5_and_stays_as_it_is(folder, snapconv):
    write()
    Path("run.memory.sqlite").write_text("precious")
    done = snapconv("to-sqlite", "run.pickle")
    assert (done.code, done.out) == (5, "")
    assert "run.memory.sqlite exists already" in done.err
    assert "--force" in done.err
    assert Path("run.memory.sqlite").read_text() == "precious"


@pytest.mark.parametrize(
    ("output", "advice"),
    [
        ("no/r.sqlite", "create it first"),
        ("sub", "a folder"),
        pytest.param("/dev/null", "regular", marks=NEEDS_UNIX),
        ("-", "name a file"),
        ("newdir/", "newdir/NAME"),
        ("sub/", "sub/NAME"),
    ],
)
def test_an_output_that_cannot_be_written_ends_with_5_and_shows_what_to_do(
    folder, snapconv, output, advice
):
    write()
    Path("sub").mkdir()
    done = snapconv("to-sqlite", "run.pickle", "-o", output, "--force")
    assert (done.code, done.out) == (5, "")
    assert f"cannot write {output}: " in done.err
    assert advice in done.err
    assert names(folder) == ["run.pickle", "sub"]


@pytest.mark.parametrize("output", [".", "/"])
def test_an_output_without_a_name_ends_with_5(folder, snapconv, output):
    write()
    assert snapconv("to-sqlite", "run.pickle", "-o", output).code == 5


@pytest.mark.parametrize("output", ["run.pickle", "link", "./sub/../run.pickle"])
def test_the_snapshot_itself_is_never_replaced(folder, snapconv, output):
    write()
    Path("sub").mkdir()
    Path("link").symlink_to("run.pickle")
    before = Path("run.pickle").read_bytes()
    assert snapconv("to-sqlite", "run.pickle", "-o", output, "--force").code == 5
    assert Path("run.pickle").read_bytes() == before


# --- what is written


@pytest.mark.parametrize(("name", "options", "report"), NAMES)
def test_a_report_is_named_after_the_snapshot_or_as_it_is_configured(
    folder, snapconv, name, options, report
):
    write(name)
    done = snapconv("to-sqlite", name, *options)
    assert done.code == 0
    assert f"written: {folder / report}\n" in done.out
    assert names(folder) == sorted([name, report])
    assert peak_in(report) == 1024


@pytest.mark.parametrize("command", ["to-sqlite", "view", "export"])
def test_the_current_folder_gets_every_output_and_of_one_name_only_the_first(
    folder, snapconv, command
):
    """The snapshots may lie in somebody else's folders."""
    for sub in ("a", "b"):
        Path(sub).mkdir()
        write(f"{sub}/run.pickle")
    assert snapconv(*command.split(), "a/run.pickle").code == 0
    (output,) = set(names(folder)) - {"a", "b"}
    written = Path(output).read_bytes()
    done = snapconv(*command.split(), "b/run.pickle")
    assert (done.code, f"{output} exists already" in done.err) == (5, True)
    assert Path(output).read_bytes() == written
    assert names(folder / "a") == names(folder / "b") == ["run.pickle"]


@pytest.mark.parametrize(
    ("options", "reports"),
    [
        ([], ["run.cuda0.memory.sqlite", "run.cuda1.memory.sqlite"]),
        (["-o", "r.sqlite"], ["r.cuda0.sqlite", "r.cuda1.sqlite"]),
        (["-o", "r"], ["r.cuda0", "r.cuda1"]),
        (["-o", "r.sqlite", "--device", "1"], ["r.sqlite"]),
    ],
)
def test_every_device_gets_its_own_report(folder, snapconv, options, reports):
    write(n_devices=2)
    done = snapconv("to-sqlite", "run.pickle", *options)
    assert done.code == 0
    assert names(folder) == sorted(["run.pickle", *reports])
    assert [peak_in(report) for report in reports] == [1024, 2048][-len(reports) :]
    assert "cuda:1" in done.out


@pytest.mark.parametrize(
    ("options", "root", "file"),
    [
        ([], "/home/me/project", "net.py"),
        (["--project-root", "/home/me"], "/home/me", "project/net.py"),
    ],
)
def test_the_projects_root_is_inferred_or_given(folder, snapconv, options, root, file):
    write()
    (state,) = json.loads(snapconv("summary", "run.pickle", "--json", *options).out)["devices"]
    assert state["project_root"] == root
    assert state["lines"][0]["line"]["file_path"] == file


def test_the_json_is_one_document_and_agrees_with_the_report(folder, snapconv):
    write(n_devices=2)
    done = snapconv("to-sqlite", "run.pickle", "--json")
    for report in json.loads(done.out)["reports"]:
        assert (
            peak_in(report["output"]) == report["peak_usage_bytes"] == 1024 * (report["device"] + 1)
        )
        held = report["categories_at_peak"].values()
        assert sum(category["block_bytes"] for category in held) == report["peak_usage_bytes"]


@pytest.mark.parametrize("command", ["to-sqlite", "info"])
def test_notes_go_to_stderr_and_into_the_json(folder, snapconv, command):
    write(frames=None)
    plain = snapconv(command, "run.pickle")
    assert "note: no-stacks: " in plain.err
    assert "no-stacks" not in plain.out
    as_json = snapconv(command, "run.pickle", "--json", *["--force"][: command == "to-sqlite"])
    assert as_json.err == plain.err
    values = json.loads(as_json.out)
    notes = values["notes"] if command == "info" else values["reports"][0]["notes"]
    assert "no-stacks" in [note["slug"] for note in notes]


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_quiet_prints_nothing_and_writes(folder, snapconv, options):
    write(frames=None)
    assert snapconv("to-sqlite", "run.pickle", "-q", *options) == (0, "", "")
    assert names(folder) == ["run.memory.sqlite", "run.pickle"]


HOSTILE = "##[add-mask]/ ##[stop-commands]x"


@pytest.mark.parametrize(
    "arguments", [["info"], ["info", "--json"], ["tree"], ["summary", "--json"], []]
)
def test_no_name_of_a_file_is_a_command_for_githubs_runner(
    tmp_path, monkeypatch, capsys, arguments
):
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    trace = TraceBuilder().segment().alloc(512, frames=[frame(HOSTILE, f"/home/me/{HOSTILE}.py")])
    path = trace.write(tmp_path / "x.pickle", allocator_settings={HOSTILE: HOSTILE})
    main([*arguments[:1], str(path), *arguments[1:]])
    said = capsys.readouterr()
    assert "add-mask" in said.out + said.err
    assert "##[" not in said.out + said.err


def test_a_line_that_begins_like_a_command_for_githubs_runner_is_broken_up(monkeypatch):
    assert unobeyed("  ::add-mask::x") == "  ::add-mask::x"
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    assert unobeyed("a ::b\n  ::add-mask::x") == "a ::b\n  : :add-mask::x"
