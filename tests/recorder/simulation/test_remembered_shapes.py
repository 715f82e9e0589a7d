"""Equal operations are evaluated by shape once, and what differs in anything is no equal one."""

import pytest

torch = pytest.importorskip("torch")

from snapconv.simulation import operations  # noqa: E402
from snapconv.simulation.operations import result_shapes  # noqa: E402

aten = torch.ops.aten


def evaluated(monkeypatch):
    """Return a list that gets the operations that torch's meta functions evaluate from here on."""
    called = []
    real = operations._call_meta_function

    def call(func, metas, kwargs):
        called.append(func)
        return real(func, metas, kwargs)

    monkeypatch.setattr(operations, "_call_meta_function", call)
    return called


def test_an_operation_on_equal_sizes_is_evaluated_once(monkeypatch):
    called = evaluated(monkeypatch)
    for _ in range(3):
        shape = result_shapes(aten.mm.default, (torch.ones(37, 5), torch.ones(5, 41)), {})
        assert shape.shape == (37, 41)
    assert len(called) == 1


def test_other_sizes_strides_and_types_are_evaluated_by_themselves(monkeypatch):
    called = evaluated(monkeypatch)
    for tensor in (torch.ones(38, 6), torch.ones(6, 38).T, torch.ones(38, 6, dtype=torch.int64)):
        shape = result_shapes(aten.neg.default, (tensor,), {})
        assert (shape.shape, shape.stride(), shape.dtype) == (
            tensor.shape,
            tensor.stride(),
            tensor.dtype,
        )
    assert len(called) == 3


@pytest.mark.parametrize("values", [(1, 1.0), (1.0, 1)])
def test_equal_numbers_of_other_types_give_other_types(values):
    for value in values:
        shape = result_shapes(aten.add.Scalar, (torch.ones(39, dtype=torch.int64), value), {})
        assert shape.dtype == (torch.float32 if isinstance(value, float) else torch.int64)


@pytest.fixture
def _keeps_the_default_type():
    before = torch.get_default_dtype()
    yield
    torch.set_default_dtype(before)


@pytest.mark.usefixtures("_keeps_the_default_type")
def test_the_default_type_counts():
    numbers = torch.ones(40, dtype=torch.int64)
    for dtype in (torch.float32, torch.float64):
        torch.set_default_dtype(dtype)
        assert result_shapes(aten.div.Tensor, (numbers, numbers), {}).dtype == dtype


def test_an_operation_of_a_library_is_evaluated_each_time(monkeypatch):
    called = evaluated(monkeypatch)

    @torch.library.custom_op("snapconv_test::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @twice.register_fake
    def _(x):
        return torch.empty_like(x)

    for _ in range(2):
        result_shapes(torch.ops.snapconv_test.twice.default, (torch.ones(3),), {})
    assert len(called) == 2
