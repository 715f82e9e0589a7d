"""The commands that answer a question: one screen, for every file that can be read, and errors that help."""

import io
import json
from pathlib import Path

import pytest

from tests.builders import MIB, TraceBuilder, frame
from tests.unit.cli.conftest import screens

FIXTURES = Path(__file__).parents[3] / "fixtures"
FILES = sorted(
    path for path in FIXTURES.iterdir() if ".pickle" in path.name or ".html" in path.name
)
SCREEN = (40, 80)
AT_A_MOMENT = ("summary", "tree", "fragmentation", "annotate")
COMMANDS = (*AT_A_MOMENT, "oom", "verdict")
WHAT_IF = ("what-if", "--setting", "expandable_segments:True", "--capacity", "100GiB")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_device_of_every_file_is_answered_on_one_screen(
    path, snapconv, analysed_once, monkeypatch
):
    # The verdict shows the path, which may be long where the checkout lies deep.
    monkeypatch.chdir(path.parent)
    for command, *options in (*((name,) for name in COMMANDS), WHAT_IF):
        code, out, _ = snapconv(command, path.name, *options)
        assert code == 0
        for lines in screens(out, SCREEN[1]):
            assert 1 <= len(lines) <= SCREEN[0], command
            assert max(map(len, lines)) <= SCREEN[1], command


@pytest.mark.parametrize("command", COMMANDS)
def test_json_has_one_object_per_device(command, snapconv):
    code, out, _ = snapconv(command, FIXTURES / "several_devices.pickle", "--json")
    assert code == 0
    assert [found["device"] for found in json.loads(out)["devices"]] == [0, 2]
    code, out, _ = snapconv(command, FIXTURES / "several_devices.pickle", "--json", "--device", "2")
    assert [found["device"] for found in json.loads(out)["devices"]] == [2]


def test_the_device_that_ran_out_of_memory_comes_first_and_each_other_has_a_line(
    tmp_path, snapconv
):
    """The failed device has the lower peak; text has it first, JSON and the library keep their order."""
    failed = TraceBuilder(1).segment(20 * MIB).alloc(2 * MIB).oom(30 * MIB, MIB)
    path = TraceBuilder().segment(20 * MIB).alloc(18 * MIB).write(tmp_path / "two.pickle", failed)
    for command in COMMANDS:
        first, *_, last = snapconv(command, path).out.splitlines()
        assert first.startswith("cuda:1  ")
        assert last == "cuda:0  peak 18.00 MiB, 20.00 MiB reserved (--device 0 shows more)"
        found = json.loads(snapconv(command, path, "--json").out)["devices"]
        assert [one["failed"] for one in found] == ([True] if command == "oom" else [False, True])
    assert snapconv("verdict", path, "--device", "0").out.startswith("cuda:0  peak 18.00 MiB")


def test_notes_come_last_and_only_those_that_change_what_to_believe(snapconv):
    """The summary has all of them."""
    lines = snapconv("verdict", FIXTURES / "missing_times.pickle")
    assert "no-timestamps" not in lines.err
    assert "no-timestamps" in snapconv("summary", FIXTURES / "missing_times.pickle").err


@pytest.mark.parametrize("command", COMMANDS)
def test_a_device_that_is_not_there_is_an_error_that_names_those_that_are(command, snapconv):
    code, out, err = snapconv(command, FIXTURES / "several_devices.pickle", "--device", "1")
    assert (code, out) == (3, "")
    assert "has nothing of device 1; it has: 0, 2" in err


@pytest.mark.parametrize(
    ("moment", "code", "words"),
    [
        ("noon", 2, "iteration:3"),
        ("iteration:3", 3, "cuda:0 has no iteration 3; it has iterations 0 to 2"),
    ],
)
@pytest.mark.parametrize("command", AT_A_MOMENT)
def test_what_is_no_moment_of_the_file_is_an_error_that_helps(
    command, moment, code, words, snapconv
):
    done = snapconv(command, FIXTURES / "training_step.pickle", "--at", moment)
    assert (done.code, words in done.err) == (code, True)


@pytest.mark.parametrize(
    "moment", ["peak", "start", "end", "worst", "largest activations", "iteration:1", "17"]
)
def test_every_moment_can_be_asked_for(moment, snapconv):
    for command in AT_A_MOMENT:
        assert snapconv(command, FIXTURES / "training_step.pickle", "--at", moment)[0] == 0


