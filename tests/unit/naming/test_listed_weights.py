"""From a snapshot and a list of parameters to the weights of a report."""

import json
from pathlib import Path

import pytest

from snapconv import load
from snapconv.cli.app import main
from snapconv.errors import InputError
from tests.builders import ADDR, START_US, TraceBuilder, frame
from tests.metadata_builder import metadata, parameter

FIXTURES = Path(__file__).parents[3] / "fixtures"
MAIN = [frame("main", "/home/me/project/train.py", 30)]
PLACE = [frame("_apply", "/venv/lib/python3.11/site-packages/torch/nn/modules/module.py", 900), *MAIN]


def weights_of(tmp_path, builder, rows, **options):
    path = builder.write(tmp_path / "s.pickle")
    (tmp_path / "list.json").write_text(json.dumps(rows))
    return load(path, params=tmp_path / "list.json", project_root="/home/me/project", **options)


def test_what_fits_no_name_is_called_by_its_line_and_a_note_shows_how_much(tmp_path):
    builder = TraceBuilder().segment().alloc(256, frames=PLACE).alloc(768, frames=PLACE)
    session = weights_of(tmp_path, builder, {"a": [64], "b": [1000]})
    assert [weight.name for weight in session.report().weights] == ["a", "train.py:30#2"]
    (note,) = [note for note in session.notes if note.slug == "unnamed-weights"]
    assert "1 weight (768 B, 75.0 %)" in note.message
    assert "1 tensor" in note.message


def test_where_all_weights_have_names_there_is_no_note(tmp_path):
    builder = TraceBuilder().segment().alloc(256, frames=PLACE)
    session = weights_of(tmp_path, builder, {"a": [64]})
    assert "unnamed-weights" not in {note.slug for note in session.notes}


@pytest.mark.parametrize("snapshot", ["training_step", "training_step_python"])
def test_a_recorded_run_has_all_names_and_all_gradients(snapshot, tmp_path, capsys):
    truth = json.loads((FIXTURES / "training_step.truth.json").read_text(encoding="utf-8"))
    at = {column: i for i, column in enumerate(truth["columns"])}
    rows = [line for line in truth["allocations"] if line[at["category"]] == "weight"]
    names = [line[at["module"]] for line in rows]
    listed = [[name, [line[at["requested_bytes"]] // 4]] for name, line in zip(names, rows, strict=True)]
    (tmp_path / "list.json").write_text(json.dumps(dict(listed)))
    arguments = [str(FIXTURES / f"{snapshot}.pickle"), "--params", str(tmp_path / "list.json")]
    assert main(["to-sqlite", *arguments, "-o", str(tmp_path / "out.sqlite")]) == 0
    said = "100.0 % of the weights' bytes named by list.json (57 of 57 weights)"
    assert said in capsys.readouterr().out
    weights = load(arguments[0], params=tmp_path / "list.json").report().weights
    assert [weight.name for weight in weights] == names
    assert sum(weight.grad_size_bytes for weight in weights) == truth["gradients_bytes_per_step"]


def test_a_list_that_cannot_be_read_is_refused_before_the_snapshot_is(tmp_path):
    with pytest.raises(InputError, match=r"nowhere\.json"):
        load(tmp_path / "no.pickle", params=tmp_path / "nowhere.json")


def notes_of_list(tmp_path, recorded, listed):
    """The weights' names, and what is said of a list, of a capture with these parameters of one size."""
    builder = TraceBuilder().segment()
    for _ in recorded:
        builder.alloc(256, frames=PLACE)
    rows = [parameter(name, ADDR + 512 * i, 256, START_US + 20) for i, name in enumerate(recorded)]
    path = builder.write(tmp_path / "s.pickle", snapconv=metadata(parameters=rows))
    (tmp_path / "list.json").write_text(json.dumps({name: [64] for name in listed}))
    session = load(path, params=tmp_path / "list.json")
    names = [weight.name for weight in session.report().weights]
    return names, [note.message for note in session.notes if note.slug == "unused-params"]


def test_names_that_were_recorded_stay_and_a_note_says_so(tmp_path):
    names, (message,) = notes_of_list(tmp_path, ["a", "b"], ["x", "b"])
    assert names == ["a", "b"]
    assert "list.json was not used" in message
