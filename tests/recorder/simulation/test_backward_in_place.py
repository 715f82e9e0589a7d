"""Sums of gradients take no new memory where a GPU adds into what nobody else holds."""

import pytest

torch = pytest.importorskip("torch")

from snapconv.simulation import simulated  # noqa: E402
from tests.recorder.simulation.support import events, recorded, sizes_allocated  # noqa: E402

pytestmark = [
    pytest.mark.smoke("simulation"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

MATRIX = 64 * 64 * 4


@pytest.fixture(autouse=True)
def _simulation():
    with simulated():
        yield


def matrix():
    return torch.randn(64, 64, device="cuda", requires_grad=True)


def test_two_gradients_of_one_tensor_are_summed_in_place():
    x, w = matrix(), matrix()
    loss = (x @ w + x.sin()).sum()

    # The loss's gradient; cos and its product; the two gradients of the product of matrices.
    assert sizes_allocated(loss.backward) == [4] + [MATRIX] * 4


def test_a_second_backward_adds_into_the_gradient_that_is_there():
    x, w = matrix().detach(), matrix()
    (x @ w).sum().backward()
    before = w.grad.data_ptr()
    loss = (x @ w).sum()
    with recorded() as snapshot:
        loss.backward()

    assert [entry["size"] for entry in events(snapshot, "alloc")] == [4, MATRIX]
    assert w.grad.data_ptr() == before


def test_the_gradient_of_indexing_is_one_matrix():
    x = matrix()
    loss = x[torch.tensor([1, 2, 3], device="cuda")].sum()

    assert sizes_allocated(loss.backward) == [4, MATRIX]


def test_a_sum_that_a_custom_function_makes_is_new_memory():
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            return gradient.clone() + gradient

    loss = Twice.apply(matrix()).sum()

    assert sizes_allocated(loss.backward) == [4, MATRIX, MATRIX]


def test_with_create_graph_the_sum_of_two_gradients_is_new_memory():
    x, w = matrix(), matrix()
    loss = (x @ w + x.sin()).sum()
    plain = sizes_allocated(lambda: torch.autograd.grad(loss, [x, w], retain_graph=True))
    graph = sizes_allocated(lambda: torch.autograd.grad(loss, [x, w], create_graph=True))

    assert graph.count(MATRIX) == plain.count(MATRIX) + 1
