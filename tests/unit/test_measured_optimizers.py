"""The table of optimizers: that it can be read, and rows that follow from what their optimizer computes."""

from pathlib import Path

import pytest

from scripts.measured.optimizer_cases import PACKAGES, ROLES, SHAPES
from scripts.measured.table_rows import COLUMNS, shape_rule

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "scripts" / "measured" / "optimizers.tsv"
MOST_BYTES = 250_000


def table():
    lines = [line for line in TABLE.read_text("utf-8").splitlines() if not line.startswith("#")]
    assert tuple(lines[0].split("\t")) == COLUMNS
    return [dict(zip(COLUMNS, line.split("\t"), strict=True)) for line in lines[1:]]


ROWS = table()


def states(package, optimizer, options=""):
    """Return the rows of states on the device."""
    rows = [row for row in ROWS if (row["package"], row["optimizer"]) == (package, optimizer)]
    return [row for row in rows if row["options"] == options and row["device"] == "cuda"]


def test_the_table_is_small_enough_to_be_read():
    assert TABLE.stat().st_size < MOST_BYTES


def test_every_package_has_rows_and_every_row_a_version_or_a_reason():
    assert {row["package"] for row in ROWS} == {package.name for package in PACKAGES}
    assert all(row["version"] or row["note"] for row in ROWS)
    assert all(row["note"] for row in ROWS if row["state"] == "(failed)")


def test_what_was_measured_has_the_frame_of_its_step():
    measured = [row for row in ROWS if row["state"] != "(failed)"]
    assert all(row["step"].rpartition(":")[0].endswith(".py") for row in measured)


@pytest.mark.parametrize("options", ["", "foreach=False", "fused=True", "capturable=True"])
def test_adamw_keeps_two_averages_of_each_weights_shape_however_it_is_computed(options):
    averages = [row for row in states("torch", "AdamW", options) if row["state"] != "step"]
    assert [row["state"] for row in averages] == ["exp_avg", "exp_avg_sq"]
    for row in averages:
        assert {row[role] for role in ROLES} == {"same"}
        assert (row["weights"], row["dtype"], row["moment"]) == ("both", "as the weight", "step 1")


def test_adamw_counts_its_steps_on_the_cpu_unless_a_kernel_reads_them():
    assert not [row for row in states("torch", "AdamW") if row["state"] == "step"]
    assert [row for row in states("torch", "AdamW", "fused=True") if row["state"] == "step"]


def test_adafactor_factors_what_has_two_sides_and_nothing_else():
    by_state = {row["state"]: row for row in states("torch", "Adafactor")}
    for role in ("matrix", "embedding", "convolution"):
        assert (by_state["row_var"][role], by_state["col_var"][role]) == ("rows", "columns")
        assert by_state["variance"][role] == "-"
    for role in ("vector", "scalar"):
        assert by_state["variance"][role] == "same"


def test_sgd_keeps_nothing_without_momentum_and_one_buffer_with_it():
    assert states("torch", "SGD") == []
    assert [row["state"] for row in states("torch", "SGD", "momentum=0.9")] == ["momentum_buffer"]


def test_adagrad_makes_its_sum_when_it_is_built():
    assert {row["moment"] for row in states("torch", "Adagrad")} == {"construction"}


def test_lbfgs_keeps_all_weights_in_one_tensor():
    assert {row["whole"] for row in states("torch", "LBFGS")} >= {"all weights"}


def test_foreach_needs_a_copy_of_all_weights_where_the_fused_kernel_needs_none():
    def later(options):
        names = ("torch", "AdamW", options)
        rows = [row for row in ROWS if (row["package"], row["optimizer"], row["options"]) == names]
        return float(rows[0]["later_f32"])

    assert later("") == pytest.approx(1, abs=0.02)
    assert later("fused=True") == 0


def test_states_of_8_bits_have_a_byte_for_each_element_and_a_scale_for_each_block():
    codes = [row for row in states("bitsandbytes", "AdamW8bit") if row["dtype"] == "uint8"]
    assert {row["state"] for row in codes} == {"state1", "state2"}
    # Less than 4096 elements are kept in float32 (min_8bit_size).
    assert {(row["matrix"], row["vector"]) for row in codes} == {("same", "-")}


@pytest.mark.parametrize(
    ("shape", "weight", "rule"),
    [
        ((320, 576), "matrix", "same"),
        ((320,), "matrix", "rows"),
        ((320, 1), "matrix", "rows"),
        ((1, 576), "matrix", "columns"),
        ((48, 32, 3), "convolution", "rows"),
        ((48, 32, 1, 5), "convolution", "columns"),
        ((320, 320), "matrix", "d0 x d0"),
        ((64, 576), "matrix", "64 x d1"),
        ((480, 480), "convolution", "d1d2d3 x d1d2d3"),
        ((184320,), "matrix", "flat"),
        ((102400,), "matrix", "d0 x d0"),
        ((576,), "matrix", "columns"),
        ((16757,), "matrix", "n/11"),
        ((2, 768), "vector", "2 x same"),
        ((768, 768), "vector", "d0 x d0"),
        ((), "vector", "one"),
    ],
)
def test_a_shape_is_named_by_the_sides_of_its_weight(shape, weight, rule):
    assert shape_rule(shape, SHAPES[weight]) == rule
