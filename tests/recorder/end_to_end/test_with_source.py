"""`record --with-source`: the project's files of the stacks, and of these only what ran."""

import json
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from snapconv.recorder.project_source import project_source
from tests.pages import page_values

ROOT = Path(__file__).parents[3]
MARK = "only_the_source_has_this_word"
TRAIN = f"""import torch

import helper
import net

# {MARK}
model = net.Net().cuda()
extra = helper.make()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(4):
    optimizer.zero_grad()
    model(torch.ones(1024, 512, device="cuda")).sum().backward()
    optimizer.step()
"""
NET = """from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(512, 512)

    def forward(self, x):
        return self.layer(x).relu()
"""
MAKE = "import torch\n\n\ndef make():\n    return torch.ones(1 << 18, device='cuda')\n"


def run(*words, cwd):
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{cwd.parent / 'elsewhere'}"}
    command = [sys.executable, "-m", "snapconv", *map(str, words)]
    done = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, encoding="utf-8", check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """A job that was recorded with its source and without, whose folder is gone since."""
    folder = tmp_path_factory.mktemp("with_source")
    files = {
        "job/train.py": TRAIN,
        "job/net.py": NET,
        "job/unused.py": "",
        "elsewhere/helper.py": MAKE,
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    project = folder / "job"
    for name, options in (("with", ["--with-source"]), ("without", [])):
        capture = folder / f"{name}.capture"
        run(
            "record", "--simulate", "--no-compute", *options, "-o", capture, "train.py", cwd=project
        )
    shutil.rmtree(project)
    (folder / "job").mkdir()
    return folder


def metadata(folder, name):
    return pickle.loads((folder / f"{name}.capture/snapshot.pickle").read_bytes())["snapconv"]


def test_the_files_of_the_project_in_stacks_are_kept_and_no_other(job):
    project = job / "job"
    assert metadata(job, "with")["source"] == {
        "files": {str(project / "net.py"): NET, str(project / "train.py"): TRAIN},
        "left_out": [],
    }


def test_what_changed_since_is_too_large_or_is_no_part_of_the_project_is_left_out(tmp_path):
    root = tmp_path / "job"
    names = ("own.py", "changed.py", "large.py", ".venv/own.py", "lib/site-packages/own.py")
    files = [root / name for name in names]
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("x = 1\n")
        os.utime(file, (1e9, 1e9))
    (root / "large.py").write_text("#" * (2 << 20))
    os.utime(root / "large.py", (1e9, 1e9))
    os.utime(root / "changed.py", (4e9, 4e9))
    outside = tmp_path / "secret.py"
    outside.write_text("secret")
    (root / "link.py").symlink_to(outside)
    paths = [*files, root / "link.py", outside, root / "gone.py", "<stdin>"]
    frames = [{"filename": str(path), "name": "f", "line": 1} for path in paths]
    snapshot = {"device_traces": [[{"frames": frames}]], "segments": []}
    assert project_source(snapshot, root) == {
        "files": {str(root / "own.py"): "x = 1\n"},
        "left_out": [str(root / name) for name in ("changed.py", "gone.py", "large.py")],
    }


def test_without_the_option_no_source_is_kept(job):
    assert metadata(job, "without")["source"] is None
    assert MARK.encode() not in (job / "without.capture/snapshot.pickle").read_bytes()


def test_annotate_shows_the_kept_source(job):
    out = run("annotate", "../with.capture", "--top", "20", cwd=job / "job")
    assert "net.py: " in out
    assert "(source as recorded)" in out
    row = next(line for line in out.splitlines() if "self.layer(x).relu()" in line)
    assert "MiB" in row
    assert " 10  " in row
    document = json.loads(run("annotate", "../with.capture", "--json", cwd=job / "job"))
    assert document["devices"][0]["has_recorded_source"]
    assert "moved" not in out


def test_a_line_that_moved_since_is_found_by_the_kept_source(job):
    newer = job / "newer"
    newer.mkdir()
    (newer / "net.py").write_text(f"# one\n# two\n# three\n{NET}")
    out = run("annotate", "../with.capture", "--source", newer, cwd=job / "job").splitlines()
    row = next(i for i, line in enumerate(out) if "self.layer(x).relu()" in line)
    assert " 13  " in out[row]
    assert out[row + 1].endswith("^ line 10 when recorded")


def test_a_page_shows_the_kept_source_if_asked(job):
    page = job / "with_source.html"
    run("view", "../with.capture", "--source", ".", "-o", page, cwd=job / "job")
    files = page_values(page, "0.detail")["source"]["files"]
    (net,) = [file for file in files if file["path"] == "net.py"]
    assert net["title"].endswith(" (source as recorded)")
    (row,) = [row for row in net["counting"] if "self.layer(x).relu()" in row[1]]
    assert row[0] == "10"
    assert min(row[2]) > 0


def test_no_report_page_or_export_has_the_source(job):
    outputs = {"view": "out.html", "export": "out.json", "to-sqlite": "out.sqlite"}
    for command, name in outputs.items():
        run(command, "../with.capture", "-o", name, cwd=job / "job")
    assert page_values(job / "job/out.html", "0.detail")["source"] is None
    for file in (job / "job").iterdir():
        assert MARK.encode() not in file.read_bytes()
    assert len(list((job / "job").iterdir())) >= len(outputs)
