"""`snapconv annotate`: figures by source line, and the lines of files that have changed since."""

import json
import re
from collections import Counter
from pathlib import Path

import pytest

import snapconv
from tests.builders import MIB, TraceBuilder, frame

FIXTURES = Path(__file__).parents[3] / "fixtures"
MODEL = "/home/me/job/net/model.py"
CODE = """import torch


def forward(x):
    hidden = torch.zeros(2)
    return hidden + x


def step(x):
    state = torch.zeros(8)
    return state
"""
HIDDEN, SUM, STATE = (
    frame("forward", MODEL, 5),
    frame("forward", MODEL, 6),
    frame("step", MODEL, 10),
)
MAIN = frame("<module>", "/home/me/job/train.py", 3)


@pytest.fixture
def recorded(tmp_path):
    """A file: 2 MiB live at line 5, 8 MiB at line 10; 4 MiB of line 6 were freed before the peak."""
    trace = TraceBuilder().segment(40 * MIB).alloc(2 * MIB, frames=[HIDDEN, MAIN])
    trace.alloc(4 * MIB, frames=[SUM, MAIN]).free().alloc(8 * MIB, frames=[STATE, MAIN])
    return trace.write(tmp_path / "run.pickle")


def project(tmp_path, text, path="project/net/model.py"):
    file = tmp_path / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return tmp_path / path.split("/", maxsplit=1)[0]


def answer(path, folder, **options):
    (annotation,) = snapconv.load(path).annotate(source=folder, **options)
    return annotation


def lines_of(annotation):
    return {line.line: line for file in annotation.files for line in file.lines}


def test_a_line_has_what_is_live_what_is_allocated_in_all_and_its_text(
    recorded, tmp_path, snapconv
):
    folder = project(tmp_path, CODE)
    code, out, _ = snapconv("annotate", recorded, "--source", folder, "--top", "9")
    assert code == 0
    assert out.startswith("cuda:0  10.00 MiB live at the peak (event 5): 10.00 MiB at 2 lines")
    lines = lines_of(answer(recorded, folder))
    figures = {n: (row.live_bytes, row.allocated_bytes, row.n_live) for n, row in lines.items()}
    assert figures == {
        5: (2 * MIB, 2 * MIB, 1),
        6: (0, 4 * MIB, 0),
        10: (8 * MIB, 8 * MIB, 1),
    }
    assert "2.00 MiB" in next(row for row in out.splitlines() if "hidden = torch" in row)
    # Line 6 is beside a line that counts, and shows what it allocated; line 1 is not shown.
    assert "4.00 MiB" in next(row for row in out.splitlines() if "return hidden + x" in row)
    assert "import torch" not in out


def test_a_line_that_allocates_for_others_has_its_callers(tmp_path, snapconv):
    """Two lines call `make` by one line of `wrapped`; a third line has less than half itself."""
    make, wrapped = frame("make", MODEL, 5), frame("wrapped", MODEL, 6)
    weights, cache = frame("weights", MODEL, 10), frame("cache", MODEL, 12)
    trace = TraceBuilder().segment(40 * MIB)
    trace.alloc(4 * MIB, frames=[make, wrapped, cache, MAIN])
    trace.alloc(9 * MIB, frames=[make, wrapped, weights, MAIN])
    trace.alloc(6 * MIB, frames=[STATE, MAIN])
    path = trace.write(tmp_path / "run.pickle")
    (device,) = json.loads(snapconv("annotate", path, "--json").out)["devices"]
    expected = [
        {"file": "net/model.py", "line": n, "function": function, "live_bytes": n_mib * MIB}
        for n, function, n_mib in ((10, "weights", 9), (12, "cache", 4))
    ]
    make_line = {"file": "net/model.py", "line": 5, "function": "make"}
    assert device["most_called"] == {**make_line, "callers": expected}
    out = snapconv("annotate", path).out
    callers = "9.00 MiB net/model.py:10 in weights, 4.00 MiB net/model.py:12 in cache"
    assert f"  net/model.py:5 is called by: {callers}\n" in out
    trace.alloc(8 * MIB, frames=[STATE, MAIN])
    path = trace.write(tmp_path / "run2.pickle")
    assert "is called by" not in snapconv("annotate", path).out
    assert json.loads(snapconv("annotate", path, "--json").out)["devices"][0]["most_called"] is None


