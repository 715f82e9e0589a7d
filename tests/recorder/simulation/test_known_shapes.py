"""Shapes of results are evaluated once for equal arguments, and again for any that differ."""

import pytest

torch = pytest.importorskip("torch")

from snapconv.simulation import operations  # noqa: E402

aten = torch.ops.aten
TENSOR = torch.ones(3, 4)


@pytest.fixture
def evaluated(monkeypatch):
    """The operations whose meta function is called."""
    names = []
    real = operations._evaluated_shapes

    def evaluate(func, args, kwargs):
        names.append(func.name())
        return real(func, args, kwargs)

    monkeypatch.setattr(operations, "_evaluated_shapes", evaluate)
    monkeypatch.setattr(operations, "_known_shapes", {})
    return names


def shapes(func, *args, **kwargs):
    return operations.result_shapes(func, args, kwargs)


def test_equal_arguments_are_evaluated_once(evaluated):
    results = [shapes(aten.mm.default, torch.ones(3, 4), torch.ones(4, 5)) for _ in range(3)]
    assert [result.shape for result in results] == [(3, 5)] * 3
    assert evaluated == ["aten::mm"]


@pytest.mark.parametrize(
    ("func", "first", "second", "dtypes_or_strides"),
    [
        # A whole number keeps the type, a fraction does not, and equals it all the same.
        (aten.mul.Scalar, (TENSOR.int(), 1), (TENSOR.int(), 1.0), [torch.int32, torch.float32]),
        (aten.add.Tensor, (TENSOR, TENSOR), (TENSOR.half(), TENSOR), [torch.float32] * 2),
        (aten.relu.default, (TENSOR,), (TENSOR.t().contiguous().t(),), [(4, 1), (1, 3)]),
    ],
)
def test_a_type_of_number_a_dtype_and_a_stride_count(
    evaluated, func, first, second, dtypes_or_strides
):
    results = [shapes(func, *first), shapes(func, *second)]
    is_dtype = isinstance(dtypes_or_strides[0], torch.dtype)
    values = [result.dtype if is_dtype else result.stride() for result in results]
    assert values == dtypes_or_strides
    assert len(evaluated) == 2


def test_the_default_dtype_counts(evaluated):
    first = shapes(aten.div.Tensor, TENSOR.int(), TENSOR.int())
    torch.set_default_dtype(torch.float64)
    try:
        second = shapes(aten.div.Tensor, TENSOR.int(), TENSOR.int())
    finally:
        torch.set_default_dtype(torch.float32)
    assert (first.dtype, second.dtype) == (torch.float32, torch.float64)
    assert len(evaluated) == 2


def test_no_more_than_a_number_of_them_are_kept(evaluated, monkeypatch):
    monkeypatch.setattr(operations, "_MAX_KNOWN", 2)
    for n in (1, 2, 3, 3):
        assert shapes(aten.relu.default, torch.ones(n)).shape == (n,)
    assert len(operations._known_shapes) == 1
    assert len(evaluated) == 3


def test_a_librarys_operation_is_evaluated_each_time(evaluated):
    library = torch.library.Library("snapconv_known", "DEF")
    library.define("same(Tensor a) -> Tensor")
    library.impl("same", torch.empty_like, "Meta")
    for _ in range(2):
        assert shapes(torch.ops.snapconv_known.same.default, TENSOR).shape == (3, 4)
    assert len(evaluated) == 2
