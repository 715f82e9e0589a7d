"""Operators on functions run as in eager mode: plain torch on the CPU has the same results."""

import gc

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional as F  # noqa: E402
from torch.nn.attention.flex_attention import create_block_mask, flex_attention  # noqa: E402

from snapconv.simulation import SimulationOptions, simulated  # noqa: E402

pytestmark = [
    pytest.mark.smoke("higher-order"),
    pytest.mark.filterwarnings("ignore"),
]
LENGTH = 256


def causal(_batch, _head, query, key):
    return query >= key


def with_slopes(slopes):
    def score(score, _batch, head, query, key):
        return score + slopes[head] * (key - query)

    return score


def inputs_of_attention():
    torch.manual_seed(0)
    return torch.randn(3, 1, 2, LENGTH, 32), torch.tensor([0.1, 0.2])


def attend(device):
    """Attend causally, with a bias that a closure holds, and return the gradient of all inputs."""
    inputs, slopes = (tensor.to(device) for tensor in inputs_of_attention())
    mask = create_block_mask(causal, None, None, LENGTH, LENGTH, device=device)
    score = with_slopes(slopes)
    inputs.requires_grad_()
    flex_attention(*inputs, score_mod=score, block_mask=mask).square().mean().backward()
    return inputs.grad


def attend_by_a_matrix():
    """Do the same by the matrix of all biases, which the CPU derives too."""
    inputs, slopes = inputs_of_attention()
    position = torch.arange(LENGTH)
    distance = position - position[:, None]
    bias = (slopes[:, None, None] * distance).masked_fill(distance > 0, -torch.inf)
    inputs.requires_grad_()
    F.scaled_dot_product_attention(*inputs, attn_mask=bias).square().mean().backward()
    return inputs.grad


def attend_without_gradients(device):
    inputs = inputs_of_attention()[0].to(device)
    mask = create_block_mask(causal, None, None, LENGTH, LENGTH, device=device)
    with torch.no_grad():
        return flex_attention(*inputs, block_mask=mask)


def choose(device):
    x = torch.arange(6.0, device=device)
    return torch.cond(x.sum() > 3, lambda x: x.sin() * 2, lambda x: x.cos(), (x,))


def repeat(device):
    from torch._higher_order_ops import while_loop

    steps, x = torch.zeros((), dtype=torch.long, device=device), torch.ones(5, device=device)
    return while_loop(lambda n, _: n < 3, lambda n, x: (n + 1, x * 2), (steps, x))[1]


def scan_rows(device):
    from torch._higher_order_ops import scan

    rows = torch.arange(12.0, device=device).view(4, 3)
    return scan(lambda carry, row: (carry + row, carry * row), rows[0].clone(), rows)[1]


def scan_in_any_order(device):
    from torch._higher_order_ops import associative_scan

    rows = torch.arange(12.0, device=device).view(4, 3)
    return associative_scan(lambda x, y: x + y, rows, dim=0, combine_mode="generic")


WORK = [attend_without_gradients, choose, repeat, scan_rows, scan_in_any_order]


@pytest.mark.parametrize("work", WORK, ids=lambda work: work.__name__)
def test_the_result_is_that_of_plain_torch(work):
    plain = work("cpu")
    with simulated():
        result = work("cuda")
        assert result.is_cuda
        assert torch.allclose(result.cpu(), plain, atol=1e-6)


def test_the_gradients_of_attention_are_those_of_its_matrix():
    with simulated():
        gradients = attend("cuda").cpu()
    assert torch.allclose(gradients, attend_by_a_matrix(), atol=1e-6)


@pytest.mark.parametrize("compute", [True, False], ids=["compute", "no-compute"])
def test_uncompiled_attention_has_its_scores_in_memory(compute):
    """Two matrices of 2 heads × 256 × 256 scores in float32 at least, and none is kept."""
    n_score_bytes = 2 * LENGTH * LENGTH * 4
    with simulated(SimulationOptions(compute=compute)):
        attend("cuda")
        gc.collect()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        attend_without_gradients("cuda")
        assert torch.cuda.max_memory_allocated() - before > 2 * n_score_bytes
        assert torch.cuda.memory_allocated() == before
