"""A peak that comes after what is recorded is in the capture, and named with the command that records it."""

import base64
import json
import re
import shlex
import sqlite3
import zlib

import pytest

torch = pytest.importorskip("torch")

from snapconv.cli.app import main  # noqa: E402
from snapconv.snapshot.load import load_snapshot  # noqa: E402

MIB = 1 << 20
# 32 MiB more than anything in training.
EVALUATE = "\nheld = torch.ones(8 << 20, device='cuda')\ndel held\n"


def ending_of(run):
    return json.loads((run.folder / "train.capture" / "ending.json").read_text())


def later(run):
    return [
        n.message
        for n in load_snapshot(run.folder / "train.capture").notes
        if n.slug == "later-peak"
    ]


def test_a_peak_after_the_last_step_is_named_with_the_command_that_records_it(
    run, capfd, monkeypatch
):
    done = run(f"train(5){EVALUATE}print(torch.cuda.max_memory_allocated())")
    peak = int(done.out.split()[-1])
    (device,) = ending_of(done)["devices"]
    assert device == {"device": 0, "max_memory_allocated": peak, "iteration": 5}
    (message,) = later(done)
    assert "the program's peak on cuda:0 came later, after the last step: 32." in message
    assert "; in what is recorded it is " in message
    assert message in done.err
    command = "snapconv record --simulate --iterations 5 -o train-whole.capture train.py"
    assert f"`{command}`" in message
    # It does what it says.
    assert main(shlex.split(command)[1:]) == 0
    whole = done.folder / "train-whole.capture"
    capfd.readouterr()
    assert main(["summary", str(whole), "--json"]) == 0
    summary = json.loads(capfd.readouterr().out)
    assert str(peak) in json.dumps(summary)
    assert not [n for n in load_snapshot(whole).notes if n.slug == "later-peak"]


def test_a_peak_in_a_later_step_is_named_with_its_iteration(run):
    done = run(f"train(6){EVALUATE}train(2)")
    assert ending_of(done)["devices"][0]["iteration"] == 6
    (message,) = later(done)
    assert "came later, in iteration 6: 32." in message
    assert "--iterations 6 " in message


@pytest.mark.parametrize(
    "reset", ["cuda.reset_peak_memory_stats", "cuda.memory.reset_peak_memory_stats"]
)
def test_a_peak_that_the_program_resets_counts(run, reset):
    done = run(f"train(5){EVALUATE}torch.{reset}()\nprint(torch.cuda.max_memory_allocated())")
    assert int(done.out.split()[-1]) < 4 * MIB
    assert ending_of(done)["devices"][0]["max_memory_allocated"] > 32 * MIB
    assert later(done)


def test_a_peak_before_the_end_of_the_recording_is_not_later_even_if_reset(run):
    done = run(f"{EVALUATE.strip()}\ntorch.cuda.reset_peak_memory_stats()\ntrain(6)")
    assert ending_of(done)["devices"][0]["max_memory_allocated"] > 32 * MIB
    assert later(done) == []
    assert "later-peak" not in done.err


def test_the_note_is_in_every_output(run, capfd):
    done = run(f"train(5){EVALUATE}")
    (message,) = later(done)
    capture = str(done.folder / "train.capture")
    capfd.readouterr()
    for command in (["summary", capture], ["growth", capture], [capture]):
        main(command)
        assert message in " ".join(capfd.readouterr().err.split()), command
    main(["info", capture, "--json"])
    assert json.dumps(message) in capfd.readouterr().out
    main(["to-sqlite", capture, "--extended", "-o", "report.sqlite"])
    (report,) = done.folder.glob("report*memory*") or done.folder.glob("report*")
    with sqlite3.connect(report) as database:
        assert message in "\n".join(database.iterdump()).replace("''", "'")
    main(["view", capture, "-o", "page.html"])
    page = (done.folder / "page.html").read_text()
    packed = re.findall(r"<script[^>]*>(eJ[A-Za-z0-9+/=]+)</script>", page)
    assert any(message.encode() in zlib.decompress(base64.b64decode(part)) for part in packed)


def test_the_note_is_in_the_answers_of_agents(run):
    from tests.unit.cli.test_mcp_command import served

    done = run(f"train(5){EVALUATE}")
    _, [(is_error, text)] = served([done.folder], ("growth", {"snapshot": "train.capture"}))
    assert not is_error
    assert later(done)[0] in text


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"notes": 3}', '{"notes": [{"slug": "x"}, 4]}']
)
def test_an_ending_that_cannot_be_read_changes_nothing(run, content):
    done = run(f"train(5){EVALUATE}")
    (done.folder / "train.capture" / "ending.json").write_text(content)
    assert later(done) == []


LEAK = """
total = 0
for _ in range({n}):
    loss = model(torch.randn(512, 64, device="cuda")).square().mean()
    total = total + loss
    optimizer.zero_grad()
    loss.backward(retain_graph=True)
    optimizer.step()
"""


def test_after_two_iterations_growth_is_unknown_in_its_first_line_with_the_command_that_knows(
    run, capfd
):
    done = run(LEAK.format(n=2))
    capture = str(done.folder / "train.capture")
    capfd.readouterr()
    main(["growth", capture])
    lines = capfd.readouterr().out.splitlines()
    assert lines[0] == (
        "cuda:0  growth per iteration is unknown: the trace has 2 iterations, and 3 are needed; "
        "record more "
        "with `snapconv record --simulate --iterations 8 -o more.capture train.py`"
    )
    assert not [line for line in lines if "not growing" in line or "no growth" in line]
    main(["growth", capture, "--json"])
    (device,) = json.loads(capfd.readouterr().out)["devices"]
    assert device["unknown"].startswith("the trace has 2 iterations")
    assert "stopped growing" not in {line["trend"] for line in device["never_freed"]}
