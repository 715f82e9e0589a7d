"""What is stated as a probability is how often it is right, on recordings of programs of the benchmark.

They are made by ``corpus.py labelled --record ...`` in ``scripts/bench/classification``.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

ROOT = Path(__file__).parents[3]
SCRIPT = ROOT / "scripts" / "bench" / "classification" / "corpus.py"
# Where most of what is decided follows from an explanation of the whole job.
THIN = "late,backward,forward,first-forward"


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    output = tmp_path_factory.mktemp("calibration") / "rows.json"
    words = [
        sys.executable,
        SCRIPT,
        SCRIPT.with_name("labelled"),
        "--cuts",
        THIN,
        "--stacks",
        "all",
    ]
    subprocess.run([*map(str, words), "--json", str(output)], check=True, capture_output=True)
    return json.loads(output.read_bytes())


def test_of_what_is_stated_as_90_percent_90_percent_are_right(rows):
    """Of what is likely with 80 to 97 %, by bytes at the peak."""
    bins = [row["bins"][number] for row in rows for number in (3, 4, 5)]
    decided, right, stated = (sum(one[place] for one in bins) for place in range(3))
    assert decided / len(rows) > 0.05, "enough to compare"
    assert right / decided == pytest.approx(stated / decided, abs=0.05)


def test_what_is_certain_is_right(rows):
    right, wrong = (sum(row["certain"][place] for row in rows) for place in (0, 1))
    assert wrong / (right + wrong) < 0.01
