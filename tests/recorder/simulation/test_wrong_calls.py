"""Calls that torch refuses are refused without values, in torch's words.

The reference is torch's own: its list of operations has wrong calls, each with its error.
"""

import re
from functools import lru_cache

import pytest

torch = pytest.importorskip("torch")

from scripts.bench import operations as bench  # noqa: E402
from snapconv.simulation import SimulationOptions, simulated  # noqa: E402
from tests.drawn_inputs import sample  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")


# Wrong calls that are taken, or refused in other words, by function and position in its list.
KNOWN = {
    "memory that the result shares with an argument": {
        *(("kthvalue", 0), ("masked_select", 0), ("masked_select", 1), ("bernoulli", 0)),
        *(("gather", 5), ("gather", 6), ("index_select", 0), ("take", 0), ("take", 1)),
        *(("take", 2), ("cat", 0), ("cat", 6), ("cat", 7), ("cat", 8)),
    },
    "the type of the result": {("complex", 2), ("aminmax", 3), ("multinomial", 2)},
    "numbers that the function for shapes does not look at": {
        *(("uniform", 0), ("nn.functional.conv1d", 4), ("nn.functional.conv2d", 4)),
        *(("nn.functional.conv3d", 3), ("nn.functional.conv3d", 4), ("masked_fill", 2)),
        *(("multinomial", 3), ("multinomial", 5), ("multinomial", 6)),
        *(("bucketize", 0), ("median", 0), ("as_strided_scatter", 0)),
    },
    "types": {("masked_scatter", 1), ("multinomial", 1)},
    "other words": {("complex", 0), ("masked_fill", 3), ("narrow_copy", 1), ("narrow_copy", 6)},
    "the simulation's own refusal": {("linalg.lstsq", 0), ("linalg.lstsq.grad_oriented", 0)},
    "the CPU takes them outside of a simulation too": {
        *(("clamp_max", 0), ("clamp_min", 0), ("__rmod__", 0), ("__rpow__", 0), ("__rsub__", 0)),
    },
}


@lru_cache(1)
def operations():
    return bench.operations()


def full_name(op):
    return ".".join(filter(None, (op.name, op.variant_test_name)))


@pytest.fixture
def running():
    """A simulation without values, in which none of our own faults may end a check."""
    with simulated(SimulationOptions(compute=False)) as running:
        yield running
        assert running.faults() == ()


def wrong_calls(op):
    try:
        return list(op.error_inputs("cuda"))
    except Exception:  # noqa: BLE001  # torch's list has some for a real card only
        return []


def refusal_of_wrong(op, call, running):
    for tensor in bench.tensors((call.input, call.args, call.kwargs)):
        if tensor.is_cuda and tensor.layout is torch.strided:
            bench.forgotten(running, tensor)
    try:
        op(call.input, *call.args, **call.kwargs)
    except Exception as error:  # noqa: BLE001  # whatever it is
        return str(error)
    return None


def test_wrong_calls_are_refused_in_the_words_of_torch(running):
    differences = {}
    for op in sample([op for op in operations() if op.error_inputs_func], 30):
        for i, wrong in enumerate(wrong_calls(op)):
            given = refusal_of_wrong(op, wrong.sample_input, running)
            if given is None or not re.search(wrong.error_regex, given):
                differences[full_name(op), i] = given, wrong.error_regex
    assert differences.keys() <= set().union(*KNOWN.values()), differences
