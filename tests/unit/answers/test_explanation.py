"""The answer of ``snapconv explain`` as the page describes it, and as the command line gives it."""

import json
import pickle
import re
from dataclasses import fields, is_dataclass

import pytest

from snapconv.allocator.caching_allocator import CachingAllocator
from snapconv.answers import explanation as shapes
from snapconv.answers.explanation_keys import EXPLANATION_KEYS
from snapconv.cli.app import main
from tests.builders import MIB, frame

CUBLAS = [
    frame("at::cuda::getCurrentCUDABlasHandle()", "??", 0),
    frame("forward", "/home/me/project/net.py", 7),
    frame("_call_impl", "/x/site-packages/torch/nn/modules/module.py", 1750),
    frame("<module>", "/home/me/project/train.py", 3),
]


@pytest.mark.parametrize("shape", EXPLANATION_KEYS)
def test_every_field_is_described_in_its_order(shape):
    assert list(EXPLANATION_KEYS[shape]) == [field.name for field in fields(shape)]
    assert all(EXPLANATION_KEYS[shape].values())


def test_every_shape_of_the_answer_is_described():
    assert set(EXPLANATION_KEYS) == {shape for shape in vars(shapes).values() if is_dataclass(shape)}


@pytest.fixture
def run(tmp_path, capsys):
    """Run ``snapconv explain`` on a file with a workspace of cuBLAS, made in forward."""
    model = CachingAllocator()
    model.malloc(2 * MIB, frames=CUBLAS)
    (tmp_path / "run.pickle").write_bytes(pickle.dumps(model.snapshot()))

    def run(*argv):
        code = main(["explain", str(tmp_path / "run.pickle"), *argv])
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


def test_the_command_prints_the_answer(run):
    code, out, err = run("#1")
    assert code == 0
    assert all(line.startswith("note: ") for line in err.splitlines())
    assert re.match(r"0x[0-9a-f]+ on cuda:0: workspace, 2\.00 MiB, live at the peak\n", out)
    assert "_call_impl" not in out.split("stack roles")[0]
    assert "modules/module.py:1750 in _call_impl" in run("#1", "--stack")[1].split("category")[0]


def test_the_command_prints_json(run):
    code, out, err = run("#1", "--json")
    assert code == 0
    assert all(line.startswith("note: ") for line in err.splitlines())
    values = json.loads(out)
    assert values["question"] == "#1"
    assert values["allocations"][0]["verdict"]["decision"]["rule"] == "cublas-workspace"
    assert values["allocations"][0]["origin"]["stack"][1]["line"] == 7


@pytest.mark.parametrize(
    ("argv", "code", "said"),
    [
        (["what"], 2, "expected an address"),
        (["#999"], 3, "has no event #999"),
        (["#1", "--device", "3"], 3, "nothing of device 3; it has: 0"),
        (["#1", "--rules", "nowhere.json"], 3, "nowhere.json: cannot be read"),
    ],
)
def test_a_question_without_an_answer_has_its_exit_code(run, argv, code, said):
    found, out, err = run(*argv)
    assert (found, out) == (code, "")
    assert said in err
