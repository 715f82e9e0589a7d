"""Weights get the names of a list by order and size, and what is ambiguous is said to be."""

import json
from pathlib import Path

import numpy as np
import pytest

from snapconv.naming.param_names import name_weights
from snapconv.snapshot.recorded.params_file import ParamList

FIXTURES = Path(__file__).parents[3] / "fixtures"


def listing(rows, *, is_ordered=True, width=4, tied=(), buffers=(), integers=()):
    """A list of (name, elements) of floats that have so many bytes; all integers have eight."""
    names, n_elements = [name for name, _ in rows], np.array([n for _, n in rows], np.int64)

    def marks(chosen):
        return np.array([name in chosen for name in names], np.bool_)

    is_floating = ~marks(integers)
    return ParamList(
        path=Path("params.json"),
        names=tuple(names),
        n_elements=n_elements,
        n_bytes=np.where(is_floating, width, 8) * n_elements,
        is_floating=is_floating,
        is_buffer=marks(buffers),
        requires_grad=np.ones(len(names), np.bool_),
        is_tied=marks(tied),
        is_ordered=is_ordered,
    )


def named(params, sizes, *, is_placed=True):
    return name_weights(params, np.array(sizes, np.int64), is_placed=is_placed)


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


# --- a list in the model's order


def test_in_the_same_order_every_weight_has_its_name_for_certain():
    found = named(listing(MODEL), SIZES)
    assert found.names == NAMES
    assert found.is_certain.all()
    assert (found.n_bytes, found.named_bytes, found.certain_bytes) == (sum(SIZES),) * 3
    assert (found.n_listed, found.n_without_memory) == (len(MODEL), 0)


def test_own_tensors_of_a_module_are_placed_after_those_of_the_modules_in_it():
    # As in MultiheadAttention: out_proj, then its own in_proj. What the model itself has comes last.
    rows = [
        ("cls", 100),
        ("attn.in_proj_weight", 3 * 64),
        ("attn.in_proj_bias", 3 * 8),
        ("attn.out_proj.weight", 64),
        ("attn.out_proj.bias", 8),
        ("scale", 8),
    ]
    placed = ["attn.out_proj.weight", "attn.out_proj.bias", "attn.in_proj_weight", "attn.in_proj_bias"]
    sizes = dict(rows)
    listed = listing([rows[0], rows[5], *rows[1:5]])
    found = named(listed, [4 * sizes[name] for name in (*placed, "cls", "scale")])
    assert found.names == (*placed, "cls", "scale")
    assert found.is_certain.all()


def test_a_model_built_on_the_device_has_its_own_tensors_first():
    rows = [("a", 8), ("inner.b", 8), ("inner.c", 16)]
    found = named(listing(rows), [32, 32, 64], is_placed=False)
    assert found.names == ("a", "inner.b", "inner.c")
    assert found.is_certain.all()


def test_where_no_frame_shows_how_it_was_built_names_that_depend_on_it_are_ambiguous():
    rows = [("a", 8), ("inner.b", 8), ("inner.c", 16)]
    placed = named(listing(rows), [32, 64, 32], is_placed=None)
    assert placed.names == ("inner.b", "inner.c", "a")
    either = named(listing([("a", 8), ("inner.b", 8)]), [32, 32], is_placed=None)
    assert not either.is_certain.any()


def test_buffers_are_allocated_after_the_parameters_of_their_module():
    rows = [("bn.weight", 8), ("bn.bias", 8), ("fc.weight", 80), ("bn.mean", 8), ("bn.var", 8), ("bn.n", 1)]
    listed = listing(rows, buffers=("bn.mean", "bn.var", "bn.n"), integers=("bn.n",))
    found = named(listed, [32, 32, 32, 32, 8, 320])
    assert found.names == ("bn.weight", "bn.bias", "bn.mean", "bn.var", "bn.n", "fc.weight")
    assert found.is_certain.all()


