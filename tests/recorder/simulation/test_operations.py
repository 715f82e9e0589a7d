"""Every operation of torch's own list takes the memory that plain torch gives it, forward and backward."""

import os
import warnings

import pytest

pytest.importorskip("torch")

from scripts.bench.operations import RESULTS, SCRATCH, operations, sweep
from snapconv.json_text import read_json

# All of them take three minutes: scripts/test --all.
EVERY = 1 if os.environ.get("SNAPCONV_ALL_INPUTS") else 40
# Their backward has kernels for devices, and beside them parts for what has none.
WITH_PARTS = ("nn.functional.silu", "nn.functional.mish")
KNOWN = read_json(RESULTS.read_bytes())["modes"]


@pytest.mark.parametrize("mode", ["compute", "no-compute"])
def test_an_operation_takes_the_memory_that_plain_torch_gives_it(mode):
    """What differs is listed with its example in docs/reference/operations.md."""
    others = [operation for operation in operations() if operation.name in WITH_PARTS]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        verdicts = sweep([*operations()[::EVERY], *others], 2, compute=mode == "compute")

    differ = {verdict.name: verdict for verdict in verdicts if verdict.found.keys() - SCRATCH}
    known = KNOWN[mode]["others"]
    new = {name: verdict for name, verdict in differ.items() if name not in known}
    assert sum(verdict.n_samples for verdict in verdicts) >= len(verdicts)
    assert new == {}