def test_without_a_failed_request_the_peak_is_named_and_the_commands_that_go_on(snapconv):
    file = FIXTURES / "several_devices.pickle"
    lines = snapconv("oom", file).out.splitlines()
    assert lines[0] == "cuda:2  no failed allocation in the file; 54.96 MiB allocated at the peak"
    assert "  held by line" in lines
    assert f"  next: snapconv advise {file}  (what to change)" in lines


def test_growth_shows_the_device_that_grows_and_a_line_of_the_others(tmp_path, snapconv):
    steady = TraceBuilder().segment(80 * MIB).alloc(60 * MIB).free()
    grows = TraceBuilder(1).segment(20 * MIB)
    for _ in range(8):
        grows.alloc(MIB)
    lines = snapconv("growth", steady.write(tmp_path / "x.pickle", grows)).out.splitlines()
    assert lines[0].startswith(
        "cuda:1  growth per iteration is unknown: no optimizer step ends an iteration"
    )
    assert lines[1] == "  8.00 MiB in 8 allocations of this trace were never freed"
    assert (
        lines[-1]
        == "cuda:0  nothing that was allocated in this trace is left (--device 0 shows more)"
    )


def test_no_iteration_is_named_where_nothing_ends_one(snapconv):
    file = FIXTURES / "out_of_memory.pickle"
    assert "iteration" not in snapconv("summary", file, "--at", "end").out
    assert "iteration 5" in snapconv("summary", FIXTURES / "growing.pickle", "--at", "end").out


def test_the_shares_of_every_holder_table_add_up(snapconv):
    lines = snapconv("oom", FIXTURES / "out_of_memory.pickle", "--no-replay").out.splitlines()
    tables = "\n".join(lines).split("  held by ")[1:]
    sums = [
        sum(float(line.split()[2]) for line in table.splitlines()[1:] if " % " in line)
        for table in tables
    ]
    assert [round(one) for one in sums] == [100, 100]


def test_advise_offers_to_save_and_explains_a_goal_and_why_nothing_is_found(tmp_path, snapconv):
    first = snapconv("advise", FIXTURES / "training_step.pickle").out.splitlines()[-1].split("  ")
    assert first[-1] == "(changes with a price)"
    assert "trade" in snapconv(*first[1].split()[2:]).out
    file = TraceBuilder().segment(20 * MIB).alloc(18 * MIB).write(tmp_path / "x.pickle")
    missed = snapconv("advise", file, "--capacity", "10MiB").out
    assert (
        "at the peak   18.00 MiB unknown: no change that advise knows makes these smaller" in missed
    )
    assert "missed by" in missed
    shown = snapconv("advise", FIXTURES / "out_of_memory.pickle").out.splitlines()
    head, *_, goal, capacity, enough, command = shown
    assert (
        "memory ran out at serve.py:21, requesting 27.94 MiB; the program needs 202.31 MiB" in head
    )
    assert goal.endswith("a peak of at most 178.38 MiB: reached")
    assert capacity.endswith("200.00 MiB, of which PyTorch keeps 21.62 MiB cached")
    assert enough.split() == ["enough", "1", "alone"]
    assert command.startswith("  next: snapconv oom ")


LOG = """epoch 3
[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total
[rank1]: capacity of 80.00 GiB of which 1.00 GiB is free. Of the allocated memory 70.00 GiB is
[rank1]: allocated by PyTorch, and 5.00 GiB is reserved by PyTorch but unallocated.
"""


def test_torchs_own_message_is_explained_from_a_log_and_from_a_pipe(
    tmp_path, snapconv, monkeypatch
):
    log = tmp_path / "train.log"
    log.write_text(LOG, encoding="utf-8")
    code, out, err = snapconv("oom", "--message", log)
    assert (code, err) == (0, "")
    assert out.startswith("CUDA out of memory on device 1 (rank 1): fragmented\n")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(LOG.encode())))
    assert snapconv("oom", "--message", "-") == (0, out, "")
    assert snapconv("oom", "--message", LOG) == (0, out, "")
    code, values, _ = snapconv("oom", "--message", log, "--json")
    assert json.loads(values)["verdict"]["cause"] == "fragmented"
    for data in (LOG.encode("utf-16"), LOG.encode("utf-16-le")):
        log.write_bytes(data)
        assert snapconv("oom", "--message", log)[1] == out


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["oom"], 2, "give a SNAPSHOT or --message LOG"),
        (["oom", "FILE", "--message", "LOG"], 2, "give a SNAPSHOT or --message LOG, not both"),
        (["oom", "--message", "LOG"], 3, "--message takes a log, the text of an error, or -"),
        (["oom", "--message", "no such file"], 3, "cannot be read: No such file"),
        (["oom", "--message", "out of memory.log"], 3, "cannot be read: No such file"),
        (["oom", "--message", "FILE"], 3, "no out-of-memory message"),
        (["oom", "FILE", "--device-total", "80"], 2, "such as 24GiB"),
    ],
)
def test_a_wrong_question_has_an_error_that_helps(arguments, code, words, tmp_path, snapconv):
    file = FIXTURES / "out_of_memory.pickle"
    names = {"FILE": file, "LOG": tmp_path / "missing.log"}
    found, out, err = snapconv(*(names.get(word, word) for word in arguments))
    assert (found, out) == (code, "")
    assert words in " ".join(err.split())