def test_a_tied_name_has_no_memory_of_its_own():
    listed = listing([*MODEL, ("lm_head.weight", 1001 * WIDTH)], tied=("lm_head.weight",))
    found = named(listed, SIZES)
    assert found.names == NAMES
    assert (found.n_listed, found.n_without_memory) == (len(MODEL), 0)


def test_a_tied_name_that_the_list_does_not_mark_is_left_over():
    found = named(listing([*MODEL, ("lm_head.weight", 1001 * WIDTH)]), SIZES)
    assert found.names == NAMES
    assert found.is_certain.all()
    assert found.n_without_memory == 1


def test_frozen_weights_that_lie_elsewhere_cost_the_others_no_name():
    kept = [i for i, name in enumerate(NAMES) if not name.startswith("blocks.3.")]
    found = named(listing(MODEL), [SIZES[i] for i in kept])
    assert found.n_without_memory == 12
    # All blocks are alike: there is no evidence which one is missing; the ends are certain.
    for i, name, is_certain in zip(kept, found.names, found.is_certain, strict=True):
        assert name == NAMES[i] or not is_certain
    assert found.is_certain[[0, -1]].all()
    assert found.named_bytes == found.n_bytes


def test_memory_that_is_not_listed_keeps_no_name_and_moves_no_other():
    sizes = [999, *SIZES[:20], 12345, *SIZES[20:], 7]
    found = named(listing(MODEL), sizes)
    assert found.names == ("", *NAMES[:20], "", *NAMES[20:], "")
    assert found.named_bytes == sum(SIZES)
    assert found.entry[[0, 21, -1]].tolist() == [-1, -1, -1]


@pytest.mark.parametrize("width", [1, 2, 8])
def test_a_model_that_was_converted_as_a_whole_has_its_names(width):
    found = named(listing(MODEL), [width * n for _, n in MODEL])
    assert found.names == NAMES
    assert found.is_certain.all()


def test_a_half_model_with_norms_in_full_has_its_names():
    sizes = [(4 if "norm" in name else 2) * n for name, n in MODEL]
    found = named(listing(MODEL), sizes)
    assert found.names == NAMES
    assert found.certain_bytes == found.n_bytes


def test_integers_are_not_converted():
    rows = [("w", 64), ("count", 64), ("b", 6)]
    found = named(listing(rows, integers=("count",)), [128, 512, 12])
    assert found.names == ("w", "count", "b")


def test_without_dtypes_any_floating_point_type_fits():
    params = listing(MODEL)
    params = ParamList(**{name: getattr(params, name) for name in ParamList.__slots__ if name != "n_bytes"},
                       n_bytes=np.full(len(MODEL), -1))  # fmt: skip
    assert named(params, [2 * n for _, n in MODEL]).names == NAMES
    assert named(params, SIZES).names == NAMES


def test_a_padded_vocabulary_has_its_name():
    found = named(listing(MODEL), [4 * 1024 * WIDTH, *SIZES[1:]])
    assert found.names == NAMES


def test_the_weights_of_an_lstm_in_one_allocation_are_named_after_the_first():
    rows = [
        ("fc.weight", 10),
        ("lstm.weight_ih_l0", 400),
        ("lstm.weight_hh_l0", 400),
        ("lstm.bias_ih_l0", 40),
        ("lstm.bias_hh_l0", 40),
        ("head.weight", 77),
    ]
    found = named(listing(rows), [40, 3520 + 256, 308])
    assert found.names == ("fc.weight", "lstm.weight_ih_l0 + 3 more", "head.weight")
    assert (found.named_bytes, found.n_without_memory) == (found.n_bytes, 0)


