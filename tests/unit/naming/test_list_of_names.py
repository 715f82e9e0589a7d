"""Weights get the names of a list where size and order leave no other choice."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from snapconv.naming.listed_weights import name_weights
from snapconv.snapshot.recorded.params_file import ParamList

FIXTURES = Path(__file__).parents[3] / "fixtures"


def listing(rows, *, is_ordered=True, width=4, integers=()):
    """A list of (name, elements) of floats that have so many bytes; all integers have eight."""
    names, n_elements = [name for name, _ in rows], np.array([n for _, n in rows], np.int64)

    is_floating = np.array([name not in integers for name in names], np.bool_)
    return ParamList(
        path=Path("params.json"),
        names=tuple(names),
        n_elements=n_elements,
        n_bytes=np.where(is_floating, width, 8) * n_elements,
        is_floating=is_floating,
        is_ordered=is_ordered,
    )


def named(params, sizes, **more):
    return name_weights(params, np.array(sizes, np.int64), **more)


def wrong(found, truth):
    """The names that are none of the weight's own."""
    return [name for name, real in zip(found.names, truth, strict=True) if name not in ("", real)]


def block(prefix, width):
    """A transformer block in the order of named_parameters."""
    return [
        (f"{prefix}.norm1.weight", width),
        (f"{prefix}.norm1.bias", width),
        (f"{prefix}.attn.q.weight", width * width),
        (f"{prefix}.attn.k.weight", width * width),
        (f"{prefix}.attn.v.weight", width * width),
        (f"{prefix}.attn.out.weight", width * width),
        (f"{prefix}.norm2.weight", width),
        (f"{prefix}.norm2.bias", width),
        (f"{prefix}.up.weight", 4 * width * width),
        (f"{prefix}.up.bias", 4 * width),
        (f"{prefix}.down.weight", 4 * width * width),
        (f"{prefix}.down.bias", width),
    ]


WIDTH = 64
MODEL = [
    ("embedding.weight", 1001 * WIDTH),
    *(row for i in range(12) for row in block(f"blocks.{i}", WIDTH)),
    ("norm.weight", WIDTH),
    ("norm.bias", WIDTH),
    ("head.weight", 10 * WIDTH),
]
NAMES = tuple(name for name, _ in MODEL)
SIZES = [4 * n for _, n in MODEL]


def test_in_the_same_order_every_weight_has_its_name():
    found = named(listing(MODEL), SIZES)
    assert found.names == NAMES
    assert (found.n_bytes, found.named_bytes) == (sum(SIZES),) * 2
    assert (found.n_listed, found.n_without_memory) == (len(MODEL), 0)


# As in MultiheadAttention: out_proj, then its own in_proj. What the model itself has comes last.
PLACED = ["attn.out_proj.weight", "attn.out_proj.bias", "attn.in_proj_weight", "attn.in_proj_bias"]


@pytest.mark.parametrize(
    ("rows", "allocated"),
    [
        (
            [("cls", 100), ("scale", 8), *zip(PLACED[2:] + PLACED[:2], (192, 24, 64, 8), strict=True)],
            [*PLACED, "cls", "scale"],
        ),
        ([("a", 8), ("inner.b", 8), ("inner.c", 16)], ["a", "inner.b", "inner.c"]),
    ],
    ids=["modules within are placed first", "built on the device"],
)
def test_a_model_is_allocated_in_one_of_two_orders(rows, allocated):
    listed = listing(rows)
    size_of = dict(zip(listed.names, listed.n_bytes.tolist(), strict=True))
    assert named(listed, [size_of[name] for name in allocated]).names == tuple(allocated)


def test_where_two_orders_fit_a_name_that_depends_on_them_is_none():
    assert named(listing([("a", 8), ("inner.b", 8)]), [32, 32]).names == ("", "")


def test_a_tied_name_has_no_memory_of_its_own():
    found = named(listing([*MODEL, ("lm_head.weight", 1001 * WIDTH)]), SIZES)
    assert (found.names, found.n_without_memory) == (NAMES, 1)


def test_frozen_weights_that_lie_elsewhere_cost_the_ends_no_name():
    kept = [i for i, name in enumerate(NAMES) if not name.startswith("blocks.3.")]
    found = named(listing(MODEL), [SIZES[i] for i in kept])
    # All blocks are alike: there is no evidence which one is missing.
    assert wrong(found, [NAMES[i] for i in kept]) == []
    assert (found.names[0], found.names[-1]) == (NAMES[0], NAMES[-1])
    assert found.n_without_memory >= 12


def test_memory_that_is_not_listed_has_no_name_and_moves_no_other():
    sizes = [999, *SIZES[:20], 12345, *SIZES[20:], 7]
    found = named(listing(MODEL), sizes)
    assert found.names == ("", *NAMES[:20], "", *NAMES[20:], "")
    assert found.named_bytes == sum(SIZES)
    assert found.entry[[0, 21, -1]].tolist() == [-1, -1, -1]


@pytest.mark.parametrize("width", [1, 2, 8])
@pytest.mark.parametrize("has_dtypes", [True, False])
def test_a_model_that_was_converted_as_a_whole_has_its_names(width, has_dtypes):
    params = listing(MODEL)
    if not has_dtypes:
        params = replace(params, n_bytes=np.full(len(MODEL), -1))
    assert named(params, [width * n for _, n in MODEL]).names == NAMES


