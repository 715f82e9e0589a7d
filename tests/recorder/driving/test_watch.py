"""``snapconv watch``: a program runs as it would alone, and leaves a capture where its memory runs out."""

import logging
import os
import pickle
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import snapconv  # noqa: E402  # after the skip
from snapconv.cli.app import main  # noqa: E402
from snapconv.errors import RecorderError  # noqa: E402
from snapconv.recorder import environment, requests  # noqa: E402
from snapconv.simulation import SimulationOptions, simulated  # noqa: E402

ROOT = Path(__file__).parents[3]
PACKAGE = Path(snapconv.__file__).parent

GROWS = """
import sys, torch
layer = torch.nn.Linear(256, 256).cuda()
optimizer = torch.optim.Adam(layer.parameters())
kept = []
for step in range(100):
    kept.append(layer(torch.ones(4096, 256, device="cuda")))
    kept[-1].sum().backward(retain_graph=True)
    optimizer.step()
"""


@pytest.fixture
def watch(tmp_path, monkeypatch, capfd):
    """Run a script under ``watch`` on a simulated GPU of 64 MiB."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setattr(environment, "_has_driver", lambda: True)
    log = logging.getLogger("snapconv")
    before = log.level, log.propagate, log.handlers[:]

    def watch(script, *arguments, options=()):
        (tmp_path / "train.py").write_text(textwrap.dedent(script), encoding="utf-8")
        with simulated(SimulationOptions(capacity_bytes=64 << 20)):
            code = main(["watch", *options, "train.py", *arguments])
        return code, capfd.readouterr()

    yield watch
    log.setLevel(before[0])
    log.propagate = before[1]
    log.handlers[:] = before[2]


def captures(folder):
    return sorted(path.name for path in folder.iterdir())


def test_memory_that_runs_out_leaves_a_capture_and_the_programs_own_traceback(watch, tmp_path):
    code, shown = watch(GROWS)
    assert code == 1
    (name,) = captures(tmp_path / "captures")
    assert name.startswith("oom-0000")
    assert "OutOfMemoryError" in shown.err
    assert f"captures/{name}" in shown.err
    assert f"{PACKAGE}/" not in shown.err.split("Traceback")[1]
    snapshot = pickle.loads((tmp_path / "captures" / name / "snapshot.pickle").read_bytes())
    assert snapshot["snapconv"]["ended"]["how"] == "oom"
    assert snapshot["device_traces"][0][-1]["action"] == "oom"


def test_every_rank_has_a_capture_of_its_own(watch, tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "3")
    watch(GROWS, options=["-o", "elsewhere"])
    (name,) = captures(tmp_path / "elsewhere")
    assert name.startswith("rank3-oom-")


def test_a_program_that_has_enough_leaves_nothing(watch, tmp_path):
    code, shown = watch(
        """
        import sys, torch
        print(torch.ones(3, device="cuda").sum().item(), sys.argv[1:])
        sys.exit(5)
        """,
        "--lr",
        "3",
    )
    assert (code, shown.out, shown.err) == (5, "3.0 ['--lr', '3']\n", "")
    assert captures(tmp_path / "captures") == []


def test_an_oom_that_the_program_survives_is_captured_too_and_no_more_than_wanted(watch, tmp_path):
    code, _ = watch(
        """
        import torch
        for _ in range(5):
            try:
                torch.empty(1 << 30, device="cuda")
            except torch.OutOfMemoryError:
                pass
        """,
        options=["--max-captures", "2"],
    )
    assert code == 0
    assert len(captures(tmp_path / "captures")) == 2


def test_what_it_cannot_do_is_a_warning_and_not_the_programs_affair(watch, tmp_path):
    (tmp_path / "captures").write_text("a file")
    code, shown = watch("import torch\nprint(torch.ones(3, device='cuda').sum().item())")
    assert (code, shown.out) == (0, "3.0\n")
    assert "recording is off" in shown.err


def test_a_program_without_torch_runs_as_it_is(tmp_path):
    (tmp_path / "train.py").write_text("import sys; print('ran', sys.argv); sys.exit('done')")
    done = subprocess.run(
        [sys.executable, "-m", "snapconv", "watch", "train.py", "--simulate"],
        cwd=tmp_path,
        env={"PATH": "", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        encoding="utf-8",
    )
    assert (done.returncode, done.stdout) == (1, "ran ['train.py', '--simulate']\n")
    assert done.stderr == "done\n"
    assert not (tmp_path / "captures").exists()


def test_a_program_that_is_not_there_is_our_error(watch):
    assert main(["watch", "missing.py"]) == 6


WAITS = """
import time, torch
held = torch.zeros(3 << 20, device="cuda")
print("ready", flush=True)
time.sleep(60)
"""


@pytest.fixture
def waiting(tmp_path):
    """A program that waits and takes no step, under ``watch``, with a folder for requests of its own."""
    (tmp_path / "serve.py").write_text(WAITS, encoding="utf-8")
    command = [sys.executable, "-m", "snapconv", "watch", "--simulate", "serve.py"]
    environment = os.environ | {"TMPDIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, encoding="utf-8"
    ) as process:
        assert process.stdout.readline() == "ready\n"
        yield process
        process.kill()


def test_another_process_asks_for_a_capture_now(waiting, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert main(["watch", "--pid", str(waiting.pid)]) == 0
    path = Path(capsys.readouterr().out.removeprefix("written: ").strip())
    assert path == tmp_path / "captures" / "requested-000000.capture"
    snapshot = pickle.loads((path / "snapshot.pickle").read_bytes())
    (block,) = snapshot["segments"][0]["blocks"][:1]
    assert (block["state"], block["requested_size"]) == ("active_allocated", 12 << 20)
    assert snapshot["snapconv"]["ended"]["detail"] == "requested by another process"


def test_a_program_that_ends_answers_no_more_requests(waiting, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    waiting.terminate()
    waiting.wait()
    assert main(["watch", "--pid", str(waiting.pid)]) == 3
    assert "answers no requests: start it with `snapconv watch`" in capsys.readouterr().err
    (folder,) = tmp_path.glob("snapconv-requests*")
    assert list(folder.iterdir()) == []


@pytest.mark.skipif(sys.platform == "win32", reason="folders of Windows are each user's own")
def test_a_folder_in_which_others_may_write_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder = tmp_path / f"snapconv-requests-{os.getuid()}"
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(RecorderError, match="is not a folder of this user alone"):
        requests.Requests(list)
    (folder / str(os.getpid())).mkdir()
    with pytest.raises(RecorderError, match="is not a folder of this user alone"):
        requests.request_capture(os.getpid())


def test_a_process_that_gives_no_answer_is_not_waited_for_forever(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    answering = requests.Requests(lambda: time.sleep(2) or [])
    with pytest.raises(RecorderError, match="wrote no capture within 1 s"):
        requests.request_capture(os.getpid(), longest_s=1)
    with pytest.raises(RecorderError, match="another recording of this process"):
        requests.Requests(list)
    answering.close()
    requests.Requests(list).close()


def test_a_process_to_ask_takes_no_script(capsys):
    assert main(["watch", "--pid", "1", "train.py"]) == 2
    assert main(["watch"]) == 2
    assert "give a script, or --pid" in capsys.readouterr().err