def test_the_text_and_json_have_the_hottest_file_and_line_first(recorded, tmp_path, snapconv):
    folder = project(tmp_path, CODE)
    out = snapconv("annotate", recorded, "--source", folder, "--json").out
    (device,) = json.loads(out)["devices"]
    (file,) = device["files"]
    assert [row["line"] for row in file["lines"]] == [10, 5, 6]
    assert file["source"] == str(folder / "net" / "model.py")
    assert file["lines"][0]["text"] == "state = torch.zeros(8)"


def test_sums_are_those_of_the_allocations_by_line():
    """Counted here from the table of allocations."""
    session = snapconv.load(FIXTURES / "transformer.capture")
    (annotation,) = session.annotate()
    columns = session.columns()
    expected: Counter = Counter()
    for file, line, n_bytes, is_live, category in zip(
        *(
            columns[name].tolist()
            for name in ("file", "line", "block_bytes", "is_live_at_peak", "category")
        ),
        strict=True,
    ):
        if line >= 0:
            expected[file, line, "allocated"] += n_bytes
            expected[file, line, "live"] += n_bytes * is_live
            expected[file, line, "kept"] += n_bytes * (is_live and category == "activation")
    shown = Counter()
    for file in annotation.files:
        for row in file.lines:
            shown[file.path, row.line, "allocated"] += row.allocated_bytes
            shown[file.path, row.line, "live"] += row.live_bytes
            shown[file.path, row.line, "kept"] += row.kept_for_backward_bytes
    assert +shown == +expected
    assert sum(n for (_, _, kind), n in expected.items() if kind == "kept") > 0


def test_a_line_that_moved_is_found_by_its_recorded_text(recorded, tmp_path, snapconv):
    """The text is what torch-snapkit writes; the line stands in two functions now."""
    trace = TraceBuilder().segment(40 * MIB).alloc(2 * MIB, frames=[HIDDEN, MAIN])
    path = trace.write(tmp_path / "text.pickle", source_code={MODEL: CODE})
    decoy = "def other():\n    hidden = torch.zeros(2)\n"
    folder = project(tmp_path, f"{decoy}\n\n# a new line\n{CODE}")
    out = snapconv("annotate", path, "--source", folder).out
    assert lines_of(answer(path, folder))[5].current_line == 10
    shown = out.splitlines()
    row = next(i for i, line in enumerate(shown) if "2.00 MiB" in line and "hidden" in line)
    assert "10  " in shown[row]
    assert shown[row + 1].endswith("^ line 5 when recorded")


def test_a_line_whose_text_is_not_there_any_more_is_marked(tmp_path, snapconv):
    trace = TraceBuilder().segment(40 * MIB).alloc(2 * MIB, frames=[HIDDEN, MAIN])
    trace.alloc(MIB, frames=[STATE, MAIN])
    path = trace.write(tmp_path / "text.pickle", source_code={MODEL: CODE})
    folder = project(tmp_path, CODE.replace("torch.zeros(2)", "torch.empty(2)"))
    out = snapconv("annotate", path, "--source", folder).out
    assert "5?  hidden = torch.zeros(2)  in forward (changed since)" in out
    assert lines_of(answer(path, folder))[5].current_line is None
    assert lines_of(answer(path, folder))[10].current_line == 10


def test_without_recorded_text_a_line_out_of_its_function_is_marked(recorded, tmp_path, snapconv):
    folder = project(tmp_path, CODE.replace("\n\n\ndef step", "\n\n\n\n\n\ndef step"))
    out = snapconv("annotate", recorded, "--source", folder).out
    assert "10?  in step (moved: not in this function now)" in out
    assert "5  " in next(line for line in out.splitlines() if "hidden = torch" in line)


def test_where_no_line_matches_the_answer_says_so_and_has_the_figures(recorded, tmp_path, snapconv):
    folder = project(tmp_path, "print('another file of this name')\n")
    code, out, _ = snapconv("annotate", recorded, "--source", folder)
    assert code == 0
    assert f"no source of these lines in {folder}: pass --source FOLDER" in out
    assert "another file" not in out
    assert "8.00 MiB" in next(line for line in out.splitlines() if " 10  in step" in line)


