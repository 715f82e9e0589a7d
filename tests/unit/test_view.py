"""From files to a page: its name, what is refused, and that nothing in it can run or be requested."""

import base64
import hashlib
import re
from pathlib import Path

import pytest

from snapconv import load
from snapconv.cli.app import main
from snapconv.errors import OutputExistsError
from tests.builders import TraceBuilder, frame
from tests.pages import page_values

pytestmark = pytest.mark.usefixtures("in_its_folder")

FIXTURES = Path(__file__).parents[2] / "fixtures"
CAPTURE = FIXTURES / "transformer.capture"
SCRIPT = re.compile(rb"<script([^>]*)>(.*?)</script>", re.DOTALL)
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&\u202e" + "x" * 100_000


@pytest.fixture(autouse=True)
def _temporary_folder(tmp_path, monkeypatch):
    """Pages that have no name go where pytest tidies up."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


@pytest.fixture
def run(tmp_path):
    """A snapshot of 512 bytes, ``run.pickle``."""
    return TraceBuilder().segment().alloc(512).write(tmp_path / "run.pickle")


def written(path, *others, **options):
    """The page that ``snapconv view`` writes of a file, or two."""
    given = [text for name, value in options.items() for text in (f"--{name}", str(value))]
    assert main(["view", str(path), *map(str, others), *given, "--quiet"]) == 0
    name = f"{(*others, path)[0].with_suffix('').name}.{'compare' if others else 'view'}.html"
    return Path(options.get("output", name))


def test_a_page_is_named_after_its_snapshot(run):
    assert written(run) == Path("run.view.html")
    assert page_values(Path("run.view.html"))["files"][0]["name"] == "run.pickle"


def test_a_comparison_is_named_after_the_newer_file(run, tmp_path):
    newer = TraceBuilder().segment().alloc(1024).write(tmp_path / "newer.pickle")
    values = page_values(written(run, newer))
    assert [file["name"] for file in values["files"]] == ["run.pickle", "newer.pickle"]
    assert [device["peak_bytes"] for device in values["devices"]] == [512, 1024]


def test_an_existing_page_is_replaced_only_with_force(run):
    written(run)
    assert main(["view", str(run)]) == 5
    assert main(["view", str(run), "--force"]) == 0


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["-o", "run.pickle", "--force"], 5, "the snapshot itself"),
        (["-o", "-"], 5, "cannot write -"),
        (["-o", "/"], 5, "names no file"),
        (["-o", "pages/"], 5, "it is a folder's name"),
        (["-o", "missing/page.html"], 5, "cannot write missing/page.html"),
        (["--device", "3"], 3, "nothing of device 3; it has: 0"),
    ],
)
def test_what_cannot_be_written_or_shown_is_refused(run, capsys, arguments, code, message):
    assert main(["view", str(run), *arguments]) == code
    assert message in capsys.readouterr().err


def test_a_session_writes_the_page_that_the_command_writes(tmp_path):
    session = load(CAPTURE)
    made = session.view(tmp_path / "of_session.html")
    assert main(["view", str(CAPTURE), "-o", str(tmp_path / "of_command.html"), "-q"]) == 0
    assert made.path.read_bytes() == (tmp_path / "of_command.html").read_bytes()
    with pytest.raises(OutputExistsError):
        session.view(made.path)


def test_a_session_keeps_its_devices_and_is_compared_at_the_first_that_both_have(tmp_path):
    session = load(FIXTURES / "several_devices.pickle")
    number = session.devices[-1].device.device
    names = [one["name"] for one in page_values(session.of_device(number).view().path)["devices"]]
    assert names == [f"cuda:{number}"]
    compared = session.of_device(number).view(compared_with=session)
    values = page_values(compared.path)
    assert [device["name"] for device in values["devices"]] == [f"cuda:{number}"] * 2
    assert compared.path.name == "several_devices.compare.html"
    differences = {row[3] for row in values["comparison"]["line"]}
    assert differences == {"same"}


def test_devices_of_two_kinds_have_nothing_to_compare():
    page = written(FIXTURES / "host_only.pickle", FIXTURES / "perceptron.pickle")
    assert page_values(page)["comparison"] is None


def test_of_files_with_several_devices_the_first_that_both_have_is_compared(tmp_path):
    paths = []
    for name, first in (("old", 0), ("new", 1)):
        builders = [
            TraceBuilder(device=first + i).segment().alloc(512 << first + i) for i in range(2)
        ]
        paths.append(builders[0].write(tmp_path / f"{name}.pickle", builders[1]))
    devices = page_values(written(paths[0], paths[1]))["devices"]
    assert [(device["name"], device["peak_bytes"]) for device in devices] == [("cuda:1", 1024)] * 2


def test_a_page_shows_the_devices_that_are_wanted(tmp_path):
    other = TraceBuilder(device=1).segment().alloc(4096)
    path = TraceBuilder().segment().alloc(512).write(tmp_path / "two.pickle", other)
    both = page_values(written(path))
    one = page_values(written(path, device=1, output=tmp_path / "one.html"))
    assert [device["name"] for device in both["devices"]] == ["cuda:0", "cuda:1"]
    assert [device["peak_bytes"] for device in one["devices"]] == [4096]


def test_the_figures_of_a_page_are_those_of_the_library(run):
    device = page_values(written(run))["devices"][0]
    analysis = load(run).devices[0]
    assert device["peak_bytes"] == analysis.replay.allocated.peak == 512
    assert device["peak_event"] == analysis.peak_event
    assert sum(n_bytes for _, n_bytes, *_ in device["peak_categories"]) == 512
    assert device["reserved_peak_bytes"] == analysis.replay.reserved.peak
    assert device["history"] == analysis.history.verdict.value


def test_the_same_file_gives_the_same_page(run, tmp_path):
    pages = [written(run, output=tmp_path / name) for name in ("a.html", "b.html")]
    assert pages[0].read_bytes() == pages[1].read_bytes()


def test_only_the_program_may_run_and_nothing_may_load(run):
    page = written(run).read_bytes()
    programs = [
        content for attributes, content in SCRIPT.findall(page) if b"octet-stream" not in attributes
    ]
    assert len(programs) == 1
    digest = base64.b64encode(hashlib.sha256(programs[0]).digest()).decode()
    policy = re.search(rb'Content-Security-Policy" content="([^"]*)"', page).group(1).decode()
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    assert (rules["default-src"], rules["script-src"]) == ("'none'", f"'sha256-{digest}'")
    assert rules["img-src"] == "data: blob:"
    assert re.findall(rb"https?://(?!www\.w3\.org/2000/svg)[^\s\"']*", page) == []


def test_names_of_a_file_are_nowhere_in_the_markup(tmp_path):
    marks = [
        {"name": HOSTILE, "stage": stage, "time_us": 1_700_000_000_000_000 + i, "device": 0}
        for i, stage in enumerate(("START", "END"))
    ]
    builder = TraceBuilder().segment().alloc(512, frames=[frame(HOSTILE, f"/x/{HOSTILE}.py")])
    path = builder.write(tmp_path / "<b>&'\"run.pickle", external_annotations=marks)
    page = written(path, output=tmp_path / "page.html").read_bytes()
    clean = written(TraceBuilder().segment().alloc(512).write(tmp_path / "run.pickle")).read_bytes()
    assert b"alert(" not in page
    assert b"<b>" not in page
    assert len(page) < len(clean) + 4000
    assert re.findall(rb"<[a-z!/][^>\s]*", page.split(b"<script", 1)[0]) == re.findall(
        rb"<[a-z!/][^>\s]*", clean.split(b"<script", 1)[0]
    )


def test_the_command_says_what_it_wrote(run, capsys):
    assert main(["view", str(run)]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"written: {run.with_name('run.view.html')} (")


def test_the_command_opens_the_page_where_that_is_wanted(run, monkeypatch, capsys):
    opened = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    assert main(["view", str(run), "--open", "-q"]) == 0
    assert opened == [run.with_name("run.view.html").as_uri()]
    assert capsys.readouterr().out == ""


def test_a_capture_with_times_shows_them(tmp_path):
    times = page_values(written(CAPTURE, output=tmp_path / "t.html"))["files"][0]["times"]
    linear = next(row for row in times["operations"] if row["name"] == "linear")
    assert linear["n_calls"] == 9
    forward = sum(row["forward_ms"] for row in times["operations"])
    assert sum(row["forward_ms"] for row in times["modules"]) == pytest.approx(forward)