def test_a_half_model_with_norms_in_full_has_nearly_all_other_names():
    sizes = [(4 if "norm" in name else 2) * n for name, n in MODEL]
    found = named(listing(MODEL), sizes)
    assert wrong(found, NAMES) == []
    assert found.named_bytes >= 0.98 * found.n_bytes


def test_integers_are_not_converted():
    rows = [("w", 64), ("count", 64), ("b", 6)]
    found = named(listing(rows, integers=("count",)), [128, 512, 12])
    assert found.names == ("w", "count", "b")


def test_two_equal_models_in_another_order_than_listed_have_no_wrong_name():
    rows = [
        (f"{part}.{name}", n) for part in ("a", "x", "b") for name, n in block("l.0", 8 if part == "x" else 4)
    ]
    # Placed as x, a, b: nothing distinguishes b from a.
    order = [*rows[12:24], *rows[:12], *rows[24:]]
    assert wrong(named(listing(rows), [4 * n for _, n in order]), [name for name, _ in order]) == []


def test_the_list_of_another_model_names_nothing():
    other = [(f"layer{i}.weight", 1000 + 7 * i) for i in range(40)]
    found = named(listing(other), SIZES)
    assert found.named_bytes == 0
    assert (found.names, found.n_without_memory) == (("",) * len(SIZES), 40)


def test_no_weights_and_no_list_with_memory_are_nothing_to_name():
    assert named(listing(MODEL), []).n_without_memory == len(MODEL)
    assert named(listing([("empty", 0)]), SIZES).named_bytes == 0


def test_long_lists_of_equal_sizes_take_no_long_time():
    rows = [(f"m{i}.w", 8 if i % 3 else 16) for i in range(20_000)]
    sizes = [4 * n for _, n in rows]
    assert named(listing(rows), sizes).n_named == len(rows)
    assert named(listing(rows), [12, *sizes[7:]]).n_named < len(rows)


def test_of_a_list_that_is_sorted_by_name_sizes_that_occur_once_have_names():
    found = named(listing(sorted(MODEL), is_ordered=False), SIZES)
    assert {name for name in found.names if name} == {"embedding.weight", "head.weight"}
    assert wrong(found, NAMES) == []


# --- weights older than the trace: addresses instead of an order


def test_preexisting_weights_are_in_order_within_each_pool_of_the_allocator():
    # Sizes of more than 1 MiB lie in segments of their own, wherever those are.
    rows = [("a.weight", 1 << 20), ("a.bias", 8), ("b.weight", 1 << 20), ("b.bias", 8), ("b.scale", 2)]
    sizes = {name: 4 * n for name, n in rows}
    by_address = ["a.bias", "b.bias", "b.scale", "a.weight", "b.weight"]
    found = named(listing(rows), [sizes[name] for name in by_address], is_by_address=True)
    assert found.names == tuple(by_address)


def test_where_some_are_missing_addresses_name_only_what_is_unique():
    rows = [(name, n) for part in ("a", "b") for name, n in block(f"{part}.0", 8)]
    rows.append(("head", 3))
    found = named(listing(rows), [4 * n for _, n in rows[12:]], is_by_address=True)
    assert found.names == ("",) * 12 + ("head",)


# --- independent truth, and chance


def truth_of(fixture):
    """Names and sizes of the weights, buffers too, in the order of their allocation."""
    truth = json.loads((FIXTURES / f"{fixture}.truth.json").read_text(encoding="utf-8"))
    at = {column: i for i, column in enumerate(truth["columns"])}
    rows = [row for row in truth["allocations"] if row[at["category"]] == "weight"]
    return [(row[at["module"]], row[at["requested_bytes"]] // 4) for row in rows]


@pytest.mark.parametrize("fixture", ["perceptron", "training_step"])
def test_all_weights_of_a_recorded_run_are_named_right(fixture):
    truth = truth_of(fixture)
    assert named(listing(truth), [4 * n for _, n in truth]).names == tuple(name for name, _ in truth)


def test_without_its_buffers_in_the_list_a_recorded_run_is_named_right():
    truth = truth_of("training_step")
    found = named(listing([row for row in truth if not row[0].endswith("mask")]), [4 * n for _, n in truth])
    assert wrong(found, [name for name, _ in truth]) == []
    assert [name for name in found.names if not name] == [""] * 4


@pytest.mark.parametrize("seed", range(20))
def test_losing_and_adding_a_few_costs_few_names_and_gives_next_to_no_wrong_one(seed):
    rng = np.random.default_rng(seed)
    rows = [(name, n) for name, n in MODEL if rng.random() > 0.03]
    found = named(listing([row for row in MODEL if rng.random() > 0.03]), [4 * n for _, n in rows])
    size_of = dict(rows)
    n_wrong = sum(size_of[name] for name in wrong(found, [name for name, _ in rows]) if name in size_of)
    assert n_wrong <= 0.05 * sum(size_of.values())
    assert found.named_bytes >= 0.5 * found.n_bytes
