"""Memory of programs whose truth is known is classified no worse than when the figures were written down."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

BENCH = Path(__file__).parents[3] / "scripts" / "bench" / "classification"
FIGURES = json.loads((BENCH / "corpus" / "results.json").read_text(encoding="utf-8"))
# Few that differ: a plain step with workspaces, frozen weights, engines within engines, no backward
# at all.
ENTRIES = ("cnn", "lora", "checkpointing-reentrant", "cached-inference")


def run(*arguments):
    return subprocess.run(
        [sys.executable, str(BENCH / "run.py"), *arguments],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.skipif(
    tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13),
    reason="the figures are those of torch 2.13: the allocations of older ones differ",
)
def test_no_case_of_a_few_entries_is_worse_than_its_figures():
    chosen = [word for entry in ENTRIES for word in ("--entry", entry)]
    done = run("--quick", "--check", *chosen)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "nothing is worse than before" in done.stderr


def cases(**wanted):
    found = [
        case
        for case in FIGURES["cases"]
        if all(case[key] == value for key, value in wanted.items())
    ]
    assert found
    return found


def well_known(**wanted):
    # Keys and values that no library's code keeps are known once a line has lengthened them: the
    # first ones are results of a layer like others, and called activation.
    first = ("cached-inference", "complete")
    return [
        case for case in cases(group="seen", **wanted) if (case["entry"], case["history"]) != first
    ]


def most_wrong(case):
    # Without C++ frames, and before the trace, autocast's casts of weights and of inputs look the
    # same.
    is_cast = case["entry"] == "amp" and (
        case["stacks"] == "python" or case["history"] == "ring-short"
    )
    return 0.02 if is_cast else 0.005


@pytest.mark.parametrize(("stacks", "least"), [("all", 0.99), ("python", 0.97)])
def test_nearly_all_is_right_from_the_start(stacks, least):
    for case in well_known(stacks=stacks, history="complete"):
        assert case["peak"]["wrong"] <= most_wrong(case), case
        # Without C++ frames nothing names the states of an optimizer that the program wrote itself.
        if (stacks, case["optimizer"]) != ("python", "own"):
            assert case["peak"]["right"] >= least, case
            assert case["peak"]["unknown"] <= 0.01, case


@pytest.mark.parametrize(("stacks", "least"), [("all", 0.97), ("python", 0.95)])
@pytest.mark.parametrize("history", ["late", "ring", "ring-short"])
def test_nearly_as_much_is_right_of_a_part(stacks, least, history):
    for case in well_known(stacks=stacks, history=history):
        if (history, case["zero_grad"]) == ("late", "to zero"):
            # Gradients that stay are as large as the states: nothing shows which is which, both are
            # unknown. Without C++ frames they may be likely states.
            assert case["peak"]["wrong"] <= (0.005 if stacks == "all" else 0.09), case
        else:
            assert case["peak"]["wrong"] <= most_wrong(case), case
            assert case["peak"]["right"] >= least, case
            assert case["peak"]["unknown"] <= 0.01, case


def test_hardly_anything_is_left_out_of_the_figures():
    assert max(case["peak"]["not_counted"] for case in cases(group="seen")) < 0.001


def test_with_all_stacks_every_operation_has_its_name():
    named = [case["names"] for case in cases(stacks="all") if case["names"] is not None]
    assert sum(named) / len(named) >= 0.99
    seen = [
        case["names"] for case in cases(stacks="all", group="seen") if case["names"] is not None
    ]
    assert min(seen) >= 0.99
