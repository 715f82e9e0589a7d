"""`snapconv view --source`: the code that a page has, and what it leaves out."""

import pytest

import snapconv
from tests.builders import MIB, TraceBuilder, frame
from tests.pages import page_values

MODEL, TRAIN = "/home/me/job/net/model.py", "/home/me/job/train.py"
CODE = """import torch


def forward(x):
    hidden = torch.zeros(2)
    return hidden + x


password = "secret"


def step(x):
    state = torch.zeros(8)
    return [torch.ones(4) for _ in x]
"""
MAIN = frame("<module>", TRAIN, 3)
HIDDEN, STATE = frame("forward", MODEL, 5), frame("step", MODEL, 13)
LIST = [frame("<listcomp>", MODEL, 14), frame("step", MODEL, 14)]


@pytest.fixture
def folder(tmp_path):
    """The project today: two lines were added before ``step``."""
    folder = tmp_path / "project"
    (folder / "net").mkdir(parents=True)
    (folder / "net/model.py").write_text(CODE, encoding="utf-8")
    (folder / "train.py").write_text("import net\n\nnet.run()\nprint('done')\n", encoding="utf-8")
    return folder


@pytest.fixture
def trace():
    """A job with 8 MiB live of line 13, 2 of line 5, and 1 + 3 of line 14 and its comprehension."""
    trace = TraceBuilder().segment(40 * MIB).alloc(2 * MIB, frames=[HIDDEN, MAIN])
    trace.alloc(8 * MIB, frames=[STATE, MAIN])
    return trace.alloc(3 * MIB, frames=[*LIST, MAIN]).alloc(MIB, frames=[LIST[1], MAIN])


def source_of(page):
    return page_values(page, "0.detail")["source"]


def rows_of(file, rows="counting"):
    """The rows with figures by their numbers: text, bytes live and in all, and recorded lines."""
    return {
        number: [text.strip(), sizes[0], sizes[-1], lines]
        for number, text, sizes, lines in file[rows]
        if sizes
    }


def test_the_page_has_the_bytes_of_annotate_around_the_lines_that_count(
    trace, folder, tmp_path, snapconv
):
    path = trace.write(tmp_path / "run.pickle")
    page = tmp_path / "page.html"
    assert snapconv("view", path, "--source", folder, "-o", page).code == 0
    source = source_of(page)
    assert page_values(page)["has_source"]
    assert source["head"][0] == (
        "cuda:0  14.00 MiB live at the peak (event 4): 14.00 MiB at 4 lines of the project"
    )
    assert source["columns"] == ["at peak", "backward", "in all"]
    model, train = source["files"]
    assert model["title"] == "net/model.py: 14.00 MiB"
    assert rows_of(model) == {
        "5": ["hidden = torch.zeros(2)", 2 * MIB, 2 * MIB, [5]],
        "13": ["state = torch.zeros(8)", 8 * MIB, 8 * MIB, [13]],
        "14": ["return [torch.ones(4) for _ in x]", 4 * MIB, 4 * MIB, [14]],
    }
    # A line that only calls others has no bytes; it is shown when a link leads to it.
    assert train["counting"] == []
    assert rows_of(train, "all") == {"3": ["net.run()", 0, 0, [3]]}
    terminal = snapconv("annotate", path, "--source", folder).out
    for _, text, *_ in model["counting"]:
        assert text in terminal


def test_the_rest_of_a_file_and_files_outside_the_folder_are_left_out(folder, tmp_path, snapconv):
    outside = tmp_path / "elsewhere.py"
    outside.write_text(CODE, encoding="utf-8")
    (folder / "net/link.py").symlink_to(outside)
    trace = TraceBuilder().segment(40 * MIB).alloc(2 * MIB, frames=[HIDDEN, MAIN])
    for name in ("net/link.py", "net/../../elsewhere.py"):
        trace.alloc(MIB, frames=[frame("forward", f"/home/me/job/{name}", 5), MAIN])
    page = tmp_path / "page.html"
    path = trace.write(tmp_path / "run.pickle")
    assert snapconv("view", path, "--source", folder, "-o", page).code == 0
    files = source_of(page)["files"]
    texts = [row[1].strip() for file in files for row in file["all"]]
    assert texts.count("hidden = torch.zeros(2)") == 1
    assert sum("import torch" in text or "secret" in text for text in texts) == 0


def test_a_line_that_moved_is_found_by_its_text_or_marked(trace, folder, tmp_path):
    path = trace.write(tmp_path / "run.pickle", source_code={MODEL: CODE})
    newer = CODE.replace("def step", "# two\n# lines\ndef step").replace("zeros(2)", "empty(2)")
    (folder / "net/model.py").write_text(newer, encoding="utf-8")
    page = snapconv.load(path).view(tmp_path / "page.html", source=folder).path
    file = source_of(page)["files"][0]
    assert ["", "^ line 13 when recorded", [], []] in file["counting"]
    rows = rows_of(file)
    assert rows["15"] == ["state = torch.zeros(8)", 8 * MIB, 8 * MIB, [13]]
    text = "hidden = torch.zeros(2)  in forward (changed since)"
    assert rows["5?"] == [text, 2 * MIB, 2 * MIB, [5]]


def test_a_page_has_no_source_unless_asked(trace, tmp_path, monkeypatch, folder):
    monkeypatch.chdir(folder)
    page = snapconv.load(trace.write(tmp_path / "run.pickle")).view(tmp_path / "page.html").path
    assert source_of(page) is None
    assert not page_values(page)["has_source"]


def test_an_event_of_a_range_has_the_number_of_the_file(trace, folder, tmp_path):
    session = snapconv.load(trace.write(tmp_path / "run.pickle")).between("2", "3")
    source = source_of(session.view(tmp_path / "page.html", source=folder).path)
    assert source["head"][0].startswith("cuda:0  13.00 MiB live at the peak of the range (event 3)")


def test_a_folder_that_is_not_there_is_an_error_and_writes_no_page(trace, tmp_path, snapconv):
    path, page = trace.write(tmp_path / "run.pickle"), tmp_path / "page.html"
    code, _, err = snapconv("view", path, "--source", tmp_path / "none", "-o", page)
    assert code == 3
    assert "is no folder: name the folder with the project's source" in err
    assert not page.exists()


def test_two_files_have_each_its_own_source(trace, folder, tmp_path, snapconv):
    older = TraceBuilder().segment(40 * MIB).alloc(MIB, frames=[HIDDEN, MAIN])
    paths = [older.write(tmp_path / "old.pickle"), trace.write(tmp_path / "new.pickle")]
    page = tmp_path / "page.html"
    assert snapconv("view", *paths, "--source", folder, "-o", page).code == 0
    sources = [page_values(page, f"{number}.detail")["source"] for number in (0, 1)]
    titles = [source["files"][0]["title"] for source in sources]
    assert titles == ["net/model.py: 1.00 MiB", "net/model.py: 14.00 MiB"]
