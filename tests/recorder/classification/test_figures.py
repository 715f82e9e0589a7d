"""What the benchmark of the classification calls worse than before."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

BENCH = Path(__file__).parents[3] / "scripts" / "bench" / "classification"
COMPARE = """
import json, sys
sys.path.insert(0, sys.argv[1])
import figures
print(json.dumps(getattr(figures, sys.argv[2])(*json.loads(sys.stdin.read()))))
"""


def case(**changes):
    setup = {"optimizer": "adamw", "zero_grad": "to none", "n_steps": 3}
    moments = {moment: {"right": 1.0, "wrong": 0.0} for moment in ("peak", "activations")}
    names = {"names": 0.7}
    return {"entry": "cnn", "stacks": "python", "history": "late", **setup, **moments, **names, **changes}


def faults(before, now):
    return faults_of({"cases": [before]}, {"cases": [now]})


def faults_of(before, now):
    return called("worse_than", before, now)


def called(function, *arguments):
    found = subprocess.run(
        [sys.executable, "-c", COMPARE, str(BENCH), function],
        input=json.dumps(arguments),
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(found.stdout)


def test_a_measurement_of_some_programs_keeps_the_figures_of_the_others():
    before = {"cases": [case(), case(entry="tabular"), case(entry="gone")], "cuts": []}
    now = {"cases": [case(names=None), case(entry="vae", names=0.8)], "cuts": []}
    found = called("merged", before, now)["cases"]
    assert {row["entry"]: row["names"] for row in found} == {"cnn": 0.7, "tabular": 0.7, "vae": 0.8}


def test_cuts_are_compared_place_by_place():
    before = {"entry": "cnn", "stacks": "all", "step": "last", "right": [1.0, 0.9], "wrong": [0.0, 0.1]}
    now = {**before, "right": [0.9, 1.0], "wrong": [0.0, 0.2]}
    found = faults_of({"cases": [], "cuts": [before]}, {"cases": [], "cuts": [now]})
    assert found == [
        "cnn all last step, cut after 1 tenths: right: 90.00%, was 100.00%",
        "cnn all last step, cut after 2 tenths: wrong: 20.00%, was 10.00%",
    ]
    assert faults_of({"cases": []}, {"cases": [], "cuts": [now]}) == []


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        (case(), case(), []),
        (case(), case(names=0.6), ["named right: 60.00%, was 70.00%"]),
        (case(), case(names=0.6995), []),
        (case(names=None), case(names=0.5), []),
        ({key: value for key, value in case().items() if key != "names"}, case(), []),
    ],
)
def test_fewer_right_names_are_a_fault(before, now, expected):
    assert [fault.split(": ", 1)[1] for fault in faults(before, now)] == expected