def test_a_model_placed_part_by_part_has_its_names():
    generator = [(f"g.{name}", n) for name, n in MODEL]
    critic = [(f"d.{name}", n // 2) for name, n in MODEL]
    found = named(listing([*generator, *critic]), [4 * n for _, n in (*critic, *generator)])
    assert found.names == tuple(name for name, _ in (*critic, *generator))


def test_two_equal_models_in_another_order_than_listed_are_never_reported_to_be_certain():
    rows = [
        (f"{part}.{name}", n) for part in ("a", "x", "b") for name, n in block("l.0", 8 if part == "x" else 4)
    ]
    # Placed as x, b, a: nothing distinguishes b from a.
    order = [*rows[12:24], *rows[24:], *rows[:12]]
    found = named(listing(rows), [4 * n for _, n in order])
    truth = [name for name, _ in order]
    wrong = [a != b and sure for a, b, sure in zip(found.names, truth, found.is_certain, strict=True)]
    assert not any(wrong)
    assert found.names[:12] == tuple(truth[:12])


def test_the_list_of_another_model_names_next_to_nothing():
    other = [(f"layer{i}.weight", 1000 + 7 * i) for i in range(40)]
    found = named(listing(other), SIZES)
    assert found.named_bytes == 0
    assert (found.names, found.n_without_memory) == (("",) * len(SIZES), 40)


def test_no_weights_and_no_list_with_memory_are_nothing_to_name():
    assert named(listing(MODEL), []).n_without_memory == len(MODEL)
    assert named(listing([("empty", 0)]), SIZES).named_bytes == 0


# --- a list sorted by name


def by_name(rows):
    return listing(sorted(rows), is_ordered=False)


def test_sorted_names_pair_by_size_and_number_and_are_certain_of_sizes_that_occur_once():
    found = named(by_name(MODEL), SIZES)
    assert found.named_bytes == found.n_bytes
    # blocks.10 stands before blocks.2 in the list. Of one block, vectors of one size may change places.
    right = [size for name, truth, size in zip(found.names, NAMES, SIZES, strict=True) if name == truth]
    assert sum(right) >= 0.99 * sum(SIZES)
    assert {name for name, sure in zip(found.names, found.is_certain, strict=True) if sure} == {
        "embedding.weight",
        "head.weight",
    }


def test_what_is_ambiguous_takes_the_customary_order():
    names = ["q_proj", "k_proj", "v_proj", "o_proj"]
    found = named(by_name([(f"attn.{name}.weight", 64) for name in names]), [256] * 4)
    assert found.names == tuple(f"attn.{name}.weight" for name in names)
    assert not found.is_certain.any()


def test_the_tensors_of_one_module_are_in_torch_s_order():
    names = [f"lstm.{kind}_l{layer}" for layer in (0, 1) for kind in
             ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]  # fmt: skip
    rows = [("norm.weight", 16), ("norm.bias", 16)]
    rows += [(name, 64 if "weight" in name else 8) for name in names]
    found = named(by_name(rows), [4 * n for _, n in rows])
    assert found.names == tuple(name for name, _ in rows)


def test_modules_of_a_sorted_list_may_have_been_placed_in_any_order():
    rng = np.random.default_rng(5)
    parts = [[(f"m{i}x.w", 100 + i), (f"m{i}x.b", 10 + i)] for i in range(30)]
    order = [row for i in rng.permutation(30).tolist() for row in parts[i]]
    found = named(by_name(order), [4 * n for _, n in order])
    assert found.names == tuple(name for name, _ in order)
    assert found.is_certain.all()


def test_a_module_with_a_missing_tensor_costs_the_others_no_name():
    gone = "blocks.5.up.weight"
    kept = [(name, n) for name, n in MODEL if name != gone]
    found = named(by_name(MODEL), [4 * n for _, n in kept])
    sure_and_wrong = [
        name for name, (truth, _), sure in zip(found.names, kept, found.is_certain, strict=True)
        if sure and name != truth
    ]  # fmt: skip
    assert sure_and_wrong == []
    assert found.named_bytes == found.n_bytes


# --- weights older than the trace: addresses instead of an order


def test_preexisting_weights_are_in_order_within_each_pool_of_the_allocator():
    # Sizes of more than 1 MiB lie in segments of their own, wherever those are.
    rows = [("a.weight", 1 << 20), ("a.bias", 8), ("b.weight", 1 << 20), ("b.bias", 8), ("b.scale", 2)]
    sizes = {name: 4 * n for name, n in rows}
    by_address = ["a.bias", "b.bias", "b.scale", "a.weight", "b.weight"]
    weights = np.array([sizes[name] for name in by_address])
    found = name_weights(listing(rows), weights, is_placed=None, is_by_address=True)
    assert found.names == tuple(by_address)


def test_where_some_are_missing_addresses_make_nothing_certain_but_what_is_unique():
    rows = [(name, n) for part in ("a", "b") for name, n in block(f"{part}.0", 8)]
    rows.append(("head", 3))
    weights = np.array([4 * n for _, n in rows[12:]])
    found = name_weights(listing(rows), weights, is_placed=True, is_by_address=True)
    assert found.names[-1] == "head"
    assert found.is_certain.tolist() == [False] * 12 + [True]


# --- independent truth, and chance


def truth_of(fixture):
    """Names and sizes of the weights, buffers too, in the order of their allocation."""
    truth = json.loads((FIXTURES / f"{fixture}.truth.json").read_text(encoding="utf-8"))
    at = {column: i for i, column in enumerate(truth["columns"])}
    rows = [row for row in truth["allocations"] if row[at["category"]] == "weight"]
    return [(row[at["module"]], row[at["requested_bytes"]] // 4, row[at["requested_bytes"]]) for row in rows]


def share_right(found, truth):
    sizes = [n_bytes for _, _, n_bytes in truth]
    right = sum(n for name, (real, _, n) in zip(found.names, truth, strict=True) if name == real)
    return right / sum(sizes)


@pytest.mark.parametrize("fixture", ["perceptron", "training_step"])
@pytest.mark.parametrize("is_placed", [True, None])
def test_all_bytes_of_a_recorded_run_are_named_right(fixture, is_placed):
    truth = truth_of(fixture)
    found = named(listing([row[:2] for row in truth]), [row[2] for row in truth], is_placed=is_placed)
    assert share_right(found, truth) == 1
    assert found.certain_bytes == found.n_bytes


def test_without_its_buffers_in_the_list_a_recorded_run_is_named_right():
    truth = truth_of("training_step")
    listed = [row[:2] for row in truth if not row[0].endswith("mask")]
    found = named(listing(listed), [row[2] for row in truth])
    assert share_right(found, truth) >= 0.99
    assert [name for name in found.names if not name] == [""] * 4


@pytest.mark.parametrize("fixture", ["perceptron", "training_step"])
def test_a_sorted_list_is_right_about_what_it_is_certain_of(fixture):
    truth = truth_of(fixture)
    found = named(by_name([row[:2] for row in truth]), [row[2] for row in truth])
    for name, (real, _, _), sure in zip(found.names, truth, found.is_certain, strict=True):
        assert name == real or not sure


@pytest.mark.parametrize("seed", range(20))
def test_losing_and_adding_a_few_leaves_99_per_cent_right_or_uncertain(seed):
    rng = np.random.default_rng(seed)
    rows = [(name, n) for name, n in MODEL if rng.random() > 0.03]
    listed = [row for row in MODEL if rng.random() > 0.03]
    sizes = [4 * n for _, n in rows]
    found = named(listing(listed), sizes)
    in_list = {name for name, _ in listed}
    sure_and_wrong = sum(
        size
        for name, (real, _), size, sure in zip(found.names, rows, sizes, found.is_certain, strict=True)
        if sure and name and name != real
    )
    findable = sum(size for (real, _), size in zip(rows, sizes, strict=True) if real in in_list)
    right = sum(size for name, (real, _), size in zip(found.names, rows, sizes, strict=True) if name == real)
    assert sure_and_wrong <= 0.05 * sum(sizes)
    assert right >= 0.75 * findable