@pytest.mark.parametrize(
    ("frames", "remedy"),
    [
        ([], "snapconv record records the stacks"),
        ([frame("gemm", "gemm.cu", 9)], "--include PACKAGE counts a library as the project"),
    ],
)
def test_without_a_line_of_the_project_the_answer_says_so(frames, remedy, tmp_path, snapconv):
    trace = TraceBuilder().segment().alloc(512, frames=frames)
    out = snapconv("annotate", trace.write(tmp_path / "library.pickle")).out
    assert f"no line of the project has any of it: {remedy}" in out


def test_nothing_outside_of_the_folder_is_read(tmp_path):
    secret = project(tmp_path, CODE, "elsewhere/model.py") / "model.py"
    trace = TraceBuilder().segment(40 * MIB).alloc(MIB, frames=[HIDDEN])
    above = frame("forward", "net/../../elsewhere/model.py", 5)
    path = trace.alloc(MIB, frames=[above]).write(tmp_path / "run.pickle")
    folder = project(tmp_path, "", "project/net/empty.py")
    (folder / "net/model.py").symlink_to(secret)
    assert [file.source for file in answer(path, folder).files] == [None, None]


@pytest.mark.parametrize(
    "name", ["n" * 300, "n/" * 3000, "n\0n", "n\ud800"], ids=["name", "path", "zero", "surrogate"]
)
def test_a_path_that_no_file_system_takes_is_one_that_is_not_there(name, tmp_path):
    line = frame("forward", f"/home/me/job/{name}.py", 5)
    trace = TraceBuilder().segment(40 * MIB).alloc(2 * MIB, frames=[line, MAIN])
    annotation = answer(trace.write(tmp_path / "run.pickle"), project(tmp_path, CODE))
    assert sum(row.live_bytes for row in lines_of(annotation).values()) == 2 * MIB


def test_a_folder_that_is_not_there_is_an_error(recorded, tmp_path, snapconv):
    code, _, err = snapconv("annotate", recorded, "--source", tmp_path / "none")
    assert code == 3
    assert "is no folder: name the folder with the project's source" in err


def test_a_finding_of_advise_stands_at_its_line(snapconv):
    """The script of the job keeps the output of line 27 in a list."""
    folder = FIXTURES / "ranks"
    command = ("annotate", folder / "rank5.capture", "--source", folder)
    out = snapconv(*command).out.splitlines()
    (finding,) = (line for line in out if "fault: Each iteration adds 1.00 MiB" in line)
    assert finding.startswith("  [1] likely fault: ")
    row = next(i for i, line in enumerate(out) if "5.00 MiB" in line and " 27  " in line)
    assert "output = model(" in out[row]
    assert out[row + 1].strip() == "^ [1]"
    (device,) = json.loads(snapconv(*command, "--json").out)["devices"]
    assert device["findings"][0]["line"] == 27
    assert [row["line"] for row in device["files"][0]["lines"] if 1 in row["findings"]] == [27]


def test_code_and_a_file_of_megabytes_are_only_read(tmp_path):
    trace = TraceBuilder().segment(40 * MIB).alloc(MIB, frames=[HIDDEN])
    path = trace.write(tmp_path / "run.pickle")
    broken = project(tmp_path, f"def forward(x):\n{'(' * 5000}\n\n\n    hidden = 1\n")
    assert answer(path, broken).files[0].source is None
    large = project(tmp_path, CODE + "#" * (5 << 20))
    assert answer(path, large).files[0].source is None


@pytest.mark.parametrize("line", [6, 12345, 123456])
def test_blanks_stand_between_all_columns_however_wide_they_are(line, tmp_path, snapconv):
    """The widest size has 11 characters: 1023.99 MiB, which block sizes of 512 bytes allow."""
    n_bytes = 1024 * MIB - 16 * 512
    trace = TraceBuilder().segment(2048 * MIB)
    trace.alloc(n_bytes, frames=[frame("forward", MODEL, line), MAIN])
    folder = project(tmp_path, CODE)
    words = ("annotate", trace.write(tmp_path / "run.pickle"), "--source", folder)
    lines = snapconv(*words).out.splitlines()
    (row,) = [text for text in lines if text.startswith(" ") and text.count("1023.99 MiB") == 3]
    assert row.split()[:7] == [*("1023.99", "MiB") * 3, str(line)]
    (head,) = [text for text in lines if text.split()[-1:] == ["line"]]
    for title, size in zip(("at peak", "backward", "in all"), re.finditer("MiB", row), strict=True):
        assert head.index(title) + len(title) == size.end(), title  # a figure ends below its head