def test_a_file_without_a_command_has_its_verdict_and_the_next_command(snapconv):
    file = str(FIXTURES / "out_of_memory.pickle")
    code, out, _ = snapconv(file)
    assert code == 0
    assert snapconv("verdict", file)[1] == out
    *_, last = out.splitlines()
    assert last == f"  next: snapconv oom {file}"
    assert snapconv(*last.split()[2:]).code == 0  # what it says to type can be typed


def test_a_folder_without_a_command_is_a_capture(snapconv, monkeypatch):
    monkeypatch.chdir(FIXTURES)
    code, out, _ = snapconv("transformer.capture", "--json")
    assert (code, json.loads(out)["devices"][0]["about"]) == (0, "peak")
    assert "blocks.*.mlp.2" in snapconv("summary", "transformer.capture").out


@pytest.mark.parametrize(
    ("word", "code", "words"),
    [
        ("sumary", 2, "No such command 'sumary'"),
        ("missing.pickle", 3, "missing.pickle: cannot be read"),
    ],
)
def test_what_is_no_file_and_no_command_has_the_error_of_what_it_looks_like(
    word, code, words, snapconv
):
    found, out, err = snapconv(word)
    assert (found, out) == (code, "")
    assert words in err


def test_a_goal_out_of_reach_says_the_most_that_can_be_saved(snapconv):
    out = snapconv("advise", FIXTURES / "out_of_memory.pickle", "--save", "100GiB").out
    assert "the batch or the sequence smaller: × 0.25" in out
    assert "impossible: no memory would remain for the peak of " in out
    assert "; the most that can be saved is 116.10 MiB" in out


def test_a_saving_that_shows_only_beside_others_says_so(snapconv):
    out = snapconv("advise", FIXTURES / "training_step.pickle", "--save", "1GiB").out
    why = "the backward pass in iteration 1 needs 1.23 GiB"
    assert f"saves      nothing alone ({why}); 98.64 MiB with the other changes" in out


def test_a_line_that_may_grow_is_named_by_the_verdict_and_by_advice(tmp_path, snapconv):
    builder = TraceBuilder().segment(20 * MIB)
    for _ in range(8):
        builder.alloc(MIB, frames=[frame("serve", "/home/me/project/serve.py", 11)])
    path, grows = (
        builder.write(tmp_path / "x.pickle"),
        "serve.py:11 kept growing to the end of the trace: 8.00 MiB in 8 allocations (a leak,",
    )
    assert grows in snapconv("verdict", path).out
    assert grows in snapconv("advise", path).out


@pytest.mark.parametrize(("text", "read"), [("38GB", "38 GiB"), ("1.5 gb", "1.5 GiB")])
def test_a_size_in_decimal_units_says_that_it_is_read_in_binary_ones(text, read, snapconv):
    _, out, err = snapconv("check", FIXTURES / "training_step.pickle", "--max-peak", text)
    assert f"note: --max-peak {text} is read as {read}" in err
    assert "note" not in out
    assert (
        "is read as"
        not in snapconv("check", FIXTURES / "training_step.pickle", "--max-peak", "38GiB").err
    )


def test_one_peak_has_one_unit_in_every_answer(snapconv):
    """Where one answer has GiB and the next MiB, people take them for two figures."""
    path = FIXTURES / "training_step.pickle"
    for command in (
        ("verdict",),
        ("summary",),
        ("advise",),
        ("advise", "--save", "300MiB"),
        ("what-if", "--search"),
    ):
        assert "1.23 GiB" in snapconv(command[0], path, *command[1:]).out
