"""The table of saved tensors: rows that follow from derivatives, and its summary that the product reads."""

from pathlib import Path

import pytest

from scripts.measured.saved_tensor_cases import CASES, LAYERS
from snapconv.torch_knowledge.saved_tensors import kept_by_layers

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "scripts" / "measured"
TABLE = FOLDER / "saved_tensors.tsv"
MOST_BYTES_OF_ALL = 400_000


def table():
    lines = [line for line in TABLE.read_text("utf-8").splitlines() if line[:1] != "#"]
    columns = lines[0].split("\t")
    rows = [dict(zip(columns, line.split("\t"), strict=True)) for line in lines[1:]]
    release = columns[6]
    keys = ("module", "call", "trained", "precision")
    return {tuple(row[key] for key in keys): row[release] for row in rows}


CELLS = table()


def kept(call, trained="both", precision="float32", module=""):
    cell = CELLS.get((module, call, trained, "all")) or CELLS[(module, call, trained, precision)]
    return {name: float(share) for name, share in (part.split("=") for part in cell.split())}


def test_all_tables_are_small_enough_to_be_read():
    assert sum(file.stat().st_size for file in FOLDER.glob("*.tsv")) < MOST_BYTES_OF_ALL


def test_every_case_has_a_row():
    assert {(case.module, case.call) for case in CASES} == {key[:2] for key in CELLS}


@pytest.mark.parametrize(("trained", "roles"), [
    ("both", {"input": 1, "weight": 1}), ("input", {"weight": 1}), ("weights", {"input": 1}),
])  # fmt: skip
def test_a_product_keeps_of_each_factor_what_the_gradient_of_the_other_needs(trained, roles):
    assert kept("F.linear(x, weight)", trained) == roles


def test_a_convolution_keeps_its_input_also_where_its_kernel_is_frozen():
    assert kept("F.conv2d(image, kernel)", "input") == {"input": 1, "weight": 1}


def test_copies_of_autocast_are_half_as_large_and_those_of_weights_do_not_grow():
    assert kept("F.linear(x, weight)", "both", "autocast") == {"new": 0.5, "fixed": 0.5}
    assert kept("F.linear(x, weight)", "input", "autocast") == {"fixed": 0.5}


def test_a_computed_weight_and_the_bias_of_a_mask_do_not_grow():
    assert kept("F.linear(x, weight * 0.1)", "input") == {"fixed": 1}
    call = "F.scaled_dot_product_attention(query, key, value, attn_mask=causal)"
    assert kept(call)["fixed"] == 4  # truth values of one byte, as numbers of four


def test_an_operation_in_place_saves_nothing_where_its_derivative_reads_its_input():
    """It then keeps a copy of its own: the advice to use it would save nothing."""
    assert kept("F.silu(x)") == {"input": 1}
    assert kept("F.silu(x.clone(), inplace=True)") == {"new": 1}
    assert kept("F.relu(x)") == kept("x.clone().relu_()") == {"output": 1}


def test_attention_that_returns_its_weights_keeps_the_scores():
    scores = 4 * 48 / 96  # a number for each head and pair of positions, of 96 for each position
    module = "nn.MultiheadAttention(96, 4, batch_first=True)"
    with_weights = kept("m(x, x, x)", module=module)["new"]
    without = kept("m(x, x, x, need_weights=False)", module=module)["new"]
    assert with_weights - without == pytest.approx(scores, abs=0.1)


def test_the_last_segment_of_a_sequential_checkpoint_is_not_checkpointed():
    """Four layers keep eight tensors; of two segments the second keeps its four."""
    module = "nn.Sequential(*[nn.Sequential(nn.Linear(96, 96), nn.GELU()) for _ in range(4)])"
    call = "checkpoint_sequential(m, 2, x, use_reentrant=False)"
    whole, halves = kept("m(x)", module=module), kept(call, module=module)
    assert whole["input"] + whole["new"] == 8
    assert halves == {"input": 1, "new": 4, "weight": pytest.approx(whole["weight"] / 2)}


def test_the_summary_has_only_layers_that_cuda_computes_as_the_simulated_device_does():
    unknown = {case.operation for case in CASES if case.cuda}
    layers = kept_by_layers()
    assert layers.keys() <= LAYERS.keys()
    assert not unknown & {layer.operation for layer in layers.values()}
    assert (layers["Linear"].freed_by_freezing, layers["Conv2d"].freed_by_freezing) == (True, False)
    assert layers["GELU"].freed_by_freezing is None
