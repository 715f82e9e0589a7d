"""The tables of the ecosystem's benchmark, and its programs as they run without a GPU."""

import re
import runpy
from pathlib import Path

import pytest

from tests.ecosystem.catalogue import PROGRAMS

pytest.importorskip("resource", reason="the benchmark asks Unix what its processes used")

BENCH = Path(__file__).parents[2] / "scripts" / "bench" / "ecosystem"
TABLES = runpy.run_path(str(BENCH / "tables.py"))
for_the_cpu = runpy.run_path(str(BENCH / "plain.py"))["for_the_cpu"]
A_GPU = re.compile(r'"cuda(:\d)?"|"gpu"|\.cuda\(|"nccl"|torch\.cuda\.(?!is_available|\w*memory|manual_seed)')
# It has nothing that would stand for a graph.
GPU_ONLY = {"cuda-graphs"}
MODES = ("compute", "no-compute")


def one(**figures):
    return {"user_s": 6.0, "later_steps_s": 3.0, "peak_bytes": 1000, "unknown_bytes": 0, **figures}


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_a_program_for_the_cpu_names_no_gpu(program):
    found = A_GPU.findall(for_the_cpu(program.path.read_text(encoding="utf-8")))
    assert bool(found) == (program.name in GPU_ONLY)


def test_a_program_that_does_not_run_plainly_has_no_ratio_and_is_named():
    plain = {"failure": "RuntimeError: no device"}
    found = {"programs": {"it": {"plain": plain, "compute": one(), "no-compute": one()}}}
    text = TABLES["cost"](found)
    assert "| it | – | – | 6.0 | – |" in text
    assert "* `it`, plain: RuntimeError: no device" in text
